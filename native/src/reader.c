/*
 * A reader's end of a stream: pinning by policy, sleeping, making room.
 *
 * The writer's control object and the payload are mapped read-only, and nothing in them is trusted:
 * an index or size that cannot be gives -EBADMSG. What the reader decides by is private to it; its
 * own control object is written, never read back.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "reader.h"

/* Lost races in a row until a writer counts as dishonest; an honest one makes a frame for each. */
#define MAX_RETRIES 16384

/* The longest that a reader looks on for a frame before it sleeps; 0 in tests of sleeping. */
#ifndef LOOK_ON_NS
#define LOOK_ON_NS INT64_C(250000)
#endif

/* ---- opening and closing ------------------------------------------------------------------- */

static void discard(mcpd_reader *reader)
{
    if (reader->guard != NULL && *reader->guard) { /* a forked child does not have the mappings */
        for (uint32_t i = 0; reader->words != NULL && i < reader->max_pins; i++)
            mcpd_store_seq_cst(&reader->words[i], 0);
        if (reader->words != NULL && reader->writer_wake_fd >= 0)
            mcpd_wake_peer(&reader->wctl->writer_epoch, &reader->writer_signalled,
                           reader->writer_wake_fd);
        mcpd_map_close(&reader->writer_control);
        mcpd_map_close(&reader->payload);
        mcpd_map_close(&reader->control);
    }
    if (reader->sleep.fd >= 0)
        close(reader->sleep.fd);
    if (reader->writer_wake_fd >= 0)
        close(reader->writer_wake_fd);
    mcpd_guard_close(reader->guard);
    pthread_mutex_destroy(&reader->mutex);
    free(reader->pins);
    free(reader->free);
    free(reader);
}

static int open_parts(mcpd_reader *reader, int writer_control_fd, int payload_fd, int control_fd,
                      int wake_fd, int writer_wake_fd)
{
    uint32_t nslots = reader->geometry.nslots;
    int result = mcpd_guard_open(&reader->guard);
    if (result == 0)
        result = mcpd_map_open(&reader->writer_control, writer_control_fd,
                               mcpd_wctl_nbytes(nslots), 0);
    if (result == 0)
        result = mcpd_map_open(&reader->payload, payload_fd,
                               (size_t)mcpd_payload_nbytes(&reader->geometry), 0);
    if (result == 0)
        result = mcpd_map_open(&reader->control, control_fd, mcpd_rctl_nbytes(reader->max_pins), 1);
    if (result == 0)
        result = reader->sleep.fd = mcpd_wake_dup(wake_fd);
    if (result >= 0 && writer_wake_fd >= 0)
        result = reader->writer_wake_fd = mcpd_wake_dup(writer_wake_fd);
    if (result < 0)
        return result;
    const uint8_t *base = reader->writer_control.base;
    reader->wctl = (const struct mcpd_wctl *)base;
    reader->queue = (const _Atomic uint64_t *)(base + sizeof(struct mcpd_wctl));
    reader->headers = (const struct mcpd_slot_header *)(base + mcpd_headers_offset(nslots));
    reader->rctl = reader->control.base;
    reader->sleep.epoch = &reader->rctl->epoch;
    result = mcpd_control_check(reader->wctl->magic, MCPD_WCTL_MAGIC, reader->wctl->abi);
    if (result == 0)
        result = mcpd_control_check(reader->rctl->magic, MCPD_RCTL_MAGIC, reader->rctl->abi);
    if (result == 0)
        reader->words = (_Atomic uint64_t *)((uint8_t *)reader->control.base + MCPD_RCTL_PINS);
    return result;
}

int mcpd_reader_open(const struct mcpd_geometry *geometry, int writer_control_fd, int payload_fd,
                     int control_fd, int wake_fd, int writer_wake_fd, uint32_t max_pins,
                     enum mcpd_policy policy, uint64_t start_seq, mcpd_reader **out)
{
    if (mcpd_geometry_check(geometry) != 0 || max_pins < 1 || max_pins > MCPD_MAX_PINS)
        return -EINVAL;
    if (policy != MCPD_LATEST && policy != MCPD_LOSSLESS)
        return -ENOTSUP;
    mcpd_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL)
        return -ENOMEM;
    pthread_mutex_init(&reader->mutex, NULL);
    reader->geometry = *geometry;
    reader->queue_mask = mcpd_queue_len(geometry->nslots) - 1;
    reader->max_pins = max_pins;
    reader->lossless = policy == MCPD_LOSSLESS;
    reader->usual_wait_ns = 4 * LOOK_ON_NS;
    reader->sleep.fd = reader->writer_wake_fd = -1;
    reader->pins = calloc(max_pins, sizeof *reader->pins);
    reader->free = calloc(max_pins, sizeof *reader->free);
    int result = -ENOMEM;
    if (reader->pins != NULL && reader->free != NULL)
        result = open_parts(reader, writer_control_fd, payload_fd, control_fd, wake_fd,
                            writer_wake_fd);
    if (result != 0) {
        discard(reader);
        return result;
    }
    for (uint32_t pin = max_pins; pin-- > 0;)
        reader->free[reader->nfree++] = pin;
    /* The newest frame that is there already is unseen; those before it are not called skipped. */
    uint64_t head = mcpd_load_acquire(&reader->wctl->head);
    reader->wanted = start_seq != 0 ? start_seq : head != 0 ? head : 1;
    mcpd_store_release(&reader->rctl->cursor, reader->wanted);
    *out = reader;
    return 0;
}

