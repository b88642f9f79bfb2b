/*
 * A stream whose payload may lose memory, for the tests of guarded mappings.
 */
#ifndef GUARD_FIXTURE_H
#define GUARD_FIXTURE_H

#include "fixture.h"
#include "guard.h"

#define SLOTS 6u
#define OFFSET (4 * (uint64_t)SLOT_NBYTES)

/* The payload's object, OFFSET bytes and then the slots, is not sealed. */
static inline void open_unsealed(struct stream *s, struct attached *r)
{
    stream_make(s, SLOTS);
    close(s->payload);
    s->payload = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(s->payload >= 0);
    s->geometry.payload_offset = OFFSET;
    CHECK_EQUAL(ftruncate(s->payload, (off_t)OFFSET + mcpd_payload_nbytes(&s->geometry)), 0);
    CHECK_EQUAL(mcpd_writer_open(&s->geometry, s->control, s->payload, s->wake, 1, 2, &s->writer),
                0);
    attach(s, r, MCPD_LATEST, 2);
}

static inline void close_both(struct stream *s, struct attached *r)
{
    detach(r);
    stream_close(s);
}

static inline int is_zero(const void *slot)
{
    const uint64_t *words = slot;
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != 0)
            return 0;
    return 1;
}

#endif
