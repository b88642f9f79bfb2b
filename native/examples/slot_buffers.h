/*
 * libavcodec decodes straight into the slots of a stream.
 *
 * Give the codec context `get_buffer2 = slot_buffers_get` and `opaque = buffers`; publish each frame
 * that comes out with slot_buffers_publish. A slot is the writer's until libavcodec lets go of the
 * buffer: as long as it is a reference frame it is held and not written to again. The stream is made
 * when the first picture's size is known, and made anew, under the same name, when it changes.
 *
 * Where a picture cannot be decoded into a slot (a codec without direct rendering, more frames held
 * than foreseen, one shown twice) it is copied into one, and counted.
 */
#ifndef SLOT_BUFFERS_H
#define SLOT_BUFFERS_H

#include <libavcodec/avcodec.h>
#include <mcpd_client.h>

struct slot_buffers;

struct slot_buffers_options {
    const char *name;     /* of the stream */
    uint32_t pins;        /* slots for readers to pin, all of them together */
    uint32_t readers;     /* the first frame waits until there are so many */
    int rotation;         /* degrees clockwise to show the picture upright */
    int copy;             /* 1: never in place; for comparison */
    int (*stopped)(void); /* whether to give up waiting */
};

struct slot_buffers_counts {
    uint64_t in_place, copied, streams;
};

struct slot_buffers *slot_buffers_new(mcpd_client *client, const struct slot_buffers_options *options);
/* After the codec context was freed: ends the stream. */
void slot_buffers_free(struct slot_buffers *buffers);
/* As AVCodecContext.get_buffer2; safe for frame threads. */
int slot_buffers_get(AVCodecContext *context, AVFrame *frame, int flags);
/*
 * Publishes a frame that the decoder gave, in the order it gives them. Fills in nbytes and the key
 * frame's flag of meta. Returns its sequence number, or a negative errno: -EPIPE: the stream has
 * ended, -ECANCELED: stopped; slot_buffers_error tells more.
 */
int64_t slot_buffers_publish(struct slot_buffers *buffers, const AVFrame *frame,
                             struct mcpd_meta *meta);
const struct mcpd_error *slot_buffers_error(const struct slot_buffers *buffers);
struct slot_buffers_counts slot_buffers_counts(const struct slot_buffers *buffers);

#endif
