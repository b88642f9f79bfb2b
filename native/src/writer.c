/*
 * The writer's end of a stream: opening it, publishing, its end.
 *
 * What the writer decides by is private to it (writer.h); in shared memory it reads only what a
 * reader alone can say, namely pins, claims, cursors and sleep epochs, and `ended`, which the
 * daemon may set. The mutex serves threads of this process, is in private memory and is never held
 * while sleeping: no other process can make the writer wait for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "steps.h"
#include "writer.h"

/* ---- opening and closing ------------------------------------------------------------------- */

static void discard(mcpd_writer *writer)
{
    int ours = writer->guard != NULL && *writer->guard;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        if (ours)
            mcpd_map_close(&writer->readers[i].control);
        close(writer->readers[i].wake_fd);
    }
    for (uint32_t i = 0; ours && i < writer->ngroups; i++)
        mcpd_group_close(&writer->groups[i]);
    if (ours) { /* a forked child does not have the mappings */
        mcpd_map_close(&writer->control);
        mcpd_payload_close(&writer->payload, &writer->guarded);
    }
    if (writer->sleep.fd >= 0)
        close(writer->sleep.fd);
    mcpd_guard_close(writer->guard);
    pthread_mutex_destroy(&writer->mutex);
    free(writer->free);
    free(writer->slots);
    free(writer->readers);
    free(writer->groups);
    free(writer);
}

