/*
 * mcpd-read: prints what arrives on a stream, a line for each frame, or what a model finds in it.
 *
 *   mcpd-read STREAM [--model NAME] [--policy latest|lossless] [--count N] [--socket PATH]
 *
 * A frame's line has an Adler-32 of its first plane's pixels, row by row without padding. Ends with
 * the stream, after N lines, or on SIGINT; the exit status is 0 if the stream was closed in order.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mcpd_client.h>

#define LOOK_NS INT64_C(200000000) /* how often a wait looks for SIGINT */
#define MOST_DETECTIONS 64

static volatile sig_atomic_t stopped;

static const char *const format_names[] = {
    [MCPD_RGB24] = "rgb24", [MCPD_BGR24] = "bgr24", [MCPD_RGBA] = "rgba", [MCPD_BGRA] = "bgra",
    [MCPD_GRAY8] = "gray8", [MCPD_NV12] = "nv12",   [MCPD_I420] = "i420", [MCPD_YUYV422] = "yuyv422",
    [MCPD_JPEG] = "jpeg",   [MCPD_H264] = "h264",
};
static const char *const end_names[] = {"live", "closed", "writer_died", "revoked", "shutdown"};

struct options {
    const char *stream, *model, *socket;
    uint32_t policy;
    long count; /* below 0: no end */
};

static void stop(int signum)
{
    (void)signum;
    stopped = 1;
}

/* RFC 1950's checksum, carried on from `sum`, which begins as 1. */
static uint32_t adler32(uint32_t sum, const uint8_t *data, size_t nbytes)
{
    uint32_t low = sum & 0xffff, high = sum >> 16;
    while (nbytes > 0) {
        size_t part = nbytes < 5552 ? nbytes : 5552; /* as many as cannot overflow 32 bits */
        for (size_t i = 0; i < part; i++) {
            low += data[i];
            high += low;
        }
        low %= 65521;
        high %= 65521;
        data += part;
        nbytes -= part;
    }
    return high << 16 | low;
}

static uint32_t sum_plane(const uint8_t *slot, const struct mcpd_frame *frame)
{
    uint32_t sum = 1;
    for (uint64_t row = 0; frame->nplanes > 0 && row < frame->rows[0]; row++)
        sum = adler32(sum, slot + frame->offset[0] + row * frame->stride[0],
                      (size_t)frame->row_nbytes[0]);
    return sum;
}

static void print_tensors(mcpd_stream *stream, uint32_t pin)
{
    struct mcpd_tensor_view tensor;
    for (uint32_t i = 0; mcpd_pinned_tensor(stream, pin, i, &tensor) == 0; i++) {
        printf(" %s[", tensor.name);
        for (uint32_t d = 0; d < tensor.ndim; d++)
            printf(d == 0 ? "%" PRIu64 : ",%" PRIu64, tensor.shape[d]);
        printf("]");
    }
}

static int print_frame(mcpd_stream *stream, uint32_t pin, const struct mcpd_meta *meta)
{
    struct mcpd_frame frame;
    int result = mcpd_pinned_frame(stream, pin, &frame);
    if (result != 0)
        return result;
    const uint8_t *slot = mcpd_reader_slot(mcpd_stream_reader(stream), pin);
    printf("seq=%" PRIu64 " pts_ns=%" PRId64 " key=%d nbytes=%" PRIu64, meta->seq, meta->pts_ns,
           (meta->flags & MCPD_FLAG_KEYFRAME) != 0, meta->nbytes);
    if (frame.kind == MCPD_FRAME)
        printf(" %s %ux%u sum=%08x", format_names[frame.format], frame.width, frame.height,
               sum_plane(slot, &frame));
    else if (frame.kind == MCPD_ENCODED)
        printf(" %s %ux%u sum=%08x", format_names[frame.format], frame.width, frame.height,
               adler32(1, slot, (size_t)meta->nbytes));
    else
        print_tensors(stream, pin);
    printf("\n");
    return 0;
}

static int print_result(mcpd_stream *results, uint32_t pin, const struct mcpd_meta *meta)
{
    struct mcpd_detection found[MOST_DETECTIONS];
    printf("source_seq=%" PRIu64 " status=%u latency_us=%" PRId64, meta->source_seq, meta->status,
           (meta->publish_ns - meta->source_publish_ns) / 1000);
    if (meta->status != 0) {
        char text[512];
        int length = mcpd_result_error(results, pin, text, sizeof text);
        printf(" error=%s\n", length < 0 ? "not readable" : text);
        return length < 0 ? length : 0;
    }
    int count = mcpd_result_detections(results, pin, found, MOST_DETECTIONS);
    if (count < 0)
        return count;
    if (count == 0)
        print_tensors(results, pin);
    for (int i = 0; i < count && i < MOST_DETECTIONS; i++) {
        const char *label = mcpd_results_label(results, found[i].label);
        printf(" %s=%.3f@%.1f,%.1f,%.1f,%.1f", label != NULL ? label : "?", found[i].score,
               found[i].box[0], found[i].box[1], found[i].box[2], found[i].box[3]);
    }
    printf("\n");
    return 0;
}

