/* Parts of a run, which batch.c deals out to threads. */
#ifndef MCPD_PREPARE_RUN_H
#define MCPD_PREPARE_RUN_H

#include "prepare/prepare.h"

#define MCPD_PREPARE_BAND 16u /* lines that turned frames are stored by; parts are multiples of it */

struct mcpd_prepare_buffers;

/* Row buffers, from the plan if it has some to spare, and back. NULL: no memory. */
struct mcpd_prepare_buffers *mcpd_prepare_buffers_open(struct mcpd_prepare_plan *plan);
void mcpd_prepare_buffers_close(struct mcpd_prepare_plan *plan,
                                struct mcpd_prepare_buffers *buffers);

/* Lines first..end - 1 of an image; `first` is a multiple of MCPD_PREPARE_BAND. */
void mcpd_prepare_run_lines(const struct mcpd_prepare_plan *plan,
                            struct mcpd_prepare_buffers *buffers, const uint8_t *source,
                            unsigned char *image, uint32_t first, uint32_t end);

/* What of an image does not show the source. */
void mcpd_prepare_run_padding(const struct mcpd_prepare_plan *plan, unsigned char *image);

#endif
