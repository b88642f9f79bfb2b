/*
 * The handler of SIGBUS, and its place among others.
 *
 * What is not about a guarded mapping goes to the handler that was there before ours, so that the
 * process does, and dies, as it would have without us. Python's faulthandler, sanitizers and a second
 * copy of this library are such handlers, installed before ours or after it; the latter ours is put on
 * top of when it is looked at next (mcpd_guarded_watch).
 */
#include "bus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <ucontext.h>

#define MAX_EARLIER 64u
#define SIGNALS 64

/* Who was there each time that we went on top; a place is written once, before it counts. */
static struct sigaction earlier[MAX_EARLIER];
static _Atomic uint32_t nearlier;

/*
 * Where in the chain a thread is. Who was installed after us may have kept our handler as the one
 * before its own, and call or raise it: then the chain goes on downwards, not in a circle. Initial-exec,
 * because a handler may not allocate the thread's copy.
 */
static _Thread_local struct {
    uint32_t level; /* earlier[level - 1] runs; 0: none */
    const void *context;
    uintptr_t frame;
} chain __attribute__((tls_model("initial-exec")));

/* As the kernel would do if nobody had a handler. */
static void die_of(int signum, const siginfo_t *info)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(signum, &standard, NULL);
    /* A fault comes again when the handler returns; what was sent, or came late, would not. */
    if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
        raise(signum);
}

/* With the signals blocked that the kernel would have blocked for it. */
static void call(const struct sigaction *action, int signum, siginfo_t *info, void *context)
{
    sigset_t mask = ((const ucontext_t *)context)->uc_sigmask, before;
    for (int other = 1; other <= SIGNALS; other++)
        if (sigismember(&action->sa_mask, other) == 1)
            sigaddset(&mask, other);
    if (!(action->sa_flags & SA_NODEFER))
        sigaddset(&mask, signum);
    pthread_sigmask(SIG_SETMASK, &mask, &before);
    if (action->sa_flags & SA_SIGINFO)
        action->sa_sigaction(signum, info, context);
    else
        action->sa_handler(signum);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * Whether the handler at chain.level called us, or raised the signal again: deeper on the stack than it
 * was called from. One that jumped out of its call instead has left the chain as it was.
 */
static int is_called_back(const siginfo_t *info, const void *context, uintptr_t frame)
{
    return chain.level != 0 && frame < chain.frame &&
           (context == chain.context || info->si_code <= 0);
}

static void pass_on(int signum, siginfo_t *info, void *context)
{
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    uint32_t outer = is_called_back(info, context, frame) ? chain.level : 0;
    uint32_t level = outer != 0 ? outer - 1 : atomic_load(&nearlier);
    struct sigaction action = {.sa_handler = SIG_DFL};
    if (level > 0)
        action = earlier[level - 1];
    int plain = !(action.sa_flags & SA_SIGINFO);
    if (plain && action.sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (plain && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) {
        die_of(signum, info); /* the kernel ignores no fault either */
        return;
    }
    chain.level = level;
    chain.context = context;
    chain.frame = frame;
    call(&action, signum, info, context);
    chain.level = outer;
}

static void on_bus_error(int signum, siginfo_t *info, void *context)
{
    int error = errno;
    /* BUS_ADRERR: no page there. Broken memory (BUS_MCEERR_AR) and bad alignment are not ours. */
    if (info->si_code != BUS_ADRERR || !mcpd_guarded_fill((uintptr_t)info->si_addr))
        pass_on(signum, info, context);
    errno = error;
}

static int is_ours(const struct sigaction *action)
{
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_bus_error;
}

int mcpd_bus_installed(void)
{
    struct sigaction now;
    return sigaction(SIGBUS, NULL, &now) == 0 && is_ours(&now);
}

void mcpd_bus_install(void)
{
    struct sigaction now, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    uint32_t count = atomic_load(&nearlier);
    if (sigaction(SIGBUS, NULL, &now) != 0 || is_ours(&now))
        return;
    /* Two that go on top in turn, such as a second copy of this library, are kept once. */
    int kept = count > 0 && earlier[count - 1].sa_sigaction == now.sa_sigaction;
    if (!kept && count < MAX_EARLIER) {
        earlier[count] = now;
        atomic_store(&nearlier, count + 1);
    }
    ours.sa_sigaction = on_bus_error;
    sigfillset(&ours.sa_mask); /* so that no other handler waits for one that it interrupts */
    sigaction(SIGBUS, &ours, NULL);
}
