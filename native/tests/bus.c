/*
 * Signals that are not about a guarded mapping: bus.c. What happens then is seen in a forked child,
 * which may die of it.
 */
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>

#include "guard_fixture.h"

static const volatile uint8_t *not_ours(void)
{
    int fd = memfd_create("not ours", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, SLOT_NBYTES), 0);
    const volatile uint8_t *base = mmap(NULL, SLOT_NBYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED);
    CHECK_EQUAL(ftruncate(fd, 0), 0);
    return base;
}

static void handle(void (*handler)(int, siginfo_t *, void *), struct sigaction *before)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    action.sa_sigaction = handler;
    CHECK_EQUAL(sigaction(SIGBUS, &action, before), 0);
}

static void handle_not(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    CHECK_EQUAL(sigaction(SIGBUS, &standard, NULL), 0);
}

/* What run did in a child: its exit status, or 128 + the signal that it died of. */
static int in_child(void (*run)(void))
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        run();
        _Exit(99);
    }
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void lose_one(void)
{
    struct stream s;
    struct attached r;
    open_unsealed(&s, &r);
    uint32_t pin = pin_next(&r, publish(&s));
    CHECK_EQUAL(ftruncate(s.payload, 0), 0);
    CHECK(is_zero(mcpd_reader_slot(r.reader, pin)));
    CHECK_EQUAL(mcpd_reader_check(r.reader), -EFAULT);
    close_both(&s, &r);
}

static void exit_42(int signum, siginfo_t *info, void *context)
{
    (void)context;
    _Exit(signum == SIGBUS && info->si_addr != NULL ? 42 : 41);
}

static void fault_with_no_handler(void)
{
    handle_not();
    lose_one();
    (void)*not_ours();
}

static void be_sent_one_with_no_handler(void)
{
    handle_not();
    lose_one();
    raise(SIGBUS);
}

static void be_sent_one_that_is_ignored(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    CHECK_EQUAL(sigaction(SIGBUS, &ignore, NULL), 0);
    lose_one();
    raise(SIGBUS);
    _Exit(42);
}

static void fault_with_a_handler(void)
{
    handle(exit_42, NULL);
    lose_one();
    (void)*not_ours();
}

static void fault_with_a_later_handler(void)
{
    struct stream s;
    struct attached r;
    open_unsealed(&s, &r);
    handle(exit_42, NULL);
    uint32_t pin = pin_next(&r, publish(&s));
    CHECK_EQUAL(ftruncate(s.payload, 0), 0);
    CHECK(is_zero(mcpd_reader_slot(r.reader, pin)));
    (void)*not_ours();
}

static struct sigaction before_it;
static int times;

static void call_back(int signum, siginfo_t *info, void *context)
{
    if (++times > 1)
        _Exit(98);
    before_it.sa_sigaction(signum, info, context);
}

/* As one that has kept ours as the one before it. */
static void fault_in_a_circle(void)
{
    struct stream s;
    struct attached r;
    handle_not();
    open_unsealed(&s, &r);
    handle(call_back, &before_it);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pin_next(&r, publish(&s))), 0);
    (void)*not_ours();
}

/* As faulthandler: it puts back what was before it, and raises the signal again. */
static void raise_again(int signum, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    if (++times > 1)
        _Exit(98);
    sigaction(signum, &before_it, NULL);
    raise(signum);
}

static void fault_and_be_raised_again(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    struct stream s;
    struct attached r;
    handle_not();
    open_unsealed(&s, &r);
    action.sa_sigaction = raise_again;
    CHECK_EQUAL(sigaction(SIGBUS, &action, &before_it), 0);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pin_next(&r, publish(&s))), 0);
    (void)*not_ours();
}

static sigjmp_buf outside;

static void jump_out(int signum, siginfo_t *info, void *context)
{
    (void)signum;
    (void)info;
    (void)context;
    siglongjmp(outside, 1);
}

static void fault_and_jump_out(void)
{
    static volatile int jumps;
    handle(jump_out, NULL);
    lose_one();
    const volatile uint8_t *byte = not_ours();
    while (jumps < 3)
        if (sigsetjmp(outside, 1) == 0)
            (void)*byte;
        else
            jumps++;
    lose_one();
    _Exit(42);
}

static struct mcpd_map inherited;

static void map_over_what_is_not_inherited(void)
{
    int fd = memfd_create("child's", MFD_CLOEXEC);
    handle(exit_42, NULL);
    CHECK_EQUAL(ftruncate(fd, SLOT_NBYTES), 0);
    CHECK(mmap(inherited.base, SLOT_NBYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
          inherited.base);
    CHECK_EQUAL(ftruncate(fd, 0), 0);
    lose_one(); /* the child's own are guarded */
    (void)*(const volatile uint8_t *)inherited.base;
}

TEST(a_fault_that_is_not_ours_kills_as_if_nobody_handled_it)
{
    CHECK_EQUAL(in_child(fault_with_no_handler), 128 + SIGBUS);
    CHECK_EQUAL(in_child(be_sent_one_with_no_handler), 128 + SIGBUS);
    CHECK_EQUAL(in_child(be_sent_one_that_is_ignored), 42);
}

TEST(a_fault_that_is_not_ours_goes_to_the_handler_that_was_there)
{
    CHECK_EQUAL(in_child(fault_with_a_handler), 42);
}

TEST(a_handler_that_was_installed_later_is_put_behind_ours)
{
    CHECK_EQUAL(in_child(fault_with_a_later_handler), 42);
}

TEST(a_handler_that_has_kept_ours_as_the_one_before_it_makes_no_circle)
{
    CHECK_EQUAL(in_child(fault_in_a_circle), 128 + SIGBUS);
    CHECK_EQUAL(in_child(fault_and_be_raised_again), 128 + SIGBUS);
}

TEST(a_handler_that_jumps_out_is_called_again)
{
    CHECK_EQUAL(in_child(fault_and_jump_out), 42);
}

TEST(what_a_forked_child_maps_in_place_of_a_mapping_is_not_ours)
{
    struct mcpd_guarded *guarded;
    int fd = memfd_create("parent's", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, SLOT_NBYTES), 0);
    CHECK_EQUAL(mcpd_payload_open(&inherited, &guarded, fd, 0, SLOT_NBYTES, 0), 0);
    CHECK_EQUAL(in_child(map_over_what_is_not_inherited), 42);
    mcpd_payload_close(&inherited, &guarded);
    close(fd);
}

TEST(a_sealed_payload_needs_no_handler)
{
    struct stream s;
    struct sigaction before, after;
    CHECK_EQUAL(sigaction(SIGBUS, NULL, &before), 0);
    stream_open(&s, 4, 1, 2);
    CHECK_EQUAL(sigaction(SIGBUS, NULL, &after), 0);
    CHECK(after.sa_sigaction == before.sa_sigaction);
    stream_close(&s);
}
