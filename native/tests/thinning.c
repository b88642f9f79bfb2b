/* Thinning: which frames a reader passes over, and what that costs and frees. */
#include "fixture.h"

/* ---- every_n --------------------------------------------------------------------------------- */

static const struct mcpd_thinning every_3 = {.every_n = 3};

TEST(every_n_of_a_lossless_reader_frees_the_frames_between)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 6, 1, 1);
    attach_thinned(&s, &r, MCPD_LOSSLESS, 0, every_3);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    uint32_t pin = pin_next(&r, 1);
    CHECK_EQUAL(signals(s.wake), 1); /* 2 and 3 are room, though 1 is pinned */
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    publish(&s);
    CHECK(is_published(&s, 1) && is_published(&s, 4));
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pin), 0);
    CHECK_EQUAL(read_one(&r), 4);
    CHECK_EQUAL(read_one(&r), 7);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    CHECK_EQUAL(COUNTER(r, passed), 4);
    CHECK_EQUAL(COUNTER(r, dropped), 0);
    CHECK_EQUAL(COUNTER(r, received), 3);
    CHECK_EQUAL(COUNTER(r, cursor), 10);
    for (int i = 0; i < 5; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&r), 10);
    detach(&r);
    stream_close(&s);
}

TEST(every_n_of_a_fifo_reader_keeps_its_step_when_frames_are_dropped)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 10, 1, 1);
    attach_thinned(&s, &r, MCPD_FIFO, 4, every_3);
    for (int i = 0; i < 4; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&r), 1);
    for (int i = 0; i < 8; i++)
        publish(&s); /* of 4, 7, 10, 13 only 10 is within the depth, 9 to 12 */
    CHECK_EQUAL(read_one(&r), 10);
    CHECK_EQUAL(COUNTER(r, dropped), 2);
    CHECK_EQUAL(COUNTER(r, passed), 6);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    publish(&s);
    CHECK_EQUAL(read_one(&r), 13);
    detach(&r);
    stream_close(&s);
}

TEST(every_n_above_the_depth_waits_for_the_frame_it_asks_for)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_FIFO, 1, (struct mcpd_thinning){.every_n = 10});
    publish(&s);
    CHECK_EQUAL(read_one(&r), 1);
    for (int i = 0; i < 12; i++)
        publish(&s); /* 11 is gone, 21 is next */
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1); /* it has yet to see that */
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    CHECK_EQUAL(COUNTER(r, cursor), 21);
    CHECK_EQUAL(COUNTER(r, dropped), 1);
    for (int i = 0; i < 7; i++)
        publish(&s);
    CHECK_EQUAL(signals(r.wake), 0);
    publish(&s);
    CHECK_EQUAL(signals(r.wake), 1);
    CHECK_EQUAL(read_one(&r), 21);
    detach(&r);
    stream_close(&s);
}

TEST(every_n_of_a_latest_reader_waits_that_long_and_then_jumps)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_LATEST, 0, every_3);
    publish(&s);
    CHECK_EQUAL(read_one(&r), 1);
    publish(&s);
    publish(&s);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    publish(&s);
    publish(&s);
    CHECK_EQUAL(read_one(&r), 5);
    CHECK_EQUAL(COUNTER(r, passed), 2);
    CHECK_EQUAL(COUNTER(r, skipped), 1);
    detach(&r);
    stream_close(&s);
}

TEST(a_reader_of_every_tenth_frame_is_woken_for_every_tenth_frame)
{
    struct stream s;
    struct attached thin, all;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &thin, MCPD_LATEST, 0, (struct mcpd_thinning){.every_n = 10});
    attach(&s, &all, MCPD_LATEST, 1);
    uint64_t woken = 0;
    CHECK_EQUAL(mcpd_reader_arm(thin.reader), 0);
    for (int i = 0; i < 100; i++) {
        publish(&s);
        if (signals(thin.wake) == 0)
            continue;
        woken++;
        CHECK_EQUAL(read_one(&thin), i + 1);
        CHECK_EQUAL(next_now(&thin), -EAGAIN); /* armed: sleeps on */
    }
    CHECK_EQUAL(woken, 10);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->wakes), 10);
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    CHECK_EQUAL(signals(thin.wake), 1); /* the end is for all */
    detach(&thin);
    detach(&all);
    stream_close(&s);
}

TEST(thinning_out_of_bounds_or_of_a_member_is_refused)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    reader_make(&s, &r, MCPD_LATEST, 1);
    CHECK_EQUAL(reader_admit(&s, &r), 0);
    r.thinning.interval_ns = -1;
    CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    r.thinning = (struct mcpd_thinning){.skip_expired = 2};
    CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    r.thinning = every_3;
    r.admission.group = 5;
    CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    detach(&r);
    stream_close(&s);
}
