/*
 * Images in slots: where the planes of a format lie, described by a writer and checked for a reader.
 *
 * A description in shared memory is another process's: it is copied once, then checked, so that
 * nothing made of it reaches out of the slot.
 */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "describe.h"
#include "layout.h"

/* Of each plane: pixels to a sample across and down, bytes of a sample. */
struct shape {
    uint8_t across, down, nbytes;
};

static const struct format {
    const char *name;
    uint8_t nplanes;
    struct shape planes[3];
} formats[] = {
    [MCPD_RGB24] = {"rgb24", 1, {{1, 1, 3}}},
    [MCPD_BGR24] = {"bgr24", 1, {{1, 1, 3}}},
    [MCPD_RGBA] = {"rgba", 1, {{1, 1, 4}}},
    [MCPD_BGRA] = {"bgra", 1, {{1, 1, 4}}},
    [MCPD_GRAY8] = {"gray8", 1, {{1, 1, 1}}},
    [MCPD_NV12] = {"nv12", 2, {{1, 1, 1}, {2, 2, 2}}},
    [MCPD_I420] = {"i420", 3, {{1, 1, 1}, {2, 2, 1}, {2, 2, 1}}},
    /* Every second pixel's chroma is shared: two pixels are one sample of four bytes. */
    [MCPD_YUYV422] = {"yuyv422", 1, {{2, 1, 4}}},
    [MCPD_JPEG] = {"jpeg", 0, {{0, 0, 0}}},
    [MCPD_H264] = {"h264", 0, {{0, 0, 0}}},
};

static const struct format *format_of(uint32_t code)
{
    const struct format *found = code < sizeof formats / sizeof *formats ? &formats[code] : NULL;
    return found != NULL && found->name != NULL ? found : NULL;
}

const char *mcpd_format_name(uint32_t format)
{
    const struct format *found = format_of(format);
    return found != NULL ? found->name : NULL;
}

void mcpd_meta_init(struct mcpd_meta *meta)
{
    memset(meta, 0, sizeof *meta);
    meta->pts_ns = meta->capture_ns = meta->publish_ns = meta->deadline_ns = MCPD_NO_TIME;
    meta->source_publish_ns = meta->awake_ns = meta->finish_ns = MCPD_NO_TIME;
    meta->device_event = -1;
}

/* Kind, planes, rows and bytes of a row, as the format has them. */
int mcpd_frame_shape(struct mcpd_frame *frame)
{
    const struct format *format = format_of(frame->format);
    if (format == NULL || frame->width < 1 || frame->width > MCPD_MAX_SIDE || frame->height < 1 ||
        frame->height > MCPD_MAX_SIDE || frame->rotation % 90 != 0 || frame->rotation > 270 ||
        (frame->format == MCPD_YUYV422 && frame->width % 2 != 0))
        return -EINVAL;
    frame->nplanes = format->nplanes;
    frame->kind = format->nplanes > 0 ? MCPD_FRAME : MCPD_ENCODED;
    for (uint32_t i = 0; i < MCPD_MAX_PLANES; i++)
        frame->rows[i] = frame->row_nbytes[i] = 0;
    for (uint32_t i = 0; i < format->nplanes; i++) {
        const struct shape *shape = &format->planes[i];
        frame->rows[i] = (frame->height + shape->down - 1) / shape->down;
        frame->row_nbytes[i] =
            (uint64_t)((frame->width + shape->across - 1) / shape->across) * shape->nbytes;
    }
    return 0;
}

int64_t mcpd_frame_layout(struct mcpd_frame *frame)
{
    if (mcpd_frame_shape(frame) != 0)
        return -EINVAL;
    uint64_t offset = 0;
    frame->nbytes = 0;
    memset(frame->offset, 0, sizeof frame->offset);
    memset(frame->stride, 0, sizeof frame->stride);
    for (uint32_t i = 0; i < frame->nplanes; i++) {
        frame->offset[i] = offset;
        frame->stride[i] = mcpd_align(frame->row_nbytes[i]);
        frame->nbytes = offset + frame->stride[i] * (frame->rows[i] - 1) + frame->row_nbytes[i];
        offset += frame->stride[i] * frame->rows[i];
    }
    return (int64_t)offset;
}

/* Sets nbytes; -EINVAL when a plane reaches out of the slot. No sum here can overflow: rows are
 * at most 2^14, strides and offsets at most 2^40. */
int mcpd_frame_measure(struct mcpd_frame *frame, uint64_t slot_nbytes)
{
    frame->nbytes = 0;
    for (uint32_t i = 0; i < frame->nplanes; i++) {
        if (frame->stride[i] < frame->row_nbytes[i] || frame->stride[i] > MCPD_MAX_SLOT_NBYTES ||
            frame->offset[i] > MCPD_MAX_SLOT_NBYTES)
            return -EINVAL;
        uint64_t end =
            frame->offset[i] + frame->stride[i] * (frame->rows[i] - 1) + frame->row_nbytes[i];
        if (end > slot_nbytes)
            return -EINVAL;
        if (end > frame->nbytes)
            frame->nbytes = end;
    }
    return 0;
}

int mcpd_describe_frame(struct mcpd_description *description, uint64_t slot_nbytes,
                        const struct mcpd_frame *frame)
{
    struct mcpd_frame whole = *frame;
    if (mcpd_frame_shape(&whole) != 0 || mcpd_frame_measure(&whole, slot_nbytes) != 0)
        return -EINVAL;
    struct mcpd_description head = {
        .kind = whole.kind, .format = whole.format, .width = whole.width, .height = whole.height,
        .rotation = whole.rotation, .matrix = (uint8_t)whole.matrix, .range = (uint8_t)whole.range,
        .nplanes = whole.nplanes,
    };
    for (uint32_t i = 0; i < whole.nplanes; i++) {
        head.plane_offset[i] = whole.offset[i];
        head.plane_stride[i] = whole.stride[i];
    }
    memcpy(description, &head, offsetof(struct mcpd_description, tensors));
    return 0;
}

int mcpd_frame_read(const struct mcpd_description *shared, uint64_t slot_nbytes,
                      struct mcpd_frame *frame)
{
    struct mcpd_description head;
    memcpy(&head, shared, offsetof(struct mcpd_description, tensors));
    memset(frame, 0, sizeof *frame);
    if (head.kind == MCPD_BUNDLE) {
        frame->kind = MCPD_BUNDLE;
        return 0;
    }
    frame->format = head.format;
    frame->width = head.width;
    frame->height = head.height;
    frame->rotation = head.rotation;
    frame->matrix = head.matrix;
    frame->range = head.range;
    if (mcpd_frame_shape(frame) != 0 || frame->kind != head.kind || frame->nplanes != head.nplanes)
        return -EBADMSG;
    memcpy(frame->offset, head.plane_offset, sizeof frame->offset);
    memcpy(frame->stride, head.plane_stride, sizeof frame->stride);
    return mcpd_frame_measure(frame, slot_nbytes) == 0 ? 0 : -EBADMSG;
}
