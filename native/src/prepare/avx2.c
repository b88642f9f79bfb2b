/* Sampling with AVX2: what avx2.h says of windows, done; and sums of areas. */
#include "prepare/avx2.h"

#if defined(__x86_64__)

#include <string.h>

#define GROUP MCPD_PREPARE_GROUP
#define MEMORY_LINE 64u

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

        memcpy(&window[i], row + from, AVX2_NARROW);
        window[i] >>= 8 * (at[i] - from);
    }
    return _mm_set_epi64x((int64_t)window[1], (int64_t)window[0]);
}

/* The row that is sampled, and the bytes of another that the memory is asked for meanwhile. */
struct rows {
    const uint8_t *row;
    const uint8_t *ahead;
};

/* A group's tables; most of one that repeats stays in registers. */
struct group {
    const int32_t *at;
    const int16_t *weights;
    const uint8_t *shuffles;
};

/* The windows of one register's values, in one vector or two. */
INLINE_AVX2 void fetch(const struct avx2_windows *windows, enum avx2_kind kind, const uint8_t *row,
                       const int32_t *at, int half, __m256i to[2])
{
    if (kind == EIGHT) {
        to[0] = halves(load16(row + at[0]), load16(row + at[1]));
    } else if (kind == DENSE || kind == JOINT) {
        at += 2 * half;
        to[0] = halves(load16(row + at[0]), load16(row + at[1]));
    } else if (kind == PAIRED) {
        at += 4 * half;
        to[0] = halves(load16(row + at[0]), load16(row + at[2]));
        to[1] = halves(load16(row + at[1]), load16(row + at[3]));
    } else if (kind == SPARSE) {
        at += 8 * half;
        to[0] = halves(two_windows(row, at), two_windows(row, at + 4));
        to[1] = halves(two_windows(row, at + 2), two_windows(row, at + 6));
    } else {
        at += 8 * half;
        to[0] = halves(two_last_windows(row, at, windows->last),
                       two_last_windows(row, at + 4, windows->last));
        to[1] = halves(two_last_windows(row, at + 2, windows->last),
                       two_last_windows(row, at + 6, windows->last));
    }
}

/* Pairs of samples times their weights, in 1/128 of a level, less `zero`. */
INLINE_AVX2 __m256i weighted(__m256i pairs, __m256i weights, int32_t zero)
{
    /* Weights are negative: 1 is -32768, and 32768 would not fit. */
    return _mm256_srai_epi32(_mm256_sub_epi32(_mm256_set1_epi32(128 - zero * 256),
                                              _mm256_madd_epi16(pairs, weights)),
                             8);
}

/* The same of bytes beside each other: left and its difference from right, times right's weight. */
INLINE_AVX2 __m256i weighted_bytes(__m256i pairs, __m256i weights, int32_t zero)
{
    __m256i left = _mm256_slli_epi16(_mm256_and_si256(pairs, _mm256_set1_epi16(0xff)), 7);
    __m256i difference = _mm256_maddubs_epi16(pairs, _mm256_set1_epi16((int16_t)0xff01));

    left = _mm256_sub_epi16(left, _mm256_set1_epi16((int16_t)zero));
    return _mm256_add_epi16(left, _mm256_mulhrs_epi16(_mm256_slli_epi16(difference, 7), weights));
}

/* One register of a component at a group: its pairs, or single samples. */
INLINE_AVX2 __m256i shuffled(const __m256i fetched[2], uint32_t parts, const uint8_t *shuffle)
{
    __m256i values = _mm256_shuffle_epi8(fetched[0], load32(shuffle));

    if (parts == 2)
        values = _mm256_or_si256(values, _mm256_shuffle_epi8(fetched[1], load32(shuffle + 32)));
    return values;
}

/* A group of each component of a set. */
INLINE_AVX2 void sample_group(const struct avx2_windows *windows, enum avx2_kind kind, int single,
                              uint32_t count, struct group group, const uint8_t *row, int32_t zero,
                              __m256i values[3])
{
    const uint8_t *shuffle = group.shuffles;
    uint32_t parts = kind == DENSE ? 1 : 2;
    __m256i fetched[2][2], low, high;

    fetch(windows, kind, row, group.at, 0, fetched[0]);
    if (kind == EIGHT) {
        low = weighted_bytes(_mm256_shuffle_epi8(fetched[0][0], load32(shuffle)),
                             load32(group.weights), zero);
        values[0] = _mm256_permute4x64_epi64(low, 0xd8);
        return;
    }
    fetch(windows, kind, row, group.at, 1, fetched[1]);
    if (kind == JOINT) {
        low = weighted_bytes(_mm256_shuffle_epi8(fetched[0][0], load32(shuffle)),
                             load32(group.weights), zero);
        high = weighted_bytes(_mm256_shuffle_epi8(fetched[1][0], load32(shuffle + 32)),
                              load32(group.weights + 16), zero);
        values[0] = _mm256_unpacklo_epi64(low, high);
        values[1] = _mm256_unpackhi_epi64(low, high);
        return;
    }
    for (uint32_t k = 0; k < count; k++, shuffle += 2 * parts * 32) {
        low = shuffled(fetched[0], parts, shuffle);
        high = shuffled(fetched[1], parts, shuffle + parts * 32);
        if (single)
            values[k] = _mm256_sub_epi16(_mm256_slli_epi16(_mm256_or_si256(low, high), 7),
                                         _mm256_set1_epi16((int16_t)zero));
        else
            values[k] = _mm256_packs_epi32(weighted(low, load32(group.weights), zero),
                                           weighted(high, load32(group.weights + 16), zero));
    }
}

