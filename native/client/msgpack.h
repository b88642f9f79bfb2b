/*
 * The part of msgpack that the control protocol needs, written and read within bounds.
 *
 * Reading is strict: one value and nothing behind it, no extension types, text in UTF-8, no
 * container that announces more than the bytes left could hold. Nothing is allocated, and nothing
 * recurses, so that no message can take more than its own length in time or any stack.
 */
#ifndef MCPD_MSGPACK_H
#define MCPD_MSGPACK_H

#include <stddef.h>
#include <stdint.h>

/* ---- writing ------------------------------------------------------------------------------- */

struct mcpd_pack {
    uint8_t *data;
    size_t capacity;
    size_t nbytes;
    int full; /* something did not fit: what is there is no message */
};

void mcpd_pack_nil(struct mcpd_pack *pack);
void mcpd_pack_bool(struct mcpd_pack *pack, int value);
void mcpd_pack_unsigned(struct mcpd_pack *pack, uint64_t value);
void mcpd_pack_unsigned_wide(struct mcpd_pack *pack, uint64_t value); /* always nine bytes */
void mcpd_pack_signed(struct mcpd_pack *pack, int64_t value);
void mcpd_pack_double(struct mcpd_pack *pack, double value);
void mcpd_pack_text(struct mcpd_pack *pack, const char *text);
void mcpd_pack_bytes(struct mcpd_pack *pack, const void *data, size_t nbytes);
void mcpd_pack_array(struct mcpd_pack *pack, uint32_t count);
void mcpd_pack_map(struct mcpd_pack *pack, uint32_t count); /* count pairs follow */

/* ---- reading ------------------------------------------------------------------------------- */

enum mcpd_value_kind {
    MCPD_NIL = 0, MCPD_TRUTH, MCPD_UNSIGNED, MCPD_NEGATIVE, MCPD_REAL, MCPD_TEXT, MCPD_BYTES,
    MCPD_ARRAY, MCPD_MAP,
};

struct mcpd_value {
    enum mcpd_value_kind kind;
    uint32_t count;      /* bytes of text and bytes; items of an array; pairs of a map */
    uint64_t number;     /* of unsigned and truth */
    int64_t negative;    /* of negative, below 0 */
    double real;
    const uint8_t *data; /* text, bytes, or the first item */
    const uint8_t *end;  /* of the message */
};

/* The one value that these bytes are; -EBADMSG if they are none, or more. */
int mcpd_unpack(const uint8_t *data, size_t nbytes, struct mcpd_value *value);
/*
 * Takes the value at *at and moves *at behind it and all that it holds. 0, or -EBADMSG when the
 * bytes up to `end` are no value.
 */
int mcpd_unpack_next(const uint8_t **at, const uint8_t *end, struct mcpd_value *value);
/* The value under a text key: 1, or 0 when the map has none (or is no map). */
int mcpd_map_find(const struct mcpd_value *map, const char *key, struct mcpd_value *value);
/*
 * Likewise, of a type: 0 also when there is none (then *out stays as it is), -EBADMSG when it is of
 * another type, or beyond `most`.
 */
int mcpd_map_unsigned(const struct mcpd_value *map, const char *key, uint64_t most, uint64_t *out);
/* Zero-ended; cut at a character's end to fit. A zero byte in it counts as its end. */
int mcpd_map_text(const struct mcpd_value *map, const char *key, char *out, size_t size);
int mcpd_text_is(const struct mcpd_value *value, const char *text);
/* Copies text as mcpd_map_text does; returns the bytes it has. */
size_t mcpd_text_copy(const struct mcpd_value *text, char *out, size_t size);

#endif
