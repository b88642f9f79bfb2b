/*
 * The writer's end of a stream: slots, retention, readers, publishing.
 *
 * What the writer decides by is private to it (struct slot, struct reader); in shared memory it reads
 * only what a reader alone can say, namely pins, lossless cursors and sleep epochs, and `ended`, which
 * the daemon may set. The mutex serves threads of this process, is in private memory and is never
 * held while sleeping: no other process can make the writer wait for it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atomics.h"
#include "layout.h"
#include "stream.h"

#define NONE UINT32_MAX
#define MAX_SEQ ((UINT64_C(1) << 48) - 1)

struct slot {
    uint64_t seq;        /* of the frame it holds, or held last */
    uint32_t older, newer; /* neighbours in publishing order, while published */
    uint8_t state;       /* enum mcpd_slot_state */
    uint8_t held;        /* published, and the writer still looks at it */
};

struct reader {
    uint64_t id;
    struct mcpd_map control;
    const struct mcpd_rctl *rctl;
    const _Atomic uint64_t *pins;
    uint32_t max_pins;
    int wake_fd;
    uint32_t signalled; /* epoch for which it was signalled last */
    int lossless;
    int released;       /* owed nothing, not signalled; its pins stand */
    uint64_t cursor;    /* lossless: the highest believable value seen so far */
};

struct mcpd_writer {
    const volatile uint32_t *guard;
    pthread_mutex_t mutex;
    struct mcpd_geometry geometry;
    struct mcpd_map control, payload;
    struct mcpd_wctl *wctl;
    _Atomic uint64_t *queue;
    struct mcpd_slot_header *headers;
    uint64_t queue_mask;
    struct mcpd_sleep sleep;
    int shut;
    uint64_t head;
    uint32_t history, holds;
    uint32_t nheld; /* acquired and not published, or held after publishing */
    uint32_t oldest, newest; /* ends of the list of published slots */
    uint32_t nfree, *free;   /* a stack: the most recently freed on top */
    struct slot *slots;
    uint32_t nreaders;
    struct reader *readers; /* MCPD_MAX_READERS */
};

static int take(mcpd_writer *writer);

/* ---- opening and closing ------------------------------------------------------------------- */

static void discard(mcpd_writer *writer)
{
    int ours = writer->guard != NULL && *writer->guard;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        if (ours)
            mcpd_map_close(&writer->readers[i].control);
        close(writer->readers[i].wake_fd);
    }
    if (ours) { /* a forked child does not have the mappings */
        mcpd_map_close(&writer->control);
        mcpd_map_close(&writer->payload);
    }
    if (writer->sleep.fd >= 0)
        close(writer->sleep.fd);
    mcpd_guard_close(writer->guard);
    pthread_mutex_destroy(&writer->mutex);
    free(writer->free);
    free(writer->slots);
    free(writer->readers);
    free(writer);
}

static int open_parts(mcpd_writer *writer, int control_fd, int payload_fd, int wake_fd)
{
    uint32_t nslots = writer->geometry.nslots;
    int result = mcpd_guard_open(&writer->guard);
    if (result == 0)
        result = mcpd_map_open(&writer->control, control_fd, mcpd_wctl_nbytes(nslots), 1);
    if (result == 0)
        result = mcpd_map_open(&writer->payload, payload_fd,
                               (size_t)mcpd_payload_nbytes(&writer->geometry), 1);
    if (result == 0)
        result = writer->sleep.fd = mcpd_wake_dup(wake_fd);
    if (result < 0)
        return result;
    uint8_t *base = writer->control.base;
    writer->wctl = (struct mcpd_wctl *)base;
    writer->queue = (_Atomic uint64_t *)(base + sizeof(struct mcpd_wctl));
    writer->headers = (struct mcpd_slot_header *)(base + mcpd_headers_offset(nslots));
    writer->sleep.epoch = &writer->wctl->writer_epoch;
    result = mcpd_control_check(writer->wctl->magic, MCPD_WCTL_MAGIC, writer->wctl->abi);
    if (result == 0 && mcpd_load_relaxed(&writer->wctl->head) != 0)
        result = -EEXIST; /* a stream has one writer in its life */
    return result;
}

