/*
 * Streams that this session writes.
 */
#include <errno.h>
#include <string.h>

#include "atomics.h"
#include "client.h"
#include "steps.h"
#include "stream.h"

static int map_writer(struct mcpd_client *client, const struct mcpd_stream_options *options,
                      struct mcpd_answer *answer, mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_stream *stream = mcpd_stream_new(client, &answer->result, error);
    int result = stream == NULL ? -EPROTO : 0;
    if (result == 0 && answer->nfds != 3)
        result = mcpd_fail(error, "protocol", "", "stream '%s' came with %u descriptors, not 3",
                           stream->grant.name, answer->nfds);
    if (result == 0) {
        const int *fds = answer->fds;
        result = mcpd_writer_open(&stream->grant.geometry, fds[0], fds[1], fds[2],
                                  options->history, options->holds, &stream->writer);
        if (result != 0)
            result = mcpd_stream_unmapped(result, &stream->grant, error);
    }
    if (result != 0)
        return mcpd_stream_unmake(client, stream, MCPD_UNDO_STREAM, &answer->result, result);
    stream->frame = options->frame;
    stream->ntensors = options->ntensors;
    if (options->ntensors > 0)
        memcpy(stream->tensors, options->tensors, options->ntensors * sizeof *options->tensors);
    mcpd_client_use(client);
    mcpd_stream_list(stream);
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
    mcpd_message(&message, "seal_stream", 2);
    mcpd_pack_text(&message.pack, "stream");
    mcpd_pack_unsigned(&message.pack, stream->grant.geometry.stream_id);
    mcpd_pack_text(&message.pack, "generation");
    mcpd_pack_unsigned(&message.pack, stream->grant.geometry.generation);
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
    MCPD_STEP("client.create.granted");
    mcpd_stream *stream = NULL;
    result = map_writer(client, &whole, &answer, &stream, error);
    mcpd_answer_clear(&answer);
    if (result != 0)
        return result;
    MCPD_STEP("client.create.mapped");
    result = seal(stream, error);
    MCPD_STEP("client.create.sealed");
    if (result != 0) {
        mcpd_stream_close(stream);
        return result;
    }
    *out = stream;
    return 0;
}

/* The request to go on as `options` say, and what it grants. */
static int ask_resize(mcpd_stream *stream, const struct mcpd_stream_options *options,
                      struct mcpd_answer *answer, struct mcpd_error *error)
{
    const struct mcpd_wctl *counters = mcpd_writer_counters(stream->writer);
    struct mcpd_message message;
    mcpd_message(&message, "resize_stream", 3);
    mcpd_pack_text(&message.pack, "stream");
    mcpd_pack_unsigned(&message.pack, stream->grant.geometry.stream_id);
    mcpd_pack_text(&message.pack, "first_seq");
    mcpd_pack_unsigned(&message.pack, mcpd_load_acquire(&counters->head) + 1);
    pack_spec(&message.pack, options);
    return mcpd_request(stream->client, &message, MCPD_REQUEST_NS, MCPD_UNDO_STREAM, answer, error);
}

/* With nothing that can be published in the old generation. */
static int go_on(mcpd_stream *stream, const struct mcpd_stream_options *options, mcpd_stream **out,
                 struct mcpd_error *error)
{
    struct mcpd_answer answer;
    mcpd_stream *next = NULL;
    int result = ask_resize(stream, options, &answer, error);
    if (result != 0)
        return result;
    result = map_writer(stream->client, options, &answer, &next, error);
    mcpd_answer_clear(&answer);
    if (result != 0)
        return result;
    result = seal(next, error);
    if (result != 0) {
        mcpd_stream_close(next);
        if (result == -ETIMEDOUT) /* nobody knows where its readers are */
            mcpd_writer_end(stream->writer, MCPD_END_CLOSED);
        return result;
    }
    mcpd_writer_end(stream->writer, MCPD_END_MOVED);
    *out = next;
    return 0;
}

int mcpd_resize_stream(mcpd_stream *stream, const struct mcpd_stream_options *options,
                       mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_stream_options whole;
    struct mcpd_tensor_view tensors[MCPD_MAX_TENSORS];
    int result = mcpd_check_process(stream->client, error);
    if (result == 0 && stream->writer == NULL)
        result = mcpd_fail(error, "invalid", "Its writer resizes a stream.",
                           "this session reads '%s'", stream->grant.name);
    if (result == 0)
        result = mcpd_options_complete(options, &whole, tensors, error);
    if (result == 0 && mcpd_writer_ended(stream->writer) != MCPD_LIVE)
        result = mcpd_fail(error, "ended", "", "stream '%s' has ended", stream->grant.name);
    if (result != 0)
        return result;
    mcpd_writer_freeze(stream->writer, 1);
    result = go_on(stream, &whole, out, error);
    if (result != 0)
        mcpd_writer_freeze(stream->writer, 0);
    return result;
}
