/* native/src/reader.c and pinning.c; docs/protocol.md, "Pin" and "Sleeping and waking". */
#include "routines.h"

/* Threads are in the order of their pins, the writer being thread 0. */
static int my_pin(void)
{
    return word.pin + me - 1 + my_reader()->pin;
}

uint8_t chosen(uint8_t wanted, uint8_t head)
{
    if (config->policy == LATEST)
        return head;
    if (config->policy == FIFO && head >= config->depth && wanted < head + 1 - config->depth)
        return (uint8_t)(head + 1 - config->depth);
    return wanted;
}

void look(uint8_t slot, uint8_t seq)
{
    if (memory->read_bytes(slot) != seq)
        violate("a pinned or claimed slot holds the bytes of another frame (torn)");
}

void hold(uint8_t slot, uint8_t seq)
{
    s->ghost.holders[slot] |= (uint8_t)(1 << me);
    look(slot, seq);
}

/* reader.c ready, pinning.c: FOUND, NOTHING or ENDED; t->seq is head. */
static void ready(struct frame *f)
{
    BEGIN;
    if (planted != ENDED_LATE) {
        STEP("take.c mcpd_reader_ready: load ended");
        f->flag = load(word.ended, weak(ENDED_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    }
    STEP("take.c mcpd_reader_ready: load head");
    f->seq = load(word.head, weak(HEAD_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    if (planted == ENDED_LATE) {
        STEP("take.c mcpd_reader_ready: load ended");
        f->flag = load(word.ended, SEQ_CST);
    }
    t->seq = f->seq;
    if (f->seq >= my_reader()->wanted)
        RETURN(FOUND);
    if (f->flag && f->seq < s->ghost.published)
        violate("a reader takes the end for the end, but there is a frame it has not seen");
    RETURN(f->flag ? ENDED : NOTHING);
    END;
}

/* Puts the pin on frame.seq: FOUND with t->slot, or STALE. */
static void pin_frame(struct frame *f)
{
    BEGIN;
    STEP("take.c mcpd_reader_find: load the queue entry (Pin 1)");
    f->word = load(word.queue + f->seq % config->nqueue,
                   weak(QUEUE_LOAD_RELAXED, ACQUIRE, RELAXED));
    if (f->word >> 3 != f->seq)
        RETURN(STALE);
    f->slot = f->word & 7;
    if (planted == RECHECK_EARLY) {
        STEP("pinning.c mcpd_reader_confirm: load the state (Pin 4)");
        f->word = load(word.state + f->slot, SEQ_CST);
    }
    STEP("take.c pin_frame: exchange the pin (Pin 3)");
    exchange_or_store(PIN_STORE, my_pin(), tag(f->seq, f->slot));
    if (planted == RECHECK_SKIPPED) {
        f->word = tag(f->seq, PUBLISHED);
    } else if (planted != RECHECK_EARLY) {
        STEP("pinning.c mcpd_reader_confirm: load the state (Pin 4)");
        f->word = load(word.state + f->slot, planted == RECHECK_RELAXED ? RELAXED
                                             : weak(RECHECK_ACQUIRE, SEQ_CST, ACQUIRE));
    }
    if (f->word != tag(f->seq, PUBLISHED)) {
        STEP("take.c pin_frame: withdraw the pin (Pin 4)");
        store(my_pin(), 0, RELEASE);
        RETURN(STALE);
    }
    STEP("pinning.c mcpd_reader_confirm: copy the metadata (Pin 5)");
    hold(f->slot, f->seq);
    t->slot = f->slot;
    RETURN(FOUND);
    END;
}

static void got(uint8_t seq)
{
    struct reader *reader = my_reader();
    if (seq < reader->wanted || (config->policy == LOSSLESS && seq != reader->wanted))
        violate("a frame is repeated, out of order or left out");
    s->ghost.received[my_side()]++;
    if (config->policy == FIFO)
        s->ghost.dropped[my_side()] = (uint8_t)(s->ghost.dropped[my_side()] + seq - reader->wanted);
    reader->wanted = (uint8_t)(seq + (config->every_n ? config->every_n : 1));
}

static bool makes_room(void)
{
    return config->policy == LOSSLESS;
}

static void store_wants(struct frame *f)
{
    BEGIN;
    if (config->paced && !makes_room()) {
        STEP("thinning.c mcpd_reader_store_wants: store not_before_ns");
        store(word.not_before + my_side() - 1, my_reader()->not_before, RELAXED);
    }
    if (planted != CURSOR_EARLY) {
        STEP("thinning.c mcpd_reader_store_wants: store the cursor (Pin 6)");
        store(word.cursor + my_side() - 1, my_reader()->wanted,
              weak(CURSOR_RELEASE, SEQ_CST, RELEASE));
    }
    END;
}

void reader_take(struct frame *f)
{
    BEGIN;
    for (;;) {
        CALL(ready);
        if (t->result != FOUND)
            RETURN(t->result);
        f->seq = chosen(my_reader()->wanted, t->seq);
        if (f->seq == f->keep)
            violate("a reader of an honest writer gives EBADMSG");
        if (planted == CURSOR_EARLY) {
            STEP("thinning.c mcpd_reader_store_wants: store the cursor (Pin 6)");
            store(word.cursor + my_side() - 1, (uint8_t)(f->seq + 1), SEQ_CST);
        }
        CALL(pin_frame, .seq = f->seq);
        if (t->result == STALE) {
            f->keep = f->seq;
            continue;
        }
        f->slot = t->slot;
        if (f->seq < my_reader()->not_before) {
            my_reader()->wanted = (uint8_t)(f->seq + 1);
            s->ghost.dropped[my_side()]++;
            STEP("take.c pass_over: store 0 to the pin (Unpin)");
            s->ghost.holders[f->slot] &= (uint8_t)~(1 << me);
            store(my_pin(), 0, RELEASE);
            visible();
            CALL(store_wants);
            if (makes_room())
                CALL(made_room);
            continue;
        }
        got(f->seq);
        if (config->paced)
            my_reader()->not_before = (uint8_t)(f->seq + config->paced);
        CALL(store_wants);
        t->seq = f->seq;
        t->slot = f->slot;
        RETURN(FOUND);
    }
    END;
}

void reader_unpin(struct frame *f)
{
    BEGIN;
    STEP("pinning.c mcpd_reader_take_off: store 0 to the pin (Unpin)");
    s->ghost.holders[f->slot] &= (uint8_t)~(1 << me);
    if (makes_room())
        store(my_pin(), 0, weak(LOSSLESS_UNPIN_RELEASE, SEQ_CST, RELEASE));
    else
        store(my_pin(), 0, weak(UNPIN_RELAXED, RELEASE, RELAXED));
    visible();
    if (makes_room() && planted != WRITER_WAKE_SKIPPED)
        CALL(made_room);
    END;
}

void made_room(struct frame *f)
{
    BEGIN;
    CALL(wake_peer, .i = WRITER, .word = my_reader()->writer_signalled);
    my_reader()->writer_signalled = t->result;
    END;
}

/* ---- next, sleeping -------------------------------------------------------------------------- */

static routine *taker(void)
{
    return config->group ? member_take : reader_take;
}

static void sleep_locked(struct frame *f)
{
    BEGIN;
    do {
        CALL(sleep_begin);
        f->keep = NOTHING;
        if (planted != LOOK_SKIPPED) {
            CALL(taker());
            f->keep = t->result;
            f->seq = t->seq;
            f->slot = t->slot;
        }
        if (f->keep != NOTHING) {
            CALL(sleep_finish);
            break;
        }
        CALL(unlock_handle);
        if (planted == DRAIN_LATE)
            CALL(sleep_drain);
        if (my_reader()->more) { /* it looks again and again; once will do, when there is a change */
            STEP("the writer has looked whether it may reclaim the slot");
            if ((s->ghost.looking && s->threads[0].status == RUNS) || memory->pending(0))
                block();
            my_reader()->again = 1;
        } else {
            CALL(sleep_poll);
        }
        CALL(lock_handle);
        CALL(sleep_finish);
        CALL(taker());
        f->keep = t->result;
        f->seq = t->seq;
        f->slot = t->slot;
    } while (f->keep == NOTHING);
    if (config->shared) {
        STEP("wake.c mcpd_sleep_pass_on");
        pass_on();
    }
    t->seq = f->seq;
    t->slot = f->slot;
    RETURN(f->keep);
    END;
}

/* frame.flag: does not wait. */
static void next(struct frame *f)
{
    BEGIN;
    CALL(lock_handle);
    CALL(taker());
    if (t->result == NOTHING && s->sleep[my_side()].armed) {
        CALL(sleep_arm);
        CALL(taker());
        if (t->result != NOTHING) {
            f->keep = t->result;
            STEP("wake.c mcpd_sleep_pass_on");
            pass_on();
            t->result = f->keep;
        }
    }
    if (t->result == NOTHING && !f->flag)
        CALL(sleep_locked);
    f->keep = t->result;
    f->seq = t->seq;
    f->slot = t->slot;
    CALL(unlock_handle);
    t->seq = f->seq;
    t->slot = f->slot;
    RETURN(f->keep);
    END;
}

/* Reads the frame twice, and is done with it; frame.flag: gives it back if it is a member's. */
static void use(struct frame *f)
{
    BEGIN;
    if (planted == UNPIN_EARLY) {
        CALL(lock_handle);
        CALL(config->group ? member_finish : reader_unpin, .seq = f->seq, .slot = f->slot);
        CALL(unlock_handle);
    }
    STEP("the slot's bytes are read");
    look(f->slot, f->seq);
    if (planted != UNPIN_EARLY) {
        CALL(lock_handle);
        CALL(!config->group ? reader_unpin : f->flag ? member_give_back : member_finish,
             .seq = f->seq, .slot = f->slot);
        CALL(unlock_handle);
    }
    END;
}

/* A reader or member that waits by sleeping: to the end, or to the last frame if there is none. */
void reader_main(struct frame *f)
{
    BEGIN;
    f->flag = config->gives_back >> me & 1;
    do {
        CALL(next);
        if (t->result == ENDED)
            break;
        f->seq = t->seq;
        CALL(use, .seq = t->seq, .slot = t->slot, .flag = f->flag);
        f->flag = 0;
    } while (config->group || config->ends || f->seq < config->frames);
    END;
}

/* Polls for config->takes frames or the end, and never sleeps. */
void poller_main(struct frame *f)
{
    BEGIN;
    f->flag = config->gives_back >> me & 1;
    while (f->i < config->takes) {
        CALL(next, .flag = true);
        if (t->result == ENDED)
            break;
        if (t->result == NOTHING)
            continue;
        CALL(use, .seq = t->seq, .slot = t->slot, .flag = f->flag);
        f->flag = 0;
        f->i++;
    }
    END;
}

/* Pins two frames, is done with the newer one first, then reads one by one. */
void batch_main(struct frame *f)
{
    BEGIN;
    CALL(next);
    f->seq = t->seq;
    f->slot = t->slot;
    my_reader()->pin = 1;
    CALL(next);
    CALL(use, .seq = t->seq, .slot = t->slot);
    my_reader()->pin = 0;
    CALL(use, .seq = f->seq, .slot = f->slot);
    CALL(reader_main);
    END;
}

/* An event loop: armed while it polls, as shm/aio_waiting.py does. */
void loop_main(struct frame *f)
{
    BEGIN;
    do {
        CALL(next, .flag = true);
        f->keep = t->result;
        f->seq = t->seq;
        if (f->keep == FOUND)
            CALL(use, .seq = t->seq, .slot = t->slot);
        if (f->keep != NOTHING)
            continue;
        CALL(lock_handle);
        CALL(sleep_arm);
        CALL(config->group ? member_ready : ready);
        f->keep = t->result;
        if (f->keep != NOTHING)
            CALL(sleep_disarm);
        CALL(unlock_handle);
        if (f->keep == NOTHING) {
            CALL(sleep_poll);
            CALL(lock_handle);
            CALL(sleep_disarm);
            CALL(unlock_handle);
        }
        f->seq = 0;
        f->keep = NOTHING;
    } while (f->keep != ENDED && (config->ends || f->seq < config->frames));
    END;
}