int mcpd_writer_open(const struct mcpd_geometry *geometry, int control_fd, int payload_fd,
                     int wake_fd, uint32_t history, uint32_t holds, mcpd_writer **out)
{
    if (mcpd_geometry_check(geometry) != 0 || history < 1 || holds < 1)
        return -EINVAL;
    if (geometry->nslots < (uint64_t)history + holds + 1)
        return -ENOSPC;
    mcpd_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return -ENOMEM;
    pthread_mutex_init(&writer->mutex, NULL);
    writer->geometry = *geometry;
    writer->queue_mask = mcpd_queue_len(geometry->nslots) - 1;
    writer->history = history;
    writer->holds = holds;
    writer->oldest = writer->newest = NONE;
    writer->sleep.fd = -1;
    writer->free = calloc(geometry->nslots, sizeof *writer->free);
    writer->slots = calloc(geometry->nslots, sizeof *writer->slots);
    writer->readers = calloc(MCPD_MAX_READERS, sizeof *writer->readers);
    int result = -ENOMEM;
    if (writer->free != NULL && writer->slots != NULL && writer->readers != NULL)
        result = open_parts(writer, control_fd, payload_fd, wake_fd);
    if (result != 0) {
        discard(writer);
        return result;
    }
    for (uint32_t slot = geometry->nslots; slot-- > 0;)
        writer->free[writer->nfree++] = slot;
    *out = writer;
    return 0;
}

void mcpd_writer_close(mcpd_writer *writer)
{
    if (writer != NULL)
        discard(writer);
}

/* Locks; or -ECHILD in a forked child, where the mutex and the mappings are of no use. */
static int enter(mcpd_writer *writer)
{
    if (!*writer->guard)
        return -ECHILD;
    pthread_mutex_lock(&writer->mutex);
    return 0;
}

static int leave(mcpd_writer *writer, int result)
{
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

/* ---- readers ------------------------------------------------------------------------------- */

static struct reader *find_reader(mcpd_writer *writer, uint64_t id)
{
    for (uint32_t i = 0; i < writer->nreaders; i++)
        if (writer->readers[i].id == id)
            return &writer->readers[i];
    return NULL;
}

/*
 * slots >= retained history + every pin + the writer's holds + 1: so a free slot is always found while
 * no lossless reader is behind.
 */
static int admit(mcpd_writer *writer, uint64_t id, uint32_t max_pins)
{
    if (writer->shut)
        return -ECANCELED;
    if (find_reader(writer, id) != NULL)
        return -EEXIST;
    if (writer->nreaders == MCPD_MAX_READERS)
        return -EUSERS;
    uint64_t needed = (uint64_t)writer->history + writer->holds + 1 + max_pins;
    for (uint32_t i = 0; i < writer->nreaders; i++)
        needed += writer->readers[i].max_pins;
    return needed > writer->geometry.nslots ? -ENOSPC : 0;
}

int64_t mcpd_writer_add_reader(mcpd_writer *writer, uint64_t reader_id, int control_fd, int wake_fd,
                               uint32_t max_pins, enum mcpd_policy policy)
{
    if (max_pins < 1 || max_pins > MCPD_MAX_PINS)
        return -EINVAL;
    if (policy != MCPD_LATEST && policy != MCPD_LOSSLESS)
        return -ENOTSUP;
    if (!*writer->guard)
        return -ECHILD;
    struct reader entry = {.id = reader_id, .max_pins = max_pins};
    int result = mcpd_map_open(&entry.control, control_fd, mcpd_rctl_nbytes(max_pins), 0);
    if (result != 0)
        return result;
    entry.rctl = entry.control.base;
    entry.pins = (const _Atomic uint64_t *)((const uint8_t *)entry.control.base + MCPD_RCTL_PINS);
    entry.lossless = policy == MCPD_LOSSLESS;
    entry.wake_fd = mcpd_wake_dup(wake_fd);
    if (entry.wake_fd < 0) {
        mcpd_map_close(&entry.control);
        return entry.wake_fd;
    }
    pthread_mutex_lock(&writer->mutex);
    result = mcpd_control_check(entry.rctl->magic, MCPD_RCTL_MAGIC, entry.rctl->abi);
    if (result == 0)
        result = admit(writer, reader_id, max_pins);
    if (result != 0) {
        mcpd_map_close(&entry.control);
        close(entry.wake_fd);
        return leave(writer, result);
    }
    entry.cursor = writer->head + 1;
    writer->readers[writer->nreaders++] = entry;
    pthread_mutex_unlock(&writer->mutex);
    return entry.lossless ? (int64_t)entry.cursor : 0;
}

int mcpd_writer_release_reader(mcpd_writer *writer, uint64_t reader_id)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    struct reader *reader = find_reader(writer, reader_id);
    if (reader == NULL)
        return leave(writer, -ENOENT);
    reader->released = 1;
    mcpd_sleep_pass_on(&writer->sleep);
    return leave(writer, 0);
}

