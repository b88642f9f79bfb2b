/*
 * Which frame is next by a reader's policy, and pinning it.
 */
#include <errno.h>

#include "atomics.h"
#include "reader.h"
#include "steps.h"

#define MAX_PASSED 4096 /* frames that one call passes over before it looks at the clock */

void mcpd_reader_made_room(mcpd_reader *reader)
{
    if (reader->writer_wake_fd >= 0)
        mcpd_wake_peer(&reader->wctl->writer_epoch, &reader->writer_signalled,
                       reader->writer_wake_fd);
}

int mcpd_reader_ready(mcpd_reader *reader, uint64_t *head)
{
    if (reader->gctl != NULL)
        return mcpd_member_ready(reader, head);
    if (reader->shut)
        return -ECANCELED;
    uint32_t ended = mcpd_load_seq_cst(&reader->wctl->ended);
    *head = mcpd_load_seq_cst(&reader->wctl->head);
    if (*head >= reader->wanted)
        return reader->nfree > 0 ? 1 : -EBUSY;
    return ended != MCPD_LIVE ? -EPIPE : -EAGAIN;
}

/* ---- which frame ----------------------------------------------------------------------------- */

uint64_t mcpd_within_depth(uint64_t wanted, uint64_t head, uint32_t depth, uint32_t every_n)
{
    uint64_t lowest = head >= depth ? head - depth + 1 : 1;
    if (wanted >= lowest)
        return wanted;
    uint64_t behind = lowest - wanted, rest = behind % every_n;
    return rest == 0 ? lowest : lowest + (every_n - rest);
}

static uint64_t choose(const mcpd_reader *reader, uint64_t head)
{
    switch (reader->policy) {
    case MCPD_LATEST:
        return head;
    case MCPD_FIFO:
        return mcpd_within_depth(reader->wanted, head, reader->depth, reader->thinning.every_n);
    default:
        return reader->wanted;
    }
}

/* ---- pinning it ------------------------------------------------------------------------------ */

int mcpd_reader_find(const mcpd_reader *reader, uint64_t seq)
{
    uint64_t entry = mcpd_load_acquire(&reader->queue[seq & reader->queue_mask]);
    if (MCPD_TAG_SEQ(entry) != seq)
        return -ESTALE;
    uint32_t slot = MCPD_TAG_LOW(entry);
    return slot < reader->geometry.nslots ? (int)slot : -EBADMSG;
}

/*
 * Puts the top pin on frame seq and copies its metadata; returns the slot. -ESTALE when it has moved
 * on, -EBADMSG when the writer lies; then the pin is withdrawn. The exchange and the re-check in
 * mcpd_reader_confirm pair with the exchange and the scan in the writer's reclaim (retention.c).
 */
static int pin_frame(mcpd_reader *reader, uint64_t seq, struct mcpd_meta *meta)
{
    _Atomic uint64_t *word = &reader->words[mcpd_reader_top_pin(reader)];
    int slot = mcpd_reader_find(reader, seq);
    if (slot < 0)
        return slot;
    MCPD_STEP("reader.pin.found");
    mcpd_fetch(&reader->headers[slot], 384); /* state, metadata, description without tensors */
    (void)mcpd_exchange_seq_cst(word, MCPD_TAG(seq, (uint32_t)slot));
    MCPD_STEP("reader.pin.exchanged");
    int result = mcpd_reader_confirm(reader, (uint32_t)slot, seq, meta);
    MCPD_STEP("reader.pin.checked");
    if (result == 0)
        return slot;
    mcpd_store_release(word, 0);
    MCPD_STEP("reader.pin.withdrawn");
    return result;
}

static void pass_over(mcpd_reader *reader)
{
    mcpd_store_release(&reader->words[mcpd_reader_top_pin(reader)], 0);
    MCPD_STEP("reader.pass_over.unpinned");
    mcpd_reader_store_wants(reader);
    mcpd_reader_made_room(reader);
}

/* What is pinned goes to the caller, or back: its pin, or -EAGAIN. */
static int take_or_pass(mcpd_reader *reader, uint32_t slot, const struct mcpd_meta *meta)
{
    int64_t now_ns = mcpd_now_ns();
    enum mcpd_verdict verdict = mcpd_reader_wants(reader, meta, now_ns);
    mcpd_reader_count_missed(reader, meta->seq, verdict);
    if (verdict != MCPD_WANTED) {
        pass_over(reader);
        return -EAGAIN;
    }
    int pin = mcpd_reader_deliver(reader, slot, meta, now_ns);
    MCPD_STEP("reader.take.delivered");
    int gave_up = mcpd_reader_want_next(reader, meta->seq, meta->publish_ns);
    mcpd_reader_store_wants(reader);
    MCPD_STEP("reader.take.wanted");
    if (gave_up || mcpd_reader_bounds(reader))
        mcpd_reader_made_room(reader);
    return pin;
}

