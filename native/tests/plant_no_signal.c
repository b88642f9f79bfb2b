/* A fault to be found: every hundredth wake-up is forgotten. --wrap=mcpd_wake_seen. */
#include "atomics.h"
#include "stream.h"

int __real_mcpd_wake_seen(uint32_t seen, uint32_t *signalled, int fd);
int __wrap_mcpd_wake_seen(uint32_t seen, uint32_t *signalled, int fd);

int __wrap_mcpd_wake_seen(uint32_t seen, uint32_t *signalled, int fd)
{
    static atomic_uint calls;
    if ((seen & 1) && seen != *signalled && atomic_fetch_add(&calls, 1) % 100 == 99)
        return 0;
    return __real_mcpd_wake_seen(seen, signalled, fd);
}
