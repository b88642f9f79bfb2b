/*
 * The inner loops of a preparation with AVX2 and F16C, eight output columns at a time.
 *
 * Sampling starts from the source's bytes. What eight columns need of a row is fetched as windows,
 * and byte shuffles make of them, for each component, eight pairs of 16-bit samples, left and right:
 *
 *   dense    one window of 16 bytes for each four columns, where their samples all lie in 16 bytes;
 *            each window has its own shuffle
 *   sparse   one window of 8 bytes for each column, which holds both samples of every component of
 *            every format; the shuffle is always the same
 *
 * Pairs of the two rows are blended, then left and right. No byte outside a row is read: a window
 * that would reach beyond its end starts earlier (dense), or is shifted into place (sparse).
 *
 * Only the functions here are compiled for AVX2, and without FMA, which would round differently from
 * scalar.c. The compiler may not use AVX2 in the file at large: the processor may not have it.
 *
 * Over 400 lines: one file for each instruction set, tables and the loops that follow them.
 */
#include "prepare/isa.h"

#if defined(__x86_64__)

#include <errno.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,f16c")))
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2,f16c")))

#define COLUMNS 8u /* of a group */
#define WIDE 16    /* bytes of a dense window */
#define NARROW 8   /* bytes of a sparse window */
#define MEMORY_LINE 64u
#define NOTHING 0x80 /* in a shuffle: a byte of 0 */

/* Components that lie in one plane on one axis, so that one window holds them all. */
struct samples {
    uint32_t plane;
    uint32_t axis;
    uint32_t count;        /* components */
    uint32_t component[3]; /* index in the plan */
    uint32_t byte[3];      /* of a component in the window, left sample */
    uint32_t nbytes;       /* of the window in use */
    uint32_t base;         /* byte of the first component's first sample in a row */
    int dense;
    uint32_t free_groups; /* sparse: as many groups end before the row does */
    int32_t last;         /* sparse: the last byte that a window may start at */
    int32_t *at;          /* byte in the row: of each window */
    uint8_t *shuffles;    /* dense: [group][component][32]; sparse: [component][2][32] */
};

struct tables {
    uint32_t groups; /* of columns in a row */
    uint32_t nsamples;
    struct samples samples[3];
};

/* ---- tables -------------------------------------------------------------------------------- */

/* Sorts the plan's components into those that share windows. */
static void group_components(const struct mcpd_prepare_plan *plan, struct tables *tables)
{
    for (uint32_t k = 0; k < plan->ncomponents; k++) {
        const struct mcpd_prepare_component *component = &plan->components[k];
        struct samples *to = tables->samples;

        while (to < tables->samples + tables->nsamples &&
               (to->plane != component->plane || to->axis != component->axis))
            to++;
        if (to == tables->samples + tables->nsamples) {
            tables->nsamples++;
            to->plane = component->plane;
            to->axis = component->axis;
            to->base = component->base;
        }
        if (component->base < to->base)
            to->base = component->base;
        to->component[to->count++] = k;
    }
    for (uint32_t s = 0; s < tables->nsamples; s++) {
        struct samples *to = &tables->samples[s];

        for (uint32_t k = 0; k < to->count; k++) {
            uint32_t end;

            to->byte[k] = plan->components[to->component[k]].base - to->base;
            end = to->byte[k] + plan->columns[to->axis].step + 1;
            to->nbytes = end > to->nbytes ? end : to->nbytes;
        }
    }
}

/* Whether each four columns' samples lie in 16 bytes. */
static int is_dense(const struct samples *samples, const int32_t *left, uint32_t groups)
{
    for (uint32_t i = 0; i < groups * COLUMNS; i += 4) {
        if (left[i + 3] - left[i] + (int32_t)samples->nbytes > WIDE)
            return 0;
    }
    return 1;
}

/* A column's pair: its samples at `from` and `from + step`, each with a high byte of 0. */
static void pair(uint8_t *shuffle, int32_t from, uint32_t step)
{
    shuffle[0] = (uint8_t)from;
    shuffle[1] = NOTHING;
    shuffle[2] = (uint8_t)(from + (int32_t)step);
    shuffle[3] = NOTHING;
}

