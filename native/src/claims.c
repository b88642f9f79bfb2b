/*
 * A member of a group: claiming the next frame, taking over what another left, finishing.
 *
 * A claim is the slot's word in the group's control object. One compare-exchange makes the frame the
 * member's and pins it, or does neither. Members believe each other, but each loop here ends whatever
 * the words say, and a slot is confirmed by its state.
 */
#include <errno.h>
#include <sched.h>

#include "atomics.h"
#include "reader.h"
#include "steps.h"

#define SETTLE_LOOKS 64     /* at a slot of which the writer is looking whether it is claimed */
#define MAX_ADVANCES 100000 /* of the cursor by others while one member tries to */

/* ---- the group's cursor ---------------------------------------------------------------------- */

/*
 * Frames below `beyond` are wanted no more. Who moves the cursor counts those that nobody had. seq_cst:
 * after the claim; pairs with the load in the writer's retention, whose epoch is read next.
 */
static void advance(mcpd_reader *reader, uint64_t beyond, uint64_t had)
{
    uint64_t cursor = mcpd_load_seq_cst(&reader->gctl->cursor);
    for (int i = 0; i < MAX_ADVANCES && cursor < beyond; i++) {
        if (!mcpd_compare_exchange_seq_cst(&reader->gctl->cursor, &cursor, beyond))
            continue;
        uint64_t missed = beyond - cursor - had;
        if (reader->policy == MCPD_LATEST)
            mcpd_count(&reader->rctl->skipped, missed);
        else
            mcpd_count(&reader->rctl->dropped, missed);
        return;
    }
}

/* Beyond a frame that is not ours: this may be what a writer waits for. */
static void advance_past(mcpd_reader *reader, uint64_t seq, uint64_t had)
{
    advance(reader, seq + 1, had);
    mcpd_reader_made_room(reader);
}

/* ---- claiming the next frame ----------------------------------------------------------------- */

/* 0 if it was ours; the writer sees DONE and no longer the claim. */
static int withdraw(mcpd_reader *reader, uint32_t slot, uint64_t seq)
{
    uint64_t mine = MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_TAKEN);
    uint64_t done = MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_DONE);
    return mcpd_compare_exchange_seq_cst(&reader->claims[slot], &mine, done) ? 0 : -ESTALE;
}

/*
 * Whether the slot holds frame seq: 1, 0, or -EAGAIN while that is not to be seen. A writer that looks
 * whether it may reclaim the slot will put it back; one that died while it looked will not. `ended` is
 * read first: read after the state, it could be the end of a writer that has put the slot back since.
 */
static int stands(const mcpd_reader *reader, uint32_t slot, uint64_t seq)
{
    const _Atomic uint64_t *word = &reader->headers[slot].state;
    for (int i = 0; i < SETTLE_LOOKS; i++) {
        uint32_t ended = mcpd_load_seq_cst(&reader->wctl->ended);
        uint64_t state = mcpd_load_seq_cst(word);
        if (state == MCPD_TAG(seq, MCPD_SLOT_PUBLISHED))
            return 1;
        if (state != MCPD_TAG(seq, MCPD_SLOT_WRITING) || ended != MCPD_LIVE)
            return 0;
        sched_yield();
    }
    return -EAGAIN;
}

/*
 * Whether the loss of a claimed frame is one that no honest writer causes: it retains what a lossless
 * group is owed, and takes no other frame away while head stays. One that has died may have lost it.
 */
static int is_a_lie(const mcpd_reader *reader, uint64_t head)
{
    return mcpd_load_seq_cst(&reader->wctl->ended) == MCPD_LIVE &&
           (reader->policy == MCPD_LOSSLESS || mcpd_load_seq_cst(&reader->wctl->head) == head);
}

/*
 * Claims frame seq and copies its metadata; returns the slot. -ESTALE: another's, done, or moved on.
 * The compare-exchange and the re-check pair with the exchange and the scan in the writer's reclaim. If
 * that is under way, both may have seen the other, and then the frame stands: others count on the
 * claim already, and have moved the cursor beyond it.
 */
