/*
 * The writer as its three files see it: writer.c (slots in and out), admission.c (its readers) and
 * retention.c (which slots are free). All of it is private memory of the writer's process;
 * functions here are called under the mutex.
 */
#ifndef MCPD_WRITER_H
#define MCPD_WRITER_H

#include <errno.h>
#include <pthread.h>

#include "layout.h"
#include "stream.h"

#define MCPD_NO_SLOT UINT32_MAX

struct mcpd_writer_slot {
    uint64_t seq;        /* of the frame it holds, or held last */
    uint32_t older, newer; /* neighbours in publishing order, while published */
    uint8_t state;       /* enum mcpd_slot_state */
    uint8_t held;        /* published, and the writer still looks at it */
};

struct mcpd_writer_reader {
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
    struct mcpd_writer_slot *slots;
    uint32_t nreaders;
    struct mcpd_writer_reader *readers; /* MCPD_MAX_READERS */
};

/* Locks; or -ECHILD in a forked child, where the mutex and the mappings are of no use. */
static inline int mcpd_writer_enter(mcpd_writer *writer)
{
    if (!*writer->guard)
        return -ECHILD;
    pthread_mutex_lock(&writer->mutex);
    return 0;
}

static inline int mcpd_writer_leave(mcpd_writer *writer, int result)
{
    pthread_mutex_unlock(&writer->mutex);
    return result;
}

/* ---- admission.c ---- */

/* Frames from this sequence number on are retained, whether pinned or not. */
uint64_t mcpd_writer_retained_from(mcpd_writer *writer);
/* Whether a reader's pin holds this tag. */
int mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag);
/* Signals readers that sleep; after a seq_cst store of what they wait for. */
void mcpd_writer_wake_readers(mcpd_writer *writer);

/* ---- retention.c ---- */

/* Adds a slot just published as the newest. */
void mcpd_writer_append(mcpd_writer *writer, uint32_t index);
/* Moves every published slot that is not retained to the stack of free ones. */
void mcpd_writer_reclaim(mcpd_writer *writer);

#endif
