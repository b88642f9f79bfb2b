/*
 * What the files of the connection share. Not installed.
 *
 * Locks: `mutex` guards requests, the socket's outbound side and whether the session is over;
 * `streams_mutex` the list of streams. The I/O thread takes either, never both; nobody blocks under
 * one. A stream's handle is closed only when it is out of the list, so the I/O thread, which holds
 * streams_mutex while it uses one, never meets one that is gone. A reader has a mutex of its own for
 * its generations, taken after streams_mutex and before `mutex`.
 */
#ifndef MCPD_CLIENT_INTERNAL_H
#define MCPD_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "mcpd_client.h"
#include "msgpack.h"
#include "wire.h"

#define MCPD_REQUEST_NS INT64_C(30000000000) /* a control request; reserving 1 GiB takes 0.4 s */

/* What a reply grants, and so what gives it back when nobody wants it any more. */
enum mcpd_undo { MCPD_UNDO_NOTHING, MCPD_UNDO_STREAM, MCPD_UNDO_READER, MCPD_UNDO_RESULTS };

/* A reply: `result` points into `body`. Whoever has it clears it. */
struct mcpd_answer {
    uint8_t *body;
    struct mcpd_value result;
    int fds[MCPD_MAX_FDS]; /* -1 where it was taken */
    uint32_t nfds;
};

struct mcpd_call {
    struct mcpd_call *next;
    uint64_t id;
    enum mcpd_undo undo;
    uint64_t detaches; /* a reader's number: when that is done, see mcpd_early_drop */
    int done, abandoned;
    int result;
    struct mcpd_error error;
    struct mcpd_answer answer;
};

struct mcpd_client {
    const volatile uint32_t *guard;
    _Atomic uint32_t users; /* whoever connected, and each stream */
    pthread_t thread;
    int wake_fd;
    _Atomic int closing;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a call is done */
    struct mcpd_socket socket;
    struct mcpd_call *calls;
    uint32_t ncalls;
    uint64_t last_id;
    int over;
    struct mcpd_error why;      /* of over */
    struct mcpd_error farewell; /* what the daemon said last; number 0: nothing */

    pthread_mutex_t streams_mutex;
    struct mcpd_stream *streams;
    struct mcpd_early *early;
    uint32_t nearly;
    int lost;

    uint64_t session, daemon_pid;
};

/* A reader in one generation of its stream. */
struct mcpd_generation {
    struct mcpd_generation *next;
    struct mcpd_grant grant;
    mcpd_reader *reader;   /* NULL: not mapped yet, then it has these */
    int fds[MCPD_MAX_FDS];
    uint32_t nfds;
    uint32_t number;       /* counted by its stream; in its pins' numbers */
    uint32_t users, npinned; /* calls in it now, and pins that those before have put */
    int refused;           /* the reader is not brought over from here */
};

/* The generations of a reader. */
struct mcpd_moves {
    pthread_mutex_t mutex; /* of all that is here, and of the generations */
    pthread_cond_t changed;
    struct mcpd_generation *now;    /* what is read */
    struct mcpd_generation *coming; /* where it is to go on, in order */
    struct mcpd_generation *left;   /* read to the end; something is pinned there, or looks at it */
    uint32_t follow; /* enum mcpd_follow */
    int advancing;   /* a thread maps the first that is coming */
    int idle;        /* `now` has nothing more */
    int armed, lost;
    int watch_fd, timer_fd; /* for event loops, see watch.c; -1: not asked for */
};

struct mcpd_stream {
    struct mcpd_client *client;
    struct mcpd_stream *next;
    struct mcpd_grant grant; /* the first, if it is a reader's */
    mcpd_writer *writer;     /* NULL: a reader */
    struct mcpd_moves moves; /* of a reader */
    _Atomic uint32_t ended; /* enum mcpd_end, where the control object does not tell */
    int given_back;         /* the daemon has been told */
    struct mcpd_thinning thinning; /* of a reader */
    uint64_t readers[MCPD_MAX_READERS]; /* of a writer, those it serves; under streams_mutex */
    uint32_t nreaders;
    struct mcpd_frame frame;   /* format 0: no fixed image */
    struct mcpd_tensor_view tensors[MCPD_MAX_TENSORS];
    uint32_t ntensors;
    char *model;
    uint32_t version, nlabels;
    char **labels;
};

