/* A frame's slot, found and checked; what is pinned, until it is let go. */
#include "reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t next_frame(uint32_t policy, uint32_t depth, uint64_t wanted, uint64_t head)
{
    if (head < wanted)
        return 0;
    switch (policy) {
    case POLICY_LATEST:
        return head;
    case POLICY_FIFO:
        return head >= depth && wanted <= head - depth ? head - depth + 1 : wanted;
    default:
        return wanted;
    }
}

int unused_pin(const struct second_reader *r)
{
    for (uint32_t k = 0; k < r->terms.max_pins; k++)
        if (!r->frames[k].used)
            return (int)k;
    return -EBUSY;
}

const struct slot_header *header_of(const struct second_reader *r, uint32_t slot)
{
    const char *headers = (const char *)r->writer.at + headers_offset(r->g.nslots);
    return (const struct slot_header *)headers + slot;
}

int find_slot(const struct second_reader *r, uint64_t t)
{
    uint32_t length = queue_length(r->g.nslots);
    uint64_t entry = LOAD_ACQUIRE(queue_of(&r->writer)[t & (length - 1)]);
    STEP("pin 1");
    if (tag_seq(entry) != t)
        return LOST;
    return tag_low(entry) < r->g.nslots ? (int)tag_low(entry) : -EBADMSG;
}

int copy_checked(struct second_reader *r, struct pinned_frame *frame)
{
    memcpy(&frame->meta, &header_of(r, frame->slot)->meta, sizeof frame->meta);
    if (frame->meta.generation != r->g.generation || frame->meta.seq != frame->seq)
        return -EBADMSG;
    return frame->meta.nbytes > r->g.slot_nbytes ? -EBADMSG : 0;
}

bool copy_description(struct second_reader *r, struct pinned_frame *frame)
{
    const struct description *shared = &header_of(r, frame->slot)->description;
    struct description *d = &frame->description;
    memcpy(d, shared, offsetof(struct description, tensors));
    if (d->ntensors > MAX_TENSORS || d->nplanes > MAX_PLANES)
        return false;
    memcpy(d->tensors, shared->tensors, d->ntensors * sizeof(struct tensor));
    return true;
}

void count_received(struct second_reader *r, struct pinned_frame *frame)
{
    struct reader_control *own = r->own;
    frame->used = true;
    frame->since_ns = now_ns();
    int64_t latency = frame->since_ns - frame->meta.publish_ns;
    uint32_t bucket = 0;
    while (bucket < 23 && latency >= 1ll << (10 + bucket))
        bucket++;
    COUNT(own->latency[bucket], 1);
    COUNT(own->received, 1);
    COUNT(own->pinned, 1);
    if (!LOAD_RELAXED(own->pinned_since_ns))
        STORE_RELAXED(own->pinned_since_ns, (uint64_t)frame->since_ns);
}

void wake_writer(struct second_reader *r)
{
    const struct writer_control *w = r->shared;
    signal_sleeper(&w->writer_epoch, &r->writer_signalled, r->writer_wake);
}

void empty_pin(struct second_reader *r, uint32_t pin)
{
    STORE(r->own->pins[pin], 0);
    STEP("unpin 1");
    if (r->terms.policy == POLICY_LOSSLESS)
        wake_writer(r);
}

/* ---- what is pinned ----------------------------------------------------------------------- */

static struct pinned_frame *frame_of(struct second_reader *r, uint32_t pin)
{
    return pin < r->terms.max_pins && r->frames[pin].used ? &r->frames[pin] : NULL;
}

const void *second_reader_slot(struct second_reader *r, uint32_t pin)
{
    struct pinned_frame *frame = frame_of(r, pin);
    return frame ? (const char *)r->payload.at + frame->slot * r->g.slot_nbytes : NULL;
}

const struct description *second_reader_description(struct second_reader *r, uint32_t pin)
{
    struct pinned_frame *frame = frame_of(r, pin);
    return frame && copy_description(r, frame) ? &frame->description : NULL;
}

static int let_go(struct second_reader *r, uint32_t pin, bool back)
{
    struct pinned_frame *frame = frame_of(r, pin);
    if (!frame)
        return -EINVAL;
    uint64_t since = 0, pinned_ns = (uint64_t)(now_ns() - frame->since_ns);
    if (pinned_ns > LOAD_RELAXED(r->own->longest_pin_ns))
        STORE_RELAXED(r->own->longest_pin_ns, pinned_ns);
    frame->used = false;
    STORE_RELAXED(r->own->pinned, LOAD_RELAXED(r->own->pinned) - 1);
    for (uint32_t k = 0; k < r->terms.max_pins; k++)
        if (r->frames[k].used && (!since || (uint64_t)r->frames[k].since_ns < since))
            since = (uint64_t)r->frames[k].since_ns;
    STORE_RELAXED(r->own->pinned_since_ns, since);
    if (r->claims)
        return back ? member_give_back(r, frame) : member_finish(r, frame);
    empty_pin(r, pin);
    return 0;
}

void second_reader_close(struct second_reader *r)
{
    for (uint32_t k = 0; r->frames && k < r->terms.max_pins; k++)
        if (r->frames[k].used)
            let_go(r, k, true);
    unmap(&r->writer);
    unmap(&r->payload);
    unmap(&r->control);
    unmap(&r->group);
    if (r->wake >= 0)
        close(r->wake);
    if (r->writer_wake >= 0)
        close(r->writer_wake);
    free(r->frames);
    free(r);
}

int second_reader_unpin(struct second_reader *r, uint32_t pin) { return let_go(r, pin, false); }

int second_reader_give_back(struct second_reader *r, uint32_t pin) { return let_go(r, pin, true); }
