/* Thousands of rounds in which everybody sleeps and is woken: no wake-up is lost. */
#include "fixture.h"

#ifndef LOST_NS
#define LOST_NS LONG_NS /* a wake-up that takes this long was lost; plants shorten it */
#endif
#define ROUNDS 20000

/* Two streams: what comes on one goes out on the other, so that each side sleeps on every round. */
struct pong {
    struct stream *out;
    struct attached *in;
};

static void *answer(void *argument)
{
    struct pong *pong = argument;
    struct mcpd_meta meta;
    for (int i = 0; i < ROUNDS; i++) {
        int pin = mcpd_reader_next(pong->in->reader, LOST_NS, &meta);
        CHECK(pin >= 0);
        CHECK_EQUAL(mcpd_reader_unpin(pong->in->reader, (uint32_t)pin), 0);
        int slot = mcpd_writer_acquire(pong->out->writer, LOST_NS);
        CHECK(slot >= 0);
        meta = (struct mcpd_meta){.nbytes = 8};
        CHECK(mcpd_writer_publish(pong->out->writer, (uint32_t)slot, &meta, 0) > 0);
    }
    return NULL;
}

TEST(no_wake_up_of_a_reader_is_lost)
{
    struct stream there, back;
    struct attached at_b, at_a;
    stream_open(&there, 6, 1, 2);
    stream_open(&back, 6, 1, 2);
    attach(&there, &at_b, MCPD_LATEST, 1);
    attach(&back, &at_a, MCPD_LATEST, 1);
    struct pong b = {&back, &at_b}, a = {&there, &at_a};
    pthread_t thread = start(answer, &b);
    publish(&there);
    answer(&a);
    finish(thread);
    detach(&at_b);
    detach(&at_a);
    stream_close(&there);
    stream_close(&back);
}

static void *read_all(void *argument)
{
    struct attached *r = argument;
    struct mcpd_meta meta;
    uint64_t seq = 0;
    int pin;
    while ((pin = mcpd_reader_next(r->reader, LOST_NS, &meta)) >= 0) {
        CHECK_EQUAL(meta.seq, seq + 1);
        seq = meta.seq;
        CHECK_EQUAL(mcpd_reader_unpin(r->reader, (uint32_t)pin), 0);
    }
    CHECK_EQUAL(pin, -EPIPE);
    return (void *)(uintptr_t)seq;
}

TEST(no_wake_up_of_a_writer_is_lost)
{
    struct stream s;
    struct attached r[2];
    pthread_t threads[2];
    stream_open(&s, 6, 1, 1); /* so few slots that the writer waits all the time */
    for (int i = 0; i < 2; i++) {
        attach(&s, &r[i], MCPD_LOSSLESS, 1);
        threads[i] = start(read_all, &r[i]);
    }
    for (int i = 0; i < ROUNDS; i++) {
        struct mcpd_meta meta = {.nbytes = 8};
        int slot = mcpd_writer_acquire(s.writer, LOST_NS);
        CHECK(slot >= 0);
        CHECK(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0) > 0);
    }
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL((uintptr_t)finish(threads[i]), ROUNDS);
        detach(&r[i]);
    }
    stream_close(&s);
}

static void *count_frames(void *argument)
{
    struct attached *r = argument;
    struct mcpd_meta meta;
    uintptr_t count = 0;
    int pin;
    while ((pin = mcpd_reader_next(r->reader, LOST_NS, &meta)) >= 0) {
        count++;
        CHECK_EQUAL(mcpd_reader_unpin(r->reader, (uint32_t)pin), 0);
    }
    CHECK_EQUAL(pin, -EPIPE);
    return (void *)count;
}

TEST(several_threads_share_one_reader_and_one_writer)
{
    struct stream s;
    struct attached r;
    pthread_t threads[3];
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 3);
    for (int i = 0; i < 3; i++)
        threads[i] = start(count_frames, &r);
    for (int i = 0; i < ROUNDS; i++) {
        struct mcpd_meta meta = {.nbytes = 8};
        int slot = mcpd_writer_acquire(s.writer, LOST_NS);
        CHECK(slot >= 0);
        CHECK(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0) > 0);
    }
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    uintptr_t total = 0;
    for (int i = 0; i < 3; i++)
        total += (uintptr_t)finish(threads[i]);
    CHECK_EQUAL(total, ROUNDS); /* each frame went to one of them */
    detach(&r);
    stream_close(&s);
}

static void *publish_share(void *argument)
{
    struct stream *s = argument;
    for (int i = 0; i < ROUNDS / 2; i++) {
        struct mcpd_meta meta = {.nbytes = 8};
        int slot = mcpd_writer_acquire(s->writer, LOST_NS);
        CHECK(slot >= 0);
        CHECK(mcpd_writer_publish(s->writer, (uint32_t)slot, &meta, 0) > 0);
    }
    return NULL;
}

TEST(several_threads_of_one_writer_wait_for_room)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 5, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 1);
    pthread_t reader = start(read_all, &r);
    pthread_t a = start(publish_share, &s), b = start(publish_share, &s);
    finish(a);
    finish(b);
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    CHECK_EQUAL((uintptr_t)finish(reader), ROUNDS / 2 * 2);
    detach(&r);
    stream_close(&s);
}
