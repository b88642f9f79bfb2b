/*
 * mcpd: the connection to the daemon, in C.
 *
 * Connect, make or attach to a stream, have a model run on one; then frames pass through the functions
 * of mcpd.h. docs/c.md has the programs to begin with, docs/control.md the protocol below.
 *
 * Functions return 0 or a count on success and a negative errno on failure; a call that fails has
 * made nothing. Where a `struct mcpd_error *` is taken it may be NULL, else it is filled on failure.
 * Handles may be used from several threads, but for mcpd_close and mcpd_stream_close, which must be
 * the last call on theirs. A connection has a thread of its own, which takes no signals; nothing is
 * global, and no signal is raised. In a forked child every call gives -ECHILD, and closing a handle
 * there frees the child's copy alone.
 */
#ifndef MCPD_CLIENT_H
#define MCPD_CLIENT_H

#include "mcpd.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MCPD_MAX_PLANES 4
#define MCPD_MAX_DIMENSIONS 8
#define MCPD_MAX_SIDE 16384 /* of a frame, in pixels */

typedef struct mcpd_client mcpd_client; /* a session with the daemon */
typedef struct mcpd_stream mcpd_stream; /* this session's end of a stream, for writing or reading */

/* Why a call failed. Texts are UTF-8, cut if they are longer, and never without a final zero. */
struct mcpd_error {
    int32_t number;    /* as returned: a negative errno */
    char code[28];     /* of docs/control.md: "not_found", "limit", "unavailable", ... */
    char message[480]; /* what failed, the value seen, the limit */
    char hint[256];    /* the next step; may be empty */
};

/* Where an image's planes lie in a slot. Fields as in docs/protocol.md. */
struct mcpd_frame {
    uint32_t kind;     /* MCPD_FRAME, MCPD_ENCODED, or MCPD_BUNDLE: no image */
    uint32_t format;   /* enum mcpd_format */
    uint32_t width, height;
    uint32_t rotation; /* degrees clockwise to show it upright: 0, 90, 180, 270 */
    uint32_t matrix;   /* enum mcpd_matrix, 0: not known */
    uint32_t range;    /* enum mcpd_range, 0: not known */
    uint32_t nplanes;
    uint64_t offset[MCPD_MAX_PLANES];    /* bytes from the start of the slot */
    uint64_t stride[MCPD_MAX_PLANES];    /* bytes from row to row */
    uint64_t rows[MCPD_MAX_PLANES];      /* of the plane; follow from the format, like the next */
    uint64_t row_nbytes[MCPD_MAX_PLANES]; /* bytes in use of a row */
    uint64_t nbytes;   /* one past the last byte in use, from the start of the slot */
};

/* A named tensor of a slot. */
struct mcpd_tensor_view {
    char name[32];    /* UTF-8, at most 31 bytes */
    uint32_t dtype;   /* enum mcpd_dtype */
    uint32_t ndim;
    uint64_t shape[MCPD_MAX_DIMENSIONS];
    int64_t strides[MCPD_MAX_DIMENSIONS]; /* bytes; all 0 when describing: C order */
    uint64_t offset;  /* bytes from the start of the slot, a multiple of 64 */
    uint64_t nbytes;  /* 0 when describing: as the shape needs */
    float scale;      /* quantised value = real / scale + zero_point; 0: not quantised */
    int32_t zero_point;
};

/* ---- the connection ------------------------------------------------------------------------ */

MCPD_API const char *mcpd_version(void);

/*
 * Opens a session. socket: path of the daemon's, NULL: $MCPD_SOCKET, else
 * $XDG_RUNTIME_DIR/mcpd/mcpd.sock, else /run/mcpd/mcpd.sock for root, else /tmp/mcpd-<uid>/mcpd.sock.
 * name: what this program calls itself, for `mcpd status`; may be NULL. timeout_ns: how long the
 * daemon may take to greet; negative: for ever. -ENOTCONN: no daemon answers; -EPERM: another
 * user's; -ETIMEDOUT; -EPROTONOSUPPORT: no protocol version in common.
 */
MCPD_API int mcpd_connect(const char *socket, const char *name, int64_t timeout_ns,
                          mcpd_client **out, struct mcpd_error *error);