static void fill_dense(struct samples *samples, const struct mcpd_prepare_plan *plan,
                       uint32_t groups)
{
    const struct mcpd_prepare_columns *columns = &plan->columns[samples->axis];
    int32_t last = (int32_t)plan->planes[samples->plane].row_nbytes - WIDE;

    for (uint32_t half = 0; half < 2 * groups; half++) {
        int32_t at = columns->left[4 * half] + (int32_t)samples->base;

        at = at < last ? at : last;
        samples->at[half] = at;
        for (uint32_t k = 0; k < samples->count; k++) {
            uint8_t *shuffle =
                samples->shuffles + ((half / 2 * samples->count + k) * 2 + half % 2) * WIDE;

            for (uint32_t i = 0; i < 4; i++)
                pair(shuffle + 4 * i,
                     columns->left[4 * half + i] +
                         (int32_t)(samples->base + samples->byte[k]) - at,
                     columns->step);
        }
    }
}

static void fill_sparse(struct samples *samples, const struct mcpd_prepare_plan *plan,
                        uint32_t groups)
{
    const struct mcpd_prepare_columns *columns = &plan->columns[samples->axis];

    samples->last = (int32_t)plan->planes[samples->plane].row_nbytes - NARROW;
    for (uint32_t i = 0; i < groups * COLUMNS; i++) {
        samples->at[i] = columns->left[i] + (int32_t)samples->base;
        if (samples->at[i] <= samples->last && i % COLUMNS == COLUMNS - 1)
            samples->free_groups = i / COLUMNS + 1;
    }
    memset(samples->shuffles, NOTHING, samples->count * 64);
    for (uint32_t k = 0; k < samples->count; k++) {
        for (uint32_t i = 0; i < COLUMNS; i++) { /* columns 0 1 4 5 in one, 2 3 6 7 in the other */
            uint8_t *shuffle = samples->shuffles + k * 64 + i / 2 % 2 * 32 + i / 4 * 16;

            pair(shuffle + i % 4 * 4, (int32_t)(samples->byte[k] + i % 2 * NARROW), columns->step);
        }
    }
}

static int open_plan(struct mcpd_prepare_plan *plan)
{
    uint32_t groups = (plan->columns_used + COLUMNS - 1) / COLUMNS;
    struct tables *tables;
    unsigned char *at;
    size_t n = sizeof(*tables);

    for (uint32_t p = 0; p < plan->nplanes; p++) {
        if (plan->planes[p].row_nbytes < WIDE)
            return -ENOTSUP;
    }
    n += 3 * groups * (COLUMNS * sizeof(int32_t) + 3 * 2 * WIDE) + 3 * 3 * 64;
    tables = calloc(1, n);
    if (!tables)
        return -ENOMEM;
    tables->groups = groups;
    group_components(plan, tables);
    at = (unsigned char *)(tables + 1);
    for (uint32_t s = 0; s < tables->nsamples; s++) {
        struct samples *samples = &tables->samples[s];

        samples->at = (int32_t *)(void *)at;
        samples->dense = is_dense(samples, plan->columns[samples->axis].left, groups);
        at += groups * COLUMNS * sizeof(int32_t);
        samples->shuffles = at;
        at += samples->dense ? samples->count * groups * 2 * WIDE : samples->count * 64;
        if (samples->dense)
            fill_dense(samples, plan, groups);
        else
            fill_sparse(samples, plan, groups);
    }
    plan->tables = tables;
    return 0;
}

/* ---- sampling ------------------------------------------------------------------------------ */

/* What a group needs of a row: two dense windows in `a`, or eight sparse ones in both. */
struct windows {
    __m256i a;
    __m256i b;
};

INLINE_AVX2 __m256i halves(__m128i low, __m128i high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

INLINE_AVX2 __m128i two_windows(const uint8_t *row, const int32_t *at)
{
    __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)(row + at[0]));

    return _mm_castps_si128(
        _mm_loadh_pi(_mm_castsi128_ps(first), (const __m64 *)(const void *)(row + at[1])));
}

/* Likewise near the row's end: windows that would reach beyond it start earlier. */
INLINE_AVX2 __m128i two_last_windows(const uint8_t *row, const int32_t *at, int32_t last)
{
    uint64_t window[2];

    for (int i = 0; i < 2; i++) {
        int32_t from = at[i] < last ? at[i] : last;

        memcpy(&window[i], row + from, NARROW);
        window[i] >>= 8 * (at[i] - from);
    }
    return _mm_set_epi64x((int64_t)window[1], (int64_t)window[0]);
}

enum kind { DENSE, SPARSE, SPARSE_LAST };