static int claim(mcpd_reader *reader, uint64_t seq, uint64_t head, struct mcpd_meta *meta)
{
    int slot = mcpd_reader_find(reader, seq);
    if (slot < 0)
        return slot;
    MCPD_STEP("member.claim.found");
    _Atomic uint64_t *word = &reader->claims[slot];
    uint64_t seen = mcpd_load_acquire(word);
    if (MCPD_TAG_SEQ(seen) == seq)
        advance_past(reader, seq, 1);
    if (MCPD_TAG_SEQ(seen) >= seq ||
        !mcpd_compare_exchange_seq_cst(word, &seen,
                                       MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_TAKEN)))
        return -ESTALE;
    MCPD_STEP("member.claim.taken");
    int result = mcpd_reader_confirm(reader, (uint32_t)slot, seq, meta), standing = 0;
    if (result == -ESTALE) {
        standing = stands(reader, (uint32_t)slot, seq);
        if (standing > 0)
            result = mcpd_reader_copy_meta(reader, (uint32_t)slot, seq, meta);
    }
    MCPD_STEP("member.claim.checked");
    if (result == 0)
        return slot;
    if (standing < 0)
        mcpd_member_let_go(reader, seq, (uint32_t)slot, MCPD_CLAIM_RETURNED);
    else
        withdraw(reader, (uint32_t)slot, seq);
    MCPD_STEP("member.claim.withdrawn");
    advance_past(reader, seq, standing < 0);
    return result == -ESTALE && standing == 0 && is_a_lie(reader, head) ? -EBADMSG : result;
}

static uint64_t choose(const mcpd_reader *reader, uint64_t cursor, uint64_t head)
{
    switch (reader->policy) {
    case MCPD_LATEST:
        return head;
    case MCPD_FIFO:
        return mcpd_within_depth(cursor, head, reader->depth, 1);
    default:
        return cursor;
    }
}

static int deliver(mcpd_reader *reader, uint32_t slot, const struct mcpd_meta *meta)
{
    return mcpd_reader_deliver(reader, slot, meta, mcpd_now_ns());
}

/* ---- taking over what was returned ----------------------------------------------------------- */

/* The slot with the lowest frame above `above` that was returned, or -1. */
static int64_t find_returned(const mcpd_reader *reader, uint64_t above, uint64_t *claim)
{
    int64_t found = -1;
    for (uint32_t slot = 0; slot < reader->geometry.nslots; slot++) {
        uint64_t seen = mcpd_load_seq_cst(&reader->claims[slot]);
        if (MCPD_CLAIM_STATE(seen) != MCPD_CLAIM_RETURNED || MCPD_TAG_SEQ(seen) <= above ||
            (found >= 0 && MCPD_TAG_SEQ(seen) >= MCPD_TAG_SEQ(*claim)))
            continue;
        found = slot;
        *claim = seen;
    }
    return found;
}

/*
 * Takes the returned claim over: 0, -ESTALE when it is no more or its frame is not, -EAGAIN when it is
 * to be looked at another time, -EBADMSG. The claim pins the frame from before the look at the state,
 * so that is not looked at again: a writer may be looking at the claim by then, and will find it.
 */
static int take_over(mcpd_reader *reader, uint32_t slot, uint64_t returned, struct mcpd_meta *meta)
{
    uint64_t seq = MCPD_TAG_SEQ(returned);
    uint64_t mine = MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_TAKEN);
    uint64_t done = MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_DONE);
    int standing = stands(reader, slot, seq);
    if (standing < 0)
        return standing;
    if (!mcpd_compare_exchange_seq_cst(&reader->claims[slot], &returned, standing ? mine : done))
        return -ESTALE;
    MCPD_STEP("member.take_over.taken");
    int result = standing ? mcpd_reader_copy_meta(reader, slot, seq, meta) : -ESTALE;
    if (result == 0)
        return 0;
    if (standing)
        withdraw(reader, slot, seq);
    mcpd_count(&reader->rctl->dropped, 1); /* lost, with who had claimed it */
    return result;
}

/* The pin of a returned frame; -ESTALE: there is none now. */
static int take_returned(mcpd_reader *reader, struct mcpd_meta *meta)
{
    uint32_t returned = mcpd_load_seq_cst(&reader->gctl->returned);
    if (returned == reader->looked && !reader->unsettled)
        return -ESTALE;
    uint64_t above = 0, word = 0;
    int unsettled = 0;
    for (uint32_t i = 0; i <= 2 * reader->geometry.nslots; i++) {
        int64_t slot = find_returned(reader, above, &word);
        if (slot < 0)
            break;
        int result = take_over(reader, (uint32_t)slot, word, meta);
        if (result == 0)
            return deliver(reader, (uint32_t)slot, meta);
        if (result == -EBADMSG)
            return result;
        if (result == -EAGAIN) {
            above = MCPD_TAG_SEQ(word);
            unsettled = 1;
        }
    }
    reader->looked = returned;
    reader->unsettled = unsettled;
    return -ESTALE;
}

