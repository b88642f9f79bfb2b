/*
 * What the files that describe slots share. Not installed.
 */
#ifndef MCPD_DESCRIBE_H
#define MCPD_DESCRIBE_H

#include "mcpd_client.h"

#define MCPD_ALIGN_NBYTES UINT64_C(64)
#define MCPD_MAX_SLOT_NBYTES (UINT64_C(1) << 40)

static inline uint64_t mcpd_align(uint64_t nbytes)
{
    return (nbytes + MCPD_ALIGN_NBYTES - 1) / MCPD_ALIGN_NBYTES * MCPD_ALIGN_NBYTES;
}

/* Kind, planes, rows and bytes of a row, as the format has them; -EINVAL: no such image. */
int mcpd_frame_shape(struct mcpd_frame *frame);
/* Sets nbytes; -EINVAL when a plane reaches out of the slot. */
int mcpd_frame_measure(struct mcpd_frame *frame, uint64_t slot_nbytes);
/* Copies and checks; -EBADMSG. */
int mcpd_frame_read(const struct mcpd_description *shared, uint64_t slot_nbytes,
                    struct mcpd_frame *frame);
int mcpd_tensor_read(const struct mcpd_description *shared, uint64_t slot_nbytes, uint32_t index,
                     struct mcpd_tensor_view *tensor);
/* Completes the tensors; one past their last byte, or more than a slot can have when they are bad. */
uint64_t mcpd_tensors_extent(struct mcpd_tensor_view *tensors, uint32_t ntensors);

#endif