/* Groups first..end - 1; `run`: their tables are those of the first. */
INLINE_AVX2 void sample_groups(const struct avx2_windows *windows, enum avx2_kind kind, int single,
                               uint32_t count, int run, struct rows rows, int32_t zero,
                               uint32_t first, uint32_t end, int16_t *const out[3])
{
    const struct avx2_windows own = *windows;
    uint32_t n = kind == EIGHT ? 2 : kind == PAIRED ? 8 : kind == DENSE || kind == JOINT ? 4 : 16;
    int32_t at[GROUP]; /* of a run: a copy, for what is stored might be anybody's */
    int16_t *to[3] = {NULL, NULL, NULL};
    __m256i values[3];

    rows.ahead += first * own.ask_nbytes;
    for (uint32_t w = 0; run && first < end && w < n; w++)
        at[w] = own.at[first * n + w];
    for (uint32_t k = 0; k < count; k++)
        to[k] = out[k];
    for (uint32_t g = first; g < end; g++) {
        uint32_t of = run ? first : g;
        struct group group = {run ? at : own.at + of * n, own.weights + of * 32,
                              own.shuffles + of * own.of_group};

        /* A few at a time, so that work on this row and the wait for the other overlap. */
        _mm_prefetch((const char *)rows.ahead, _MM_HINT_T0);
        for (uint32_t i = MEMORY_LINE; kind >= PAIRED && i < own.ask_nbytes; i += MEMORY_LINE)
            _mm_prefetch((const char *)rows.ahead + i, _MM_HINT_T0);
        rows.ahead += own.ask_nbytes;
        sample_group(&own, kind, single, count, group, rows.row, zero, values);
        for (uint32_t k = 0; k < count; k++)
            _mm256_storeu_si256((__m256i *)(void *)(to[k] + g * GROUP), values[k]);
        rows.row += run ? own.period : 0;
    }
}

/* A row by windows of one kind. */
INLINE_AVX2 void sample_row(const struct avx2_windows *windows, enum avx2_kind kind, int single,
                            uint32_t count, struct rows rows, int32_t zero, uint32_t groups,
                            int16_t *const out[3])
{
    uint32_t first = windows->run_first, end = windows->run_end;

    sample_groups(windows, kind, single, count, 0, rows, zero, 0, first, out);
    sample_groups(windows, kind, single, count, 1, rows, zero, first, end, out);
    sample_groups(windows, kind, single, count, 0, rows, zero, end, groups, out);
}

INLINE_AVX2 void sample_sparse(const struct avx2_windows *windows, int single, uint32_t count,
                               struct rows rows, int32_t zero, uint32_t groups,
                               int16_t *const out[3])
{
    uint32_t first = windows->free_first, end = windows->free_end;

    sample_groups(windows, SPARSE_NEAR_END, single, count, 0, rows, zero, 0, first, out);
    sample_groups(windows, SPARSE, single, count, 0, rows, zero, first, end, out);
    sample_groups(windows, SPARSE_NEAR_END, single, count, 0, rows, zero, end, groups, out);
}

/* One for each number of components, so that it is known to the compiler. */
#define SAMPLE(name, count, single, special)                                                       \
    AVX2 static void name(const struct avx2_windows *windows, struct rows rows, int32_t zero,      \
                          uint32_t groups, int16_t *const out[3])                                  \
    {                                                                                              \
        if (windows->kind == SPARSE)                                                               \
            sample_sparse(windows, single, count, rows, zero, groups, out);                        \
        else if (windows->kind == PAIRED)                                                          \
            sample_row(windows, PAIRED, single, count, rows, zero, groups, out);                   \
        else if (windows->kind == DENSE)                                                           \
            sample_row(windows, DENSE, single, count, rows, zero, groups, out);                    \
        else                                                                                       \
            sample_row(windows, special, single, count, rows, zero, groups, out);                  \
    }

