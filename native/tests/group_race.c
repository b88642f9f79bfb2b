/*
 * Groups as fast as they go: each frame is finished once while nobody dies, at least once when members
 * are killed, and none is torn while a claim stands.
 */
#include <signal.h>

#include "group_fixture.h"

#ifndef FRAMES
#define FRAMES 20000
#endif
#define MEMBERS 4

/* How often each frame was finished; shared with children. */
static _Atomic uint32_t *finished_map(void)
{
    void *base = mmap(NULL, (FRAMES + 1) * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

struct racer {
    struct attached attached;
    _Atomic uint32_t *finished;
    uint32_t give_back_each; /* gives back every so many-th frame; 0: none */
    int holds;               /* keeps its pins until all are in use */
};

static void finish_frame(struct racer *racer, uint32_t pin, uint64_t seq, uint64_t count)
{
    struct attached *r = &racer->attached;
    const void *slot = mcpd_reader_slot(r->reader, pin);
    CHECK(is_whole(slot, seq));
    sched_yield(); /* time for a writer that does not see the claim */
    if (!is_whole(slot, seq)) {
        fprintf(stderr, "frame %llu is torn\n", (unsigned long long)seq);
        CHECK(0);
    }
    if (racer->give_back_each != 0 && count % racer->give_back_each == 0) {
        CHECK_EQUAL(mcpd_reader_give_back(r->reader, pin), 0);
        return;
    }
    atomic_fetch_add(&racer->finished[seq], 1);
    CHECK_EQUAL(mcpd_reader_unpin(r->reader, pin), 0);
}

/* Works until the end; with two pins, so that claims overlap. */
static void work(struct racer *racer)
{
    struct mcpd_meta meta, held = {0};
    uint64_t count = 0;
    int pin, held_pin = -1;
    while ((pin = mcpd_reader_next(racer->attached.reader, LONG_NS, &meta)) >= 0) {
        count++;
        if (held_pin >= 0)
            finish_frame(racer, (uint32_t)held_pin, held.seq, count);
        held_pin = racer->holds ? pin : -1;
        held = meta;
        if (!racer->holds)
            finish_frame(racer, (uint32_t)pin, meta.seq, count);
    }
    CHECK_EQUAL(pin, -EPIPE);
    if (held_pin >= 0)
        finish_frame(racer, (uint32_t)held_pin, held.seq, 1);
}

static void *work_thread(void *argument)
{
    work(argument);
    return NULL;
}

static void *read_all(void *argument)
{
    struct attached *r = argument;
    struct mcpd_meta meta;
    uintptr_t count = 0;
    int pin;
    while ((pin = mcpd_reader_next(r->reader, LONG_NS, &meta)) >= 0) {
        CHECK(is_whole(mcpd_reader_slot(r->reader, (uint32_t)pin), meta.seq));
        CHECK_EQUAL(mcpd_reader_unpin(r->reader, (uint32_t)pin), 0);
        count++;
    }
    CHECK_EQUAL(pin, -EPIPE);
    return (void *)count;
}

static void publish_next(struct stream *s, uint64_t seq)
{
    int slot = mcpd_writer_acquire(s->writer, LONG_NS);
    CHECK(slot >= 0);
    CHECK_EQUAL(publish_slot(s, slot, seq), seq);
}

/* Members in threads beside readers of their own; how often frames were finished, in all. */
static uint64_t race(enum mcpd_policy policy, uint32_t depth, uint32_t give_back_each)
{
    struct stream s;
    struct group g;
    struct racer racers[MEMBERS];
    struct attached lossless, latest;
    pthread_t threads[MEMBERS + 2];
    _Atomic uint32_t *finished = finished_map();
    uint64_t total = 0, received = 0;
    stream_open(&s, 20, 1, 1);
    group_open(&s, &g, policy, depth);
    for (int i = 0; i < MEMBERS; i++) {
        join(&s, &g, &racers[i].attached, 2);
        racers[i].finished = finished;
        racers[i].give_back_each = i % 2 ? give_back_each : 0;
        racers[i].holds = i >= 2;
        threads[i] = start(work_thread, &racers[i]);
    }
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    attach(&s, &latest, MCPD_LATEST, 1);
    threads[MEMBERS] = start(read_all, &lossless);
    threads[MEMBERS + 1] = start(read_all, &latest);
    for (uint64_t seq = 1; seq <= FRAMES; seq++)
        publish_next(&s, seq);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_CLOSED), 0);
    for (int i = 0; i < MEMBERS + 1; i++) {
        uintptr_t count = (uintptr_t)finish(threads[i]);
        CHECK_EQUAL(count, i < MEMBERS ? 0 : FRAMES);
    }
    finish(threads[MEMBERS + 1]);
    for (uint64_t seq = 1; seq <= FRAMES; seq++) {
        CHECK(finished[seq] <= 1);
        total += finished[seq];
    }
    for (int i = 0; i < MEMBERS; i++) {
        received += COUNTER(racers[i].attached, received);
        detach(&racers[i].attached);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->finished), total);
    CHECK_EQUAL(received, total + mcpd_load_relaxed(&g.gctl->returns));
    for (uint32_t slot = 0; slot < g.nslots && give_back_each == 0; slot++)
        CHECK(MCPD_CLAIM_STATE(g.claims[slot]) != MCPD_CLAIM_TAKEN);
    detach(&lossless);
    detach(&latest);
    group_close(&g);
    stream_close(&s);
    munmap(finished, (FRAMES + 1) * sizeof(uint32_t));
    return total;
}

