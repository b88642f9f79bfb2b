/*
 * Copying the rows of a plane into a slot, in the ordinary way or past the caches.
 */
#ifndef MCPD_COPY_H
#define MCPD_COPY_H

#include <stddef.h>

/*
 * Copies `rows` rows of `row_nbytes` bytes; strides are the bytes from a row to the next and may be
 * negative. The two must not overlap.
 *
 * non_temporal: store past the caches, where the processor can (SSE2), for frames that no CPU reads
 * soon. Such stores are not ordered by the release that publishes a frame, so that they are fenced
 * before this returns.
 */
void mcpd_copy_rows(unsigned char *target, ptrdiff_t target_stride, const unsigned char *source,
                    ptrdiff_t source_stride, size_t rows, size_t row_nbytes, int non_temporal);

#endif
