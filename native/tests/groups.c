/* Groups: who gets which frame, what claims hold, what happens when members leave. */
#include "group_fixture.h"

TEST(members_share_the_frames_of_a_lossless_group)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    publish(&s);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    CHECK_EQUAL(g.start, 2);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
    CHECK_EQUAL(a.start, 0);
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    for (int i = 0; i < 4; i++)
        publish(&s);
    uint32_t first = pin_next(&a, 2), second = pin_next(&b, 3);
    pin_next(&a, 4);
    pin_next(&b, 5);
    CHECK_EQUAL(claim_of(&s, &g, 2), MCPD_CLAIM(2, 0, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(claim_of(&s, &g, 3), MCPD_CLAIM(3, 1, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->cursor), 6);
    CHECK_EQUAL(mcpd_reader_unpin(a.reader, first), 0);
    CHECK_EQUAL(mcpd_reader_unpin(b.reader, second), 0);
    CHECK_EQUAL(claim_of(&s, &g, 2), MCPD_CLAIM(2, 0, MCPD_CLAIM_DONE));
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->finished), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->received), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->cursor), 5);
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->dropped), 0);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(members_of_a_latest_group_jump_to_the_newest_frame_that_nobody_has)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    publish(&s);
    group_open(&s, &g, MCPD_LATEST, 0);
    CHECK_EQUAL(g.start, 0);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
    pin_next(&a, 1); /* it was there already, and counts as unseen */
    CHECK_EQUAL(next_now(&b), -EAGAIN);
    for (int i = 0; i < 3; i++)
        publish(&s);
    pin_next(&b, 4);
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(&b.rctl->skipped), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->skipped), 0);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(members_of_a_fifo_group_get_what_is_within_its_depth_in_order)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 12, 1, 1);
    group_open(&s, &g, MCPD_FIFO, 3);
    CHECK_EQUAL(g.start, 1);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
    for (int i = 0; i < 10; i++)
        publish(&s);
    CHECK(!is_published(&s, 6));
    pin_next(&a, 8);
    pin_next(&b, 9);
    pin_next(&a, 10);
    CHECK_EQUAL(next_now(&b), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->dropped), 7);
    CHECK_EQUAL(mcpd_load_relaxed(&b.rctl->dropped), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_claim_keeps_its_frame_until_it_is_finished)
{
    struct stream s;
    struct group g;
    struct attached a;
    stream_open(&s, 6, 1, 1);
    group_open(&s, &g, MCPD_LATEST, 0);
    join(&s, &g, &a, 1);
    publish(&s);
    uint32_t pin = pin_next(&a, 1);
    CHECK_EQUAL(mcpd_load_relaxed(&a.pins[0]), 0); /* claims are its pins */
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->pinned), 1);
    for (int i = 0; i < 50; i++)
        publish(&s);
    CHECK(is_published(&s, 1));
    CHECK(is_whole(mcpd_reader_slot(a.reader, pin), 1));
    CHECK_EQUAL(mcpd_reader_unpin(a.reader, pin), 0);
    publish(&s);
    publish(&s);
    CHECK(!is_published(&s, 1));
    detach(&a);
    group_close(&g);
    stream_close(&s);
}

