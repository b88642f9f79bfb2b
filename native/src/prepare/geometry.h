/* From a spec to where samples are taken; used by plan.c, made in geometry.c. */
#ifndef MCPD_PREPARE_GEOMETRY_H
#define MCPD_PREPARE_GEOMETRY_H

#include "prepare/prepare.h"

/* What a pixel format looks like in memory. */
struct mcpd_prepare_format {
    uint32_t nplanes;
    uint32_t ncomponents;
    int yuv;
    uint32_t chroma_shift_x; /* log2 of luma samples per chroma sample */
    uint32_t chroma_shift_y;
    uint32_t step[2];  /* bytes between samples: of luma or RGB, of chroma */
    uint32_t plane[3]; /* of each component */
    uint32_t base[3];  /* byte of its first sample in a row */
};

/* Samples for `n` pixels of an axis: chroma that is shared by two is there for the last of an odd n. */
uint32_t mcpd_prepare_subsampled(uint32_t n, uint32_t shift);

/*
 * Places the source in the output: left, top, shown_width, shown_height, lines, values and affine of
 * the plan; and how lines follow the source: across[0] its columns, across[1] its rows.
 */
void mcpd_prepare_place(const struct mcpd_prepare_spec *spec, struct mcpd_prepare_plan *plan,
                        struct mcpd_prepare_span spans[2]);

/* Tables of an axis (0 luma and RGB, 1 chroma). 0 or -ENOMEM; what was made is the plan's to free. */
int mcpd_prepare_fill_columns(const struct mcpd_prepare_spec *spec,
                              const struct mcpd_prepare_format *format,
                              const struct mcpd_prepare_span *span, struct mcpd_prepare_plan *plan,
                              uint32_t axis);
int mcpd_prepare_fill_rows(const struct mcpd_prepare_spec *spec,
                           const struct mcpd_prepare_format *format,
                           const struct mcpd_prepare_span *span, struct mcpd_prepare_plan *plan,
                           uint32_t axis);

#endif
