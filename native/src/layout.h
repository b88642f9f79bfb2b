/*
 * The shared-memory layout of a stream: every struct, offset and magic number, once.
 *
 * Four kinds of object; docs/protocol.md draws them and explains who may do what with each.
 *
 *   payload         slots, one after the other. Written by the writer, read-only for readers.
 *   writer control  struct mcpd_wctl | queue[queue_len] | headers[nslots]. Read-only for readers.
 *   reader control  struct mcpd_rctl | pins[max_pins]. One per reader, read-only for the writer.
 *   group control   struct mcpd_gctl | claims[nslots]. One per group of readers, likewise.
 *
 * All integers are little-endian. Geometry (nslots, slot_nbytes, max_pins) always comes from the
 * daemon over the control socket; what stands here is informational and never read back.
 * A change of any offset raises MCPD_ABI_VERSION in the same commit.
 */
#ifndef MCPD_LAYOUT_H
#define MCPD_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "mcpd.h"

#define MCPD_WCTL_MAGIC UINT64_C(0x314c544357504d) /* "MPWCTL1" */
#define MCPD_RCTL_MAGIC UINT64_C(0x314c544352504d) /* "MPRCTL1" */
#define MCPD_GCTL_MAGIC UINT64_C(0x314c544347504d) /* "MPGCTL1" */

#define MCPD_PAGE 4096u
#define MCPD_SLOT_HEADER_NBYTES 4096u
#define MCPD_SLOT_ALIGN 4096u

/*
 * A tag word packs 48 bits of sequence number over 16 bits of something else: of a slot index in a
 * queue entry or a pin, of an MCPD_SLOT_* state in a slot's state word. Sequence numbers start at
 * 1, so that a word of 0 means "nothing". 2^48 frames last 8.9 years at a million a second.
 */
#define MCPD_MAX_SEQ ((UINT64_C(1) << 48) - 1)
#define MCPD_TAG(seq, low) (((uint64_t)(seq) << 16) | (uint64_t)(low))
#define MCPD_TAG_SEQ(word) ((uint64_t)(word) >> 16)
#define MCPD_TAG_LOW(word) ((uint32_t)((word) & 0xffffu))

enum mcpd_slot_state {
    MCPD_SLOT_FREE = 0,      /* nobody's; the sequence number is that of the frame it last held */
    MCPD_SLOT_WRITING = 1,   /* the writer's: being reclaimed or filled */
    MCPD_SLOT_PUBLISHED = 2, /* holds frame `seq` */
};

/* Fixed head of the writer's control object. */
struct mcpd_wctl {
    /* line 0: written once by the daemon, informational */
    uint64_t magic;
    uint32_t abi;
    uint32_t flags;
    uint64_t stream_id;
    uint64_t generation;
    uint32_t nslots;
    uint32_t queue_len; /* power of two, at least nslots */
    uint64_t slot_nbytes;
    uint64_t first_seq; /* of this generation's frames */
    uint8_t reserved0[8];
    /* line 1: written at every publish */
    _Atomic uint64_t head; /* sequence number of the newest frame; first_seq - 1 before the first */
    uint8_t reserved1[56];
    /* line 2: the writer's sleep epoch: odd while it waits for room, even while awake */
    _Atomic uint32_t writer_epoch;
    uint8_t reserved2[60];
    /* line 3: enum mcpd_end; written by the writer, or by the daemon when the writer is gone */
    _Atomic uint32_t ended;
    uint8_t reserved3[60];
    /* lines 4-5: the writer's counters; relaxed, for whoever looks */
    _Atomic uint64_t published;
    _Atomic uint64_t abandoned;      /* slots acquired and given back unpublished */
    _Atomic uint64_t would_block;    /* acquires that found no free slot */
    _Atomic uint64_t blocked_ns;     /* time spent waiting for room */
    _Atomic uint64_t wakes;          /* eventfd signals sent to readers */
    _Atomic uint64_t publish_ns;     /* CLOCK_MONOTONIC of the newest publish */
    _Atomic uint64_t nbytes;         /* payload bytes published in all */
    _Atomic uint32_t held;           /* slots the writer holds now */
    uint32_t reserved4;
    _Atomic uint64_t blocked_since_ns; /* CLOCK_MONOTONIC while it waits for room, else 0 */
    uint8_t reserved5[56];
    uint8_t reserved6[MCPD_PAGE - 384];
};

/* A named tensor in a slot. Source of the dtype codes: enum mcpd_dtype. */
struct mcpd_tensor {
    char name[32];      /* UTF-8, zero padded, at most 31 bytes */
    uint16_t dtype;     /* enum mcpd_dtype */
    uint8_t ndim;       /* 0..8 */
    uint8_t flags;      /* MCPD_TENSOR_* */
    float scale;        /* quantised value = real / scale + zero_point; 0: not quantised */
    int32_t zero_point;
    uint32_t reserved;
    uint64_t offset;    /* bytes from the start of the slot, a multiple of 64 */
    uint64_t nbytes;
    uint64_t shape[8];
    int64_t strides[8]; /* bytes */
};

