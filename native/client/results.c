/*
 * A model's results: opened, and read as detections or as the text of what failed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define MAX_LABELS 65536u
#define WAIT_NS INT64_C(30000000000)
#define GRACE_NS INT64_C(35000000000) /* beyond the wait: the worker has to attach as well */

static char *copy_text(const struct mcpd_value *text)
{
    char *copy = malloc((size_t)text->count + 1);
    if (copy != NULL)
        mcpd_text_copy(text, copy, (size_t)text->count + 1);
    return copy;
}

static int read_labels(struct mcpd_stream *stream, const struct mcpd_value *list)
{
    if (list->kind != MCPD_ARRAY || list->count > MAX_LABELS)
        return -EBADMSG;
    stream->labels = calloc((size_t)list->count + 1, sizeof *stream->labels);
    if (stream->labels == NULL)
        return -ENOMEM;
    const uint8_t *at = list->data;
    for (uint32_t i = 0; i < list->count; i++) {
        struct mcpd_value label;
        if (mcpd_unpack_next(&at, list->end, &label) != 0 || label.kind != MCPD_TEXT)
            return -EBADMSG;
        stream->labels[i] = copy_text(&label);
        if (stream->labels[i] == NULL)
            return -ENOMEM;
        stream->nlabels++;
    }
    return 0;
}

static int read_model(struct mcpd_stream *stream, const struct mcpd_value *result)
{
    struct mcpd_value model, labels;
    uint64_t version = 0;
    if (!mcpd_map_find(result, "model", &model) || model.kind != MCPD_TEXT ||
        mcpd_map_unsigned(result, "version", UINT32_MAX, &version) != 0)
        return -EBADMSG;
    stream->version = (uint32_t)version;
    stream->model = copy_text(&model);
    if (stream->model == NULL)
        return -ENOMEM;
    return mcpd_map_find(result, "labels", &labels) ? read_labels(stream, &labels) : 0;
}

static int pack_request(struct mcpd_message *message, const char *stream, const char *model,
                        const struct mcpd_results_options *options, struct mcpd_error *error)
{
    uint32_t frames = options->frames != 0 ? options->frames : MCPD_LATEST;
    const char *frames_name = mcpd_policy_name(frames);
    const char *results_name = mcpd_policy_name(options->policy != 0 ? options->policy : frames);
    if (frames_name == NULL || results_name == NULL)
        return mcpd_fail(error, "invalid", "See enum mcpd_policy.",
                         "no policy has the number %u or %u", options->frames, options->policy);
    struct mcpd_pack *pack = &message->pack;
    mcpd_message(message, "open_results", 8);
    mcpd_pack_text(pack, "stream");
    mcpd_pack_text(pack, stream);
    mcpd_pack_text(pack, "model");
    mcpd_pack_text(pack, model);
    mcpd_pack_text(pack, "version");
    mcpd_pack_unsigned(pack, options->version);
    mcpd_pack_text(pack, "frames");
    mcpd_pack_text(pack, frames_name);
    mcpd_pack_text(pack, "results");
    mcpd_pack_text(pack, results_name);
    mcpd_pack_text(pack, "max_pins");
    mcpd_pack_unsigned(pack, options->max_pins != 0 ? options->max_pins : 2);
    mcpd_pack_text(pack, "once");
    mcpd_pack_bool(pack, options->once != 0);
    mcpd_pack_text(pack, "wait_s");
    mcpd_pack_double(pack, (double)options->wait_ns / 1e9);
    return 0;
}

int mcpd_open_results(mcpd_client *client, const char *stream, const char *model,
                      const struct mcpd_results_options *options, mcpd_stream **out,
                      struct mcpd_error *error)
{
    static const struct mcpd_reader_options alone;
    struct mcpd_results_options whole = {0};
    struct mcpd_message message;
    struct mcpd_answer answer;
    struct mcpd_value grant;
    if (options != NULL)
        whole = *options;
    if (whole.wait_ns == 0)
        whole.wait_ns = WAIT_NS;
    int result = pack_request(&message, stream, model, &whole, error);
    if (result == 0)
        result = mcpd_request(client, &message, whole.wait_ns + GRACE_NS, MCPD_UNDO_RESULTS,
                              &answer, error);
    if (result != 0)
        return result;
    mcpd_stream *opened = NULL;
    if (!mcpd_map_find(&answer.result, "grant", &grant))
        result = mcpd_fail(error, "protocol", "", "the reply to open_results has no grant");
    if (result == 0)
        result = mcpd_map_reader(client, &grant, &answer, &alone, &opened, error);
    if (result == 0 && read_model(opened, &answer.result) != 0) {
        mcpd_stream_close(opened);
        result = mcpd_fail(error, "protocol", "", "the reply to open_results is not readable");
    }
    mcpd_answer_clear(&answer);
    if (result == 0)
        *out = opened;
    return result;
}

