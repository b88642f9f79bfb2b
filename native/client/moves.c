/*
 * The generations of a reader: what it reads, what it is to go on in, what it has left.
 *
 * A generation is replaced when it has nothing more, by the first that the daemon brought. What was
 * left stays mapped while something is pinned there, or a call is in it; then it is given back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "stream.h"

#define NUMBERS (1u << 22)               /* of generations, until one comes again */
#define LOOK_AGAIN_NS INT64_C(20000000)  /* a member that waits for others; nobody tells it */

/* ---- one generation ------------------------------------------------------------------------ */

int mcpd_generation_map(const struct mcpd_stream *stream, struct mcpd_generation *generation,
                        struct mcpd_error *error)
{
    const struct mcpd_grant *grant = &generation->grant;
    uint32_t member = grant->admission.group != 0;
    uint32_t wakes_writer = member || grant->admission.policy == MCPD_LOSSLESS;
    if (generation->nfds != 4 + wakes_writer + member || grant->reader == 0)
        return mcpd_fail(error, "protocol", "", "reader of '%s' came with %u descriptors",
                         grant->name, generation->nfds);
    const int *given = generation->fds;
    struct mcpd_reader_fds fds = {.writer_control = given[0], .payload = given[1],
                                  .control = given[2], .wake = given[3],
                                  .writer_wake = wakes_writer ? given[4] : -1,
                                  .group = member ? given[5] : -1};
    int result = mcpd_reader_open(&grant->geometry, &fds, &grant->admission, grant->start_seq,
                                  &stream->thinning, &generation->reader);
    if (result != 0)
        return mcpd_stream_unmapped(result, grant, error);
    mcpd_close_fds(generation->fds, generation->nfds);
    generation->nfds = 0;
    return 0;
}

void mcpd_generation_free(struct mcpd_generation *generation)
{
    if (generation == NULL)
        return;
    mcpd_reader_close(generation->reader);
    mcpd_close_fds(generation->fds, generation->nfds);
    free(generation);
}

struct mcpd_generation *mcpd_generation_use(mcpd_stream *stream)
{
    pthread_mutex_lock(&stream->moves.mutex);
    struct mcpd_generation *now = stream->moves.now;
    now->users++;
    pthread_mutex_unlock(&stream->moves.mutex);
    return now;
}

int mcpd_generation_leave(mcpd_stream *stream, struct mcpd_generation *generation, int result)
{
    pthread_mutex_lock(&stream->moves.mutex);
    generation->users--;
    if (result >= 0) {
        generation->npinned++;
        result += (int)(generation->number * MCPD_MAX_PINS);
    }
    mcpd_moves_let_go(stream);
    pthread_mutex_unlock(&stream->moves.mutex);
    return result;
}

struct mcpd_generation *mcpd_generation_of(mcpd_stream *stream, uint32_t pin)
{
    struct mcpd_generation *now = stream->moves.now;
    if (now->number == pin / MCPD_MAX_PINS)
        return now;
    struct mcpd_generation *left = stream->moves.left;
    while (left != NULL && left->number != pin / MCPD_MAX_PINS)
        left = left->next;
    return left;
}

/* ---- all of them --------------------------------------------------------------------------- */

void mcpd_moves_init(struct mcpd_moves *moves, uint32_t follow)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&moves->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&moves->mutex, NULL);
    moves->follow = follow;
    moves->watch_fd = moves->timer_fd = -1;
}

int mcpd_moves_enter(mcpd_stream *stream)
{
    int result = mcpd_check_process(stream->client, NULL);
    return result == 0 && stream->writer != NULL ? -EINVAL : result;
}

void mcpd_moves_let_go(mcpd_stream *stream)
{
    struct mcpd_generation **at = &stream->moves.left;
    while (*at != NULL) {
        struct mcpd_generation *generation = *at;
        if (generation->users != 0 || generation->npinned != 0) {
            at = &generation->next;
            continue;
        }
        *at = generation->next;
        uint64_t reader = generation->grant.reader;
        mcpd_generation_free(generation);
        mcpd_detach_quietly(stream->client, reader);
    }
}