/* Likewise over a Unix stream socket that is connected already; this call's own, even if it fails. */
MCPD_API int mcpd_connect_fd(int fd, const char *name, int64_t timeout_ns, mcpd_client **out,
                             struct mcpd_error *error);
/*
 * Ends the session. Close its streams first: those still open end, calls that wait on them return,
 * and mcpd_stream_close may still be called; but the daemon keeps their memory until this process is
 * gone, for it cannot know who looks at it.
 */
MCPD_API void mcpd_close(mcpd_client *client);
/* 1 when the session is over because the daemon is gone; 0 while it lives. */
MCPD_API int mcpd_lost(mcpd_client *client, struct mcpd_error *why);
MCPD_API uint64_t mcpd_session(const mcpd_client *client); /* the daemon's number of it */
MCPD_API int mcpd_daemon_pid(const mcpd_client *client);

/* ---- streams ------------------------------------------------------------------------------- */

/* What a stream is to carry. All zero, with `slot_nbytes`, is a stream of bundles. */
struct mcpd_stream_options {
    struct mcpd_frame frame; /* format, width, height, and what is fixed of the rest; planes: see
                                mcpd_frame_layout, none given: that layout. format 0: no image */
    const struct mcpd_tensor_view *tensors; /* if each slot holds the same */
    uint32_t ntensors;
    uint32_t slots;       /* 0: 8 */
    uint32_t holds;       /* slots the writer may hold at once; 0: 2 */
    uint32_t history;     /* newest frames kept for readers that come late; 0: 1 */
    uint64_t slot_nbytes; /* 0: as image and tensors need; required for encoded ones */
    uint32_t posix;       /* 1: a payload with a name under /dev/shm */
    uint32_t reserved[15]; /* zero */
};

/* How long a reader goes on when its stream does in other memory, under the next generation. */
enum mcpd_follow {
    MCPD_FOLLOW_NOT = 0,    /* not: it ends, with MCPD_END_MOVED if the stream goes on */
    MCPD_FOLLOW_WRITER = 1, /* when its writer resizes the stream */
    MCPD_FOLLOW_NAME = 2,   /* then, and when the writer is gone: waits for the next of that name */
};

struct mcpd_reader_options {
    uint32_t policy;       /* enum mcpd_policy; 0: MCPD_LATEST */
    uint32_t max_pins;     /* frames it may hold at once; 0: 2 */
    uint32_t depth;        /* of MCPD_FIFO: newest frames kept for it; of MCPD_LOSSLESS: with so
                            * many unread the writer waits, 0: while the slots last */
    uint32_t follow;       /* enum mcpd_follow */
    struct mcpd_thinning thinning; /* frames to pass over; not in a group */
    const char *group;     /* readers that give the same name share the frames; NULL: alone */
    uint32_t reserved[14]; /* zero */
};

struct mcpd_results_options {
    uint32_t version;      /* of the model; 0: the newest */
    uint32_t frames;       /* which frames the model gets: MCPD_LATEST (0) or MCPD_LOSSLESS */
    uint32_t policy;       /* which results this reader gets; 0: as frames */
    uint32_t max_pins;     /* results it may hold at once; 0: 2 */
    uint32_t once;         /* 1: the model runs only when mcpd_run_once asks */
    int64_t wait_ns;       /* for the model to be loaded; 0: 30 s */
    uint32_t reserved[12]; /* zero */
};

/* Numbers of a stream, from the daemon. */
struct mcpd_grant {
    struct mcpd_geometry geometry;
    char name[256];
    char format[16];     /* the stream's, as text; empty if it has no fixed one */
    uint32_t width, height;
    uint64_t reader;     /* the daemon's number of this reader; 0: the writer */
    struct mcpd_admission admission; /* of a reader: policy, pins, depth, group */
    uint64_t start_seq;  /* the first frame that a reader is owed */
};

/*
 * Makes a stream that this process writes; its memory is reserved and touched here. options may
 * not be NULL. -EEXIST: the name is taken; -ENOMEM; -EDQUOT: more than the daemon allows; -EINVAL.
 */
MCPD_API int mcpd_create_stream(mcpd_client *client, const char *name,
                                const struct mcpd_stream_options *options, mcpd_stream **out,
                                struct mcpd_error *error);
