/*
 * What the files of the stream share: mappings, sleeping, the daemon's part. Not installed.
 */
#ifndef MCPD_STREAM_H
#define MCPD_STREAM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "mcpd.h"

/* ---- map.c: memory ------------------------------------------------------------------------- */

struct mcpd_map {
    void *base;
    size_t nbytes;
};

/* 0, or -EINVAL when the object is smaller than nbytes. */
int mcpd_size_check(int fd, size_t nbytes);
/*
 * Maps the first nbytes of fd, shared, every page touched, not inherited over fork. -EINVAL when
 * the object is smaller than that: it would raise SIGBUS later.
 */
int mcpd_map_open(struct mcpd_map *map, int fd, size_t nbytes, int writable);
void mcpd_map_close(struct mcpd_map *map); /* does nothing to a map that is not open */

/*
 * A word that is 1 in the process that made it and 0 in its forked children, which lack the
 * mappings: calls look at it first and give -ECHILD there. Costs a load, where getpid() costs a
 * system call.
 */
int mcpd_guard_open(const volatile uint32_t **guard);
void mcpd_guard_close(const volatile uint32_t *guard);

int mcpd_geometry_check(const struct mcpd_geometry *geometry); /* 0 or -EINVAL */
/* 0, or -EINVAL for a policy that is unknown or a depth that does not go with it. */
int mcpd_policy_check(uint32_t policy, uint32_t depth);
/* -EPROTONOSUPPORT unless the object says that it is one of this ABI. */
int mcpd_control_check(uint64_t magic_seen, uint64_t magic, uint32_t abi);

/* ---- wake.c: sleeping and waking ----------------------------------------------------------- */

/*
 * One side's way to sleep. Its functions are called under the mutex of the handle it is part of,
 * but for mcpd_sleep_poll. Several threads may sleep on one, and an event loop at the same time
 * (armed). Rule that keeps them from losing a wake-up: whoever found something calls
 * mcpd_sleep_pass_on, because the signal that it drained was meant for all.
 */
struct mcpd_sleep {
    _Atomic uint32_t *epoch; /* in the control object: odd asleep, even awake */
    uint32_t value;          /* what it holds; never read back */
    int fd;                  /* eventfd, our own duplicate */
    uint32_t waiting;        /* threads that are asleep */
    int stale;               /* fd may hold signals of sleeps that are over */
    int armed;               /* an event loop is asleep */
};

int64_t mcpd_now_ns(void); /* CLOCK_MONOTONIC */
/* The time at which a wait of timeout_ns is over; INT64_MAX: never. */
int64_t mcpd_deadline_ns(int64_t timeout_ns);

int mcpd_wake_dup(int fd); /* non-blocking, close-on-exec duplicate, or -errno */
void mcpd_wake_signal(int fd);
/* Signals a peer that sleeps, once for each of its sleeps; 1 if it did, else 0. */
int mcpd_wake_seen(uint32_t seen, uint32_t *signalled, int fd); /* whose epoch was seen to be this */
int mcpd_wake_peer(const _Atomic uint32_t *epoch, uint32_t *signalled, int fd);

void mcpd_sleep_begin(struct mcpd_sleep *sleep); /* then look again, before polling */
/* 1: signalled, 0: time is over, -EINTR: a signal handler ran. Called without the mutex. */
int mcpd_sleep_poll(int fd, int64_t deadline_ns);
void mcpd_sleep_finish(struct mcpd_sleep *sleep); /* then look again */
void mcpd_sleep_pass_on(struct mcpd_sleep *sleep);
int mcpd_sleep_arm(struct mcpd_sleep *sleep); /* then look again; renews if armed, 1: signalled */
int mcpd_sleep_disarm(struct mcpd_sleep *sleep); /* 1 if there was a signal */

/* ---- control.c: the daemon's part ---------------------------------------------------------- */

void mcpd_wctl_format(struct mcpd_wctl *wctl, const struct mcpd_geometry *geometry);
void mcpd_rctl_format(struct mcpd_rctl *rctl, const struct mcpd_geometry *geometry,
                      uint64_t reader_id, uint32_t max_pins);
void mcpd_gctl_format(struct mcpd_gctl *gctl, const struct mcpd_geometry *geometry,
                      uint64_t group_id);
/*
 * Member is gone: what it had claimed goes back to the group, or is done with if there are no others,
 * like all that was returned before. Returns how many claims those were.
 */
uint32_t mcpd_gctl_sweep(struct mcpd_gctl *gctl, uint32_t nslots, uint32_t member, int others);
/* Marks the stream ended; 0 if it was already. Waking whoever sleeps is the caller's part. */
int mcpd_wctl_end(struct mcpd_wctl *wctl, enum mcpd_end reason);

/* ---- for the binding ----------------------------------------------------------------------- */

/* Acquire that neither waits nor counts; errors as mcpd_writer_acquire. */
int mcpd_writer_try(mcpd_writer *writer);
/* Every later and every waiting call gives -ECANCELED; the mapping stays until close. */
void mcpd_writer_shut(mcpd_writer *writer);
/* While frozen, acquire finds no room and publish gives -EINPROGRESS; readers are still admitted. */
void mcpd_writer_freeze(mcpd_writer *writer, int frozen);
void mcpd_reader_shut(mcpd_reader *reader);
int mcpd_writer_fileno(const mcpd_writer *writer);
int mcpd_reader_fileno(const mcpd_reader *reader);
const struct mcpd_wctl *mcpd_writer_counters(mcpd_writer *writer); /* NULL in a forked child */
const struct mcpd_rctl *mcpd_reader_counters(mcpd_reader *reader); /* NULL in a forked child */
/* Whether another member has a frame in work that may come back to the group; 0 of a reader alone. */
int mcpd_reader_others_busy(mcpd_reader *reader);
/* The slot that a pin names, or -EINVAL. */
int mcpd_reader_pinned(mcpd_reader *reader, uint32_t pin);
int mcpd_writer_ended(mcpd_writer *writer);

#endif
