/*
 * What an instruction set has to supply: the inner loops of a preparation. One file each: scalar.c
 * is portable C, avx2.c is x86-64 with AVX2. isa.c chooses, run.c drives.
 *
 * All compute the same: where scalar.c multiplies, adds or rounds, so do the others, in the same
 * order and without fused multiply-add. An image is the same to the bit whichever made it.
 */
#ifndef MCPD_PREPARE_ISA_H
#define MCPD_PREPARE_ISA_H

#include "prepare/prepare.h"

/* The row buffers of one run. Rows of columns are padded to whole groups. */
struct mcpd_prepare_buffers {
    float *component[3];      /* at the columns used, in 1/64 of a level */
    unsigned char *stored[3]; /* channels of a whole row in the output's type, to be interleaved */
    float *channel;           /* scalar.c's own, as are those below */
    float *scratch;
    int32_t *pairs;      /* the samples either side of each output column: left low, right high */
    int16_t *blended[3]; /* one for each plane, in 1/64 of a level */
};

struct mcpd_prepare_isa {
    const char *name;

    /* Makes plan->tables, if it has any. 0, -ENOMEM, or -ENOTSUP for a plan that it cannot run. */
    int (*open)(struct mcpd_prepare_plan *plan);

    /* Row `y` of the rectangle that shows the source, into buffers->component. */
    void (*sample)(const struct mcpd_prepare_plan *plan, const uint8_t *source, uint32_t y,
                   struct mcpd_prepare_buffers *buffers);

    /* A channel of that row from the components: columns_used values of the output's type. */
    void (*mix)(const struct mcpd_prepare_plan *plan, uint32_t channel,
                struct mcpd_prepare_buffers *buffers, void *to);

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

/* Values in the output's type; `scratch` has room for n. */
void mcpd_prepare_convert(enum mcpd_prepare_dtype dtype, const float *from, uint32_t n,
                          float *scratch, void *to);

#endif
