/*
 * Mappings of a stream's objects, checked against the geometry before anything is touched, and what
 * the daemon says of them.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layout.h"
#include "steps.h"
#include "stream.h"

#define MAX_SLOT_NBYTES (UINT64_C(1) << 40)

static int payload_check(const struct mcpd_geometry *geometry)
{
    if (geometry->nslots < 2 || geometry->nslots > MCPD_MAX_SLOTS)
        return -EINVAL;
    if (geometry->slot_nbytes == 0 || geometry->slot_nbytes % MCPD_SLOT_ALIGN != 0 ||
        geometry->slot_nbytes > MAX_SLOT_NBYTES)
        return -EINVAL;
    return 0;
}

int mcpd_geometry_check(const struct mcpd_geometry *geometry)
{
    if (geometry->first_seq < 1 || geometry->first_seq > MCPD_MAX_SEQ)
        return -EINVAL;
    return payload_check(geometry);
}

int mcpd_policy_check(uint32_t policy, uint32_t depth)
{
    if (policy == MCPD_FIFO)
        return depth >= 1 && depth <= MCPD_MAX_SLOTS ? 0 : -EINVAL;
    if (policy == MCPD_LOSSLESS)
        return depth <= MCPD_MAX_SLOTS ? 0 : -EINVAL;
    return policy == MCPD_LATEST && depth == 0 ? 0 : -EINVAL;
}

int mcpd_control_check(uint64_t magic_seen, uint64_t magic, uint32_t abi)
{
    return magic_seen == magic && abi == MCPD_ABI_VERSION ? 0 : -EPROTONOSUPPORT;
}

int64_t mcpd_payload_nbytes(const struct mcpd_geometry *geometry)
{
    int bad = payload_check(geometry);
    /* At most 2^12 slots of 2^40 bytes: no overflow. */
    return bad ? bad : (int64_t)(geometry->nslots * geometry->slot_nbytes);
}

int64_t mcpd_writer_control_nbytes(uint32_t nslots)
{
    return nslots < 2 || nslots > MCPD_MAX_SLOTS ? -EINVAL : (int64_t)mcpd_wctl_nbytes(nslots);
}

int64_t mcpd_reader_control_nbytes(uint32_t max_pins)
{
    return max_pins < 1 || max_pins > MCPD_MAX_PINS ? -EINVAL : (int64_t)mcpd_rctl_nbytes(max_pins);
}

int64_t mcpd_group_control_nbytes(uint32_t nslots)
{
    return nslots < 2 || nslots > MCPD_MAX_SLOTS ? -EINVAL : (int64_t)mcpd_gctl_nbytes(nslots);
}

int mcpd_size_check(int fd, size_t nbytes)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return -errno;
    return status.st_size < 0 || (uint64_t)status.st_size < nbytes ? -EINVAL : 0;
}

int mcpd_map_open(struct mcpd_map *map, int fd, size_t nbytes, int writable)
{
    int result = mcpd_size_check(fd, nbytes);
    if (result != 0)
        return result;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, nbytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    if (madvise(base, nbytes, MADV_DONTFORK) != 0) {
        int error = errno;
        munmap(base, nbytes);
        return -error;
    }
    map->base = base;
    map->nbytes = nbytes;
    MCPD_STEP("map.mapped");
    return 0;
}

void mcpd_map_close(struct mcpd_map *map)
{
    if (map->base != NULL)
        munmap(map->base, map->nbytes);
    map->base = NULL;
    MCPD_STEP("map.unmapped");
}

int mcpd_guard_open(const volatile uint32_t **guard)
{
    void *page = mmap(NULL, MCPD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -errno;
    if (madvise(page, MCPD_PAGE, MADV_WIPEONFORK) != 0) {
        int error = errno;
        munmap(page, MCPD_PAGE);
        return -error;
    }
    *(uint32_t *)page = 1;
    *guard = page;
    return 0;
}

void mcpd_guard_close(const volatile uint32_t *guard)
{
    if (guard != NULL)
        munmap((void *)(uintptr_t)guard, MCPD_PAGE);
}
