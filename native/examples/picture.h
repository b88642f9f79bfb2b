/*
 * What libavcodec's pictures are in a slot: format, colours, and the places of their planes.
 */
#ifndef PICTURE_H
#define PICTURE_H

#include <libavcodec/avcodec.h>
#include <mcpd_client.h>

/* Where planes lie in a slot, with the padding that the decoder wants. */
struct picture_layout {
    int format, width, height; /* as decoded, before cropping */
    uint64_t offset[MCPD_MAX_PLANES];
    int stride[4];
    uint64_t nbytes;
};

uint32_t picture_format(int format); /* enum mcpd_format of an AVPixelFormat; 0: a slot has none */
uint32_t picture_matrix(const AVFrame *frame);
int picture_is_key(const AVFrame *frame);
/*
 * Where the planes of a buffer for this frame lie: with the size that the codec writes beyond the
 * picture, rows at multiples of what its vector code wants, and padding that it may read.
 */
int picture_plan(AVCodecContext *context, const AVFrame *frame, struct picture_layout *layout);
/* For pictures that are copied into slots: as mcpd itself lays them out. -EINVAL: no such size. */
int picture_plain_layout(const AVFrame *frame, struct picture_layout *layout);
/* Frames that the codec refers to or holds back, those its threads work on, and a few to spare. */
uint32_t picture_holds(const AVCodecContext *context);

#endif
