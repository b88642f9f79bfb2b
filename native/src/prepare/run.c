/* One run of a preparation: the lines of the output in turn, and the buffers they go through. */
#include "prepare/run.h"

#include <stdlib.h>
#include <string.h>

#include "prepare/isa.h"

#define MEMORY_LINE 64u
#define NO_ROW UINT32_MAX
#define MOST_COPIED 4096u /* bytes of padding at a time, which stay in the first cache */

struct mcpd_prepare_buffers {
    int16_t *sampled[3][2]; /* of each component two rows */
    uint32_t held[3][2];    /* of each set, which */
    int16_t *scratch;
    float *sums;
    unsigned char *stored[3]; /* channels of a line, or of a band where frames are turned */
    size_t stored_nbytes;     /* of a line of one channel */
};

static size_t whole_lines(size_t nbytes)
{
    return (nbytes + MEMORY_LINE - 1) / MEMORY_LINE * MEMORY_LINE;
}

struct mcpd_prepare_buffers *mcpd_prepare_buffers_open(struct mcpd_prepare_plan *plan)
{
    size_t padded = MCPD_PREPARE_PADDED(plan->values), nsums = 2 * padded;
    size_t row = whole_lines(padded * sizeof(int16_t));
    size_t stored = whole_lines(padded * plan->value_nbytes);
    size_t band = stored * (plan->turned ? MCPD_PREPARE_BAND : 1);
    struct mcpd_prepare_buffers *buffers = atomic_exchange(&plan->spare, NULL);
    unsigned char *at;

    if (buffers)
        return buffers;
    for (uint32_t p = 0; plan->area && p < plan->nplanes; p++)
        nsums = plan->planes[p].nbytes > nsums ? plan->planes[p].nbytes : nsums;
    buffers = aligned_alloc(MEMORY_LINE, whole_lines(sizeof(*buffers)) + 9 * row + 3 * band +
                                             whole_lines(nsums * sizeof(float)));
    if (!buffers)
        return NULL;
    at = (unsigned char *)buffers + whole_lines(sizeof(*buffers));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++, at += row)
            buffers->sampled[k][i] = (int16_t *)(void *)at;
    }
    buffers->scratch = (int16_t *)(void *)at;
    at += 3 * row;
    for (int c = 0; c < 3; c++, at += band)
        buffers->stored[c] = at;
    buffers->sums = (float *)(void *)at;
    buffers->stored_nbytes = stored;
    return buffers;
}

void mcpd_prepare_buffers_close(struct mcpd_prepare_plan *plan,
                                struct mcpd_prepare_buffers *buffers)
{
    void *none = NULL;

    if (!atomic_compare_exchange_strong(&plan->spare, &none, (void *)buffers))
        free(buffers);
}

/* ---- padding ------------------------------------------------------------------------------- */

/* Pixels of padding: of one channel, or of `count` by turns. The first are copied to the others. */
static void repeat(const struct mcpd_prepare_plan *plan, uint32_t first, uint32_t count,
                   size_t pixels, unsigned char *to)
{
    size_t pixel = count * plan->value_nbytes, nbytes = pixels * pixel, part = pixel;

    for (uint32_t c = 0; c < count && pixels > 0; c++)
        memcpy(to + c * plan->value_nbytes, plan->padding[first + c], plan->value_nbytes);
    for (size_t done = pixel; done < nbytes; done += part) {
        part = done <= MOST_COPIED ? done : part;
        part = nbytes - done < part ? nbytes - done : part;
        memcpy(to + done, to, part);
    }
}

/* Rows first..end - 1 of a picture of `count` channels by turns, all padding. */
static void pad_rows(const struct mcpd_prepare_plan *plan, uint32_t channel, uint32_t count,
                     uint32_t first, uint32_t end, unsigned char *picture)
{
    size_t row = plan->out_width * count * plan->value_nbytes;

    repeat(plan, channel, count, (size_t)(end - first) * plan->out_width, picture + first * row);
}

