/*
 * What the daemon says of its own accord, on the I/O thread: readers that join and leave this
 * process's writers, streams that end.
 */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "stream.h"

#define FIRST 1 /* the generation of a message that names none: a field's default may be left out */

static void refuse(struct mcpd_client *client, uint64_t id, int number, const char *text)
{
    struct mcpd_message answer;
    mcpd_message(&answer, "error", 2);
    answer.pack.nbytes -= 9;
    mcpd_pack_unsigned_wide(&answer.pack, id);
    mcpd_pack_text(&answer.pack, "code");
    mcpd_pack_text(&answer.pack, mcpd_code_of(number));
    mcpd_pack_text(&answer.pack, "message");
    mcpd_pack_text(&answer.pack, text);
    mcpd_send(client, &answer);
}

/* Which stream a message is about; generation 0: every one, or the first where only one can be meant. */
struct subject {
    uint64_t stream_id, generation;
};

static int read_subject(const struct mcpd_value *message, struct subject *subject)
{
    *subject = (struct subject){0};
    return mcpd_map_unsigned(message, "stream", UINT64_MAX, &subject->stream_id) |
           mcpd_map_unsigned(message, "generation", UINT64_MAX, &subject->generation);
}

static int is_about(const struct mcpd_stream *stream, const struct subject *subject)
{
    const struct mcpd_geometry *geometry = &stream->grant.geometry;
    return geometry->stream_id == subject->stream_id &&
           (subject->generation == 0 || geometry->generation == subject->generation);
}

static struct mcpd_stream *writer_of(struct mcpd_client *client, const struct subject *subject)
{
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        if (stream->writer != NULL && is_about(stream, subject))
            return stream;
    return NULL;
}

static int64_t add_reader(struct mcpd_client *client, const struct mcpd_value *message,
                          const int *fds, uint32_t nfds)
{
    struct subject subject;
    struct mcpd_admission admission;
    uint64_t reader_id = 0;
    if (read_subject(message, &subject) != 0 || mcpd_admission_read(message, &admission) != 0 ||
        mcpd_map_unsigned(message, "reader", UINT64_MAX, &reader_id) != 0 || nfds != 2)
        return -EPROTO;
    if (subject.generation == 0)
        subject.generation = FIRST;
    int64_t result = -ENOENT;
    pthread_mutex_lock(&client->streams_mutex);
    struct mcpd_stream *stream = writer_of(client, &subject);
    if (stream != NULL)
        result = mcpd_writer_add_reader(stream->writer, reader_id, fds[0], fds[1], &admission);
    if (result >= 0 && stream->nreaders < MCPD_MAX_READERS)
        stream->readers[stream->nreaders++] = reader_id;
    pthread_mutex_unlock(&client->streams_mutex);
    return result;
}

static int64_t add_group(struct mcpd_client *client, const struct mcpd_value *message,
                         const int *fds, uint32_t nfds)
{
    struct subject subject;
    struct mcpd_admission group;
    if (read_subject(message, &subject) != 0 || mcpd_admission_read(message, &group) != 0 ||
        nfds != 1)
        return -EPROTO;
    int64_t result = -ENOENT;
    pthread_mutex_lock(&client->streams_mutex);
    struct mcpd_stream *stream = writer_of(client, &subject);
    if (stream != NULL)
        result = mcpd_writer_add_group(stream->writer, fds[0], &group);
    pthread_mutex_unlock(&client->streams_mutex);
    return result;
}

static void leave_group(struct mcpd_client *client, const struct mcpd_value *message)
{
    struct subject subject;
    uint64_t group = 0;
    if (read_subject(message, &subject) != 0 ||
        mcpd_map_unsigned(message, "group", UINT64_MAX, &group) != 0)
        return;
    pthread_mutex_lock(&client->streams_mutex);
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        if (stream->writer != NULL && is_about(stream, &subject))
            (void)mcpd_writer_remove_group(stream->writer, group);
    pthread_mutex_unlock(&client->streams_mutex);
}

static const char *refusal_of(int64_t number)
{
    switch (number) {
    case -ENOSPC:
        return "the stream has too few slots for the reader's pins";
    case -EUSERS:
        return "the stream has as many readers as there can be";
    case -ENOENT:
        return "this session writes no such stream";
    case -EPROTO:
        return "reader_join is not readable, or its descriptors or policy are not right";
    case -EINVAL:
        return "the policy, its depth or max_pins are out of bounds";
    }
    return "the writer could not admit the reader";
}

static void answer_join(struct mcpd_client *client, uint64_t id, int64_t start_seq)
{
    if (start_seq < 0) {
        refuse(client, id, (int)start_seq, refusal_of(start_seq));
        return;
    }
    struct mcpd_message answer;
    mcpd_message(&answer, "reply", 1);
    answer.pack.nbytes -= 9;
    mcpd_pack_unsigned_wide(&answer.pack, id);
    mcpd_pack_text(&answer.pack, "result");
    mcpd_pack_map(&answer.pack, 1);
    mcpd_pack_text(&answer.pack, "start_seq");
    mcpd_pack_unsigned(&answer.pack, (uint64_t)start_seq);
    mcpd_send(client, &answer);
}

static void forget_reader(struct mcpd_stream *stream, uint64_t reader_id)
{
    for (uint32_t i = 0; i < stream->nreaders; i++)
        if (stream->readers[i] == reader_id)
            stream->readers[i--] = stream->readers[--stream->nreaders];
}

