/* native/src/writer.c, retention.c and admission.c; docs/protocol.md, "Life of a slot". */
#include "routines.h"

#define w (&s->writer)

/* admission.c: frame.seq is what the writer retains from; returned. */
static void retained_from(struct frame *f)
{
    BEGIN;
    f->seq = (uint8_t)(w->head + 1 > config->history ? w->head + 1 - config->history : 1);
    for (f->i = 0; f->i < (config->group ? 1 : config->nreaders); f->i++) {
        if (config->policy == LATEST)
            continue;
        STEP("retention.c owed_from: load a cursor");
        uint8_t cursor = load(config->group ? word.group_cursor : word.cursor + f->i,
                              weak(CURSOR_LOAD_RELAXED, SEQ_CST, RELAXED));
        if (cursor > w->head + 1)
            cursor = (uint8_t)(w->head + 1);
        if (cursor > w->cursor[f->i])
            w->cursor[f->i] = cursor;
        cursor = w->cursor[f->i];
        if (config->policy == FIFO && w->head >= config->depth &&
            cursor < w->head + 1 - config->depth)
            cursor = (uint8_t)(w->head + 1 - config->depth);
        if (cursor < f->seq)
            f->seq = cursor;
    }
    RETURN(f->seq);
    END;
}

/* retention.c: whether a pin or claim names frame.seq in frame.slot. */
static void pinned(struct frame *f)
{
    BEGIN;
    if (planted == SCAN_SKIPPED)
        RETURN(false);
    if (config->group) {
        if (planted == CLAIM_SCAN_SKIPPED)
            RETURN(false);
        STEP("groups.c mcpd_writer_claimed: load a claim (Reclaim 2)");
        uint8_t seen = load(word.claim + f->slot, weak(SCAN_ACQUIRE, SEQ_CST, ACQUIRE));
        RETURN(claim_seq(seen) == f->seq && (claim_state(seen) == TAKEN ||
                                             claim_state(seen) == RETURNED));
    }
    for (f->i = 0; f->i < word.cursor - word.pin; f->i++) {
        STEP("admission.c mcpd_writer_pinned: load a pin (Reclaim 2)");
        if (load(word.pin + f->i, weak(SCAN_ACQUIRE, SEQ_CST, ACQUIRE)) == tag(f->seq, f->slot))
            RETURN(true);
    }
    RETURN(false);
    END;
}

static void reclaim_slot(struct frame *f)
{
    BEGIN;
    if (planted == SCAN_EARLY) {
        CALL(pinned, .seq = f->seq, .slot = f->slot);
        f->keep = t->result;
    }
    STEP("retention.c reclaim: exchange the state (Reclaim 1)");
    s->ghost.looking = true;
    exchange_or_store(RECLAIM_STORE, word.state + f->slot, tag(f->seq, WRITING));
    if (planted != SCAN_EARLY) {
        CALL(pinned, .seq = f->seq, .slot = f->slot);
        f->keep = t->result;
    }
    if (f->keep) {
        if (planted == PUT_BACK_SKIPPED) {
            s->ghost.looking = false;
            RETURN(true);
        }
        STEP("retention.c reclaim: put the state back (Reclaim 3)");
        store(word.state + f->slot, tag(f->seq, PUBLISHED), RELEASE);
        s->ghost.looking = false;
        visible();
        RETURN(true);
    }
    STEP("retention.c reclaim: the slot is free (Reclaim 3)");
    store(word.state + f->slot, tag(f->seq, FREE), RELEASE);
    s->ghost.looking = false;
    visible();
    if (s->ghost.holders[f->slot])
        violate("a slot is reclaimed while its frame is pinned or claimed");
    RETURN(false);
    END;
}

/* The published slot with the lowest number that is not below `from`, or SLOTS. */
static uint8_t next_published(uint8_t from)
{
    uint8_t found = SLOTS;
    for (uint8_t i = 0; i < config->nslots; i++)
        if (w->state[i] == PUBLISHED && w->seq[i] >= from &&
            (found == SLOTS || w->seq[i] < w->seq[found]))
            found = i;
    return found;
}

static void reclaim(struct frame *f)
{
    BEGIN;
    CALL(retained_from);
    f->word = t->result;
    f->seq = 0;
    while ((f->slot = next_published(f->seq)) != SLOTS && w->seq[f->slot] < f->word) {
        f->seq = w->seq[f->slot];
        CALL(reclaim_slot, .slot = f->slot, .seq = f->seq);
        f->seq++;
        if (!t->result) {
            w->state[f->slot] = FREE;
            w->free[w->nfree++] = f->slot;
        }
    }
    END;
}

/* Takes a slot: FOUND with t->slot, NOTHING or ENDED. */
static void take(struct frame *f)
{
    BEGIN;
    STEP("acquire.c ready: load ended");
    if (load(word.ended, weak(ENDED_LOAD_ACQUIRE, SEQ_CST, ACQUIRE)))
        RETURN(ENDED);
    CALL(reclaim);
    if (w->nfree == 0 && planted != ONE_WALK)
        CALL(reclaim);
    if (w->nfree == 0)
        RETURN(NOTHING);
    f->slot = w->free[--w->nfree];
    w->free[w->nfree] = 0;
    w->state[f->slot] = WRITING;
    STEP("acquire.c take: the slot is being written");
    store(word.state + f->slot, tag(0, WRITING), RELEASE);
    t->slot = f->slot;
    RETURN(FOUND);
    END;
}

