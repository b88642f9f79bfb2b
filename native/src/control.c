/*
 * The daemon's part in the control objects: it formats them when they are made, marks a stream ended
 * when its writer cannot, and gives a group back what a dead member had claimed. A new memfd is all
 * zero, which is a valid empty queue and free slots.
 */
#include "atomics.h"
#include "layout.h"
#include "steps.h"
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
    wctl->first_seq = geometry->first_seq;
    mcpd_store_relaxed(&wctl->head, geometry->first_seq - 1);
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

void mcpd_gctl_format(struct mcpd_gctl *gctl, const struct mcpd_geometry *geometry,
                      uint64_t group_id)
{
    gctl->magic = MCPD_GCTL_MAGIC;
    gctl->abi = MCPD_ABI_VERSION;
    gctl->nslots = geometry->nslots;
    gctl->stream_id = geometry->stream_id;
    gctl->generation = geometry->generation;
    gctl->group_id = group_id;
}

/*
 * Only compare-exchange: members go on meanwhile. A claim that fails to be the dead member's by then
 * is another's, and none can become its any more. `returned` is raised last, and always, because the
 * member may have died before it did so.
 */
uint32_t mcpd_gctl_sweep(struct mcpd_gctl *gctl, uint32_t nslots, uint32_t member, int others)
{
    _Atomic uint64_t *claims = (_Atomic uint64_t *)((uint8_t *)gctl + MCPD_GCTL_CLAIMS);
    uint32_t state = others ? MCPD_CLAIM_RETURNED : MCPD_CLAIM_DONE, count = 0;
    for (uint32_t slot = 0; slot < nslots; slot++) {
        uint64_t claim = mcpd_load_seq_cst(&claims[slot]), seq = MCPD_TAG_SEQ(claim);
        int its = MCPD_CLAIM_STATE(claim) == MCPD_CLAIM_TAKEN && MCPD_CLAIM_MEMBER(claim) == member;
        int left = MCPD_CLAIM_STATE(claim) == MCPD_CLAIM_RETURNED && !others;
        if (its || left)
            count += (uint32_t)mcpd_compare_exchange_seq_cst(
                &claims[slot], &claim, MCPD_CLAIM(seq, MCPD_CLAIM_MEMBER(claim), state));
        MCPD_STEP("daemon.sweep.looked");
    }
    mcpd_add_relaxed(others ? &gctl->returns : &gctl->finished, count);
    (void)mcpd_add_seq_cst(&gctl->returned, 1);
    MCPD_STEP("daemon.sweep.told");
    return count;
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
