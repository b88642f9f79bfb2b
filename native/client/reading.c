/*
 * Reading a stream, from one generation to the next.
 */
#include <errno.h>

#include "client.h"
#include "stream.h"

/* What is left of a time-out; a time that is over is one, not a call that does not wait. */
static int64_t time_left(int64_t timeout_ns, int64_t deadline_ns)
{
    if (timeout_ns <= 0)
        return timeout_ns;
    int64_t left_ns = deadline_ns - mcpd_now_ns();
    return left_ns > 0 ? left_ns : 1;
}

/* Whether to look once more: an event loop that is armed is so in a new generation, too. */
static int rearm(mcpd_stream *stream, struct mcpd_generation *now)
{
    struct mcpd_moves *moves = &stream->moves;
    pthread_mutex_lock(&moves->mutex);
    int again = now != moves->now ||
                (moves->armed && now->number != 0 && mcpd_reader_arm(now->reader) == 1);
    pthread_mutex_unlock(&moves->mutex);
    return again;
}

int mcpd_stream_next(mcpd_stream *stream, int64_t timeout_ns, struct mcpd_meta *meta)
{
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    for (;;) {
        struct mcpd_generation *now = mcpd_generation_use(stream);
        result = mcpd_reader_next(now->reader, time_left(timeout_ns, deadline_ns), meta);
        int again = 0;
        if (result == -EPIPE && stream->moves.follow != MCPD_FOLLOW_NOT) {
            result = mcpd_moves_go_on(stream, now, timeout_ns, deadline_ns);
            again = result == 0;
        } else if (result == -EAGAIN) {
            again = rearm(stream, now);
        }
        if (again)
            (void)mcpd_generation_leave(stream, now, -EAGAIN);
        else
            return mcpd_generation_leave(stream, now, result);
    }
}

const void *mcpd_stream_slot(mcpd_stream *stream, uint32_t pin)
{
    if (mcpd_moves_enter(stream) != 0)
        return NULL;
    pthread_mutex_lock(&stream->moves.mutex);
    struct mcpd_generation *generation = mcpd_generation_of(stream, pin);
    const void *slot =
        generation != NULL ? mcpd_reader_slot(generation->reader, pin % MCPD_MAX_PINS) : NULL;
    pthread_mutex_unlock(&stream->moves.mutex);
    return slot;
}

static int take_off(mcpd_stream *stream, uint32_t pin, int (*off)(mcpd_reader *, uint32_t))
{
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    pthread_mutex_lock(&stream->moves.mutex);
    struct mcpd_generation *generation = mcpd_generation_of(stream, pin);
    result = generation != NULL ? off(generation->reader, pin % MCPD_MAX_PINS) : -EINVAL;
    if (result == 0) {
        generation->npinned -= generation->npinned != 0;
        mcpd_moves_let_go(stream);
    }
    pthread_mutex_unlock(&stream->moves.mutex);
    return result;
}

int mcpd_stream_unpin(mcpd_stream *stream, uint32_t pin)
{
    return take_off(stream, pin, mcpd_reader_unpin);
}

int mcpd_stream_give_back(mcpd_stream *stream, uint32_t pin)
{
    return take_off(stream, pin, mcpd_reader_give_back);
}

int mcpd_stream_check(mcpd_stream *stream, uint32_t pin)
{
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    pthread_mutex_lock(&stream->moves.mutex);
    struct mcpd_generation *generation = mcpd_generation_of(stream, pin);
    result = generation != NULL ? mcpd_reader_check(generation->reader) : -EINVAL;
    pthread_mutex_unlock(&stream->moves.mutex);
    return result;
}
