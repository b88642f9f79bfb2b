/*
 * This session's ends of streams: made, attached to, ended, closed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "stream.h"

static const char *const policies[] = {
    [MCPD_LATEST] = "latest", [MCPD_FIFO] = "fifo", [MCPD_LOSSLESS] = "lossless"};

const char *mcpd_policy_name(uint32_t policy)
{
    return policy < sizeof policies / sizeof *policies ? policies[policy] : NULL;
}

int mcpd_policy_code(const struct mcpd_value *message, uint32_t *policy)
{
    char name[16] = "";
    if (mcpd_map_text(message, "policy", name, sizeof name) != 0)
        return -EBADMSG;
    for (uint32_t code = MCPD_LATEST; code <= MCPD_LOSSLESS; code++) {
        if (strcmp(policies[code], name) == 0) {
            *policy = code;
            return 0;
        }
    }
    return -EBADMSG;
}

/* ---- the session's list -------------------------------------------------------------------- */

static void list_add(struct mcpd_stream *stream)
{
    struct mcpd_client *client = stream->client;
    pthread_mutex_lock(&client->streams_mutex);
    stream->next = client->streams;
    client->streams = stream;
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

static int read_grant(const struct mcpd_value *map, struct mcpd_grant *grant,
                      struct mcpd_error *error)
{
    uint64_t nslots = 0, max_pins = 0, width = 0, height = 0;
    struct mcpd_geometry *geometry = &grant->geometry;
    struct mcpd_value spec;
    int bad = mcpd_map_unsigned(map, "stream", UINT64_MAX, &geometry->stream_id) |
              mcpd_map_unsigned(map, "generation", UINT64_MAX, &geometry->generation) |
              mcpd_map_unsigned(map, "slots", UINT32_MAX, &nslots) |
              mcpd_map_unsigned(map, "slot_nbytes", UINT64_MAX, &geometry->slot_nbytes) |
              mcpd_map_unsigned(map, "reader", UINT64_MAX, &grant->reader) |
              mcpd_map_unsigned(map, "max_pins", UINT32_MAX, &max_pins) |
              mcpd_map_unsigned(map, "start_seq", UINT64_MAX, &grant->start_seq) |
              mcpd_map_text(map, "name", grant->name, sizeof grant->name);
    if (bad == 0 && grant->reader != 0)
        bad = mcpd_policy_code(map, &grant->policy);
    if (bad == 0 && mcpd_map_find(map, "spec", &spec))
        bad = mcpd_map_text(&spec, "format", grant->format, sizeof grant->format) |
              mcpd_map_unsigned(&spec, "width", UINT32_MAX, &width) |
              mcpd_map_unsigned(&spec, "height", UINT32_MAX, &height);
    if (bad != 0 || geometry->stream_id == 0)
        return mcpd_fail(error, "protocol", "", "the daemon's grant is not readable");
    geometry->nslots = (uint32_t)nslots;
    geometry->first_seq = 1;
    grant->max_pins = (uint32_t)max_pins;
    grant->width = (uint32_t)width;
    grant->height = (uint32_t)height;
    return 0;
}

static int not_mapped(int result, const struct mcpd_grant *grant, struct mcpd_error *error)
{
    return mcpd_fail(error, mcpd_code_of(result), "", "stream '%s' cannot be mapped: errno %d",
                     grant->name, -result);
}

static struct mcpd_stream *new_stream(struct mcpd_client *client, const struct mcpd_value *granted,
                                      struct mcpd_error *error)
{
    struct mcpd_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        mcpd_fail(error, "no_memory", "", "no memory for a stream");
        return NULL;
    }
    if (read_grant(granted, &stream->grant, error) != 0) {
        free(stream);
        return NULL;
    }
    stream->client = client;
    return stream;
}

static void discard(struct mcpd_stream *stream)
{
    for (uint32_t i = 0; stream->labels != NULL && i < stream->nlabels; i++)
        free(stream->labels[i]);
    free(stream->labels);
    free(stream->model);
    free(stream);
}

/* A failure after the daemon granted something: `error` is there already. */
static int give_back(struct mcpd_client *client, struct mcpd_stream *stream, enum mcpd_undo undo,
                     const struct mcpd_value *granted, int result)
{
    mcpd_give_back(client, undo, granted);
    if (stream != NULL)
        discard(stream);
    return result;
}