int mcpd_run_once(mcpd_stream *results, const uint8_t trace_id[16], struct mcpd_error *error)
{
    struct mcpd_message message;
    struct mcpd_answer answer;
    mcpd_message(&message, "run_once", trace_id != NULL ? 2 : 1);
    mcpd_pack_text(&message.pack, "reader");
    mcpd_pack_unsigned(&message.pack, results->grant.reader);
    if (trace_id != NULL) {
        mcpd_pack_text(&message.pack, "trace_id");
        mcpd_pack_bytes(&message.pack, trace_id, 16);
    }
    int result = mcpd_request(results->client, &message, MCPD_REQUEST_NS, MCPD_UNDO_NOTHING,
                              &answer, error);
    if (result == 0)
        mcpd_answer_clear(&answer);
    return result;
}

/* ---- reading ------------------------------------------------------------------------------- */

const char *mcpd_results_model(const mcpd_stream *results)
{
    return results->model;
}

uint32_t mcpd_results_version(const mcpd_stream *results)
{
    return results->version;
}

uint32_t mcpd_results_nlabels(const mcpd_stream *results)
{
    return results->nlabels;
}

const char *mcpd_results_label(const mcpd_stream *results, int32_t label)
{
    return label >= 0 && (uint32_t)label < results->nlabels ? results->labels[label] : NULL;
}

/* The tensor's bytes if it is of that type, packed, and has `count` elements a row; else NULL. */
static const uint8_t *packed(mcpd_stream *results, uint32_t pin, const char *name, uint32_t dtype,
                             uint32_t columns, uint64_t *rows, int *status)
{
    struct mcpd_tensor_view tensor;
    *status = mcpd_pinned_find(results, pin, name, &tensor);
    if (*status != 0)
        return NULL;
    *status = -EBADMSG;
    uint32_t ndim = columns > 1 ? 2 : 1;
    if (tensor.dtype != dtype || tensor.ndim != ndim || (ndim == 2 && tensor.shape[1] != columns))
        return NULL;
    int64_t row = 4 * (int64_t)columns;
    if (tensor.shape[0] > INT32_MAX || (tensor.shape[0] > 1 && tensor.strides[0] != row) ||
        (ndim == 2 && tensor.shape[0] > 0 && tensor.strides[1] != 4))
        return NULL;
    *rows = tensor.shape[0];
    *status = 0;
    return (const uint8_t *)mcpd_stream_slot(results, pin) + tensor.offset;
}

int mcpd_result_detections(mcpd_stream *results, uint32_t pin, struct mcpd_detection *detections,
                           uint32_t most)
{
    uint64_t nboxes = 0, nscores = 0, nlabels = 0;
    int status;
    const uint8_t *boxes = packed(results, pin, "boxes", MCPD_FLOAT32, 4, &nboxes, &status);
    const uint8_t *scores =
        status == 0 ? packed(results, pin, "scores", MCPD_FLOAT32, 1, &nscores, &status) : NULL;
    const uint8_t *labels =
        status == 0 ? packed(results, pin, "labels", MCPD_INT32, 1, &nlabels, &status) : NULL;
    if (status == -ENOENT)
        return 0;
    if (status != 0)
        return status;
    if (nboxes != nscores || nboxes != nlabels)
        return -EBADMSG;
    for (uint32_t i = 0; i < most && i < nboxes; i++) {
        memcpy(detections[i].box, boxes + 16 * (size_t)i, 16);
        memcpy(&detections[i].score, scores + 4 * (size_t)i, 4);
        memcpy(&detections[i].label, labels + 4 * (size_t)i, 4);
    }
    return (int)nboxes;
}

int mcpd_result_error(mcpd_stream *results, uint32_t pin, char *text, size_t size)
{
    struct mcpd_tensor_view tensor;
    if (size > 0)
        text[0] = 0;
    int status = mcpd_pinned_find(results, pin, "error", &tensor);
    if (status == -ENOENT)
        return 0;
    if (status != 0)
        return status;
    if (tensor.dtype != MCPD_UINT8 || tensor.ndim != 1 || tensor.nbytes > INT32_MAX)
        return -EBADMSG;
    const uint8_t *bytes = mcpd_stream_slot(results, pin);
    struct mcpd_value whole = {.data = bytes + tensor.offset, .count = (uint32_t)tensor.nbytes};
    return (int)mcpd_text_copy(&whole, text, size);
}
