/* The second implementation behind the conformance program. */
#include "ends.h"

static int writer_open(const struct geometry *g, int control, int payload, int wake,
                       uint32_t history, uint32_t holds, void **out)
{
    return second_writer_open(g, control, payload, wake, history, holds,
                              (struct second_writer **)out);
}
static int64_t add_group(void *w, int control, const struct terms *terms)
{
    return second_writer_add_group(w, control, terms);
}
static int64_t add_reader(void *w, uint64_t id, int control, int wake, const struct terms *terms)
{
    return second_writer_add_reader(w, id, control, wake, terms);
}
static int64_t publish(void *w, uint32_t slot, const struct meta *meta, bool hold)
{
    return second_writer_publish(w, slot, meta, hold);
}
static int end(void *w, uint32_t reason) { return second_writer_end(w, reason); }
static int reader_open(const struct geometry *g, const struct reader_objects *objects,
                       const struct terms *terms, uint64_t start_seq,
                       const struct thinning *thinning, void **out)
{
    return second_reader_open(g, objects, terms, start_seq, thinning,
                              (struct second_reader **)out);
}
static int next(void *r, int64_t timeout_ns, struct meta *meta)
{
    return second_reader_next(r, timeout_ns, meta);
}
static int recent(void *r, uint32_t count, uint32_t *pins, struct meta *metas)
{
    return second_reader_recent(r, count, pins, metas);
}
static void writer_close(void *w) { second_writer_close(w); }
static int remove_group(void *w, uint64_t group) { return second_writer_remove_group(w, group); }
static int release_reader(void *w, uint64_t id) { return second_writer_release_reader(w, id); }
static int remove_reader(void *w, uint64_t id) { return second_writer_remove_reader(w, id); }
static int acquire(void *w, int64_t timeout_ns) { return second_writer_acquire(w, timeout_ns); }
static void *writer_slot(void *w, uint32_t slot) { return second_writer_slot(w, slot); }
static void *writer_description(void *w, uint32_t slot) { return second_writer_description(w, slot); }
static int abandon(void *w, uint32_t slot) { return second_writer_abandon(w, slot); }
static int release(void *w, uint32_t slot) { return second_writer_release(w, slot); }
static int arm_writer(void *w) { return second_writer_arm(w); }
static int disarm_writer(void *w) { return second_writer_disarm(w); }
static void reader_close(void *r) { second_reader_close(r); }
static const void *reader_slot(void *r, uint32_t pin) { return second_reader_slot(r, pin); }
static const void *reader_description(void *r, uint32_t pin) { return second_reader_description(r, pin); }
static int unpin(void *r, uint32_t pin) { return second_reader_unpin(r, pin); }
static int give_back(void *r, uint32_t pin) { return second_reader_give_back(r, pin); }
static int arm(void *r) { return second_reader_arm(r); }
static int disarm(void *r) { return second_reader_disarm(r); }
static int ended(void *r) { return second_reader_ended(r); }

const struct ends second_ends = {
    .name = "second",
    .writer_open = writer_open, .writer_close = writer_close, .add_group = add_group,
    .remove_group = remove_group, .add_reader = add_reader, .release_reader = release_reader,
    .remove_reader = remove_reader, .acquire = acquire, .writer_slot = writer_slot,
    .writer_description = writer_description, .publish = publish, .abandon = abandon,
    .release = release, .arm_writer = arm_writer, .disarm_writer = disarm_writer, .end = end,
    .reader_open = reader_open, .reader_close = reader_close, .next = next, .recent = recent,
    .reader_slot = reader_slot, .reader_description = reader_description, .unpin = unpin,
    .give_back = give_back, .arm = arm, .disarm = disarm, .ended = ended,
};
