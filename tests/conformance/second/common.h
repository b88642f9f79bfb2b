/* What both ends of the second implementation share: mappings, sizes, sleep and signals. */
#ifndef SECOND_COMMON_H
#define SECOND_COMMON_H

#include "second.h"

#ifndef LOAD /* a test plants a weaker one */
#define LOAD(word) atomic_load_explicit(&(word), memory_order_seq_cst)
#endif
#define LOAD_ACQUIRE(word) atomic_load_explicit(&(word), memory_order_acquire)
#define LOAD_RELAXED(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_seq_cst)
#define STORE_RELEASE(word, value) atomic_store_explicit(&(word), (value), memory_order_release)
#define STORE_RELAXED(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)
#define EXCHANGE(word, value) atomic_exchange_explicit(&(word), (value), memory_order_seq_cst)
/* A counter with one writer. */
#define COUNT(word, more) STORE_RELAXED(word, LOAD_RELAXED(word) + (more))

struct mapping {
    void *at;
    size_t nbytes;
};

int geometry_check(const struct geometry *g);
uint32_t queue_length(uint32_t nslots);
uint64_t headers_offset(uint32_t nslots);
uint64_t writer_control_nbytes(uint32_t nslots);
uint64_t reader_control_nbytes(uint32_t max_pins);
uint64_t group_control_nbytes(uint32_t nslots);

/* Refuses an object that is smaller than nbytes before it is touched: -EINVAL. */
int map(int fd, uint64_t nbytes, bool writable, struct mapping *out);
void unmap(struct mapping *m);
/* -EPROTONOSUPPORT unless the object at m has this magic and our ABI. */
int check_magic(const struct mapping *m, uint64_t magic);

int64_t now_ns(void);
void signal_fd(int fd);
/* Signals the peer if it sleeps and was not signalled in this sleep; says whether it did. */
bool signal_sleeper(const _Atomic uint32_t *epoch, uint32_t *signalled, int fd);
/* Steps 1, 3 and 4 of sleeping; the look again of step 2 is the caller's. */
void sleep_begin(_Atomic uint32_t *epoch);
int sleep_until(int fd, int64_t until_ns); /* 0, -ETIMEDOUT or -EINTR; until_ns < 0: for ever */
bool sleep_end(_Atomic uint32_t *epoch, int fd); /* whether a signal was taken */
int64_t deadline_of(int64_t timeout_ns);

static inline const _Atomic uint64_t *queue_of(const struct mapping *control)
{
    return (const _Atomic uint64_t *)((const char *)control->at + PAGE);
}

#endif
