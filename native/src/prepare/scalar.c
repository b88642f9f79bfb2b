/* The pass of a preparation in portable C; its inner loops are for the auto-vectoriser. */
#include "prepare/prepare.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The row buffers of one run, all in one allocation. */
struct row_buffers {
    int16_t *blended[3]; /* one for each plane, in 1/64 of a level */
    int32_t *pairs;      /* the samples either side of each output column: left low, right high */
    float *component[3];
    float *channel[3];
    void *stored[3]; /* channels in the output's type, to be interleaved */
    float *scratch;
};

static int row_buffers_open(const struct mcpd_prepare_plan *plan, struct row_buffers *rows)
{
    size_t wide = (plan->columns_used + 15) / 16 * 16, full = (plan->out_width + 15) / 16 * 16;
    size_t n = wide * sizeof(int32_t) + (3 * wide + 7 * full) * sizeof(float);
    unsigned char *at;

    for (uint32_t p = 0; p < plan->nplanes; p++)
        n += (plan->planes[p].nbytes + 15) / 16 * 16 * sizeof(int16_t);
    at = malloc(n);
    if (!at)
        return -ENOMEM;
    for (int k = 0; k < 3; k++, at += wide * sizeof(float))
        rows->component[k] = (float *)(void *)at;
    for (int c = 0; c < 3; c++, at += full * sizeof(float))
        rows->channel[c] = (float *)(void *)at;
    for (int c = 0; c < 3; c++, at += full * sizeof(float))
        rows->stored[c] = at;
    rows->scratch = (float *)(void *)at;
    at += full * sizeof(float);
    rows->pairs = (int32_t *)(void *)at;
    at += wide * sizeof(int32_t);
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        rows->blended[p] = (int16_t *)(void *)at;
        at += (plan->planes[p].nbytes + 15) / 16 * 16 * sizeof(int16_t);
    }
    return 0;
}

static void row_buffers_close(struct row_buffers *rows)
{
    free(rows->component[0]); /* the first, so the allocation itself */
}

/* out = upper + (lower - upper) * weight, in 1/64: the product keeps the high half of 16x16 bits. */
static void blend(const uint8_t *restrict upper, const uint8_t *restrict lower, int16_t weight,
                  uint32_t n, int16_t *restrict out)
{
    for (uint32_t i = 0; i < n; i++) {
        int16_t step = (int16_t)((lower[i] - upper[i]) * 128);

        out[i] = (int16_t)(upper[i] * 64 + ((step * weight) >> 16));
    }
}

/*
 * One component at every output column. Samples are gathered apart from the arithmetic, which then
 * vectorises, and where neighbours are adjacent both come with one load.
 */
static void sample(const int16_t *restrict row, const struct mcpd_prepare_columns *columns,
                   uint32_t n, int32_t *restrict pairs, float *restrict out)
{
    const int32_t *restrict at = columns->left;
    const float *restrict weight = columns->weight;
    uint32_t step = columns->step;

    if (step == 1) {
        for (uint32_t i = 0; i < n; i++)
            memcpy(&pairs[i], row + at[i], sizeof(pairs[i]));
    } else {
        for (uint32_t i = 0; i < n; i++) {
            const int16_t *left = row + at[i];

            pairs[i] = (int32_t)left[step] << 16 | left[0]; /* none is negative */
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        int32_t left = pairs[i] & 0xffff, right = pairs[i] >> 16; /* little-endian, as layout.h */

        out[i] = (float)left + (float)(right - left) * weight[i];
    }
}

static float clamp(float value)
{
    value = value > 0.0f ? value : 0.0f;
    return value < 255.0f ? value : 255.0f;
}

static void mix3(const float *restrict a, const float *restrict b, const float *restrict c,
                 const float m[3], float offset, float gain, float bias, uint32_t n,
                 float *restrict out)
{
    float ma = m[0], mb = m[1], mc = m[2];

    for (uint32_t i = 0; i < n; i++)
        out[i] = clamp(a[i] * ma + b[i] * mb + c[i] * mc + offset) * gain + bias;
}

static void mix1(const float *restrict a, float ma, float offset, float gain, float bias,
                 uint32_t n, float *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = clamp(a[i] * ma + offset) * gain + bias;
}

/*
 * Values as IEEE 754 binary16, rounded to nearest, ties to even. The normal, the subnormal and the
 * infinite result are all made and one is taken; float and integer work are apart: so it vectorises.
 */
static void to_half(const float *restrict from, uint32_t n, float *restrict scratch,
                    uint16_t *restrict to)
{
    /* Subnormal: adding 0.5 has the FPU round to units of 2^-24, the last place of both. */
    for (uint32_t i = 0; i < n; i++)
        scratch[i] = fabsf(from[i]) + 0.5f;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits, magnitude, small, normal, result;

        memcpy(&bits, &from[i], sizeof(bits));
        memcpy(&small, &scratch[i], sizeof(small));
        magnitude = bits & 0x7fffffffu;
        /* Normal: 13 bits are rounded off, which may carry, and the exponent's bias moves. */
        normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
        result = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
        result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520 and above: infinite */
        result = magnitude > 0x7f800000u ? 0x7e00u : result;  /* not a number */
        to[i] = (uint16_t)(result | (bits >> 16 & 0x8000u));
    }
}

