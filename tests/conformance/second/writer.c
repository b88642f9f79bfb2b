/* The writer: slots in and out. */
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_objects(struct second_writer *w, int control, int payload, int wake)
{
    uint32_t n = w->g.nslots;
    int rc = map(control, writer_control_nbytes(n), true, &w->control);
    if (!rc)
        rc = check_magic(&w->control, WRITER_MAGIC);
    if (!rc)
        rc = map(payload, n * w->g.slot_nbytes, true, &w->payload);
    if (rc)
        return rc;
    w->shared = w->control.at;
    w->queue = (_Atomic uint64_t *)((char *)w->control.at + PAGE);
    w->headers = (struct slot_header *)((char *)w->control.at + headers_offset(n));
    if (LOAD(w->shared->head) != w->g.first_seq - 1 || LOAD_RELAXED(w->shared->published))
        return -EEXIST;
    w->records = calloc(n, sizeof *w->records);
    w->stack = calloc(n, sizeof *w->stack);
    w->published = calloc(n, sizeof *w->published);
    if (!w->records || !w->stack || !w->published)
        return -ENOMEM;
    w->wake = fcntl(wake, F_DUPFD_CLOEXEC, 3);
    return w->wake < 0 ? -errno : 0;
}

int second_writer_open(const struct geometry *g, int control, int payload, int wake,
                       uint32_t history, uint32_t holds, struct second_writer **out)
{
    int rc = geometry_check(g);
    if (rc || history < 1 || holds < 1)
        return -EINVAL;
    if ((uint64_t)history + holds + 1 > g->nslots)
        return -ENOSPC;
    struct second_writer *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->g = *g;
    w->history = history;
    w->holds = holds;
    w->head = g->first_seq - 1;
    w->wake = -1;
    rc = open_objects(w, control, payload, wake);
    if (rc) {
        second_writer_close(w);
        return rc;
    }
    for (uint32_t slot = g->nslots; slot-- > 0;)
        w->stack[w->nfree++] = slot;
    for (uint64_t at = 0; at < w->payload.nbytes; at += PAGE)
        ((volatile char *)w->payload.at)[at] = 0;
    *out = w;
    return 0;
}

void second_writer_close(struct second_writer *w)
{
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        if (w->readers[k].used)
            close(w->readers[k].wake);
        unmap(&w->readers[k].control);
        unmap(&w->groups[k].control);
    }
    unmap(&w->control);
    unmap(&w->payload);
    if (w->wake >= 0)
        close(w->wake);
    free(w->records);
    free(w->stack);
    free(w->published);
    free(w);
}

/* ---- slots in and out --------------------------------------------------------------------- */

static struct slot_record *record_of(struct second_writer *w, uint32_t slot)
{
    return slot < w->g.nslots ? &w->records[slot] : NULL;
}

static void set_held(struct second_writer *w, uint32_t held)
{
    w->held = held;
    STORE_RELAXED(w->shared->held, held);
}

/* A slot, -EPIPE, -EBUSY or -EAGAIN. */
static int try_acquire(struct second_writer *w)
{
    if (LOAD(w->shared->ended))
        return -EPIPE;
    if (w->held >= w->holds)
        return -EBUSY;
    reclaim_all(w);
    if (too_far_ahead(w))
        return -EAGAIN;
    if (!w->nfree && find_liars(w))
        reclaim_all(w);
    if (!w->nfree)
        return -EAGAIN;
    uint32_t slot = w->stack[--w->nfree];
    struct slot_record *record = &w->records[slot];
    record->is = RECORD_ACQUIRED;
    STORE_RELEASE(w->headers[slot].state, tag(0, SLOT_WRITING));
    set_held(w, w->held + 1);
    STEP("acquire");
    return (int)slot;
}

static void waiting_begins(struct second_writer *w)
{
    w->waiting_since = now_ns();
    STORE_RELAXED(w->shared->blocked_since_ns, (uint64_t)w->waiting_since);
}

static void waiting_ends(struct second_writer *w)
{
    if (!w->waiting_since)
        return;
    COUNT(w->shared->blocked_ns, (uint64_t)(now_ns() - w->waiting_since));
    STORE_RELAXED(w->shared->blocked_since_ns, 0);
    w->waiting_since = 0;
}

/* An event loop of ours that sleeps hears of the room that we make ourselves. */
static void made_room(struct second_writer *w)
{
    signal_sleeper(&w->shared->writer_epoch, &w->signalled, w->wake);
}

static bool armed(struct second_writer *w) { return LOAD_RELAXED(w->shared->writer_epoch) % 2; }