/* Padding of a picture of `count` channels by turns, the first of which is `channel`. */
static void pad(const struct mcpd_prepare_plan *plan, uint32_t channel, uint32_t count,
                unsigned char *picture)
{
    size_t pixel = count * plan->value_nbytes, row = plan->out_width * pixel;
    uint32_t bottom = plan->top + plan->shown_height, right = plan->left + plan->shown_width;

    pad_rows(plan, channel, count, 0, plan->top, picture);
    for (uint32_t y = plan->top; y < bottom && plan->shown_width < plan->out_width; y++) {
        repeat(plan, channel, count, plan->left, picture + y * row);
        repeat(plan, channel, count, plan->out_width - right, picture + y * row + right * pixel);
    }
    pad_rows(plan, channel, count, bottom, plan->out_height, picture);
}

void mcpd_prepare_run_padding(const struct mcpd_prepare_plan *plan, unsigned char *image)
{
    size_t picture = (size_t)plan->out_width * plan->out_height * plan->value_nbytes;

    if (plan->shown_width == plan->out_width && plan->shown_height == plan->out_height)
        return;
    if (plan->layout == MCPD_NHWC) {
        pad(plan, 0, plan->nchannels, image);
        return;
    }
    for (uint32_t c = 0; c < plan->nchannels; c++)
        pad(plan, c, 1, image + c * picture);
}

/* ---- lines --------------------------------------------------------------------------------- */

/* Asks for the rows that an area's line sums: they are many, and not all in one stream. */
static void ask_for(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y)
{
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        const struct mcpd_prepare_plane *plane = &plan->planes[p];
        const struct mcpd_prepare_rows *rows = &plan->rows[plane->axis];
        const uint8_t *base = source + plane->offset + plane->first;

        for (uint32_t r = rows->upper[y]; r <= rows->lower[y]; r++) {
            if (y > 0 && r >= rows->upper[y - 1] && r <= rows->lower[y - 1])
                continue;
            for (uint32_t i = 0; i < plane->nbytes; i += MEMORY_LINE)
                __builtin_prefetch(base + r * plane->stride + i);
        }
    }
}

/* The buffer in which a row of line `y` is sampled, the upper or the lower; not over the other. */
static uint32_t sampled(const struct mcpd_prepare_plan *plan, struct mcpd_prepare_buffers *buffers,
                        const uint8_t *source, uint32_t index, uint32_t y, int is_lower)
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_plane *plane = &plan->planes[set->plane];
    const struct mcpd_prepare_rows *rows = &plan->rows[set->axis];
    uint32_t row = is_lower ? rows->lower[y] : rows->upper[y];
    uint32_t keep = is_lower ? rows->upper[y] : rows->lower[y];
    uint32_t *held = buffers->held[index], at;
    int16_t *out[3];

    for (at = 0; at < 2; at++) {
        if (held[at] == row)
            return at;
    }
    at = held[0] == keep;
    for (uint32_t k = 0; k < set->count; k++)
        out[k] = buffers->sampled[set->component[k]][at];
    source += plane->offset;
    plan->isa->sample(plan, index, source + row * plane->stride,
                      source + rows->ahead[2 * y + (uint32_t)is_lower] * plane->stride, out);
    held[at] = row;
    return at;
}

static void make_line(const struct mcpd_prepare_plan *plan, struct mcpd_prepare_buffers *buffers,
                      const uint8_t *source, uint32_t y, struct mcpd_prepare_line *line)
{
    for (uint32_t s = 0; s < plan->nsets; s++) {
        const struct mcpd_prepare_set *set = &plan->sets[s];
        const struct mcpd_prepare_rows *rows = &plan->rows[set->axis];
        uint32_t upper = 0, lower = 0;

        if (plan->area) {
            int16_t *out[3];

            for (uint32_t k = 0; k < set->count; k++)
                out[k] = buffers->sampled[set->component[k]][0];
            plan->isa->average(plan, s, source + plan->planes[set->plane].offset, y,
                               buffers->sums, out);
        } else {
            upper = sampled(plan, buffers, source, s, y, 0);
            lower = sampled(plan, buffers, source, s, y, 1);
        }
        for (uint32_t k = 0; k < set->count; k++) {
            line->upper[set->component[k]] = buffers->sampled[set->component[k]][upper];
            line->lower[set->component[k]] = buffers->sampled[set->component[k]][lower];
            line->weight[set->component[k]] = rows->weight[y];
        }
    }
}

