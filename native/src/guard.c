/*
 * Guarded mappings. See guard.h; docs/protocol.md says which objects need it.
 *
 * The table of guarded ranges is read by the handler in whatever thread faults, so it is lock-free. It
 * is private to the process, in memory that a forked child finds wiped: there the ranges are not mapped
 * (MADV_DONTFORK), and what is mapped in their place is not ours.
 *
 * The handler and the end of a range: the handler counts itself in, then loads the range's start; the
 * end takes the start away, then waits until nobody is counted. Both are seq_cst, as all here, so no
 * handler maps pages over addresses that are somebody else's by then.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bus.h"
#include "layout.h"
#include "steps.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define TMPFS 0x01021994u /* linux/magic.h; a memfd's as well */
#define HUGETLBFS 0x958458f6u

/* What start is if it is no address. */
#define UNUSED ((uintptr_t)0)
#define CLAIMED ((uintptr_t)1) /* being set up, or taken down */

struct mcpd_guarded {
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;
    _Atomic uint32_t users; /* handlers that look at it now */
    _Atomic uint32_t lost;
    _Atomic uint32_t replaced; /* zeros are in its place */
    _Atomic uint32_t writable;
};

#define RANGES 127u

struct table {
    struct table *_Atomic next;
    _Atomic uint32_t installing; /* a spin lock; that of a child is open */
    uint8_t reserved[20];
    struct mcpd_guarded ranges[RANGES];
};

static_assert(sizeof(struct mcpd_guarded) == 32, "guarded range");
static_assert(sizeof(struct table) == MCPD_PAGE, "table of guarded ranges");
static_assert(sizeof(long) == 8, "mmap as a bare system call takes 64-bit numbers");

static struct table *_Atomic tables;

/* ---- in the handler ------------------------------------------------------------------------- */

/* Bare system calls: a sanitizer's mmap may not be called from a handler. */
static int put_zeros(uintptr_t start, uintptr_t end, int writable)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    long at = syscall(SYS_mmap, start, end - start, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0L);
    if (at == -1)
        return 0;
    syscall(SYS_madvise, start, end - start, MADV_DONTFORK);
    return 1;
}

/* All of it at once: what was read of it is void in any case, and it faults no more. */
static int fill_in(struct mcpd_guarded *range, uintptr_t start, uintptr_t end)
{
    /* Before anybody can see the zeros: who read one finds the mark. */
    atomic_store(&range->lost, 1);
    if (atomic_load(&range->replaced))
        return 1; /* by another thread, since this one's fault */
    if (!put_zeros(start, end, (int)atomic_load(&range->writable)))
        return 0;
    atomic_store(&range->replaced, 1);
    return 1;
}

int mcpd_guarded_fill(uintptr_t address)
{
    struct table *table = atomic_load(&tables);
    for (; table != NULL; table = atomic_load(&table->next)) {
        for (uint32_t i = 0; i < RANGES; i++) {
            struct mcpd_guarded *range = &table->ranges[i];
            if (atomic_load(&range->start) <= CLAIMED)
                continue;
            atomic_fetch_add(&range->users, 1);
            uintptr_t start = atomic_load(&range->start), end = atomic_load(&range->end);
            int ours = start > CLAIMED && address >= start && address < end;
            int filled = ours && fill_in(range, start, end);
            atomic_fetch_sub(&range->users, 1);
            if (ours)
                return filled;
        }
    }
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------ */

/* The table at *place, made if there is none; NULL: no memory. */
static struct table *table_at(struct table *_Atomic *place)
{
    struct table *none = NULL, *table = atomic_load(place);
    if (table != NULL)
        return table;
    void *page = mmap(NULL, MCPD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, MCPD_PAGE, MADV_WIPEONFORK) == 0) {
        while (none == NULL && !atomic_compare_exchange_weak(place, &none, page))
            ;
        if (none == NULL)
            return page;
    }
    munmap(page, MCPD_PAGE);
    return none; /* another thread was faster */
}

static struct mcpd_guarded *claim(void)
{
    struct table *_Atomic *place = &tables;
    for (struct table *table; (table = table_at(place)) != NULL; place = &table->next) {
        for (uint32_t i = 0; i < RANGES; i++) {
            struct mcpd_guarded *range = &table->ranges[i];
            uintptr_t seen = UNUSED;
            while (seen == UNUSED)
                if (atomic_compare_exchange_weak(&range->start, &seen, CLAIMED))
                    return range;
        }
    }
    return NULL;
}

