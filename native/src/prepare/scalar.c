/* The inner loops of a preparation in portable C, written for the auto-vectoriser. */
#include "prepare/isa.h"

#include <math.h>
#include <string.h>

/* ---- sampling ------------------------------------------------------------------------------ */

static void sample(const struct mcpd_prepare_plan *plan, uint32_t index, const uint8_t *row,
                   const uint8_t *ahead, int16_t *const out[3])
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];
    const int32_t *restrict at = columns->left;
    const int16_t *restrict weight = columns->weight;

    (void)ahead; /* the loop is slower than the memory */
    for (uint32_t k = 0; k < set->count; k++) {
        const uint8_t *restrict left = row + set->base[k], *restrict right = left + columns->step;
        int16_t *restrict to = out[k];

        for (uint32_t i = 0; i < plan->values; i++) {
            int32_t sum = left[at[i]] * weight[2 * i] + right[at[i]] * weight[2 * i + 1];

            /* Weights are negative: 1 is -32768. */
            to[i] = (int16_t)(((128 - sum) >> 8) - set->zero);
        }
    }
}

static void average(const struct mcpd_prepare_plan *plan, uint32_t index, const uint8_t *base,
                    uint32_t y, float *restrict sums, int16_t *const out[3])
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_plane *plane = &plan->planes[set->plane];
    const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];
    const struct mcpd_prepare_rows *rows = &plan->rows[set->axis];
    const float *restrict share = rows->share + (size_t)y * rows->ntaps;
    size_t padded = MCPD_PREPARE_PADDED(plan->values);

    for (uint32_t i = 0; i < plane->nbytes; i++)
        sums[i] = 0.0f;
    for (uint32_t t = 0; t < rows->ntaps; t++) {
        const uint8_t *restrict row = base + (rows->upper[y] + t) * plane->stride + plane->first;

        for (uint32_t i = 0; share[t] != 0.0f && i < plane->nbytes; i++)
            sums[i] += (float)row[i] * share[t];
    }
    for (uint32_t k = 0; k < set->count; k++) {
        const float *restrict from = sums + set->base[k] - plane->first;

        for (uint32_t i = 0; i < plan->values; i++) {
            float sum = 0.0f;

            for (uint32_t t = 0; t < columns->ntaps; t++)
                sum += from[columns->left[i] + (int32_t)(t * columns->step)] *
                       columns->share[t * padded + i];
            out[k][i] = (int16_t)((int32_t)(sum * 128.0f + 0.5f) - set->zero);
        }
    }
}

/* ---- mixing -------------------------------------------------------------------------------- */

/* The high half of a product, rounded: of factors in 1/32768. */
static int32_t times(int32_t a, int32_t b)
{
    return (a * b + 0x4000) >> 15;
}

static int32_t within(int32_t value, int32_t most)
{
    value = value > 0 ? value : 0;
    return value < most ? value : most;
}

/* A component's two rows as one; the upper itself where it is not blended. */
static const int16_t *blend(const struct mcpd_prepare_line *line, uint32_t k, uint32_t n,
                            int16_t *restrict to)
{
    const int16_t *restrict upper = line->upper[k], *restrict lower = line->lower[k];
    int32_t weight = line->weight[k];

    if (weight == 0)
        return upper;
    for (uint32_t i = 0; i < n; i++)
        to[i] = (int16_t)(upper[i] + times(lower[i] - upper[i], weight));
    return to;
}

/* A channel as normalisation takes it. */
static float wide(int32_t channel)
{
    return (float)(channel * 65536);
}

static void to_gray(const struct mcpd_prepare_mix *mix, const int16_t *restrict r,
                    const int16_t *restrict g, const int16_t *restrict b, uint32_t n,
                    float *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = wide(times(r[i], mix->gray[0]) + times(g[i], mix->gray[1]) +
                      times(b[i], mix->gray[2]));
}

