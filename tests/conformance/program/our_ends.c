/* Our implementation, native/src/ through mcpd.h, behind the conformance program. */
#include "ends.h"
#include "mcpd.h"

#include <string.h>

_Static_assert(sizeof(struct meta) == sizeof(struct mcpd_meta), "meta");

static struct mcpd_geometry geometry_of(const struct geometry *g)
{
    return (struct mcpd_geometry){.stream_id = g->stream, .generation = g->generation,
                                  .slot_nbytes = g->slot_nbytes, .first_seq = g->first_seq,
                                  .nslots = g->nslots};
}

static struct mcpd_admission admission_of(const struct terms *t)
{
    return (struct mcpd_admission){.group = t->group, .member = t->member,
                                   .max_pins = t->max_pins, .policy = t->policy,
                                   .depth = t->depth};
}

static int writer_open(const struct geometry *g, int control, int payload, int wake,
                       uint32_t history, uint32_t holds, void **out)
{
    struct mcpd_geometry geometry = geometry_of(g);
    return mcpd_writer_open(&geometry, control, payload, wake, history, holds,
                            (mcpd_writer **)out);
}
static int64_t add_group(void *w, int control, const struct terms *terms)
{
    struct mcpd_admission admission = admission_of(terms);
    return mcpd_writer_add_group(w, control, &admission);
}
static int64_t add_reader(void *w, uint64_t id, int control, int wake, const struct terms *terms)
{
    struct mcpd_admission admission = admission_of(terms);
    return mcpd_writer_add_reader(w, id, control, wake, &admission);
}
static int64_t publish(void *w, uint32_t slot, const struct meta *meta, bool hold)
{
    struct mcpd_meta ours;
    memcpy(&ours, meta, sizeof ours);
    return mcpd_writer_publish(w, slot, &ours, hold);
}
static int end(void *w, uint32_t reason) { return mcpd_writer_end(w, (enum mcpd_end)reason); }
static int reader_open(const struct geometry *g, const struct reader_objects *objects,
                       const struct terms *terms, uint64_t start_seq,
                       const struct thinning *thinning, void **out)
{
    struct mcpd_geometry geometry = geometry_of(g);
    struct mcpd_admission admission = admission_of(terms);
    struct mcpd_reader_fds fds = {.writer_control = objects->writer_control,
                                  .payload = objects->payload, .control = objects->control,
                                  .wake = objects->wake, .writer_wake = objects->writer_wake,
                                  .group = objects->group};
    struct mcpd_thinning thin = {0};
    if (thinning)
        thin = (struct mcpd_thinning){.every_n = thinning->every_n,
                                      .skip_expired = thinning->skip_expired,
                                      .interval_ns = thinning->interval_ns};
    return mcpd_reader_open(&geometry, &fds, &admission, start_seq, thinning ? &thin : NULL,
                            (mcpd_reader **)out);
}
static int next(void *r, int64_t timeout_ns, struct meta *meta)
{
    struct mcpd_meta ours;
    int rc = mcpd_reader_next(r, timeout_ns, &ours);
    if (rc >= 0)
        memcpy(meta, &ours, sizeof *meta);
    return rc;
}
static int recent(void *r, uint32_t count, uint32_t *pins, struct meta *metas)
{
    struct mcpd_meta ours[256];
    if (count > 256)
        count = 257; /* more than any reader has pins: refused before one is written */
    int n = mcpd_reader_recent(r, count, pins, ours);
    for (int k = 0; k < n; k++)
        memcpy(&metas[k], &ours[k], sizeof *metas);
    return n;
}
static void writer_close(void *w) { mcpd_writer_close(w); }
static int remove_group(void *w, uint64_t group) { return mcpd_writer_remove_group(w, group); }
static int release_reader(void *w, uint64_t id) { return mcpd_writer_release_reader(w, id); }
static int remove_reader(void *w, uint64_t id) { return mcpd_writer_remove_reader(w, id); }
static int acquire(void *w, int64_t timeout_ns) { return mcpd_writer_acquire(w, timeout_ns); }
static void *writer_slot(void *w, uint32_t slot) { return mcpd_writer_slot(w, slot); }
static void *writer_description(void *w, uint32_t slot) { return mcpd_writer_description(w, slot); }
static int abandon(void *w, uint32_t slot) { return mcpd_writer_abandon(w, slot); }
static int release(void *w, uint32_t slot) { return mcpd_writer_release(w, slot); }
static int arm_writer(void *w) { return mcpd_writer_arm(w); }
static int disarm_writer(void *w) { return mcpd_writer_disarm(w); }
static void reader_close(void *r) { mcpd_reader_close(r); }
static const void *reader_slot(void *r, uint32_t pin) { return mcpd_reader_slot(r, pin); }
static const void *reader_description(void *r, uint32_t pin) { return mcpd_reader_description(r, pin); }
static int unpin(void *r, uint32_t pin) { return mcpd_reader_unpin(r, pin); }
static int give_back(void *r, uint32_t pin) { return mcpd_reader_give_back(r, pin); }
static int arm(void *r) { return mcpd_reader_arm(r); }
static int disarm(void *r) { return mcpd_reader_disarm(r); }
static int ended(void *r) { return mcpd_reader_ended(r); }

const struct ends our_ends = {
    .name = "ours",
    .writer_open = writer_open, .writer_close = writer_close, .add_group = add_group,
    .remove_group = remove_group, .add_reader = add_reader, .release_reader = release_reader,
    .remove_reader = remove_reader, .acquire = acquire, .writer_slot = writer_slot,
    .writer_description = writer_description, .publish = publish, .abandon = abandon,
    .release = release, .arm_writer = arm_writer, .disarm_writer = disarm_writer, .end = end,
    .reader_open = reader_open, .reader_close = reader_close, .next = next, .recent = recent,
    .reader_slot = reader_slot, .reader_description = reader_description, .unpin = unpin,
    .give_back = give_back, .arm = arm, .disarm = disarm, .ended = ended,
};
