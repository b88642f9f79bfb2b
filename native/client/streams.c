/*
 * This session's ends of streams: made, attached to, ended, closed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "steps.h"
#include "stream.h"

/* ---- the session's list -------------------------------------------------------------------- */

void mcpd_stream_list(struct mcpd_stream *stream)
{
    struct mcpd_client *client = stream->client;
    pthread_mutex_lock(&client->streams_mutex);
    stream->next = client->streams;
    client->streams = stream;
    mcpd_early_take(stream);
    int lost = client->lost;
    pthread_mutex_unlock(&client->streams_mutex);
    if (lost)
        mcpd_end_all(client); /* it came after the others were ended */
}

static void list_remove(struct mcpd_stream *stream)
{
    struct mcpd_client *client = stream->client;
    pthread_mutex_lock(&client->streams_mutex);
    struct mcpd_stream **at = &client->streams;
    while (*at != NULL && *at != stream)
        at = &(*at)->next;
    if (*at == stream)
        *at = stream->next;
    pthread_mutex_unlock(&client->streams_mutex);
}

/* ---- what the daemon grants ---------------------------------------------------------------- */

int mcpd_grant_read(const struct mcpd_value *map, struct mcpd_grant *grant,
                    struct mcpd_error *error)
{
    uint64_t nslots = 0, width = 0, height = 0;
    struct mcpd_geometry *geometry = &grant->geometry;
    struct mcpd_value spec;
    geometry->first_seq = 1;
    int bad = mcpd_map_unsigned(map, "stream", UINT64_MAX, &geometry->stream_id) |
              mcpd_map_unsigned(map, "generation", UINT64_MAX, &geometry->generation) |
              mcpd_map_unsigned(map, "first_seq", UINT64_MAX, &geometry->first_seq) |
              mcpd_map_unsigned(map, "payload_offset", UINT64_MAX, &geometry->payload_offset) |
              mcpd_map_unsigned(map, "slots", UINT32_MAX, &nslots) |
              mcpd_map_unsigned(map, "slot_nbytes", UINT64_MAX, &geometry->slot_nbytes) |
              mcpd_map_unsigned(map, "reader", UINT64_MAX, &grant->reader) |
              mcpd_map_unsigned(map, "start_seq", UINT64_MAX, &grant->start_seq) |
              mcpd_map_text(map, "name", grant->name, sizeof grant->name);
    if (bad == 0 && grant->reader != 0)
        bad = mcpd_admission_read(map, &grant->admission);
    if (bad == 0 && mcpd_map_find(map, "spec", &spec))
        bad = mcpd_map_text(&spec, "format", grant->format, sizeof grant->format) |
              mcpd_map_unsigned(&spec, "width", UINT32_MAX, &width) |
              mcpd_map_unsigned(&spec, "height", UINT32_MAX, &height);
    if (bad != 0 || geometry->stream_id == 0)
        return mcpd_fail(error, "protocol", "", "the daemon's grant is not readable");
    geometry->nslots = (uint32_t)nslots;
    grant->width = (uint32_t)width;
    grant->height = (uint32_t)height;
    return 0;
}

int mcpd_stream_unmapped(int result, const struct mcpd_grant *grant, struct mcpd_error *error)
{
    return mcpd_fail(error, mcpd_code_of(result), "", "stream '%s' cannot be mapped: errno %d",
                     grant->name, -result);
}

struct mcpd_stream *mcpd_stream_new(struct mcpd_client *client, const struct mcpd_value *granted,
                                      struct mcpd_error *error)
{
    struct mcpd_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        mcpd_fail(error, "no_memory", "", "no memory for a stream");
        return NULL;
    }
    if (mcpd_grant_read(granted, &stream->grant, error) != 0) {
        free(stream);
        return NULL;
    }
    stream->client = client;
    mcpd_moves_init(&stream->moves, 0);
    return stream;
}

static void discard(struct mcpd_stream *stream)
{
    for (uint32_t i = 0; stream->labels != NULL && i < stream->nlabels; i++)
        free(stream->labels[i]);
    free(stream->labels);
    free(stream->model);
    mcpd_generation_free(stream->moves.now);
    if (mcpd_check_process(stream->client, NULL) == 0) { /* a fork may leave it with a waiter */
        pthread_cond_destroy(&stream->moves.changed);
        pthread_mutex_destroy(&stream->moves.mutex);
    }
    free(stream);
}