int mcpd_writer_remove_reader(mcpd_writer *writer, uint64_t reader_id)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    struct reader *reader = find_reader(writer, reader_id);
    if (reader == NULL)
        return leave(writer, -ENOENT);
    mcpd_map_close(&reader->control);
    close(reader->wake_fd);
    *reader = writer->readers[--writer->nreaders];
    mcpd_sleep_pass_on(&writer->sleep);
    return leave(writer, 0);
}

/* ---- retention ----------------------------------------------------------------------------- */

/*
 * Frames from here on are retained whether pinned or not. A lossless cursor is its reader's word: it
 * may not go back, nor beyond the next frame. seq_cst: pairs with the store in mcpd_reader_next, so that
 * the pin of the frame just passed is seen by the scan that follows, and that a writer about to sleep
 * sees the cursor of any reader that does not see its epoch.
 */
static uint64_t retained_from(mcpd_writer *writer)
{
    uint64_t next = writer->head + 1;
    uint64_t from = next > writer->history ? next - writer->history : 1;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        struct reader *reader = &writer->readers[i];
        if (!reader->lossless || reader->released)
            continue;
        uint64_t cursor = mcpd_load_seq_cst(&reader->rctl->cursor);
        if (cursor > next)
            cursor = next;
        if (cursor > reader->cursor)
            reader->cursor = cursor;
        if (reader->cursor < from)
            from = reader->cursor;
    }
    return from;
}

static int pinned(const mcpd_writer *writer, uint64_t tag)
{
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        const struct reader *reader = &writer->readers[i];
        for (uint32_t pin = 0; pin < reader->max_pins; pin++)
            if (mcpd_load_seq_cst(&reader->pins[pin]) == tag)
                return 1;
    }
    return 0;
}

/*
 * Takes a published slot back unless a reader has pinned it. The exchange and the scan after it pair
 * with the exchange and the re-check in mcpd_reader_next: the reader sees that the slot is no longer
 * published and withdraws, or the scan sees the pin and the slot is put back, or both.
 */
static int reclaim(mcpd_writer *writer, uint32_t index)
{
    struct slot *slot = &writer->slots[index];
    _Atomic uint64_t *state = &writer->headers[index].state;
    (void)mcpd_exchange_seq_cst(state, MCPD_TAG(slot->seq, MCPD_SLOT_WRITING));
    int keep = pinned(writer, MCPD_TAG(slot->seq, index));
#ifdef MCPD_PLANT_NO_SCAN /* a fault for the tests to find */
    keep = 0;
#endif
    if (keep) {
        mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_PUBLISHED));
        return 0;
    }
    mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_FREE));
    return 1;
}

static void append_published(mcpd_writer *writer, uint32_t index)
{
    struct slot *slot = &writer->slots[index];
    slot->older = writer->newest;
    slot->newer = NONE;
    if (writer->newest != NONE)
        writer->slots[writer->newest].newer = index;
    else
        writer->oldest = index;
    writer->newest = index;
}

static void unlink_published(mcpd_writer *writer, uint32_t index)
{
    struct slot *slot = &writer->slots[index];
    if (slot->older != NONE)
        writer->slots[slot->older].newer = slot->newer;
    else
        writer->oldest = slot->newer;
    if (slot->newer != NONE)
        writer->slots[slot->newer].older = slot->older;
    else
        writer->newest = slot->older;
}

/*
 * Frees what is not retained, oldest first, so that the newest of it is on top of the stack. The walk
 * ends at the first retained frame: it passes only what is freed, pinned or held.
 */
static void reclaim_all(mcpd_writer *writer)
{
    uint64_t from = retained_from(writer);
    uint32_t next;
    for (uint32_t index = writer->oldest; index != NONE; index = next) {
        struct slot *slot = &writer->slots[index];
        next = slot->newer;
        if (slot->seq >= from)
            break;
        if (slot->held || !reclaim(writer, index))
            continue;
        unlink_published(writer, index);
        slot->state = MCPD_SLOT_FREE;
        writer->free[writer->nfree++] = index;
    }
}

/* ---- acquiring ----------------------------------------------------------------------------- */

static void count_held(mcpd_writer *writer, int change)
{
    writer->nheld += (uint32_t)change;
    mcpd_store_relaxed(&writer->wctl->held, writer->nheld);
}