/* What a slot holds: fixed for most streams, so compared and copied as one piece of bytes. */
struct mcpd_description {
    uint32_t kind;     /* enum mcpd_kind */
    uint32_t format;   /* enum mcpd_format of a frame */
    uint32_t width;    /* pixels */
    uint32_t height;   /* pixels */
    uint32_t rotation; /* degrees clockwise to show it upright: 0, 90, 180, 270 */
    uint8_t matrix;    /* enum mcpd_matrix */
    uint8_t range;     /* enum mcpd_range */
    uint8_t reserved0[2];
    uint32_t nplanes;  /* 0..4 */
    uint32_t ntensors; /* 0..16 */
    uint64_t plane_offset[4]; /* bytes from the start of the slot */
    uint64_t plane_stride[4]; /* bytes from row to row */
    uint8_t reserved1[32];
    struct mcpd_tensor tensors[MCPD_MAX_TENSORS];
};

/* One for each slot, 4096 bytes apart. */
struct mcpd_slot_header {
    /* line 0 */
    _Atomic uint64_t state; /* MCPD_TAG(seq, enum mcpd_slot_state) */
    uint8_t reserved0[56];
    /* lines 1-3: the frame's metadata */
    struct mcpd_meta meta;
    uint8_t reserved1[192 - sizeof(struct mcpd_meta)];
    /* from byte 256 */
    struct mcpd_description description;
    uint8_t reserved2[MCPD_SLOT_HEADER_NBYTES - 256 - sizeof(struct mcpd_description)];
};

/*
 * Latencies from publish to pin: bucket 0 counts those below 2^10 ns, bucket b those below
 * 2^(10 + b) that no bucket before it counts, the last one all others.
 */
#define MCPD_LATENCY_BUCKETS 24

/* Fixed head of a reader's control object; pins follow at MCPD_RCTL_PINS. */
struct mcpd_rctl {
    /* line 0: written once by the daemon, informational */
    uint64_t magic;
    uint32_t abi;
    uint32_t max_pins;
    uint64_t stream_id;
    uint64_t generation;
    uint64_t reader_id;
    uint8_t reserved0[24];
    /* line 1: the lowest sequence number this reader wants; what it is owed starts here */
    _Atomic uint64_t cursor;
    _Atomic int64_t not_before_ns; /* nor one published before this; 0: whenever */
    uint8_t reserved1[48];
    /* line 2: the reader's sleep epoch: odd while it sleeps, even while awake */
    _Atomic uint32_t epoch;
    uint8_t reserved2[60];
    /* lines 3-4: the reader's counters; relaxed, for whoever looks */
    _Atomic uint64_t received;
    _Atomic uint64_t skipped;        /* latest: frames it jumped over for a newer one */
    _Atomic uint64_t wakeups;
    _Atomic uint64_t spurious;       /* wake-ups that found nothing */
    _Atomic uint64_t retries;        /* pins withdrawn because the slot had moved on */
    _Atomic uint64_t longest_pin_ns;
    _Atomic uint64_t dropped;        /* fifo: frames that left its depth before it came to them */
    _Atomic uint64_t passed;         /* frames that it did not ask for: every_n, max_fps */
    _Atomic uint64_t expired;        /* frames passed over because their deadline was over */
    _Atomic uint32_t pinned;         /* frames it has pinned now */
    uint32_t reserved5;
    _Atomic uint64_t pinned_since_ns; /* when the oldest of them was pinned; 0: none is */
    uint8_t reserved3[40];
    /* lines 5-7 */
    _Atomic uint64_t latency[MCPD_LATENCY_BUCKETS];
};

#define MCPD_RCTL_PINS 512u /* _Atomic uint64_t pins[max_pins]: MCPD_TAG(seq, slot) or 0 */

/*
 * A claim: whose, in a group, the frame in a slot is. Seq over 8 bits of member over 8 bits of
 * enum mcpd_claim_state.
 */
#define MCPD_CLAIM(seq, member, state) \
    MCPD_TAG(seq, (uint32_t)(member) << 8 | (uint32_t)(state))
#define MCPD_CLAIM_MEMBER(word) (MCPD_TAG_LOW(word) >> 8)
#define MCPD_CLAIM_STATE(word) (MCPD_TAG_LOW(word) & 0xffu)

enum mcpd_claim_state {
    MCPD_CLAIM_NONE = 0,     /* no frame of this slot was ever claimed */
    MCPD_CLAIM_TAKEN = 1,    /* the member's; pins the frame */
    MCPD_CLAIM_DONE = 2,     /* finished: the group wants it no more */
    MCPD_CLAIM_RETURNED = 3, /* given back, or its member died: another's to take; pins the frame */
};

