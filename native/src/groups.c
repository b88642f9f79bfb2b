/*
 * The writer's groups: what a group is owed together, and which slots its members' claims hold.
 *
 * A group's control object is mapped read-only and read as what its members say. Members that lie
 * hold no more slots than were reckoned for them when they were admitted.
 */
#include <unistd.h>

#include "atomics.h"
#include "steps.h"
#include "writer.h"

struct mcpd_writer_group *mcpd_writer_find_group(mcpd_writer *writer, uint64_t id)
{
    for (uint32_t i = 0; i < writer->ngroups; i++)
        if (writer->groups[i].id == id)
            return &writer->groups[i];
    return NULL;
}

/* ---- groups that come and go ----------------------------------------------------------------- */

static int admit(mcpd_writer *writer, const struct mcpd_admission *admission)
{
    if (writer->shut)
        return -ECANCELED;
    if (mcpd_writer_find_group(writer, admission->group) != NULL)
        return -EEXIST;
    if (writer->ngroups == MCPD_MAX_GROUPS)
        return -EUSERS;
    mcpd_writer_settle_groups(writer);
    uint32_t kept = mcpd_kept_depth(admission->policy, admission->depth);
    uint64_t needed = mcpd_writer_needed(writer, kept, 0);
    return needed > writer->geometry.nslots ? -ENOSPC : 0;
}

int64_t mcpd_writer_add_group(mcpd_writer *writer, int control_fd,
                              const struct mcpd_admission *admission)
{
    if (admission->group == 0 || mcpd_policy_check(admission->policy, admission->depth) != 0)
        return -EINVAL;
    if (!*writer->guard)
        return -ECHILD;
    struct mcpd_writer_group entry = {.id = admission->group};
    int result = mcpd_map_open(&entry.control, control_fd,
                               mcpd_gctl_nbytes(writer->geometry.nslots), 0);
    if (result != 0)
        return result;
    entry.gctl = entry.control.base;
    entry.claims =
        (const _Atomic uint64_t *)((const uint8_t *)entry.control.base + MCPD_GCTL_CLAIMS);
    result = mcpd_control_check(entry.gctl->magic, MCPD_GCTL_MAGIC, entry.gctl->abi);
    pthread_mutex_lock(&writer->mutex);
    if (result == 0)
        result = admit(writer, admission);
    if (result != 0) {
        mcpd_group_close(&entry);
        return mcpd_writer_leave(writer, result);
    }
    int64_t start = (int64_t)writer->head + 1;
    entry.owed = (struct mcpd_writer_owed){.word = &entry.gctl->cursor,
                                           .cursor = (uint64_t)start,
                                           .policy = admission->policy,
                                           .depth = admission->depth};
    writer->groups[writer->ngroups++] = entry;
    MCPD_STEP("writer.group.admitted");
    pthread_mutex_unlock(&writer->mutex);
    return admission->policy == MCPD_LATEST ? 0 : start;
}

int mcpd_writer_remove_group(mcpd_writer *writer, uint64_t id)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    struct mcpd_writer_group *group = mcpd_writer_find_group(writer, id);
    if (group == NULL)
        return mcpd_writer_leave(writer, -ENOENT);
    if (group->members > 0)
        return mcpd_writer_leave(writer, -EBUSY);
    mcpd_group_close(group);
    *group = writer->groups[--writer->ngroups];
    MCPD_STEP("writer.group.removed");
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

void mcpd_group_close(struct mcpd_writer_group *group)
{
    mcpd_map_close(&group->control);
}

/* ---- its members ----------------------------------------------------------------------------- */

void mcpd_group_join(struct mcpd_writer_group *group, uint32_t max_pins)
{
    group->members++;
    group->active++;
    group->max_pins += max_pins;
    group->budget += max_pins;
}

/* Nobody is left whom the group's frames could be owed to; what it had claimed still stands. */
void mcpd_group_release(struct mcpd_writer_group *group)
{
    if (--group->active == 0)
        group->left = 1;
}

/* The budget stays: claims that the member left behind may be another's to take over. */
void mcpd_group_leave(struct mcpd_writer_group *group, uint32_t max_pins)
{
    group->members--;
    group->max_pins -= max_pins;
}

/*
 * Looks at all claims twice. Members go on meanwhile, and what is seen once each may never have stood
 * at the same time. What is seen both times did, in between: a claim that is done stays done.
 */
struct claims_seen {
    uint32_t in_both;  /* that hold a slot */
    uint32_t returned; /* in either */
};

static int holds(const mcpd_writer *writer, uint32_t slot, uint64_t claim)
{
    uint32_t state = MCPD_CLAIM_STATE(claim);
    return MCPD_TAG_SEQ(claim) == writer->slots[slot].seq &&
           writer->slots[slot].state == MCPD_SLOT_PUBLISHED &&
           (state == MCPD_CLAIM_TAKEN || state == MCPD_CLAIM_RETURNED);
}

static struct claims_seen look_twice(const mcpd_writer *writer,
                                     const struct mcpd_writer_group *group)
{
    uint8_t before[MCPD_MAX_SLOTS];
    struct claims_seen seen = {0, 0};
    for (int look = 0; look < 2; look++) {
        for (uint32_t slot = 0; slot < writer->geometry.nslots; slot++) {
            uint64_t claim = mcpd_load_seq_cst(&group->claims[slot]);
            uint8_t now = (uint8_t)holds(writer, slot, claim);
            if (MCPD_CLAIM_STATE(claim) == MCPD_CLAIM_RETURNED)
                now |= 2;
            if (look == 0) {
                before[slot] = now;
                continue;
            }
            seen.in_both += now & before[slot] & 1;
            seen.returned += (now | before[slot]) >> 1;
        }
    }
    return seen;
}

void mcpd_writer_settle_groups(mcpd_writer *writer)
{
    for (uint32_t i = 0; i < writer->ngroups; i++) {
        struct mcpd_writer_group *group = &writer->groups[i];
        if (group->budget == group->max_pins)
            continue;
        uint32_t budget = group->max_pins + look_twice(writer, group).returned;
        if (budget < group->budget)
            group->budget = budget;
    }
}

void mcpd_writer_audit_groups(mcpd_writer *writer)
{
    for (uint32_t i = 0; i < writer->ngroups; i++) {
        struct mcpd_writer_group *group = &writer->groups[i];
        if (!group->lies && look_twice(writer, group).in_both > group->budget)
            group->lies = 1;
    }
}

/* ---- its claims ------------------------------------------------------------------------------ */

void mcpd_writer_begin_claims(mcpd_writer *writer)
{
    for (uint32_t i = 0; i < writer->ngroups; i++)
        writer->groups[i].honoured = 0;
}

int mcpd_writer_claimed(mcpd_writer *writer, uint64_t seq, uint32_t slot)
{
    int claimed = 0;
    for (uint32_t i = 0; i < writer->ngroups; i++) {
        struct mcpd_writer_group *group = &writer->groups[i];
        uint64_t claim = mcpd_load_seq_cst(&group->claims[slot]);
        uint32_t state = MCPD_CLAIM_STATE(claim);
        if (MCPD_TAG_SEQ(claim) != seq ||
            (state != MCPD_CLAIM_TAKEN && state != MCPD_CLAIM_RETURNED) ||
            (group->lies && group->honoured == group->budget))
            continue;
        group->honoured++;
        claimed = 1;
    }
    return claimed;
}
