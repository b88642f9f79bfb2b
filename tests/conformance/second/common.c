#include "common.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void (*second_step)(const char *name);

/* ---- sizes -------------------------------------------------------------------------------- */

int geometry_check(const struct geometry *g)
{
    if (g->nslots < 2 || g->nslots > MAX_SLOTS)
        return -EINVAL;
    if (!g->slot_nbytes || g->slot_nbytes % PAGE || g->slot_nbytes > MAX_SLOT_NBYTES)
        return -EINVAL;
    if (g->first_seq < 1 || g->first_seq > MAX_SEQ)
        return -EINVAL;
    return 0;
}

uint32_t queue_length(uint32_t nslots)
{
    uint32_t length = 1;
    while (length < nslots)
        length *= 2;
    return length;
}

static uint64_t round_up(uint64_t nbytes) { return (nbytes + PAGE - 1) / PAGE * PAGE; }

uint64_t headers_offset(uint32_t nslots) { return round_up(PAGE + 8ull * queue_length(nslots)); }

uint64_t writer_control_nbytes(uint32_t nslots)
{
    return headers_offset(nslots) + (uint64_t)nslots * PAGE;
}

uint64_t reader_control_nbytes(uint32_t max_pins) { return round_up(512 + 8ull * max_pins); }

uint64_t group_control_nbytes(uint32_t nslots) { return round_up(512 + 8ull * nslots); }

/* ---- mappings ----------------------------------------------------------------------------- */

int map(int fd, uint64_t nbytes, bool writable, struct mapping *out)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return -errno;
    if (info.st_size < 0 || (uint64_t)info.st_size < nbytes)
        return -EINVAL;
    void *at = mmap(NULL, nbytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    if (madvise(at, nbytes, MADV_DONTFORK) < 0) {
        int error = errno;
        munmap(at, nbytes);
        return -error;
    }
    *out = (struct mapping){at, nbytes};
    return 0;
}

void unmap(struct mapping *m)
{
    if (m->at)
        munmap(m->at, m->nbytes);
    *m = (struct mapping){0};
}

int check_magic(const struct mapping *m, uint64_t magic)
{
    const struct writer_control *any = m->at; /* magic and abi are at the same place in all */
    return any->magic == magic && any->abi == ABI ? 0 : -EPROTONOSUPPORT;
}

/* ---- sleep and signals -------------------------------------------------------------------- */

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void signal_fd(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

bool signal_sleeper(const _Atomic uint32_t *epoch, uint32_t *signalled, int fd)
{
    uint32_t seen = LOAD(*epoch);
    if (seen % 2 == 0 || seen == *signalled || fd < 0)
        return false;
    *signalled = seen;
    signal_fd(fd);
    return true;
}

void sleep_begin(_Atomic uint32_t *epoch)
{
    uint32_t now = LOAD_RELAXED(*epoch);
    EXCHANGE(*epoch, now + (now % 2 ? 2 : 1));
    STEP("sleep 1");
}

bool sleep_end(_Atomic uint32_t *epoch, int fd)
{
    uint64_t count;
    bool taken = read(fd, &count, sizeof count) == sizeof count;
    uint32_t now = LOAD_RELAXED(*epoch);
    EXCHANGE(*epoch, now + (now % 2 ? 1 : 2));
    return taken;
}

int sleep_until(int fd, int64_t until_ns)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    struct timespec left, *timeout = NULL;
    if (until_ns >= 0) {
        int64_t ns = until_ns - now_ns();
        if (ns <= 0)
            return -ETIMEDOUT;
        left = (struct timespec){ns / 1000000000, ns % 1000000000};
        timeout = &left;
    }
    int ready = ppoll(&item, 1, timeout, NULL);
    return ready < 0 ? -errno : ready ? 0 : -ETIMEDOUT;
}

int64_t deadline_of(int64_t timeout_ns)
{
    if (timeout_ns < 0)
        return -1;
    int64_t now = now_ns();
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}