INLINE_AVX2 struct windows fetch(const struct samples *samples, enum kind kind, const uint8_t *row,
                                 uint32_t group)
{
    struct windows windows;

    if (kind == DENSE) {
        const int32_t *at = samples->at + 2 * group;

        windows.a = halves(_mm_loadu_si128((const __m128i *)(const void *)(row + at[0])),
                           _mm_loadu_si128((const __m128i *)(const void *)(row + at[1])));
        windows.b = windows.a;
    } else if (kind == SPARSE) {
        const int32_t *at = samples->at + COLUMNS * group;

        windows.a = halves(two_windows(row, at), two_windows(row, at + 4));
        windows.b = halves(two_windows(row, at + 2), two_windows(row, at + 6));
    } else {
        const int32_t *at = samples->at + COLUMNS * group, last = samples->last;

        windows.a =
            halves(two_last_windows(row, at, last), two_last_windows(row, at + 4, last));
        windows.b =
            halves(two_last_windows(row, at + 2, last), two_last_windows(row, at + 6, last));
    }
    return windows;
}

INLINE_AVX2 __m256i load(const void *from)
{
    return _mm256_loadu_si256(from);
}

/* A component's eight pairs of samples, as 16 bits. */
INLINE_AVX2 __m256i pairs_of(const uint8_t *shuffle, enum kind kind, struct windows windows)
{
    if (kind == DENSE)
        return _mm256_shuffle_epi8(windows.a, load(shuffle));
    return _mm256_or_si256(_mm256_shuffle_epi8(windows.a, load(shuffle)),
                           _mm256_shuffle_epi8(windows.b, load(shuffle + 32)));
}

/* Groups first..end - 1 of a row of the output. */
INLINE_AVX2 void sample_groups(const struct samples *samples, enum kind kind, uint32_t count,
                               const uint8_t *upper, const uint8_t *lower, int blended,
                               int16_t weight, const float *weights, uint32_t first, uint32_t end,
                               float *const out[3])
{
    const __m256i row_weight = _mm256_set1_epi16(weight);
    const __m256i left_of_pair = _mm256_set1_epi32(1);
    const __m256i difference_of_pair = _mm256_set1_epi32(0x0001ffff); /* -1 the left, 1 the right */

    for (uint32_t g = first; g < end; g++) {
        const uint8_t *shuffle =
            samples->shuffles + (kind == DENSE ? (size_t)g * count * 2 * WIDE : 0);
        struct windows above = fetch(samples, kind, upper, g), below = above;
        __m256 column_weight = _mm256_loadu_ps(weights + g * COLUMNS);

        if (blended)
            below = fetch(samples, kind, lower, g);
        for (uint32_t k = 0; k < count; k++, shuffle += kind == DENSE ? 2 * WIDE : 64) {
            __m256i pairs = pairs_of(shuffle, kind, above), level = _mm256_slli_epi16(pairs, 6);
            __m256 left, difference;

            if (blended) {
                __m256i step =
                    _mm256_slli_epi16(_mm256_sub_epi16(pairs_of(shuffle, kind, below), pairs), 7);

                level = _mm256_add_epi16(level, _mm256_mulhi_epi16(step, row_weight));
            }
            left = _mm256_cvtepi32_ps(_mm256_madd_epi16(level, left_of_pair));
            difference = _mm256_cvtepi32_ps(_mm256_madd_epi16(level, difference_of_pair));
            _mm256_storeu_ps(out[k] + g * COLUMNS,
                             _mm256_add_ps(left, _mm256_mul_ps(difference, column_weight)));
        }
    }
}

/* The same with what is constant over a row known to the compiler. */
INLINE_AVX2 void sample_row(const struct samples *samples, uint32_t count, const uint8_t *upper,
                            const uint8_t *lower, int blended, int16_t weight,
                            const float *weights, uint32_t groups, float *const out[3])
{
    uint32_t middle = samples->free_groups;

    if (samples->dense) {
        sample_groups(samples, DENSE, count, upper, lower, blended, weight, weights, 0, groups,
                      out);
        return;
    }
    sample_groups(samples, SPARSE, count, upper, lower, blended, weight, weights, 0, middle, out);
    sample_groups(samples, SPARSE_LAST, count, upper, lower, blended, weight, weights, middle,
                  groups, out);
}

AVX2 static void sample_one(const struct samples *samples, const uint8_t *upper,
                            const uint8_t *lower, int16_t weight, const float *weights,
                            uint32_t groups, float *const out[3])
{
    if (weight)
        sample_row(samples, 1, upper, lower, 1, weight, weights, groups, out);
    else
        sample_row(samples, 1, upper, lower, 0, weight, weights, groups, out);
}

