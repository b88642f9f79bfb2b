/*
 * libavcodec's buffers in the slots of a stream (slot_buffers.h).
 */
#define _POSIX_C_SOURCE 200809L
#include "picture.h"
#include "slot_buffers.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>

#define LOOK_NS INT64_C(100000000) /* how often a wait looks whether it is to stop */

struct holder {
    struct target *target;
    uint32_t slot;
    int published;
};

/* One stream; it stays mapped until the decoder has let go of its last slot. */
struct target {
    struct slot_buffers *buffers;
    mcpd_stream *stream;
    mcpd_writer *writer;
    uint8_t *base; /* of slot 0 */
    struct picture_layout layout;
    int width, height; /* as shown */
    uint32_t lent;     /* slots that an AVBufferRef stands for */
    int retired;
    int begun; /* its first frame was published */
    struct holder holders[MCPD_MAX_SLOTS];
};

struct slot_buffers {
    mcpd_client *client;
    struct slot_buffers_options options;
    pthread_mutex_t mutex; /* frame threads ask for buffers and give them back */
    struct target *target;
    struct picture_layout latest; /* of the buffer asked for last */
    uint32_t holds;       /* that the codec may need */
    int failed;           /* the stream could not be made: a negative errno */
    struct mcpd_error error;
    struct slot_buffers_counts counts;
};

