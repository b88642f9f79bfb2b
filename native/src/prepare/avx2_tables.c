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

/* The register that value i of a group goes through, and its pair's byte there. */
static uint32_t register_of(uint32_t i)
{
    return i % GROUP / 8;
}

static uint32_t place_of(uint32_t i)
{
    return i / 4 % 2 * 16 + i % 4 * 4;
}

/* Shuffles value i of component k to its place, from where its left sample is in its window. */
static void shuffle_value(const struct avx2_windows *to, const struct mcpd_prepare_columns *columns,
                          uint32_t k, uint32_t i, int32_t from, uint8_t *shuffle)
{
    uint8_t left = (uint8_t)from, right = (uint8_t)(from + (int32_t)columns->step);

    if (to->kind == EIGHT || to->kind == JOINT) { /* bytes beside each other */
        shuffle += to->kind == EIGHT ? i % GROUP * 2 : i / 4 % 2 * 16 + k * 8 + i % 4 * 2;
        shuffle[0] = left;
        shuffle[1] = right;
    } else if (to->single) { /* the one that counts, as 16 bits */
        shuffle += i / 4 % 2 * 16 + register_of(i) * 8 + i % 4 * 2;
        shuffle[0] = columns->weight[2 * i] ? left : right;
    } else {
        shuffle += place_of(i);
        shuffle[0] = left;
        shuffle[2] = right;
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

static void fill_wide(const struct mcpd_prepare_plan *plan, uint32_t index, struct avx2_windows *to,
                      uint32_t groups)
{
    const struct mcpd_prepare_set *set = &plan->sets[index];
    const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];
    uint32_t n = to->values, parts = to->kind == PAIRED ? 2 : 1;
    int32_t last = (int32_t)plan->planes[set->plane].row_nbytes - AVX2_WIDE;

    to->of_group = to->kind == EIGHT ? 32 : to->kind == JOINT ? 64 : set->count * 2 * parts * 32;
    memset(to->shuffles, NOTHING, (size_t)groups * to->of_group);
    for (uint32_t i = 0; i < groups * GROUP; i++) {
        uint32_t span;
        int32_t at = leftmost(columns->left + i / n * n, n, to->nbytes, &span) + (int32_t)to->base;

        at = at < last ? at : last;
        to->at[i / n] = at;
        for (uint32_t k = 0; k < set->count; k++) {
            uint8_t *shuffle = to->shuffles + (size_t)(i / GROUP) * to->of_group;

            if (to->kind == JOINT)
                shuffle += register_of(i) * 32;
            else if (to->kind != EIGHT)
                shuffle += ((k * 2 + register_of(i)) * parts + i % 4 / n) * 32;
            shuffle_value(to, columns, k, i,
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
            shuffle_value(to, columns, k, i, (int32_t)(to->byte[k] + i % 2 * AVX2_NARROW),
                          to->shuffles + ((k * 2 + register_of(i)) * 2 + i / 2 % 2) * 32);
    }
}

/* Weights in the order of the registers: of pairs, or of right samples where bytes are beside. */
static void fill_weights(const int16_t *weight, uint32_t groups, struct avx2_windows *to)
{
    for (uint32_t i = 0; i < groups * GROUP; i++) {
        int16_t *own = to->weights + (size_t)(i / GROUP) * 32;

        if (to->kind == EIGHT) {
            own[i % GROUP] = weight[2 * i + 1];
        } else if (to->kind == JOINT) {
            own += register_of(i) * 16 + i / 4 % 2 * 8 + i % 4;
            own[0] = own[4] = weight[2 * i + 1];
        } else {
            memcpy(own + register_of(i) * 16 + place_of(i) / 2, weight + 2 * i,
                   2 * sizeof(int16_t));
        }
    }
}

/* Whether two groups differ in nothing but where they start. */
static int same_group(const struct avx2_windows *of, uint32_t a, uint32_t b)
{
    uint32_t n = GROUP / of->values;
    const int32_t *at = of->at + (size_t)a * n, *other = of->at + (size_t)b * n;

    for (uint32_t w = 1; w < n; w++) {
        if (at[w] - at[0] != other[w] - other[0])
            return 0;
    }
    return memcmp(of->shuffles + (size_t)a * of->of_group, of->shuffles + (size_t)b * of->of_group,
                  of->of_group) == 0 &&
           memcmp(of->weights + (size_t)a * 32, of->weights + (size_t)b * 32, 64) == 0;
}

/* A run of groups that repeat at even distances: all but the row's end, where ratios are simple. */
static void find_run(struct avx2_windows *to, uint32_t groups)
{
    uint32_t n = GROUP / to->values;

    for (uint32_t first = 0; first < 2 && first + 1 < groups; first++) {
        int32_t period = to->at[(first + 1) * n] - to->at[first * n];
        uint32_t end = first + 1;

        while (end < groups && same_group(to, first, end) &&
               to->at[end * n] - to->at[(end - 1) * n] == period)
            end++;
        if (end - first > to->run_end - to->run_first) {
            to->run_first = first;
            to->run_end = end;
            to->period = period;
        }
    }
}

/* The kind of windows that takes the fewest of them. */
static void choose(const struct mcpd_prepare_set *set, const int32_t *left, uint32_t groups,
                   struct avx2_windows *to)
{
    if (!to->single && set->count == 1 && fits(left, groups, 8, to->nbytes))
        to->kind = EIGHT;
    else if (fits(left, groups, 4, to->nbytes))
        to->kind = !to->single && set->count == 2 ? JOINT : DENSE;
    else
        to->kind = fits(left, groups, 2, to->nbytes) ? PAIRED : SPARSE;
    to->values = to->kind == EIGHT ? 8 : to->kind == PAIRED ? 2 : to->kind == SPARSE ? 1 : 4;
}

int mcpd_prepare_avx2_open(struct mcpd_prepare_plan *plan)
{
    uint32_t groups = (plan->values + GROUP - 1) / GROUP;
    size_t of_windows = (size_t)groups * GROUP * sizeof(int32_t);
    size_t of_shuffles = (size_t)groups * 3 * 128 + SPARSE_SHUFFLES;
    size_t of_weights = (size_t)groups * 64;
    struct avx2_tables *tables;
    unsigned char *at;

    for (uint32_t p = 0; p < plan->nplanes; p++) {
        if (plan->planes[p].row_nbytes < AVX2_WIDE)
            return -ENOTSUP;
    }
    if (plan->area)
        return 0;
    tables = calloc(1, sizeof(*tables) + 3 * (of_windows + of_shuffles + of_weights));
    if (!tables)
        return -ENOMEM;
    tables->groups = groups;
    at = (unsigned char *)(tables + 1);
    for (uint32_t s = 0; s < plan->nsets; s++) {
        struct avx2_windows *to = &tables->sets[s];
        const struct mcpd_prepare_columns *columns = &plan->columns[plan->sets[s].axis];

        find_bytes(plan, s, to);
        to->ask_from = plan->planes[plan->sets[s].plane].first;
        to->ask_nbytes = plan->planes[plan->sets[s].plane].nbytes / groups;
        to->single = is_single(columns, groups);
        to->at = (int32_t *)(void *)at;
        to->weights = (int16_t *)(void *)(at + of_windows);
        to->shuffles = at + of_windows + of_weights;
        at += of_windows + of_weights + of_shuffles;
        choose(&plan->sets[s], columns->left, groups, to);
        if (to->kind == SPARSE)
            fill_sparse(plan, s, to, groups);
        else
            fill_wide(plan, s, to, groups);
        fill_weights(columns->weight, groups, to);
        if (to->kind != SPARSE)
            find_run(to, groups);
    }
    plan->tables = tables;
    return 0;
}

#endif
