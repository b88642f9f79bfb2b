/*
 * The shared objects as docs/protocol.md draws them: one struct for each of its tables, each offset
 * of a table held by an assertion. Written from that page alone; nothing here comes from native/.
 */
#ifndef SECOND_LAYOUT_H
#define SECOND_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ABI 2u
#define WRITER_MAGIC 0x00314c544357504dull
#define READER_MAGIC 0x00314c544352504dull
#define GROUP_MAGIC 0x00314c544347504dull

#define PAGE 4096u
#define MAX_SLOTS 4096u
#define MAX_PINS 256u
#define MAX_READERS 64u
#define MAX_TENSORS 16u
#define MAX_PLANES 4u
#define MAX_SLOT_NBYTES (1ull << 40)
#define MAX_SEQ ((1ull << 48) - 1)

#define HOLDS_AT(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #field)

struct writer_control {
    uint64_t magic;
    uint32_t abi, flags;
    uint64_t stream_id, generation;
    uint32_t nslots, queue_len;
    uint64_t slot_nbytes, first_seq;
    uint8_t pad0[8];
    _Atomic uint64_t head;
    uint8_t pad1[56];
    _Atomic uint32_t writer_epoch;
    uint8_t pad2[60];
    _Atomic uint32_t ended;
    uint8_t pad3[60];
    _Atomic uint64_t published, abandoned, would_block, blocked_ns, wakes, publish_ns, nbytes;
    _Atomic uint32_t held;
    uint8_t pad4[4];
    _Atomic uint64_t blocked_since_ns;
};
HOLDS_AT(writer_control, stream_id, 16);
HOLDS_AT(writer_control, generation, 24);
HOLDS_AT(writer_control, nslots, 32);
HOLDS_AT(writer_control, slot_nbytes, 40);
HOLDS_AT(writer_control, first_seq, 48);
HOLDS_AT(writer_control, head, 64);
HOLDS_AT(writer_control, writer_epoch, 128);
HOLDS_AT(writer_control, ended, 192);
HOLDS_AT(writer_control, published, 256);
HOLDS_AT(writer_control, nbytes, 304);
HOLDS_AT(writer_control, held, 312);
HOLDS_AT(writer_control, blocked_since_ns, 320);

struct meta {
    uint64_t generation, seq, nbytes;
    int64_t pts_ns, capture_ns, publish_ns, deadline_ns;
    uint8_t trace_id[16];
    uint64_t source_seq, source_stream;
    int64_t source_publish_ns, awake_ns, finish_ns;
    uint32_t model_version, flags, status;
    int32_t device_event;
};
HOLDS_AT(meta, publish_ns, 40);
HOLDS_AT(meta, trace_id, 56);
HOLDS_AT(meta, source_seq, 72);
HOLDS_AT(meta, finish_ns, 104);
HOLDS_AT(meta, model_version, 112);
HOLDS_AT(meta, device_event, 124);
_Static_assert(sizeof(struct meta) == 128, "meta");

struct tensor {
    uint8_t name[32];
    uint16_t dtype;
    uint8_t ndim, flags;
    float scale;
    int32_t zero_point;
    uint8_t pad[4];
    uint64_t offset, nbytes, shape[8];
    int64_t strides[8];
};
HOLDS_AT(tensor, dtype, 32);
HOLDS_AT(tensor, scale, 36);
HOLDS_AT(tensor, zero_point, 40);
HOLDS_AT(tensor, offset, 48);
HOLDS_AT(tensor, shape, 64);
HOLDS_AT(tensor, strides, 128);
_Static_assert(sizeof(struct tensor) == 192, "tensor");

struct description {
    uint32_t kind, format, width, height, rotation;
    uint8_t matrix, range, pad[2];
    uint32_t nplanes, ntensors;
    uint64_t plane_offset[4], plane_stride[4];
    uint8_t pad2[32];
    struct tensor tensors[16];
};
HOLDS_AT(description, rotation, 16);
HOLDS_AT(description, matrix, 20);
HOLDS_AT(description, range, 21);
HOLDS_AT(description, nplanes, 24);
HOLDS_AT(description, ntensors, 28);
HOLDS_AT(description, plane_offset, 32);
HOLDS_AT(description, plane_stride, 64);
HOLDS_AT(description, tensors, 128);

struct slot_header {
    _Atomic uint64_t state;
    uint8_t pad0[56];
    struct meta meta;
    uint8_t pad1[64];
    struct description description;
    uint8_t pad2[640];
};
HOLDS_AT(slot_header, meta, 64);
HOLDS_AT(slot_header, description, 256);
_Static_assert(sizeof(struct slot_header) == PAGE, "slot header");

struct reader_control {
    uint64_t magic;
    uint32_t abi, max_pins;
    uint64_t stream_id, generation, reader_id;
    uint8_t pad0[24];
    _Atomic uint64_t cursor;
    _Atomic int64_t not_before_ns;
    uint8_t pad1[48];
    _Atomic uint32_t epoch;
    uint8_t pad2[60];
    _Atomic uint64_t received, skipped, wakeups, spurious, retries, longest_pin_ns, dropped, passed;
    _Atomic uint64_t expired;
    _Atomic uint32_t pinned;
    uint8_t pad3[4];
    _Atomic uint64_t pinned_since_ns;
    uint8_t pad4[40];
    _Atomic uint64_t latency[24];
    _Atomic uint64_t pins[];
};
HOLDS_AT(reader_control, reader_id, 32);
HOLDS_AT(reader_control, cursor, 64);
HOLDS_AT(reader_control, not_before_ns, 72);
HOLDS_AT(reader_control, epoch, 128);
HOLDS_AT(reader_control, received, 192);
HOLDS_AT(reader_control, dropped, 240);
HOLDS_AT(reader_control, expired, 256);
HOLDS_AT(reader_control, pinned, 264);
HOLDS_AT(reader_control, pinned_since_ns, 272);
HOLDS_AT(reader_control, latency, 320);
HOLDS_AT(reader_control, pins, 512);

struct group_control {
    uint64_t magic;
    uint32_t abi, nslots;
    uint64_t stream_id, generation, group_id;
    uint8_t pad0[24];
    _Atomic uint64_t cursor;
    uint8_t pad1[56];
    _Atomic uint32_t returned;
    uint8_t pad2[60];
    _Atomic uint64_t finished, returns;
    uint8_t pad3[304];
    _Atomic uint64_t claims[];
};
HOLDS_AT(group_control, group_id, 32);
HOLDS_AT(group_control, cursor, 64);
HOLDS_AT(group_control, returned, 128);
HOLDS_AT(group_control, finished, 192);
HOLDS_AT(group_control, returns, 200);
HOLDS_AT(group_control, claims, 512);

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "lock-free atomics");

/* Tag words. */
enum { SLOT_FREE = 0, SLOT_WRITING = 1, SLOT_PUBLISHED = 2 };
enum { CLAIM_NONE = 0, CLAIM_TAKEN = 1, CLAIM_DONE = 2, CLAIM_RETURNED = 3 };

static inline uint64_t tag(uint64_t seq, uint32_t low) { return seq << 16 | low; }
static inline uint64_t tag_seq(uint64_t word) { return word >> 16; }
static inline uint32_t tag_low(uint64_t word) { return (uint32_t)(word & 0xffff); }
static inline uint64_t claim_word(uint64_t seq, uint32_t member, uint32_t what)
{
    return tag(seq, member << 8 | what);
}
static inline uint32_t claim_what(uint64_t word) { return (uint32_t)(word & 0xff); }

#endif
