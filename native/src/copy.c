/*
 * Copying rows. memcpy is the fastest way to copy what will be read again; streaming stores are for
 * what will not.
 */
#include "copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE = 64 };

/* Whole lines go by streaming stores, which must be aligned; the bytes before and after by memcpy. */
static void stream_row(unsigned char *target, const unsigned char *source, size_t nbytes)
{
    size_t head = (size_t)(-(uintptr_t)target % LINE);
    if (head > nbytes)
        head = nbytes;
    memcpy(target, source, head);
    size_t at = head;
    for (; nbytes - at >= LINE; at += LINE) {
        const __m128i *from = (const __m128i *)(source + at);
        __m128i *to = (__m128i *)(target + at);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(target + at, source + at, nbytes - at);
}

static void stream_fence(void)
{
    _mm_sfence();
}
#else
static void stream_row(unsigned char *target, const unsigned char *source, size_t nbytes)
{
    memcpy(target, source, nbytes);
}

static void stream_fence(void)
{
}
#endif

void mcpd_copy_rows(unsigned char *target, ptrdiff_t target_stride, const unsigned char *source,
                    ptrdiff_t source_stride, size_t rows, size_t row_nbytes, int non_temporal)
{
    if (rows == 0 || row_nbytes == 0)
        return;
    if (target_stride == source_stride && target_stride == (ptrdiff_t)row_nbytes) {
        row_nbytes *= rows; /* one piece of memory, so it has this many bytes */
        rows = 1;
    }
    for (size_t row = 0; row < rows; row++) {
        unsigned char *to = target + (ptrdiff_t)row * target_stride;
        const unsigned char *from = source + (ptrdiff_t)row * source_stride;
        if (non_temporal)
            stream_row(to, from, row_nbytes);
        else
            memcpy(to, from, row_nbytes);
    }
    if (non_temporal)
        stream_fence();
}