/* What ended as `code` may go on in memory that the daemon has not brought yet. */
static int goes_on(const mcpd_stream *stream, int code)
{
    const struct mcpd_moves *moves = &stream->moves;
    if (moves->coming != NULL || moves->advancing)
        return 1;
    if (moves->lost || moves->now->refused || moves->follow == MCPD_FOLLOW_NOT)
        return 0;
    /* "shutdown" while this session stands: the writer has lost its own. */
    return code == MCPD_END_MOVED ||
           (moves->follow == MCPD_FOLLOW_NAME &&
            (code == MCPD_END_CLOSED || code == MCPD_END_WRITER_DIED || code == MCPD_END_SHUTDOWN));
}

/* Nobody takes claims over from the dead once the daemon is gone. */
static int is_busy(const struct mcpd_moves *moves)
{
    return !moves->lost && mcpd_reader_others_busy(moves->now->reader);
}

int mcpd_moves_wait(const mcpd_stream *stream)
{
    return is_busy(&stream->moves) || goes_on(stream, mcpd_reader_ended(stream->moves.now->reader));
}

static void wake(mcpd_stream *stream)
{
    pthread_cond_broadcast(&stream->moves.changed);
    if (stream->moves.idle)
        mcpd_watch_signal(&stream->moves, 1);
}

/* Goes on in the first that is coming; the mutex is not held while that is mapped. */
static int advance(mcpd_stream *stream)
{
    struct mcpd_moves *moves = &stream->moves;
    struct mcpd_generation *before = moves->now, *next = moves->coming;
    moves->advancing = 1;
    pthread_mutex_unlock(&moves->mutex);
    int result = mcpd_generation_map(stream, next, NULL);
    pthread_mutex_lock(&moves->mutex);
    moves->advancing = 0;
    moves->coming = next->next;
    next->next = NULL;
    if (result != 0) {
        before->refused = 1;
        uint64_t reader = next->grant.reader;
        mcpd_generation_free(next);
        mcpd_detach_quietly(stream->client, reader);
    } else {
        next->number = (before->number + 1) % NUMBERS;
        mcpd_watch_move(stream, before, next);
        before->next = moves->left;
        moves->left = before;
        moves->now = next;
        moves->idle = 0;
        if ((moves->lost || atomic_load(&stream->ended) != MCPD_LIVE) &&
            mcpd_reader_ended(next->reader) == MCPD_LIVE) {
            uint32_t live = MCPD_LIVE;
            atomic_compare_exchange_strong(&stream->ended, &live, MCPD_END_SHUTDOWN);
            mcpd_reader_shut(next->reader);
        }
    }
    pthread_cond_broadcast(&moves->changed);
    return result;
}

static void wait_until(struct mcpd_moves *moves, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    if (until_ns == INT64_MAX)
        pthread_cond_wait(&moves->changed, &moves->mutex);
    else
        pthread_cond_timedwait(&moves->changed, &moves->mutex, &until);
}

static int go_on_locked(mcpd_stream *stream, struct mcpd_generation *now, int64_t timeout_ns,
                        int64_t deadline_ns)
{
    struct mcpd_moves *moves = &stream->moves;
    while (moves->now == now) {
        int busy = is_busy(moves);
        if (atomic_load(&stream->ended) != MCPD_LIVE)
            return -ECANCELED;
        if (!busy && moves->coming != NULL && !moves->advancing)
            return advance(stream);
        if (!busy && !goes_on(stream, mcpd_reader_ended(now->reader)))
            return -EPIPE;
        moves->idle = 1;
        if (timeout_ns == 0)
            return -EAGAIN;
        int64_t now_ns = mcpd_now_ns();
        if (now_ns >= deadline_ns)
            return -ETIMEDOUT;
        int64_t look_ns = busy ? now_ns + LOOK_AGAIN_NS : INT64_MAX;
        wait_until(moves, look_ns < deadline_ns ? look_ns : deadline_ns);
        if (busy)
            return 0; /* something may have come back to the group */
    }
    return 0;
}

