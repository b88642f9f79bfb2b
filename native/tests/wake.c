/* Sleeping and waking: who is signalled, and when. lost.c looks for wake-ups that are lost. */
#include <fcntl.h>
#include <signal.h>

#include "fixture.h"

static void *next_seq(void *argument)
{
    struct attached *r = argument;
    return (void *)(uintptr_t)read_one(r);
}

static void *next_error(void *argument)
{
    struct attached *r = argument;
    struct mcpd_meta meta;
    return (void *)(intptr_t)mcpd_reader_next(r->reader, LONG_NS, &meta);
}

static void *acquire_one(void *argument)
{
    struct stream *s = argument;
    return (void *)(intptr_t)mcpd_writer_acquire(s->writer, LONG_NS);
}

TEST(readers_that_are_awake_cost_no_system_call)
{
    struct stream s;
    struct attached r[3];
    stream_open(&s, 16, 1, 2);
    for (int i = 0; i < 3; i++)
        attach(&s, &r[i], i == 0 ? MCPD_LOSSLESS : MCPD_LATEST, 2);
    for (int i = 0; i < 100; i++) {
        publish(&s);
        for (int j = 0; j < 3; j++)
            read_one(&r[j]);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->wakes), 0);
    CHECK_EQUAL(signals(s.wake), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(signals(r[i].wake), 0);
        CHECK_EQUAL(mcpd_load_relaxed(&r[i].rctl->wakeups), 0);
        detach(&r[i]);
    }
    stream_close(&s);
}

TEST(a_reader_that_sleeps_is_signalled_once_however_much_is_published)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    for (int i = 0; i < 10; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->wakes), 1);
    CHECK_EQUAL(signals(r.wake), 1);
    CHECK_EQUAL(mcpd_reader_disarm(r.reader), 0);
    CHECK_EQUAL(read_one(&r), 10);
    detach(&r);
    stream_close(&s);
}

TEST(a_sleeping_reader_gets_the_frame_that_is_published)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    pthread_t thread = start(next_seq, &r);
    wait_asleep(&r.rctl->epoch);
    publish(&s);
    CHECK_EQUAL((uintptr_t)finish(thread), 1);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->epoch) & 1, 0);
    detach(&r);
    stream_close(&s);
}

/* The signal that ended a sleep is drained before the next one, which it must not end. */
TEST(a_signal_of_a_sleep_that_is_over_does_not_end_the_next)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        pthread_t thread = start(next_seq, &r);
        wait_asleep(&r.rctl->epoch);
        CHECK_EQUAL(signals(r.wake), 0);
        publish(&s);
        CHECK_EQUAL((uintptr_t)finish(thread), seq);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->wakeups), 3);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->spurious), 0);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    CHECK_EQUAL(signals(r.wake), 0);
    detach(&r);
    stream_close(&s);
}

TEST(the_end_wakes_all_who_sleep)
{
    struct stream s;
    struct attached r[3];
    pthread_t threads[3];
    stream_open(&s, 16, 1, 2);
    for (int i = 0; i < 3; i++) {
        attach(&s, &r[i], i == 0 ? MCPD_LOSSLESS : MCPD_LATEST, 2);
        threads[i] = start(next_error, &r[i]);
        wait_asleep(&r[i].rctl->epoch);
    }
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_CLOSED), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL((intptr_t)finish(threads[i]), -EPIPE);
        detach(&r[i]);
    }
    stream_close(&s);
}

TEST(the_daemon_can_end_a_stream_for_both_sides)
{
    struct stream s;
    struct attached r, sleeper;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    for (int i = 0; i < 8; i++)
        publish(&s);
    pthread_t writer = start(acquire_one, &s);
    wait_asleep(&s.wctl->writer_epoch);
    reader_make(&s, &sleeper, MCPD_LATEST, 1); /* one that has seen the newest */
    CHECK_EQUAL(reader_open(&s, &sleeper), 0);
    CHECK_EQUAL(read_one(&sleeper), 8);
    pthread_t reader = start(next_error, &sleeper);
    wait_asleep(&sleeper.rctl->epoch);
    CHECK_EQUAL(mcpd_wctl_end(s.wctl, MCPD_END_SHUTDOWN), 1);
    mcpd_wake_signal(s.wake);
    mcpd_wake_signal(sleeper.wake);
    CHECK_EQUAL((intptr_t)finish(writer), -EPIPE);
    CHECK_EQUAL((intptr_t)finish(reader), -EPIPE);
    CHECK_EQUAL(mcpd_reader_ended(sleeper.reader), MCPD_END_SHUTDOWN);
    detach(&r);
    detach(&sleeper);
    stream_close(&s);
}

TEST(a_lossless_reader_that_unpins_wakes_the_writer)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    for (int i = 0; i < 6; i++)
        publish(&s);
    pthread_t thread = start(acquire_one, &s);
    wait_asleep(&s.wctl->writer_epoch);
    CHECK_EQUAL(read_one(&r), 1);
    CHECK((intptr_t)finish(thread) >= 0);
    CHECK(mcpd_load_relaxed(&s.wctl->blocked_ns) > 0);
    detach(&r);
    stream_close(&s);
}

static void writer_wakes_when(int (*gone)(mcpd_writer *, uint64_t))
{
    struct stream s;
    struct attached r;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    for (int i = 0; i < 6; i++)
        publish(&s);
    pthread_t thread = start(acquire_one, &s);
    wait_asleep(&s.wctl->writer_epoch);
    CHECK_EQUAL(gone(s.writer, r.id), 0);
    CHECK((intptr_t)finish(thread) >= 0);
    detach(&r);
    stream_close(&s);
}

