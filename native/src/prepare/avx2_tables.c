/* Tables of sampling with AVX2: where windows start, and how their bytes are shuffled; see avx2.h. */
#include "prepare/avx2.h"

#if defined(__x86_64__)

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GROUP MCPD_PREPARE_GROUP
#define NOTHING 0x80 /* in a shuffle: a byte of 0 */
#define SPARSE_SHUFFLES (3 * 2 * 2 * 32)

static void find_bytes(const struct mcpd_prepare_plan *plan, uint32_t index, struct avx2_windows *to)
{
    const struct mcpd_prepare_set *set = &plan->sets[index];

    to->base = set->base[0];
    for (uint32_t k = 1; k < set->count; k++)
        to->base = set->base[k] < to->base ? set->base[k] : to->base;
    for (uint32_t k = 0; k < set->count; k++) {
        uint32_t end;

        to->byte[k] = set->base[k] - to->base;
        end = to->byte[k] + plan->columns[set->axis].step + 1;
        to->nbytes = end > to->nbytes ? end : to->nbytes;
    }
}

/* The leftmost byte of n values, and how many bytes they span. */
static int32_t leftmost(const int32_t *left, uint32_t n, uint32_t nbytes, uint32_t *span)
{
    int32_t first = left[0], last = left[0];

    for (uint32_t i = 1; i < n; i++) {
        first = left[i] < first ? left[i] : first;
        last = left[i] > last ? left[i] : last;
    }
    *span = (uint32_t)(last - first) + nbytes;
    return first;
}

static int fits(const int32_t *left, uint32_t groups, uint32_t n, uint32_t nbytes)
{
    for (uint32_t i = 0; i < groups * GROUP; i += n) {
        uint32_t span;

        leftmost(left + i, n, nbytes, &span);
        if (span > AVX2_WIDE)
            return 0;
    }
    return 1;
}

/* A value's pair: its samples at `from` and `from + step`, each with a high byte of 0. */
static void pair(uint8_t *shuffle, int32_t from, uint32_t step)
{
    shuffle[0] = (uint8_t)from;
    shuffle[1] = NOTHING;
    shuffle[2] = (uint8_t)(from + (int32_t)step);
    shuffle[3] = NOTHING;
}

/* The register that value i of a group goes through, and its pair's byte there. */
static uint32_t register_of(uint32_t i)
{
    return i / 8;
}

static uint32_t place_of(uint32_t i)
{
    return i / 4 % 2 * 16 + i % 4 * 4;
}

/* Shuffles value i of a group to its place: a pair, or where there are none the one that counts. */
static void shuffle_value(const struct mcpd_prepare_columns *columns, int single, uint32_t i,
                          int32_t from, uint8_t *shuffle)
{
    uint32_t of_group = i % GROUP;

    if (single) {
        shuffle += place_of(of_group) / 16 * 16 + register_of(of_group) * 8 + of_group % 4 * 2;
        shuffle[0] = (uint8_t)(from + (int32_t)(columns->weight[2 * i] ? 0 : columns->step));
    } else {
        pair(shuffle + place_of(of_group), from, columns->step);
    }
}

/* Whether only one sample of each pair has a weight. */
static int is_single(const struct mcpd_prepare_columns *columns, uint32_t groups)
{
    for (uint32_t i = 0; i < groups * GROUP; i++) {
        if (columns->weight[2 * i] != 0 && columns->weight[2 * i + 1] != 0)
            return 0;
    }
    return 1;
}

/* Windows of n values (4 or 2), and the shuffles of each. */
static void fill_wide(const struct mcpd_prepare_plan *plan, uint32_t index, struct avx2_windows *to,
                      uint32_t groups)
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];
    uint32_t n = to->kind == DENSE ? 4 : 2, parts = to->kind == DENSE ? 1 : 2;
    int32_t last = (int32_t)plan->planes[set->plane].row_nbytes - AVX2_WIDE;

    memset(to->shuffles, NOTHING, (size_t)groups * set->count * 2 * parts * 32);
    for (uint32_t i = 0; i < groups * GROUP; i++) {
        uint32_t span;
        int32_t at = leftmost(columns->left + i / n * n, n, to->nbytes, &span) + (int32_t)to->base;

        at = at < last ? at : last;
        to->at[i / n] = at;
        for (uint32_t k = 0; k < set->count; k++) {
            uint32_t of_group = (k * 2 + register_of(i % GROUP)) * parts + i % 4 / n;
            uint8_t *shuffle =
                to->shuffles + ((size_t)(i / GROUP) * set->count * 2 * parts + of_group) * 32;

            shuffle_value(columns, to->single, i,
                          columns->left[i] + (int32_t)(to->base + to->byte[k]) - at, shuffle);
        }
    }
}

