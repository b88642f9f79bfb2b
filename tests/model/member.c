/* A group's member: native/src/claims.c; docs/protocol.md, "Claim" to "Take over". */
#include "routines.h"

static int mine(void) { return my_side() - 1; }

enum { UNSETTLED_CLAIM = STALE + 1 };

/* Raises the group's cursor to frame.seq, unless it is beyond that (Claim 6). */
static void advance(struct frame *f)
{
    BEGIN;
    STEP("claims.c advance: load the group's cursor (Claim 6)");
    f->word = load(word.group_cursor, SEQ_CST);
    while (f->word < f->seq) {
        STEP("claims.c advance: exchange the group's cursor (Claim 6)");
        if (planted == GROUP_CURSOR_STORE) {
            store(word.group_cursor, f->seq, SEQ_CST);
            RETURN(NOTHING);
        }
        uint8_t seen;
        if (compare_exchange(word.group_cursor, f->word, f->seq, &seen, SEQ_CST))
            RETURN(NOTHING);
        f->word = seen;
    }
    END;
}

/* Beyond a frame that is not ours: this may be what a writer waits for. */
static void advance_past(struct frame *f)
{
    BEGIN;
    CALL(advance, .seq = (uint8_t)(f->seq + 1));
    CALL(made_room);
    END;
}

/* ---- taking over what was returned ----------------------------------------------------------- */

enum stands { FALLEN, STANDS, UNSETTLED };

/* Whether frame.slot holds frame.seq. One look stands for any number. */
static void stands(struct frame *f)
{
    BEGIN;
    if (planted != STANDS_ENDED_LATE) {
        STEP("claims.c stands: load ended (Take over 2)");
        f->flag = load(word.ended, SEQ_CST);
    }
    STEP("claims.c stands: load the state (Take over 2)");
    newest = my_reader()->again;
    f->word = load(word.state + f->slot, SEQ_CST);
    if (f->word == tag(f->seq, PUBLISHED))
        RETURN(STANDS);
    if (f->word != tag(f->seq, WRITING))
        RETURN(FALLEN);
    if (planted == STANDS_ENDED_LATE) {
        STEP("claims.c stands: load ended (Take over 2)");
        f->flag = load(word.ended, SEQ_CST);
    }
    RETURN(f->flag ? FALLEN : UNSETTLED);
    END;
}

static bool exchange_claim(struct frame *f, uint8_t from, uint8_t to)
{
    uint8_t seen;
    return compare_exchange(word.claim + f->slot, from, to, &seen, SEQ_CST);
}

/* Takes over the claim frame.word of frame.seq in frame.slot: FOUND, STALE, or UNSETTLED_CLAIM. */
static void take_over(struct frame *f)
{
    BEGIN;
    CALL(stands, .seq = f->seq, .slot = f->slot);
    f->keep = t->result;
    if (f->keep == UNSETTLED)
        RETURN(UNSETTLED_CLAIM);
    STEP("claims.c take_over: exchange the claim (Take over 3)");
    if (planted == TAKE_OVER_EXCHANGE)
        (void)exchange(word.claim + f->slot, claim(f->seq, mine(), TAKEN), SEQ_CST);
    else if (!exchange_claim(f, f->word, claim(f->seq, mine(), f->keep ? TAKEN : DONE)))
        RETURN(STALE);
    s->ghost.holders[f->slot] &= (uint8_t)~IS_RETURNED;
    if (f->keep == FALLEN) {
        s->ghost.lost |= (uint8_t)(1 << f->seq);
        if (config->policy == LOSSLESS && s->threads[0].status != DEAD)
            violate("a frame is given up as lost, and the writer lives");
        RETURN(STALE);
    }
    s->ghost.holders[f->slot] |= (uint8_t)(1 << me);
    if (planted == TAKE_OVER_RECHECKS) {
        STEP("claims.c take_over: load the state again");
        if (load(word.state + f->slot, SEQ_CST) != tag(f->seq, PUBLISHED)) {
            CALL(stands, .seq = f->seq, .slot = f->slot);
            f->keep = t->result;
            if (f->keep == UNSETTLED) {
                CALL(member_give_back, .seq = f->seq, .slot = f->slot);
                RETURN(UNSETTLED_CLAIM);
            }
            STEP("claims.c take_over: load the state a third time");
            if (load(word.state + f->slot, SEQ_CST) != tag(f->seq, PUBLISHED)) {
                s->ghost.lost |= (uint8_t)(1 << f->seq);
                violate("a frame is given up as lost, and the writer lives");
            }
        }
    }
    STEP("claims.c take_over: copy the metadata (Take over 3)");
    look(f->slot, f->seq);
    RETURN(FOUND);
    END;
}

