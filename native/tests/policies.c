/* Policies side by side, numbering, the last k frames, counters. */
#include "fixture.h"

TEST(fifo_gets_every_frame_within_its_depth_in_order_and_counts_what_it_dropped)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 10, 1, 2);
    publish(&s);
    attach_fifo(&s, &r, 4, 2);
    CHECK_EQUAL(r.start, 2);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    publish(&s);
    publish(&s);
    CHECK_EQUAL(read_one(&r), 2);
    for (int i = 0; i < 10; i++)
        publish(&s); /* 13 is the newest, 3 was not read yet */
    for (uint64_t seq = 10; seq <= 13; seq++)
        CHECK_EQUAL(read_one(&r), seq);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    CHECK_EQUAL(COUNTER(r, dropped), 7);
    CHECK_EQUAL(COUNTER(r, skipped), 0);
    CHECK_EQUAL(COUNTER(r, received), 5);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&r);
    stream_close(&s);
}

TEST(no_more_than_its_depth_is_retained_for_a_fifo_reader_and_nothing_that_it_had)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 10, 1, 2);
    attach_fifo(&s, &r, 4, 1);
    for (int i = 0; i < 8; i++)
        publish(&s);
    CHECK(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)) == 0);
    CHECK(!is_published(&s, 4));
    for (uint64_t seq = 5; seq <= 8; seq++)
        CHECK(is_published(&s, seq));
    CHECK_EQUAL(read_one(&r), 5);
    CHECK_EQUAL(read_one(&r), 6);
    CHECK(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)) == 0);
    CHECK(!is_published(&s, 6) && is_published(&s, 7));
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, r.id), 0);
    CHECK(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)) == 0);
    CHECK(!is_published(&s, 7));
    detach(&r);
    stream_close(&s);
}

TEST(a_fifo_reader_is_admitted_with_its_depth)
{
    struct stream s;
    struct attached a, b, c;
    stream_open(&s, 10, 3, 2); /* 10 - 2 - 1 leaves 7 for depth and pins */
    reader_make(&s, &a, MCPD_FIFO, 2);
    a.admission.depth = 6;
    CHECK_EQUAL(reader_admit(&s, &a), -ENOSPC);
    a.admission.depth = 0;
    CHECK_EQUAL(reader_admit(&s, &a), -EINVAL);
    a.admission.depth = MCPD_MAX_SLOTS + 1;
    CHECK_EQUAL(reader_admit(&s, &a), -EINVAL);
    a.admission.depth = 5;
    CHECK_EQUAL(reader_admit(&s, &a), 1);
    reader_make(&s, &b, MCPD_LATEST, 1);
    CHECK_EQUAL(reader_admit(&s, &b), -ENOSPC);
    b.admission.depth = 1;
    CHECK_EQUAL(reader_admit(&s, &b), -EINVAL);
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, a.id), 0);
    a.admission.depth = 4;
    CHECK_EQUAL(reader_admit(&s, &a), 1);
    reader_make(&s, &c, MCPD_FIFO, 1);
    c.admission.depth = 3; /* within the other's depth */
    CHECK_EQUAL(reader_admit(&s, &c), 1);
    for (int i = 0; i < 100; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&a);
    detach(&b);
    detach(&c);
    stream_close(&s);
}

TEST(readers_with_any_two_policies_do_not_affect_each_other)
{
    struct stream s;
    struct attached latest, fifo, lossless;
    stream_open(&s, 16, 1, 2);
    attach(&s, &latest, MCPD_LATEST, 1);
    attach_fifo(&s, &fifo, 3, 1);
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    for (int i = 0; i < 8; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&fifo), 6);
    CHECK_EQUAL(read_one(&lossless), 1);
    CHECK_EQUAL(read_one(&latest), 8);
    publish(&s);
    CHECK_EQUAL(read_one(&lossless), 2);
    CHECK_EQUAL(read_one(&fifo), 7);
    CHECK_EQUAL(read_one(&latest), 9);
    CHECK_EQUAL(COUNTER(latest, skipped), 7);
    CHECK_EQUAL(COUNTER(fifo, dropped), 5);
    CHECK_EQUAL(COUNTER(lossless, dropped) + COUNTER(lossless, skipped), 0);
    detach(&latest);
    detach(&fifo);
    detach(&lossless);
    stream_close(&s);
}