TEST(each_frame_of_a_lossless_group_is_finished_once)
{
    CHECK_EQUAL(race(MCPD_LOSSLESS, 0, 0), FRAMES);
}

TEST(no_frame_of_a_fifo_group_is_finished_twice_or_torn)
{
    CHECK(race(MCPD_FIFO, 4, 0) > 0);
}

TEST(no_frame_of_a_latest_group_is_finished_twice_or_torn)
{
    CHECK(race(MCPD_LATEST, 0, 0) > 0);
}

/* What was given back at the very end may find nobody: the last to leave had none to take it over. */
TEST(frames_given_back_are_finished_once_by_another)
{
    CHECK(race(MCPD_LOSSLESS, 0, 7) >= FRAMES - 2 * MEMBERS);
}

/* ---- members in processes that are killed ---------------------------------------------------- */

struct worker {
    struct racer racer;
    pid_t pid;
};

static void worker_start(struct stream *s, struct group *g, struct worker *w,
                         _Atomic uint32_t *finished)
{
    member_make(s, g, &w->racer.attached, 2);
    CHECK(reader_admit(s, &w->racer.attached) >= 0);
    w->racer.finished = finished;
    w->racer.holds = g->members % 2;
    w->racer.give_back_each = g->members % 3 ? 0 : 5;
    w->pid = fork();
    if (w->pid == 0) {
        CHECK_EQUAL(reader_open(s, &w->racer.attached), 0);
        work(&w->racer);
        mcpd_reader_close(w->racer.attached.reader);
        _Exit(0);
    }
}

/* As the daemon does when a member's process has gone: sweep, signal, remove. */
static void worker_gone(struct stream *s, struct group *g, struct worker *w,
                        const struct worker workers[MEMBERS])
{
    mcpd_gctl_sweep(g->gctl, g->nslots, w->racer.attached.admission.member, 1);
    for (int i = 0; i < MEMBERS; i++)
        mcpd_wake_signal(workers[i].racer.attached.wake);
    CHECK_EQUAL(mcpd_writer_remove_reader(s->writer, w->racer.attached.id), 0);
    detach(&w->racer.attached);
}

static void worker_kill(struct stream *s, struct group *g, struct worker *w,
                        const struct worker workers[MEMBERS])
{
    int status;
    kill(w->pid, SIGKILL);
    CHECK_EQUAL(waitpid(w->pid, &status, 0), w->pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    worker_gone(s, g, w, workers);
}

TEST(each_frame_is_finished_though_members_are_killed)
{
    struct stream s;
    struct group g;
    struct attached last; /* never killed, and looks at the end at what the others left */
    struct worker workers[MEMBERS];
    _Atomic uint32_t *finished = finished_map();
    uint64_t random = 12345, kills = 0;
    stream_open(&s, 24, 1, 1);
    group_open(&s, &g, MCPD_LOSSLESS, 0);
    join(&s, &g, &last, 2);
    for (int i = 0; i < MEMBERS; i++)
        worker_start(&s, &g, &workers[i], finished);
    for (uint64_t seq = 1; seq <= FRAMES; seq++) {
        publish_next(&s, seq);
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if ((random >> 33) % (FRAMES / 50) != 0 || g.members == MCPD_MAX_READERS)
            continue;
        struct worker *w = &workers[(random >> 60) % MEMBERS];
        worker_kill(&s, &g, w, workers);
        worker_start(&s, &g, w, finished);
        kills++;
    }
    CHECK(kills > 10);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_CLOSED), 0);
    for (int i = 0; i < MEMBERS; i++) {
        int status;
        CHECK_EQUAL(waitpid(workers[i].pid, &status, 0), workers[i].pid);
        CHECK_EQUAL(status, 0);
        worker_gone(&s, &g, &workers[i], workers);
    }
    struct racer rest = {.attached = last, .finished = finished};
    work(&rest);
    uint64_t twice = 0;
    for (uint64_t seq = 1; seq <= FRAMES; seq++) {
        CHECK(finished[seq] >= 1);
        twice += finished[seq] > 1;
    }
    CHECK(twice <= 2 * kills); /* counted as done, and killed before it was finished */
    detach(&last);
    group_close(&g);
    stream_close(&s);
    munmap(finished, (FRAMES + 1) * sizeof(uint32_t));
}
