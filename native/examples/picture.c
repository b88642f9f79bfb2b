/*
 * What libavcodec's pictures are in a slot (picture.h).
 */
#include "picture.h"

#include <errno.h>

#include <libavutil/imgutils.h>

#define STRIDE_ALIGN 64 /* the most that any of libavcodec's code wants */
#define PLANE_PADDING (16 + STRIDE_ALIGN) /* read beyond a plane's end, never shown */
#define HD_HEIGHT 720

uint32_t picture_format(int format)
{
    switch (format) {
    case AV_PIX_FMT_YUV420P:
    case AV_PIX_FMT_YUVJ420P:
        return MCPD_I420;
    case AV_PIX_FMT_NV12:
        return MCPD_NV12;
    case AV_PIX_FMT_GRAY8:
        return MCPD_GRAY8;
    case AV_PIX_FMT_RGB24:
        return MCPD_RGB24;
    case AV_PIX_FMT_BGR24:
        return MCPD_BGR24;
    case AV_PIX_FMT_RGBA:
        return MCPD_RGBA;
    case AV_PIX_FMT_BGRA:
        return MCPD_BGRA;
    case AV_PIX_FMT_YUYV422:
        return MCPD_YUYV422;
    }
    return 0;
}

uint32_t picture_matrix(const AVFrame *frame)
{
    switch (frame->colorspace) {
    case AVCOL_SPC_FCC:
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M:
        return MCPD_BT601;
    case AVCOL_SPC_BT709:
    case AVCOL_SPC_SMPTE240M:
    case AVCOL_SPC_BT2020_NCL:
    case AVCOL_SPC_BT2020_CL:
        return MCPD_BT709;
    default: /* it does not tell: as players assume */
        return frame->height >= HD_HEIGHT ? MCPD_BT709 : MCPD_BT601;
    }
}

int picture_is_key(const AVFrame *frame)
{
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 29, 100)
    return (frame->flags & AV_FRAME_FLAG_KEY) != 0;
#else
    return frame->key_frame;
#endif
}

/*
 * As libavcodec's own allocator does it: the size the codec writes beyond the picture, rows at
 * multiples of what its vector code wants, padding that it may read.
 */
int picture_plan(AVCodecContext *context, const AVFrame *frame, struct picture_layout *layout)
{
    int width = frame->width, height = frame->height;
    int align[AV_NUM_DATA_POINTERS];
    avcodec_align_dimensions2(context, &width, &height, align);
    int aligned;
    do {
        int result = av_image_fill_linesizes(layout->stride, frame->format, width);
        if (result < 0)
            return result;
        width += width & ~(width - 1); /* the next multiple of a higher power of two */
        aligned = 1;
        for (int i = 0; i < 4; i++)
            aligned &= layout->stride[i] % STRIDE_ALIGN == 0 &&
                       (align[i] == 0 || layout->stride[i] % align[i] == 0);
    } while (!aligned);
    ptrdiff_t strides[4];
    size_t sizes[4];
    for (int i = 0; i < 4; i++)
        strides[i] = layout->stride[i];
    int result = av_image_fill_plane_sizes(sizes, frame->format, height, strides);
    if (result < 0)
        return result;
    layout->format = frame->format;
    layout->width = frame->width;
    layout->height = frame->height;
    layout->nbytes = 0;
    for (int i = 0; i < MCPD_MAX_PLANES; i++) {
        layout->offset[i] = layout->nbytes;
        if (sizes[i] > 0)
            layout->nbytes += (sizes[i] + PLANE_PADDING + STRIDE_ALIGN - 1) / STRIDE_ALIGN *
                              STRIDE_ALIGN;
    }
    return 0;
}

/* Frames that the codec refers to or holds back, those its threads work on, and a few to spare. */
uint32_t picture_holds(const AVCodecContext *context)
{
    int frames;
    switch (context->codec_id) {
    case AV_CODEC_ID_H264:
        frames = context->refs + 1;
        break;
    case AV_CODEC_ID_HEVC:
        frames = 17;
        break;
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
        frames = 10;
        break;
    default:
        frames = 4;
    }
    if (context->active_thread_type & FF_THREAD_FRAME)
        frames += context->thread_count;
    return (uint32_t)(frames + context->has_b_frames + 3);
}

int picture_plain_layout(const AVFrame *frame, struct picture_layout *layout)
{
    struct mcpd_frame plain = {.format = picture_format(frame->format),
                               .width = (uint32_t)frame->width,
                               .height = (uint32_t)frame->height};
    int64_t nbytes = mcpd_frame_layout(&plain);
    if (nbytes < 0)
        return -EINVAL;
    *layout = (struct picture_layout){.format = frame->format, .width = frame->width,
                                      .height = frame->height, .nbytes = (uint64_t)nbytes};
    for (int i = 0; i < MCPD_MAX_PLANES; i++) {
        layout->offset[i] = plain.offset[i];
        layout->stride[i] = (int)plain.stride[i];
    }
    return 0;
}