static int open_parts(mcpd_writer *writer, int control_fd, int payload_fd, int wake_fd)
{
    uint32_t nslots = writer->geometry.nslots;
    int result = mcpd_guard_open(&writer->guard);
    if (result == 0)
        result = mcpd_map_open(&writer->control, control_fd, mcpd_wctl_nbytes(nslots), 1);
    if (result == 0)
        result = mcpd_payload_open(&writer->payload, &writer->guarded, payload_fd,
                                   writer->geometry.payload_offset,
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
    if (result == 0 && mcpd_load_relaxed(&writer->wctl->head) != writer->head)
        result = -EEXIST; /* a generation has one writer in its life */
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
    writer->head = geometry->first_seq - 1;
    writer->history = history;
    writer->holds = holds;
    writer->oldest = writer->newest = MCPD_NO_SLOT;
    writer->sleep.fd = -1;
    writer->free = calloc(geometry->nslots, sizeof *writer->free);
    writer->slots = calloc(geometry->nslots, sizeof *writer->slots);
    writer->readers = calloc(MCPD_MAX_READERS, sizeof *writer->readers);
    writer->groups = calloc(MCPD_MAX_GROUPS, sizeof *writer->groups);
    int result = -ENOMEM;
    if (writer->free != NULL && writer->slots != NULL && writer->readers != NULL &&
        writer->groups != NULL)
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

/* Filling the slot has driven out of the caches what publishing it writes and looks at. */
static void fetch_shared(const mcpd_writer *writer, const struct mcpd_slot_header *header,
                         uint64_t seq)
{
    mcpd_fetch(header, 256);
    mcpd_fetch(&writer->queue[seq & writer->queue_mask], 1);
    mcpd_fetch(&writer->wctl->head, 1);
    for (uint32_t i = 0; i < MCPD_FETCH_AHEAD; i++)
        mcpd_writer_fetch_reader(writer, i);
}

/*
 * Memory order: the slot's bytes, header and description, then state, queue entry and head. Each is
 * a release, so whoever sees a later one sees the earlier ones; take.c and claims.c read them
 * backwards.
 */
int64_t mcpd_writer_publish(mcpd_writer *writer, uint32_t slot, struct mcpd_meta *meta, int hold)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    if (!acquired(writer, slot) || meta->nbytes > writer->geometry.slot_nbytes)
        return mcpd_writer_leave(writer, -EINVAL);
    if (writer->shut)
        return mcpd_writer_leave(writer, -ECANCELED);
    if (writer->frozen)
        return mcpd_writer_leave(writer, -EINPROGRESS);
    if (mcpd_load_acquire(&writer->wctl->ended) != MCPD_LIVE)
        return mcpd_writer_leave(writer, -EPIPE);
    if (mcpd_guarded_lost(writer->guarded))
        return mcpd_writer_leave(writer, -EFAULT);
    if (writer->head == MCPD_MAX_SEQ)
        return mcpd_writer_leave(writer, -EOVERFLOW);
    uint64_t seq = writer->head + 1;
    struct mcpd_slot_header *header = &writer->headers[slot];
    fetch_shared(writer, header, seq);
    MCPD_STEP("writer.publish.filled");
    int64_t now_ns = mcpd_now_ns();
    meta->generation = writer->geometry.generation;
    meta->seq = seq;
    meta->publish_ns = now_ns;
    header->meta = *meta;
    MCPD_STEP("writer.publish.described");

    mcpd_store_release(&header->state, MCPD_TAG(seq, MCPD_SLOT_PUBLISHED));
    MCPD_STEP("writer.publish.published");
    mcpd_store_release(&writer->queue[seq & writer->queue_mask], MCPD_TAG(seq, slot));
    MCPD_STEP("writer.publish.queued");
    mcpd_store_seq_cst(&writer->wctl->head, seq);
    MCPD_STEP("writer.publish.head");
    mcpd_writer_wake_readers(writer, seq, now_ns);
    MCPD_STEP("writer.publish.told");

    /* The rest is the writer's own and may come while the readers wake. */
    writer->head = seq;
    writer->slots[slot].seq = seq;
    writer->slots[slot].state = MCPD_SLOT_PUBLISHED;
    writer->slots[slot].held = hold != 0;
    mcpd_writer_append(writer, slot);
    if (!hold)
        mcpd_writer_count_held(writer, -1);
    mcpd_count(&writer->wctl->published, 1);
    mcpd_count(&writer->wctl->nbytes, meta->nbytes);
    mcpd_store_relaxed(&writer->wctl->publish_ns, (uint64_t)now_ns);
    MCPD_STEP("writer.publish.counted");
    pthread_mutex_unlock(&writer->mutex);
    return (int64_t)seq;
}

int mcpd_writer_abandon(mcpd_writer *writer, uint32_t slot)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    if (!acquired(writer, slot))
        return mcpd_writer_leave(writer, -EINVAL);
    writer->slots[slot].state = MCPD_SLOT_FREE;
    writer->free[writer->nfree++] = slot;
    mcpd_store_release(&writer->headers[slot].state,
                       MCPD_TAG(writer->slots[slot].seq, MCPD_SLOT_FREE));
    MCPD_STEP("writer.abandon.free");
    mcpd_writer_count_held(writer, -1);
    mcpd_count(&writer->wctl->abandoned, 1);
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

int mcpd_writer_release(mcpd_writer *writer, uint32_t slot)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    if (slot >= writer->geometry.nslots || !writer->slots[slot].held)
        return mcpd_writer_leave(writer, -EINVAL);
    writer->slots[slot].held = 0;
    MCPD_STEP("writer.release.released");
    mcpd_writer_count_held(writer, -1);
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

int mcpd_writer_end(mcpd_writer *writer, enum mcpd_end reason)
{
    if (reason < MCPD_END_CLOSED || reason > MCPD_END_MOVED)
        return -EINVAL;
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    mcpd_wctl_end(writer->wctl, reason);
    MCPD_STEP("writer.end.marked");
    mcpd_writer_wake_readers(writer, UINT64_MAX, INT64_MAX);
    MCPD_STEP("writer.end.told");
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

/* ---- for the binding ----------------------------------------------------------------------- */

void mcpd_writer_shut(mcpd_writer *writer)
{
    if (mcpd_writer_enter(writer) != 0)
        return;
    writer->shut = 1;
    mcpd_sleep_pass_on(&writer->sleep);
    pthread_mutex_unlock(&writer->mutex);
}

void mcpd_writer_freeze(mcpd_writer *writer, int frozen)
{
    if (mcpd_writer_enter(writer) != 0)
        return;
    writer->frozen = frozen;
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
