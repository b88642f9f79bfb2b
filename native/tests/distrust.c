/* What a dishonest other side writes: an error or a loss of its own, never a crash or a hang. */
#include "fixture.h"

/* Both policies refuse what the writer's control object says now. */
static void both_refuse(struct stream *s, struct attached r[2])
{
    CHECK_EQUAL(next_now(&r[0]), -EBADMSG);
    CHECK_EQUAL(next_now(&r[1]), -EBADMSG);
    CHECK_EQUAL(mcpd_load_relaxed(&r[0].pins[0]), 0); /* no pin is left behind */
    CHECK_EQUAL(mcpd_load_relaxed(&r[1].pins[0]), 0);
    detach(&r[0]);
    detach(&r[1]);
    stream_close(s);
}

static void one_frame(struct stream *s, struct attached r[2])
{
    stream_open(s, 8, 1, 2);
    attach(s, &r[0], MCPD_LATEST, 2);
    attach(s, &r[1], MCPD_LOSSLESS, 2);
    publish(s);
}

TEST(a_slot_index_out_of_bounds_is_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    mcpd_store_release(queue_of(&s, 1), MCPD_TAG(1, 8));
    both_refuse(&s, r);
}

TEST(a_queue_entry_of_another_frame_is_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    mcpd_store_release(queue_of(&s, 1), MCPD_TAG(9, 0));
    both_refuse(&s, r);
}

TEST(a_newest_frame_whose_slot_is_not_published_is_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)));
    mcpd_store_release(&header_of(&s, slot)->state, MCPD_TAG(1, MCPD_SLOT_WRITING));
    both_refuse(&s, r);
}

TEST(more_bytes_than_a_slot_has_are_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)));
    header_of(&s, slot)->meta.nbytes = SLOT_NBYTES + 1;
    both_refuse(&s, r);
}

TEST(metadata_of_another_frame_are_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)));
    header_of(&s, slot)->meta.generation++;
    both_refuse(&s, r);
}

TEST(a_head_that_runs_ahead_of_the_queue_is_refused)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    CHECK_EQUAL(read_one(&r[0]), 1);
    CHECK_EQUAL(read_one(&r[1]), 1);
    mcpd_store_release(&s.wctl->head, UINT64_MAX);
    both_refuse(&s, r);
}

TEST(a_head_that_goes_back_is_nothing_new)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    CHECK_EQUAL(read_one(&r[0]), 1);
    CHECK_EQUAL(read_one(&r[1]), 1);
    mcpd_store_release(&s.wctl->head, 0);
    CHECK_EQUAL(next_now(&r[0]), -EAGAIN);
    CHECK_EQUAL(next_now(&r[1]), -EAGAIN);
    detach(&r[0]);
    detach(&r[1]);
    stream_close(&s);
}

TEST(geometry_in_the_control_object_is_not_read)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    s.wctl->nslots = s.wctl->queue_len = 1u << 30;
    s.wctl->slot_nbytes = UINT64_MAX;
    r[0].rctl->max_pins = r[1].rctl->max_pins = 1u << 30;
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(read_one(&r[0]), i + 1);
        CHECK_EQUAL(read_one(&r[1]), i + 1);
        publish(&s);
    }
    detach(&r[0]);
    detach(&r[1]);
    stream_close(&s);
}

TEST(a_cursor_that_goes_back_holds_nothing_up)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    for (int i = 0; i < 100; i++) {
        publish(&s);
        read_one(&r);
        CHECK(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)) == 0);
        mcpd_store_release(&r.rctl->cursor, 0); /* the writer has seen better */
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&r);
    stream_close(&s);
}

TEST(a_cursor_that_runs_ahead_gives_up_only_its_own_frames)
{
    struct stream s;
    struct attached liar, other;
    stream_open(&s, 8, 1, 2);
    attach(&s, &liar, MCPD_LOSSLESS, 1);
    attach(&s, &other, MCPD_LOSSLESS, 1);
    mcpd_store_release(&liar.rctl->cursor, UINT64_MAX);
    for (int i = 0; i < 3; i++)
        publish(&s);
    for (uint64_t seq = 1; seq <= 3; seq++)
        CHECK_EQUAL(read_one(&other), seq);
    for (int i = 0; i < 20; i++) {
        publish(&s);
        read_one(&other);
    }
    CHECK_EQUAL(next_now(&liar), -EBADMSG); /* what it gave up is gone */
    detach(&liar);
    detach(&other);
    stream_close(&s);
}

TEST(pins_that_name_anything_hold_no_more_slots_than_were_admitted)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 12, 1, 2); /* 1 + 2 + 1, and 8 pins */
    attach(&s, &r, MCPD_LATEST, 8);
    for (uint64_t seq = 1; seq < 200; seq++) {
        uint64_t published = publish(&s);
        uint64_t entry = mcpd_load_acquire(queue_of(&s, published));
        mcpd_store_release(&r.pins[seq % 8], seq % 3 ? entry : UINT64_MAX - seq);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&r);
    stream_close(&s);
}

TEST(an_epoch_that_lies_costs_at_most_one_signal_a_frame)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    for (uint32_t i = 0; i < 100; i++) {
        mcpd_store_release(&r.rctl->epoch, 2 * i + 1);
        publish(&s);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->wakes), 100);
    CHECK_EQUAL(signals(r.wake), 100);
    detach(&r);
    stream_close(&s);
}

TEST(an_end_that_is_taken_back_does_no_harm)
{
    struct stream s;
    struct attached r[2];
    one_frame(&s, r);
    mcpd_store_release(&s.wctl->ended, 12345);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EPIPE);
    CHECK_EQUAL(read_one(&r[0]), 1);
    CHECK_EQUAL(next_now(&r[0]), -EPIPE);
    mcpd_store_release(&s.wctl->ended, 0);
    publish(&s);
    CHECK_EQUAL(read_one(&r[0]), 2);
    CHECK_EQUAL(read_one(&r[1]), 1);
    detach(&r[0]);
    detach(&r[1]);
    stream_close(&s);
}
