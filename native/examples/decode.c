/*
 * mcpd-decode: decodes a file or a network camera straight into the slots of a stream.
 *
 *   mcpd-decode INPUT STREAM [--realtime] [--readers N] [--pins N] [--threads N] [--socket PATH]
 *
 * INPUT is what libavformat opens: a path, or a URL such as rtsp://camera/stream. --realtime: at the
 * pace of its time stamps. --readers: waits for so many before the first frame. Ends with the input
 * or on SIGINT; prints how many pictures were decoded in place and how many had to be copied.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>

#include "slot_buffers.h"

static volatile sig_atomic_t signalled;

struct options {
    const char *input, *stream, *socket;
    long threads, pins, readers;
    int realtime;
};

struct session {
    struct options options;
    mcpd_client *client;
    struct slot_buffers *buffers;
    AVFormatContext *input;
    AVCodecContext *codec;
    AVStream *video;
    int64_t first_pts_ns, started_ns;
};

static void stop(int signum)
{
    (void)signum;
    signalled = 1;
}

static int stopped(void)
{
    return signalled;
}

static int interrupted(void *unused)
{
    (void)unused;
    return signalled;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int say(const char *what, const char *text, const char *hint)
{
    fprintf(stderr, "mcpd-decode: %s: %s%s%s\n", what, text, *hint ? ". " : "", hint);
    return 1;
}

static int say_av(const char *what, int error)
{
    char text[AV_ERROR_MAX_STRING_SIZE];
    av_strerror(error, text, sizeof text);
    return say(what, text, "");
}

/* ---- opening ------------------------------------------------------------------------------- */

static int rotation_of(const AVStream *video)
{
    const int32_t *matrix = NULL;
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 31, 102)
    const AVPacketSideData *data = av_packet_side_data_get(
        video->codecpar->coded_side_data, video->codecpar->nb_coded_side_data,
        AV_PKT_DATA_DISPLAYMATRIX);
    if (data != NULL)
        matrix = (const int32_t *)data->data;
#else
    matrix = (const int32_t *)av_stream_get_side_data(video, AV_PKT_DATA_DISPLAYMATRIX, NULL);
#endif
    double degrees = matrix != NULL ? -av_display_rotation_get(matrix) : 0;
    return isfinite(degrees) ? (int)(lround(degrees / 90) % 4 + 4) % 4 * 90 : 0;
}

static int open_codec(struct session *session, const AVCodec *codec)
{
    session->codec = avcodec_alloc_context3(codec);
    if (session->codec == NULL)
        return AVERROR(ENOMEM);
    int result = avcodec_parameters_to_context(session->codec, session->video->codecpar);
    if (result < 0)
        return result;
    session->codec->pkt_timebase = session->video->time_base;
    session->codec->thread_count = (int)session->options.threads;
    session->codec->get_buffer2 = slot_buffers_get;
    session->codec->opaque = session->buffers;
#if LIBAVCODEC_VERSION_MAJOR < 60
    /* The newer versions take it for granted that frame threads may call get_buffer2. */
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
    session->codec->thread_safe_callbacks = 1;
    _Pragma("GCC diagnostic pop")
#endif
    return avcodec_open2(session->codec, codec, NULL);
}