/* acquire: whoever sees that a claim is DONE has what came before, as its member left it. */
int mcpd_reader_others_busy(mcpd_reader *reader)
{
    if (!*reader->guard || reader->gctl == NULL)
        return 0;
    for (uint32_t slot = 0; slot < reader->geometry.nslots; slot++) {
        uint64_t claim = mcpd_load_acquire(&reader->claims[slot]);
        if (MCPD_CLAIM_STATE(claim) == MCPD_CLAIM_RETURNED ||
            (MCPD_CLAIM_STATE(claim) == MCPD_CLAIM_TAKEN &&
             MCPD_CLAIM_MEMBER(claim) != reader->member))
            return 1;
    }
    return 0;
}

/* ---- next ------------------------------------------------------------------------------------ */

int mcpd_member_ready(mcpd_reader *reader, uint64_t *head)
{
    if (reader->shut)
        return -ECANCELED;
    uint32_t ended = mcpd_load_seq_cst(&reader->wctl->ended);
    *head = mcpd_load_seq_cst(&reader->wctl->head);
    reader->wanted = mcpd_load_seq_cst(&reader->gctl->cursor);
    if (*head >= reader->wanted || reader->unsettled ||
        mcpd_load_seq_cst(&reader->gctl->returned) != reader->looked)
        return reader->nfree > 0 ? 1 : -EBUSY;
    return ended != MCPD_LIVE ? -EPIPE : -EAGAIN;
}

int mcpd_member_take(mcpd_reader *reader, struct mcpd_meta *meta)
{
    uint64_t head = 0;
    reader->more = 0;
    for (int retries = 0; retries < MCPD_MAX_RETRIES; retries++) {
        int result = mcpd_member_ready(reader, &head);
        if (result == 1) {
            int pin = take_returned(reader, meta);
            if (pin != -ESTALE)
                return pin;
        }
        if (result < 0)
            return result;
        if (head < reader->wanted && reader->unsettled) {
            reader->more = 1; /* nobody will signal that it has settled */
            return -EAGAIN;
        }
        if (head < reader->wanted)
            continue; /* what was returned is gone: see whether that was all */
        uint64_t seq = choose(reader, reader->wanted, head);
        int slot = claim(reader, seq, head, meta);
        if (slot == -EBADMSG)
            return slot;
        if (slot >= 0) {
            advance(reader, seq + 1, 1);
            MCPD_STEP("member.claim.advanced");
            if (mcpd_reader_bounds(reader))
                mcpd_reader_made_room(reader);
            mcpd_store_relaxed(&reader->rctl->cursor, seq + 1);
            return deliver(reader, (uint32_t)slot, meta);
        }
        mcpd_count(&reader->rctl->retries, 1);
    }
    return -EBADMSG;
}

/*
 * seq_cst, and with it release: what was read in the slot comes before the writer's reuse of it, and
 * the writer's epoch is read next. A returned claim still pins its frame and makes no room.
 */
void mcpd_member_let_go(mcpd_reader *reader, uint64_t seq, uint32_t slot, uint32_t state)
{
    struct mcpd_gctl *gctl = reader->gctl;
    uint64_t mine = MCPD_CLAIM(seq, reader->member, MCPD_CLAIM_TAKEN);
    if (!mcpd_compare_exchange_seq_cst(&reader->claims[slot], &mine,
                                       MCPD_CLAIM(seq, reader->member, state)))
        return; /* a member that lies has taken it */
    MCPD_STEP("member.let_go.let_go");
    if (state == MCPD_CLAIM_RETURNED) {
        mcpd_add_relaxed(&gctl->returns, 1);
        (void)mcpd_add_seq_cst(&gctl->returned, 1);
        MCPD_STEP("member.let_go.returned");
    } else {
        mcpd_add_relaxed(&gctl->finished, 1);
        mcpd_reader_made_room(reader);
        MCPD_STEP("member.let_go.told");
    }
}
