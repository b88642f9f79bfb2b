/*
 * The daemon's part in the control objects: it formats them when they are made, and marks a stream
 * ended when its writer cannot. A new memfd is all zero, which is a valid empty queue and free
 * slots.
 */
#include "atomics.h"
#include "layout.h"
#include "stream.h"

void mcpd_wctl_format(struct mcpd_wctl *wctl, const struct mcpd_geometry *geometry)
{
    wctl->magic = MCPD_WCTL_MAGIC;
    wctl->abi = MCPD_ABI_VERSION;
    wctl->flags = 0;
    wctl->stream_id = geometry->stream_id;
    wctl->generation = geometry->generation;
    wctl->nslots = geometry->nslots;
    wctl->queue_len = mcpd_queue_len(geometry->nslots);
    wctl->slot_nbytes = geometry->slot_nbytes;
}

void mcpd_rctl_format(struct mcpd_rctl *rctl, const struct mcpd_geometry *geometry,
                      uint64_t reader_id, uint32_t max_pins)
{
    rctl->magic = MCPD_RCTL_MAGIC;
    rctl->abi = MCPD_ABI_VERSION;
    rctl->max_pins = max_pins;
    rctl->stream_id = geometry->stream_id;
    rctl->generation = geometry->generation;
    rctl->reader_id = reader_id;
}

/*
 * Writer and daemon may both end a stream: the first reason stands. seq_cst, because a sleeper's
 * epoch is read afterwards; pairs with the re-check in mcpd_reader_next and mcpd_writer_acquire.
 */
int mcpd_wctl_end(struct mcpd_wctl *wctl, enum mcpd_end reason)
{
    uint32_t live = MCPD_LIVE;
    return atomic_compare_exchange_strong(&wctl->ended, &live, (uint32_t)reason);
}