static void leave_reader(struct mcpd_client *client, const struct mcpd_value *message)
{
    struct subject subject;
    uint64_t reader_id = 0;
    struct mcpd_value pins;
    if (read_subject(message, &subject) != 0 ||
        mcpd_map_unsigned(message, "reader", UINT64_MAX, &reader_id) != 0 ||
        !mcpd_map_find(message, "pins", &pins))
        return;
    pthread_mutex_lock(&client->streams_mutex);
    /* Numbers of readers are never used again, so a generation that never had it is not touched. */
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next) {
        if (stream->writer == NULL || !is_about(stream, &subject))
            continue;
        if (mcpd_text_is(&pins, "keep"))
            mcpd_writer_release_reader(stream->writer, reader_id);
        else if (mcpd_text_is(&pins, "drop"))
            mcpd_writer_remove_reader(stream->writer, reader_id);
        forget_reader(stream, reader_id);
    }
    pthread_mutex_unlock(&client->streams_mutex);
}

/* ---- ends ---------------------------------------------------------------------------------- */

/*
 * If the control object of a reader says so as well, what is left may be read first; else nobody is
 * there who could mark it any more, and every call returns from now on.
 */
static void mark_ended(struct mcpd_stream *stream, uint64_t generation, enum mcpd_end reason)
{
    if (stream->writer != NULL) {
        mcpd_writer_end(stream->writer, reason);
    } else if (reason != MCPD_END_MOVED) { /* where to is told by itself */
        mcpd_moves_end(stream, generation, reason);
    }
}

static enum mcpd_end reason_of(const struct mcpd_value *message)
{
    struct mcpd_value reason;
    if (mcpd_map_find(message, "reason", &reason)) {
        if (mcpd_text_is(&reason, "closed"))
            return MCPD_END_CLOSED;
        if (mcpd_text_is(&reason, "writer_died"))
            return MCPD_END_WRITER_DIED;
        if (mcpd_text_is(&reason, "shutdown"))
            return MCPD_END_SHUTDOWN;
        if (mcpd_text_is(&reason, "moved"))
            return MCPD_END_MOVED;
    }
    return MCPD_END_REVOKED;
}

static void end_stream(struct mcpd_client *client, const struct mcpd_value *message)
{
    struct subject subject;
    if (read_subject(message, &subject) != 0)
        return;
    if (subject.generation == 0)
        subject.generation = FIRST;
    pthread_mutex_lock(&client->streams_mutex);
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        if (stream->writer != NULL ? is_about(stream, &subject)
                                   : stream->grant.geometry.stream_id == subject.stream_id)
            mark_ended(stream, subject.generation, reason_of(message));
    pthread_mutex_unlock(&client->streams_mutex);
}

/* One reader's place was taken away; the stream goes on without it. */
static void evict_reader(struct mcpd_client *client, const struct mcpd_value *message)
{
    uint64_t reader_id = 0;
    if (mcpd_map_unsigned(message, "reader", UINT64_MAX, &reader_id) != 0 || reader_id == 0)
        return;
    pthread_mutex_lock(&client->streams_mutex);
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        if (stream->writer == NULL)
            mcpd_moves_evict(stream, reader_id);
    pthread_mutex_unlock(&client->streams_mutex);
}

void mcpd_end_all(struct mcpd_client *client)
{
    pthread_mutex_lock(&client->streams_mutex);
    client->lost = 1;
    enum mcpd_end reason = atomic_load(&client->closing) ? MCPD_END_CLOSED : MCPD_END_SHUTDOWN;
    for (struct mcpd_stream *stream = client->streams; stream != NULL; stream = stream->next)
        if (stream->writer != NULL)
            mark_ended(stream, 0, reason);
        else
            mcpd_moves_lose(stream, reason);
    mcpd_early_drop_all(client);
    pthread_mutex_unlock(&client->streams_mutex);
}

int mcpd_dispatch(struct mcpd_client *client, const uint8_t *body, uint32_t nbytes, const int *fds,
                  uint32_t nfds, struct mcpd_error *error)
{
    struct mcpd_value message, type;
    uint64_t id = 0;
    if (mcpd_unpack(body, nbytes, &message) != 0 || !mcpd_map_find(&message, "type", &type) ||
        mcpd_map_unsigned(&message, "id", UINT64_MAX, &id) != 0) {
        mcpd_close_fds(fds, nfds);
        return mcpd_fail(error, "protocol", "", "the daemon sent a message without a proper id");
    }
    if (mcpd_text_is(&type, "reply") || mcpd_text_is(&type, "error")) {
        mcpd_complete(client, &message, body, nbytes, fds, nfds);
        return 0;
    }
    if (mcpd_text_is(&type, "stream_moved")) {
        mcpd_move_reader(client, &message, fds, nfds);
        return 0;
    }
    if (mcpd_text_is(&type, "reader_join") && id != 0)
        answer_join(client, id, add_reader(client, &message, fds, nfds));
    else if (mcpd_text_is(&type, "group_join") && id != 0)
        answer_join(client, id, add_group(client, &message, fds, nfds));
    else if (mcpd_text_is(&type, "group_leave"))
        leave_group(client, &message);
    else if (mcpd_text_is(&type, "reader_leave"))
        leave_reader(client, &message);
    else if (mcpd_text_is(&type, "reader_evicted"))
        evict_reader(client, &message);
    else if (mcpd_text_is(&type, "stream_ended"))
        end_stream(client, &message);
    else if (id != 0)
        refuse(client, id, -EINVAL, "this client does not know that request");
    mcpd_close_fds(fds, nfds);
    return 0;
}
