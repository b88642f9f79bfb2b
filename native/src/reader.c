/*
 * A reader's end of a stream: opening it, and next, by polling or sleeping.
 *
 * The writer's control object and the payload are mapped read-only, and nothing in them is trusted:
 * an index or size that cannot be gives -EBADMSG. What the reader decides by is private to it; its
 * own control object is written, never read back. A group's is, by its members.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "reader.h"
#include "steps.h"

/* The longest that a reader looks on for a frame before it sleeps; 0 in tests of sleeping. */
#ifndef LOOK_ON_NS
#define LOOK_ON_NS INT64_C(250000)
#endif

/* ---- opening and closing ------------------------------------------------------------------- */

/* Its views are gone: what a member has not finished is for the others. */
static void let_all_go(mcpd_reader *reader)
{
    for (uint32_t pin = 0; reader->gctl != NULL && pin < reader->max_pins; pin++)
        if (reader->pins[pin].seq != 0)
            mcpd_reader_take_off(reader, pin, MCPD_CLAIM_RETURNED);
    for (uint32_t pin = 0; pin < reader->max_pins; pin++)
        mcpd_store_seq_cst(&reader->words[pin], 0);
    MCPD_STEP("reader.close.unpinned");
    mcpd_store_relaxed(&reader->rctl->pinned, 0);
    mcpd_store_relaxed(&reader->rctl->pinned_since_ns, 0);
    mcpd_reader_made_room(reader);
    MCPD_STEP("reader.close.told");
}

