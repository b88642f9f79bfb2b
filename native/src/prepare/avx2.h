/*
 * What the files of AVX2 share. Sixteen values of a line are sampled at a time.
 *
 * What they need of a row is fetched as windows, which byte shuffles make pairs of, left and right:
 *
 *   eight    a window of 16 bytes for each eight values, where their samples all lie in 16 bytes
 *   joint    a window of 16 bytes for each four values of both components of a set
 *   dense    a window of 16 bytes for each four values of a component
 *   paired   a window of 16 bytes for each two values of a component
 *   sparse   a window of 8 bytes for each value, which holds both samples of every component of every
 *            format; the shuffle is always the same
 *
 * Pairs are bytes (eight, joint): the right's difference from the left is weighted and added to it.
 * Or they are 16 bits (the others): both are weighted and summed. The result is the same.
 *
 * Sampled rows have their values in the order in which packing leaves them: 0..3, 8..11, 4..7,
 * 12..15 of each sixteen. Unpacking to 32 bits, in avx2_mix.c, puts them right again.
 *
 * Where no right sample has a weight, as in a row thinned to a third, shuffles of single samples put
 * them into place at once. No byte outside a row is read: a window that would reach beyond its end
 * starts earlier, and its shuffle is another, or it is shifted into place (sparse).
 *
 * Where the ratio is a simple one, as of 1920 to 640, all groups but the last have the same tables.
 */
#ifndef MCPD_PREPARE_AVX2_H
#define MCPD_PREPARE_AVX2_H

#include "prepare/isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

/*
 * Only functions so marked are compiled for AVX2, and without FMA, which would round differently from
 * scalar.c. The compiler may not use AVX2 in a file at large: the processor may not have it.
 */
#define AVX2 __attribute__((target("avx2,f16c")))
#ifdef MCPD_PREPARE_OUTLINE /* for sanitizers, whose checks of every copy take long to compile */
#define INLINE_AVX2 static __attribute__((noinline, unused, target("avx2,f16c")))
#else
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2,f16c")))
#endif

INLINE_AVX2 __m256i load32(const void *from)
{
    return _mm256_loadu_si256(from);
}

INLINE_AVX2 __m128i load16(const void *from)
{
    return _mm_loadu_si128(from);
}

INLINE_AVX2 __m256i halves(__m128i low, __m128i high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

#define AVX2_WIDE 16  /* bytes of a dense or paired window */
#define AVX2_NARROW 8 /* bytes of a sparse window */

enum avx2_kind { EIGHT, JOINT, DENSE, PAIRED, SPARSE, SPARSE_NEAR_END };

/* How a set is sampled. */
struct avx2_windows {
    enum avx2_kind kind;
    uint32_t values;     /* of a window */
    uint32_t base;       /* byte of the leftmost component's first sample in a row */
    uint32_t byte[3];    /* of each component in the window of a value, left sample */
    uint32_t nbytes;     /* of the window of a value */
    int32_t last;        /* the last byte that a sparse window may start at */
    uint32_t free_first; /* sparse: groups free_first..free_end - 1 start at it or before */
    uint32_t free_end;
    uint32_t run_first;  /* groups run_first..run_end - 1 have the same tables, but that each */
    uint32_t run_end;    /* starts `period` bytes after the one before */
    int32_t period;
    int single;          /* no pairs are needed */
    int32_t *at;         /* byte in the row: of each window */
    int16_t *weights;    /* [group][2][16], in the order of the registers */
    uint8_t *shuffles;   /* eight [group][32], joint [group][2][32], dense [group][component][2][32],
                            paired [group][component][2][2][32], sparse [component][2][2][32] */
    size_t of_group;     /* bytes of a group's shuffles */
    uint32_t ask_from;   /* bytes of a row to ask for: each group's share of those in use */
    uint32_t ask_nbytes;
};

struct avx2_tables {
    uint32_t groups; /* of values in a line */
    struct avx2_windows sets[3];
};

/* As struct mcpd_prepare_isa has it; in avx2_tables.c. */
int mcpd_prepare_avx2_open(struct mcpd_prepare_plan *plan);

/* The mixing half of the instruction set, in avx2_mix.c. */
void mcpd_prepare_avx2_mix(const struct mcpd_prepare_plan *plan,
                           const struct mcpd_prepare_line *line, unsigned char *const to[3]);
void mcpd_prepare_avx2_interleave(size_t value_nbytes, unsigned char *const from[3], uint32_t n,
                                  void *to);

#endif
#endif
