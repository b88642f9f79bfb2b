/*
 * mcpd: the stream, in C.
 *
 * A stream is a pool of slots and a queue of what was published, with one writer and up to
 * MCPD_MAX_READERS readers, in memory that the daemon allocated. This header is the whole C API of
 * the stream; the objects it maps come as file descriptors from the daemon's control socket
 * (docs/protocol.md). Functions return 0 or a count on success and a negative errno on failure; a
 * call that fails has changed nothing. Handles are safe to use from several threads of one process,
 * but for close, which must be the last call. A forked child does not inherit the mappings: there
 * every call but close gives -ECHILD (or NULL), and pointers into slots are void.
 */
#ifndef MCPD_H
#define MCPD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MCPD_API __attribute__((visibility("default")))
#else
#define MCPD_API
#endif

#define MCPD_ABI_VERSION 2
#define MCPD_MAX_READERS 64 /* of one stream, groups' members included */
#define MCPD_MAX_SLOTS 4096
#define MCPD_MAX_PINS 256   /* of one reader */
#define MCPD_MAX_TENSORS 16
#define MCPD_NO_TIME INT64_MIN /* a pts, capture time or deadline that is not known */

enum mcpd_policy { MCPD_LATEST = 1, MCPD_FIFO = 2, MCPD_LOSSLESS = 3 };
enum mcpd_kind { MCPD_BUNDLE = 1, MCPD_FRAME = 2, MCPD_ENCODED = 3 };

enum mcpd_format {
    MCPD_RGB24 = 1, MCPD_BGR24 = 2, MCPD_RGBA = 3, MCPD_BGRA = 4, MCPD_GRAY8 = 5,
    MCPD_NV12 = 6, MCPD_I420 = 7, MCPD_YUYV422 = 8, MCPD_JPEG = 64, MCPD_H264 = 65,
};
enum mcpd_matrix { MCPD_BT601 = 1, MCPD_BT709 = 2 };
enum mcpd_range { MCPD_LIMITED = 1, MCPD_FULL = 2 };

enum mcpd_dtype {
    MCPD_BOOL = 1, MCPD_UINT8 = 2, MCPD_INT8 = 3, MCPD_UINT16 = 4, MCPD_INT16 = 5,
    MCPD_UINT32 = 6, MCPD_INT32 = 7, MCPD_UINT64 = 8, MCPD_INT64 = 9, MCPD_FLOAT16 = 10,
    MCPD_FLOAT32 = 11, MCPD_FLOAT64 = 12, MCPD_COMPLEX64 = 13, MCPD_COMPLEX128 = 14,
    MCPD_BFLOAT16 = 15, MCPD_FLOAT8_E4M3FN = 16, MCPD_FLOAT8_E5M2 = 17, MCPD_STRING = 18,
    MCPD_FLOAT8_E4M3FNUZ = 19, MCPD_FLOAT8_E5M2FNUZ = 20, MCPD_FLOAT8_E8M0FNU = 21,
    /* signed 64-bit counts of a unit; not a time: INT64_MIN */
    MCPD_DATETIME64_S = 32, MCPD_DATETIME64_MS = 33, MCPD_DATETIME64_US = 34,
    MCPD_DATETIME64_NS = 35, MCPD_TIMEDELTA64_S = 36, MCPD_TIMEDELTA64_MS = 37,
    MCPD_TIMEDELTA64_US = 38, MCPD_TIMEDELTA64_NS = 39,
};

/* Flags of a slot. */
#define MCPD_FLAG_KEYFRAME 0x1u
#define MCPD_FLAG_QUANTISED 0x2u
#define MCPD_FLAG_FP16 0x4u
#define MCPD_FLAG_END 0x8u     /* the last frame of its stream or request */
#define MCPD_FLAG_PARTIAL 0x10u /* a partial result; the last one lacks the flag */