TEST(sixty_four_readers_of_mixed_policies_each_get_what_is_theirs)
{
    struct stream s;
    struct attached r[MCPD_MAX_READERS];
    stream_open(&s, 90, 1, 1);
    for (int i = 0; i < MCPD_MAX_READERS; i++) {
        if (i % 3 == 1)
            attach_fifo(&s, &r[i], (uint32_t)(1 + i % 8), 1);
        else
            attach(&s, &r[i], i % 3 ? MCPD_LATEST : MCPD_LOSSLESS, 1);
    }
    for (int i = 0; i < 20; i++)
        publish(&s);
    for (int i = 0; i < MCPD_MAX_READERS; i++) {
        uint64_t first = i % 3 == 0 ? 1 : i % 3 == 1 ? 20 - (uint64_t)(i % 8) : 20;
        for (uint64_t seq = first; seq <= 20; seq++)
            CHECK_EQUAL(read_one(&r[i]), seq);
        CHECK_EQUAL(next_now(&r[i]), -EAGAIN);
    }
    for (int i = 0; i < MCPD_MAX_READERS; i++)
        detach(&r[i]);
    stream_close(&s);
}

/* ---- numbering ------------------------------------------------------------------------------- */

TEST(a_generation_goes_on_numbering_where_the_one_before_ended)
{
    struct stream s;
    struct attached early, late, lossless;
    mcpd_writer *other;
    stream_make_from(&s, 8, 1000);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->head), 999);
    CHECK_EQUAL(s.wctl->first_seq, 1000);
    CHECK_EQUAL(mcpd_writer_open(&s.geometry, s.control, s.payload, s.wake, 1, 1, &s.writer), 0);
    attach(&s, &early, MCPD_LATEST, 1);
    CHECK_EQUAL(mcpd_load_relaxed(&early.rctl->cursor), 1000);
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    CHECK_EQUAL(lossless.start, 1000);
    CHECK_EQUAL(next_now(&early), -EAGAIN);
    CHECK_EQUAL(publish(&s), 1000);
    attach(&s, &late, MCPD_LATEST, 1);
    CHECK_EQUAL(read_one(&early), 1000);
    CHECK_EQUAL(read_one(&late), 1000);
    CHECK_EQUAL(read_one(&lossless), 1000);
    CHECK_EQUAL(publish(&s), 1001);
    CHECK_EQUAL(COUNTER(early, skipped), 0);
    CHECK_EQUAL(mcpd_writer_open(&s.geometry, s.control, s.payload, s.wake, 1, 1, &other), -EEXIST);
    detach(&early);
    detach(&late);
    detach(&lossless);
    stream_close(&s);
}

TEST(a_first_number_out_of_bounds_is_refused)
{
    struct stream s;
    struct attached r;
    mcpd_writer *writer;
    stream_open(&s, 8, 1, 1);
    reader_make(&s, &r, MCPD_LATEST, 1);
    uint64_t bad[] = {0, UINT64_C(1) << 48};
    for (int i = 0; i < 2; i++) {
        s.geometry.first_seq = bad[i];
        CHECK_EQUAL(mcpd_writer_open(&s.geometry, s.control, s.payload, s.wake, 1, 1, &writer),
                    -EINVAL);
        CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    }
    detach(&r);
    stream_close(&s);
}

TEST(the_last_number_is_not_passed)
{
    struct stream s;
    stream_make_from(&s, 8, (UINT64_C(1) << 48) - 1);
    CHECK_EQUAL(mcpd_writer_open(&s.geometry, s.control, s.payload, s.wake, 1, 2, &s.writer), 0);
    struct mcpd_meta meta = {.nbytes = 8};
    uint32_t slot = (uint32_t)mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, slot, &meta, 0), (INT64_C(1) << 48) - 1);
    slot = (uint32_t)mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, slot, &meta, 0), -EOVERFLOW);
    stream_close(&s);
}

/* ---- recent ---------------------------------------------------------------------------------- */