int second_writer_acquire(struct second_writer *w, int64_t timeout_ns)
{
    int64_t until = deadline_of(timeout_ns);
    int rc = try_acquire(w);
    if (rc == -EAGAIN)
        COUNT(w->shared->would_block, 1);
    if (rc == -EAGAIN && armed(w)) {
        sleep_end(&w->shared->writer_epoch, w->wake);
        sleep_begin(&w->shared->writer_epoch);
        return try_acquire(w);
    }
    if (rc != -EAGAIN || timeout_ns == 0)
        return rc;
    waiting_begins(w);
    while (rc == -EAGAIN) {
        sleep_begin(&w->shared->writer_epoch);
        rc = try_acquire(w);
        int slept = rc == -EAGAIN ? sleep_until(w->wake, until) : 0;
        sleep_end(&w->shared->writer_epoch, w->wake);
        if (rc == -EAGAIN) {
            rc = try_acquire(w);
            if (rc == -EAGAIN && slept)
                rc = slept;
        }
    }
    waiting_ends(w);
    return rc;
}

void *second_writer_slot(struct second_writer *w, uint32_t slot)
{
    struct slot_record *record = record_of(w, slot);
    if (!record || (record->is != RECORD_ACQUIRED && !record->held))
        return NULL;
    return (char *)w->payload.at + slot * w->g.slot_nbytes;
}

struct description *second_writer_description(struct second_writer *w, uint32_t slot)
{
    return second_writer_slot(w, slot) ? &w->headers[slot].description : NULL;
}

static void wake_readers(struct second_writer *w, uint64_t t, int64_t published_ns)
{
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        struct peer *p = &w->readers[k];
        if (!p->used || p->released)
            continue;
        const struct reader_control *c = p->control.at;
        uint32_t epoch = LOAD(c->epoch);
        if (epoch % 2 == 0 || epoch == p->signalled)
            continue;
        if (t && !p->terms.group &&
            (LOAD(c->cursor) > t || LOAD_RELAXED(c->not_before_ns) > published_ns))
            continue;
        p->signalled = epoch;
        signal_fd(p->wake);
        COUNT(w->shared->wakes, 1);
    }
}

int64_t second_writer_publish(struct second_writer *w, uint32_t slot, const struct meta *meta,
                              bool hold)
{
    struct slot_record *record = record_of(w, slot);
    if (!record || record->is != RECORD_ACQUIRED || meta->nbytes > w->g.slot_nbytes)
        return -EINVAL;
    if (LOAD(w->shared->ended))
        return -EPIPE;
    if (w->head >= MAX_SEQ)
        return -EOVERFLOW;
    uint64_t t = w->head + 1;
    struct slot_header *header = &w->headers[slot];
    header->meta = *meta;
    header->meta.generation = w->g.generation;
    header->meta.seq = t;
    int64_t published_ns = header->meta.publish_ns = now_ns();
    STEP("publish 1");
    STORE_RELEASE(header->state, tag(t, SLOT_PUBLISHED));
    STEP("publish 2");
    STORE_RELEASE(w->queue[t & (queue_length(w->g.nslots) - 1)], tag(t, slot));
    STEP("publish 3");
    STORE(w->shared->head, t);
    STEP("publish 4");
    wake_readers(w, t, published_ns);

    w->head = t;
    *record = (struct slot_record){RECORD_PUBLISHED, hold, t};
    w->published[w->npublished++] = slot;
    if (!hold)
        set_held(w, w->held - 1);
    COUNT(w->shared->published, 1);
    COUNT(w->shared->nbytes, meta->nbytes);
    STORE_RELAXED(w->shared->publish_ns, (uint64_t)published_ns);
    return (int64_t)t;
}

int second_writer_abandon(struct second_writer *w, uint32_t slot)
{
    struct slot_record *record = record_of(w, slot);
    if (!record || record->is != RECORD_ACQUIRED)
        return -EINVAL;
    STORE_RELEASE(w->headers[slot].state, tag(record->seq, SLOT_FREE));
    record->is = RECORD_FREE;
    w->stack[w->nfree++] = slot;
    set_held(w, w->held - 1);
    COUNT(w->shared->abandoned, 1);
    made_room(w);
    return 0;
}

int second_writer_release(struct second_writer *w, uint32_t slot)
{
    struct slot_record *record = record_of(w, slot);
    if (!record || !record->held)
        return -EINVAL;
    record->held = false;
    set_held(w, w->held - 1);
    made_room(w);
    return 0;
}

int second_writer_arm(struct second_writer *w)
{
    second_writer_disarm(w);
    sleep_begin(&w->shared->writer_epoch);
    waiting_begins(w);
    bool ready = LOAD(w->shared->ended) || w->held >= w->holds;
    if (!ready) {
        reclaim_all(w);
        ready = w->nfree > 0 && !too_far_ahead(w);
    }
    if (ready)
        second_writer_disarm(w);
    return ready;
}

int second_writer_disarm(struct second_writer *w)
{
    if (armed(w))
        sleep_end(&w->shared->writer_epoch, w->wake);
    waiting_ends(w);
    return 0;
}

int second_writer_end(struct second_writer *w, uint32_t reason)
{
    uint32_t live = 0;
    if (reason < 1)
        return -EINVAL;
    atomic_compare_exchange_strong_explicit(&w->shared->ended, &live, reason, memory_order_seq_cst,
                                            memory_order_seq_cst);
    wake_readers(w, 0, 0);
    return 0;
}