#define TURN(type)                                                                                 \
    do {                                                                                           \
        for (uint32_t i = 0; i < plan->values; i++) {                                              \
            type *out = (type *)(void *)(to + i * row);                                            \
            for (uint32_t j = 0; j < count; j++) {                                                 \
                for (uint32_t c = 0; c < nchannels; c++)                                           \
                    *out++ = ((const type *)(const void *)(from[c] + j * stride))[i];              \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Lines become columns: `count` of them, of channels by turns. */
static void turn(const struct mcpd_prepare_plan *plan, unsigned char *const *from, size_t stride,
                 uint32_t count, uint32_t nchannels, unsigned char *to)
{
    size_t row = (size_t)plan->out_width * nchannels * plan->value_nbytes;

    if (plan->value_nbytes == 4)
        TURN(uint32_t);
    else if (plan->value_nbytes == 2)
        TURN(uint16_t);
    else
        TURN(uint8_t);
}

/* A band of `count` lines, from line `first` on, from where it is stored into the image. */
static void turn_band(const struct mcpd_prepare_plan *plan,
                      const struct mcpd_prepare_buffers *buffers, uint32_t first, uint32_t count,
                      unsigned char *image)
{
    size_t picture = (size_t)plan->out_width * plan->out_height * plan->value_nbytes;
    size_t pixel = (size_t)plan->top * plan->out_width + plan->left + first;

    if (plan->layout == MCPD_NHWC) {
        turn(plan, buffers->stored, buffers->stored_nbytes, count, plan->nchannels,
             image + pixel * plan->nchannels * plan->value_nbytes);
        return;
    }
    for (uint32_t c = 0; c < plan->nchannels; c++)
        turn(plan, &buffers->stored[c], buffers->stored_nbytes, count, 1,
             image + c * picture + pixel * plan->value_nbytes);
}

void mcpd_prepare_run_lines(const struct mcpd_prepare_plan *plan,
                            struct mcpd_prepare_buffers *buffers, const uint8_t *source,
                            unsigned char *image, uint32_t first, uint32_t end)
{
    size_t picture = (size_t)plan->out_width * plan->out_height * plan->value_nbytes;
    int interleaved = plan->layout == MCPD_NHWC && plan->nchannels == 3;
    struct mcpd_prepare_line line = {.scratch = buffers->scratch, .sums = buffers->sums};

    for (uint32_t s = 0; s < plan->nsets; s++) /* rows of another frame */
        buffers->held[s][0] = buffers->held[s][1] = NO_ROW;
    for (uint32_t y = first; y < end; y++) {
        uint32_t of_band = y % MCPD_PREPARE_BAND;
        size_t pixel = (size_t)(plan->top + y) * plan->out_width + plan->left;
        unsigned char *to[3];

        if (plan->area && y + 1 < end)
            ask_for(plan, source, y + 1);
        make_line(plan, buffers, source, y, &line);
        for (uint32_t c = 0; c < plan->nchannels; c++) {
            if (plan->turned)
                to[c] = buffers->stored[c] + of_band * buffers->stored_nbytes;
            else
                to[c] = interleaved ? buffers->stored[c]
                                    : image + c * picture + pixel * plan->value_nbytes;
        }
        plan->isa->mix(plan, &line, to);
        if (plan->turned && (of_band + 1 == MCPD_PREPARE_BAND || y + 1 == end))
            turn_band(plan, buffers, y - of_band, of_band + 1, image);
        else if (interleaved && !plan->turned)
            plan->isa->interleave(plan->value_nbytes, buffers->stored, plan->values,
                                  image + 3 * pixel * plan->value_nbytes);
    }
}