static void install(void)
{
    struct table *table = atomic_load(&tables);
    while (atomic_exchange(&table->installing, 1))
        sched_yield();
    mcpd_bus_install();
    atomic_store(&table->installing, 0);
}

/* ---- mappings ------------------------------------------------------------------------------- */

/* What is known of an object before it is mapped. */
struct object {
    uint64_t nbytes;
    uint64_t page; /* what it is mapped by */
    int guarded;   /* it may lose pages */
    int whole;     /* it has all its pages now */
};

static int look_at(int fd, struct object *object)
{
    struct stat status;
    struct statfs system;
    if (fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0)
        return -errno;
    if (status.st_size < 0)
        return -EINVAL;
    int seals = fcntl(fd, F_GET_SEALS);
    uint32_t type = (uint32_t)system.f_type;
    object->nbytes = (uint64_t)status.st_size;
    object->page = type == HUGETLBFS ? (uint64_t)system.f_bsize : MCPD_PAGE;
    object->whole = (uint64_t)status.st_blocks >= object->nbytes / 512;
    /*
     * A memfd that cannot shrink gets a page for every hole, but one of huge pages, which may have run
     * out. What else has seals is of memfd_create, so it is on no file system that can be full.
     */
    int shrinks = seals < 0 || !(seals & F_SEAL_SHRINK);
    int punched = seals < 0 || !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));
    object->guarded = shrinks || (punched && type != TMPFS);
    return 0;
}

static int map_at(struct mcpd_map *map, int fd, uint64_t offset, const struct object *object,
                  int writable)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    /* The pages of somebody's sparse object are not ours to ask for. */
    int flags = MAP_SHARED | (object->whole || !object->guarded ? MAP_POPULATE : 0);
    void *base = mmap(NULL, map->nbytes, protection, flags, fd, (off_t)offset);
    if (base == MAP_FAILED)
        return -errno;
    if (madvise(base, map->nbytes, MADV_DONTFORK) != 0) {
        int error = errno;
        munmap(base, map->nbytes);
        return -error;
    }
    map->base = base;
    MCPD_STEP("map.guarded");
    return 0;
}

int mcpd_payload_open(struct mcpd_map *map, struct mcpd_guarded **guarded, int fd, uint64_t offset,
                      size_t nbytes, int writable)
{
    struct object object = {0};
    *guarded = NULL;
    int result = look_at(fd, &object);
    if (result != 0)
        return result;
    if (!object.guarded && offset == 0)
        return mcpd_map_open(map, fd, nbytes, writable);
    uint64_t whole = (nbytes + object.page - 1) / object.page * object.page;
    if (offset % object.page != 0)
        return -EINVAL;
    if (whole > object.nbytes || offset > object.nbytes - whole)
        return object.guarded ? -EFAULT : -EINVAL;
    struct mcpd_map mapped = {.nbytes = (size_t)whole};
    struct mcpd_guarded *range = object.guarded ? claim() : NULL;
    if (object.guarded && range == NULL)
        return -ENOMEM;
    result = map_at(&mapped, fd, offset, &object, writable);
    if (range != NULL && result != 0)
        atomic_store(&range->start, UNUSED);
    if (result != 0)
        return result;
    *map = mapped;
    if (range == NULL)
        return 0;
    install();
    atomic_store(&range->lost, 0);
    atomic_store(&range->replaced, 0);
    atomic_store(&range->writable, (uint32_t)(writable != 0));
    atomic_store(&range->end, (uintptr_t)mapped.base + mapped.nbytes);
    atomic_store(&range->start, (uintptr_t)mapped.base);
    *guarded = range;
    return 0;
}

void mcpd_payload_close(struct mcpd_map *map, struct mcpd_guarded **guarded)
{
    struct mcpd_guarded *range = *guarded;
    if (range != NULL) {
        atomic_store(&range->start, CLAIMED);
        while (atomic_load(&range->users) != 0)
            sched_yield();
    }
    mcpd_map_close(map);
    if (range != NULL)
        atomic_store(&range->start, UNUSED);
    *guarded = NULL;
}

int mcpd_guarded_lost(const struct mcpd_guarded *guarded)
{
    /* What was read before comes first, though it was read without any order. */
#if defined(__aarch64__)
    __asm__ volatile("dmb ishld" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
    return guarded != NULL && atomic_load(&guarded->lost);
}

void mcpd_guarded_watch(const struct mcpd_guarded *guarded)
{
    if (guarded != NULL && !mcpd_bus_installed())
        install();
}