void mcpd_reader_close(mcpd_reader *reader)
{
    if (reader != NULL)
        discard(reader);
}

/* ---- pinning ------------------------------------------------------------------------------- */

/*
 * Puts a pin that is not in use on frame seq and copies its metadata. 0, -ESTALE when its slot has
 * moved on, -EBADMSG when the writer lies; then the pin is withdrawn. The exchange and the re-check
 * in mcpd_reader_confirm pair with the exchange and the scan in the writer's reclaim (retention.c).
 */
static int pin_frame(mcpd_reader *reader, uint64_t seq, uint32_t pin, struct mcpd_meta *meta)
{
    uint64_t entry = mcpd_load_acquire(&reader->queue[seq & reader->queue_mask]);
    if (MCPD_TAG_SEQ(entry) != seq)
        return -ESTALE;
    uint32_t slot = MCPD_TAG_LOW(entry);
    if (slot >= reader->geometry.nslots)
        return -EBADMSG;
    (void)mcpd_exchange_seq_cst(&reader->words[pin], MCPD_TAG(seq, slot));
    int result = mcpd_reader_confirm(reader, slot, seq, meta);
    if (result != 0) {
        mcpd_store_release(&reader->words[pin], 0);
        return result;
    }
    reader->pins[pin] =
        (struct mcpd_reader_pin){.seq = seq, .slot = slot, .since_ns = mcpd_now_ns()};
    return 0;
}

/*
 * Whether there is something to pin: 1, or -EAGAIN, or why not. `ended` is read before head, so that
 * what was published before the end is seen. Both loads pair with the writer's seq_cst stores, as the
 * look that must follow the sleeper's exchange of its epoch.
 */
static int ready(mcpd_reader *reader, uint64_t *head)
{
    if (reader->shut)
        return -ECANCELED;
    uint32_t ended = mcpd_load_seq_cst(&reader->wctl->ended);
    *head = mcpd_load_seq_cst(&reader->wctl->head);
    if (*head >= reader->wanted)
        return reader->nfree > 0 ? 1 : -EBUSY;
    return ended != MCPD_LIVE ? -EPIPE : -EAGAIN;
}

/*
 * Pins the next frame by the policy. A lost race is tried again at the new head. An honest writer
 * retains its newest frame and all that a lossless reader is owed, so a race lost for one of those
 * is none; likewise when the head has not moved.
 */
static int take(mcpd_reader *reader, struct mcpd_meta *meta)
{
    uint64_t head, seq = 0;
    for (int retries = 0; retries < MAX_RETRIES; retries++) {
        int result = ready(reader, &head);
        if (result < 0)
            return result;
        if (retries > 0 && (reader->lossless || head == seq))
            return -EBADMSG;
        seq = reader->lossless ? reader->wanted : head;
        uint32_t pin = reader->free[reader->nfree - 1];
        result = pin_frame(reader, seq, pin, meta);
        if (result == 0) {
            reader->nfree--;
            mcpd_count(&reader->rctl->received, 1);
            if (seq > reader->wanted)
                mcpd_count(&reader->rctl->skipped, seq - reader->wanted);
            reader->wanted = seq + 1;
            /* After the pin; pairs with the load in the writer's retained_from. */
            mcpd_store_seq_cst(&reader->rctl->cursor, reader->wanted);
            return (int)pin;
        }
        if (result != -ESTALE)
            return result;
        mcpd_count(&reader->rctl->retries, 1);
    }
    return -EBADMSG;
}

/* ---- next, by polling or sleeping ---------------------------------------------------------- */

/* Takes if it can; an armed event loop that finds nothing goes on sleeping. */
static int try_locked(mcpd_reader *reader, struct mcpd_meta *meta)
{
    int result = take(reader, meta);
    if (result == -EAGAIN && reader->sleep.armed) {
        mcpd_sleep_arm(&reader->sleep);
        result = take(reader, meta);
        if (result != -EAGAIN)
            mcpd_sleep_pass_on(&reader->sleep);
    }
    return result;
}

/*
 * Where frames have come soon of late, looks on for about twice as long before it sleeps: waking a
 * processor that has gone idle takes 50 to 160 us, as long as such a wait. What it sees is a hint, the
 * caller takes. Frames at a camera's rate are never waited for like this.
 */