/*
 * A lost race is tried again at the new head. An honest writer retains its newest frame, all that a
 * lossless reader is owed and the depth of a fifo one, so a race lost twice for the same frame is
 * none.
 */
static int take(mcpd_reader *reader, struct mcpd_meta *meta)
{
    uint64_t head, lost = 0;
    uint32_t retries = 0, passed = 0;
    reader->more = 0;
    while (retries < MCPD_MAX_RETRIES) {
        int result = mcpd_reader_ready(reader, &head);
        if (result < 0)
            return result;
        uint64_t seq = choose(reader, head);
        if (seq == lost)
            return -EBADMSG;
        if (seq > head) { /* of every_n, none is within the depth yet */
            mcpd_reader_count_missed(reader, seq, MCPD_WANTED);
            mcpd_reader_store_wants(reader);
            retries++;
            continue;
        }
        int slot = pin_frame(reader, seq, meta);
        if (slot == -EBADMSG)
            return slot;
        if (slot < 0) {
            lost = seq;
            retries++;
            mcpd_count(&reader->rctl->retries, 1);
            continue;
        }
        result = take_or_pass(reader, (uint32_t)slot, meta);
        if (result != -EAGAIN)
            return result;
        if (++passed == MAX_PASSED) {
            reader->more = 1;
            return -EAGAIN;
        }
    }
    return -EBADMSG;
}

int mcpd_reader_take(mcpd_reader *reader, struct mcpd_meta *meta)
{
    return reader->gctl != NULL ? mcpd_member_take(reader, meta) : take(reader, meta);
}

/* ---- recent ---------------------------------------------------------------------------------- */

static int pin_recent(mcpd_reader *reader, uint64_t seq, uint32_t *pin, struct mcpd_meta *meta)
{
    int slot = pin_frame(reader, seq, meta);
    if (slot < 0)
        return slot;
    *pin = (uint32_t)mcpd_reader_deliver(reader, (uint32_t)slot, meta, mcpd_now_ns());
    if (seq >= reader->wanted) {
        mcpd_reader_count_missed(reader, seq, MCPD_WANTED);
        reader->wanted = seq + 1;
    }
    return 0;
}

/* The newest frame of an honest writer is lost only to a newer one; then those count from that. */
static int take_recent(mcpd_reader *reader, uint32_t count, uint32_t *pins, struct mcpd_meta *metas)
{
    for (uint32_t retries = 0; retries < MCPD_MAX_RETRIES; retries++) {
        uint64_t head = mcpd_load_seq_cst(&reader->wctl->head);
        uint64_t first = reader->geometry.first_seq;
        int taken = 0;
        if (head < first)
            return -EAGAIN;
        if (head - first >= count)
            first = head - count + 1;
        for (uint64_t seq = first; seq - first < head - first + 1; seq++) {
            int result = pin_recent(reader, seq, &pins[taken], &metas[taken]);
            taken += result == 0;
            if (result != -EBADMSG)
                continue;
            while (taken > 0)
                mcpd_reader_take_off(reader, pins[--taken], MCPD_CLAIM_DONE);
            return result;
        }
        if (taken > 0)
            return taken;
        if (mcpd_load_seq_cst(&reader->wctl->head) == head)
            return -EBADMSG;
        mcpd_count(&reader->rctl->retries, 1);
    }
    return -EBADMSG;
}

int mcpd_reader_recent(mcpd_reader *reader, uint32_t count, uint32_t *pins, struct mcpd_meta *metas)
{
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    if (reader->shut)
        return mcpd_reader_leave(reader, -ECANCELED);
    if (reader->gctl != NULL || reader->policy != MCPD_LATEST || count == 0)
        return mcpd_reader_leave(reader, -EINVAL);
    if (reader->nfree < count)
        return mcpd_reader_leave(reader, -EBUSY);
    result = take_recent(reader, count, pins, metas);
    if (result > 0)
        mcpd_reader_store_wants(reader);
    return mcpd_reader_leave(reader, result);
}