/* Whether an acquire would return at once: 1, or -EAGAIN, or why there is nothing to acquire. */
static int ready(mcpd_writer *writer)
{
    if (writer->shut)
        return -ECANCELED;
    if (mcpd_load_seq_cst(&writer->wctl->ended) != MCPD_LIVE)
        return -EPIPE;
    if (writer->nheld >= writer->holds)
        return -EBUSY;
    reclaim_all(writer);
    return writer->nfree > 0 ? 1 : -EAGAIN;
}

static int take(mcpd_writer *writer)
{
    int result = ready(writer);
    if (result < 0)
        return result;
    uint32_t index = writer->free[--writer->nfree];
    struct slot *slot = &writer->slots[index];
    slot->state = MCPD_SLOT_WRITING;
    mcpd_store_release(&writer->headers[index].state, MCPD_TAG(slot->seq, MCPD_SLOT_WRITING));
    count_held(writer, 1);
    return (int)index;
}

/* Takes if it can; an armed event loop that finds nothing goes on sleeping. */
static int try_locked(mcpd_writer *writer)
{
    int result = take(writer);
    if (result == -EAGAIN && writer->sleep.armed) {
        mcpd_sleep_arm(&writer->sleep);
        result = take(writer);
        if (result != -EAGAIN)
            mcpd_sleep_pass_on(&writer->sleep);
    }
    return result;
}

static int wait_locked(mcpd_writer *writer, int64_t timeout_ns)
{
    int64_t started_ns = mcpd_now_ns();
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    int result, woken;
    do {
        mcpd_sleep_begin(&writer->sleep);
        result = take(writer);
        woken = 1;
        if (result == -EAGAIN) {
            pthread_mutex_unlock(&writer->mutex);
            woken = mcpd_sleep_poll(writer->sleep.fd, deadline_ns);
            pthread_mutex_lock(&writer->mutex);
        }
        mcpd_sleep_finish(&writer->sleep);
        if (result == -EAGAIN)
            result = take(writer);
    } while (result == -EAGAIN && woken == 1);
    if (result == -EAGAIN)
        result = woken == 0 ? -ETIMEDOUT : woken;
    else
        mcpd_sleep_pass_on(&writer->sleep);
    mcpd_count(&writer->wctl->blocked_ns, (uint64_t)(mcpd_now_ns() - started_ns));
    return result;
}

int mcpd_writer_try(mcpd_writer *writer)
{
    int result = enter(writer);
    return result != 0 ? result : leave(writer, try_locked(writer));
}

int mcpd_writer_acquire(mcpd_writer *writer, int64_t timeout_ns)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    result = try_locked(writer);
    if (result == -EAGAIN) {
        mcpd_count(&writer->wctl->would_block, 1);
        if (timeout_ns != 0)
            result = wait_locked(writer, timeout_ns);
    }
    return leave(writer, result);
}

int mcpd_writer_arm(mcpd_writer *writer)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    mcpd_sleep_arm(&writer->sleep);
    if (ready(writer) == -EAGAIN)
        return leave(writer, 0);
    mcpd_sleep_disarm(&writer->sleep);
    return leave(writer, 1);
}

int mcpd_writer_disarm(mcpd_writer *writer)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    mcpd_sleep_disarm(&writer->sleep);
    return leave(writer, 0);
}

/* ---- publishing ---------------------------------------------------------------------------- */

void *mcpd_writer_slot(mcpd_writer *writer, uint32_t slot)
{
    if (!*writer->guard || slot >= writer->geometry.nslots)
        return NULL;
    return (uint8_t *)writer->payload.base + slot * writer->geometry.slot_nbytes;
}

struct mcpd_description *mcpd_writer_description(mcpd_writer *writer, uint32_t slot)
{
    if (!*writer->guard || slot >= writer->geometry.nslots)
        return NULL;
    return &writer->headers[slot].description;
}

static int acquired(const mcpd_writer *writer, uint32_t slot)
{
    return slot < writer->geometry.nslots && writer->slots[slot].state == MCPD_SLOT_WRITING;
}

/* After a seq_cst store of what they wait for; pairs with the look after mcpd_sleep_begin. */
static void wake_readers(mcpd_writer *writer)
{
    uint64_t wakes = 0;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        struct reader *reader = &writer->readers[i];
        if (!reader->released)
            wakes += (uint64_t)mcpd_wake_peer(&reader->rctl->epoch, &reader->signalled,
                                              reader->wake_fd);
    }
    if (wakes > 0)
        mcpd_count(&writer->wctl->wakes, wakes);
}