/* FOUND with t->seq and t->slot, or STALE: there is none now. */
static void take_returned(struct frame *f)
{
    BEGIN;
    STEP("claims.c take_returned: load returned (Take over)");
    f->keep = load(word.returned, weak(RETURNED_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    if (f->keep == my_reader()->looked && !my_reader()->unsettled)
        RETURN(STALE);
    my_reader()->unsettled = 0;
    f->flag = 0; /* claims up to this frame have been looked at */
    for (;;) {
        f->seq = 0;
        for (f->i = 0; f->i < config->nslots; f->i++) {
            STEP("claims.c find_returned: load a claim (Take over 1)");
            uint8_t seen = load(word.claim + f->i, SEQ_CST);
            if (claim_state(seen) != RETURNED || claim_seq(seen) <= f->flag ||
                (f->seq != 0 && claim_seq(seen) >= f->seq))
                continue;
            f->seq = claim_seq(seen);
            f->slot = f->i;
            f->word = seen;
        }
        if (f->seq == 0)
            break;
        CALL(take_over, .seq = f->seq, .slot = f->slot, .word = f->word);
        if (t->result == FOUND) {
            my_reader()->again = 0;
            t->seq = f->seq;
            t->slot = f->slot;
            RETURN(FOUND);
        }
        if (t->result == UNSETTLED_CLAIM) {
            f->flag = f->seq;
            my_reader()->unsettled = 1;
        }
    }
    my_reader()->looked = f->keep;
    my_reader()->again = 0;
    RETURN(STALE);
    END;
}

/* ---- claiming the next frame ----------------------------------------------------------------- */

/* Claims frame.seq: FOUND with t->slot, or STALE. */
static void claim_next(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    STEP("take.c mcpd_reader_find: load the queue entry (Claim 1)");
    f->word = load(word.queue + f->seq % config->nqueue, ACQUIRE);
    if (f->word >> 3 != f->seq)
        RETURN(STALE);
    f->slot = f->word & 7;
    STEP("claims.c claim: load the claim (Claim 3)");
    f->word = load(word.claim + f->slot, ACQUIRE);
    if (claim_seq(f->word) == f->seq)
        CALL(advance_past, .seq = f->seq);
    if (claim_seq(f->word) >= f->seq)
        RETURN(STALE);
    if (planted == GROUP_CURSOR_EARLY)
        CALL(advance, .seq = (uint8_t)(f->seq + 1));
    STEP("claims.c claim: compare-exchange the claim (Claim 3)");
    if (planted == CLAIM_EXCHANGE)
        (void)exchange(word.claim + f->slot, claim(f->seq, mine(), TAKEN), SEQ_CST);
    else if (!compare_exchange(word.claim + f->slot, f->word, claim(f->seq, mine(), TAKEN), &seen,
                               weak(CLAIM_ACQ_REL, SEQ_CST, RELEASE)))
        RETURN(STALE);
    if (planted != CLAIM_RECHECK_SKIPPED) {
        STEP("pinning.c mcpd_reader_confirm: load the state (Claim 4)");
        f->keep = load(word.state + f->slot, weak(CLAIM_RECHECK_ACQUIRE, SEQ_CST, ACQUIRE));
        f->i = STANDS;
        if (f->keep != tag(f->seq, PUBLISHED)) {
            CALL(stands, .seq = f->seq, .slot = f->slot);
            f->i = planted == CLAIM_WITHDRAWS ? FALLEN : t->result;
        }
        if (f->i == UNSETTLED)
            CALL(member_give_back, .seq = f->seq, .slot = f->slot, .keep = true);
        if (f->i == FALLEN && planted != WITHDRAW_SKIPPED) {
            STEP("claims.c withdraw (Claim 4)");
            if (planted == WITHDRAW_STORE)
                store(word.claim + f->slot, claim(f->seq, mine(), DONE), SEQ_CST);
            else
                (void)exchange_claim(f, claim(f->seq, mine(), TAKEN), claim(f->seq, mine(), DONE));
        }
        if (f->i != STANDS) {
            CALL(advance_past, .seq = f->seq);
            RETURN(STALE);
        }
    }
    STEP("pinning.c mcpd_reader_confirm: copy the metadata (Claim 5)");
    hold(f->slot, f->seq);
    t->slot = f->slot;
    RETURN(FOUND);
    END;
}

/* mcpd_member_ready: t->seq is head, t->slot the cursor, as `wanted` is. */
void member_ready(struct frame *f)
{
    BEGIN;
    STEP("claims.c mcpd_member_ready: load ended");
    f->flag = load(word.ended, weak(ENDED_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    STEP("claims.c mcpd_member_ready: load head");
    f->seq = load(word.head, weak(HEAD_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    STEP("claims.c mcpd_member_ready: load the group's cursor");
    my_reader()->wanted = load(word.group_cursor, weak(CURSOR_LOAD_RELAXED, SEQ_CST, RELAXED));
    t->seq = f->seq;
    if (f->seq >= my_reader()->wanted)
        RETURN(FOUND);
    if (my_reader()->unsettled && planted != UNSETTLED_SLEEPS)
        RETURN(FOUND);
    STEP("claims.c mcpd_member_ready: load returned");
    f->word = load(word.returned, weak(RETURNED_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    t->seq = f->seq;
    if (f->word != my_reader()->looked)
        RETURN(FOUND);
    RETURN(f->flag ? ENDED : NOTHING);
    END;
}

void member_take(struct frame *f)
{
    BEGIN;
    my_reader()->more = 0;
    for (;;) {
        CALL(member_ready);
        f->keep = t->result;
        f->i = t->seq;
        if (f->keep == FOUND || my_reader()->unsettled) {
            CALL(take_returned);
            if (t->result == FOUND)
                RETURN(FOUND);
        }
        if (f->keep != FOUND)
            RETURN(f->keep);
        if (f->i < my_reader()->wanted) {
            if (my_reader()->unsettled && planted != UNSETTLED_SLEEPS) {
                my_reader()->more = 1;
                RETURN(NOTHING);
            }
            continue;
        }
        f->seq = chosen(my_reader()->wanted, f->i);
        CALL(claim_next, .seq = f->seq);
        if (t->result == STALE)
            continue;
        f->slot = t->slot;
        if (planted != GROUP_CURSOR_EARLY)
            CALL(advance, .seq = (uint8_t)(f->seq + 1));
        t->seq = f->seq;
        t->slot = f->slot;
        RETURN(FOUND);
    }
    END;
}

/* ---- letting go ------------------------------------------------------------------------------ */

/* mcpd_member_let_go, DONE. */
void member_finish(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    STEP("claims.c mcpd_member_let_go: exchange the claim (Finish)");
    s->ghost.holders[f->slot] &= (uint8_t)~(1 << me);
    if (compare_exchange(word.claim + f->slot, claim(f->seq, mine(), TAKEN),
                         claim(f->seq, mine(), DONE), &seen,
                         weak(FINISH_RELAXED, SEQ_CST, RELAXED))) {
        s->ghost.finished[f->seq]++;
        if (s->ghost.finished[f->seq] > 1 && !s->ghost.deaths)
            violate("a frame is finished twice, and nobody died");
    } else {
        violate("a member's claim was not its own");
    }
    if (planted != FINISH_WAKE_SKIPPED)
        CALL(made_room);
    END;
}

/* mcpd_member_let_go, RETURNED; frame.keep: of a claim that was not confirmed. */
void member_give_back(struct frame *f)
{
    BEGIN;
    if (planted == RETURNED_EARLY) {
        STEP("claims.c mcpd_member_let_go: raise returned (Give back)");
        add(word.returned, 1, SEQ_CST);
    }
    STEP("claims.c mcpd_member_let_go: exchange the claim (Give back)");
    if (!f->keep)
        s->ghost.holders[f->slot] =
            (uint8_t)((s->ghost.holders[f->slot] & ~(1 << me)) | IS_RETURNED);
    if (!exchange_claim(f, claim(f->seq, mine(), TAKEN), claim(f->seq, mine(), RETURNED))) {
        if (!f->keep)
            violate("a member's claim was not its own");
        RETURN(NOTHING);
    }
    if (planted != RETURNED_EARLY) {
        STEP("claims.c mcpd_member_let_go: raise returned (Give back)");
        add(word.returned, 1, SEQ_CST);
    }
    END;
}
