/*
 * Reads bytes as a message in every way that the client does, for the fuzz tests.
 */
#ifndef EXERCISE_MSGPACK_H
#define EXERCISE_MSGPACK_H

#include <stdlib.h>
#include <string.h>

#include "msgpack.h"

/* In memory of exactly that size, so that a sanitizer sees a read beyond it. 1 if it was a message. */
static inline int exercise_msgpack(const uint8_t *bytes, size_t nbytes)
{
    static const char *const keys[] = {"type", "id", "fds", "result", "grant", "labels", ""};
    uint8_t *data = malloc(nbytes + 1);
    if (data == NULL)
        abort();
    data++; /* so that nothing is aligned */
    memcpy(data, bytes, nbytes);
    struct mcpd_value whole, item;
    int is_message = mcpd_unpack(data, nbytes, &whole) == 0;
    for (size_t i = 0; is_message && i < sizeof keys / sizeof *keys; i++) {
        uint64_t number = 0;
        char text[5];
        (void)mcpd_map_unsigned(&whole, keys[i], 8, &number);
        if (number > 8)
            abort();
        memset(text, 'x', sizeof text);
        if (mcpd_map_text(&whole, keys[i], text, sizeof text) == 0 && text[0] != 'x' &&
            memchr(text, 0, sizeof text) == NULL)
            abort();
        if (mcpd_map_find(&whole, keys[i], &item))
            (void)mcpd_map_find(&item, "labels", &item);
    }
    /* Every value once, one after the other: no more of them than bytes. */
    size_t values = 0;
    for (const uint8_t *at = data; at < data + nbytes; values++)
        if (mcpd_unpack_next(&at, data + nbytes, &item) != 0)
            break;
    if (values > nbytes)
        abort();
    free(data - 1);
    return is_message;
}

#endif