/*
 * Of a writer: the stream goes on in other memory, as `options` say; sequence numbers go on, and the
 * readers are brought over without losing a frame. *out is the writer's end from now on; `stream` has
 * ended with MCPD_END_MOVED: release what is held there, then close it. Other threads' acquire waits
 * meanwhile, and publish gives -EINPROGRESS; afterwards both give -EPIPE on `stream`. On failure
 * `stream` is as it was, but for -ETIMEDOUT: then it has ended. -EDQUOT: too few slots for the readers,
 * more memory than allowed, or a lossless reader is several generations behind; -ENOMEM; -EINVAL;
 * -EPIPE: the stream has ended.
 */
MCPD_API int mcpd_resize_stream(mcpd_stream *stream, const struct mcpd_stream_options *options,
                                mcpd_stream **out, struct mcpd_error *error);
/* Attaches as a reader. options NULL: the defaults. -ENOENT: no such stream; -EDQUOT: no room. */
MCPD_API int mcpd_attach(mcpd_client *client, const char *stream,
                         const struct mcpd_reader_options *options, mcpd_stream **out,
                         struct mcpd_error *error);
/*
 * Has a model run on a stream and attaches to what it makes. When the model's worker dies the
 * results end with MCPD_END_WRITER_DIED: close them and open them again. -ENOENT: no such stream or
 * model; -EREMOTEIO: the model could not be loaded; -ETIMEDOUT: not in wait_ns.
 */
MCPD_API int mcpd_open_results(mcpd_client *client, const char *stream, const char *model,
                               const struct mcpd_results_options *options, mcpd_stream **out,
                               struct mcpd_error *error);
/* Of results opened with `once`: runs the model on the newest frame; one result follows. */
MCPD_API int mcpd_run_once(mcpd_stream *results, const uint8_t trace_id[16],
                           struct mcpd_error *error);

/*
 * The end's handle for the functions of mcpd.h, NULL if it is the other end, and for a reader that
 * follows: that one is read by mcpd_stream_next. It is the stream's: do not close it. Once the daemon is gone its calls give -EPIPE, or -ECANCELED where nothing in
 * shared memory says so.
 */
MCPD_API mcpd_writer *mcpd_stream_writer(mcpd_stream *stream);
MCPD_API mcpd_reader *mcpd_stream_reader(mcpd_stream *stream);
/* Of a reader that follows, as it was attached: `generation` of a frame's meta says where that is. */
MCPD_API const struct mcpd_grant *mcpd_stream_grant(const mcpd_stream *stream);
/*
 * Why the stream ended, MCPD_LIVE while it has not, or this reader is to go on; there may still be
 * frames to read.
 */
MCPD_API int mcpd_stream_ended(mcpd_stream *stream);
/* Of a writer: how many readers it has now, -EINVAL of a reader. */
MCPD_API int mcpd_stream_nreaders(mcpd_stream *stream);
/*
 * Readable when something came after mcpd_stream_arm, mcpd_reader_arm or mcpd_writer_arm gave 0; for
 * event loops. The same for as long as the stream is open. -EMFILE and the like.
 */
MCPD_API int mcpd_stream_fileno(mcpd_stream *stream);
/*
 * Of a writer: ends the stream; readers get what is left, and its name is free on return. Slots
 * stay mapped until mcpd_stream_close, for a decoder that still looks at them.
 */
MCPD_API int mcpd_stream_end(mcpd_stream *stream, struct mcpd_error *error);
/* Ends or detaches, unmaps and frees. Pointers into slots are void. NULL is allowed. */
MCPD_API void mcpd_stream_close(mcpd_stream *stream);

/* ---- reading, from one generation to the next ---------------------------------------------- */

/*
 * As the functions of mcpd.h, of a reader, whatever the generation. One that follows finishes a
 * generation, then next goes on in the one after it; sequence numbers go on. What is pinned in an
 * earlier one stays as it is until it is unpinned; only then that memory is given back, and a writer
 * cannot resize more than four generations ahead of a lossless reader. Pins of these functions are the
 * stream's: for them and for mcpd_pinned_frame and the like, not for those of mcpd.h. -EPIPE: the end,
 * and nothing follows; -EINVAL: not a reader, or no such pin; -ECANCELED: the daemon is gone, or this
 * reader was evicted.
 */