static void to_green(const struct mcpd_prepare_mix *mix, const int16_t *restrict y,
                     const int16_t *restrict u, const int16_t *restrict v, uint32_t n,
                     float *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = wide(within(y[i] + times(u[i], mix->green_of_u) + times(v[i], mix->green_of_v),
                             mix->white));
}

/* Red or blue, of v or u. */
static void to_end(const struct mcpd_prepare_mix *mix, const int16_t *restrict y,
                   const int16_t *restrict chroma, int16_t factor, uint32_t n, float *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = wide(within(y[i] + chroma[i] + times(chroma[i], factor), mix->white));
}

static void to_same(const int16_t *restrict from, int32_t white, uint32_t n, float *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = wide(within(from[i], white));
}

/* ---- storing ------------------------------------------------------------------------------- */

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

/* Values as bytes, rounded to nearest, ties to even: as the FPU rounds when units are the last place. */
static void to_bytes(const struct mcpd_prepare_mix *mix, const float *restrict from, uint32_t n,
                     float *restrict scratch, uint8_t *restrict to)
{
    const float units = 12582912.0f; /* 1.5 * 2^23 */
    float low = mix->low, high = mix->high;

    for (uint32_t i = 0; i < n; i++) {
        float value = from[i] > low ? from[i] : low;

        scratch[i] = (value < high ? value : high) + units;
    }
    for (uint32_t i = 0; i < n; i++) {
        int32_t bits;

        memcpy(&bits, &scratch[i], sizeof(bits));
        to[i] = (uint8_t)(bits - 0x4b400000 + mix->zero_point);
    }
}

void mcpd_prepare_store(const struct mcpd_prepare_plan *plan, const float *from, uint32_t n,
                        float *scratch, void *to)
{
    if (plan->dtype == MCPD_OUT_FLOAT32)
        memcpy(to, from, n * sizeof(float));
    else if (plan->dtype == MCPD_OUT_FLOAT16)
        to_half(from, n, scratch, to);
    else
        to_bytes(&plan->mix, from, n, scratch, to);
}

static void normalise(const struct mcpd_prepare_plan *plan, uint32_t c, float *restrict values,
                      float *restrict scratch, void *to)
{
    float gain = plan->mix.gain[c], bias = plan->mix.bias[c];

    for (uint32_t i = 0; i < plan->values; i++)
        values[i] = values[i] * gain + bias;
    mcpd_prepare_store(plan, values, plan->values, scratch, to);
}

static void mix(const struct mcpd_prepare_plan *plan, const struct mcpd_prepare_line *line,
                unsigned char *const to[3])
{
    const struct mcpd_prepare_mix *m = &plan->mix;
    uint32_t n = plan->values;
    size_t padded = MCPD_PREPARE_PADDED(n);
    float *values = line->sums, *scratch = line->sums + padded;
    const int16_t *from[3] = {NULL, NULL, NULL};

    for (uint32_t k = 0; k < plan->ncomponents; k++)
        from[k] = blend(line, k, n, line->scratch + k * padded);
    for (uint32_t c = 0; c < plan->nchannels; c++) {
        uint32_t place = plan->nchannels == 1 ? 0 : m->channel[c];

        if (m->how == MCPD_MIX_SAME)
            to_same(from[m->source[c]], INT16_MAX, n, values);
        else if (m->how == MCPD_MIX_LUMA)
            to_same(from[0], m->white, n, values);
        else if (m->how == MCPD_MIX_GRAY)
            to_gray(m, from[0], from[1], from[2], n, values);
        else if (c == 1)
            to_green(m, from[0], from[1], from[2], n, values);
        else
            to_end(m, from[0], from[c == 0 ? 2 : 1], c == 0 ? m->red_of_v : m->blue_of_u, n,
                   values);
        normalise(plan, place, values, scratch, to[place]);
    }
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

static int open_plan(struct mcpd_prepare_plan *plan)
{
    (void)plan;
    return 0;
}

const struct mcpd_prepare_isa mcpd_prepare_scalar = {
    .name = "scalar",
    .open = open_plan,
    .sample = sample,
    .average = average,
    .mix = mix,
    .interleave = interleave,
};
