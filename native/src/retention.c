/*
 * Which published slots the writer may take back, and the order in which it uses free ones.
 */
#include "atomics.h"
#include "steps.h"
#include "writer.h"

/* ---- what is retained whether pinned or not -------------------------------------------------- */

static uint64_t newest_of(uint64_t next, uint32_t count)
{
    return next > count ? next - count : 1;
}

/*
 * The first frame to retain for a reader or group. A cursor is its owner's word: it may not go back,
 * nor beyond the next frame. seq_cst: pairs with the store in take.c and the exchange in claims.c, so
 * that the pin or claim of the frame just passed is seen by the scan that follows, and that a writer
 * about to sleep sees the cursor of any reader that does not see its epoch.
 */
static uint64_t owed_from(struct mcpd_writer_owed *owed, uint64_t next)
{
    if (owed->policy == MCPD_LATEST)
        return next;
    uint64_t cursor = mcpd_load_seq_cst(owed->word);
    if (cursor > next)
        cursor = next;
    if (cursor > owed->cursor)
        owed->cursor = cursor;
    if (owed->policy == MCPD_LOSSLESS)
        return owed->cursor;
    uint64_t depth = newest_of(next, owed->depth);
    return owed->cursor > depth ? owed->cursor : depth;
}

/* Whether as many frames are unread as the writer may be ahead; `owed` has just been looked at. */
static int at_depth(const struct mcpd_writer_owed *owed, uint64_t next)
{
    return owed->policy == MCPD_LOSSLESS && owed->depth != 0 &&
           next - owed->cursor >= owed->depth;
}

/* Frames from this sequence number on are retained, whether pinned or not. Notes `ahead` as well. */
static uint64_t retained_from(mcpd_writer *writer)
{
    uint64_t next = writer->head + 1;
    uint64_t from = newest_of(next, writer->history);
    writer->ahead = 0;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        struct mcpd_writer_reader *reader = &writer->readers[i];
        if (reader->released || reader->group != 0)
            continue;
        uint64_t owed = owed_from(&reader->owed, next);
        from = owed < from ? owed : from;
        writer->ahead |= at_depth(&reader->owed, next);
    }
    for (uint32_t i = 0; i < writer->ngroups; i++) {
        struct mcpd_writer_group *group = &writer->groups[i];
        if (group->left)
            continue;
        uint64_t owed = owed_from(&group->owed, next);
        from = owed < from ? owed : from;
        writer->ahead |= at_depth(&group->owed, next);
    }
    return from;
}

/* ---- taking back ----------------------------------------------------------------------------- */

/*
 * Takes a published slot back unless a reader has pinned it. The exchange and the scans after it
 * pair with the exchange and the re-check in take.c and claims.c: the reader sees that the slot is no
 * longer published and withdraws, or the scan sees the pin and the slot is put back, or both.
 */
static int reclaim(mcpd_writer *writer, uint32_t index)
{
    struct mcpd_writer_slot *slot = &writer->slots[index];
    _Atomic uint64_t *state = &writer->headers[index].state;
    (void)mcpd_exchange_seq_cst(state, MCPD_TAG(slot->seq, MCPD_SLOT_WRITING));
    MCPD_STEP("writer.reclaim.writing");
    if (mcpd_writer_pinned(writer, MCPD_TAG(slot->seq, index)) ||
        mcpd_writer_claimed(writer, slot->seq, index)) {
        MCPD_STEP("writer.reclaim.pinned");
        mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_PUBLISHED));
        MCPD_STEP("writer.reclaim.put_back");
        return 0;
    }
    MCPD_STEP("writer.reclaim.scanned");
    mcpd_store_release(state, MCPD_TAG(slot->seq, MCPD_SLOT_FREE));
    MCPD_STEP("writer.reclaim.freed");
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
    uint64_t from = retained_from(writer);
    uint32_t next;
    mcpd_writer_begin_claims(writer);
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
