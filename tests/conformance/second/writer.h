/* The writer's own record of its slots, readers and groups. */
#ifndef SECOND_WRITER_H
#define SECOND_WRITER_H

#include "common.h"

struct slot_record {
    enum { RECORD_FREE, RECORD_ACQUIRED, RECORD_PUBLISHED } is;
    bool held;    /* published, and the writer still looks at it */
    uint64_t seq; /* of its last publish, 0 before */
};

/* A group, or a reader. */
struct peer {
    bool used, released;
    uint64_t id;
    struct terms terms;
    struct mapping control;
    int wake;           /* of a reader */
    uint32_t signalled; /* the reader's epoch that was signalled last */
    uint64_t cursor;    /* highest seen, within its bounds */
    bool left;          /* a group: the last member that was not released has gone */
    uint32_t pins, kept; /* a group: pins of its members; of those removed whose claims remain */
    bool lies;          /* a group: it held more slots at one time than were reckoned for it */
    uint32_t claims;    /* a group: its claims honoured in this round of reclaiming */
};

struct second_writer {
    struct geometry g;
    struct mapping control, payload;
    struct writer_control *shared;
    _Atomic uint64_t *queue;
    struct slot_header *headers;
    int wake;
    uint32_t history, holds, held;
    uint32_t signalled; /* our own epoch, when we signal ourselves */
    uint64_t head;
    int64_t waiting_since; /* 0: not waiting */
    struct slot_record *records;
    uint32_t *stack, nfree;
    uint32_t *published, npublished; /* oldest first */
    struct peer readers[MAX_READERS], groups[MAX_READERS];
};

/* Counts anew what removed members have left claimed, and begins to count the claims honoured. */
void recount_claims(struct second_writer *w, struct peer *group);
/* For a writer that finds nothing free: whether a group now turns out to lie. */
bool find_liars(struct second_writer *w);
/* Frees every published slot that nothing retains, oldest first. */
void reclaim_all(struct second_writer *w);
/* Whether a lossless reader or group has as many unread as its depth; after reclaim_all. */
bool too_far_ahead(const struct second_writer *w);

#endif