TEST(what_a_member_gives_back_goes_to_the_next_that_looks)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
    for (int i = 0; i < 3; i++)
        publish(&s);
    uint32_t first = pin_next(&a, 1);
    uint32_t second = pin_next(&a, 2);
    CHECK_EQUAL(mcpd_reader_give_back(a.reader, second), 0);
    CHECK_EQUAL(mcpd_reader_give_back(a.reader, second), -EINVAL);
    CHECK_EQUAL(mcpd_reader_give_back(a.reader, first), 0);
    CHECK_EQUAL(claim_of(&s, &g, 1), MCPD_CLAIM(1, 0, MCPD_CLAIM_RETURNED));
    pin_next(&b, 1); /* the lowest first, and before those that are new */
    pin_next(&b, 2);
    pin_next(&a, 3);
    CHECK_EQUAL(claim_of(&s, &g, 1), MCPD_CLAIM(1, 1, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->returns), 2);
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_member_that_closes_gives_back_what_it_has_not_finished)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 2);
    join(&s, &g, &b, 2);
    publish(&s);
    publish(&s);
    pin_next(&a, 1);
    mcpd_reader_close(a.reader);
    a.reader = NULL;
    CHECK_EQUAL(mcpd_load_relaxed(&a.rctl->pinned), 0);
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 0, 1), 0);
    pin_next(&b, 1);
    pin_next(&b, 2);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_sweep_returns_a_dead_members_claims_and_no_others)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 12, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 3);
    join(&s, &g, &b, 3);
    for (int i = 0; i < 4; i++)
        publish(&s);
    uint32_t finished = pin_next(&a, 1);
    pin_next(&a, 2);
    pin_next(&b, 3);
    CHECK_EQUAL(mcpd_reader_unpin(a.reader, finished), 0);
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 0, 1), 1);
    CHECK_EQUAL(claim_of(&s, &g, 1), MCPD_CLAIM(1, 0, MCPD_CLAIM_DONE));
    CHECK_EQUAL(claim_of(&s, &g, 2), MCPD_CLAIM(2, 0, MCPD_CLAIM_RETURNED));
    CHECK_EQUAL(claim_of(&s, &g, 3), MCPD_CLAIM(3, 1, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, a.id), 0);
    pin_next(&b, 2);
    pin_next(&b, 4);
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 1, 0), 3); /* nobody is left to do them */
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(claim_of(&s, &g, 2) & 0xff, MCPD_CLAIM_DONE);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_lossless_group_holds_the_writer_back_and_its_finishes_wake_it)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 6, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 1);
    join(&s, &g, &b, 1);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    uint32_t pin = pin_next(&a, 1);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(mcpd_reader_give_back(a.reader, pin), 0);
    CHECK_EQUAL(signals(s.wake), 0); /* it still pins the frame */
    CHECK_EQUAL(read_one(&b), 1);
    CHECK_EQUAL(signals(s.wake), 1);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    publish(&s);
    CHECK(!is_published(&s, 1));
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, a.id), 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, b.id), 0); /* the last: nobody is owed it */
    for (int i = 0; i < 20; i++)
        publish(&s);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_group_is_owed_frames_before_its_first_member_comes)
{
    struct stream s;
    struct group g;
    struct attached a;
    stream_open(&s, 6, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    join(&s, &g, &a, 1);
    for (uint64_t seq = 1; seq <= 6; seq++)
        CHECK_EQUAL(read_one(&a), seq);
    detach(&a);
    group_close(&g);
    stream_close(&s);
}

TEST(a_cursor_that_a_dead_member_left_behind_is_moved_on)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 6, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 1);
    join(&s, &g, &b, 1);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&a), 1);
    mcpd_store_seq_cst(&g.gctl->cursor, 1); /* as if a had died before it moved it */
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    pin_next(&b, 2);
    CHECK_EQUAL(signals(s.wake), 1); /* frame 1 is wanted by nobody: that is room */
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->cursor), 3);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(groups_are_admitted_with_their_depth_their_pins_and_what_was_returned)
{
    struct stream s;
    struct group g, h;
    struct attached a, b, c;
    stream_open(&s, 12, 2, 1); /* 12 - 1 - 1 leaves room for depth and pins of 10 */
    group_make(&s, &g, MCPD_FIFO, 11);
    CHECK_EQUAL(group_admit(&s, &g), -ENOSPC);
    g.depth = 0;
    CHECK_EQUAL(group_admit(&s, &g), -EINVAL);
    g.depth = 5;
    CHECK_EQUAL(group_admit(&s, &g), 1);
    CHECK_EQUAL(group_admit(&s, &g), -EEXIST);
    mcpd_store_seq_cst(&g.gctl->cursor, 1);
    join(&s, &g, &a, 3);
    member_make(&s, &g, &b, 3);
    CHECK_EQUAL(reader_admit(&s, &b), -ENOSPC);
    b.admission.member = 0;
    CHECK_EQUAL(reader_admit(&s, &b), -EEXIST);
    b.admission.group = 99;
    CHECK_EQUAL(reader_admit(&s, &b), -ENOENT);
    b.admission.group = g.id;
    b.admission.member = MCPD_MAX_READERS;
    CHECK_EQUAL(reader_admit(&s, &b), -EINVAL);
    detach(&b);
    join(&s, &g, &b, 2); /* 5 + 3 + 2: full */
    group_make(&s, &h, MCPD_FIFO, 6);
    CHECK_EQUAL(group_admit(&s, &h), -ENOSPC);
    h.depth = 5; /* depths are kept side by side, not one after the other */
    CHECK_EQUAL(group_admit(&s, &h), 1);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, h.id), 0);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, h.id), -ENOENT);
    for (int i = 0; i < 3; i++)
        publish(&s);
    pin_next(&a, 1);
    pin_next(&a, 2);
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 0, 1), 2);
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, a.id), 0);
    reader_make(&s, &c, MCPD_LATEST, 2); /* 5 + 2 + 2 returned: room for one */
    CHECK_EQUAL(reader_admit(&s, &c), -ENOSPC);
    CHECK_EQUAL(read_one(&b), 1);
    CHECK_EQUAL(reader_admit(&s, &c), 0);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, g.id), -EBUSY);
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, b.id), 0);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, g.id), 0);
    for (int i = 0; i < 100; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&a);
    detach(&b);
    detach(&c);
    group_close(&g);
    group_close(&h);
    stream_close(&s);
}

TEST(nobody_joins_a_group_whose_last_member_has_left)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 1);
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, a.id), 0);
    member_make(&s, &g, &b, 1);
    CHECK_EQUAL(reader_admit(&s, &b), -ENOENT);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, g.id), -EBUSY);
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, a.id), 0);
    CHECK_EQUAL(mcpd_writer_remove_group(s.writer, g.id), 0);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

TEST(a_group_and_readers_of_their_own_do_not_affect_each_other)
{
    struct stream s;
    struct group g;
    struct attached a, b, latest, fifo;
    stream_open(&s, 16, 1, 1);
    group_open(&s, &g, MCPD_FIFO, 4);
    join(&s, &g, &a, 1);
    join(&s, &g, &b, 1);
    attach(&s, &latest, MCPD_LATEST, 1);
    attach_fifo(&s, &fifo, 8, 1);
    for (int i = 0; i < 9; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&latest), 9);
    for (uint64_t seq = 2; seq <= 9; seq++)
        CHECK_EQUAL(read_one(&fifo), seq);
    for (uint64_t seq = 6; seq <= 9; seq++)
        CHECK_EQUAL(read_one(seq % 2 ? &a : &b), seq);
    detach(&a);
    detach(&b);
    detach(&latest);
    detach(&fifo);
    group_close(&g);
    stream_close(&s);
}

TEST(what_was_returned_is_read_before_the_end)
{
    struct stream s;
    struct group g;
    struct attached a, b;
    stream_open(&s, 10, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &a, 1);
    join(&s, &g, &b, 2);
    publish(&s);
    publish(&s);
    pin_next(&a, 1);
    CHECK_EQUAL(read_one(&b), 2);
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    CHECK_EQUAL(next_now(&b), -EPIPE);
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 0, 1), 1);
    CHECK_EQUAL(read_one(&b), 1);
    CHECK_EQUAL(next_now(&b), -EPIPE);
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}
