/* native/src/wake.c; docs/protocol.md, "Sleeping and waking". */
#include "routines.h"

static struct sleep *mine(void)
{
    return &s->sleep[my_side()];
}

static bool asleep(void)
{
    return mine()->waiting > 0 || mine()->armed;
}

/* frame.i: by how much */
static void advance(struct frame *f)
{
    BEGIN;
    STEP("wake.c advance: exchange the epoch (Sleep 1, 4)");
    mine()->value = (uint8_t)(mine()->value + f->i);
    exchange_or_store(my_side() == WRITER ? WRITER_EPOCH_STORE : EPOCH_STORE, epoch_of(my_side()),
                      mine()->value);
    END;
}

void sleep_begin(struct frame *f)
{
    BEGIN;
    if (!asleep())
        CALL(advance, .i = 1);
    mine()->waiting++;
    END;
}

void sleep_poll(struct frame *f)
{
    BEGIN;
    STEP("wake.c mcpd_sleep_poll (Sleep 3)");
    if (!s->signal[my_side()])
        block();
    END;
}

void sleep_drain(struct frame *f)
{
    BEGIN;
    STEP("wake.c drain (Sleep 4)");
    s->signal[my_side()] = 0;
    END;
}

static int renewed(void)
{
    return planted == EPOCH_KEPT ? 0 : 2;
}

void sleep_finish(struct frame *f)
{
    BEGIN;
    if (planted != DRAIN_LATE && planted != EPOCH_BEFORE_DRAIN)
        CALL(sleep_drain);
    mine()->waiting--;
    f->i = (uint8_t)(asleep() ? renewed() : 1);
    if (f->i > 0)
        CALL(advance, .i = f->i);
    if (planted == EPOCH_BEFORE_DRAIN)
        CALL(sleep_drain);
    END;
}

void pass_on(void)
{
    if (asleep() && planted != PASS_ON_SKIPPED)
        s->signal[my_side()] = 1;
}

void sleep_arm(struct frame *f)
{
    BEGIN;
    if (asleep())
        CALL(sleep_drain);
    f->i = (uint8_t)(asleep() ? renewed() : 1);
    if (f->i > 0)
        CALL(advance, .i = f->i);
    mine()->armed = 1;
    END;
}

void sleep_disarm(struct frame *f)
{
    BEGIN;
    if (!mine()->armed)
        RETURN(NOTHING);
    CALL(sleep_drain);
    mine()->armed = 0;
    f->i = (uint8_t)(asleep() ? renewed() : 1);
    if (f->i > 0)
        CALL(advance, .i = f->i);
    if (asleep()) {
        STEP("wake.c mcpd_sleep_pass_on");
        pass_on();
    }
    END;
}

/* Returns the epoch for which it was signalled, or what frame.word was. */
void wake_peer(struct frame *f)
{
    BEGIN;
    STEP("wake.c mcpd_wake_peer: load the epoch");
    f->seq = load(epoch_of(f->i), weak(EPOCH_LOAD_ACQUIRE, SEQ_CST, ACQUIRE));
    if ((f->seq & 1) == 0 || f->seq == f->word)
        RETURN(f->word);
    f->word = f->seq;
    STEP("wake.c mcpd_wake_signal: write to the eventfd");
    s->signal[f->i] = 1;
    RETURN(f->word);
    END;
}

/* The handle's mutex, where several threads share one; a lock is one exchange that succeeds. */
void lock_handle(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    if (config->shared) {
        STEP("lock the handle");
        if (!compare_exchange(word.lock + my_side(), 0, 1, &seen, SEQ_CST))
            block();
    }
    END;
}

void unlock_handle(struct frame *f)
{
    BEGIN;
    if (config->shared) {
        STEP("unlock the handle");
        store(word.lock + my_side(), 0, RELEASE);
    }
    END;
}
