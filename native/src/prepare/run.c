/* One run of a preparation: the rows of the output in turn, and the buffers they go through. */
#include "prepare/isa.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Row buffers, all in one allocation; the plan keeps one of them between runs. */
static int buffers_open(struct mcpd_prepare_plan *plan, struct mcpd_prepare_buffers *buffers)
{
    size_t wide = MCPD_PREPARE_PADDED(plan->columns_used);
    size_t full = MCPD_PREPARE_PADDED(plan->out_width);
    size_t n = wide * sizeof(int32_t) + (5 * wide + 3 * full) * sizeof(float);
    unsigned char *at;

    for (uint32_t p = 0; p < plan->nplanes; p++)
        n += MCPD_PREPARE_PADDED(plan->planes[p].nbytes) * sizeof(int16_t);
    at = atomic_exchange(&plan->spare, NULL);
    if (!at)
        at = malloc(n);
    if (!at)
        return -ENOMEM;
    for (int k = 0; k < 3; k++, at += wide * sizeof(float))
        buffers->component[k] = (float *)(void *)at;
    for (int c = 0; c < 3; c++, at += full * sizeof(float))
        buffers->stored[c] = at;
    buffers->channel = (float *)(void *)at;
    at += wide * sizeof(float);
    buffers->scratch = (float *)(void *)at;
    at += wide * sizeof(float);
    buffers->pairs = (int32_t *)(void *)at;
    at += wide * sizeof(int32_t);
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        buffers->blended[p] = (int16_t *)(void *)at;
        at += MCPD_PREPARE_PADDED(plan->planes[p].nbytes) * sizeof(int16_t);
    }
    return 0;
}

/* To the plan, or free where another run has given its own back first. */
static void buffers_close(struct mcpd_prepare_plan *plan, struct mcpd_prepare_buffers *buffers)
{
    void *none = NULL, *mine = buffers->component[0]; /* the first, so the allocation itself */

    if (!atomic_compare_exchange_strong(&plan->spare, &none, mine))
        free(mine);
}

#define REPEAT(type)                                                                               \
    do {                                                                                           \
        type one, *values = to;                                                                    \
        memcpy(&one, value, sizeof(one));                                                          \
        for (size_t i = 0; i < n; i++)                                                             \
            values[i] = one;                                                                       \
    } while (0)

/* One value, n times. */
static void repeat(const unsigned char *value, size_t value_nbytes, size_t n, void *to)
{
    if (value_nbytes == 4)
        REPEAT(uint32_t);
    else if (value_nbytes == 2)
        REPEAT(uint16_t);
    else
        REPEAT(uint8_t);
}

/* Padding of a channel, from a column of a row up to a column. */
static void pad(const struct mcpd_prepare_plan *plan, uint32_t channel, unsigned char *row,
                uint32_t from, uint32_t end)
{
    repeat(plan->padding[channel], plan->value_nbytes, end - from, row + from * plan->value_nbytes);
}

/* Channels apart: each is a picture of its own, written in place. */
static void run_planar(const struct mcpd_prepare_plan *plan, const uint8_t *source,
                       struct mcpd_prepare_buffers *buffers, unsigned char *image)
{
    uint32_t width = plan->out_width, right = plan->left + plan->columns_used;
    uint32_t bottom = plan->top + plan->rows_used;
    size_t row = width * plan->value_nbytes, picture = row * plan->out_height;

    for (uint32_t c = 0; c < plan->nchannels; c++) {
        unsigned char *channel = image + c * picture;

        repeat(plan->padding[c], plan->value_nbytes, (size_t)plan->top * width, channel);
        repeat(plan->padding[c], plan->value_nbytes, (size_t)(plan->out_height - bottom) * width,
               channel + bottom * row);
    }
    for (uint32_t y = 0; y < plan->rows_used; y++) {
        plan->isa->sample(plan, source, y, buffers);
        for (uint32_t c = 0; c < plan->nchannels; c++) {
            unsigned char *to = image + c * picture + (plan->top + y) * row;

            pad(plan, c, to, 0, plan->left);
            plan->isa->mix(plan, c, buffers, to + plan->left * plan->value_nbytes);
            pad(plan, c, to, right, width);
        }
    }
}

/* Three channels by turns: rows are made apart, then interleaved. */
static void run_interleaved(const struct mcpd_prepare_plan *plan, const uint8_t *source,
                            struct mcpd_prepare_buffers *buffers, unsigned char *image)
{
    uint32_t width = plan->out_width, bottom = plan->top + plan->rows_used;
    size_t row = 3 * width * plan->value_nbytes;
    const unsigned char *padding = NULL;

    for (uint32_t c = 0; c < 3; c++)
        pad(plan, c, buffers->stored[c], 0, width);
    for (uint32_t y = 0; y < plan->out_height; y++) {
        unsigned char *to = image + y * row;

        if (y >= plan->top && y < bottom)
            continue;
        if (padding)
            memcpy(to, padding, row);
        else
            plan->isa->interleave(plan->value_nbytes, buffers->stored, width, to);
        padding = to;
    }
    for (uint32_t y = 0; y < plan->rows_used; y++) {
        plan->isa->sample(plan, source, y, buffers);
        for (uint32_t c = 0; c < 3; c++)
            plan->isa->mix(plan, c, buffers, buffers->stored[c] + plan->left * plan->value_nbytes);
        plan->isa->interleave(plan->value_nbytes, buffers->stored, width,
                              image + (plan->top + y) * row);
    }
}

int mcpd_prepare_run(struct mcpd_prepare_plan *plan, const uint8_t *source, void *out)
{
    struct mcpd_prepare_buffers buffers;

    if (buffers_open(plan, &buffers))
        return -ENOMEM;
    if (plan->layout == MCPD_NCHW || plan->nchannels == 1)
        run_planar(plan, source, &buffers, out);
    else
        run_interleaved(plan, source, &buffers, out);
    buffers_close(plan, &buffers);
    return 0;
}

const char *mcpd_prepare_plan_isa(const struct mcpd_prepare_plan *plan)
{
    return plan->isa->name;
}
