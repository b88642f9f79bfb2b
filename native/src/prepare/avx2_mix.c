/* Mixing with AVX2: rows blended, colour, normalisation and storing, sixteen values at a time. */
#include "prepare/avx2.h"

#if defined(__x86_64__)

#include <string.h>

#define GROUP MCPD_PREPARE_GROUP
#define NOTHING 0x80 /* in a shuffle: a byte of 0 */

/* How values are stored: `BYTE` is uint8 and int8. */
enum kind { FLOAT, HALF, BYTE };

INLINE_AVX2 __m256i times(__m256i a, int16_t b)
{
    return _mm256_mulhrs_epi16(a, _mm256_set1_epi16(b));
}

INLINE_AVX2 __m256i within(__m256i value, int16_t most)
{
    return _mm256_min_epi16(_mm256_max_epi16(value, _mm256_setzero_si256()),
                            _mm256_set1_epi16(most));
}

/* A component's two rows at sixteen values, as one. */
INLINE_AVX2 __m256i blend(const struct mcpd_prepare_line *line, uint32_t k, int blended, uint32_t i)
{
    __m256i upper = load32(line->upper[k] + i);

    if (!blended)
        return upper;
    return _mm256_add_epi16(
        upper, times(_mm256_sub_epi16(load32(line->lower[k] + i), upper), line->weight[k]));
}

/* Eight values; adding a bias of 0 to them would change nothing. */
INLINE_AVX2 __m256 normalise(__m256i wide, int biased, float gain, float bias)
{
    __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(gain));

    return biased ? _mm256_add_ps(value, _mm256_set1_ps(bias)) : value;
}

/* To whole numbers as scalar.c does it: the FPU rounds to nearest, ties to even. */
INLINE_AVX2 __m256i whole(__m256 value, const struct mcpd_prepare_mix *mix)
{
    value = _mm256_min_ps(_mm256_max_ps(value, _mm256_set1_ps(mix->low)), _mm256_set1_ps(mix->high));
    return _mm256_cvtps_epi32(value);
}

/* Sixteen values of a channel as the output has them; at `to` there is room for them. */
INLINE_AVX2 void store(const struct mcpd_prepare_mix *mix, enum kind kind, int biased, uint32_t c,
                       __m256i channel, unsigned char *to)
{
    /* Unpacking puts what sampling has packed in order, each in the upper half of 32 bits. */
    const __m256i zero = _mm256_setzero_si256();
    __m256 low = normalise(_mm256_unpacklo_epi16(zero, channel), biased, mix->gain[c], mix->bias[c]);
    __m256 high =
        normalise(_mm256_unpackhi_epi16(zero, channel), biased, mix->gain[c], mix->bias[c]);

    if (kind == FLOAT) {
        _mm256_storeu_ps((float *)(void *)to, low);
        _mm256_storeu_ps((float *)(void *)to + 8, high);
    } else if (kind == HALF) {
        _mm256_storeu_si256((__m256i *)(void *)to,
                            halves(_mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT),
                                   _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT)));
    } else {
        __m256i words = _mm256_permute4x64_epi64(
            _mm256_packs_epi32(whole(low, mix), whole(high, mix)), 0xd8);
        __m256i bytes;

        /* Words are within the type, so that their low bytes are the values. */
        words = _mm256_and_si256(
            _mm256_add_epi16(words, _mm256_set1_epi16((int16_t)mix->zero_point)),
            _mm256_set1_epi16(0xff));
        bytes = _mm256_packus_epi16(words, words);
        _mm_storel_epi64((__m128i *)(void *)to, _mm256_castsi256_si128(bytes));
        _mm_storel_epi64((__m128i *)(void *)(to + 8), _mm256_extracti128_si256(bytes, 1));
    }
}