static void look_on(mcpd_reader *reader, int64_t deadline_ns)
{
    uint64_t wanted = reader->wanted;
    int64_t usual_ns = reader->usual_wait_ns;
    if (usual_ns >= LOOK_ON_NS)
        return;
    int64_t until_ns = mcpd_now_ns() + (2 * usual_ns < LOOK_ON_NS ? 2 * usual_ns : LOOK_ON_NS);
    pthread_mutex_unlock(&reader->mutex);
    do {
        for (int i = 0; i < 32; i++)
            mcpd_relax();
    } while (mcpd_load_acquire(&reader->wctl->head) < wanted &&
             mcpd_load_acquire(&reader->wctl->ended) == MCPD_LIVE &&
             mcpd_now_ns() < (until_ns < deadline_ns ? until_ns : deadline_ns));
    pthread_mutex_lock(&reader->mutex);
}

/* A long wait counts as one that is too long, so that a few short ones outweigh it. */
static void count_wait(mcpd_reader *reader, int64_t since_ns)
{
    int64_t waited_ns = mcpd_now_ns() - since_ns;
    if (waited_ns > 4 * LOOK_ON_NS)
        waited_ns = 4 * LOOK_ON_NS;
    reader->usual_wait_ns += (waited_ns - reader->usual_wait_ns) / 4;
}

static int sleep_locked(mcpd_reader *reader, int64_t deadline_ns, struct mcpd_meta *meta)
{
    int result, woken;
    do {
        mcpd_sleep_begin(&reader->sleep);
        result = take(reader, meta);
        if (result != -EAGAIN) {
            mcpd_sleep_finish(&reader->sleep);
            break;
        }
        pthread_mutex_unlock(&reader->mutex);
        woken = mcpd_sleep_poll(reader->sleep.fd, deadline_ns);
        pthread_mutex_lock(&reader->mutex);
        mcpd_sleep_finish(&reader->sleep);
        result = take(reader, meta);
        if (woken == 1) {
            mcpd_count(&reader->rctl->wakeups, 1);
            if (result == -EAGAIN)
                mcpd_count(&reader->rctl->spurious, 1);
        }
    } while (result == -EAGAIN && woken == 1);
    if (result == -EAGAIN)
        return woken == 0 ? -ETIMEDOUT : woken;
    mcpd_sleep_pass_on(&reader->sleep);
    return result;
}

static int wait_locked(mcpd_reader *reader, int64_t timeout_ns, struct mcpd_meta *meta)
{
    int64_t since_ns = mcpd_now_ns(), deadline_ns = mcpd_deadline_ns(timeout_ns);
    look_on(reader, deadline_ns);
    int result = try_locked(reader, meta);
    if (result == -EAGAIN)
        result = sleep_locked(reader, deadline_ns, meta);
    count_wait(reader, since_ns);
    return result;
}

int mcpd_reader_next(mcpd_reader *reader, int64_t timeout_ns, struct mcpd_meta *meta)
{
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    result = try_locked(reader, meta);
    if (result == -EAGAIN && timeout_ns != 0)
        result = wait_locked(reader, timeout_ns, meta);
    return mcpd_reader_leave(reader, result);
}

int mcpd_reader_arm(mcpd_reader *reader)
{
    uint64_t head;
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    mcpd_sleep_arm(&reader->sleep);
    if (ready(reader, &head) == -EAGAIN)
        return mcpd_reader_leave(reader, 0);
    mcpd_sleep_disarm(&reader->sleep);
    return mcpd_reader_leave(reader, 1);
}

int mcpd_reader_disarm(mcpd_reader *reader)
{
    uint64_t head;
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    if (mcpd_sleep_disarm(&reader->sleep)) {
        mcpd_count(&reader->rctl->wakeups, 1);
        if (ready(reader, &head) == -EAGAIN)
            mcpd_count(&reader->rctl->spurious, 1);
    }
    return mcpd_reader_leave(reader, 0);
}

int mcpd_reader_ended(mcpd_reader *reader)
{
    return *reader->guard ? (int)mcpd_load_acquire(&reader->wctl->ended) : -ECHILD;
}

/* ---- for the binding ----------------------------------------------------------------------- */

void mcpd_reader_shut(mcpd_reader *reader)
{
    if (mcpd_reader_enter(reader) != 0)
        return;
    reader->shut = 1;
    mcpd_sleep_pass_on(&reader->sleep);
    pthread_mutex_unlock(&reader->mutex);
}

int mcpd_reader_fileno(const mcpd_reader *reader)
{
    return reader->sleep.fd;
}

const struct mcpd_rctl *mcpd_reader_counters(mcpd_reader *reader)
{
    return *reader->guard ? reader->rctl : NULL;
}