TEST(the_last_frames_that_still_stand_are_read_oldest_first_and_count_as_seen)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta metas[4];
    uint32_t pins[4];
    stream_open(&s, 12, 3, 1);
    attach(&s, &r, MCPD_LATEST, 4);
    CHECK_EQUAL(mcpd_reader_recent(r.reader, 2, pins, metas), -EAGAIN);
    publish(&s);
    CHECK_EQUAL(mcpd_reader_recent(r.reader, 4, pins, metas), 1);
    CHECK_EQUAL(metas[0].seq, 1);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pins[0]), 0);
    for (int i = 0; i < 9; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)), 0);
    CHECK_EQUAL(mcpd_reader_recent(r.reader, 4, pins, metas), 3); /* 7 is gone */
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQUAL(metas[i].seq, 8 + i);
        CHECK(is_whole(mcpd_reader_slot(r.reader, pins[i]), 8 + i));
    }
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    CHECK_EQUAL(COUNTER(r, skipped), 6);
    CHECK_EQUAL(COUNTER(r, received), 4);
    CHECK_EQUAL(COUNTER(r, pinned), 3);
    CHECK_EQUAL(mcpd_reader_recent(r.reader, 2, pins, metas), -EBUSY);
    CHECK_EQUAL(mcpd_reader_recent(r.reader, 1, pins, metas), 1); /* seen or not */
    CHECK_EQUAL(metas[0].seq, 10);
    publish(&s);
    detach(&r);
    stream_close(&s);
}

TEST(only_a_latest_reader_of_its_own_may_ask_for_the_last_frames)
{
    struct stream s;
    struct attached fifo, lossless, latest;
    struct mcpd_meta meta;
    uint32_t pin;
    stream_open(&s, 12, 3, 1);
    attach_fifo(&s, &fifo, 2, 1);
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    attach(&s, &latest, MCPD_LATEST, 1);
    CHECK_EQUAL(mcpd_reader_recent(fifo.reader, 1, &pin, &meta), -EINVAL);
    CHECK_EQUAL(mcpd_reader_recent(lossless.reader, 1, &pin, &meta), -EINVAL);
    CHECK_EQUAL(mcpd_reader_recent(latest.reader, 0, &pin, &meta), -EINVAL);
    detach(&fifo);
    detach(&lossless);
    detach(&latest);
    stream_close(&s);
}

/* ---- counters -------------------------------------------------------------------------------- */

TEST(pins_are_counted_with_the_time_of_the_oldest)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 10, 1, 1);
    attach(&s, &r, MCPD_LOSSLESS, 3);
    CHECK_EQUAL(COUNTER(r, pinned), 0);
    CHECK_EQUAL(COUNTER(r, pinned_since_ns), 0);
    for (int i = 0; i < 3; i++)
        publish(&s);
    uint64_t before_ns = (uint64_t)mcpd_now_ns();
    uint32_t a = pin_next(&r, 1);
    uint64_t first_ns = COUNTER(r, pinned_since_ns);
    CHECK(first_ns >= before_ns && first_ns <= (uint64_t)mcpd_now_ns());
    uint32_t b = pin_next(&r, 2), c = pin_next(&r, 3);
    CHECK_EQUAL(COUNTER(r, pinned), 3);
    CHECK_EQUAL(COUNTER(r, pinned_since_ns), first_ns);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, b), 0);
    CHECK_EQUAL(COUNTER(r, pinned_since_ns), first_ns);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, a), 0);
    CHECK(COUNTER(r, pinned_since_ns) > first_ns);
    CHECK_EQUAL(COUNTER(r, pinned), 1);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, c), 0);
    CHECK_EQUAL(COUNTER(r, pinned_since_ns), 0);
    CHECK_EQUAL(COUNTER(r, pinned), 0);
    detach(&r);
    stream_close(&s);
}

TEST(the_time_for_which_the_writer_waits_is_there_while_it_does)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 4, 1, 1);
    attach(&s, &r, MCPD_LOSSLESS, 1);
    for (int i = 0; i < 4; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_since_ns), 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 1000), -ETIMEDOUT);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_since_ns), 0);
    uint64_t blocked_ns = mcpd_load_relaxed(&s.wctl->blocked_ns);
    CHECK(blocked_ns >= 1000);
    uint64_t before_ns = (uint64_t)mcpd_now_ns();
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK(mcpd_load_relaxed(&s.wctl->blocked_since_ns) >= before_ns);
    read_one(&r);
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK(slot >= 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_since_ns), 0);
    CHECK(mcpd_load_relaxed(&s.wctl->blocked_ns) > blocked_ns);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_since_ns), 0);
    detach(&r);
    stream_close(&s);
}
