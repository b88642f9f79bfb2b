/*
 * Decodes a clip again and again and prints the CPU time of each pass, for bench/decode.py.
 *
 *   decode MODE CLIP THREADS PASSES [SOCKET]
 *
 * MODE: alone (libavcodec's own buffers), slots (get_buffer2 in a stream's slots), copy (its own
 * buffers, each frame copied into a slot). A first pass is not counted: it makes stream and buffers.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "slot_buffers.h"

static struct slot_buffers *buffers;
static int64_t frames;

static _Noreturn void die(const char *what, const char *text)
{
    fprintf(stderr, "decode: %s: %s\n", what, text);
    exit(1);
}

static int never(void)
{
    return 0;
}

static int64_t cpu_ns(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * INT64_C(1000000000) +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * INT64_C(1000);
}

static void receive(AVCodecContext *codec, AVFrame *frame)
{
    while (avcodec_receive_frame(codec, frame) >= 0) {
        if (buffers != NULL) {
            struct mcpd_meta meta;
            mcpd_meta_init(&meta);
            if (slot_buffers_publish(buffers, frame, &meta) <= 0)
                die("publish", slot_buffers_error(buffers)->message);
        }
        frames++;
        av_frame_unref(frame);
    }
}

static void pass(AVFormatContext *input, AVCodecContext *codec, int index)
{
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    if (av_seek_frame(input, index, 0, AVSEEK_FLAG_BACKWARD) < 0)
        die("clip", "cannot seek");
    while (av_read_frame(input, packet) >= 0) {
        if (packet->stream_index == index && avcodec_send_packet(codec, packet) < 0)
            die("clip", "cannot decode");
        receive(codec, frame);
        av_packet_unref(packet);
    }
    avcodec_send_packet(codec, NULL);
    receive(codec, frame);
    avcodec_flush_buffers(codec);
    av_frame_free(&frame);
    av_packet_free(&packet);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        die("usage", "decode MODE CLIP THREADS PASSES [SOCKET]");
    int alone = strcmp(argv[1], "alone") == 0, passes = atoi(argv[4]);
    mcpd_client *client = NULL;
    struct mcpd_error error;
    AVFormatContext *input = NULL;
    const AVCodec *decoder = NULL;
    if (avformat_open_input(&input, argv[2], NULL, NULL) < 0 ||
        avformat_find_stream_info(input, NULL) < 0)
        die(argv[2], "cannot open");
    int index = av_find_best_stream(input, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
    AVCodecContext *codec = index >= 0 ? avcodec_alloc_context3(decoder) : NULL;
    if (codec == NULL ||
        avcodec_parameters_to_context(codec, input->streams[index]->codecpar) < 0)
        die(argv[2], "has no video");
    codec->thread_count = atoi(argv[3]);
    if (!alone) {
        struct slot_buffers_options how = {.name = "bench", .pins = 2, .stopped = never,
                                           .copy = strcmp(argv[1], "copy") == 0};
        if (mcpd_connect(argc > 5 ? argv[5] : NULL, "bench", INT64_C(5000000000), &client,
                         &error) != 0)
            die("connect", error.message);
        buffers = slot_buffers_new(client, &how);
        codec->get_buffer2 = slot_buffers_get;
        codec->opaque = buffers;
#if LIBAVCODEC_VERSION_MAJOR < 60
        _Pragma("GCC diagnostic push")
            _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
                codec->thread_safe_callbacks = 1;
        _Pragma("GCC diagnostic pop")
#endif
    }
    if (avcodec_open2(codec, decoder, NULL) < 0)
        die(argv[2], "cannot open the decoder");
    pass(input, codec, index);
    for (int i = 0; i < passes; i++) {
        int64_t before_ns = cpu_ns(), before = frames;
        pass(input, codec, index);
        printf("%" PRId64 " %" PRId64 "\n", cpu_ns() - before_ns, frames - before);
    }
    avcodec_free_context(&codec);
    avformat_close_input(&input);
    if (buffers != NULL) {
        struct slot_buffers_counts counts = slot_buffers_counts(buffers);
        fprintf(stderr, "in_place %" PRIu64 " copied %" PRIu64 "\n", counts.in_place, counts.copied);
        slot_buffers_free(buffers);
        mcpd_close(client);
    }
    return 0;
}