int mcpd_moves_go_on(mcpd_stream *stream, struct mcpd_generation *now, int64_t timeout_ns,
                     int64_t deadline_ns)
{
    pthread_mutex_lock(&stream->moves.mutex);
    int result = go_on_locked(stream, now, timeout_ns, deadline_ns);
    pthread_mutex_unlock(&stream->moves.mutex);
    return result;
}

int mcpd_moves_ended(mcpd_stream *stream)
{
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    pthread_mutex_lock(&stream->moves.mutex);
    result = mcpd_reader_ended(stream->moves.now->reader);
    if (result > 0 && goes_on(stream, result))
        result = MCPD_LIVE;
    pthread_mutex_unlock(&stream->moves.mutex);
    return result;
}

/* ---- what the daemon says ------------------------------------------------------------------ */

/*
 * If the control object says so as well, what is left may be read first; else nobody is there who
 * could mark it any more, and every call returns from now on.
 */
static void shut(mcpd_stream *stream, enum mcpd_end reason)
{
    if (mcpd_reader_ended(stream->moves.now->reader) != MCPD_LIVE)
        return;
    atomic_store(&stream->ended, reason);
    mcpd_reader_shut(stream->moves.now->reader);
}

void mcpd_moves_end(mcpd_stream *stream, uint64_t generation, enum mcpd_end reason)
{
    struct mcpd_moves *moves = &stream->moves;
    pthread_mutex_lock(&moves->mutex);
    int is_now = generation == 0 || moves->now->grant.geometry.generation == generation;
    if (reason == MCPD_END_REVOKED) {
        if (is_now)
            moves->now->refused = 1;
        for (struct mcpd_generation *one = moves->coming; one != NULL; one = one->next)
            if (one->grant.geometry.generation == generation)
                one->refused = 1;
    }
    if (is_now)
        shut(stream, reason);
    wake(stream);
    pthread_mutex_unlock(&moves->mutex);
}

void mcpd_moves_evict(mcpd_stream *stream, uint64_t reader)
{
    struct mcpd_moves *moves = &stream->moves;
    pthread_mutex_lock(&moves->mutex);
    int its = moves->now->grant.reader == reader;
    for (struct mcpd_generation *one = moves->coming; one != NULL; one = one->next)
        its |= one->grant.reader == reader;
    if (its) {
        atomic_store(&stream->ended, MCPD_END_EVICTED);
        mcpd_reader_shut(moves->now->reader);
        wake(stream);
    }
    pthread_mutex_unlock(&moves->mutex);
}

void mcpd_moves_lose(mcpd_stream *stream, enum mcpd_end reason)
{
    pthread_mutex_lock(&stream->moves.mutex);
    stream->moves.lost = 1;
    shut(stream, reason);
    wake(stream);
    pthread_mutex_unlock(&stream->moves.mutex);
}

void mcpd_moves_close(mcpd_stream *stream, int ours)
{
    struct mcpd_moves *moves = &stream->moves;
    struct mcpd_generation *lists[2] = {moves->left, moves->coming};
    moves->left = moves->coming = NULL;
    mcpd_watch_close(moves);
    for (int i = 0; i < 2; i++)
        for (struct mcpd_generation *one = lists[i], *next; one != NULL; one = next) {
            next = one->next;
            uint64_t reader = one->grant.reader;
            mcpd_generation_free(one);
            if (ours)
                mcpd_detach_quietly(stream->client, reader);
        }
    mcpd_reader_close(moves->now->reader); /* its number is still to be told */
    moves->now->reader = NULL;
}
