/*
 * The memory orders used on shared words, by name, and what each use pairs with.
 *
 *   word                  written                          read
 *   header.state          publish: release                 pin: seq_cst, after the pin's exchange
 *                         reclaim: seq_cst exchange
 *   pins[]                pin: seq_cst exchange            reclaim: seq_cst, after its exchange
 *                         unpin: release, or seq_cst       (the same load; acquires the unpin)
 *   queue[]               publish: release                 next: acquire
 *   head                  publish: seq_cst, before the     next: seq_cst, after the sleeper's
 *                         epochs are read                  exchange of its epoch
 *   ended                 end: seq_cst, likewise           next, acquire: seq_cst, likewise
 *   claims[]              claim, finish: seq_cst           reclaim: seq_cst, after its exchange
 *                         compare-exchange                 claim: acquire
 *   rctl.cursor           next: seq_cst, after the pin     acquire: seq_cst, before the pins
 *                                                          publish: seq_cst, after the epoch
 *   rctl.not_before_ns    next: relaxed, before the epoch  publish: relaxed, after the epoch
 *   gctl.cursor           claim: seq_cst compare-exchange  acquire: seq_cst, before the claims
 *   gctl.returned         give back: seq_cst, after the    next: seq_cst, before the claims
 *                         claim
 *   rctl.epoch            sleep: seq_cst exchange          publish, end: seq_cst
 *   wctl.writer_epoch     sleep: seq_cst exchange          unpin: seq_cst, after the pin's store
 *   counters              relaxed                          relaxed
 *
 * Three of these are store-then-load on both sides (Dekker's pattern), where release and acquire
 * are not enough: state against pins and claims, head and ended against a reader's epoch, and a pin
 * or claim against the writer's epoch. One total order over the four operations means that at least
 * one side sees the other: the reader that the slot is being reclaimed or the writer that it is
 * pinned; the sleeper that there is something or the waker that there is a sleeper.
 */
#ifndef MCPD_ATOMICS_H
#define MCPD_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

#define mcpd_load_relaxed(word) atomic_load_explicit(word, memory_order_relaxed)
#define mcpd_load_acquire(word) atomic_load_explicit(word, memory_order_acquire)
#define mcpd_load_seq_cst(word) atomic_load_explicit(word, memory_order_seq_cst)
#define mcpd_store_relaxed(word, value) atomic_store_explicit(word, value, memory_order_relaxed)
#define mcpd_store_release(word, value) atomic_store_explicit(word, value, memory_order_release)
#define mcpd_store_seq_cst(word, value) atomic_store_explicit(word, value, memory_order_seq_cst)
#define mcpd_exchange_seq_cst(word, value) \
    atomic_exchange_explicit(word, value, memory_order_seq_cst)
/* 1 and the word is `value`, or 0 and `*expected` is what it is. */
#define mcpd_compare_exchange_seq_cst(word, expected, value) \
    atomic_compare_exchange_strong_explicit(word, expected, value, memory_order_seq_cst, \
                                            memory_order_seq_cst)
#define mcpd_add_seq_cst(word, value) \
    atomic_fetch_add_explicit(word, value, memory_order_seq_cst)
#define mcpd_add_relaxed(word, value) \
    atomic_fetch_add_explicit(word, value, memory_order_relaxed)

/* Tells the processor that this is a loop that waits for another one. */
static inline void mcpd_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Brings the lines that hold these bytes near; to be asked for some time before they are needed. */
static inline void mcpd_fetch(const volatile void *bytes, unsigned nbytes)
{
    for (unsigned at = 0; at < nbytes; at += 64)
        __builtin_prefetch((const char *)(uintptr_t)bytes + at);
}

/* Adds to a counter that only the caller writes, under its handle's mutex; others may look. */
static inline void mcpd_count(_Atomic uint64_t *counter, uint64_t amount)
{
    mcpd_store_relaxed(counter, mcpd_load_relaxed(counter) + amount);
}

#endif