/* Three channels, or one, of sixteen values from `i` on. `chroma`: whether those rows are blended. */
INLINE_AVX2 void mix_group(const struct mcpd_prepare_mix *mix, enum mcpd_prepare_mixing how,
                           int blended, int chroma, uint32_t nchannels,
                           const struct mcpd_prepare_line *line, uint32_t i, __m256i channels[3])
{
    if (how == MCPD_MIX_LUMA) {
        channels[0] = within(blend(line, 0, blended, i), mix->white);
    } else if (how == MCPD_MIX_YUV) {
        __m256i y = blend(line, 0, blended, i);
        __m256i u = blend(line, 1, chroma, i), v = blend(line, 2, chroma, i);
        __m256i red = _mm256_add_epi16(v, times(v, mix->red_of_v));
        __m256i green = _mm256_add_epi16(times(u, mix->green_of_u), times(v, mix->green_of_v));
        __m256i blue = _mm256_add_epi16(u, times(u, mix->blue_of_u));

        channels[0] = within(_mm256_adds_epi16(y, red), mix->white);
        channels[1] = within(_mm256_adds_epi16(y, green), mix->white);
        channels[2] = within(_mm256_adds_epi16(y, blue), mix->white);
    } else if (how == MCPD_MIX_GRAY) {
        channels[0] = _mm256_add_epi16(
            _mm256_add_epi16(times(blend(line, 0, blended, i), mix->gray[0]),
                             times(blend(line, 1, blended, i), mix->gray[1])),
            times(blend(line, 2, blended, i), mix->gray[2]));
    } else {
        for (uint32_t c = 0; c < nchannels; c++)
            channels[c] = blend(line, mix->source[c], blended, i);
    }
}

INLINE_AVX2 void mix_line(const struct mcpd_prepare_plan *plan, enum mcpd_prepare_mixing how,
                          enum kind kind, int biased, int blended, int chroma,
                          uint32_t nchannels, const struct mcpd_prepare_line *given, unsigned char *const to[3])
{
    const struct mcpd_prepare_mix mix = plan->mix;
    const struct mcpd_prepare_line line = *given;
    const uint32_t value_nbytes = kind == FLOAT ? 4 : kind == HALF ? 2 : 1;
    uint32_t n = plan->values, full = n / GROUP * GROUP;
    unsigned char *out[3], last[GROUP * sizeof(float)];
    __m256i channels[3];

    for (uint32_t c = 0; c < nchannels; c++)
        out[c] = to[nchannels == 1 ? 0 : mix.channel[c]];
    for (uint32_t i = 0; i < full; i += GROUP) {
        mix_group(&mix, how, blended, chroma, nchannels, &line, i, channels);
        for (uint32_t c = 0; c < nchannels; c++)
            store(&mix, kind, biased, nchannels == 1 ? 0 : mix.channel[c], channels[c],
                  out[c] + (size_t)i * value_nbytes);
    }
    if (full == n)
        return;
    mix_group(&mix, how, blended, chroma, nchannels, &line, full, channels);
    for (uint32_t c = 0; c < nchannels; c++) {
        store(&mix, kind, biased, nchannels == 1 ? 0 : mix.channel[c], channels[c], last);
        memcpy(out[c] + (size_t)full * value_nbytes, last, (size_t)(n - full) * value_nbytes);
    }
}

