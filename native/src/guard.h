/*
 * Guarded mappings: of payloads whose pages can be taken away while they are mapped, because their
 * object is not sealed against shrinking.
 *
 * A fault in such a mapping raises SIGBUS. The handler here puts pages of zeros in place of the whole
 * mapping, marks it lost, and lets the thread go on, whichever it is; who reads asks mcpd_guarded_lost
 * after the reading and throws away what was read. Signals that are not about a guarded mapping go to
 * the handler that was there before.
 */
#ifndef MCPD_GUARD_H
#define MCPD_GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "stream.h"

struct mcpd_guarded; /* one mapping that is watched; of this process, not of its forked children */

/*
 * Maps nbytes of fd from offset on as mcpd_map_open does, guarded unless its object can lose no page;
 * *guarded is NULL then. -EINVAL: an offset that is not of whole pages, or a sealed object that ends
 * before offset + nbytes; -EFAULT: one that may have been longer. A guarded object that has holes is mapped
 * without touching them.
 */
int mcpd_payload_open(struct mcpd_map *map, struct mcpd_guarded **guarded, int fd, uint64_t offset,
                      size_t nbytes, int writable);
/* Nobody uses the mapping any more. Does nothing to one that is not open. */
void mcpd_payload_close(struct mcpd_map *map, struct mcpd_guarded **guarded);

/*
 * 1 once a page of it was missing when it was used; never 0 again. Acquire: asked after the reading,
 * it answers for what was read. NULL: 0.
 */
int mcpd_guarded_lost(const struct mcpd_guarded *guarded);

/*
 * Called before a guarded mapping is used: another handler that was installed meanwhile, such as
 * Python's faulthandler, is put behind ours. A system call; nothing for NULL.
 */
void mcpd_guarded_watch(const struct mcpd_guarded *guarded);

#endif