/* ---- writing ------------------------------------------------------------------------------- */

static int map_writer(struct mcpd_client *client, const struct mcpd_stream_options *options,
                      struct mcpd_answer *answer, mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_stream *stream = new_stream(client, &answer->result, error);
    int result = stream == NULL ? -EPROTO : 0;
    if (result == 0 && answer->nfds != 3)
        result = mcpd_fail(error, "protocol", "", "stream '%s' came with %u descriptors, not 3",
                           stream->grant.name, answer->nfds);
    if (result == 0) {
        const int *fds = answer->fds;
        result = mcpd_writer_open(&stream->grant.geometry, fds[0], fds[1], fds[2],
                                  options->history, options->holds, &stream->writer);
        if (result != 0)
            result = not_mapped(result, &stream->grant, error);
    }
    if (result != 0)
        return give_back(client, stream, MCPD_UNDO_STREAM, &answer->result, result);
    stream->frame = options->frame;
    stream->ntensors = options->ntensors;
    if (options->ntensors > 0)
        memcpy(stream->tensors, options->tensors, options->ntensors * sizeof *options->tensors);
    mcpd_client_use(client);
    list_add(stream);
    *out = stream;
    return 0;
}

static void pack_spec(struct mcpd_pack *pack, const struct mcpd_stream_options *options)
{
    int image = options->frame.format != 0;
    mcpd_pack_text(pack, "spec");
    mcpd_pack_map(pack, image ? 9 : 6);
    mcpd_pack_text(pack, "slots");
    mcpd_pack_unsigned(pack, options->slots);
    mcpd_pack_text(pack, "slot_nbytes");
    mcpd_pack_unsigned(pack, options->slot_nbytes);
    mcpd_pack_text(pack, "kind");
    mcpd_pack_text(pack, image ? "frames" : "tensors");
    mcpd_pack_text(pack, "history");
    mcpd_pack_unsigned(pack, options->history);
    mcpd_pack_text(pack, "holds");
    mcpd_pack_unsigned(pack, options->holds);
    mcpd_pack_text(pack, "memory");
    mcpd_pack_text(pack, options->posix ? "posix" : "memfd");
    if (!image)
        return;
    mcpd_pack_text(pack, "format");
    mcpd_pack_text(pack, mcpd_format_name(options->frame.format));
    mcpd_pack_text(pack, "width");
    mcpd_pack_unsigned(pack, options->frame.width);
    mcpd_pack_text(pack, "height");
    mcpd_pack_unsigned(pack, options->frame.height);
}

static int seal(struct mcpd_stream *stream, struct mcpd_error *error)
{
    struct mcpd_message message;
    struct mcpd_answer answer;
    mcpd_message(&message, "seal_stream", 1);
    mcpd_pack_text(&message.pack, "stream");
    mcpd_pack_unsigned(&message.pack, stream->grant.geometry.stream_id);
    int result = mcpd_request(stream->client, &message, MCPD_REQUEST_NS, MCPD_UNDO_NOTHING,
                              &answer, error);
    if (result == 0)
        mcpd_answer_clear(&answer);
    return result;
}