static void discard(mcpd_reader *reader)
{
    if (reader->guard != NULL && *reader->guard) { /* a forked child does not have the mappings */
        if (reader->words != NULL)
            let_all_go(reader);
        mcpd_map_close(&reader->writer_control);
        mcpd_payload_close(&reader->payload, &reader->guarded);
        mcpd_map_close(&reader->control);
        mcpd_map_close(&reader->group_control);
        MCPD_STEP("reader.close.unmapped");
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

static int map_objects(mcpd_reader *reader, const struct mcpd_reader_fds *fds, int member)
{
    uint32_t nslots = reader->geometry.nslots;
    int result = mcpd_map_open(&reader->writer_control, fds->writer_control,
                               mcpd_wctl_nbytes(nslots), 0);
    if (result == 0)
        result = mcpd_payload_open(&reader->payload, &reader->guarded, fds->payload,
                                   reader->geometry.payload_offset,
                                   (size_t)mcpd_payload_nbytes(&reader->geometry), 0);
    if (result == 0)
        result = mcpd_map_open(&reader->control, fds->control,
                               mcpd_rctl_nbytes(reader->max_pins), 1);
    if (result == 0 && member)
        result = mcpd_map_open(&reader->group_control, fds->group, mcpd_gctl_nbytes(nslots), 1);
    return result;
}

/* None of the pointers to shared words is set but after its object was checked. */
static int check_objects(mcpd_reader *reader)
{
    uint8_t *base = reader->writer_control.base, *own = reader->control.base;
    struct mcpd_gctl *gctl = reader->group_control.base;
    reader->wctl = (const struct mcpd_wctl *)base;
    reader->queue = (const _Atomic uint64_t *)(base + sizeof(struct mcpd_wctl));
    reader->headers = (const struct mcpd_slot_header *)(base +
                                                        mcpd_headers_offset(reader->geometry.nslots));
    reader->rctl = reader->control.base;
    reader->sleep.epoch = &reader->rctl->epoch;
    int result = mcpd_control_check(reader->wctl->magic, MCPD_WCTL_MAGIC, reader->wctl->abi);
    if (result == 0)
        result = mcpd_control_check(reader->rctl->magic, MCPD_RCTL_MAGIC, reader->rctl->abi);
    if (result == 0 && gctl != NULL)
        result = mcpd_control_check(gctl->magic, MCPD_GCTL_MAGIC, gctl->abi);
    if (result != 0)
        return result;
    reader->words = (_Atomic uint64_t *)(own + MCPD_RCTL_PINS);
    reader->gctl = gctl;
    if (gctl != NULL)
        reader->claims = (_Atomic uint64_t *)((uint8_t *)gctl + MCPD_GCTL_CLAIMS);
    return 0;
}

static int open_parts(mcpd_reader *reader, const struct mcpd_reader_fds *fds,
                      const struct mcpd_admission *admission)
{
    int needs_writer = admission->group != 0 || admission->policy == MCPD_LOSSLESS;
    int result = mcpd_guard_open(&reader->guard);
    if (result == 0)
        result = map_objects(reader, fds, admission->group != 0);
    if (result == 0)
        result = reader->sleep.fd = mcpd_wake_dup(fds->wake);
    if (result >= 0 && needs_writer)
        result = reader->writer_wake_fd = mcpd_wake_dup(fds->writer_wake);
    return result < 0 ? result : check_objects(reader);
}

static int check_arguments(const struct mcpd_geometry *geometry,
                           const struct mcpd_admission *admission,
                           const struct mcpd_thinning *thinning)
{
    int thins = thinning->every_n > 1 || thinning->interval_ns != 0 || thinning->skip_expired;
    if (mcpd_geometry_check(geometry) != 0 || admission->max_pins < 1 ||
        admission->max_pins > MCPD_MAX_PINS || admission->member >= MCPD_MAX_READERS)
        return -EINVAL;
    if (mcpd_policy_check(admission->policy, admission->depth) != 0 ||
        mcpd_thinning_check(thinning) != 0 || (admission->group != 0 && thins))
        return -EINVAL;
    return 0;
}

/* The newest frame that is there already is unseen; those before it are not called skipped. */
static void begin(mcpd_reader *reader, uint64_t start_seq)
{
    uint64_t head = mcpd_load_acquire(&reader->wctl->head), first = reader->geometry.first_seq;
    for (uint32_t pin = reader->max_pins; pin-- > 0;)
        reader->free[reader->nfree++] = pin;
    if (reader->gctl != NULL)
        reader->wanted = mcpd_load_acquire(&reader->gctl->cursor);
    else
        reader->wanted = start_seq != 0 ? start_seq : head > first ? head : first;
    mcpd_store_seq_cst(&reader->rctl->cursor, reader->wanted);
    MCPD_STEP("reader.open.wanted");
}

int mcpd_reader_open(const struct mcpd_geometry *geometry, const struct mcpd_reader_fds *fds,
                     const struct mcpd_admission *admission, uint64_t start_seq,
                     const struct mcpd_thinning *thinning, mcpd_reader **out)
{
    static const struct mcpd_thinning none = {.every_n = 1};
    if (thinning == NULL)
        thinning = &none;
    if (check_arguments(geometry, admission, thinning) != 0)
        return -EINVAL;
    mcpd_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL)
        return -ENOMEM;
    pthread_mutex_init(&reader->mutex, NULL);
    reader->geometry = *geometry;
    reader->queue_mask = mcpd_queue_len(geometry->nslots) - 1;
    reader->max_pins = admission->max_pins;
    reader->policy = admission->policy;
    reader->depth = admission->depth;
    reader->member = admission->member;
    reader->thinning = *thinning;
    if (reader->thinning.every_n == 0)
        reader->thinning.every_n = 1;
    reader->usual_wait_ns = 4 * LOOK_ON_NS;
    reader->sleep.fd = reader->writer_wake_fd = -1;
    reader->pins = calloc(reader->max_pins, sizeof *reader->pins);
    reader->free = calloc(reader->max_pins, sizeof *reader->free);
    int result = -ENOMEM;
    if (reader->pins != NULL && reader->free != NULL)
        result = open_parts(reader, fds, admission);
    if (result != 0) {
        discard(reader);
        return result;
    }
    begin(reader, start_seq);
    *out = reader;
    return 0;
}

void mcpd_reader_close(mcpd_reader *reader)
{
    if (reader != NULL)
        discard(reader);
}

/* ---- next, by polling or sleeping ---------------------------------------------------------- */

/* A signal taken, and whether anything was found then. */
static void count_signal(mcpd_reader *reader, int signalled, int found)
{
    mcpd_count(&reader->rctl->wakeups, signalled != 0);
    mcpd_count(&reader->rctl->spurious, signalled && found == -EAGAIN);
}

/* Takes if it can; an armed event loop that finds nothing goes on sleeping. */
static int try_locked(mcpd_reader *reader, struct mcpd_meta *meta)
{
    int result = mcpd_reader_take(reader, meta);
    if (result == -EAGAIN && reader->sleep.armed) {
        int signalled = mcpd_sleep_arm(&reader->sleep);
        result = mcpd_reader_take(reader, meta);
        count_signal(reader, signalled, result);
        if (result != -EAGAIN || reader->more)
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

/*
 * What taking a frame looks at is far away after a sleep, most of it in another processor's cache or
 * beyond the translations at hand. Asked for at once, it comes together.
 */
static void fetch_next(const mcpd_reader *reader)
{
    uint64_t seq = reader->wanted;
    mcpd_fetch(&reader->wctl->head, 1);
    mcpd_fetch(&reader->wctl->ended, 1);
    mcpd_fetch(&reader->queue[seq & reader->queue_mask], 1);
    mcpd_fetch(&reader->rctl->cursor, 192);
    mcpd_fetch(&reader->rctl->latency, 128);
    mcpd_fetch(reader->words, 1);
    mcpd_fetch(reader->pins, 1);
    mcpd_fetch(reader->free, 1);
}

static int sleep_locked(mcpd_reader *reader, int64_t deadline_ns, struct mcpd_meta *meta)
{
    int result, woken;
    do {
        mcpd_sleep_begin(&reader->sleep);
        result = mcpd_reader_take(reader, meta);
        if (result != -EAGAIN) {
            mcpd_sleep_finish(&reader->sleep);
            break;
        }
        MCPD_STEP("reader.wait.rechecked");
        int64_t until_ns = reader->more ? 0 : deadline_ns; /* does not sleep while there is more */
        pthread_mutex_unlock(&reader->mutex);
        woken = mcpd_sleep_poll(reader->sleep.fd, until_ns);
        pthread_mutex_lock(&reader->mutex);
        fetch_next(reader);
        mcpd_sleep_finish(&reader->sleep);
        MCPD_STEP("reader.wait.woken");
        result = mcpd_reader_take(reader, meta);
        count_signal(reader, woken == 1, result);
        if (woken == 0 && until_ns != deadline_ns && mcpd_now_ns() < deadline_ns)
            woken = 1;
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
    int signalled = mcpd_sleep_arm(&reader->sleep);
    result = mcpd_reader_ready(reader, &head);
    count_signal(reader, signalled, result);
    if (result == -EAGAIN)
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
    if (mcpd_sleep_disarm(&reader->sleep))
        count_signal(reader, 1, mcpd_reader_ready(reader, &head));
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
