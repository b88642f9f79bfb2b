/*
 * What the files of the connection share. Not installed.
 *
 * Locks: `mutex` guards requests, the socket's outbound side and whether the session is over;
 * `streams_mutex` the list of streams. The I/O thread takes either, never both; nobody blocks under
 * one. A stream's handle is closed only when it is out of the list, so the I/O thread, which holds
 * streams_mutex while it uses one, never meets one that is gone.
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
    int lost;

    uint64_t session, daemon_pid;
};

struct mcpd_stream {
    struct mcpd_client *client;
    struct mcpd_stream *next;
    struct mcpd_grant grant;
    mcpd_writer *writer;
    mcpd_reader *reader;
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

/* ---- readers.c ---- */

/* The stream that an answer grants to a reader; takes the answer's descriptors. */
int mcpd_map_reader(struct mcpd_client *client, const struct mcpd_value *granted,
                    struct mcpd_answer *answer, const struct mcpd_thinning *thinning,
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