SAMPLE(sample_one, 1, 0, EIGHT)
SAMPLE(sample_two, 2, 0, JOINT)
SAMPLE(sample_three, 3, 0, DENSE)
SAMPLE(sample_one_single, 1, 1, DENSE)
SAMPLE(sample_two_single, 2, 1, DENSE)
SAMPLE(sample_three_single, 3, 1, DENSE)

static void sample(const struct mcpd_prepare_plan *plan, uint32_t index, const uint8_t *row,
                   const uint8_t *ahead, int16_t *const out[3])
{
    static void (*const loops[2][3])(const struct avx2_windows *, struct rows, int32_t, uint32_t,
                                     int16_t *const *) = {
        {sample_one, sample_two, sample_three},
        {sample_one_single, sample_two_single, sample_three_single}};
    const struct avx2_tables *tables = plan->tables;
    const struct avx2_windows *windows = &tables->sets[index];
    const struct mcpd_prepare_set *set = &plan->sets[index];
    struct rows rows = {row, ahead + windows->ask_from};

    loops[windows->single][set->count - 1](windows, rows, set->zero, tables->groups, out);
}

/* ---- area ---------------------------------------------------------------------------------- */

/* Rows summed by their shares, sixteen bytes at a time; the rest as scalar.c does. */
AVX2 static void sum_rows(const uint8_t *row, uint64_t stride, const float *share, uint32_t ntaps,
                          uint32_t nbytes, float *sums)
{
    uint32_t whole = nbytes / 16 * 16;

    for (uint32_t i = 0; i < whole; i += 16) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();

        for (uint32_t t = 0; t < ntaps; t++) {
            __m128i bytes;
            __m256 factor = _mm256_set1_ps(share[t]);

            if (share[t] == 0.0f)
                continue;
            bytes = load16(row + t * stride + i);
            low = _mm256_add_ps(
                low, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), factor));
            high = _mm256_add_ps(
                high, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
                                        _mm_unpackhi_epi64(bytes, bytes))),
                                    factor));
        }
        _mm256_storeu_ps(sums + i, low);
        _mm256_storeu_ps(sums + i + 8, high);
    }
    for (uint32_t i = whole; i < nbytes; i++) {
        sums[i] = 0.0f;
        for (uint32_t t = 0; t < ntaps; t++) {
            if (share[t] != 0.0f)
                sums[i] += (float)row[t * stride + i] * share[t];
        }
    }
}

/* Eight values of a component, in 1/128 of a level. */
INLINE_AVX2 __m256i sum_eight(const struct mcpd_prepare_columns *columns, const float *from,
                              size_t padded, size_t i)
{
    __m256i at = load32(columns->left + i), step = _mm256_set1_epi32((int)columns->step);
    __m256 sum = _mm256_setzero_ps();

    for (uint32_t t = 0; t < columns->ntaps; t++) {
        __m256 share = _mm256_loadu_ps(columns->share + t * padded + i);

        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_i32gather_ps(from, at, 4), share));
        at = _mm256_add_epi32(at, step);
    }
    return _mm256_cvttps_epi32(
        _mm256_add_ps(_mm256_mul_ps(sum, _mm256_set1_ps(128.0f)), _mm256_set1_ps(0.5f)));
}

AVX2 static void sum_columns(const struct mcpd_prepare_columns *columns, const float *from,
                             size_t padded, int32_t zero, int16_t *out)
{
    for (size_t i = 0; i < padded; i += GROUP) {
        __m256i values = _mm256_packs_epi32(sum_eight(columns, from, padded, i),
                                            sum_eight(columns, from, padded, i + 8));

        values = _mm256_sub_epi16(values, _mm256_set1_epi16((int16_t)zero));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), values);
    }
}

static void average(const struct mcpd_prepare_plan *plan, uint32_t index, const uint8_t *base,
                    uint32_t y, float *sums, int16_t *const out[3])
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_plane *plane = &plan->planes[set->plane];
    const struct mcpd_prepare_rows *rows = &plan->rows[set->axis];

    sum_rows(base + rows->upper[y] * plane->stride + plane->first, plane->stride,
             rows->share + (size_t)y * rows->ntaps, rows->ntaps, plane->nbytes, sums);
    for (uint32_t k = 0; k < set->count; k++)
        sum_columns(&plan->columns[set->axis], sums + set->base[k] - plane->first,
                    MCPD_PREPARE_PADDED(plan->values), set->zero, out[k]);
}

static const struct mcpd_prepare_isa avx2 = {
    .name = "avx2",
    .open = mcpd_prepare_avx2_open,
    .sample = sample,
    .average = average,
    .mix = mcpd_prepare_avx2_mix,
    .interleave = mcpd_prepare_avx2_interleave,
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