/* Values as bytes, rounded half up. */
static void to_bytes(const float *restrict from, uint32_t n, float *restrict scratch,
                     uint8_t *restrict to)
{
    for (uint32_t i = 0; i < n; i++)
        scratch[i] = clamp(from[i]);
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint8_t)(int32_t)(scratch[i] + 0.5f);
}

/* One channel of a row in the output's type. */
static void convert(enum mcpd_prepare_dtype dtype, const float *from, uint32_t n, float *scratch,
                    void *to)
{
    if (dtype == MCPD_OUT_FLOAT32)
        memcpy(to, from, n * sizeof(float));
    else if (dtype == MCPD_OUT_FLOAT16)
        to_half(from, n, scratch, to);
    else
        to_bytes(from, n, scratch, to);
}

#define INTERLEAVE(type)                                                                           \
    do {                                                                                           \
        const type *a = from[0], *b = from[1], *c = from[2];                                       \
        type *out = to;                                                                            \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            out[3 * i] = a[i];                                                                     \
            out[3 * i + 1] = b[i];                                                                 \
            out[3 * i + 2] = c[i];                                                                 \
        }                                                                                          \
    } while (0)

static void interleave(size_t value_nbytes, void *const from[3], uint32_t n, void *to)
{
    if (value_nbytes == 4)
        INTERLEAVE(uint32_t);
    else if (value_nbytes == 2)
        INTERLEAVE(uint16_t);
    else
        INTERLEAVE(uint8_t);
}

/* The channel rows, as row `y` of the output image. */
static void store_row(const struct mcpd_prepare_plan *plan, struct row_buffers *rows, uint32_t y,
                      unsigned char *image)
{
    uint32_t width = plan->out_width;
    size_t row = width * plan->value_nbytes, plane = row * plan->out_height;

    if (plan->layout == MCPD_NCHW || plan->nchannels == 1) {
        for (uint32_t c = 0; c < plan->nchannels; c++)
            convert(plan->dtype, rows->channel[c], width, rows->scratch,
                    image + c * plane + y * row);
        return;
    }
    for (int c = 0; c < 3; c++)
        convert(plan->dtype, rows->channel[c], width, rows->scratch, rows->stored[c]);
    interleave(plan->value_nbytes, rows->stored, width, image + 3 * row * y);
}

static void fill(float *row, float value, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        row[i] = value;
}

/* Output row `y` of the source's rectangle, into the channel rows. */
static void prepare_row(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y,
                        struct row_buffers *rows)
{
    uint32_t n = plan->columns_used;

    for (uint32_t p = 0; p < plan->nplanes; p++) {
        const struct mcpd_prepare_plane *plane = &plan->planes[p];
        const struct mcpd_prepare_rows *table = &plan->rows[plane->axis];
        const uint8_t *base = source + plane->offset + plane->first;

        blend(base + table->upper[y] * plane->stride, base + table->lower[y] * plane->stride,
              table->weight[y], plane->nbytes, rows->blended[p]);
    }
    for (uint32_t k = 0; k < plan->ncomponents; k++) {
        const struct mcpd_prepare_component *component = &plan->components[k];
        const int16_t *row = rows->blended[component->plane];
        ptrdiff_t shift = (ptrdiff_t)component->base - plan->planes[component->plane].first;

        sample(row + shift, &plan->columns[component->axis], n, rows->pairs,
               rows->component[k]);
    }
    for (uint32_t c = 0; c < plan->nchannels; c++) {
        float *out = rows->channel[c] + plan->left;

        if (plan->ncomponents == 3)
            mix3(rows->component[0], rows->component[1], rows->component[2], plan->mix[c],
                 plan->offset[c], plan->gain[c], plan->bias[c], n, out);
        else
            mix1(rows->component[0], plan->mix[c][0], plan->offset[c], plan->gain[c],
                 plan->bias[c], n, out);
    }
}

int mcpd_prepare_run(const struct mcpd_prepare_plan *plan, const uint8_t *source, void *out)
{
    uint32_t bottom = plan->top + plan->rows_used, right = plan->left + plan->columns_used;
    struct row_buffers rows;

    if (row_buffers_open(plan, &rows))
        return -ENOMEM;
    for (uint32_t c = 0; c < plan->nchannels; c++)
        fill(rows.channel[c], plan->padding[c], 0, plan->out_width);
    for (uint32_t y = 0; y < plan->top; y++)
        store_row(plan, &rows, y, out);
    for (uint32_t y = 0; y < plan->rows_used; y++) {
        prepare_row(plan, source, y, &rows);
        store_row(plan, &rows, plan->top + y, out);
    }
    for (uint32_t c = 0; c < plan->nchannels; c++)
        fill(rows.channel[c], plan->padding[c], plan->left, right);
    for (uint32_t y = bottom; y < plan->out_height; y++)
        store_row(plan, &rows, y, out);
    row_buffers_close(&rows);
    return 0;
}
