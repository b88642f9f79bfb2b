/* Readers and groups of a writer: who is admitted, and who leaves. */
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static struct peer *find(struct peer *peers, uint64_t id)
{
    for (uint32_t k = 0; k < MAX_READERS; k++)
        if (peers[k].used && peers[k].id == id)
            return &peers[k];
    return NULL;
}

static struct peer *unused(struct peer *peers)
{
    for (uint32_t k = 0; k < MAX_READERS; k++)
        if (!peers[k].used)
            return &peers[k];
    return NULL;
}

/* Newest frames that stay for who has these terms, read or not. */
static uint32_t kept_for(const struct terms *terms)
{
    return terms->policy == POLICY_FIFO ? terms->depth : 0;
}

/* Whether the slots are enough for who is here and for one more with these pins, for whom so many stay. */
static bool room_for(struct second_writer *w, uint32_t max_pins, uint32_t kept)
{
    uint64_t newest = kept > w->history ? kept : w->history, pins = max_pins;
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        const struct peer *r = &w->readers[k], *g = &w->groups[k];
        if (r->used) {
            pins += r->terms.max_pins;
            if (!r->terms.group && kept_for(&r->terms) > newest)
                newest = kept_for(&r->terms);
        }
        if (g->used) {
            recount_claims(w, &w->groups[k]);
            pins += g->kept;
            if (kept_for(&g->terms) > newest)
                newest = kept_for(&g->terms);
        }
    }
    return w->g.nslots >= newest + pins + w->holds + 1;
}

static int check_policy(const struct terms *terms)
{
    switch (terms->policy) {
    case POLICY_LATEST:
        return terms->depth ? -EINVAL : 0;
    case POLICY_LOSSLESS:
        return terms->depth <= MAX_SLOTS ? 0 : -EINVAL;
    case POLICY_FIFO:
        return terms->depth >= 1 && terms->depth <= MAX_SLOTS ? 0 : -EINVAL;
    default:
        return -EINVAL;
    }
}

static int64_t first_owed(struct second_writer *w, const struct terms *terms)
{
    return terms->policy == POLICY_LATEST ? 0 : (int64_t)w->head + 1;
}

int64_t second_writer_add_group(struct second_writer *w, int control, const struct terms *terms)
{
    if (check_policy(terms) || !terms->group)
        return -EINVAL;
    if (find(w->groups, terms->group))
        return -EEXIST;
    struct peer *p = unused(w->groups);
    if (!p)
        return -EUSERS;
    if (!room_for(w, 0, kept_for(terms)))
        return -ENOSPC;
    struct mapping m;
    int rc = map(control, group_control_nbytes(w->g.nslots), false, &m);
    if (rc)
        return rc;
    if ((rc = check_magic(&m, GROUP_MAGIC))) {
        unmap(&m);
        return rc;
    }
    *p = (struct peer){.used = true, .id = terms->group, .terms = *terms, .control = m,
                       .wake = -1, .cursor = w->head + 1};
    return first_owed(w, terms);
}

int second_writer_remove_group(struct second_writer *w, uint64_t group)
{
    struct peer *p = find(w->groups, group);
    if (!p)
        return -ENOENT;
    for (uint32_t k = 0; k < MAX_READERS; k++)
        if (w->readers[k].used && w->readers[k].terms.group == group)
            return -EBUSY;
    unmap(&p->control);
    *p = (struct peer){0};
    signal_sleeper(&w->shared->writer_epoch, &w->signalled, w->wake);
    return 0;
}

int64_t second_writer_add_reader(struct second_writer *w, uint64_t id, int control, int wake,
                                 const struct terms *terms)
{
    if (terms->max_pins < 1 || terms->max_pins > MAX_PINS || terms->member >= MAX_READERS)
        return -EINVAL;
    if (check_policy(terms))
        return -EINVAL;
    if (find(w->readers, id))
        return -EEXIST;
    struct peer *group = NULL;
    if (terms->group) {
        group = find(w->groups, terms->group);
        if (!group || group->left)
            return -ENOENT;
        for (uint32_t k = 0; k < MAX_READERS; k++)
            if (w->readers[k].used && w->readers[k].terms.group == terms->group &&
                w->readers[k].terms.member == terms->member)
                return -EEXIST;
    }
    struct peer *p = unused(w->readers);
    if (!p)
        return -EUSERS;
    if (!room_for(w, terms->max_pins, terms->group ? 0 : kept_for(terms)))
        return -ENOSPC;
    struct mapping m;
    int rc = map(control, reader_control_nbytes(terms->max_pins), false, &m);
    if (rc)
        return rc;
    int own = -1;
    if ((rc = check_magic(&m, READER_MAGIC)) || (own = fcntl(wake, F_DUPFD_CLOEXEC, 3)) < 0) {
        rc = rc ? rc : -errno;
        unmap(&m);
        return rc;
    }
    *p = (struct peer){.used = true, .id = id, .terms = *terms, .control = m, .wake = own,
                       .cursor = w->head + 1};
    if (group)
        group->pins += terms->max_pins;
    return terms->group ? 0 : first_owed(w, terms);
}

/* A group is owed nothing once all its members are released or gone. */
static void member_leaves(struct second_writer *w, const struct peer *member)
{
    struct peer *group = find(w->groups, member->terms.group);
    if (!group)
        return;
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        const struct peer *other = &w->readers[k];
        if (other != member && other->used && !other->released &&
            other->terms.group == group->id)
            return;
    }
    group->left = true;
}

int second_writer_release_reader(struct second_writer *w, uint64_t id)
{
    struct peer *p = find(w->readers, id);
    if (!p)
        return -ENOENT;
    p->released = true;
    member_leaves(w, p);
    signal_sleeper(&w->shared->writer_epoch, &w->signalled, w->wake);
    return 0;
}

int second_writer_remove_reader(struct second_writer *w, uint64_t id)
{
    struct peer *p = find(w->readers, id);
    if (!p)
        return -ENOENT;
    struct peer *group = find(w->groups, p->terms.group);
    uint32_t pins = p->terms.max_pins;
    member_leaves(w, p);
    unmap(&p->control);
    close(p->wake);
    *p = (struct peer){0};
    if (group) {
        group->pins -= pins;
        group->kept += pins;
        recount_claims(w, group);
    }
    signal_sleeper(&w->shared->writer_epoch, &w->signalled, w->wake);
    return 0;
}
