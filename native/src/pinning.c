/*
 * The reader's pins: confirmed, counted, taken off. What is read of the writer's objects is not
 * trusted: it is copied once and then checked.
 */
#include "atomics.h"
#include "reader.h"
#include "steps.h"

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
    return mcpd_reader_copy_meta(reader, slot, seq, meta);
}

int mcpd_reader_copy_meta(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                          struct mcpd_meta *meta)
{
    *meta = reader->headers[slot].meta;
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

/* ---- counting -------------------------------------------------------------------------------- */

/* Bucket 0: below 2^10 ns; b: below 2^(10 + b) and in none before; the last: all others. */
static uint32_t latency_bucket(int64_t latency_ns)
{
    if (latency_ns < INT64_C(1) << 10)
        return 0;
    uint32_t bucket = 54u - (uint32_t)__builtin_clzll((uint64_t)latency_ns);
    return bucket < MCPD_LATENCY_BUCKETS ? bucket : MCPD_LATENCY_BUCKETS - 1;
}

static void count_pinned(mcpd_reader *reader, int64_t since_ns)
{
    reader->pinned_since_ns = since_ns;
    mcpd_store_relaxed(&reader->rctl->pinned, reader->max_pins - reader->nfree);
    mcpd_store_relaxed(&reader->rctl->pinned_since_ns, (uint64_t)since_ns);
}

/* When the oldest pin was put: looked for only if that was the one just taken off. */
static int64_t oldest_since(const mcpd_reader *reader, int64_t gone_ns)
{
    int64_t oldest_ns = reader->pinned_since_ns;
    if (reader->nfree == reader->max_pins)
        return 0;
    if (gone_ns != oldest_ns)
        return oldest_ns;
    oldest_ns = INT64_MAX;
    for (uint32_t pin = 0; pin < reader->max_pins; pin++)
        if (reader->pins[pin].seq != 0 && reader->pins[pin].since_ns < oldest_ns)
            oldest_ns = reader->pins[pin].since_ns;
    return oldest_ns;
}

int mcpd_reader_deliver(mcpd_reader *reader, uint32_t slot, const struct mcpd_meta *meta,
                        int64_t now_ns)
{
    uint32_t pin = reader->free[--reader->nfree];
    int64_t latency_ns;
    mcpd_guarded_watch(reader->guarded);
    if (__builtin_sub_overflow(now_ns, meta->publish_ns, &latency_ns))
        latency_ns = 0; /* a time that cannot be */
    reader->pins[pin] =
        (struct mcpd_reader_pin){.seq = meta->seq, .slot = slot, .since_ns = now_ns};
    mcpd_count(&reader->rctl->received, 1);
    mcpd_count(&reader->rctl->latency[latency_bucket(latency_ns)], 1);
    count_pinned(reader, reader->pinned_since_ns != 0 ? reader->pinned_since_ns : now_ns);
    return (int)pin;
}

/* ---- taking off ------------------------------------------------------------------------------ */

/*
 * Release: what was read in the slot comes before the writer's reuse of it; pairs with the scan in
 * the writer's reclaim. seq_cst for a lossless reader: the writer's epoch is read next, and pairs
 * with its exchange and second look in mcpd_writer_acquire. Taking a pin makes no room, only this
 * does.
 */
void mcpd_reader_take_off(mcpd_reader *reader, uint32_t pin, uint32_t state)
{
    struct mcpd_reader_pin *its = &reader->pins[pin];
    uint64_t held_ns = (uint64_t)(mcpd_now_ns() - its->since_ns), seq = its->seq;
    if (held_ns > mcpd_load_relaxed(&reader->rctl->longest_pin_ns))
        mcpd_store_relaxed(&reader->rctl->longest_pin_ns, held_ns);
    its->seq = 0;
    reader->free[reader->nfree++] = pin;
    count_pinned(reader, oldest_since(reader, its->since_ns));
    MCPD_STEP("reader.unpin.counted");
    if (reader->gctl != NULL) {
        mcpd_member_let_go(reader, seq, its->slot, state);
    } else if (reader->writer_wake_fd >= 0) {
        mcpd_store_seq_cst(&reader->words[pin], 0);
        MCPD_STEP("reader.unpin.stored");
        mcpd_reader_made_room(reader);
    } else {
        mcpd_store_release(&reader->words[pin], 0);
    }
    MCPD_STEP("reader.unpin.told");
}

static int take_off(mcpd_reader *reader, uint32_t pin, uint32_t state)
{
    int result = mcpd_reader_enter(reader);
    if (result != 0)
        return result;
    if (!in_use(reader, pin))
        return mcpd_reader_leave(reader, -EINVAL);
    mcpd_reader_take_off(reader, pin, state);
    return mcpd_reader_leave(reader, 0);
}

int mcpd_reader_check(mcpd_reader *reader)
{
    if (!*reader->guard)
        return -ECHILD;
    return mcpd_guarded_lost(reader->guarded) ? -EFAULT : 0;
}

int mcpd_reader_unpin(mcpd_reader *reader, uint32_t pin)
{
    return take_off(reader, pin, MCPD_CLAIM_DONE);
}

int mcpd_reader_give_back(mcpd_reader *reader, uint32_t pin)
{
    return take_off(reader, pin, MCPD_CLAIM_RETURNED);
}

/* ---- for the binding ----------------------------------------------------------------------- */

int mcpd_reader_pinned(mcpd_reader *reader, uint32_t pin)
{
    return in_use(reader, pin) ? (int)reader->pins[pin].slot : -EINVAL;
}
