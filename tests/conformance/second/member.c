/* Members of groups: claim, finish, give back, take over. */
#include "reader.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

enum { LOOKS = 1000 }; /* at a slot that the writer may be looking at */

static bool exchange_if(_Atomic uint64_t *word, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(word, &from, to, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

/*
 * Advances the group's cursor to `to`; whoever does counts the frames that are jumped over, and wakes
 * the writer for those that are not its own: there is room now that nobody will finish. `lost`: nobody
 * has had the frame before `to` either.
 */
static void advance(struct second_reader *r, uint64_t to, bool own, bool lost)
{
    uint64_t from = LOAD(r->claims->cursor);
    while (from < to) {
        if (!exchange_if(&r->claims->cursor, from, to)) {
            from = LOAD(r->claims->cursor);
            continue;
        }
        uint64_t jumped = to - 1 - from + lost;
        if (jumped && r->terms.policy == POLICY_LATEST)
            COUNT(r->own->skipped, jumped);
        else if (jumped)
            COUNT(r->own->dropped, jumped);
        if (jumped || !own)
            wake_writer(r);
        return;
    }
}

static int keep(struct second_reader *r, int pin, uint64_t t, uint32_t slot)
{
    struct pinned_frame *frame = &r->frames[pin];
    frame->seq = t;
    frame->slot = slot;
    return copy_checked(r, frame);
}

/* Waits while the writer may be looking at the slot: 0, LOST, or -EAGAIN when it takes too long. */
static int wait_published(const struct second_reader *r, uint32_t slot, uint64_t t)
{
    for (int looks = 0; looks < LOOKS; looks++) {
        bool ended = LOAD(r->shared->ended);
        uint64_t state = LOAD(header_of(r, slot)->state);
        if (state == tag(t, SLOT_PUBLISHED))
            return 0;
        if (ended || state != tag(t, SLOT_WRITING))
            return LOST;
        sched_yield();
    }
    return -EAGAIN;
}

static void return_claim(struct second_reader *r, uint32_t slot, uint64_t t)
{
    uint32_t m = r->terms.member;
    if (exchange_if(&r->claims->claims[slot], claim_word(t, m, CLAIM_TAKEN),
                    claim_word(t, m, CLAIM_RETURNED))) {
        STEP("give back 1");
        atomic_fetch_add(&r->claims->returned, 1);
        atomic_fetch_add_explicit(&r->claims->returns, 1, memory_order_relaxed);
    }
}

static int claim(struct second_reader *r, int pin, uint64_t t)
{
    uint32_t m = r->terms.member;
    int slot = find_slot(r, t);
    if (slot < 0)
        return slot;
    STEP("claim 2");
    _Atomic uint64_t *word = &r->claims->claims[slot];
    uint64_t before = LOAD_ACQUIRE(*word);
    if (tag_seq(before) == t) {
        advance(r, t + 1, false, false);
        return AGAIN;
    }
    if (tag_seq(before) > t)
        return LOST;
    if (!exchange_if(word, before, claim_word(t, m, CLAIM_TAKEN)))
        return AGAIN;
    STEP("claim 3");
    int found = wait_published(r, (uint32_t)slot, t);
    if (found == -EAGAIN) {
        return_claim(r, (uint32_t)slot, t);
        advance(r, t + 1, false, false);
        return AGAIN;
    }
    if (found == LOST) {
        exchange_if(word, claim_word(t, m, CLAIM_TAKEN), claim_word(t, m, CLAIM_DONE));
        COUNT(r->own->retries, 1);
        advance(r, t + 1, false, true);
        return UNCONFIRMED;
    }
    STEP("claim 4");
    int rc = keep(r, pin, t, (uint32_t)slot);
    STEP("claim 5");
    if (rc) {
        exchange_if(word, claim_word(t, m, CLAIM_TAKEN), claim_word(t, m, CLAIM_DONE));
        advance(r, t + 1, false, true);
        return rc;
    }
    advance(r, t + 1, true, false);
    STORE_RELAXED(r->own->cursor, t + 1);
    STEP("claim 6");
    if (r->terms.policy == POLICY_LOSSLESS && r->terms.depth)
        wake_writer(r);
    return pin;
}

/* The returned claim with the lowest number and its slot; 0 if there is none. */
static uint64_t lowest_returned(const struct second_reader *r, uint32_t *slot)
{
    uint64_t lowest = 0;
    for (uint32_t i = 0; i < r->g.nslots; i++) {
        uint64_t c = LOAD_ACQUIRE(r->claims->claims[i]);
        if (claim_what(c) == CLAIM_RETURNED && (!lowest || c < lowest)) {
            lowest = c;
            *slot = i;
        }
    }
    return lowest;
}

bool member_has_returned(const struct second_reader *r)
{
    uint32_t slot;
    return LOAD(r->claims->returned) != r->returned_seen && lowest_returned(r, &slot) != 0;
}

/* A returned frame, the lowest first: the index of its pin, or -EAGAIN if there is none now. */
static int take_over(struct second_reader *r, int pin)
{
    uint32_t m = r->terms.member, returned = LOAD(r->claims->returned);
    if (returned == r->returned_seen)
        return -EAGAIN;
    for (;;) {
        uint32_t slot;
        uint64_t found = lowest_returned(r, &slot), t = tag_seq(found);
        if (!found) {
            r->returned_seen = returned;
            return -EAGAIN;
        }
        _Atomic uint64_t *word = &r->claims->claims[slot];
        STEP("take over 1");
        int rc = wait_published(r, slot, t);
        if (rc == -EAGAIN) { /* left as it is, and looked at again without sleeping */
            r->unsettled = true;
            return rc;
        }
        if (rc == LOST) {
            if (exchange_if(word, found, claim_word(t, m, CLAIM_DONE)))
                COUNT(r->own->dropped, 1);
            continue;
        }
        if (pin < 0)
            return pin;
        STEP("take over 2");
        if (!exchange_if(word, found, claim_word(t, m, CLAIM_TAKEN)))
            continue;
        STEP("take over 3");
        rc = keep(r, pin, t, slot);
        if (!rc)
            return pin;
        exchange_if(word, claim_word(t, m, CLAIM_TAKEN), claim_word(t, m, CLAIM_DONE));
        COUNT(r->own->dropped, 1);
        return rc;
    }
}

int member_try(struct second_reader *r, int pin)
{
    for (;;) {
        r->unsettled = false;
        int rc = take_over(r, pin);
        if (rc != -EAGAIN)
            return rc;
        uint32_t ended = LOAD(r->shared->ended);
        uint64_t cursor = LOAD(r->claims->cursor);
        uint64_t wanted = cursor < r->g.first_seq ? r->g.first_seq : cursor;
        uint64_t head = LOAD(r->shared->head);
        if (head > MAX_SEQ)
            return -EBADMSG;
        uint64_t t = next_frame(r->terms.policy, r->terms.depth, wanted, head);
        if (!t)
            return ended ? -EPIPE : -EAGAIN;
        if (pin < 0)
            return pin;
        rc = claim(r, pin, t);
        /* What explains a loss is a newer head, a writer that died, or a member that advanced the
         * cursor; of a claim only the first two, as a claimed frame stands. */
        bool moved = LOAD(r->shared->head) != head;
        if (rc == LOST && !moved && LOAD(r->claims->cursor) == cursor)
            return -EBADMSG;
        if (rc == UNCONFIRMED && !LOAD(r->shared->ended) &&
            (r->terms.policy == POLICY_LOSSLESS || !moved))
            return -EBADMSG;
        if (rc >= 0 || rc == -EBADMSG)
            return rc;
    }
}

int member_finish(struct second_reader *r, const struct pinned_frame *frame)
{
    uint32_t m = r->terms.member;
    if (exchange_if(&r->claims->claims[frame->slot], claim_word(frame->seq, m, CLAIM_TAKEN),
                    claim_word(frame->seq, m, CLAIM_DONE)))
        atomic_fetch_add_explicit(&r->claims->finished, 1, memory_order_relaxed);
    STEP("finish 1");
    wake_writer(r);
    return 0;
}

int member_give_back(struct second_reader *r, const struct pinned_frame *frame)
{
    return_claim(r, frame->slot, frame->seq);
    return 0;
}