/* A failure after the daemon granted something: `error` is there already. */
int mcpd_stream_unmake(struct mcpd_client *client, struct mcpd_stream *stream, enum mcpd_undo undo,
                     const struct mcpd_value *granted, int result)
{
    mcpd_give_back(client, undo, granted);
    if (stream != NULL)
        discard(stream);
    return result;
}

/* ---- a stream's end ------------------------------------------------------------------------ */

mcpd_writer *mcpd_stream_writer(mcpd_stream *stream)
{
    return stream->writer;
}

mcpd_reader *mcpd_stream_reader(mcpd_stream *stream)
{
    const struct mcpd_moves *moves = &stream->moves;
    return stream->writer == NULL && moves->follow == 0 ? moves->now->reader : NULL;
}

const struct mcpd_grant *mcpd_stream_grant(const mcpd_stream *stream)
{
    return &stream->grant;
}

int mcpd_stream_ended(mcpd_stream *stream)
{
    int told = (int)atomic_load(&stream->ended);
    if (told != MCPD_LIVE)
        return told;
    return stream->writer != NULL ? mcpd_writer_ended(stream->writer) : mcpd_moves_ended(stream);
}

int mcpd_stream_nreaders(mcpd_stream *stream)
{
    int result = mcpd_check_process(stream->client, NULL);
    if (result != 0 || stream->writer == NULL)
        return result != 0 ? result : -EINVAL;
    pthread_mutex_lock(&stream->client->streams_mutex);
    result = (int)stream->nreaders;
    pthread_mutex_unlock(&stream->client->streams_mutex);
    return result;
}

/* Tells the daemon once; a daemon that is gone, or took it away by itself, is no failure. */
static int tell_daemon(struct mcpd_stream *stream, struct mcpd_error *error)
{
    struct mcpd_message message;
    struct mcpd_answer answer;
    if (stream->given_back)
        return 0;
    stream->given_back = 1;
    int is_reader = stream->writer == NULL;
    uint64_t reader = is_reader ? stream->moves.now->grant.reader : 0;
    mcpd_message(&message, is_reader ? "detach_reader" : "close_stream", is_reader ? 1 : 2);
    mcpd_pack_text(&message.pack, is_reader ? "reader" : "stream");
    mcpd_pack_unsigned(&message.pack,
                       is_reader ? reader : stream->grant.geometry.stream_id);
    if (!is_reader) {
        mcpd_pack_text(&message.pack, "generation");
        mcpd_pack_unsigned(&message.pack, stream->grant.geometry.generation);
    }
    MCPD_STEP("client.close.unmapped");
    int result = mcpd_request(stream->client, &message, MCPD_REQUEST_NS, MCPD_UNDO_NOTHING,
                              &answer, error);
    MCPD_STEP("client.close.told");
    if (result == 0)
        mcpd_answer_clear(&answer);
    if (is_reader)
        mcpd_early_drop(stream->client, reader);
    return result == -ENOTCONN || result == -ENOENT ? 0 : result;
}

int mcpd_stream_end(mcpd_stream *stream, struct mcpd_error *error)
{
    if (stream->writer == NULL)
        return mcpd_fail(error, "invalid", "A reader calls mcpd_stream_close.",
                         "'%s' is not this session's to end", stream->grant.name);
    int result = mcpd_check_process(stream->client, error);
    if (result != 0)
        return result;
    mcpd_writer_end(stream->writer, MCPD_END_CLOSED);
    return tell_daemon(stream, error);
}

void mcpd_stream_close(mcpd_stream *stream)
{
    if (stream == NULL)
        return;
    struct mcpd_client *client = stream->client;
    int ours = mcpd_check_process(client, NULL) == 0;
    if (ours)
        list_remove(stream);
    mcpd_writer *writer = stream->writer;
    if (writer != NULL && ours)
        mcpd_writer_end(writer, MCPD_END_CLOSED);
    mcpd_writer_close(writer);
    if (writer == NULL)
        mcpd_moves_close(stream, ours);
    if (ours)
        (void)tell_daemon(stream, NULL);
    discard(stream);
    mcpd_client_unuse(client);
}