AVX2 static void sample_several(const struct samples *samples, const uint8_t *upper,
                                const uint8_t *lower, int16_t weight, const float *weights,
                                uint32_t groups, float *const out[3])
{
    if (samples->count == 2 && weight)
        sample_row(samples, 2, upper, lower, 1, weight, weights, groups, out);
    else if (samples->count == 2)
        sample_row(samples, 2, upper, lower, 0, weight, weights, groups, out);
    else if (weight)
        sample_row(samples, 3, upper, lower, 1, weight, weights, groups, out);
    else
        sample_row(samples, 3, upper, lower, 0, weight, weights, groups, out);
}

/* Asks for the bytes in use of a row: rows that count lie apart, and no stream of lines leads on. */
static void ask_for(const struct mcpd_prepare_plane *plane, const uint8_t *row)
{
    for (uint32_t i = 0; i < plane->nbytes; i += MEMORY_LINE)
        __builtin_prefetch(row + plane->first + i);
}

static void ask_for_rows(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y)
{
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        const struct mcpd_prepare_plane *plane = &plan->planes[p];
        const struct mcpd_prepare_rows *rows = &plan->rows[plane->axis];

        if (y == 0 || rows->upper[y] != rows->lower[y - 1])
            ask_for(plane, source + plane->offset + rows->upper[y] * plane->stride);
        if (rows->lower[y] != rows->upper[y])
            ask_for(plane, source + plane->offset + rows->lower[y] * plane->stride);
    }
}

static void sample(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y,
                   struct mcpd_prepare_buffers *buffers)
{
    const struct tables *tables = plan->tables;

    if (y + 1 < plan->rows_used)
        ask_for_rows(plan, source, y + 1);

    for (uint32_t s = 0; s < tables->nsamples; s++) {
        const struct samples *samples = &tables->samples[s];
        const struct mcpd_prepare_plane *plane = &plan->planes[samples->plane];
        const struct mcpd_prepare_rows *rows = &plan->rows[plane->axis];
        const uint8_t *upper = source + plane->offset + rows->upper[y] * plane->stride;
        const uint8_t *lower = source + plane->offset + rows->lower[y] * plane->stride;
        const float *weights = plan->columns[samples->axis].weight;
        float *out[3];

        for (uint32_t k = 0; k < samples->count; k++)
            out[k] = buffers->component[samples->component[k]];
        if (samples->count == 1)
            sample_one(samples, upper, lower, rows->weight[y], weights, tables->groups, out);
        else
            sample_several(samples, upper, lower, rows->weight[y], weights, tables->groups, out);
    }
}

/* ---- mixing -------------------------------------------------------------------------------- */

/* What a channel is made of, and the constants, each in a register. */
struct terms {
    const float *from[3];
    __m256 factor[3];
    __m256 offset;
    __m256 gain;
    __m256 bias;
};

INLINE_AVX2 __m256 clamp(__m256 value)
{
    return _mm256_min_ps(_mm256_max_ps(value, _mm256_setzero_ps()), _mm256_set1_ps(255.0f));
}

INLINE_AVX2 __m256 mix8(const struct terms *terms, int nterms, uint32_t i)
{
    __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(terms->from[0] + i), terms->factor[0]);

    for (int k = 1; k < nterms; k++)
        sum = _mm256_add_ps(
            sum, _mm256_mul_ps(_mm256_loadu_ps(terms->from[k] + i), terms->factor[k]));
    sum = clamp(_mm256_add_ps(sum, terms->offset));
    return _mm256_add_ps(_mm256_mul_ps(sum, terms->gain), terms->bias);
}

/* Eight values as the output has them; at `to` there is room for 8. */
INLINE_AVX2 void store8(enum mcpd_prepare_dtype dtype, __m256 values, unsigned char *to)
{
    if (dtype == MCPD_OUT_FLOAT32) {
        _mm256_storeu_ps((float *)(void *)to, values);
    } else if (dtype == MCPD_OUT_FLOAT16) {
        _mm_storeu_si128((__m128i *)(void *)to,
                         _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i whole = _mm256_cvttps_epi32(_mm256_add_ps(clamp(values), _mm256_set1_ps(0.5f)));
        __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole),
                                         _mm256_extracti128_si256(whole, 1));

        _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(words, words));
    }
}

