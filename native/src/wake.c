/*
 * Sleeping and waking across processes: an eventfd and a sleep epoch for each side.
 *
 * A sleeper makes its epoch odd, looks once more whether there is something, and polls its eventfd.
 * A waker first makes something, then reads the epoch: odd, and not the epoch that it signalled
 * last, means one signal. So a peer that is awake costs no system call, and one that sleeps costs
 * one however much is made before it runs. Both sides use seq_cst (atomics.h says why).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "atomics.h"
#include "steps.h"
#include "stream.h"

#define NS_PER_S INT64_C(1000000000)

/*
 * Whether a read or write of an eventfd does not block. O_NONBLOCK is a flag of what both sides share,
 * so a peer can take it away: then poll tells.
 */
static int is_free(int fd, short events)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK))
        return 1;
    struct pollfd look = {.fd = fd, .events = events};
    return poll(&look, 1, 0) > 0;
}

/* Takes away all signals that came so far; 1 if there were any. */
static int drain(int fd)
{
    uint64_t count;
    return is_free(fd, POLLIN) && read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

/* Pairs with the load in mcpd_wake_peer. */
static void advance(struct mcpd_sleep *sleep, uint32_t by)
{
    sleep->value += by;
    (void)mcpd_exchange_seq_cst(sleep->epoch, sleep->value);
}

static int asleep(const struct mcpd_sleep *sleep)
{
    return sleep->waiting > 0 || sleep->armed;
}

int64_t mcpd_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t mcpd_deadline_ns(int64_t timeout_ns)
{
    if (timeout_ns < 0)
        return INT64_MAX;
    int64_t now = mcpd_now_ns();
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

int mcpd_wake_dup(int fd)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    int flags = fcntl(own, F_GETFL);
    if (flags < 0 || (!(flags & O_NONBLOCK) && fcntl(own, F_SETFL, flags | O_NONBLOCK) != 0)) {
        int error = errno;
        close(own);
        return -error;
    }
    return own;
}

void mcpd_wake_signal(int fd)
{
    uint64_t one = 1;
    ssize_t written;
    /* Not free, or EAGAIN: the counter is full, so the peer is signalled already. */
    if (!is_free(fd, POLLOUT))
        return;
    do
        written = write(fd, &one, sizeof one);
    while (written < 0 && errno == EINTR);
}

int mcpd_wake_seen(uint32_t seen, uint32_t *signalled, int fd)
{
    if ((seen & 1) == 0 || seen == *signalled)
        return 0;
    *signalled = seen;
    MCPD_STEP("wake.decided");
    mcpd_wake_signal(fd);
    MCPD_STEP("wake.signalled");
    return 1;
}

/* Called after whatever the peer waits for was stored with seq_cst. */
int mcpd_wake_peer(const _Atomic uint32_t *epoch, uint32_t *signalled, int fd)
{
    return mcpd_wake_seen(mcpd_load_seq_cst(epoch), signalled, fd);
}

/*
 * Signals of sleeps that are over are drained here and not when they woke us: the one system call
 * comes after the frame was read, not before. Draining comes before the exchange, so that no signal
 * for this sleep is lost by it.
 */
void mcpd_sleep_begin(struct mcpd_sleep *sleep)
{
    if (!asleep(sleep)) {
        if (sleep->stale)
            drain(sleep->fd);
        sleep->stale = 0;
        MCPD_STEP("sleep.drained");
        advance(sleep, 1);
        MCPD_STEP("sleep.asleep");
    }
    sleep->waiting++;
}

int mcpd_sleep_poll(int fd, int64_t deadline_ns)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    struct timespec left, *limit = NULL;
    if (deadline_ns != INT64_MAX) {
        int64_t left_ns = deadline_ns - mcpd_now_ns();
        if (left_ns < 0)
            left_ns = 0;
        left = (struct timespec){.tv_sec = left_ns / NS_PER_S, .tv_nsec = left_ns % NS_PER_S};
        limit = &left;
    }
    int ready = ppoll(&wait, 1, limit, NULL);
    return ready < 0 ? -errno : ready;
}

/*
 * For others that still sleep the epoch moves on to the next odd one, because the old one counts as
 * signalled, and what is there is drained first: a signal that is drained is one for the old epoch, and
 * what it was about is seen by the caller's next look.
 */
void mcpd_sleep_finish(struct mcpd_sleep *sleep)
{
    sleep->waiting--;
    if (asleep(sleep)) {
        drain(sleep->fd);
        advance(sleep, 2);
    } else {
        sleep->stale = 1;
        advance(sleep, 1);
        MCPD_STEP("sleep.awake");
    }
}

void mcpd_sleep_pass_on(struct mcpd_sleep *sleep)
{
    if (asleep(sleep))
        mcpd_wake_signal(sleep->fd);
}

int mcpd_sleep_arm(struct mcpd_sleep *sleep)
{
    int signalled = (asleep(sleep) || sleep->stale) && drain(sleep->fd) && asleep(sleep);
    sleep->stale = 0;
    advance(sleep, asleep(sleep) ? 2 : 1);
    sleep->armed = 1;
    MCPD_STEP("sleep.armed");
    return signalled;
}

int mcpd_sleep_disarm(struct mcpd_sleep *sleep)
{
    if (!sleep->armed)
        return 0;
    int signalled = drain(sleep->fd);
    sleep->armed = 0;
    advance(sleep, asleep(sleep) ? 2 : 1);
    mcpd_sleep_pass_on(sleep);
    return signalled;
}