static void acquire(struct frame *f)
{
    BEGIN;
    CALL(take);
    if (t->result == NOTHING && config->never_blocks)
        violate("an acquire finds no slot, though the readers were admitted");
    while (t->result == NOTHING && config->writer_sleeps) {
        CALL(sleep_begin);
        if (planted != WRITER_LOOK_SKIPPED) {
            CALL(take);
        } else {
            t->result = NOTHING;
        }
        f->keep = t->result;
        if (f->keep == NOTHING)
            CALL(sleep_poll);
        CALL(sleep_finish);
        t->result = f->keep;
        if (f->keep == NOTHING)
            CALL(take);
    }
    RETURN(t->result);
    END;
}

/* admission.c: wakes readers for frame.seq, or with frame.flag whatever they want. */
static void wake_readers(struct frame *f)
{
    BEGIN;
    for (f->i = 0; f->i < config->nreaders; f->i++) {
        if (planted == FILTER_EARLY) {
            STEP("admission.c wake: load the cursor");
            f->keep = load(word.cursor + f->i, SEQ_CST);
        }
        STEP("admission.c wake: load the epoch");
        f->word = load(word.epoch + f->i, weak(EPOCH_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
        if ((f->word & 1) == 0 || f->word == w->signalled[f->i])
            continue;
        if (!config->group && !f->flag) {
            if (planted == FILTER_SIGNALLED)
                w->signalled[f->i] = f->word;
            if (planted != FILTER_EARLY) {
                STEP("admission.c wake: load the cursor");
                f->keep = load(word.cursor + f->i, weak(FILTER_RELAXED, SEQ_CST, RELAXED));
            }
            if (f->keep > f->seq)
                continue;
            if (config->paced) {
                STEP("admission.c wake: load not_before_ns");
                if (load(word.not_before + f->i, RELAXED) > f->seq)
                    continue;
            }
        }
        w->signalled[f->i] = f->word;
        STEP("wake.c mcpd_wake_signal: write to the eventfd");
        s->signal[1 + f->i] = 1;
    }
    END;
}

static void published(uint8_t seq)
{
    if (!s->ghost.ended)
        s->ghost.published = seq;
}

static void publish(struct frame *f)
{
    BEGIN;
    STEP("writer.c mcpd_writer_publish: load ended");
    if (load(word.ended, ACQUIRE))
        RETURN(ENDED);
    w->head = w->seq[f->slot] = f->seq = (uint8_t)(w->head + 1);
    w->state[f->slot] = PUBLISHED;
    if (planted != META_LATE) {
        STEP("writer.c: fill the slot, mcpd_writer_publish: metadata (Publish 1)");
        memory->write_bytes(f->slot, f->seq);
    }
    if (planted == SIGNAL_EARLY)
        CALL(wake_readers, .seq = f->seq);
    if (planted == HEAD_EARLY) {
        STEP("writer.c mcpd_writer_publish: head (Publish 4)");
        store(word.head, f->seq, SEQ_CST);
        published(f->seq);
    }
    STEP("writer.c mcpd_writer_publish: state (Publish 2)");
    store(word.state + f->slot, tag(f->seq, PUBLISHED),
          planted == PUBLISH_RELAXED || planted == STATE_RELAXED ? RELAXED : RELEASE);
    STEP("writer.c mcpd_writer_publish: queue entry (Publish 3)");
    store(word.queue + f->seq % config->nqueue, tag(f->seq, f->slot),
          planted == PUBLISH_RELAXED || planted == QUEUE_RELAXED ? RELAXED : RELEASE);
    if (planted != HEAD_EARLY) {
        STEP("writer.c mcpd_writer_publish: head (Publish 4)");
        store(word.head, f->seq,
              planted == PUBLISH_RELAXED ? RELAXED : weak(HEAD_RELEASE, SEQ_CST, RELEASE));
        published(f->seq);
    }
    if (planted == META_LATE) {
        STEP("writer.c: fill the slot, mcpd_writer_publish: metadata (Publish 1)");
        memory->write_bytes(f->slot, f->seq);
    }
    if (planted != SIGNAL_EARLY && planted != SIGNAL_SKIPPED)
        CALL(wake_readers, .seq = f->seq);
    RETURN(FOUND);
    END;
}

static void end(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    STEP("control.c mcpd_wctl_end: ended, by compare-and-exchange");
    if (planted == END_STORE_RELEASE)
        store(word.ended, 1, RELEASE);
    else
        (void)compare_exchange(word.ended, 0, 1, &seen, SEQ_CST);
    s->ghost.ended = true;
    if (planted != END_WAKE_SKIPPED)
        CALL(wake_readers, .flag = true);
    END;
}

void writer_main(struct frame *f)
{
    BEGIN;
    for (f->i = 0; f->i < config->frames; f->i++) {
        CALL(acquire);
        if (t->result == ENDED)
            RETURN(ENDED);
        if (t->result == NOTHING)
            continue;
        CALL(publish, .slot = t->slot);
    }
    if (config->ends_last) {
        STEP("the writer waits until the first reader stops or the frame is finished");
        if (s->threads[1].status == RUNS && !s->ghost.finished[1])
            block();
    }
    if (config->ends)
        CALL(end);
    END;
}
