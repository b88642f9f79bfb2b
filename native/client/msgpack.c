/*
 * Msgpack within bounds; msgpack.h says which part of it.
 */
#include <errno.h>
#include <string.h>

#include "msgpack.h"

/* ---- writing ------------------------------------------------------------------------------- */

static uint8_t *room(struct mcpd_pack *pack, size_t nbytes)
{
    if (pack->full || nbytes > pack->capacity - pack->nbytes) {
        pack->full = 1;
        return NULL;
    }
    uint8_t *at = pack->data + pack->nbytes;
    pack->nbytes += nbytes;
    return at;
}

/* A type byte and `width` bytes of a number, the highest first. */
static void put(struct mcpd_pack *pack, uint8_t type, uint64_t number, size_t width)
{
    uint8_t *at = room(pack, 1 + width);
    if (at == NULL)
        return;
    *at = type;
    for (size_t i = width; i > 0; i--, number >>= 8)
        at[i] = (uint8_t)number;
}

void mcpd_pack_nil(struct mcpd_pack *pack)
{
    put(pack, 0xc0, 0, 0);
}

void mcpd_pack_bool(struct mcpd_pack *pack, int value)
{
    put(pack, value ? 0xc3 : 0xc2, 0, 0);
}

void mcpd_pack_unsigned(struct mcpd_pack *pack, uint64_t value)
{
    if (value < 0x80)
        put(pack, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put(pack, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put(pack, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put(pack, 0xce, value, 4);
    else
        put(pack, 0xcf, value, 8);
}

void mcpd_pack_unsigned_wide(struct mcpd_pack *pack, uint64_t value)
{
    put(pack, 0xcf, value, 8);
}

void mcpd_pack_signed(struct mcpd_pack *pack, int64_t value)
{
    if (value >= 0)
        mcpd_pack_unsigned(pack, (uint64_t)value);
    else if (value >= -32)
        put(pack, (uint8_t)value, 0, 0);
    else
        put(pack, 0xd3, (uint64_t)value, 8);
}

void mcpd_pack_double(struct mcpd_pack *pack, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(pack, 0xcb, bits, 8);
}

static void put_data(struct mcpd_pack *pack, const void *data, size_t nbytes)
{
    uint8_t *at = room(pack, nbytes);
    if (at != NULL && nbytes > 0)
        memcpy(at, data, nbytes);
}

void mcpd_pack_text(struct mcpd_pack *pack, const char *text)
{
    size_t nbytes = strlen(text);
    if (nbytes < 32)
        put(pack, (uint8_t)(0xa0 | nbytes), 0, 0);
    else if (nbytes <= UINT8_MAX)
        put(pack, 0xd9, nbytes, 1);
    else if (nbytes <= UINT16_MAX)
        put(pack, 0xda, nbytes, 2);
    else
        pack->full = 1; /* no message has room for it */
    put_data(pack, text, nbytes);
}

void mcpd_pack_bytes(struct mcpd_pack *pack, const void *data, size_t nbytes)
{
    if (nbytes <= UINT8_MAX)
        put(pack, 0xc4, nbytes, 1);
    else if (nbytes <= UINT16_MAX)
        put(pack, 0xc5, nbytes, 2);
    else
        pack->full = 1;
    put_data(pack, data, nbytes);
}

static void put_container(struct mcpd_pack *pack, uint8_t few, uint8_t many, uint32_t count)
{
    if (count < 16)
        put(pack, (uint8_t)(few | count), 0, 0);
    else if (count <= UINT16_MAX)
        put(pack, many, count, 2);
    else
        pack->full = 1;
}

void mcpd_pack_array(struct mcpd_pack *pack, uint32_t count)
{
    put_container(pack, 0x90, 0xdc, count);
}

void mcpd_pack_map(struct mcpd_pack *pack, uint32_t count)
{
    put_container(pack, 0x80, 0xde, count);
}

/* ---- reading ------------------------------------------------------------------------------- */

static int is_utf8(const uint8_t *at, size_t nbytes)
{
    for (const uint8_t *end = at + nbytes; at < end;) {
        uint8_t first = *at++;
        if (first < 0x80)
            continue;
        int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || end - at < more)
            return 0;
        /* The second byte tells what is too long, a surrogate or beyond U+10FFFF. */
        uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        for (; more > 0; more--, at++) {
            if (*at < least || *at > most)
                return 0;
            least = 0x80;
            most = 0xbf;
        }
    }
    return 1;
}

/* `width` bytes, the highest first; moves *at. Gives 0 when they are not there. */
static int take(const uint8_t **at, const uint8_t *end, size_t width, uint64_t *number)
{
    if ((size_t)(end - *at) < width)
        return 0;
    *number = 0;
    for (; width > 0; width--)
        *number = *number << 8 | *(*at)++;
    return 1;
}

/* What a type byte announces: its kind and the bytes that its number or length takes. */
struct form {
    uint8_t kind, width;
};

static int form_of(uint8_t type, struct form *form)
{
    static const struct form forms[] = {
        [0x00] = {MCPD_NIL, 0},      [0x02] = {MCPD_TRUTH, 0},    [0x03] = {MCPD_TRUTH, 0},
        [0x04] = {MCPD_BYTES, 1},    [0x05] = {MCPD_BYTES, 2},    [0x06] = {MCPD_BYTES, 4},
        [0x0a] = {MCPD_REAL, 4},     [0x0b] = {MCPD_REAL, 8},     [0x0c] = {MCPD_UNSIGNED, 1},
        [0x0d] = {MCPD_UNSIGNED, 2}, [0x0e] = {MCPD_UNSIGNED, 4}, [0x0f] = {MCPD_UNSIGNED, 8},
        [0x10] = {MCPD_NEGATIVE, 1}, [0x11] = {MCPD_NEGATIVE, 2}, [0x12] = {MCPD_NEGATIVE, 4},
        [0x13] = {MCPD_NEGATIVE, 8}, [0x19] = {MCPD_TEXT, 1},     [0x1a] = {MCPD_TEXT, 2},
        [0x1b] = {MCPD_TEXT, 4},     [0x1c] = {MCPD_ARRAY, 2},    [0x1d] = {MCPD_ARRAY, 4},
        [0x1e] = {MCPD_MAP, 2},      [0x1f] = {MCPD_MAP, 4},
    };
    *form = forms[type & 0x1f];
    /* 0xc1 is never used; 0xc7 to 0xc9 and 0xd4 to 0xd8 are extensions. */
    return type == 0xc0 || form->kind != MCPD_NIL;
}

static void set_real(struct mcpd_value *value, uint64_t bits, int width)
{
    if (width == 8) {
        memcpy(&value->real, &bits, sizeof value->real);
        return;
    }
    uint32_t few = (uint32_t)bits;
    float real;
    memcpy(&real, &few, sizeof real);
    value->real = real;
}

/* A number that the protocol calls signed may be 0 or more: then it is an unsigned one. */
static void set_signed(struct mcpd_value *value, uint64_t bits, int width)
{
    uint64_t sign = UINT64_C(1) << (8 * width - 1);
    int64_t number = (int64_t)((bits ^ sign) - sign);
    value->kind = number < 0 ? MCPD_NEGATIVE : MCPD_UNSIGNED;
    value->negative = number < 0 ? number : 0;
    value->number = number < 0 ? 0 : (uint64_t)number;
}

/* The value itself, without what it holds; moves *at behind its head, and behind text and bytes. */
static int take_head(const uint8_t **at, const uint8_t *end, struct mcpd_value *value)
{
    if (*at >= end)
        return -EBADMSG;
    uint8_t type = *(*at)++;
    uint64_t number = 0;
    struct form form = {MCPD_UNSIGNED, 0};
    if (type < 0x80)
        number = type;
    else if (type < 0xa0)
        form.kind = type < 0x90 ? MCPD_MAP : MCPD_ARRAY, number = type & 0x0f;
    else if (type < 0xc0)
        form.kind = MCPD_TEXT, number = type & 0x1f;
    else if (type >= 0xe0)
        form = (struct form){MCPD_NEGATIVE, 1}, number = type;
    else if (!form_of(type, &form) || !take(at, end, form.width, &number))
        return -EBADMSG;
    *value = (struct mcpd_value){.kind = (enum mcpd_value_kind)form.kind, .data = *at, .end = end};
    switch (value->kind) {
    case MCPD_NIL:
        break;
    case MCPD_TRUTH:
        value->number = type & 1;
        break;
    case MCPD_UNSIGNED:
        value->number = number;
        break;
    case MCPD_NEGATIVE:
        set_signed(value, number, form.width);
        break;
    case MCPD_REAL:
        set_real(value, number, form.width);
        break;
    default: /* a length: each byte, item or half of a pair takes at least a byte */
        if (number * (value->kind == MCPD_MAP ? 2 : 1) > (uint64_t)(end - *at))
            return -EBADMSG;
        value->count = (uint32_t)number;
        if (value->kind == MCPD_TEXT && !is_utf8(*at, value->count))
            return -EBADMSG;
        if (value->kind == MCPD_TEXT || value->kind == MCPD_BYTES)
            *at += value->count;
    }
    return 0;
}

static uint64_t items_of(const struct mcpd_value *value)
{
    return value->kind == MCPD_MAP ? UINT64_C(2) * value->count
           : value->kind == MCPD_ARRAY ? value->count : 0;
}

int mcpd_unpack_next(const uint8_t **at, const uint8_t *end, struct mcpd_value *value)
{
    int result = take_head(at, end, value);
    uint64_t left = result == 0 ? items_of(value) : 0;
    for (; result == 0 && left > 0; left--) {
        struct mcpd_value item;
        result = take_head(at, end, &item);
        if (result == 0)
            left += items_of(&item);
        if (left > (uint64_t)(end - *at) + 1)
            return -EBADMSG;
    }
    return result;
}

int mcpd_unpack(const uint8_t *data, size_t nbytes, struct mcpd_value *value)
{
    const uint8_t *at = data;
    int result = mcpd_unpack_next(&at, data + nbytes, value);
    return result == 0 && at != data + nbytes ? -EBADMSG : result;
}

int mcpd_map_find(const struct mcpd_value *map, const char *key, struct mcpd_value *value)
{
    if (map->kind != MCPD_MAP)
        return 0;
    size_t length = strlen(key);
    const uint8_t *at = map->data;
    for (uint32_t i = 0; i < map->count; i++) {
        struct mcpd_value name;
        if (mcpd_unpack_next(&at, map->end, &name) != 0 ||
            mcpd_unpack_next(&at, map->end, value) != 0)
            return 0;
        if (name.kind == MCPD_TEXT && name.count == length && memcmp(name.data, key, length) == 0)
            return 1;
    }
    return 0;
}

int mcpd_map_unsigned(const struct mcpd_value *map, const char *key, uint64_t most, uint64_t *out)
{
    struct mcpd_value value;
    if (!mcpd_map_find(map, key, &value))
        return 0;
    if (value.kind != MCPD_UNSIGNED || value.number > most)
        return -EBADMSG;
    *out = value.number;
    return 0;
}

int mcpd_text_is(const struct mcpd_value *value, const char *text)
{
    return value->kind == MCPD_TEXT && value->count == strlen(text) &&
           memcmp(value->data, text, value->count) == 0;
}

size_t mcpd_text_copy(const struct mcpd_value *text, char *out, size_t size)
{
    size_t length = text->count;
    const void *zero = length > 0 ? memchr(text->data, 0, length) : NULL;
    if (zero != NULL)
        length = (size_t)((const uint8_t *)zero - text->data);
    if (size == 0)
        return length;
    size_t kept = length < size ? length : size - 1;
    while (kept > 0 && kept < length && (text->data[kept] & 0xc0) == 0x80)
        kept--; /* not within a character */
    if (kept > 0)
        memcpy(out, text->data, kept);
    out[kept] = 0;
    return length;
}

int mcpd_map_text(const struct mcpd_value *map, const char *key, char *out, size_t size)
{
    struct mcpd_value value;
    if (!mcpd_map_find(map, key, &value))
        return 0;
    if (value.kind != MCPD_TEXT)
        return -EBADMSG;
    mcpd_text_copy(&value, out, size);
    return 0;
}
