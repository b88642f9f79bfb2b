/* What a dishonest member, or a writer of a group, writes: a loss of the group's own, never more. */
#include "group_fixture.h"

static struct stream s;
static struct group g;
static struct attached a, b;

static void set_up(uint32_t nslots, enum mcpd_policy policy, uint32_t depth)
{
    stream_open(&s, nslots, 1, 2);
    group_open(&s, &g, policy, depth);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
}

static void tear_down(void)
{
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(claims_that_name_anything_hold_no_more_slots_than_were_admitted)
{
    set_up(8, MCPD_LATEST, 0); /* 1 + 2 + 1, and 4 pins */
    for (uint64_t seq = 1; seq < 500; seq++) {
        uint64_t published = publish(&s);
        uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, published)));
        uint32_t state = seq % 2 ? MCPD_CLAIM_TAKEN : MCPD_CLAIM_RETURNED;
        mcpd_store_release(&g.claims[slot], MCPD_CLAIM(published, 200 + seq % 56, state));
        if (seq % 7 == 0)
            mcpd_store_release(&g.claims[seq % 8], UINT64_MAX - seq);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    tear_down();
}

TEST(a_groups_cursor_that_runs_ahead_gives_up_only_its_own_frames)
{
    struct attached other;
    set_up(12, MCPD_LOSSLESS, 0);
    attach(&s, &other, MCPD_LOSSLESS, 1);
    mcpd_store_release(&g.gctl->cursor, UINT64_MAX);
    for (int i = 0; i < 30; i++) {
        publish(&s);
        CHECK_EQUAL(read_one(&other), i + 1);
        CHECK_EQUAL(next_now(&a), -EAGAIN);
    }
    mcpd_store_release(&g.gctl->cursor, 3);
    CHECK_EQUAL(next_now(&a), -EBADMSG); /* what it gave up is gone */
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&other);
    tear_down();
}

TEST(a_groups_cursor_that_goes_back_holds_nothing_up)
{
    set_up(9, MCPD_LOSSLESS, 0);
    for (int i = 0; i < 100; i++) {
        publish(&s);
        mcpd_store_release(&g.gctl->cursor, (uint64_t)i + 1);
        read_one(&a);
        CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)), 0);
        mcpd_store_release(&g.gctl->cursor, 0); /* the writer has seen better */
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    tear_down();
}

TEST(a_count_of_returns_that_lies_has_members_look_in_vain)
{
    set_up(9, MCPD_FIFO, 2);
    for (uint32_t i = 0; i < 100; i++) {
        mcpd_store_release(&g.gctl->returned, i * UINT32_C(0x9e3779b9));
        CHECK_EQUAL(next_now(&a), -EAGAIN);
        publish(&s);
        CHECK_EQUAL(read_one(i % 2 ? &a : &b), i + 1);
    }
    tear_down();
}

TEST(a_returned_claim_of_no_frame_is_cleared)
{
    set_up(9, MCPD_FIFO, 2);
    publish(&s);
    for (uint32_t slot = 0; slot < g.nslots; slot++)
        mcpd_store_release(&g.claims[slot], MCPD_CLAIM(99 + slot, 255, MCPD_CLAIM_RETURNED));
    mcpd_store_release(&g.gctl->returned, 1);
    CHECK_EQUAL(next_now(&a), -EBADMSG); /* claims of frames to come stand in its way */
    for (uint32_t slot = 0; slot < g.nslots; slot++)
        CHECK_EQUAL(mcpd_load_relaxed(&g.claims[slot]),
                    MCPD_CLAIM(99 + slot, 0, MCPD_CLAIM_DONE));
    tear_down();
}

TEST(a_claim_that_another_took_away_is_finished_without_harm)
{
    set_up(9, MCPD_FIFO, 2);
    publish(&s);
    uint32_t pin = pin_next(&a, 1);
    uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)));
    mcpd_store_release(&g.claims[slot], MCPD_CLAIM(1, 77, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(mcpd_reader_unpin(a.reader, pin), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&g.claims[slot]), MCPD_CLAIM(1, 77, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->finished), 0);
    tear_down();
}

/* ---- a dishonest writer ---------------------------------------------------------------------- */

static void refused(void)
{
    CHECK_EQUAL(next_now(&a), -EBADMSG);
    for (uint32_t slot = 0; slot < g.nslots; slot++)
        CHECK(MCPD_CLAIM_STATE(mcpd_load_relaxed(&g.claims[slot])) != MCPD_CLAIM_TAKEN);
    tear_down();
}

TEST(members_refuse_a_slot_index_out_of_bounds)
{
    set_up(9, MCPD_LOSSLESS, 0);
    publish(&s);
    mcpd_store_release(queue_of(&s, 1), MCPD_TAG(1, 9));
    refused();
}

TEST(members_refuse_a_head_that_runs_ahead)
{
    set_up(9, MCPD_LATEST, 0);
    mcpd_store_release(&s.wctl->head, UINT64_MAX);
    refused();
}

TEST(members_refuse_more_bytes_than_a_slot_has)
{
    set_up(9, MCPD_FIFO, 2);
    publish(&s);
    header_of(&s, MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1))))->meta.nbytes = UINT64_MAX;
    refused();
}

TEST(members_do_not_wait_for_ever_for_a_slot_that_is_never_put_back)
{
    set_up(9, MCPD_LOSSLESS, 0);
    publish(&s);
    CHECK_EQUAL(mcpd_reader_give_back(b.reader, pin_next(&b, 1)), 0);
    uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)));
    mcpd_store_release(&header_of(&s, slot)->state, MCPD_TAG(1, MCPD_SLOT_WRITING));
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(next_now(&a), -EAGAIN);
    publish(&s);
    CHECK_EQUAL(read_one(&a), 2); /* and go on meanwhile */
    CHECK_EQUAL(mcpd_load_relaxed(&g.claims[slot]), MCPD_CLAIM(1, 1, MCPD_CLAIM_RETURNED));
    tear_down();
}