static int say(const char *what, const struct mcpd_error *error)
{
    fprintf(stderr, "mcpd-read: %s: %s%s%s\n", what, error->message, *error->hint ? ". " : "",
            error->hint);
    return 1;
}

/* Prints until the stream ends; 0, or the failure. */
static int follow(mcpd_stream *stream, struct options *options)
{
    mcpd_reader *reader = mcpd_stream_reader(stream);
    int result = 0;
    while (!stopped && options->count != 0 && result == 0) {
        struct mcpd_meta meta;
        int pin = mcpd_reader_next(reader, LOOK_NS, &meta);
        if (pin == -ETIMEDOUT || pin == -EINTR)
            continue;
        if (pin < 0)
            return pin;
        result = options->model != NULL ? print_result(stream, (uint32_t)pin, &meta)
                                        : print_frame(stream, (uint32_t)pin, &meta);
        mcpd_reader_unpin(reader, (uint32_t)pin);
        fflush(stdout);
        if (options->count > 0)
            options->count--;
    }
    return result;
}

static int open_stream(mcpd_client *client, const struct options *options, mcpd_stream **stream,
                       struct mcpd_error *error)
{
    if (options->model != NULL) {
        struct mcpd_results_options how = {.frames = options->policy};
        return mcpd_open_results(client, options->stream, options->model, &how, stream, error);
    }
    struct mcpd_reader_options how = {.policy = options->policy};
    return mcpd_attach(client, options->stream, &how, stream, error);
}

static int run(mcpd_client *client, struct options *options)
{
    struct mcpd_error error;
    for (;;) {
        mcpd_stream *stream;
        if (open_stream(client, options, &stream, &error) != 0)
            return say(options->stream, &error);
        fprintf(stderr, "mcpd-read: reads %s\n", mcpd_stream_grant(stream)->name);
        int result = follow(stream, options);
        int end = mcpd_stream_ended(stream);
        mcpd_stream_close(stream);
        if (result == 0)
            return 0;
        if (result != -EPIPE && result != -ECANCELED) {
            fprintf(stderr, "mcpd-read: %s: %s\n", options->stream, strerror(-result));
            return 1;
        }
        fprintf(stderr, "mcpd-read: %s ended: %s\n", options->stream,
                end >= 0 && end <= MCPD_END_SHUTDOWN ? end_names[end] : "?");
        /* A model's worker that died is replaced by another: ask again. */
        if (options->model == NULL || end != MCPD_END_WRITER_DIED)
            return end != MCPD_END_CLOSED;
    }
}

static int usage(void)
{
    fprintf(stderr, "usage: mcpd-read STREAM [--model NAME] [--policy latest|lossless] "
                    "[--count N] [--socket PATH]\n");
    return 2;
}

static int parse(int argc, char **argv, struct options *options)
{
    *options = (struct options){.policy = MCPD_LATEST, .count = -1};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            if (options->stream != NULL)
                return usage();
            options->stream = argv[i];
            continue;
        }
        if (i + 1 == argc)
            return usage();
        const char *name = argv[i], *value = argv[++i];
        if (strcmp(name, "--model") == 0)
            options->model = value;
        else if (strcmp(name, "--socket") == 0)
            options->socket = value;
        else if (strcmp(name, "--count") == 0)
            options->count = strtol(value, NULL, 10);
        else if (strcmp(name, "--policy") == 0 && strcmp(value, "lossless") == 0)
            options->policy = MCPD_LOSSLESS;
        else if (strcmp(name, "--policy") != 0 || strcmp(value, "latest") != 0)
            return usage();
    }
    return options->stream != NULL ? 0 : usage();
}

int main(int argc, char **argv)
{
    struct options options;
    struct mcpd_error error;
    mcpd_client *client;
    int status = parse(argc, argv, &options);
    if (status != 0)
        return status;
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (mcpd_connect(options.socket, "mcpd-read", INT64_C(5000000000), &client, &error) != 0)
        return say("cannot connect", &error);
    status = run(client, &options);
    mcpd_close(client);
    return status;
}
