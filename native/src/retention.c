/*
 * Which published slots the writer may take back, and the order in which it uses free ones.
 */
#include "atomics.h"
#include "writer.h"

/*
 * Takes a published slot back unless a reader has pinned it. The exchange and the scan after it
 * pair with the exchange and the re-check in mcpd_reader_next: the reader sees that the slot is no
 * longer published and withdraws, or the scan sees the pin and the slot is put back, or both.
 */
static int reclaim(mcpd_writer *writer, uint32_t index)
{
    struct mcpd_writer_slot *slot = &writer->slots[index];
    _Atomic uint64_t *state = &writer->headers[index].state;
    (void)mcpd_exchange_seq_cst(state, MCPD_TAG(slot->seq, MCPD_SLOT_WRITING));
    int keep = mcpd_writer_pinned(writer, MCPD_TAG(slot->seq, index));
#ifdef MCPD_PLANT_NO_SCAN /* a fault for the tests to find */
    keep = 0;
#endif
    if (keep) {
        mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_PUBLISHED));
        return 0;
    }
    mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_FREE));
    return 1;
}

void mcpd_writer_append(mcpd_writer *writer, uint32_t index)
{
    struct mcpd_writer_slot *slot = &writer->slots[index];
    slot->older = writer->newest;
    slot->newer = MCPD_NO_SLOT;
    if (writer->newest != MCPD_NO_SLOT)
        writer->slots[writer->newest].newer = index;
    else
        writer->oldest = index;
    writer->newest = index;
}

static void unlink_published(mcpd_writer *writer, uint32_t index)
{
    struct mcpd_writer_slot *slot = &writer->slots[index];
    if (slot->older != MCPD_NO_SLOT)
        writer->slots[slot->older].newer = slot->newer;
    else
        writer->oldest = slot->newer;
    if (slot->newer != MCPD_NO_SLOT)
        writer->slots[slot->newer].older = slot->older;
    else
        writer->newest = slot->older;
}

/*
 * Frees what is not retained, oldest first, so that the newest of it is on top of the stack. The
 * walk ends at the first retained frame: it passes only what is freed, pinned or held.
 */
void mcpd_writer_reclaim(mcpd_writer *writer)
{
    uint64_t from = mcpd_writer_retained_from(writer);
    uint32_t next;
    for (uint32_t index = writer->oldest; index != MCPD_NO_SLOT; index = next) {
        struct mcpd_writer_slot *slot = &writer->slots[index];
        next = slot->newer;
        if (slot->seq >= from)
            break;
        if (slot->held || !reclaim(writer, index))
            continue;
        unlink_published(writer, index);
        slot->state = MCPD_SLOT_FREE;
        writer->free[writer->nfree++] = index;
    }
}