/*
 * Memory order: the slot's bytes, header and description, then state, queue entry and head. Each is a
 * release, so whoever sees a later one sees the earlier ones; mcpd_reader_next reads them backwards.
 */
int64_t mcpd_writer_publish(mcpd_writer *writer, uint32_t slot, struct mcpd_meta *meta, int hold)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    if (!acquired(writer, slot) || meta->nbytes > writer->geometry.slot_nbytes)
        return leave(writer, -EINVAL);
    if (writer->shut)
        return leave(writer, -ECANCELED);
    if (mcpd_load_acquire(&writer->wctl->ended) != MCPD_LIVE)
        return leave(writer, -EPIPE);
    if (writer->head == MAX_SEQ)
        return leave(writer, -EOVERFLOW);
    uint64_t seq = writer->head + 1;
    int64_t now_ns = mcpd_now_ns();
    struct mcpd_slot_header *header = &writer->headers[slot];
    meta->generation = writer->geometry.generation;
    meta->seq = seq;
    meta->publish_ns = now_ns;
    header->meta = *meta;

    writer->head = seq;
    writer->slots[slot].seq = seq;
    writer->slots[slot].state = MCPD_SLOT_PUBLISHED;
    writer->slots[slot].held = hold != 0;
    append_published(writer, slot);
    if (!hold)
        count_held(writer, -1);
    mcpd_count(&writer->wctl->published, 1);
    mcpd_count(&writer->wctl->nbytes, meta->nbytes);
    mcpd_store_relaxed(&writer->wctl->publish_ns, (uint64_t)now_ns);

    mcpd_store_release(&header->state, MCPD_TAG(seq, MCPD_SLOT_PUBLISHED));
    mcpd_store_release(&writer->queue[seq & writer->queue_mask], MCPD_TAG(seq, slot));
    mcpd_store_seq_cst(&writer->wctl->head, seq);
    wake_readers(writer);
    pthread_mutex_unlock(&writer->mutex);
    return (int64_t)seq;
}

int mcpd_writer_abandon(mcpd_writer *writer, uint32_t slot)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    if (!acquired(writer, slot))
        return leave(writer, -EINVAL);
    writer->slots[slot].state = MCPD_SLOT_FREE;
    writer->free[writer->nfree++] = slot;
    mcpd_store_release(&writer->headers[slot].state,
                       MCPD_TAG(writer->slots[slot].seq, MCPD_SLOT_FREE));
    count_held(writer, -1);
    mcpd_count(&writer->wctl->abandoned, 1);
    mcpd_sleep_pass_on(&writer->sleep);
    return leave(writer, 0);
}

int mcpd_writer_release(mcpd_writer *writer, uint32_t slot)
{
    int result = enter(writer);
    if (result != 0)
        return result;
    if (slot >= writer->geometry.nslots || !writer->slots[slot].held)
        return leave(writer, -EINVAL);
    writer->slots[slot].held = 0;
    count_held(writer, -1);
    mcpd_sleep_pass_on(&writer->sleep);
    return leave(writer, 0);
}

int mcpd_writer_end(mcpd_writer *writer, enum mcpd_end reason)
{
    if (reason < MCPD_END_CLOSED || reason > MCPD_END_SHUTDOWN)
        return -EINVAL;
    int result = enter(writer);
    if (result != 0)
        return result;
    mcpd_wctl_end(writer->wctl, reason);
    wake_readers(writer);
    mcpd_sleep_pass_on(&writer->sleep);
    return leave(writer, 0);
}

/* ---- for the binding ----------------------------------------------------------------------- */

void mcpd_writer_shut(mcpd_writer *writer)
{
    if (enter(writer) != 0)
        return;
    writer->shut = 1;
    mcpd_sleep_pass_on(&writer->sleep);
    pthread_mutex_unlock(&writer->mutex);
}

int mcpd_writer_fileno(const mcpd_writer *writer)
{
    return writer->sleep.fd;
}

int mcpd_writer_ended(mcpd_writer *writer)
{
    return *writer->guard ? (int)mcpd_load_acquire(&writer->wctl->ended) : -ECHILD;
}

const struct mcpd_wctl *mcpd_writer_counters(mcpd_writer *writer)
{
    return *writer->guard ? writer->wctl : NULL;
}
