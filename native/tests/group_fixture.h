/* A group of readers as the daemon makes it, and its members, for the tests. */
#ifndef GROUP_FIXTURE_H
#define GROUP_FIXTURE_H

#include "fixture.h"

struct group {
    uint64_t id;
    int control;
    uint32_t policy, depth, members, nslots;
    struct mcpd_gctl *gctl; /* the tests' own mapping */
    _Atomic uint64_t *claims;
    int64_t start;
};

static inline void group_make(struct stream *s, struct group *g, enum mcpd_policy policy,
                              uint32_t depth)
{
    memset(g, 0, sizeof *g);
    g->id = 100 + ++s->last_id;
    g->policy = policy;
    g->depth = depth;
    g->nslots = s->geometry.nslots;
    g->control = object_new("gctl", mcpd_group_control_nbytes(g->nslots));
    g->gctl = object_map(g->control, mcpd_group_control_nbytes(g->nslots));
    g->claims = (_Atomic uint64_t *)((uint8_t *)g->gctl + MCPD_GCTL_CLAIMS);
    mcpd_gctl_format(g->gctl, &s->geometry, g->id);
}

static inline int64_t group_admit(struct stream *s, struct group *g)
{
    struct mcpd_admission admission = {.group = g->id, .policy = g->policy, .depth = g->depth};
    return g->start = mcpd_writer_add_group(s->writer, g->control, &admission);
}

static inline void group_open(struct stream *s, struct group *g, enum mcpd_policy policy,
                              uint32_t depth)
{
    group_make(s, g, policy, depth);
    CHECK(group_admit(s, g) >= 0);
    uint64_t head = mcpd_load_relaxed(&s->wctl->head);
    if (head < s->geometry.first_seq)
        head = s->geometry.first_seq;
    mcpd_store_seq_cst(&g->gctl->cursor, policy == MCPD_LATEST ? head : (uint64_t)g->start);
}

static inline void group_close(struct group *g)
{
    munmap(g->gctl, (size_t)mcpd_group_control_nbytes(g->nslots));
    close(g->control);
}

/* The daemon's half of joining a group. */
static inline void member_make(struct stream *s, struct group *g, struct attached *r,
                               uint32_t max_pins)
{
    reader_make(s, r, (enum mcpd_policy)g->policy, max_pins);
    r->admission.depth = g->depth;
    r->admission.group = g->id;
    r->admission.member = g->members++;
    r->group_fd = g->control;
}

static inline void join(struct stream *s, struct group *g, struct attached *r, uint32_t max_pins)
{
    member_make(s, g, r, max_pins);
    attach_made(s, r);
}

static inline uint64_t claim_of(struct stream *s, struct group *g, uint64_t seq)
{
    return mcpd_load_seq_cst(&g->claims[MCPD_TAG_LOW(mcpd_load_acquire(queue_of(s, seq)))]);
}

#endif
