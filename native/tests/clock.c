/*
 * What depends on the time: max_fps, deadlines, latencies. The clock stands until a test moves it:
 * linked with --wrap=mcpd_now_ns.
 */
#include "group_fixture.h"

static int64_t now_ns;

int64_t __wrap_mcpd_now_ns(void);

int64_t __wrap_mcpd_now_ns(void)
{
    return now_ns;
}

#define MS INT64_C(1000000)

static uint64_t publish_at(struct stream *s, int64_t at_ns)
{
    now_ns = at_ns;
    return publish(s);
}

/* ---- max_fps --------------------------------------------------------------------------------- */

static const struct mcpd_thinning ten_fps = {.interval_ns = 100 * MS};

TEST(max_fps_is_kept_on_average_though_frames_come_unevenly)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_LATEST, 0, ten_fps);
    int64_t jitter_ns[] = {0, 9 * MS, -7 * MS, 15 * MS, -12 * MS, 3 * MS, -1 * MS};
    int taken = 0;
    for (int i = 0; i < 3000; i++) { /* 30 fps for 100 s */
        publish_at(&s, 1000 * MS + i * 100 * MS / 3 + jitter_ns[i % 7]);
        int pin = next_now(&r);
        if (pin < 0)
            continue;
        taken++;
        CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), 0);
    }
    CHECK(taken >= 999 && taken <= 1000);
    CHECK_EQUAL(COUNTER(r, passed) + COUNTER(r, skipped), 3000 - taken);
    detach(&r);
    stream_close(&s);
}

TEST(max_fps_starts_anew_after_a_gap)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_LATEST, 0, ten_fps);
    publish_at(&s, 1000 * MS);
    CHECK_EQUAL(read_one(&r), 1); /* the first one always */
    CHECK_EQUAL(COUNTER(r, not_before_ns), 1100 * MS);
    publish_at(&s, 1099 * MS);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    publish_at(&s, 1130 * MS); /* 30 ms late, which does not delay the next one */
    CHECK_EQUAL(read_one(&r), 3);
    CHECK_EQUAL(COUNTER(r, not_before_ns), 1200 * MS);
    publish_at(&s, 5000 * MS); /* no arrears */
    CHECK_EQUAL(read_one(&r), 4);
    CHECK_EQUAL(COUNTER(r, not_before_ns), 5100 * MS);
    publish_at(&s, 5050 * MS);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    CHECK_EQUAL(COUNTER(r, passed), 2);
    detach(&r);
    stream_close(&s);
}

TEST(a_reader_with_max_fps_sleeps_through_frames_that_come_too_early)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_LATEST, 0, ten_fps);
    publish_at(&s, 1000 * MS);
    CHECK_EQUAL(read_one(&r), 1);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    publish_at(&s, 1050 * MS);
    publish_at(&s, 1099 * MS);
    CHECK_EQUAL(signals(r.wake), 0);
    publish_at(&s, 1100 * MS);
    CHECK_EQUAL(signals(r.wake), 1);
    CHECK_EQUAL(read_one(&r), 4);
    CHECK_EQUAL(COUNTER(r, skipped), 2);
    detach(&r);
    stream_close(&s);
}

TEST(a_lossless_reader_with_max_fps_makes_room_by_what_it_passes_over)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 5, 1, 1);
    attach_thinned(&s, &r, MCPD_LOSSLESS, 0, (struct mcpd_thinning){.interval_ns = 1000 * MS});
    for (int i = 0; i < 5; i++)
        publish_at(&s, 1000 * MS + i * 33 * MS);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(read_one(&r), 1);
    CHECK_EQUAL(signals(s.wake), 1);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1);
    publish_at(&s, 1200 * MS);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(next_now(&r), -EAGAIN); /* all passed over */
    CHECK_EQUAL(signals(s.wake), 1);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK_EQUAL(COUNTER(r, passed), 5);
    CHECK_EQUAL(COUNTER(r, not_before_ns), 0); /* else it would sleep while the writer waits */
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    publish_at(&s, 1300 * MS);
    CHECK_EQUAL(signals(r.wake), 1);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    publish_at(&s, 2000 * MS);
    CHECK_EQUAL(read_one(&r), 8);
    CHECK_EQUAL(COUNTER(r, dropped), 0);
    detach(&r);
    stream_close(&s);
}

TEST(what_left_the_depth_of_a_fifo_reader_too_early_was_passed_over_and_not_dropped)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_FIFO, 2, ten_fps);
    publish_at(&s, 1000 * MS);
    CHECK_EQUAL(read_one(&r), 1);
    for (int i = 1; i <= 10; i++)
        publish_at(&s, 1000 * MS + i * 10 * MS); /* 11 is due */
    CHECK_EQUAL(read_one(&r), 11);
    CHECK_EQUAL(COUNTER(r, passed), 9);
    CHECK_EQUAL(COUNTER(r, dropped), 0);
    for (int i = 1; i <= 20; i++)
        publish_at(&s, 1100 * MS + i * 10 * MS); /* of 12 to 31, 21 was due and is gone */
    CHECK_EQUAL(read_one(&r), 30);
    CHECK_EQUAL(COUNTER(r, passed), 9);
    CHECK_EQUAL(COUNTER(r, dropped), 18);
    detach(&r);
    stream_close(&s);
}

