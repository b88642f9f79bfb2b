/*
 * The reader as its files see it: reader.c (opening, sleeping), take.c (which frame is next), claims.c
 * (the same for a member of a group), thinning.c (frames it passes over) and pinning.c (pins, and what
 * they are counted by). All of it is private memory of the reader's process; functions here are called
 * under the mutex.
 */
#ifndef MCPD_READER_H
#define MCPD_READER_H

#include <errno.h>
#include <pthread.h>

#include "guard.h"
#include "layout.h"
#include "stream.h"

/* Lost races in one call until the other side counts as dishonest: an honest one gets on by each. */
#ifndef MCPD_MAX_RETRIES
#define MCPD_MAX_RETRIES 16384
#endif

/* What mcpd_reader_wants says of a frame that was looked at. */
enum mcpd_verdict { MCPD_WANTED, MCPD_EARLY, MCPD_EXPIRED };

struct mcpd_reader_pin {
    uint64_t seq; /* 0: not in use */
    uint32_t slot;
    int64_t since_ns;
};

struct mcpd_reader {
    const volatile uint32_t *guard;
    pthread_mutex_t mutex;
    struct mcpd_geometry geometry;
    struct mcpd_map writer_control, payload, control, group_control;
    struct mcpd_guarded *guarded; /* of the payload, NULL if that cannot be lost */
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
    uint32_t policy, depth;
    struct mcpd_thinning thinning; /* every_n is at least 1 */
    uint64_t wanted;  /* of its own: the lowest number it wants; as rctl->cursor says */
    uint64_t unasked; /* how many before that it did not ask for, not counted yet */
    int64_t due_ns;   /* wants none published before this; 0: whenever */
    int more;         /* the latest take gave up on a stream of frames that it passed over */
    int64_t usual_wait_ns; /* how long the latest waits took, each a quarter of the one after it */
    uint32_t max_pins, nfree;
    struct mcpd_reader_pin *pins;
    uint32_t *free; /* a stack of pins not in use */
    int64_t pinned_since_ns; /* when the oldest of its pins was put; 0: there is none */
    /* of a member: */
    struct mcpd_gctl *gctl; /* NULL: a reader of its own */
    _Atomic uint64_t *claims;
    uint32_t member;
    uint32_t looked; /* gctl->returned when no returned claim was left */
    int unsettled;   /* but for one of which it was not to be seen whether it still stands */
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

static inline uint32_t mcpd_reader_top_pin(const mcpd_reader *reader)
{
    return reader->free[reader->nfree - 1];
}

/* ---- take.c ---- */

/*
 * Whether there is something to pin, and the newest frame: 1, or -EAGAIN, or why not. `ended` is read
 * before head, so that what was published before the end is seen. Both loads pair with the writer's
 * seq_cst stores, as the look that must follow the sleeper's exchange of its epoch.
 */
int mcpd_reader_ready(mcpd_reader *reader, uint64_t *head);
/* Pins the next frame by the policy: its pin, or as mcpd_reader_next without waiting. */
int mcpd_reader_take(mcpd_reader *reader, struct mcpd_meta *meta);
/* The lowest number above the newest `depth` that a reader asks for who wants none below `wanted`. */
uint64_t mcpd_within_depth(uint64_t wanted, uint64_t head, uint32_t depth, uint32_t every_n);
/* The slot that the queue names for frame seq: -ESTALE if none, -EBADMSG if none that there can be. */
int mcpd_reader_find(const mcpd_reader *reader, uint64_t seq);
/* Whether the writer may be only so far ahead of it, so that coming to a frame makes room as well. */
static inline int mcpd_reader_bounds(const mcpd_reader *reader)
{
    return reader->policy == MCPD_LOSSLESS && reader->depth != 0;
}

/* Signals a writer that waits for room, after a seq_cst store that made some. */
void mcpd_reader_made_room(mcpd_reader *reader);

/* ---- thinning.c ---- */

int mcpd_thinning_check(const struct mcpd_thinning *thinning); /* 0 or -EINVAL */
enum mcpd_verdict mcpd_reader_wants(const mcpd_reader *reader, const struct mcpd_meta *meta,
                                    int64_t now_ns);
/* Counts what lies between the frames it had and frame seq, on which the verdict is this. */
void mcpd_reader_count_missed(mcpd_reader *reader, uint64_t seq, enum mcpd_verdict verdict);
/* Frame seq is the reader's: which it wants next. Returns whether others before that are given up. */
int mcpd_reader_want_next(mcpd_reader *reader, uint64_t seq, int64_t publish_ns);
/* Says so in its control object. */
void mcpd_reader_store_wants(mcpd_reader *reader);

/* ---- claims.c ---- */

/* As mcpd_reader_ready and mcpd_reader_take, of a member. */
int mcpd_member_ready(mcpd_reader *reader, uint64_t *head);
int mcpd_member_take(mcpd_reader *reader, struct mcpd_meta *meta);
/* Ends its claim of frame seq: state DONE, or RETURNED for another member to take over. */
void mcpd_member_let_go(mcpd_reader *reader, uint64_t seq, uint32_t slot, uint32_t state);

/* ---- pinning.c ---- */

/*
 * Whether the slot still holds frame seq, asked after a pin was put on it; copies the metadata. 0,
 * -ESTALE when it has moved on, -EBADMSG when the metadata cannot be.
 */
int mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                        struct mcpd_meta *meta);
/* Copies the metadata of a slot that is known to hold frame seq: 0 or -EBADMSG. */
int mcpd_reader_copy_meta(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                          struct mcpd_meta *meta);
/* The frame is pinned by the top pin and goes to the caller: counts it; returns the pin. */
int mcpd_reader_deliver(mcpd_reader *reader, uint32_t slot, const struct mcpd_meta *meta,
                        int64_t now_ns);
/* Takes off a pin that is in use; a member's claim becomes `state`, DONE or RETURNED. */
void mcpd_reader_take_off(mcpd_reader *reader, uint32_t pin, uint32_t state);

#endif