int mcpd_create_stream(mcpd_client *client, const char *name,
                       const struct mcpd_stream_options *options, mcpd_stream **out,
                       struct mcpd_error *error)
{
    struct mcpd_stream_options whole;
    struct mcpd_tensor_view tensors[MCPD_MAX_TENSORS];
    struct mcpd_message message;
    struct mcpd_answer answer;
    int result = mcpd_options_complete(options, &whole, tensors, error);
    if (result != 0)
        return result;
    mcpd_message(&message, "create_stream", 2);
    mcpd_pack_text(&message.pack, "name");
    mcpd_pack_text(&message.pack, name);
    pack_spec(&message.pack, &whole);
    result = mcpd_request(client, &message, MCPD_REQUEST_NS, MCPD_UNDO_STREAM, &answer, error);
    if (result != 0)
        return result;
    mcpd_stream *stream = NULL;
    result = map_writer(client, &whole, &answer, &stream, error);
    mcpd_answer_clear(&answer);
    if (result != 0)
        return result;
    result = seal(stream, error);
    if (result != 0) {
        mcpd_stream_close(stream);
        return result;
    }
    *out = stream;
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

int mcpd_map_reader(struct mcpd_client *client, const struct mcpd_value *granted,
                    struct mcpd_answer *answer, mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_stream *stream = new_stream(client, granted, error);
    int result = stream == NULL ? -EPROTO : 0;
    const int *fds = answer->fds;
    if (result == 0) {
        const struct mcpd_grant *grant = &stream->grant;
        int lossless = grant->policy == MCPD_LOSSLESS;
        if (answer->nfds != 4u + (uint32_t)lossless || grant->reader == 0)
            result = mcpd_fail(error, "protocol", "", "reader of '%s' came with %u descriptors",
                               grant->name, answer->nfds);
        else {
            struct mcpd_reader_fds given = {fds[0], fds[1], fds[2], fds[3],
                                            lossless ? fds[4] : -1, -1};
            struct mcpd_admission admission = {.max_pins = grant->max_pins,
                                               .policy = grant->policy};
            result = mcpd_reader_open(&grant->geometry, &given, &admission, grant->start_seq, NULL,
                                      &stream->reader);
            if (result != 0)
                result = not_mapped(result, grant, error);
        }
    }
    if (result != 0)
        return give_back(client, stream, MCPD_UNDO_READER, granted, result);
    mcpd_client_use(client);
    list_add(stream);
    *out = stream;
    return 0;
}

int mcpd_attach(mcpd_client *client, const char *name, const struct mcpd_reader_options *options,
                mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_reader_options whole = {0};
    struct mcpd_message message;
    struct mcpd_answer answer;
    if (options != NULL)
        whole = *options;
    if (whole.policy == 0)
        whole.policy = MCPD_LATEST;
    const char *policy = mcpd_policy_name(whole.policy);
    if (policy == NULL)
        return mcpd_fail(error, "invalid", "See enum mcpd_policy.", "no policy has the number %u",
                         whole.policy);
    mcpd_message(&message, "attach_reader", 3);
    mcpd_pack_text(&message.pack, "stream");
    mcpd_pack_text(&message.pack, name);
    mcpd_pack_text(&message.pack, "policy");
    mcpd_pack_text(&message.pack, policy);
    mcpd_pack_text(&message.pack, "max_pins");
    mcpd_pack_unsigned(&message.pack, whole.max_pins != 0 ? whole.max_pins : 2);
    int result = mcpd_request(client, &message, MCPD_REQUEST_NS, MCPD_UNDO_READER, &answer, error);
    if (result != 0)
        return result;
    result = mcpd_map_reader(client, &answer.result, &answer, out, error);
    mcpd_answer_clear(&answer);
    return result;
}

/* ---- a stream's end ------------------------------------------------------------------------ */

mcpd_writer *mcpd_stream_writer(mcpd_stream *stream)
{
    return stream->writer;
}

mcpd_reader *mcpd_stream_reader(mcpd_stream *stream)
{
    return stream->reader;
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
    return stream->writer != NULL ? mcpd_writer_ended(stream->writer)
                                  : mcpd_reader_ended(stream->reader);
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

int mcpd_stream_fileno(mcpd_stream *stream)
{
    return stream->writer != NULL ? mcpd_writer_fileno(stream->writer)
                                  : mcpd_reader_fileno(stream->reader);
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
    mcpd_message(&message, is_reader ? "detach_reader" : "close_stream", 1);
    mcpd_pack_text(&message.pack, is_reader ? "reader" : "stream");
    mcpd_pack_unsigned(&message.pack,
                       is_reader ? stream->grant.reader : stream->grant.geometry.stream_id);
    int result = mcpd_request(stream->client, &message, MCPD_REQUEST_NS, MCPD_UNDO_NOTHING,
                              &answer, error);
    if (result == 0)
        mcpd_answer_clear(&answer);
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
    mcpd_reader_close(stream->reader);
    if (ours)
        (void)tell_daemon(stream, NULL);
    discard(stream);
    mcpd_client_unuse(client);
}
