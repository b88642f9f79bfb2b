/*
 * What an instruction set has to supply: the inner loops of a preparation. scalar.c is portable C,
 * avx2.c and avx2_mix.c are x86-64 with AVX2. isa.c chooses, run.c drives. Another (AVX-512, NEON)
 * is one more entry in isa.c's list.
 *
 * All compute the same: where scalar.c multiplies, adds or rounds, so do the others, in the same
 * order and without fused multiply-add. An image is the same to the bit whichever made it.
 */
#ifndef MCPD_PREPARE_ISA_H
#define MCPD_PREPARE_ISA_H

#include "prepare/prepare.h"

/* What a line is mixed from: of each component two sampled rows in 1/128 of a level, blended. */
struct mcpd_prepare_line {
    const int16_t *upper[3];
    const int16_t *lower[3];
    int16_t weight[3]; /* of the lower, in 1/32768; 0: the lower is not looked at */
    int16_t *scratch;  /* for the loops' own use, as is sums */
    float *sums;
};

struct mcpd_prepare_isa {
    const char *name;

    /* Makes plan->tables, if it has any. 0, -ENOMEM, or -ENOTSUP for a plan that it cannot run. */
    int (*open)(struct mcpd_prepare_plan *plan);

    /*
     * Bilinear: a source row at every position of a line, each of the set's components. `ahead` is a
     * row that will be sampled soon, which the memory may be asked for meanwhile; or `row` again.
     */
    void (*sample)(const struct mcpd_prepare_plan *plan, uint32_t set, const uint8_t *row,
                   const uint8_t *ahead, int16_t *const out[3]);

    /* Area: likewise the rows of line `y`, the first of the plane at `plane`; `sums` has plane->nbytes. */
    void (*average)(const struct mcpd_prepare_plan *plan, uint32_t set, const uint8_t *plane,
                    uint32_t y, float *sums, int16_t *const out[3]);

    /* A line's channels in the output's type: plan->values of each, to to[channel]. */
    void (*mix)(const struct mcpd_prepare_plan *plan, const struct mcpd_prepare_line *line,
                unsigned char *const to[3]);

    /* Three rows of n values, value by value in turn. */
    void (*interleave)(size_t value_nbytes, unsigned char *const from[3], uint32_t n, void *to);
};

extern const struct mcpd_prepare_isa mcpd_prepare_scalar;

/* NULL where the processor, or the architecture compiled for, has no AVX2 and F16C. */
const struct mcpd_prepare_isa *mcpd_prepare_avx2(void);

/*
 * Sets plan->isa to the fastest that can run the plan, or to the one that MCPD_PREPARE in the
 * environment names. 0, -ENOMEM, or -EINVAL with `why` for a name that is unknown or cannot be had.
 */
int mcpd_prepare_isa_choose(struct mcpd_prepare_plan *plan, char *why, size_t nbytes);

/* Normalised values in the output's type; `scratch` has room for n. */
void mcpd_prepare_store(const struct mcpd_prepare_plan *plan, const float *from, uint32_t n,
                        float *scratch, void *to);

#endif
