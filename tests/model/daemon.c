/* The daemon's part: native/src/control.c and its loop; docs/protocol.md, "Sweep", "The end". */
#include "routines.h"

/* Who may die, or leave: the daemon sees no difference. */
static int the_mortal(void)
{
    int thread = 0;
    while (!(config->may_die >> thread & 1))
        thread++;
    return thread;
}

/* Waits until the kernel says that the process is gone. */
static void wait_for_death(struct frame *f)
{
    BEGIN;
    STEP("daemon: a process is gone");
    if (s->threads[the_mortal()].status == RUNS)
        block();
    else
        memory->follow(the_mortal());
    END;
}

static void signal_all(struct frame *f)
{
    BEGIN;
    for (f->i = 0; f->i < SIDES; f->i++) {
        STEP("daemon: write to an eventfd");
        s->signal[f->i] = 1;
    }
    END;
}

/* control.c: member f->i is gone, its unfinished frames go to another. */
void daemon_sweeps(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    CALL(wait_for_death);
    if (planted == SWEEP_SKIPPED)
        RETURN(NOTHING);
    for (f->i = 0; f->i < config->nslots; f->i++) {
        STEP("control.c mcpd_gctl_sweep: load a claim (Sweep)");
        f->word = load(word.claim + f->i, SEQ_CST);
        f->seq = claim_seq(f->word);
        if (f->word != claim(f->seq, config->sides[the_mortal()] - 1, TAKEN))
            continue;
        STEP("control.c mcpd_gctl_sweep: exchange a claim (Sweep)");
        if (compare_exchange(word.claim + f->i, f->word,
                             claim(f->seq, config->sides[the_mortal()] - 1, RETURNED), &seen,
                             SEQ_CST)) {
            if (s->ghost.holders[f->i] & 1 << the_mortal())
                s->ghost.holders[f->i] ^= (uint8_t)(1 << the_mortal() | IS_RETURNED);
            f->flag++;
        }
    }
    if (planted == SWEEP_SETS) {
        f->flag = 0;
        for (f->i = 0; f->i < config->nslots; f->i++) {
            STEP("control.c: load a claim to count it (Sweep)");
            if (claim_state(load(word.claim + f->i, ACQUIRE)) == RETURNED)
                f->flag++;
        }
        STEP("control.c: set returned (Sweep)");
        store(word.returned, f->flag, SEQ_CST);
    } else if (planted != SWEEP_NO_COUNT) {
        STEP("control.c mcpd_gctl_sweep: raise returned (Sweep)");
        add(word.returned, 1, SEQ_CST);
    }
    if (planted != SWEEP_WAKE_SKIPPED)
        CALL(signal_all);
    END;
}

/* The writer died; or the daemon ends the stream of one that lives. */
void daemon_ends(struct frame *f)
{
    uint8_t seen;
    BEGIN;
    if (config->may_die)
        CALL(wait_for_death);
    STEP("control.c mcpd_wctl_end: ended, by compare-and-exchange");
    (void)compare_exchange(word.ended, 0, 2, &seen, SEQ_CST);
    s->ghost.ended = true;
    if (planted != END_WAKE_SKIPPED)
        CALL(signal_all);
    END;
}
