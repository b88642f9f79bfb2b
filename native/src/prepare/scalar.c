/* The inner loops of a preparation in portable C, written for the auto-vectoriser. */
#include "prepare/isa.h"

#include <math.h>
#include <string.h>

/* out = upper + (lower - upper) * weight, in 1/64: the product keeps the high half of 16x16 bits. */
static void blend(const uint8_t *restrict upper, const uint8_t *restrict lower, int16_t weight,
                  uint32_t n, int16_t *restrict out)
{
    if (weight == 0) {
        for (uint32_t i = 0; i < n; i++)
            out[i] = (int16_t)(upper[i] * 64);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        int16_t step = (int16_t)((lower[i] - upper[i]) * 128);

        out[i] = (int16_t)(upper[i] * 64 + ((step * weight) >> 16));
    }
}

/*
 * One component at every output column. Samples are gathered apart from the arithmetic, which then
 * vectorises, and where neighbours are adjacent both come with one load.
 */
static void sample_component(const int16_t *restrict row,
                             const struct mcpd_prepare_columns *columns, uint32_t n,
                             int32_t *restrict pairs, float *restrict out)
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
                 const struct mcpd_prepare_mix *mix, uint32_t n, float *restrict out)
{
    float ma = mix->factor[0], mb = mix->factor[1], mc = mix->factor[2];
    float offset = mix->offset, gain = mix->gain, bias = mix->bias;

    for (uint32_t i = 0; i < n; i++)
        out[i] = clamp(a[i] * ma + b[i] * mb + c[i] * mc + offset) * gain + bias;
}

static void mix2(const float *restrict a, const float *restrict b,
                 const struct mcpd_prepare_mix *mix, uint32_t n, float *restrict out)
{
    float ma = mix->factor[0], mb = mix->factor[1];
    float offset = mix->offset, gain = mix->gain, bias = mix->bias;

    for (uint32_t i = 0; i < n; i++)
        out[i] = clamp(a[i] * ma + b[i] * mb + offset) * gain + bias;
}

static void mix1(const float *restrict a, const struct mcpd_prepare_mix *mix, uint32_t n,
                 float *restrict out)
{
    float ma = mix->factor[0];
    float offset = mix->offset, gain = mix->gain, bias = mix->bias;

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

void mcpd_prepare_convert(enum mcpd_prepare_dtype dtype, const float *from, uint32_t n,
                          float *scratch, void *to)
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
        const type *a = (const void *)from[0], *b = (const void *)from[1];                         \
        const type *c = (const void *)from[2];                                                     \
        type *out = to;                                                                            \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            out[3 * i] = a[i];                                                                     \
            out[3 * i + 1] = b[i];                                                                 \
            out[3 * i + 2] = c[i];                                                                 \
        }                                                                                          \
    } while (0)

static void interleave(size_t value_nbytes, unsigned char *const from[3], uint32_t n, void *to)
{
    if (value_nbytes == 4)
        INTERLEAVE(uint32_t);
    else if (value_nbytes == 2)
        INTERLEAVE(uint16_t);
    else
        INTERLEAVE(uint8_t);
}

static void sample(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y,
                   struct mcpd_prepare_buffers *buffers)
{
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        const struct mcpd_prepare_plane *plane = &plan->planes[p];
        const struct mcpd_prepare_rows *table = &plan->rows[plane->axis];
        const uint8_t *base = source + plane->offset + plane->first;

        blend(base + table->upper[y] * plane->stride, base + table->lower[y] * plane->stride,
              table->weight[y], plane->nbytes, buffers->blended[p]);
    }
    for (uint32_t k = 0; k < plan->ncomponents; k++) {
        const struct mcpd_prepare_component *component = &plan->components[k];
        const int16_t *row = buffers->blended[component->plane];
        ptrdiff_t shift = (ptrdiff_t)component->base - plan->planes[component->plane].first;

        sample_component(row + shift, &plan->columns[component->axis], plan->columns_used,
                         buffers->pairs, buffers->component[k]);
    }
}

static void mix(const struct mcpd_prepare_plan *plan, uint32_t channel,
                struct mcpd_prepare_buffers *buffers, void *to)
{
    const struct mcpd_prepare_mix *m = &plan->mix[channel];
    const float *a = buffers->component[m->component[0]];
    const float *b = buffers->component[m->component[1]];
    const float *c = buffers->component[m->component[2]];
    float *out = plan->dtype == MCPD_OUT_FLOAT32 ? to : buffers->channel;
    uint32_t n = plan->columns_used;

    if (m->nterms == 3)
        mix3(a, b, c, m, n, out);
    else if (m->nterms == 2)
        mix2(a, b, m, n, out);
    else
        mix1(a, m, n, out);
    if (out != to)
        mcpd_prepare_convert(plan->dtype, out, n, buffers->scratch, to);
}

static int open_plan(struct mcpd_prepare_plan *plan)
{
    (void)plan;
    return 0;
}

const struct mcpd_prepare_isa mcpd_prepare_scalar = {
    .name = "scalar",
    .open = open_plan,
    .sample = sample,
    .mix = mix,
    .interleave = interleave,
};
