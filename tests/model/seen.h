/*
 * The states seen: 128-bit fingerprints of them, and when each was found. Two states of 10^8 share
 * one with a probability below 10^-22; then one of them would not be looked at.
 */
#ifndef SEEN_H
#define SEEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct fingerprint {
    uint64_t low, high;
};

struct found {
    struct fingerprint print;
    uint32_t number; /* from 1, in the order of finding */
    uint32_t closed; /* its component is complete (explore.c) */
};

struct seen {
    struct found *table;
    uint64_t mask, n;
};

static inline uint64_t mix(uint64_t value)
{
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    return value ^ value >> 32;
}

static inline struct fingerprint fingerprint_of(const void *bytes, unsigned nbytes)
{
    uint64_t lane[8] = {nbytes, 1, 2, 3, 4, 5, 6, 7}, word[4];
    const uint8_t *from = (const uint8_t *)bytes;
    while (nbytes > 0) {
        unsigned n = nbytes < sizeof word ? nbytes : (unsigned)sizeof word;
        if (n < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, from, n);
        for (int i = 0; i < 4; i++) {
            lane[i] = (lane[i] ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
            lane[i] ^= lane[i] >> 29;
            lane[4 + i] = (lane[4 + i] + word[i]) * UINT64_C(0xc2b2ae3d27d4eb4f);
            lane[4 + i] ^= lane[4 + i] >> 31;
        }
        from += n;
        nbytes -= n;
    }
    struct fingerprint print = {0};
    for (int i = 0; i < 4; i++) {
        print.low = mix(print.low ^ lane[i]);
        print.high = mix(print.high ^ lane[4 + i]);
    }
    return print;
}

static inline struct found *seen_place(struct found *table, uint64_t mask, struct fingerprint print)
{
    uint64_t at = print.low & mask;
    while (table[at].number != 0 &&
           (table[at].print.low != print.low || table[at].print.high != print.high))
        at = (at + 1) & mask;
    return &table[at];
}

static inline struct found *seen_find(const struct seen *seen, struct fingerprint print)
{
    return seen_place(seen->table, seen->mask, print);
}

static inline void seen_grow(struct seen *seen)
{
    uint64_t mask = seen->table == NULL ? 0xffff : 2 * seen->mask + 1;
    struct found *table = (struct found *)calloc(mask + 1, sizeof *table);
    if (table == NULL)
        abort();
    for (uint64_t i = 0; seen->table != NULL && i <= seen->mask; i++)
        if (seen->table[i].number != 0)
            *seen_place(table, mask, seen->table[i].print) = seen->table[i];
    free(seen->table);
    seen->table = table;
    seen->mask = mask;
}

/* Its entry, which may move when the next one is added; *is_new: it was not there. */
static inline struct found *seen_add(struct seen *seen, struct fingerprint print, bool *is_new)
{
    if (seen->table == NULL || 2 * seen->n > seen->mask)
        seen_grow(seen);
    struct found *place = seen_find(seen, print);
    *is_new = place->number == 0;
    if (*is_new)
        *place = (struct found){.print = print, .number = (uint32_t)++seen->n};
    return place;
}

#endif