TEST(times_that_cannot_be_neither_overflow_nor_hang)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach_thinned(&s, &r, MCPD_LOSSLESS, 0, (struct mcpd_thinning){.interval_ns = INT64_MAX});
    int64_t times_ns[] = {INT64_MAX, INT64_MIN, 0, -1, 5};
    for (int i = 0; i < 5; i++) {
        now_ns = 1000 * MS;
        publish(&s);
        uint32_t slot = MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, s.wctl->head)));
        header_of(&s, slot)->meta.publish_ns = times_ns[i];
        int pin = next_now(&r);
        CHECK(i == 0 ? pin >= 0 : pin == -EAGAIN);
        if (pin >= 0)
            CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), 0);
    }
    detach(&r);
    stream_close(&s);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static void publish_until(struct stream *s, int64_t deadline_ns)
{
    struct mcpd_meta meta = {.nbytes = 8, .deadline_ns = deadline_ns};
    uint32_t slot = (uint32_t)mcpd_writer_acquire(s->writer, 0);
    fill(mcpd_writer_slot(s->writer, slot), mcpd_load_relaxed(&s->wctl->head) + 1);
    CHECK(mcpd_writer_publish(s->writer, slot, &meta, 0) > 0);
}

TEST(frames_past_their_deadline_are_passed_over_where_asked)
{
    struct stream s;
    struct attached skips, takes, latest;
    stream_open(&s, 16, 1, 1);
    struct mcpd_thinning thinning = {.skip_expired = 1};
    attach_thinned(&s, &skips, MCPD_LOSSLESS, 0, thinning);
    attach(&s, &takes, MCPD_LOSSLESS, 2);
    attach_thinned(&s, &latest, MCPD_LATEST, 0, thinning);
    now_ns = 1000 * MS;
    publish_until(&s, 1005 * MS);
    publish_until(&s, MCPD_NO_TIME);
    publish_until(&s, 1009 * MS);
    publish_until(&s, 1010 * MS);
    publish_until(&s, 1009 * MS);
    now_ns = 1010 * MS;
    CHECK_EQUAL(read_one(&skips), 2);
    CHECK_EQUAL(read_one(&skips), 4); /* a deadline that is now is not over */
    CHECK_EQUAL(next_now(&skips), -EAGAIN);
    CHECK_EQUAL(COUNTER(skips, expired), 3);
    CHECK_EQUAL(COUNTER(skips, received), 2);
    CHECK_EQUAL(COUNTER(skips, passed), 0);
    for (uint64_t seq = 1; seq <= 5; seq++)
        CHECK_EQUAL(read_one(&takes), seq);
    CHECK_EQUAL(next_now(&latest), -EAGAIN); /* the newest is of no use, and older ones of less */
    CHECK_EQUAL(COUNTER(latest, expired), 1);
    CHECK_EQUAL(COUNTER(latest, skipped), 4);
    for (uint32_t pin = 0; pin < 2; pin++)
        CHECK_EQUAL(mcpd_load_relaxed(&skips.pins[pin]), 0);
    detach(&skips);
    detach(&takes);
    detach(&latest);
    stream_close(&s);
}

/* ---- counters -------------------------------------------------------------------------------- */

TEST(latencies_are_counted_by_powers_of_two)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 1);
    attach(&s, &r, MCPD_LATEST, 1);
    struct {
        int64_t latency_ns;
        int bucket;
    } cases[] = {{0, 0},           {1023, 0},          {1024, 1},
                 {2047, 1},        {2048, 2},          {INT64_C(1) << 20, 11},
                 {-5, 0},          {(INT64_C(1) << 32) - 1, 22},
                 {INT64_C(1) << 32, 23}, {INT64_C(1) << 60, 23}};
    for (int i = 0; i < 10; i++) {
        publish_at(&s, 1000 * MS);
        now_ns += cases[i].latency_ns;
        uint64_t before = COUNTER(r, latency[cases[i].bucket]);
        read_one(&r);
        CHECK_EQUAL(COUNTER(r, latency[cases[i].bucket]), before + 1);
    }
    uint64_t sum = 0;
    for (int bucket = 0; bucket < MCPD_LATENCY_BUCKETS; bucket++)
        sum += COUNTER(r, latency[bucket]);
    CHECK_EQUAL(sum, 10);
    detach(&r);
    stream_close(&s);
}

TEST(the_longest_pin_and_the_time_blocked_are_what_the_clock_says)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 4, 1, 1);
    attach(&s, &r, MCPD_LOSSLESS, 1);
    for (int i = 0; i < 4; i++)
        publish_at(&s, 1000 * MS);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_since_ns), 1000 * MS);
    uint32_t pin = pin_next(&r, 1);
    CHECK_EQUAL(COUNTER(r, pinned_since_ns), 1000 * MS);
    now_ns += 7 * MS;
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pin), 0);
    CHECK_EQUAL(COUNTER(r, longest_pin_ns), 7 * MS);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->blocked_ns), 7 * MS);
    detach(&r);
    stream_close(&s);
}