/* Why a stream ended. */
enum mcpd_end {
    MCPD_LIVE = 0,
    MCPD_END_CLOSED = 1,      /* its writer closed it */
    MCPD_END_WRITER_DIED = 2, /* its writer died or lost its connection */
    MCPD_END_REVOKED = 3,     /* the daemon took it away */
    MCPD_END_SHUTDOWN = 4,    /* the daemon is stopping */
    MCPD_END_MOVED = 5,       /* goes on in other memory, under the next generation */
    MCPD_END_EVICTED = 6,     /* of one reader: it held the writer up; not a word in memory */
};

/* What a frame carries besides its pixels; times are CLOCK_MONOTONIC nanoseconds. */
struct mcpd_meta {
    uint64_t generation;
    uint64_t seq;            /* set by publish; starts at 1 */
    uint64_t nbytes;         /* payload bytes in use */
    int64_t pts_ns;
    int64_t capture_ns;
    int64_t publish_ns;      /* set by publish */
    int64_t deadline_ns;
    uint8_t trace_id[16];    /* W3C trace context, all zero: none */
    uint64_t source_seq;     /* of a result: the frame it was made from */
    uint64_t source_stream;  /* of a result: the stream of that frame */
    int64_t source_publish_ns; /* of a result: when that frame was published */
    int64_t awake_ns;        /* of a result: when its worker had the frame */
    int64_t finish_ns;       /* of a result: when its model was done */
    uint32_t model_version;  /* wanted, or of a result: used; 0: any */
    uint32_t flags;
    uint32_t status;         /* of a result: 0, or a code of docs/control.md */
    int32_t device_event;    /* index of an interprocess event, -1: none */
};

/* What the daemon tells both sides; never read back from shared memory. */
struct mcpd_geometry {
    uint64_t stream_id;
    uint64_t generation;
    uint64_t slot_nbytes; /* a multiple of 4096 */
    uint64_t first_seq;   /* 1.., sequence number of this generation's first frame */
    uint32_t nslots;      /* 2..MCPD_MAX_SLOTS */
    uint64_t payload_offset; /* where slot 0 is in the payload object: 0, or whole pages */
};

/* As what a reader, or a group of them, is admitted; the daemon tells both sides the same. */
struct mcpd_admission {
    uint64_t group;    /* 0: a reader of its own; else its group's number */
    uint32_t member;   /* 0..MCPD_MAX_READERS - 1, its number in the group */
    uint32_t max_pins; /* 1..MCPD_MAX_PINS; of a group: 0 */
    uint32_t policy;   /* enum mcpd_policy; a member has its group's */
    uint32_t depth;    /* fifo: 1.., newest frames kept for it; lossless: 1.., with so many unread
                        * the writer waits, or 0: while the slots last; latest: 0 */
};

/* Which frames a reader passes over by itself, without looking at a pixel. A member may not thin. */
struct mcpd_thinning {
    uint32_t every_n;     /* 0 or 1: every frame; n: at least n sequence numbers apart */
    uint32_t skip_expired; /* 1: frames past their deadline are passed over */
    int64_t interval_ns;  /* 0, or how far apart publish times are on average, at least */
};

/* The objects a reader maps. -1: it has none of that kind. The descriptors stay the caller's. */
struct mcpd_reader_fds {
    int writer_control;
    int payload;
    int control;
    int wake;        /* the reader's own eventfd */
    int writer_wake; /* the writer's eventfd, for lossless readers and members */
    int group;       /* the group's control object, for members */
};

typedef struct mcpd_writer mcpd_writer;
typedef struct mcpd_reader mcpd_reader;
struct mcpd_description; /* native/src/layout.h, docs/protocol.md */

/* Bytes of the objects that carry a stream; -EINVAL when the geometry is out of bounds. */
MCPD_API int64_t mcpd_payload_nbytes(const struct mcpd_geometry *geometry);
MCPD_API int64_t mcpd_writer_control_nbytes(uint32_t nslots);
MCPD_API int64_t mcpd_reader_control_nbytes(uint32_t max_pins);
MCPD_API int64_t mcpd_group_control_nbytes(uint32_t nslots);

