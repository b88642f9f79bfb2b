/*
 * The writer as its files see it: writer.c (opening, publishing), acquire.c (free slots, waiting),
 * admission.c (its readers), groups.c (its groups) and retention.c (which slots are free). All of it
 * is private memory of the writer's process; functions here are called under the mutex.
 */
#ifndef MCPD_WRITER_H
#define MCPD_WRITER_H

#include <errno.h>
#include <pthread.h>

#include "guard.h"
#include "layout.h"
#include "stream.h"

#define MCPD_NO_SLOT UINT32_MAX
#define MCPD_FETCH_AHEAD 4 /* readers: how early a walk over all asks for their words */
#define MCPD_MAX_GROUPS MCPD_MAX_READERS

struct mcpd_writer_slot {
    uint64_t seq;        /* of the frame it holds, or held last */
    uint32_t older, newer; /* neighbours in publishing order, while published */
    uint8_t state;       /* enum mcpd_slot_state */
    uint8_t held;        /* published, and the writer still looks at it */
};

/* What a reader of its own, or a group, has the writer retain. */
struct mcpd_writer_owed {
    const _Atomic uint64_t *word; /* its cursor, which it says itself */
    uint64_t cursor;              /* the highest believable value of it seen so far */
    uint32_t policy;              /* enum mcpd_policy */
    uint32_t depth;               /* MCPD_FIFO: kept; MCPD_LOSSLESS: unread at most, 0: any */
};

struct mcpd_writer_reader {
    uint64_t id;
    struct mcpd_map control;
    const struct mcpd_rctl *rctl;
    const _Atomic uint64_t *pins;
    uint32_t max_pins;
    int wake_fd;
    uint32_t signalled; /* epoch for which it was signalled last */
    int released;       /* owed nothing, not signalled; its pins stand */
    uint64_t group;     /* 0: of its own */
    uint32_t member;
    struct mcpd_writer_owed owed; /* of one of its own */
};

struct mcpd_writer_group {
    uint64_t id;
    struct mcpd_map control;
    const struct mcpd_gctl *gctl;
    const _Atomic uint64_t *claims;
    uint32_t members;  /* released ones included */
    uint32_t active;   /* those that are not released */
    int left;          /* it had members, and the last one that was active has gone */
    uint32_t max_pins; /* of all members */
    uint32_t budget;   /* claims that slots were reckoned for */
    uint32_t honoured; /* claims that hold slots, in the reclaim that is going on */
    int lies;          /* more were seen at one time: no more than the budget hold slots any more */
    struct mcpd_writer_owed owed;
};

struct mcpd_writer {
    const volatile uint32_t *guard;
    pthread_mutex_t mutex;
    struct mcpd_geometry geometry;
    struct mcpd_map control, payload;
    struct mcpd_guarded *guarded; /* of the payload, NULL if that cannot be lost */
    struct mcpd_wctl *wctl;
    _Atomic uint64_t *queue;
    struct mcpd_slot_header *headers;
    uint64_t queue_mask;
    struct mcpd_sleep sleep;
    int shut;
    int frozen; /* while the stream is resized: nothing is acquired or published */
    uint64_t head;
    uint32_t history, holds;
    uint32_t nheld; /* acquired and not published, or held after publishing */
    uint32_t blocked;         /* threads that wait for room, and an event loop that does */
    int armed_blocked;        /* such an event loop */
    int64_t blocked_since_ns; /* when the first of them began */
    int ahead; /* of a lossless reader or group by its depth, at the last reclaim */
    uint32_t oldest, newest; /* ends of the list of published slots */
    uint32_t nfree, *free;   /* a stack: the most recently freed on top */
    struct mcpd_writer_slot *slots;
    uint32_t nreaders;
    struct mcpd_writer_reader *readers; /* MCPD_MAX_READERS */
    uint32_t ngroups;
    struct mcpd_writer_group *groups; /* MCPD_MAX_GROUPS */
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

/* ---- acquire.c ---- */

void mcpd_writer_count_held(mcpd_writer *writer, int change);

/* ---- admission.c ---- */

/* Newest frames that are kept for a reader or group whatever it does. */
static inline uint32_t mcpd_kept_depth(uint32_t policy, uint32_t depth)
{
    return policy == MCPD_FIFO ? depth : 0;
}

/* Slots needed at least, with this much kept and this many pins more; see docs/protocol.md. */
uint64_t mcpd_writer_needed(const mcpd_writer *writer, uint32_t kept, uint32_t max_pins);
/* Whether a pin of a reader of its own holds this tag. */
int mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag);
/*
 * Signals readers that sleep, after a seq_cst store of what they wait for: frame seq, published at
 * publish_ns, which some may not want; UINT64_MAX and INT64_MAX for what all want, an end.
 */
void mcpd_writer_wake_readers(mcpd_writer *writer, uint64_t seq, int64_t publish_ns);
void mcpd_writer_fetch_reader(const mcpd_writer *writer, uint32_t i); /* a hint; i may be too high */

/* ---- groups.c ---- */

struct mcpd_writer_group *mcpd_writer_find_group(mcpd_writer *writer, uint64_t id);
void mcpd_group_join(struct mcpd_writer_group *group, uint32_t max_pins);
void mcpd_group_release(struct mcpd_writer_group *group);
void mcpd_group_leave(struct mcpd_writer_group *group, uint32_t max_pins);
/* Takes back slots that were reckoned for claims of members that are gone, as far as they are. */
void mcpd_writer_settle_groups(mcpd_writer *writer);
/* Marks the groups that are found out to claim more slots than were reckoned for them. */
void mcpd_writer_audit_groups(mcpd_writer *writer);
/* Begins a reclaim: counts the claims that hold slots from here on. */
void mcpd_writer_begin_claims(mcpd_writer *writer);
/* Whether a claim holds the slot with frame seq. */
int mcpd_writer_claimed(mcpd_writer *writer, uint64_t seq, uint32_t slot);
void mcpd_group_close(struct mcpd_writer_group *group);

/* ---- retention.c ---- */

/* Adds a slot just published as the newest. */
void mcpd_writer_append(mcpd_writer *writer, uint32_t index);
/* Moves every published slot that is not retained to the stack of free ones. */
void mcpd_writer_reclaim(mcpd_writer *writer);

#endif