TEST(removing_a_lossless_reader_wakes_the_writer)
{
    writer_wakes_when(mcpd_writer_remove_reader);
}

TEST(releasing_a_lossless_reader_wakes_the_writer)
{
    writer_wakes_when(mcpd_writer_release_reader);
}

TEST(closing_a_lossless_reader_with_pins_wakes_the_writer)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK(mcpd_reader_next(r.reader, 0, &meta) >= 0);
    pthread_t thread = start(acquire_one, &s);
    wait_asleep(&s.wctl->writer_epoch);
    mcpd_reader_close(r.reader);
    r.reader = NULL;
    CHECK((intptr_t)finish(thread) >= 0);
    detach(&r);
    stream_close(&s);
}

TEST(arming_finds_what_is_there_already)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    publish(&s);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->epoch) & 1, 0);
    read_one(&r);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->epoch) & 1, 1);
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    CHECK_EQUAL(signals(r.wake), 1);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1);
    detach(&r);
    stream_close(&s);
}

TEST(arming_twice_sleeps_on)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    publish(&s);
    CHECK_EQUAL(mcpd_sleep_poll(r.wake, mcpd_deadline_ns(0)), 1);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1); /* there is something, so awake and drained */
    CHECK_EQUAL(signals(r.wake), 0);
    CHECK_EQUAL(mcpd_reader_disarm(r.reader), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->epoch) & 1, 0);
    detach(&r);
    stream_close(&s);
}

TEST(an_armed_reader_that_reads_to_the_end_stays_armed)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    for (uint64_t seq = 1; seq < 10; seq++) {
        publish(&s);
        CHECK_EQUAL(mcpd_sleep_poll(r.wake, mcpd_deadline_ns(LONG_NS)), 1);
        CHECK_EQUAL(read_one(&r), seq);
        CHECK_EQUAL(mcpd_sleep_poll(r.wake, mcpd_deadline_ns(0)), 1); /* level-triggered */
        CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN);
        CHECK_EQUAL(mcpd_sleep_poll(r.wake, mcpd_deadline_ns(0)), 0);
    }
    detach(&r);
    stream_close(&s);
}

TEST(an_armed_writer_is_told_when_there_is_room)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 1);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_arm(s.writer), 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    CHECK_EQUAL(mcpd_sleep_poll(s.wake, mcpd_deadline_ns(0)), 0);
    read_one(&r);
    read_one(&r);
    CHECK_EQUAL(mcpd_sleep_poll(s.wake, mcpd_deadline_ns(LONG_NS)), 1);
    CHECK_EQUAL(mcpd_writer_disarm(s.writer), 0);
    CHECK_EQUAL(signals(s.wake), 0);
    publish(&s);
    read_one(&r);
    CHECK_EQUAL(signals(s.wake), 0); /* awake, so not signalled */
    detach(&r);
    stream_close(&s);
}

TEST(waiting_ends_when_the_time_is_over)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    int64_t before_ns = mcpd_now_ns();
    CHECK_EQUAL(mcpd_reader_next(r.reader, 2000000, &meta), -ETIMEDOUT);
    CHECK(mcpd_now_ns() - before_ns >= 2000000);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->epoch) & 1, 0);
    detach(&r);
    stream_close(&s);
}

TEST(a_full_eventfd_counts_as_signalled)
{
    struct stream s;
    struct attached r;
    uint64_t full = UINT64_MAX - 1;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(write(r.wake, &full, sizeof full), sizeof full);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    publish(&s); /* must not block */
    CHECK_EQUAL(mcpd_sleep_poll(r.wake, mcpd_deadline_ns(0)), 1);
    CHECK_EQUAL(mcpd_reader_disarm(r.reader), 0);
    CHECK_EQUAL(read_one(&r), 1);
    detach(&r);
    stream_close(&s);
}

static void on_signal(int signum)
{
    (void)signum;
}

static void make_blocking(int fd, uint64_t count)
{
    CHECK_EQUAL(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
    (void)signals(fd);
    if (count > 0)
        CHECK_EQUAL(write(fd, &count, sizeof count), sizeof count);
    CHECK_EQUAL(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK), 0);
}

TEST(a_peer_that_makes_eventfds_blocking_holds_nobody_up)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    alarm(20);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 0);
    make_blocking(r.wake, UINT64_MAX - 1);
    publish(&s);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->wakes), 1);
    CHECK_EQUAL(mcpd_reader_disarm(r.reader), 0);
    make_blocking(r.wake, 0);
    CHECK_EQUAL(mcpd_reader_arm(r.reader), 1);
    CHECK_EQUAL(mcpd_reader_disarm(r.reader), 0);
    alarm(0);
    detach(&r);
    stream_close(&s);
}

TEST(a_signal_handler_interrupts_a_wait)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    struct sigaction action = {.sa_handler = on_signal};
    CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    pthread_t thread = start(next_error, &r);
    wait_asleep(&r.rctl->epoch);
    int64_t deadline_ns = mcpd_deadline_ns(LONG_NS);
    while ((mcpd_load_seq_cst(&r.rctl->epoch) & 1) != 0) { /* it may not be in poll yet */
        CHECK(mcpd_now_ns() < deadline_ns);
        pthread_kill(thread, SIGUSR1);
        sched_yield();
    }
    CHECK_EQUAL((intptr_t)finish(thread), -EINTR);
    detach(&r);
    stream_close(&s);
}
