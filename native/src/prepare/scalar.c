/* The pass of a preparation in portable C; its inner loops are for the auto-vectoriser. */
#include "prepare/prepare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The row buffers of one run, all in one allocation. */
struct row_buffers {
    int16_t *blended[3]; /* one for each plane, in 1/64 of a level */
    int16_t *left;       /* samples either side of each output column */
    int16_t *right;
    float *component[3];
    float *channel[3];
};

static int row_buffers_open(const struct mcpd_prepare_plan *plan, struct row_buffers *rows)
{
    size_t wide = (plan->columns_used + 15) / 16 * 16, full = (plan->out_width + 15) / 16 * 16;
    size_t n = 2 * wide * sizeof(int16_t) + 3 * (wide + full) * sizeof(float);
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
    rows->left = (int16_t *)(void *)at;
    rows->right = rows->left + wide;
    at += 2 * wide * sizeof(int16_t);
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

/* One component at every output column. The gather is apart so that the arithmetic vectorises. */
static void sample(const int16_t *restrict row, const struct mcpd_prepare_columns *columns,
                   uint32_t n, int16_t *restrict left, int16_t *restrict right, float *restrict out)
{
    const int32_t *restrict at = columns->left;
    const float *restrict weight = columns->weight;
    uint32_t step = columns->step;

    for (uint32_t i = 0; i < n; i++) {
        const int16_t *pair = row + at[i];

        left[i] = pair[0];
        right[i] = pair[step];
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)left[i] + (float)(right[i] - left[i]) * weight[i];
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

/* IEEE 754 binary16, rounded to nearest, ties to even. */
static uint16_t half(float value)
{
    uint32_t bits, sign, exponent, mantissa, shift, rest, kept;

    memcpy(&bits, &value, sizeof(bits));
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits >= 0x7f800000u) /* infinite or not a number */
        return (uint16_t)(sign | 0x7c00u | (bits > 0x7f800000u ? 0x200u : 0u));
    if (bits >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits >= 0x38800000u) { /* normal: move the exponent's bias, round off 13 bits */
        bits += 0xfffu + (bits >> 13 & 1u);
        return (uint16_t)(sign | ((bits - 0x38000000u) >> 13));
    }
    if (bits < 0x33000000u) /* under half of the smallest subnormal */
        return (uint16_t)sign;
    exponent = bits >> 23;
    mantissa = (bits & 0x7fffffu) | 0x800000u;
    shift = 126u - exponent; /* 14..24 */
    kept = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1u);
    if (rest > 1u << (shift - 1u) || (rest == 1u << (shift - 1u) && (kept & 1u)))
        kept++;
    return (uint16_t)(sign | kept);
}

static uint8_t byte(float value)
{
    return (uint8_t)(clamp(value) + 0.5f);
}

/* Stores n values, `step` values apart, from value `at` of the image on. */
static void store(const struct mcpd_prepare_plan *plan, const float *restrict from, uint32_t n,
                  void *image, size_t at, size_t step)
{
    switch (plan->dtype) {
    case MCPD_OUT_FLOAT32: {
        float *restrict out = (float *)image + at;
        for (uint32_t i = 0; i < n; i++)
            out[i * step] = from[i];
        break;
    }
    case MCPD_OUT_FLOAT16: {
        uint16_t *restrict out = (uint16_t *)image + at;
        for (uint32_t i = 0; i < n; i++)
            out[i * step] = half(from[i]);
        break;
    }
    case MCPD_OUT_UINT8: {
        uint8_t *restrict out = (uint8_t *)image + at;
        for (uint32_t i = 0; i < n; i++)
            out[i * step] = byte(from[i]);
        break;
    }
    }
}

static void store_row(const struct mcpd_prepare_plan *plan, const struct row_buffers *rows,
                      uint32_t y, void *image)
{
    size_t width = plan->out_width, plane = width * plan->out_height;

    for (uint32_t c = 0; c < plan->nchannels; c++) {
        if (plan->layout == MCPD_NCHW)
            store(plan, rows->channel[c], plan->out_width, image, c * plane + y * width, 1);
        else
            store(plan, rows->channel[c], plan->out_width, image, y * width * plan->nchannels + c,
                  plan->nchannels);
    }
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

        sample(row + shift, &plan->columns[component->axis], n, rows->left, rows->right,
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
