/*
 * The reader's pins: put on a frame, confirmed, taken off. What is read of the writer's objects is
 * not trusted: it is copied once and then checked.
 */
#include "atomics.h"
#include "reader.h"

/*
 * The re-check pairs with the exchange and the scan in the writer's reclaim (retention.c). Once
 * confirmed, the slot's bytes, metadata and description stay as they are until unpin.
 */
int mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                        struct mcpd_meta *meta)
{
    const struct mcpd_slot_header *header = &reader->headers[slot];
    if (mcpd_load_seq_cst(&header->state) != MCPD_TAG(seq, MCPD_SLOT_PUBLISHED))
        return -ESTALE;
    *meta = header->meta;
    if (meta->seq != seq || meta->generation != reader->geometry.generation ||
        meta->nbytes > reader->geometry.slot_nbytes)
        return -EBADMSG;
    return 0;
}

static int in_use(const mcpd_reader *reader, uint32_t pin)
{
    return pin < reader->max_pins && reader->pins[pin].seq != 0;
}

/* A pin that is in use changes only when its owner unpins it, so these two need no mutex. */
const void *mcpd_reader_slot(mcpd_reader *reader, uint32_t pin)
{
    if (!*reader->guard || !in_use(reader, pin))
        return NULL;
    return (const uint8_t *)reader->payload.base +
           reader->pins[pin].slot * reader->geometry.slot_nbytes;
}

const struct mcpd_description *mcpd_reader_description(mcpd_reader *reader, uint32_t pin)
{
    if (!*reader->guard || !in_use(reader, pin))
        return NULL;
    return &reader->headers[reader->pins[pin].slot].description;
}

/*
 * Release: what was read in the slot comes before the writer's reuse of it; pairs with the scan in
 * the writer's reclaim. seq_cst for a lossless reader: the writer's epoch is read next, and pairs
 * with its exchange and second look in mcpd_writer_acquire. Taking a pin makes no room, only this
 * does.
 */
int mcpd_reader_unpin(mcpd_reader *reader, uint32_t pin)
{
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    if (!in_use(reader, pin))
        return mcpd_reader_leave(reader, -EINVAL);
    uint64_t held_ns = (uint64_t)(mcpd_now_ns() - reader->pins[pin].since_ns);
    if (held_ns > mcpd_load_relaxed(&reader->rctl->longest_pin_ns))
        mcpd_store_relaxed(&reader->rctl->longest_pin_ns, held_ns);
    reader->pins[pin].seq = 0;
    reader->free[reader->nfree++] = pin;
    if (reader->writer_wake_fd >= 0) {
        mcpd_store_seq_cst(&reader->words[pin], 0);
        mcpd_wake_peer(&reader->wctl->writer_epoch, &reader->writer_signalled,
                       reader->writer_wake_fd);
    } else {
        mcpd_store_release(&reader->words[pin], 0);
    }
    return mcpd_reader_leave(reader, 0);
}

/* ---- for the binding ----------------------------------------------------------------------- */

int mcpd_reader_pinned(mcpd_reader *reader, uint32_t pin)
{
    return in_use(reader, pin) ? (int)reader->pins[pin].slot : -EINVAL;
}