INLINE_AVX2 void mix_row(const struct mcpd_prepare_mix *mix, int nterms,
                         enum mcpd_prepare_dtype dtype, size_t value_nbytes,
                         const struct mcpd_prepare_buffers *buffers, uint32_t n,
                         unsigned char *to)
{
    struct terms terms = {.offset = _mm256_set1_ps(mix->offset),
                          .gain = _mm256_set1_ps(mix->gain),
                          .bias = _mm256_set1_ps(mix->bias)};
    uint32_t whole = n / COLUMNS * COLUMNS;
    unsigned char last[COLUMNS * sizeof(float)];

    for (int k = 0; k < nterms; k++) {
        terms.from[k] = buffers->component[mix->component[k]];
        terms.factor[k] = _mm256_set1_ps(mix->factor[k]);
    }
    for (uint32_t i = 0; i < whole; i += COLUMNS)
        store8(dtype, mix8(&terms, nterms, i), to + i * value_nbytes);
    if (whole < n) {
        store8(dtype, mix8(&terms, nterms, whole), last);
        memcpy(to + whole * value_nbytes, last, (n - whole) * value_nbytes);
    }
}

#define MIX(name, dtype, value_nbytes)                                                             \
    AVX2 static void name(const struct mcpd_prepare_mix *mix,                                      \
                          const struct mcpd_prepare_buffers *buffers, uint32_t n, void *to)        \
    {                                                                                              \
        if (mix->nterms == 3)                                                                      \
            mix_row(mix, 3, dtype, value_nbytes, buffers, n, to);                                  \
        else if (mix->nterms == 2)                                                                 \
            mix_row(mix, 2, dtype, value_nbytes, buffers, n, to);                                  \
        else                                                                                       \
            mix_row(mix, 1, dtype, value_nbytes, buffers, n, to);                                  \
    }

MIX(mix_floats, MCPD_OUT_FLOAT32, 4)
MIX(mix_halves, MCPD_OUT_FLOAT16, 2)
MIX(mix_bytes, MCPD_OUT_UINT8, 1)

static void mix(const struct mcpd_prepare_plan *plan, uint32_t channel,
                struct mcpd_prepare_buffers *buffers, void *to)
{
    const struct mcpd_prepare_mix *m = &plan->mix[channel];

    if (plan->dtype == MCPD_OUT_FLOAT32)
        mix_floats(m, buffers, plan->columns_used, to);
    else if (plan->dtype == MCPD_OUT_FLOAT16)
        mix_halves(m, buffers, plan->columns_used, to);
    else
        mix_bytes(m, buffers, plan->columns_used, to);
}

/* ---- interleaving -------------------------------------------------------------------------- */

/* 16 bytes of each row at a time become 48: byte shuffles, whatever the size of a value. */
AVX2 static void interleave(size_t value_nbytes, unsigned char *const from[3], uint32_t n, void *to)
{
    uint8_t shuffle[3][3][16]; /* [16 bytes of the result][row] */
    __m128i shuffles[3][3];
    size_t whole = n * value_nbytes / 16 * 16;
    unsigned char *out = to, *const rest[3] = {from[0] + whole, from[1] + whole, from[2] + whole};

    memset(shuffle, NOTHING, sizeof(shuffle));
    for (size_t i = 0; i < 48; i++) {
        size_t value = i / value_nbytes;

        shuffle[i / 16][value % 3][i % 16] =
            (uint8_t)(value / 3 * value_nbytes + i % value_nbytes);
    }
    for (int part = 0; part < 3; part++) {
        for (int row = 0; row < 3; row++)
            shuffles[part][row] = _mm_loadu_si128((const __m128i *)(void *)shuffle[part][row]);
    }
    for (size_t i = 0; i < whole; i += 16, out += 48) {
        __m128i a = _mm_loadu_si128((const __m128i *)(void *)(from[0] + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(void *)(from[1] + i));
        __m128i c = _mm_loadu_si128((const __m128i *)(void *)(from[2] + i));

        for (int part = 0; part < 3; part++) {
            __m128i ab = _mm_or_si128(_mm_shuffle_epi8(a, shuffles[part][0]),
                                      _mm_shuffle_epi8(b, shuffles[part][1]));

            _mm_storeu_si128((__m128i *)(void *)(out + 16 * part),
                             _mm_or_si128(ab, _mm_shuffle_epi8(c, shuffles[part][2])));
        }
    }
    mcpd_prepare_scalar.interleave(value_nbytes, rest, n - (uint32_t)(whole / value_nbytes), out);
}

static const struct mcpd_prepare_isa avx2 = {
    .name = "avx2",
    .open = open_plan,
    .sample = sample,
    .mix = mix,
    .interleave = interleave,
};

const struct mcpd_prepare_isa *mcpd_prepare_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &avx2 : NULL;
}

#else

const struct mcpd_prepare_isa *mcpd_prepare_avx2(void)
{
    return NULL;
}

#endif
