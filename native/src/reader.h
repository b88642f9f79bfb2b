/*
 * The reader as its two files see it: reader.c (which frame is next, sleeping) and pinning.c
 * (putting a pin on a frame, and off). All of it is private memory of the reader's process;
 * functions here are called under the mutex.
 */
#ifndef MCPD_READER_H
#define MCPD_READER_H

#include <errno.h>
#include <pthread.h>

#include "layout.h"
#include "stream.h"

struct mcpd_reader_pin {
    uint64_t seq; /* 0: not in use */
    uint32_t slot;
    int64_t since_ns;
};

struct mcpd_reader {
    const volatile uint32_t *guard;
    pthread_mutex_t mutex;
    struct mcpd_geometry geometry;
    struct mcpd_map writer_control, payload, control;
    const struct mcpd_wctl *wctl;
    const _Atomic uint64_t *queue;
    const struct mcpd_slot_header *headers;
    uint64_t queue_mask;
    struct mcpd_rctl *rctl;
    _Atomic uint64_t *words; /* the shared pins */
    struct mcpd_sleep sleep;
    int writer_wake_fd;
    uint32_t writer_signalled; /* the writer's epoch for which it was signalled last */
    int shut;
    int lossless;
    uint64_t wanted; /* lossless: the next; latest: the lowest not seen yet */
    int64_t usual_wait_ns; /* how long the latest waits took, each a quarter of the one after it */
    uint32_t max_pins, nfree;
    struct mcpd_reader_pin *pins;
    uint32_t *free; /* a stack of pins not in use */
};

/* Locks; or -ECHILD in a forked child, where the mutex and the mappings are of no use. */
static inline int mcpd_reader_enter(mcpd_reader *reader)
{
    if (!*reader->guard)
        return -ECHILD;
    pthread_mutex_lock(&reader->mutex);
    return 0;
}

static inline int mcpd_reader_leave(mcpd_reader *reader, int result)
{
    pthread_mutex_unlock(&reader->mutex);
    return result;
}

/* ---- pinning.c ---- */

/*
 * Whether the slot still holds frame seq, asked after a pin was put on it; copies the metadata. 0,
 * -ESTALE when it has moved on, -EBADMSG when the metadata cannot be.
 */
int mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                        struct mcpd_meta *meta);

#endif
