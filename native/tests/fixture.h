/*
 * A stream made as the daemon makes it, its writer, and readers attached to it, for the tests.
 */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atomics.h"
#include "check.h"
#include "layout.h"
#include "mcpd.h"
#include "stream.h"

#define SLOT_NBYTES 4096u
#define WORDS (SLOT_NBYTES / sizeof(uint64_t))
#define COUNTER(r, name) mcpd_load_relaxed(&(r).rctl->name)
#define LONG_NS INT64_C(20000000000) /* what would take this long has hung */

struct stream {
    struct mcpd_geometry geometry;
    int control, payload, wake;
    uint64_t last_id;
    struct mcpd_wctl *wctl; /* the tests' own mapping, writable */
    mcpd_writer *writer;
};

struct attached {
    uint64_t id;
    int control, wake;
    struct mcpd_admission admission;
    struct mcpd_thinning thinning;
    int64_t start;
    int group_fd; /* of a member */
    struct mcpd_rctl *rctl; /* the tests' own mapping */
    _Atomic uint64_t *pins;
    mcpd_reader *reader;
};

static inline int object_new(const char *name, int64_t nbytes)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && nbytes > 0);
    CHECK_EQUAL(ftruncate(fd, nbytes), 0);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return fd;
}

static inline void *object_map(int fd, int64_t nbytes)
{
    void *base = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

/* The objects of a stream whose frames are numbered from first_seq on, with no writer yet. */
static inline void stream_make_from(struct stream *s, uint32_t nslots, uint64_t first_seq)
{
    memset(s, 0, sizeof *s);
    s->geometry = (struct mcpd_geometry){
        .stream_id = 7, .generation = 3, .slot_nbytes = SLOT_NBYTES, .first_seq = first_seq,
        .nslots = nslots};
    s->control = object_new("wctl", mcpd_writer_control_nbytes(nslots));
    s->payload = object_new("payload", mcpd_payload_nbytes(&s->geometry));
    s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->wctl = object_map(s->control, mcpd_writer_control_nbytes(nslots));
    mcpd_wctl_format(s->wctl, &s->geometry);
}

static inline void stream_make(struct stream *s, uint32_t nslots)
{
    stream_make_from(s, nslots, 1);
}

static inline void stream_open(struct stream *s, uint32_t nslots, uint32_t history, uint32_t holds)
{
    stream_make(s, nslots);
    CHECK_EQUAL(mcpd_writer_open(&s->geometry, s->control, s->payload, s->wake, history, holds,
                                 &s->writer),
                0);
}

static inline void stream_close(struct stream *s)
{
    mcpd_writer_close(s->writer);
    munmap(s->wctl, (size_t)mcpd_writer_control_nbytes(s->geometry.nslots));
    close(s->control);
    close(s->payload);
    close(s->wake);
}

static inline struct mcpd_slot_header *header_of(struct stream *s, uint32_t slot)
{
    return (struct mcpd_slot_header *)((uint8_t *)s->wctl +
                                       mcpd_headers_offset(s->geometry.nslots)) + slot;
}

static inline _Atomic uint64_t *queue_of(struct stream *s, uint64_t seq)
{
    _Atomic uint64_t *queue = (_Atomic uint64_t *)((uint8_t *)s->wctl + sizeof(struct mcpd_wctl));
    return &queue[seq & (mcpd_queue_len(s->geometry.nslots) - 1)];
}

static inline int is_published(struct stream *s, uint64_t seq)
{
    for (uint32_t slot = 0; slot < s->geometry.nslots; slot++)
        if (mcpd_load_acquire(&header_of(s, slot)->state) == MCPD_TAG(seq, MCPD_SLOT_PUBLISHED))
            return 1;
    return 0;
}

/* The daemon's half of attaching: a control object and an eventfd. */
static inline void reader_make(struct stream *s, struct attached *r, enum mcpd_policy policy,
                               uint32_t max_pins)
{
    memset(r, 0, sizeof *r);
    r->id = ++s->last_id;
    r->admission.policy = policy;
    r->admission.max_pins = max_pins;
    r->group_fd = -1;
    r->control = object_new("rctl", mcpd_reader_control_nbytes(max_pins));
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->rctl = object_map(r->control, mcpd_reader_control_nbytes(max_pins));
    r->pins = (_Atomic uint64_t *)((uint8_t *)r->rctl + MCPD_RCTL_PINS);
    mcpd_rctl_format(r->rctl, &s->geometry, r->id, max_pins);
}

static inline int64_t reader_admit(struct stream *s, struct attached *r)
{
    return r->start = mcpd_writer_add_reader(s->writer, r->id, r->control, r->wake, &r->admission);
}

static inline int reader_open(struct stream *s, struct attached *r)
{
    int wakes_writer = r->admission.policy == MCPD_LOSSLESS || r->admission.group != 0;
    struct mcpd_reader_fds fds = {.writer_control = s->control,
                                  .payload = s->payload,
                                  .control = r->control,
                                  .wake = r->wake,
                                  .writer_wake = wakes_writer ? s->wake : -1,
                                  .group = r->group_fd};
    return mcpd_reader_open(&s->geometry, &fds, &r->admission, (uint64_t)r->start, &r->thinning,
                            &r->reader);
}

static inline void attach_made(struct stream *s, struct attached *r)
{
    CHECK(reader_admit(s, r) >= 0);
    CHECK_EQUAL(reader_open(s, r), 0);
}

static inline void attach(struct stream *s, struct attached *r, enum mcpd_policy policy,
                          uint32_t max_pins)
{
    reader_make(s, r, policy, max_pins);
    attach_made(s, r);
}

static inline void attach_fifo(struct stream *s, struct attached *r, uint32_t depth,
                               uint32_t max_pins)
{
    reader_make(s, r, MCPD_FIFO, max_pins);
    r->admission.depth = depth;
    attach_made(s, r);
}

static inline void attach_thinned(struct stream *s, struct attached *r, enum mcpd_policy policy,
                                  uint32_t depth, struct mcpd_thinning thinning)
{
    reader_make(s, r, policy, 2);
    r->admission.depth = depth;
    r->thinning = thinning;
    attach_made(s, r);
}

static inline void detach(struct attached *r)
{
    mcpd_reader_close(r->reader);
    munmap(r->rctl, (size_t)mcpd_reader_control_nbytes(r->admission.max_pins));
    close(r->control);
    close(r->wake);
}

/* Every word of a frame's payload follows from its sequence number. */
static inline uint64_t word_of(uint64_t seq, size_t i)
{
    return seq * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static inline void fill(void *slot, uint64_t seq)
{
    uint64_t *words = slot;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = word_of(seq, i);
}

static inline int is_whole(const void *slot, uint64_t seq)
{
    const uint64_t *words = slot;
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != word_of(seq, i))
            return 0;
    return 1;
}

/* Fills and publishes a slot acquired before; the writer is alone, so that seq is known. */
static inline int64_t publish_slot(struct stream *s, int slot, uint64_t seq)
{
    struct mcpd_meta meta = {.nbytes = SLOT_NBYTES, .device_event = -1};
    fill(mcpd_writer_slot(s->writer, (uint32_t)slot), seq);
    return mcpd_writer_publish(s->writer, (uint32_t)slot, &meta, 0);
}

/* Acquires, fills and publishes; returns the sequence number. */
static inline uint64_t publish(struct stream *s)
{
    int slot = mcpd_writer_acquire(s->writer, 0);
    CHECK(slot >= 0);
    uint64_t seq = mcpd_load_relaxed(&s->wctl->head) + 1;
    CHECK_EQUAL(publish_slot(s, slot, seq), seq);
    return seq;
}

/* Pins the next frame, checks that it is whole, unpins; returns its sequence number. */
static inline uint64_t read_one(struct attached *r)
{
    struct mcpd_meta meta;
    int pin = mcpd_reader_next(r->reader, LONG_NS, &meta);
    CHECK(pin >= 0);
    CHECK(is_whole(mcpd_reader_slot(r->reader, (uint32_t)pin), meta.seq));
    CHECK_EQUAL(mcpd_reader_unpin(r->reader, (uint32_t)pin), 0);
    return meta.seq;
}

/* Pins the next frame, which is seq and there already; its pin. */
static inline uint32_t pin_next(struct attached *r, uint64_t seq)
{
    struct mcpd_meta meta;
    int pin = mcpd_reader_next(r->reader, 0, &meta);
    CHECK(pin >= 0);
    CHECK_EQUAL(meta.seq, seq);
    CHECK(is_whole(mcpd_reader_slot(r->reader, (uint32_t)pin), seq));
    return (uint32_t)pin;
}

/* What next says without waiting: a pin or an error. */
static inline int next_now(struct attached *r)
{
    struct mcpd_meta meta;
    return mcpd_reader_next(r->reader, 0, &meta);
}

static inline uint64_t signals(int fd)
{
    uint64_t count = 0;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count ? count : 0;
}

static inline pthread_t start(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, run, argument), 0);
    return thread;
}

static inline void *finish(pthread_t thread)
{
    void *result;
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    return result;
}

/* Gives way until the word is odd: somebody sleeps. */
static inline void wait_asleep(const _Atomic uint32_t *epoch)
{
    int64_t deadline_ns = mcpd_deadline_ns(LONG_NS);
    while ((mcpd_load_seq_cst(epoch) & 1) == 0) {
        CHECK(mcpd_now_ns() < deadline_ns);
        sched_yield();
    }
}

#endif
