/*
 * Pinning against reclaiming, as fast as they go: every frame that a reader pins must be whole when it
 * is pinned and still whole when it is unpinned.
 */
#include <signal.h>

#include "fixture.h"

#ifndef FRAMES
#define FRAMES 30000
#endif

struct racer {
    struct attached attached;
    uint64_t frames;
};

static int two_looks(struct attached *r, uint32_t pin, uint64_t seq)
{
    const void *slot = mcpd_reader_slot(r->reader, pin);
    int whole = is_whole(slot, seq);
    sched_yield(); /* time for a writer that does not see the pin */
    return whole && is_whole(slot, seq);
}

/* Reads until the end; -1 when a frame was torn. */
static int64_t race(struct attached *r)
{
    struct mcpd_meta meta;
    uint64_t last = 0;
    int64_t frames = 0;
    int pin;
    while ((pin = mcpd_reader_next(r->reader, LONG_NS, &meta)) >= 0) {
        if (!two_looks(r, (uint32_t)pin, meta.seq)) {
            fprintf(stderr, "frame %llu is torn\n", (unsigned long long)meta.seq);
            return -1;
        }
        CHECK(meta.seq > last && (r->admission.policy != MCPD_LOSSLESS || meta.seq == last + 1));
        last = meta.seq;
        CHECK_EQUAL(mcpd_reader_unpin(r->reader, (uint32_t)pin), 0);
        frames++;
    }
    CHECK_EQUAL(pin, -EPIPE);
    return frames;
}

static void *race_thread(void *argument)
{
    struct racer *racer = argument;
    int64_t frames = race(&racer->attached);
    CHECK(frames > 0);
    racer->frames = (uint64_t)frames;
    return NULL;
}

static void publish_all(struct stream *s, int64_t count)
{
    for (int64_t i = 1; i <= count; i++) {
        int slot = mcpd_writer_acquire(s->writer, LONG_NS);
        CHECK(slot >= 0);
        CHECK_EQUAL(publish_slot(s, slot, (uint64_t)i), i);
    }
    CHECK_EQUAL(mcpd_writer_end(s->writer, MCPD_END_CLOSED), 0);
}

TEST(threads_never_see_a_torn_frame)
{
    struct stream s;
    struct racer racers[3];
    pthread_t threads[3];
    stream_open(&s, 8, 1, 1);
    for (int i = 0; i < 3; i++) {
        attach(&s, &racers[i].attached, MCPD_LATEST, 1);
        threads[i] = start(race_thread, &racers[i]);
    }
    publish_all(&s, FRAMES);
    for (int i = 0; i < 3; i++) {
        finish(threads[i]);
        detach(&racers[i].attached);
    }
    stream_close(&s);
}

TEST(lossless_and_latest_readers_race_together)
{
    struct stream s;
    struct racer racers[3];
    pthread_t threads[3];
    stream_open(&s, 8, 1, 1);
    for (int i = 0; i < 3; i++) {
        attach(&s, &racers[i].attached, i == 0 ? MCPD_LOSSLESS : MCPD_LATEST, 1);
        threads[i] = start(race_thread, &racers[i]);
    }
    publish_all(&s, FRAMES);
    for (int i = 0; i < 3; i++) {
        finish(threads[i]);
        detach(&racers[i].attached);
    }
    CHECK_EQUAL(racers[0].frames, FRAMES);
    stream_close(&s);
}

/* A reader in a process of its own; its exit status is 0 when all that it saw was whole. */
static pid_t race_process(struct stream *s, struct attached *r)
{
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(reader_open(s, r), 0);
        int64_t frames = race(r);
        mcpd_reader_close(r->reader);
        _Exit(frames > 0 ? 0 : 1);
    }
    return child;
}

TEST(processes_never_see_a_torn_frame)
{
    struct stream s;
    struct attached r[3];
    pid_t children[3];
    stream_open(&s, 8, 1, 1);
    for (int i = 0; i < 3; i++) {
        reader_make(&s, &r[i], i == 0 ? MCPD_LOSSLESS : MCPD_LATEST, 1);
        CHECK(reader_admit(&s, &r[i]) >= 0);
        children[i] = race_process(&s, &r[i]);
    }
    publish_all(&s, FRAMES);
    for (int i = 0; i < 3; i++) {
        int status;
        CHECK_EQUAL(waitpid(children[i], &status, 0), children[i]);
        CHECK_EQUAL(status, 0);
        detach(&r[i]);
    }
    stream_close(&s);
}

TEST(a_reader_killed_with_a_pin_costs_the_writer_that_pin_until_it_is_removed)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 6, 1, 2); /* 1 + 2 + 1, and 2 pins */
    reader_make(&s, &r, MCPD_LATEST, 2);
    CHECK(reader_admit(&s, &r) >= 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(reader_open(&s, &r), 0);
        CHECK(mcpd_reader_next(r.reader, LONG_NS, &meta) >= 0);
        kill(getpid(), SIGKILL);
    }
    publish(&s);
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    CHECK_EQUAL(mcpd_load_acquire(&r.pins[0]), MCPD_TAG(1, 0));
    for (int i = 0; i < 50; i++)
        publish(&s);
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, r.id), 0);
    publish(&s);
    CHECK(!is_published(&s, 1));
    detach(&r);
    stream_close(&s);
}