static int open_input(struct session *session)
{
    const char *name = session->options.input;
    const AVCodec *codec = NULL;
    session->input = avformat_alloc_context();
    if (session->input == NULL)
        return say(name, "no memory", "");
    session->input->interrupt_callback.callback = interrupted;
    int result = avformat_open_input(&session->input, name, NULL, NULL);
    if (result >= 0)
        result = avformat_find_stream_info(session->input, NULL);
    if (result >= 0)
        result = av_find_best_stream(session->input, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    if (result < 0)
        return say_av(name, result);
    session->video = session->input->streams[result];
    struct slot_buffers_options how = {
        .name = session->options.stream,
        .pins = (uint32_t)session->options.pins,
        .readers = (uint32_t)session->options.readers,
        .rotation = rotation_of(session->video),
        .stopped = stopped,
    };
    session->buffers = slot_buffers_new(session->client, &how);
    if (session->buffers == NULL)
        return say(name, "no memory", "");
    result = open_codec(session, codec);
    return result < 0 ? say_av(name, result) : 0;
}

/* ---- frames -------------------------------------------------------------------------------- */

static int64_t pts_ns_of(const struct session *session, const AVFrame *frame)
{
    if (frame->best_effort_timestamp == AV_NOPTS_VALUE)
        return MCPD_NO_TIME;
    return av_rescale_q(frame->best_effort_timestamp, session->video->time_base,
                        (AVRational){1, 1000000000});
}

/* Sleeps until the frame is due, counted from the first one. */
static void keep_pace(struct session *session, int64_t pts_ns)
{
    if (!session->options.realtime || pts_ns == MCPD_NO_TIME)
        return;
    if (session->started_ns == 0) {
        session->started_ns = now_ns();
        session->first_pts_ns = pts_ns;
    }
    int64_t due_ns = session->started_ns + pts_ns - session->first_pts_ns;
    struct timespec due = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
    while (!signalled && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
        continue;
}

static int publish(struct session *session, const AVFrame *frame)
{
    struct mcpd_meta meta;
    mcpd_meta_init(&meta);
    meta.pts_ns = pts_ns_of(session, frame);
    keep_pace(session, meta.pts_ns);
    int64_t seq = slot_buffers_publish(session->buffers, frame, &meta);
    if (seq > 0)
        return 0;
    if (seq == -ECANCELED && signalled)
        return 0;
    const struct mcpd_error *error = slot_buffers_error(session->buffers);
    if (error->number == seq)
        return say(session->options.stream, error->message, error->hint);
    return say(session->options.stream, seq == -EPIPE ? "the stream was ended, or the daemon stopped"
                                                      : strerror((int)-seq), "");
}

/* Feeds a packet (NULL: the end) and publishes what comes out. */
static int decode(struct session *session, const AVPacket *packet, AVFrame *frame)
{
    int result = avcodec_send_packet(session->codec, packet);
    if (result < 0 && result != AVERROR_EOF && result != AVERROR_INVALIDDATA) {
        const struct mcpd_error *error = slot_buffers_error(session->buffers);
        return error->number != 0 ? say(session->options.stream, error->message, error->hint)
                                  : say_av("decoder", result);
    }
    while (!signalled && avcodec_receive_frame(session->codec, frame) >= 0) {
        result = publish(session, frame);
        av_frame_unref(frame);
        if (result != 0)
            return result;
    }
    const struct mcpd_error *error = slot_buffers_error(session->buffers);
    return error->number != 0 ? say(session->options.stream, error->message, error->hint) : 0;
}

static int run(struct session *session)
{
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    int status = packet != NULL && frame != NULL ? 0 : say("decoder", "no memory", "");
    int result = 0;
    while (status == 0 && !signalled) {
        result = av_read_frame(session->input, packet);
        if (result < 0)
            break;
        if (packet->stream_index == session->video->index)
            status = decode(session, packet, frame);
        av_packet_unref(packet);
    }
    if (status == 0 && result < 0 && result != AVERROR_EOF && !signalled)
        status = say_av(session->options.input, result);
    if (status == 0 && !signalled)
        status = decode(session, NULL, frame);
    av_frame_free(&frame);
    av_packet_free(&packet);
    return status;
}

static int usage(void)
{
    fprintf(stderr, "usage: mcpd-decode INPUT STREAM [--realtime] [--readers N] [--pins N] "
                    "[--threads N] [--socket PATH]\n");
    return 2;
}

static int parse(int argc, char **argv, struct options *options)
{
    *options = (struct options){.pins = 8, .threads = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--realtime") == 0) {
            options->realtime = 1;
        } else if (argv[i][0] != '-') {
            const char **place = options->input == NULL ? &options->input : &options->stream;
            if (*place != NULL)
                return usage();
            *place = argv[i];
        } else if (i + 1 == argc) {
            return usage();
        } else if (strcmp(argv[i], "--socket") == 0) {
            options->socket = argv[++i];
        } else {
            long *number = strcmp(argv[i], "--readers") == 0   ? &options->readers
                           : strcmp(argv[i], "--pins") == 0    ? &options->pins
                           : strcmp(argv[i], "--threads") == 0 ? &options->threads
                                                               : NULL;
            if (number == NULL)
                return usage();
            char *end;
            *number = strtol(argv[++i], &end, 10);
            if (*end != 0 || *number < 0 || *number > 4000)
                return usage();
        }
    }
    return options->stream != NULL ? 0 : usage();
}

int main(int argc, char **argv)
{
    struct session session = {0};
    struct mcpd_error error;
    int status = parse(argc, argv, &session.options);
    if (status != 0)
        return status;
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    av_log_set_level(AV_LOG_ERROR);
    if (mcpd_connect(session.options.socket, "mcpd-decode", INT64_C(5000000000), &session.client,
                     &error) != 0)
        return say("cannot connect", error.message, error.hint);
    status = open_input(&session);
    if (status == 0)
        status = run(&session);
    avcodec_free_context(&session.codec); /* lets go of every slot */
    avformat_close_input(&session.input);
    if (session.buffers != NULL) {
        struct slot_buffers_counts counts = slot_buffers_counts(session.buffers);
        fprintf(stderr, "mcpd-decode: in_place=%" PRIu64 " copied=%" PRIu64 " streams=%" PRIu64 "\n",
                counts.in_place, counts.copied, counts.streams);
    }
    slot_buffers_free(session.buffers);
    mcpd_close(session.client);
    return status;
}
