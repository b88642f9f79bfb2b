/* The routines that the files of the model call in each other, and what they share. */
#ifndef ROUTINES_H
#define ROUTINES_H

#include "model.h"

/* The handle that the running thread uses; its number among the readers or members. */
static inline int my_side(void) { return config->sides[me]; }
static inline struct reader *my_reader(void) { return &s->readers[my_side()]; }
static inline int epoch_of(int side)
{
    return side == WRITER ? word.writer_epoch : word.epoch + side - 1;
}

static inline enum order weak(enum weakening name, enum order strong, enum order weaker)
{
    return planted == name ? weaker : strong;
}
/* An exchange that a planted weakening makes a plain store. */
static inline void exchange_or_store(enum weakening name, int at, uint8_t value)
{
    if (planted == name)
        store(at, value, RELEASE);
    else
        (void)exchange(at, value, SEQ_CST);
}

/* ---- wake.c: of the thread's own handle, but for wake_peer ---- */
routine sleep_begin, sleep_poll, sleep_finish, sleep_drain, sleep_arm, sleep_disarm;
void pass_on(void);         /* a system call: in a step of its own */
routine wake_peer;          /* frame.i: the side; frame.word: the epoch it was signalled for last */
routine lock_handle, unlock_handle;

enum { IS_RETURNED = 0x80 }; /* in ghost.holders: a returned claim holds the slot */

/* ---- whole threads ---- */
routine writer_main, reader_main, poller_main, batch_main, loop_main;
routine daemon_sweeps, daemon_ends;

/* ---- reader.c, member.c: frames ---- */
routine reader_take, member_take; /* FOUND with t->seq and t->slot, NOTHING or ENDED */
routine member_ready, made_room;
routine reader_unpin, member_finish, member_give_back; /* frame.seq, frame.slot */
uint8_t chosen(uint8_t wanted, uint8_t head); /* which frame is next, by the policy */
void hold(uint8_t slot, uint8_t seq);         /* the frame is confirmed; reads its metadata */
void look(uint8_t slot, uint8_t seq);         /* reads its bytes */

#endif