/* ---- errors.c ---- */

/* Fills `error` (which may be NULL) and returns the number of `code`, a code of docs/control.md. */
int mcpd_fail(struct mcpd_error *error, const char *code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* As the daemon said it in an `error` message. */
int mcpd_fail_as(struct mcpd_error *error, const struct mcpd_value *message);
/* The code of a function of mcpd.h that failed with `number`. */
const char *mcpd_code_of(int number);

/* ---- connection.c ---- */

/* Starts a message: `type`, an id to be set when it is sent, and `fields` more that follow. */
void mcpd_message(struct mcpd_message *message, const char *type, uint32_t fields);
/* Sends a request and waits; the answer is the caller's to clear. timeout_ns negative: for ever. */
int mcpd_request(struct mcpd_client *client, struct mcpd_message *message, int64_t timeout_ns,
                 enum mcpd_undo undo, struct mcpd_answer *answer, struct mcpd_error *error);
/* Sends a request whose answer nobody waits for. */
void mcpd_request_quietly(struct mcpd_client *client, struct mcpd_message *message);
/* Gives back a reader without waiting, and what it was moved to meanwhile. */
void mcpd_detach_quietly(struct mcpd_client *client, uint64_t reader);
/* Sends what answers or notifies; a session that is over takes it silently. */
void mcpd_send(struct mcpd_client *client, struct mcpd_message *message);
void mcpd_answer_clear(struct mcpd_answer *answer);
/* -ECHILD with its error in a forked child, else 0. */
int mcpd_check_process(const struct mcpd_client *client, struct mcpd_error *error);
void mcpd_client_use(struct mcpd_client *client);
void mcpd_client_unuse(struct mcpd_client *client);

/* ---- dispatch.c: what the daemon says about streams; on the I/O thread ---- */

/* One message; owns `fds`. 0, or a failure that ends the session. */
int mcpd_dispatch(struct mcpd_client *client, const uint8_t *body, uint32_t nbytes, const int *fds,
                  uint32_t nfds, struct mcpd_error *error);
void mcpd_end_all(struct mcpd_client *client);
/* A reply or error: hands it to its call. In calls.c. */
void mcpd_complete(struct mcpd_client *client, const struct mcpd_value *message,
                   const uint8_t *body, uint32_t nbytes, const int *fds, uint32_t nfds);
/* Every call fails with client->why; under the mutex. */
void mcpd_fail_calls(struct mcpd_client *client);
void mcpd_give_back(struct mcpd_client *client, enum mcpd_undo undo,
                    const struct mcpd_value *result);

/* ---- streams.c: what writers.c and readers.c make ---- */

/* An end of the stream granted, not mapped yet; NULL with `error` filled. */
struct mcpd_stream *mcpd_stream_new(struct mcpd_client *client, const struct mcpd_value *granted,
                                    struct mcpd_error *error);
/* From now on it is the session's, and holds it. */
void mcpd_stream_list(struct mcpd_stream *stream);
/* Gives back what was granted and frees the end, NULL or not mapped; returns `result`. */
int mcpd_stream_unmake(struct mcpd_client *client, struct mcpd_stream *stream, enum mcpd_undo undo,
                       const struct mcpd_value *granted, int result);
int mcpd_stream_unmapped(int result, const struct mcpd_grant *grant, struct mcpd_error *error);

int mcpd_grant_read(const struct mcpd_value *map, struct mcpd_grant *grant,
                    struct mcpd_error *error);

/* ---- early.c: readers that are brought over; on the I/O thread, but for what is dropped ---- */

void mcpd_move_reader(struct mcpd_client *client, const struct mcpd_value *message, const int *fds,
                      uint32_t nfds); /* takes the descriptors */
/* What came for a stream before it was listed; under streams_mutex. */
void mcpd_early_take(struct mcpd_stream *stream);
/* No move comes for this reader any more: gives back the one that came and that nobody took. */
void mcpd_early_drop(struct mcpd_client *client, uint64_t reader);
void mcpd_early_drop_all(struct mcpd_client *client); /* under streams_mutex */

/* ---- moves.c: a reader's generations ---- */

/* `moves` without any. follow: enum mcpd_follow. */
void mcpd_moves_init(struct mcpd_moves *moves, uint32_t follow);
/* Maps a generation from its descriptors, which stay its own. */
int mcpd_generation_map(const struct mcpd_stream *stream, struct mcpd_generation *generation,
                        struct mcpd_error *error);
void mcpd_generation_free(struct mcpd_generation *generation); /* NULL, mapped or not */
/* 0, -ECHILD, or -EINVAL for a writer. */
int mcpd_moves_enter(mcpd_stream *stream);
/* The generation that is read, which stays until mcpd_generation_leave. */
struct mcpd_generation *mcpd_generation_use(mcpd_stream *stream);
/* `result`: of mcpd_reader_next there, if it was that; a pin becomes the stream's. */
int mcpd_generation_leave(mcpd_stream *stream, struct mcpd_generation *generation, int result);
/* The generation that a pin of the stream is in, NULL: none; under the moves' mutex. */
struct mcpd_generation *mcpd_generation_of(mcpd_stream *stream, uint32_t pin);
/* Unmaps and gives back what was left and is used no more; under the moves' mutex. */
void mcpd_moves_let_go(mcpd_stream *stream);
/*
 * `now` has nothing more. 0: look again, there or in the next; -EPIPE: that was all; -EAGAIN,
 * -ETIMEDOUT, -ECANCELED as mcpd_reader_next; or why the next could not be mapped.
 */
int mcpd_moves_go_on(mcpd_stream *stream, struct mcpd_generation *now, int64_t timeout_ns,
                     int64_t deadline_ns);
/* Whether more is to come than `now`; under the moves' mutex. */
int mcpd_moves_wait(const mcpd_stream *stream);
int mcpd_moves_ended(mcpd_stream *stream); /* enum mcpd_end */
/* The daemon said so of a generation (0: the one that is read). */
void mcpd_moves_end(mcpd_stream *stream, uint64_t generation, enum mcpd_end reason);
void mcpd_moves_evict(mcpd_stream *stream, uint64_t reader);
void mcpd_moves_lose(mcpd_stream *stream, enum mcpd_end reason);
/* Unmaps all; `ours`: gives back those but for `now`. */
void mcpd_moves_close(mcpd_stream *stream, int ours);

/* ---- watch.c: event loops; under the moves' mutex ---- */

void mcpd_watch_move(mcpd_stream *stream, const struct mcpd_generation *from,
                     const struct mcpd_generation *to);
void mcpd_watch_signal(struct mcpd_moves *moves, int64_t in_ns);
void mcpd_watch_close(struct mcpd_moves *moves);

/* ---- readers.c ---- */

/* The stream that an answer grants to a reader; takes the answer's descriptors. */
int mcpd_map_reader(struct mcpd_client *client, const struct mcpd_value *granted,
                    struct mcpd_answer *answer, const struct mcpd_reader_options *options,
                    mcpd_stream **out, struct mcpd_error *error);
const char *mcpd_policy_name(uint32_t policy); /* NULL: no such policy */
/* As what a reader is admitted, from a grant or a request to admit it; -EBADMSG. */
int mcpd_admission_read(const struct mcpd_value *message, struct mcpd_admission *admission);

/* ---- describe.c ---- */

const char *mcpd_format_name(uint32_t format); /* NULL: no such format */
/* The options with every default and size filled in; -EINVAL when they cannot be. */
int mcpd_options_complete(const struct mcpd_stream_options *options,
                          struct mcpd_stream_options *whole, struct mcpd_tensor_view *tensors,
                          struct mcpd_error *error);

#endif