MCPD_API int mcpd_stream_next(mcpd_stream *stream, int64_t timeout_ns, struct mcpd_meta *meta);
MCPD_API const void *mcpd_stream_slot(mcpd_stream *stream, uint32_t pin);
MCPD_API int mcpd_stream_unpin(mcpd_stream *stream, uint32_t pin);
MCPD_API int mcpd_stream_give_back(mcpd_stream *stream, uint32_t pin);
/* As mcpd_reader_check, of the generation that the pin is in; ask before it is unpinned. */
MCPD_API int mcpd_stream_check(mcpd_stream *stream, uint32_t pin);
MCPD_API int mcpd_stream_arm(mcpd_stream *stream);
MCPD_API int mcpd_stream_disarm(mcpd_stream *stream);

/* ---- what a slot holds --------------------------------------------------------------------- */

MCPD_API void mcpd_meta_init(struct mcpd_meta *meta); /* all zero, times and event not known */
/*
 * Fills in where mcpd itself lays the planes of `format`, `width` and `height`: rows and planes at
 * multiples of 64 bytes. Returns the bytes of a slot that it takes; -EINVAL: no such format or size.
 */
MCPD_API int64_t mcpd_frame_layout(struct mcpd_frame *frame);
/* Writes the description of an acquired slot. -EINVAL: planes that do not fit slot_nbytes. */
MCPD_API int mcpd_describe_frame(struct mcpd_description *description, uint64_t slot_nbytes,
                                 const struct mcpd_frame *frame);
/* Likewise of a bundle. Offsets of 0 after the first: one after the other, 64-byte aligned. */
MCPD_API int mcpd_describe_tensors(struct mcpd_description *description, uint64_t slot_nbytes,
                                   const struct mcpd_tensor_view *tensors, uint32_t ntensors);
/* Writes into an acquired slot what mcpd_create_stream was told that each slot holds. */
MCPD_API int mcpd_stream_describe(mcpd_stream *stream, uint32_t slot);
/* The same as a frame: where to write. -ENOENT: the stream has no fixed image. */
MCPD_API int mcpd_stream_frame(mcpd_stream *stream, struct mcpd_frame *frame);

/*
 * What a pinned slot holds, copied and checked: nothing in it reaches out of the slot. -EBADMSG:
 * it is described wrongly; -EINVAL: nothing is pinned there.
 */
MCPD_API int mcpd_pinned_frame(mcpd_stream *stream, uint32_t pin, struct mcpd_frame *frame);
MCPD_API int mcpd_pinned_ntensors(mcpd_stream *stream, uint32_t pin);
MCPD_API int mcpd_pinned_tensor(mcpd_stream *stream, uint32_t pin, uint32_t index,
                                struct mcpd_tensor_view *tensor);
/* By name; -ENOENT: it has no such tensor. */
MCPD_API int mcpd_pinned_find(mcpd_stream *stream, uint32_t pin, const char *name,
                              struct mcpd_tensor_view *tensor);

/* ---- results ------------------------------------------------------------------------------- */

struct mcpd_detection {
    float box[4]; /* x0, y0, x1, y1 in pixels of the source frame */
    float score;  /* 0..1 */
    int32_t label; /* see mcpd_results_label */
};

/*
 * Copies up to `most` detections of a pinned result, best first, and returns how many it has; 0 if
 * the model is no detector or failed on this frame (meta.status).
 */
MCPD_API int mcpd_result_detections(mcpd_stream *results, uint32_t pin,
                                    struct mcpd_detection *detections, uint32_t most);
/* Text of a failed result (meta.status above 0), zero-ended and cut to `size`; its whole length. */
MCPD_API int mcpd_result_error(mcpd_stream *results, uint32_t pin, char *text, size_t size);
MCPD_API const char *mcpd_results_model(const mcpd_stream *results); /* NULL: no results */
MCPD_API uint32_t mcpd_results_version(const mcpd_stream *results);
MCPD_API uint32_t mcpd_results_nlabels(const mcpd_stream *results);
/* Name of a class, the stream's; NULL if the model has none for it. */
MCPD_API const char *mcpd_results_label(const mcpd_stream *results, int32_t label);

#ifdef __cplusplus
}
#endif
#endif
