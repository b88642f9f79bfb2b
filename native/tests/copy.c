/*
 * Copying rows: every byte of a row arrives and no other changes, for all alignments and strides.
 */
#include "copy.h"

#include <stdint.h>
#include <stdlib.h>

#include "check.h"

enum { GUARD = 0xa5, MOST = 300 };

/* Buffers of exactly the bytes that count, so that the sanitizer sees a byte too many. */
static void copy_and_look(size_t rows, size_t row_nbytes, size_t shift, size_t padding, int backwards,
                          int non_temporal)
{
    size_t target_stride = row_nbytes + padding, source_stride = row_nbytes + padding / 2;
    size_t target_nbytes = shift + target_stride * (rows - 1) + row_nbytes;
    size_t source_nbytes = source_stride * (rows - 1) + row_nbytes;
    unsigned char *target = malloc(target_nbytes), *source = malloc(source_nbytes);
    CHECK(target != NULL && source != NULL);
    memset(target, GUARD, target_nbytes);
    for (size_t i = 0; i < source_nbytes; i++)
        source[i] = (unsigned char)(i * 37 % 165); /* never GUARD */
    const unsigned char *first = backwards ? source + source_stride * (rows - 1) : source;
    ptrdiff_t step = backwards ? -(ptrdiff_t)source_stride : (ptrdiff_t)source_stride;
    mcpd_copy_rows(target + shift, (ptrdiff_t)target_stride, first, step, rows, row_nbytes,
                   non_temporal);
    for (size_t i = 0; i < target_nbytes; i++) {
        int inside = i >= shift && (i - shift) % target_stride < row_nbytes;
        size_t row = inside ? (i - shift) / target_stride : 0;
        size_t column = inside ? (i - shift) % target_stride : 0;
        CHECK_EQUAL(target[i], inside ? first[(ptrdiff_t)row * step + (ptrdiff_t)column] : GUARD);
    }
    free(target);
    free(source);
}

static void every_shape(int non_temporal)
{
    static const size_t lengths[] = {1, 15, 16, 63, 64, 65, 127, 128, 129, 191, 256, MOST};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t shift = 0; shift < 65; shift += 1 + shift / 17)
            for (size_t padding = 0; padding < 70; padding += 23)
                for (int backwards = 0; backwards < 2; backwards++)
                    copy_and_look(1 + i % 4, lengths[i], shift, padding, backwards, non_temporal);
}

TEST(rows_are_copied_and_nothing_else_changes)
{
    every_shape(0);
}

TEST(rows_are_copied_past_the_caches_and_nothing_else_changes)
{
    every_shape(1);
}

TEST(nothing_is_copied_of_no_rows_or_empty_rows)
{
    unsigned char target = GUARD, source = 1;
    mcpd_copy_rows(&target, 1, &source, 1, 0, 1, 1);
    mcpd_copy_rows(&target, 1, &source, 1, 1, 0, 1);
    CHECK_EQUAL(target, GUARD);
}
