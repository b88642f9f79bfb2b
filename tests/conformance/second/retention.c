/* Which published slots are retained; reclaiming the others. */
#include "writer.h"

static uint64_t clamped_cursor(struct second_writer *w, struct peer *p, uint64_t cursor)
{
    if (cursor > w->head + 1)
        cursor = w->head + 1;
    if (cursor > p->cursor)
        p->cursor = cursor;
    return p->cursor;
}

static bool owed(struct second_writer *w, const struct peer *p, uint64_t t)
{
    if (!p->used || p->released || p->left || t < p->cursor)
        return false;
    if (p->terms.policy == POLICY_LOSSLESS)
        return true;
    return p->terms.policy == POLICY_FIFO && t + p->terms.depth > w->head;
}

bool too_far_ahead(const struct second_writer *w)
{
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        const struct peer *both[2] = {&w->readers[k], &w->groups[k]};
        for (uint32_t i = 0; i < 2; i++) {
            const struct peer *p = both[i];
            if (!p->used || p->released || p->left || (i == 0 && p->terms.group) ||
                p->terms.policy != POLICY_LOSSLESS || !p->terms.depth)
                continue;
            if (w->head + 1 - p->cursor >= p->terms.depth)
                return true;
        }
    }
    return false;
}

static bool retained(struct second_writer *w, uint32_t slot, uint64_t t)
{
    if (t + w->history > w->head || w->records[slot].held)
        return true;
    for (uint32_t k = 0; k < MAX_READERS; k++)
        if ((!w->readers[k].terms.group && owed(w, &w->readers[k], t)) || owed(w, &w->groups[k], t))
            return true;
    return false;
}

static bool named(struct second_writer *w, uint32_t slot, uint64_t t)
{
    bool found = false;
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        const struct peer *p = &w->readers[k];
        if (p->used && !p->terms.group) {
            const struct reader_control *c = p->control.at;
            for (uint32_t pin = 0; pin < p->terms.max_pins; pin++)
                found |= LOAD(c->pins[pin]) == tag(t, slot);
        }
        p = &w->groups[k];
        if (p->used) {
            const struct group_control *c = p->control.at;
            uint64_t claim = LOAD(c->claims[slot]);
            uint32_t what = claim_what(claim);
            if (tag_seq(claim) == t && (what == CLAIM_TAKEN || what == CLAIM_RETURNED) &&
                (!p->lies || p->claims < p->pins + p->kept)) {
                w->groups[k].claims++;
                found = true;
            }
        }
    }
    return found;
}

static bool reclaim(struct second_writer *w, uint32_t slot, uint64_t t)
{
    _Atomic uint64_t *state = &w->headers[slot].state;
    EXCHANGE(*state, tag(t, SLOT_WRITING));
    STEP("reclaim 1");
    bool pinned = named(w, slot, t);
    STEP("reclaim 2");
    STORE_RELEASE(*state, tag(t, pinned ? SLOT_PUBLISHED : SLOT_FREE));
    return !pinned;
}

void recount_claims(struct second_writer *w, struct peer *group)
{
    const struct group_control *c = group->control.at;
    uint64_t here = 0;
    uint32_t left = 0;
    for (uint32_t k = 0; k < MAX_READERS; k++)
        if (w->readers[k].used && w->readers[k].terms.group == group->id)
            here |= 1ull << w->readers[k].terms.member;
    for (uint32_t k = 0; k < w->npublished; k++) {
        uint64_t claim = LOAD(c->claims[w->published[k]]);
        uint32_t member = tag_low(claim) >> 8;
        if (tag_seq(claim) == w->records[w->published[k]].seq &&
            claim_what(claim) == CLAIM_RETURNED && member < MAX_READERS && !(here >> member & 1))
            left++;
    }
    if (left < group->kept)
        group->kept = left;
    group->claims = 0;
}

static bool holds_slot(const struct second_writer *w, uint32_t slot, uint64_t claim)
{
    const struct slot_record *record = &w->records[slot];
    uint32_t what = claim_what(claim);
    return record->is == RECORD_PUBLISHED && tag_seq(claim) == record->seq &&
           (what == CLAIM_TAKEN || what == CLAIM_RETURNED);
}

bool find_liars(struct second_writer *w)
{
    bool found = false;
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        struct peer *p = &w->groups[k];
        const struct group_control *c = p->control.at;
        uint8_t once[MAX_SLOTS];
        uint32_t both = 0;
        if (!p->used || p->lies)
            continue;
        for (uint32_t i = 0; i < w->g.nslots; i++)
            once[i] = holds_slot(w, i, LOAD(c->claims[i]));
        for (uint32_t i = 0; i < w->g.nslots; i++)
            both += once[i] && holds_slot(w, i, LOAD(c->claims[i]));
        p->lies = both > p->pins + p->kept;
        found |= p->lies;
    }
    return found;
}

void reclaim_all(struct second_writer *w)
{
    for (uint32_t k = 0; k < MAX_READERS; k++) {
        struct peer *p = &w->readers[k];
        if (p->used && !p->terms.group)
            clamped_cursor(w, p, LOAD(((const struct reader_control *)p->control.at)->cursor));
        p = &w->groups[k];
        if (p->used) {
            clamped_cursor(w, p, LOAD(((const struct group_control *)p->control.at)->cursor));
            recount_claims(w, p);
        }
    }
    uint32_t kept = 0;
    for (uint32_t k = 0; k < w->npublished; k++) {
        uint32_t slot = w->published[k];
        struct slot_record *record = &w->records[slot];
        if (retained(w, slot, record->seq) || !reclaim(w, slot, record->seq)) {
            w->published[kept++] = slot;
        } else {
            record->is = RECORD_FREE;
            w->stack[w->nfree++] = slot;
        }
    }
    w->npublished = kept;
}