static int fail(struct slot_buffers *buffers, int number, const char *message, const char *hint)
{
    memset(&buffers->error, 0, sizeof buffers->error);
    buffers->error.number = number;
    snprintf(buffers->error.message, sizeof buffers->error.message, "%s", message);
    snprintf(buffers->error.hint, sizeof buffers->error.hint, "%s", hint);
    return number;
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Under the mutex. */
static void close_if_unused(struct target *target)
{
    if (!target->retired || target->lent > 0)
        return;
    mcpd_stream_close(target->stream);
    free(target);
}

/* Ends the stream; its slots stay until the decoder has let go of them. */
static void retire(struct slot_buffers *buffers)
{
    struct target *target = buffers->target;
    if (target == NULL)
        return;
    buffers->target = NULL;
    (void)mcpd_stream_end(target->stream, NULL);
    target->retired = 1;
    close_if_unused(target);
}

static void picture_of(const struct slot_buffers *buffers, const AVFrame *frame,
                       struct mcpd_frame *picture)
{
    memset(picture, 0, sizeof *picture);
    picture->format = picture_format(frame->format);
    picture->width = (uint32_t)frame->width;
    picture->height = (uint32_t)frame->height;
    picture->rotation = (uint32_t)buffers->options.rotation;
    picture->matrix = picture_matrix(frame);
    picture->range = frame->color_range == AVCOL_RANGE_JPEG || frame->format == AV_PIX_FMT_YUVJ420P
                         ? MCPD_FULL : MCPD_LIMITED;
}

/* Makes the stream for pictures of this layout, shown as width x height. Under the mutex. */
static int make_stream(struct slot_buffers *buffers, const AVFrame *frame, int width, int height,
                       const struct picture_layout *layout)
{
    struct mcpd_stream_options options = {.holds = buffers->holds, .history = 1,
                                          .slot_nbytes = layout->nbytes};
    picture_of(buffers, frame, &options.frame);
    options.frame.width = (uint32_t)width;
    options.frame.height = (uint32_t)height;
    for (int i = 0; i < MCPD_MAX_PLANES; i++) {
        options.frame.offset[i] = layout->offset[i];
        options.frame.stride[i] = (uint64_t)layout->stride[i];
    }
    options.slots = options.history + options.holds + buffers->options.pins + 1;
    struct target *target = calloc(1, sizeof *target);
    if (target == NULL)
        return fail(buffers, -ENOMEM, "no memory", "");
    int result = mcpd_create_stream(buffers->client, buffers->options.name, &options,
                                    &target->stream, &buffers->error);
    if (result != 0) {
        free(target);
        return result;
    }
    target->buffers = buffers;
    target->writer = mcpd_stream_writer(target->stream);
    target->base = mcpd_writer_slot(target->writer, 0);
    target->layout = *layout;
    target->width = width;
    target->height = height;
    for (uint32_t slot = 0; slot < options.slots; slot++)
        target->holders[slot] = (struct holder){.target = target, .slot = slot};
    buffers->target = target;
    buffers->counts.streams++;
    return 0;
}

/* Waits for a slot as long as a reader that must see every frame is behind. */
static int acquire(struct slot_buffers *buffers, struct target *target)
{
    int slot;
    do
        slot = mcpd_writer_acquire(target->writer, LOOK_NS);
    while ((slot == -ETIMEDOUT || slot == -EINTR) && !buffers->options.stopped());
    return slot == -ETIMEDOUT || slot == -EINTR ? -ECANCELED : slot;
}

/* ---- the decoder's side -------------------------------------------------------------------- */

/* libavcodec and everybody else has let go of the buffer. Any thread. */
static void let_go(void *opaque, uint8_t *data)
{
    struct holder *holder = opaque;
    struct target *target = holder->target;
    struct slot_buffers *buffers = target->buffers;
    (void)data;
    pthread_mutex_lock(&buffers->mutex);
    if (holder->published)
        mcpd_writer_release(target->writer, holder->slot);
    else
        mcpd_writer_abandon(target->writer, holder->slot); /* decoded, and never shown */
    target->lent--;
    close_if_unused(target);
    pthread_mutex_unlock(&buffers->mutex);
}

/* Whether the buffer can be a slot of the stream, which is made for the first one. */
static struct target *target_for(struct slot_buffers *buffers, AVCodecContext *context,
                                 const AVFrame *frame)
{
    const struct picture_layout *latest = &buffers->latest;
    if (buffers->options.copy || !(context->codec->capabilities & AV_CODEC_CAP_DR1) ||
        picture_format(frame->format) == 0 || picture_plan(context, frame, &buffers->latest) < 0)
        return NULL;
    if (buffers->holds == 0)
        buffers->holds = picture_holds(context);
    if (buffers->target == NULL && buffers->counts.streams == 0 && buffers->failed == 0)
        buffers->failed = make_stream(buffers, frame, context->width, context->height, latest);
    struct target *target = buffers->target;
    int fits = target != NULL && target->layout.format == latest->format &&
               target->layout.width == latest->width && target->layout.height == latest->height;
    return fits ? target : NULL;
}

int slot_buffers_get(AVCodecContext *context, AVFrame *frame, int flags)
{
    struct slot_buffers *buffers = context->opaque;
    pthread_mutex_lock(&buffers->mutex);
    struct target *target = target_for(buffers, context, frame);
    if (target != NULL)
        target->lent++; /* so that it stays while this waits */
    int failed = buffers->failed;
    pthread_mutex_unlock(&buffers->mutex);
    if (failed != 0)
        return AVERROR(-failed);
    if (target == NULL)
        return avcodec_default_get_buffer2(context, frame, flags);
    int slot = acquire(buffers, target);
    AVBufferRef *buffer = NULL;
    if (slot >= 0) {
        struct holder *holder = &target->holders[slot];
        holder->published = 0;
        size_t slot_nbytes = mcpd_stream_grant(target->stream)->geometry.slot_nbytes;
        /* Read-only: a decoder that draws on its last picture must not do so in a published one. */
        buffer = av_buffer_create(mcpd_writer_slot(target->writer, (uint32_t)slot), slot_nbytes,
                                  let_go, holder, AV_BUFFER_FLAG_READONLY);
        if (buffer == NULL)
            mcpd_writer_abandon(target->writer, (uint32_t)slot);
    }
    if (buffer == NULL) {
        pthread_mutex_lock(&buffers->mutex);
        target->lent--;
        close_if_unused(target);
        pthread_mutex_unlock(&buffers->mutex);
        if (slot == -EBUSY) /* it holds more than foreseen: this one is copied later */
            return avcodec_default_get_buffer2(context, frame, flags);
        return AVERROR(slot < 0 ? -slot : ENOMEM);
    }
    frame->buf[0] = buffer;
    for (int i = 0; i < 4; i++) {
        frame->data[i] = target->layout.stride[i] > 0 ? buffer->data + target->layout.offset[i]
                                                      : NULL;
        frame->linesize[i] = target->layout.stride[i];
    }
    frame->extended_data = frame->data;
    return 0;
}

/* ---- the frames that come out -------------------------------------------------------------- */

static int wait_for_readers(struct slot_buffers *buffers)
{
    struct timespec pause = {.tv_nsec = 10000000};
    uint32_t wanted = buffers->options.readers;
    while (!buffers->target->begun && mcpd_stream_nreaders(buffers->target->stream) < (int)wanted) {
        if (buffers->options.stopped())
            return -ECANCELED;
        if (mcpd_stream_ended(buffers->target->stream) != MCPD_LIVE)
            return -EPIPE;
        nanosleep(&pause, NULL);
    }
    buffers->target->begun = 1;
    return 0;
}

/* The stream that frames like this one go to, made anew if it is of another size or format. */
static int follow_geometry(struct slot_buffers *buffers, const AVFrame *frame)
{
    struct target *target = buffers->target;
    if (target != NULL && target->layout.format == frame->format &&
        target->width == frame->width && target->height == frame->height)
        return 0;
    if (picture_format(frame->format) == 0) {
        char text[160];
        const char *name = av_get_pix_fmt_name(frame->format);
        snprintf(text, sizeof text, "a slot cannot carry pictures of format %s",
                 name != NULL ? name : "?");
        return fail(buffers, -EINVAL, text, "Convert to yuv420p first, say.");
    }
    struct picture_layout layout = buffers->latest;
    if (layout.format != frame->format || layout.width < frame->width ||
        layout.height < frame->height) { /* the codec never asked for a buffer of ours */
        if (picture_plain_layout(frame, &layout) != 0)
            return fail(buffers, -EINVAL, "a slot cannot carry pictures of this size",
                        "Sides are at most 16384 pixels.");
    }
    if (buffers->holds == 0)
        buffers->holds = 2;
    retire(buffers);
    return make_stream(buffers, frame, frame->width, frame->height, &layout);
}

/* The slot that the picture lies in, -1 if in none that could be published. Under the mutex. */
static int slot_of(const struct target *target, const AVFrame *frame)
{
    const struct mcpd_geometry *geometry = &mcpd_stream_grant(target->stream)->geometry;
    uintptr_t at = (uintptr_t)frame->data[0], base = (uintptr_t)target->base;
    if (at < base || at >= base + geometry->slot_nbytes * geometry->nslots)
        return -1;
    uint32_t slot = (uint32_t)((at - base) / geometry->slot_nbytes);
    return target->holders[slot].published ? -1 : (int)slot;
}

static int copy_picture(struct slot_buffers *buffers, const AVFrame *frame)
{
    struct target *target = buffers->target;
    int slot = acquire(buffers, target);
    if (slot < 0)
        return slot;
    uint8_t *data[4], *base = mcpd_writer_slot(target->writer, (uint32_t)slot);
    for (int i = 0; i < 4; i++)
        data[i] = base + target->layout.offset[i];
    av_image_copy(data, target->layout.stride, (const uint8_t **)frame->data, frame->linesize,
                  frame->format, frame->width, frame->height);
    return slot;
}

/* Describes the planes where they are: a decoder crops by moving its pointers. */
static int describe(struct slot_buffers *buffers, const AVFrame *frame, uint32_t slot, int in_place,
                    struct mcpd_meta *meta)
{
    struct target *target = buffers->target;
    struct mcpd_frame picture;
    picture_of(buffers, frame, &picture);
    const uint8_t *base = mcpd_writer_slot(target->writer, slot);
    for (int i = 0; i < MCPD_MAX_PLANES && target->layout.stride[i] > 0; i++) {
        picture.offset[i] =
            in_place ? (uint64_t)(frame->data[i] - base) : target->layout.offset[i];
        picture.stride[i] =
            in_place ? (uint64_t)frame->linesize[i] : (uint64_t)target->layout.stride[i];
    }
    uint64_t slot_nbytes = mcpd_stream_grant(target->stream)->geometry.slot_nbytes;
    meta->nbytes = target->layout.nbytes;
    return mcpd_describe_frame(mcpd_writer_description(target->writer, slot), slot_nbytes, &picture);
}

int64_t slot_buffers_publish(struct slot_buffers *buffers, const AVFrame *frame,
                             struct mcpd_meta *meta)
{
    pthread_mutex_lock(&buffers->mutex);
    int64_t result = follow_geometry(buffers, frame);
    int slot = result == 0 ? slot_of(buffers->target, frame) : -1;
    pthread_mutex_unlock(&buffers->mutex);
    int in_place = slot >= 0;
    if (result == 0)
        result = wait_for_readers(buffers);
    if (result == 0 && !in_place)
        result = slot = copy_picture(buffers, frame);
    if (result < 0)
        return result;
    if (picture_is_key(frame))
        meta->flags |= MCPD_FLAG_KEYFRAME;
    mcpd_writer *writer = buffers->target->writer;
    result = describe(buffers, frame, (uint32_t)slot, in_place, meta);
    pthread_mutex_lock(&buffers->mutex);
    /* Held: the decoder may look at it for long; `frame` itself does until the caller unrefs it. */
    if (result == 0)
        result = mcpd_writer_publish(writer, (uint32_t)slot, meta, in_place);
    if (result > 0 && in_place)
        buffers->target->holders[slot].published = 1;
    pthread_mutex_unlock(&buffers->mutex);
    if (result <= 0 && !in_place)
        mcpd_writer_abandon(writer, (uint32_t)slot);
    if (result > 0)
        *(in_place ? &buffers->counts.in_place : &buffers->counts.copied) += 1;
    return result;
}

/* ---- life ---------------------------------------------------------------------------------- */

struct slot_buffers *slot_buffers_new(mcpd_client *client, const struct slot_buffers_options *options)
{
    struct slot_buffers *buffers = calloc(1, sizeof *buffers);
    if (buffers == NULL)
        return NULL;
    buffers->client = client;
    buffers->options = *options;
    buffers->latest.format = AV_PIX_FMT_NONE;
    pthread_mutex_init(&buffers->mutex, NULL);
    return buffers;
}

void slot_buffers_free(struct slot_buffers *buffers)
{
    if (buffers == NULL)
        return;
    pthread_mutex_lock(&buffers->mutex);
    retire(buffers);
    pthread_mutex_unlock(&buffers->mutex);
    pthread_mutex_destroy(&buffers->mutex);
    free(buffers);
}

const struct mcpd_error *slot_buffers_error(const struct slot_buffers *buffers)
{
    return &buffers->error;
}

struct slot_buffers_counts slot_buffers_counts(const struct slot_buffers *buffers)
{
    return buffers->counts;
}
