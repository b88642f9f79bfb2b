/*
 * x86-TSO: each thread has a first-in-first-out buffer of stores, which it reads from first; memory
 * takes the oldest store of some buffer whenever it likes. What gcc makes of C11 there:
 *
 *   load, any order                      mov
 *   store, relaxed or release            mov             goes into the buffer
 *   store, seq_cst; exchange; compare-   xchg, lock ...  waits until the buffer is empty
 *   and-exchange, any order
 *
 * System calls empty no buffer here, though the kernel's locks would: one assumption less.
 */
#include <stddef.h>
#include <string.h>

#include "model.h"

static void reset(void)
{
    memset(&s->tso, 0, sizeof s->tso);
    memcpy(s->tso.value, initial, sizeof initial);
}

static uint8_t look(int at)
{
    for (int i = s->tso.n[me]; i-- > 0;)
        if (s->tso.at[me][i] == at)
            return s->tso.stored[me][i];
    return s->tso.value[at];
}

static uint8_t tso_load(int at, enum order order)
{
    (void)order;
    return look(at);
}

static void push(int at, uint8_t value)
{
    int n = s->tso.n[me]++;
    if (n == BUFFER) {
        violate("the model's store buffer is too short");
        return;
    }
    s->tso.at[me][n] = (uint8_t)at;
    s->tso.stored[me][n] = value;
}

static void tso_store(int at, uint8_t value, enum order order)
{
    if (order == SEQ_CST) {
        if (s->tso.n[me] > 0)
            block();
        s->tso.value[at] = value;
    } else {
        push(at, value);
        invisible();
    }
}

static bool tso_change(enum change how, int at, const uint8_t *expected, uint8_t value,
                       uint8_t *seen, enum order order)
{
    (void)order;
    if (s->tso.n[me] > 0)
        block();
    *seen = s->tso.value[at];
    if (expected != NULL && *seen != *expected)
        return false;
    s->tso.value[at] = how == ADD ? (uint8_t)(*seen + value) : value;
    return true;
}

static uint8_t read_bytes(int slot)
{
    return look(word.bytes + slot);
}

static void write_bytes(int slot, uint8_t value)
{
    push(word.bytes + slot, value);
    invisible();
}

static bool pending(int thread)
{
    return s->tso.n[thread] > 0;
}

static void flush(int thread)
{
    struct tso *m = &s->tso;
    int n = --m->n[thread];
    m->value[m->at[thread][0]] = m->stored[thread][0];
    memmove(m->at[thread], m->at[thread] + 1, (size_t)n);
    memmove(m->stored[thread], m->stored[thread] + 1, (size_t)n);
    m->at[thread][n] = m->stored[thread][n] = 0;
}

static void follow(int thread)
{
    if (s->tso.n[thread] > 0)
        block();
}

static void settle(void)
{
}

static unsigned nbytes(const struct state *state)
{
    (void)state;
    return offsetof(struct state, tso) + sizeof(struct tso);
}

const struct memory tso = {"tso",     reset,       tso_load, tso_store, tso_change, read_bytes,
                           write_bytes, pending, flush,    follow,    settle,       nbytes};
