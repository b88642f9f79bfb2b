/*
 * A second implementation of the stream, to prove that docs/protocol.md is enough to write one. For
 * tests alone: plain code in the order of the page's steps, one thread for each handle. Functions
 * return 0 or a count, or a negative errno.
 *
 * Every numbered step of the page ends with STEP("name 3"): a test may stop a process exactly there.
 */
#ifndef SECOND_H
#define SECOND_H

#include <stdbool.h>

#include "layout.h"

enum policy { POLICY_LATEST = 1, POLICY_FIFO = 2, POLICY_LOSSLESS = 3 };

struct geometry {
    uint64_t stream, generation, slot_nbytes, first_seq;
    uint32_t nslots;
};

/* What a reader or a group is admitted with. */
struct terms {
    uint64_t group;
    uint32_t member, max_pins, policy, depth;
};

struct thinning {
    uint32_t every_n, skip_expired;
    int64_t interval_ns;
};

struct reader_objects {
    int writer_control, payload, control, wake, writer_wake, group;
};

struct second_writer;
struct second_reader;

extern void (*second_step)(const char *name);
#define STEP(name) do { if (second_step) second_step(name); } while (0)

int second_writer_open(const struct geometry *g, int control, int payload, int wake,
                       uint32_t history, uint32_t holds, struct second_writer **out);
void second_writer_close(struct second_writer *w);
int64_t second_writer_add_group(struct second_writer *w, int control, const struct terms *terms);
int second_writer_remove_group(struct second_writer *w, uint64_t group);
int64_t second_writer_add_reader(struct second_writer *w, uint64_t id, int control, int wake,
                                 const struct terms *terms);
int second_writer_release_reader(struct second_writer *w, uint64_t id);
int second_writer_remove_reader(struct second_writer *w, uint64_t id);
int second_writer_acquire(struct second_writer *w, int64_t timeout_ns);
void *second_writer_slot(struct second_writer *w, uint32_t slot);
struct description *second_writer_description(struct second_writer *w, uint32_t slot);
int64_t second_writer_publish(struct second_writer *w, uint32_t slot, const struct meta *meta,
                              bool hold);
int second_writer_abandon(struct second_writer *w, uint32_t slot);
int second_writer_release(struct second_writer *w, uint32_t slot);
int second_writer_arm(struct second_writer *w);
int second_writer_disarm(struct second_writer *w);
int second_writer_end(struct second_writer *w, uint32_t reason);

int second_reader_open(const struct geometry *g, const struct reader_objects *objects,
                       const struct terms *terms, uint64_t start_seq,
                       const struct thinning *thinning, struct second_reader **out);
void second_reader_close(struct second_reader *r);
int second_reader_next(struct second_reader *r, int64_t timeout_ns, struct meta *meta);
int second_reader_recent(struct second_reader *r, uint32_t count, uint32_t *pins,
                         struct meta *metas);
const void *second_reader_slot(struct second_reader *r, uint32_t pin);
const struct description *second_reader_description(struct second_reader *r, uint32_t pin);
int second_reader_unpin(struct second_reader *r, uint32_t pin);
int second_reader_give_back(struct second_reader *r, uint32_t pin);
int second_reader_arm(struct second_reader *r);
int second_reader_disarm(struct second_reader *r);
int second_reader_ended(struct second_reader *r);

#endif
