/*
 * What MCPD_STEP calls in a test build: counts the step, and kills, stops or delays the process at the
 * pass that the test armed. The page is shared with the test; steps.py draws it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_LABELS 320
#define LABEL_NBYTES 48
#define NS_PER_MS 1000000L

struct page {
    _Atomic uint32_t armed;  /* a label's place + 1; 0: nothing is armed */
    _Atomic int32_t passes;  /* until it strikes */
    uint32_t signal;
    _Atomic uint32_t paused; /* a label's place + 1: its next pass takes pause_ms */
    uint32_t pause_ms;
    uint32_t nlabels;
    _Atomic uint32_t struck; /* how often a signal was sent */
    _Atomic uint32_t unknown; /* steps whose label is not in the table */
    _Atomic int32_t pid;     /* who was struck last */
    uint32_t reserved[7];
    char labels[MAX_LABELS][LABEL_NBYTES];
    _Atomic uint64_t reached[MAX_LABELS];
};

static struct page *page;

/* Each process has a page of its own, or none. 0 or -errno. */
__attribute__((visibility("default"))) int mcpd_test_steps_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    void *base = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return -errno;
    page = base;
    return 0;
}

static uint32_t place_of(const char *label)
{
    for (uint32_t i = 0; i < page->nlabels; i++)
        if (strcmp(page->labels[i], label) == 0)
            return i;
    return MAX_LABELS;
}

__attribute__((visibility("default"))) void mcpd_test_step(const char *label)
{
    if (page == NULL)
        return;
    uint32_t place = place_of(label), wanted = place + 1;
    if (place == MAX_LABELS) {
        atomic_fetch_add(&page->unknown, 1);
        return;
    }
    atomic_fetch_add(&page->reached[place], 1);
    if (atomic_load(&page->paused) == wanted && atomic_compare_exchange_strong(&page->paused, &wanted, 0)) {
        struct timespec pause = {.tv_sec = page->pause_ms / 1000,
                                 .tv_nsec = (long)(page->pause_ms % 1000) * NS_PER_MS};
        nanosleep(&pause, NULL);
    }
    if (atomic_load(&page->armed) != place + 1 || atomic_fetch_sub(&page->passes, 1) != 1)
        return;
    atomic_store(&page->armed, 0);
    atomic_store(&page->pid, getpid());
    atomic_fetch_add(&page->struck, 1);
    kill(getpid(), (int)page->signal);
}