static void fill_sparse(const struct mcpd_prepare_plan *plan, uint32_t index, struct avx2_windows *to,
                        uint32_t groups)
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];
    int in_free = 1;

    to->last = (int32_t)plan->planes[set->plane].row_nbytes - AVX2_NARROW;
    for (uint32_t g = 0; g < groups; g++) {
        int free_of_end = 1;

        for (uint32_t i = g * GROUP; i < (g + 1) * GROUP; i++) {
            to->at[i] = columns->left[i] + (int32_t)to->base;
            free_of_end &= to->at[i] <= to->last;
        }
        if (free_of_end && in_free)
            to->free_end = g + 1;
        else if (to->free_end == to->free_first) /* lines that run backwards begin at the end */
            to->free_first = to->free_end = g + 1;
        else
            in_free = 0;
    }
    memset(to->shuffles, NOTHING, SPARSE_SHUFFLES);
    for (uint32_t k = 0; k < set->count; k++) {
        for (uint32_t i = 0; i < GROUP; i++) /* values 0 1 4 5 in one part, 2 3 6 7 in the other */
            shuffle_value(columns, to->single, i, (int32_t)(to->byte[k] + i % 2 * AVX2_NARROW),
                          to->shuffles + ((k * 2 + register_of(i)) * 2 + i / 2 % 2) * 32);
    }
}

static void fill_weights(const int16_t *weight, uint32_t groups, int16_t *to)
{
    for (uint32_t i = 0; i < groups * GROUP; i++)
        memcpy(to + i / GROUP * 32 + register_of(i % GROUP) * 16 + place_of(i % GROUP) / 2,
               weight + 2 * i, 2 * sizeof(int16_t));
}

int mcpd_prepare_avx2_open(struct mcpd_prepare_plan *plan)
{
    uint32_t groups = (plan->values + GROUP - 1) / GROUP;
    size_t of_windows = (size_t)groups * GROUP * sizeof(int32_t);
    size_t of_shuffles = (size_t)groups * 3 * 128, of_weights = (size_t)groups * 64;
    struct avx2_tables *tables;
    unsigned char *at;

    for (uint32_t p = 0; p < plan->nplanes; p++) {
        if (plan->planes[p].row_nbytes < AVX2_WIDE)
            return -ENOTSUP;
    }
    if (plan->area)
        return 0;
    tables = calloc(1, sizeof(*tables) + 3 * (of_windows + of_shuffles) + 2 * of_weights +
                           3 * SPARSE_SHUFFLES);
    if (!tables)
        return -ENOMEM;
    tables->groups = groups;
    at = (unsigned char *)(tables + 1);
    for (uint32_t axis = 0; axis < 2; axis++, at += of_weights) {
        tables->weights[axis] = (int16_t *)(void *)at;
        if (plan->columns[axis].weight)
            fill_weights(plan->columns[axis].weight, groups, tables->weights[axis]);
    }
    for (uint32_t s = 0; s < plan->nsets; s++) {
        struct avx2_windows *to = &tables->sets[s];
        const struct mcpd_prepare_columns *columns = &plan->columns[plan->sets[s].axis];

        find_bytes(plan, s, to);
        to->single = is_single(columns, groups);
        to->at = (int32_t *)(void *)at;
        at += of_windows;
        to->shuffles = at;
        at += of_shuffles + SPARSE_SHUFFLES;
        if (fits(columns->left, groups, 4, to->nbytes))
            to->kind = DENSE;
        else
            to->kind = fits(columns->left, groups, 2, to->nbytes) ? PAIRED : SPARSE;
        if (to->kind == SPARSE)
            fill_sparse(plan, s, to, groups);
        else
            fill_wide(plan, s, to, groups);
    }
    plan->tables = tables;
    return 0;
}

#endif
