/*
 * What a stream's slots hold: options completed for its writer, slots described and read by handle.
 */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "describe.h"
#include "layout.h"

static int image_extent(struct mcpd_frame *frame, uint64_t *extent)
{
    int placed = 0;
    for (uint32_t i = 0; i < MCPD_MAX_PLANES; i++)
        placed |= frame->stride[i] != 0;
    int64_t nbytes = placed ? 0 : mcpd_frame_layout(frame);
    if (nbytes < 0 || mcpd_frame_shape(frame) != 0 || mcpd_frame_measure(frame, MCPD_MAX_SLOT_NBYTES) != 0)
        return -EINVAL;
    *extent = placed ? frame->nbytes : (uint64_t)nbytes;
    return 0;
}

/* Says what image_extent refused: the image, or the first of its planes that cannot be. */
static int refuse_image(struct mcpd_frame frame, struct mcpd_error *error)
{
    if (mcpd_frame_shape(&frame) != 0)
        return mcpd_fail(error, "invalid", "Sides are 1 to 16384, yuyv422's width is even.",
                         "format %u with %u x %u pixels, rotation %u", frame.format, frame.width,
                         frame.height, frame.rotation);
    uint32_t plane = 0, nplanes = frame.nplanes;
    for (frame.nplanes = 1; frame.nplanes < nplanes; frame.nplanes++, plane++)
        if (mcpd_frame_measure(&frame, MCPD_MAX_SLOT_NBYTES) != 0)
            break;
    unsigned long long stride = frame.stride[plane], row = frame.row_nbytes[plane];
    if (stride < row)
        return mcpd_fail(error, "invalid", "Give a stride of every plane, or of none.",
                         "plane %u has a stride of %llu bytes, its rows have %llu", plane, stride,
                         row);
    return mcpd_fail(error, "invalid", "Give bytes from the slot's start, and from row to row.",
                     "plane %u with offset %llu, stride %llu and %llu rows does not fit a slot; "
                     "a slot has at most %llu bytes",
                     plane, (unsigned long long)frame.offset[plane], stride,
                     (unsigned long long)frame.rows[plane],
                     (unsigned long long)MCPD_MAX_SLOT_NBYTES);
}

int mcpd_options_complete(const struct mcpd_stream_options *options,
                          struct mcpd_stream_options *whole, struct mcpd_tensor_view *tensors,
                          struct mcpd_error *error)
{
    uint64_t extent = 0;
    *whole = *options;
    whole->slots = options->slots != 0 ? options->slots : 8;
    whole->holds = options->holds != 0 ? options->holds : 2;
    whole->history = options->history != 0 ? options->history : 1;
    if (options->ntensors > MCPD_MAX_TENSORS || (options->ntensors > 0 && whole->frame.format != 0))
        return mcpd_fail(error, "invalid", "A stream has an image, or up to 16 tensors.",
                         "%u tensors, and image format %u", options->ntensors,
                         whole->frame.format);
    if (whole->frame.format != 0 && image_extent(&whole->frame, &extent) != 0)
        return refuse_image(whole->frame, error);
    if (options->ntensors > 0) {
        memcpy(tensors, options->tensors, options->ntensors * sizeof *tensors);
        whole->tensors = tensors;
        extent = mcpd_tensors_extent(tensors, options->ntensors);
        if (extent > MCPD_MAX_SLOT_NBYTES)
            return mcpd_fail(error, "invalid", "See struct mcpd_tensor_view.",
                             "a tensor has no name, an unknown dtype, or a place it cannot have");
    }
    if (whole->slot_nbytes == 0)
        whole->slot_nbytes = extent;
    if (whole->slot_nbytes == 0)
        return mcpd_fail(error, "invalid", "Say how large a slot must be.",
                         "slot_nbytes is 0, and no image or tensors tell");
    if (extent > whole->slot_nbytes)
        return mcpd_fail(error, "limit", "Leave slot_nbytes out.",
                         "a slot is to hold %llu bytes, slot_nbytes is %llu",
                         (unsigned long long)extent, (unsigned long long)whole->slot_nbytes);
    return 0;
}

int mcpd_stream_describe(mcpd_stream *stream, uint32_t slot)
{
    struct mcpd_description *description =
        stream->writer != NULL ? mcpd_writer_description(stream->writer, slot) : NULL;
    if (description == NULL)
        return -EINVAL;
    uint64_t slot_nbytes = stream->grant.geometry.slot_nbytes;
    return stream->frame.format != 0
               ? mcpd_describe_frame(description, slot_nbytes, &stream->frame)
               : mcpd_describe_tensors(description, slot_nbytes, stream->tensors,
                                       stream->ntensors);
}

int mcpd_stream_frame(mcpd_stream *stream, struct mcpd_frame *frame)
{
    if (stream->frame.format == 0)
        return -ENOENT;
    *frame = stream->frame;
    return 0;
}

/* ---- pinned slots -------------------------------------------------------------------------- */

/* What describes a pinned slot, and how large that is; NULL: nothing is pinned there. */
static const struct mcpd_description *pinned(mcpd_stream *stream, uint32_t pin, uint64_t *nbytes)
{
    if (mcpd_moves_enter(stream) != 0)
        return NULL;
    const struct mcpd_description *description = NULL;
    pthread_mutex_lock(&stream->moves.mutex);
    struct mcpd_generation *generation = mcpd_generation_of(stream, pin);
    if (generation != NULL) {
        description = mcpd_reader_description(generation->reader, pin % MCPD_MAX_PINS);
        *nbytes = generation->grant.geometry.slot_nbytes;
    }
    pthread_mutex_unlock(&stream->moves.mutex);
    return description;
}

int mcpd_pinned_frame(mcpd_stream *stream, uint32_t pin, struct mcpd_frame *frame)
{
    uint64_t nbytes;
    const struct mcpd_description *description = pinned(stream, pin, &nbytes);
    return description == NULL ? -EINVAL : mcpd_frame_read(description, nbytes, frame);
}

int mcpd_pinned_ntensors(mcpd_stream *stream, uint32_t pin)
{
    uint64_t nbytes;
    const struct mcpd_description *description = pinned(stream, pin, &nbytes);
    if (description == NULL)
        return -EINVAL;
    uint32_t ntensors = *(const volatile uint32_t *)&description->ntensors;
    return ntensors <= MCPD_MAX_TENSORS ? (int)ntensors : -EBADMSG;
}

int mcpd_pinned_tensor(mcpd_stream *stream, uint32_t pin, uint32_t index,
                       struct mcpd_tensor_view *tensor)
{
    uint64_t nbytes;
    int ntensors = mcpd_pinned_ntensors(stream, pin);
    if (ntensors < 0)
        return ntensors;
    if (index >= (uint32_t)ntensors)
        return -ENOENT;
    const struct mcpd_description *description = pinned(stream, pin, &nbytes);
    return description == NULL ? -EINVAL : mcpd_tensor_read(description, nbytes, index, tensor);
}

int mcpd_pinned_find(mcpd_stream *stream, uint32_t pin, const char *name,
                     struct mcpd_tensor_view *tensor)
{
    int result = 0;
    for (uint32_t index = 0; result == 0; index++) {
        result = mcpd_pinned_tensor(stream, pin, index, tensor);
        if (result == 0 && strcmp(tensor->name, name) == 0)
            return 0;
    }
    return result;
}