/* ---- writer ------------------------------------------------------------------------------- */

/*
 * Maps a stream for writing and touches every page that its objects have. The descriptors stay the
 * caller's; wake_fd is the writer's own eventfd, which lossless readers signal when they make room.
 * history: newest frames retained for late readers, at least 1. holds: slots the writer may hold, at
 * least 1. -ENOSPC: fewer slots than history + holds + 1; -EINVAL: geometry out of bounds or an object
 * smaller than it says; -EFAULT: an unsealed payload is smaller, perhaps by now; -EEXIST: written
 * before; -EPROTONOSUPPORT: not of this ABI.
 */
MCPD_API int mcpd_writer_open(const struct mcpd_geometry *geometry, int control_fd, int payload_fd,
                              int wake_fd, uint32_t history, uint32_t holds, mcpd_writer **out);

/*
 * Makes a group known; its members are admitted one by one. Returns the first sequence number that
 * a lossless or fifo group is owed, else 0. -ENOSPC: too few slots for its depth; -EEXIST: the number
 * is in use; -EUSERS: MCPD_MAX_READERS groups; -EINVAL: policy or depth out of bounds, or an object
 * that is too small.
 */
MCPD_API int64_t mcpd_writer_add_group(mcpd_writer *writer, int control_fd,
                                       const struct mcpd_admission *group);
/* Forgets a group without members, and its claims. -EBUSY: it has members. */
MCPD_API int mcpd_writer_remove_group(mcpd_writer *writer, uint64_t group);
/*
 * Admits a reader; from now on its pins and, if lossless or fifo, its cursor are honoured. Returns
 * the first sequence number it is owed, 0 for latest and for members. -ENOSPC: too few slots for its
 * pins and depth; -EUSERS: MCPD_MAX_READERS readers; -EEXIST: the id is in use; -ENOENT: no such
 * group; -EINVAL: a value out of its bounds.
 */
MCPD_API int64_t mcpd_writer_add_reader(mcpd_writer *writer, uint64_t reader_id, int control_fd,
                                        int wake_fd, const struct mcpd_admission *admission);
/* Owes the reader nothing more, but lets its pins stand: its process may still be looking. */
MCPD_API int mcpd_writer_release_reader(mcpd_writer *writer, uint64_t reader_id);
/* Forgets the reader and its pins: its process is gone or has unmapped. Wakes a waiting acquire. */
MCPD_API int mcpd_writer_remove_reader(mcpd_writer *writer, uint64_t reader_id);

/*
 * Takes a free slot, the most recently freed first; returns its index. timeout_ns 0: do not wait,
 * negative: for ever. -EAGAIN: would block; -ETIMEDOUT; -EBUSY: the writer holds `holds` slots
 * already; -EPIPE: the stream has ended; -EINTR: a signal handler ran while waiting; -EFAULT: the
 * payload lost memory (see mcpd_reader_check).
 */
MCPD_API int mcpd_writer_acquire(mcpd_writer *writer, int64_t timeout_ns);
/*
 * For event loops. arm: go to sleep; 1 if an acquire would return at once (then still awake), else
 * 0 and wake_fd will become readable. disarm: awake again, wake_fd drained. An acquire that finds
 * nothing while armed drains wake_fd and leaves the loop armed.
 */
MCPD_API int mcpd_writer_arm(mcpd_writer *writer);
MCPD_API int mcpd_writer_disarm(mcpd_writer *writer);
MCPD_API void *mcpd_writer_slot(mcpd_writer *writer, uint32_t slot);
MCPD_API struct mcpd_description *mcpd_writer_description(mcpd_writer *writer, uint32_t slot);
/*
 * Publishes an acquired slot and wakes the readers that sleep. Returns its sequence number;
 * generation, seq and publish_ns of meta are set by the call. hold: keep the slot from reuse until
 * released, because the writer still looks at it (a decoder's reference frame). -EINVAL: not
 * acquired, or more nbytes than a slot has; -EPIPE: the stream has ended; -EFAULT: the payload lost
 * memory, perhaps of this slot (the slot stays acquired).
 */
