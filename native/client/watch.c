/*
 * Event loops: one descriptor for a reader, whatever generation it reads.
 *
 * It is an epoll that has the present generation's eventfd and a timer. The timer fires at once when
 * another generation comes, and after a while for a member that waits for the others of its group, as
 * nobody tells it when they are done.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client.h"
#include "stream.h"

#define LOOK_AGAIN_NS INT64_C(20000000)

static int watch(int watch_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(watch_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

static int open_watch(struct mcpd_moves *moves)
{
    int result = 0;
    moves->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    moves->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (moves->watch_fd < 0 || moves->timer_fd < 0)
        result = -errno;
    if (result == 0)
        result = watch(moves->watch_fd, moves->timer_fd);
    if (result == 0)
        result = watch(moves->watch_fd, mcpd_reader_fileno(moves->now->reader));
    if (result != 0)
        mcpd_watch_close(moves);
    return result;
}

/* in_ns 0: not any more, and as if it had not been. */
void mcpd_watch_signal(struct mcpd_moves *moves, int64_t in_ns)
{
    struct itimerspec when = {.it_value = {.tv_nsec = in_ns}};
    if (moves->timer_fd >= 0)
        (void)timerfd_settime(moves->timer_fd, 0, &when, NULL);
}

void mcpd_watch_move(mcpd_stream *stream, const struct mcpd_generation *from,
                     const struct mcpd_generation *to)
{
    struct mcpd_moves *moves = &stream->moves;
    if (moves->watch_fd < 0)
        return;
    (void)epoll_ctl(moves->watch_fd, EPOLL_CTL_DEL, mcpd_reader_fileno(from->reader), NULL);
    if (watch(moves->watch_fd, mcpd_reader_fileno(to->reader)) == 0 && moves->coming == NULL)
        mcpd_watch_signal(moves, 0);
}

void mcpd_watch_close(struct mcpd_moves *moves)
{
    if (moves->watch_fd >= 0)
        close(moves->watch_fd);
    if (moves->timer_fd >= 0)
        close(moves->timer_fd);
    moves->watch_fd = moves->timer_fd = -1;
}

int mcpd_stream_fileno(mcpd_stream *stream)
{
    struct mcpd_moves *moves = &stream->moves;
    if (stream->writer != NULL)
        return mcpd_writer_fileno(stream->writer);
    int result = mcpd_moves_enter(stream);
    if (result != 0 || moves->follow == MCPD_FOLLOW_NOT)
        return result != 0 ? result : mcpd_reader_fileno(moves->now->reader);
    pthread_mutex_lock(&moves->mutex);
    if (moves->watch_fd < 0)
        result = open_watch(moves);
    if (result == 0)
        result = moves->watch_fd;
    pthread_mutex_unlock(&moves->mutex);
    return result;
}

/* Nobody sleeps in a generation that has ended, so its reader leaves signals alone. */
static void drain(struct mcpd_moves *moves)
{
    eventfd_t count;
    mcpd_watch_signal(moves, 0);
    (void)mcpd_reader_disarm(moves->now->reader);
    if (moves->idle)
        (void)eventfd_read(mcpd_reader_fileno(moves->now->reader), &count);
}

/* Of a generation that has nothing more: 1 when it is worth asking next. */
static int arm_idle(mcpd_stream *stream)
{
    struct mcpd_moves *moves = &stream->moves;
    drain(moves);
    if (atomic_load(&stream->ended) != MCPD_LIVE || !mcpd_moves_wait(stream))
        return 1;
    int busy = !moves->lost && mcpd_reader_others_busy(moves->now->reader);
    if (moves->coming != NULL && !busy)
        return 1;
    if (busy)
        mcpd_watch_signal(moves, LOOK_AGAIN_NS);
    return 0;
}

int mcpd_stream_arm(mcpd_stream *stream)
{
    struct mcpd_moves *moves = &stream->moves;
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    pthread_mutex_lock(&moves->mutex);
    result = moves->idle ? arm_idle(stream) : mcpd_reader_arm(moves->now->reader);
    moves->armed = result == 0;
    pthread_mutex_unlock(&moves->mutex);
    return result;
}

int mcpd_stream_disarm(mcpd_stream *stream)
{
    int result = mcpd_moves_enter(stream);
    if (result != 0)
        return result;
    pthread_mutex_lock(&stream->moves.mutex);
    stream->moves.armed = 0;
    drain(&stream->moves);
    pthread_mutex_unlock(&stream->moves.mutex);
    return 0;
}