/* What is constant over a line is known to the compiler. */
#define MIX(name, kind, biased)                                                                            \
    AVX2 static void name(const struct mcpd_prepare_plan *plan,                                    \
                          const struct mcpd_prepare_line *line, unsigned char *const to[3])        \
    {                                                                                              \
        int blended = line->weight[0] != 0, chroma = line->weight[1] != 0;                         \
                                                                                                   \
        switch (plan->mix.how) {                                                                   \
        case MCPD_MIX_YUV:                                                                         \
            if (blended && chroma)                                                                 \
                mix_line(plan, MCPD_MIX_YUV, kind, biased, 1, 1, 3, line, to);                             \
            else if (blended)                                                                      \
                mix_line(plan, MCPD_MIX_YUV, kind, biased, 1, 0, 3, line, to);                             \
            else if (chroma)                                                                       \
                mix_line(plan, MCPD_MIX_YUV, kind, biased, 0, 1, 3, line, to);                             \
            else                                                                                   \
                mix_line(plan, MCPD_MIX_YUV, kind, biased, 0, 0, 3, line, to);                             \
            break;                                                                                 \
        case MCPD_MIX_LUMA: mix_line(plan, MCPD_MIX_LUMA, kind, biased, 1, 0, 1, line, to); break;         \
        case MCPD_MIX_GRAY: mix_line(plan, MCPD_MIX_GRAY, kind, biased, 1, 0, 1, line, to); break;         \
        default:                                                                                   \
            if (plan->nchannels == 1)                                                              \
                mix_line(plan, MCPD_MIX_SAME, kind, biased, 1, 0, 1, line, to);                            \
            else if (blended)                                                                      \
                mix_line(plan, MCPD_MIX_SAME, kind, biased, 1, 0, 3, line, to);                            \
            else                                                                                   \
                mix_line(plan, MCPD_MIX_SAME, kind, biased, 0, 0, 3, line, to);                            \
        }                                                                                          \
    }

MIX(mix_floats, FLOAT, 1)
MIX(mix_plain_floats, FLOAT, 0)
MIX(mix_halves, HALF, 1)
MIX(mix_plain_halves, HALF, 0)
MIX(mix_bytes, BYTE, 1)

void mcpd_prepare_avx2_mix(const struct mcpd_prepare_plan *plan,
                           const struct mcpd_prepare_line *line, unsigned char *const to[3])
{
    if (plan->dtype == MCPD_OUT_FLOAT32 && plan->mix.plain)
        mix_plain_floats(plan, line, to);
    else if (plan->dtype == MCPD_OUT_FLOAT32)
        mix_floats(plan, line, to);
    else if (plan->dtype == MCPD_OUT_FLOAT16 && plan->mix.plain)
        mix_plain_halves(plan, line, to);
    else if (plan->dtype == MCPD_OUT_FLOAT16)
        mix_halves(plan, line, to);
    else
        mix_bytes(plan, line, to);
}

/* 16 bytes of each row at a time become 48: byte shuffles, whatever the size of a value. */
AVX2 void mcpd_prepare_avx2_interleave(size_t value_nbytes, unsigned char *const from[3],
                                       uint32_t n, void *to)
{
    uint8_t shuffle[3][3][16]; /* [16 bytes of the result][row] */
    __m128i shuffles[3][3];
    size_t whole_nbytes = n * value_nbytes / 16 * 16;
    unsigned char *out = to, *const rest[3] = {from[0] + whole_nbytes, from[1] + whole_nbytes,
                                               from[2] + whole_nbytes};

    memset(shuffle, NOTHING, sizeof(shuffle));
    for (size_t i = 0; i < 48; i++) {
        size_t value = i / value_nbytes;

        shuffle[i / 16][value % 3][i % 16] =
            (uint8_t)(value / 3 * value_nbytes + i % value_nbytes);
    }
    for (int part = 0; part < 3; part++) {
        for (int row = 0; row < 3; row++)
            shuffles[part][row] = load16(shuffle[part][row]);
    }
    for (size_t i = 0; i < whole_nbytes; i += 16, out += 48) {
        __m128i a = load16(from[0] + i), b = load16(from[1] + i), c = load16(from[2] + i);

        for (int part = 0; part < 3; part++) {
            __m128i ab = _mm_or_si128(_mm_shuffle_epi8(a, shuffles[part][0]),
                                      _mm_shuffle_epi8(b, shuffles[part][1]));

            _mm_storeu_si128((__m128i *)(void *)(out + 16 * part),
                             _mm_or_si128(ab, _mm_shuffle_epi8(c, shuffles[part][2])));
        }
    }
    mcpd_prepare_scalar.interleave(value_nbytes, rest, n - (uint32_t)(whole_nbytes / value_nbytes),
                                   out);
}

#endif