MCPD_API int64_t mcpd_writer_publish(mcpd_writer *writer, uint32_t slot, struct mcpd_meta *meta,
                                     int hold);
MCPD_API int mcpd_writer_abandon(mcpd_writer *writer, uint32_t slot); /* give back unpublished */
MCPD_API int mcpd_writer_release(mcpd_writer *writer, uint32_t slot); /* end of a hold */
/* Ends the stream for every reader and wakes them all. */
MCPD_API int mcpd_writer_end(mcpd_writer *writer, enum mcpd_end reason);
MCPD_API void mcpd_writer_close(mcpd_writer *writer); /* unmaps; pointers into slots are void */

/* ---- reader ------------------------------------------------------------------------------- */

/* start_seq: as admitted. thinning: NULL for none. Errors as mcpd_writer_open. */
MCPD_API int mcpd_reader_open(const struct mcpd_geometry *geometry,
                              const struct mcpd_reader_fds *fds,
                              const struct mcpd_admission *admission, uint64_t start_seq,
                              const struct mcpd_thinning *thinning, mcpd_reader **out);
/*
 * Pins the next frame by the reader's policy and returns the pin's index; meta is copied. Time-outs
 * as for acquire. -EBUSY: all pins are in use; -EPIPE: the stream has ended and nothing is left;
 * -EBADMSG: the writer's objects make no sense. While armed, a call that finds nothing drains wake_fd
 * and leaves the loop armed.
 */
MCPD_API int mcpd_reader_next(mcpd_reader *reader, int64_t timeout_ns, struct mcpd_meta *meta);
MCPD_API const void *mcpd_reader_slot(mcpd_reader *reader, uint32_t pin);
/*
 * The writer's own words in shared memory, not checked, and not of one moment: they may name planes and
 * tensors that reach out of the slot, and change while they are read. Copy once, then check the copy;
 * mcpd_pinned_frame and mcpd_pinned_tensor of mcpd_client.h do that.
 */
MCPD_API const struct mcpd_description *mcpd_reader_description(mcpd_reader *reader, uint32_t pin);
/*
 * A payload that is not sealed (posix and foreign memory) can be shrunk by a peer while it is read. A
 * handler of SIGBUS, installed when one is mapped, puts zeros there instead, whichever thread reads, and
 * passes on what is not about these mappings. Asked after the reading and before its result is used: 0,
 * or -EFAULT when memory was lost, from then on for every frame of this reader. A system call that is
 * given such memory fails with EFAULT instead. Who keeps SIGBUS blocked in a thread is not protected.
 */
MCPD_API int mcpd_reader_check(mcpd_reader *reader);
MCPD_API int mcpd_reader_unpin(mcpd_reader *reader, uint32_t pin);
/* A member is not done with the frame: unpins it and leaves it to the group. Else as unpin. */
MCPD_API int mcpd_reader_give_back(mcpd_reader *reader, uint32_t pin);
/*
 * Pins those of the `count` newest frames that still stand, seen or not, oldest first; returns how
 * many. They count as seen. For `latest` readers of their own: -EINVAL for others, and for a count
 * of 0. -EBUSY: fewer than `count` pins are free; -EAGAIN: nothing stands; -EBADMSG as for next.
 */
MCPD_API int mcpd_reader_recent(mcpd_reader *reader, uint32_t count, uint32_t *pins,
                                struct mcpd_meta *metas);
/*
 * For event loops. arm: go to sleep; 1 if something is there already (then still awake), else 0 and
 * wake_fd will become readable. disarm: awake again, wake_fd drained.
 */
MCPD_API int mcpd_reader_arm(mcpd_reader *reader);
MCPD_API int mcpd_reader_disarm(mcpd_reader *reader);
MCPD_API int mcpd_reader_ended(mcpd_reader *reader); /* enum mcpd_end */
MCPD_API void mcpd_reader_close(mcpd_reader *reader);

#ifdef __cplusplus
}
#endif
#endif