/* Fixed head of a group's control object; claims follow at MCPD_GCTL_CLAIMS, one for each slot. */
struct mcpd_gctl {
    /* line 0: written once by the daemon, informational */
    uint64_t magic;
    uint32_t abi;
    uint32_t nslots;
    uint64_t stream_id;
    uint64_t generation;
    uint64_t group_id;
    uint8_t reserved0[24];
    /* line 1: the lowest sequence number that nobody of the group may have claimed yet */
    _Atomic uint64_t cursor;
    uint8_t reserved1[56];
    /* line 2: raised after claims became MCPD_CLAIM_RETURNED; members look when it has changed */
    _Atomic uint32_t returned;
    uint8_t reserved2[60];
    /* line 3: counters, relaxed, for whoever looks */
    _Atomic uint64_t finished;       /* claims that became MCPD_CLAIM_DONE */
    _Atomic uint64_t returns;        /* claims that became MCPD_CLAIM_RETURNED */
    uint8_t reserved3[48];
    uint8_t reserved4[512 - 256];
};

#define MCPD_GCTL_CLAIMS 512u /* _Atomic uint64_t claims[nslots] */

static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "plain atomics");
static_assert(sizeof(struct mcpd_wctl) == MCPD_PAGE, "writer control head");
static_assert(offsetof(struct mcpd_wctl, head) == 64, "head");
static_assert(offsetof(struct mcpd_wctl, writer_epoch) == 128, "writer_epoch");
static_assert(offsetof(struct mcpd_wctl, ended) == 192, "ended");
static_assert(offsetof(struct mcpd_wctl, published) == 256, "published");
static_assert(offsetof(struct mcpd_wctl, held) == 312, "held");
static_assert(sizeof(struct mcpd_meta) == 128, "meta");
static_assert(sizeof(struct mcpd_tensor) == 192, "tensor");
static_assert(offsetof(struct mcpd_tensor, offset) == 48, "tensor.offset");
static_assert(offsetof(struct mcpd_description, plane_offset) == 32, "plane_offset");
static_assert(offsetof(struct mcpd_description, tensors) == 128, "tensors");
static_assert(sizeof(struct mcpd_description) == 128 + 16 * 192, "description");
static_assert(sizeof(struct mcpd_slot_header) == MCPD_SLOT_HEADER_NBYTES, "slot header");
static_assert(offsetof(struct mcpd_slot_header, meta) == 64, "slot meta");
static_assert(offsetof(struct mcpd_slot_header, description) == 256, "slot description");
static_assert(sizeof(struct mcpd_rctl) == MCPD_RCTL_PINS, "reader control head");
static_assert(offsetof(struct mcpd_rctl, cursor) == 64, "cursor");
static_assert(offsetof(struct mcpd_rctl, epoch) == 128, "epoch");
static_assert(offsetof(struct mcpd_rctl, received) == 192, "received");
static_assert(offsetof(struct mcpd_rctl, pinned) == 264, "pinned");
static_assert(offsetof(struct mcpd_rctl, latency) == 320, "latency");
static_assert(sizeof(struct mcpd_gctl) == MCPD_GCTL_CLAIMS, "group control head");
static_assert(offsetof(struct mcpd_gctl, cursor) == 64, "group cursor");
static_assert(offsetof(struct mcpd_gctl, returned) == 128, "group returned");
static_assert(offsetof(struct mcpd_gctl, finished) == 192, "group finished");

/* Sizes and offsets that follow from the geometry; the caller checks nslots and max_pins. */
static inline uint32_t mcpd_queue_len(uint32_t nslots)
{
    uint32_t n = 1;
    while (n < nslots)
        n <<= 1;
    return n;
}

static inline size_t mcpd_headers_offset(uint32_t nslots)
{
    size_t end = sizeof(struct mcpd_wctl) + (size_t)mcpd_queue_len(nslots) * sizeof(uint64_t);
    return (end + MCPD_PAGE - 1) / MCPD_PAGE * MCPD_PAGE;
}

static inline size_t mcpd_wctl_nbytes(uint32_t nslots)
{
    return mcpd_headers_offset(nslots) + (size_t)nslots * MCPD_SLOT_HEADER_NBYTES;
}

static inline size_t mcpd_rctl_nbytes(uint32_t max_pins)
{
    size_t end = MCPD_RCTL_PINS + (size_t)max_pins * sizeof(uint64_t);
    return (end + MCPD_PAGE - 1) / MCPD_PAGE * MCPD_PAGE;
}

static inline size_t mcpd_gctl_nbytes(uint32_t nslots)
{
    size_t end = MCPD_GCTL_CLAIMS + (size_t)nslots * sizeof(uint64_t);
    return (end + MCPD_PAGE - 1) / MCPD_PAGE * MCPD_PAGE;
}

#endif
