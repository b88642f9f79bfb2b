/*
 * The client's msgpack: what it writes it reads, what is no message is refused, and no input takes
 * it beyond its bytes.
 */
#include <errno.h>

#include "check.h"
#include "exercise_msgpack.h"

#define FUZZ_INPUTS 300000

static struct mcpd_pack pack_in(uint8_t *data, size_t capacity)
{
    return (struct mcpd_pack){.data = data, .capacity = capacity};
}

static int unpack_bytes(const char *bytes, size_t nbytes, struct mcpd_value *value)
{
    return mcpd_unpack((const uint8_t *)bytes, nbytes, value);
}

#define UNPACK(literal, value) unpack_bytes(literal, sizeof literal - 1, value)

TEST(numbers_come_back_as_they_were)
{
    const uint64_t numbers[] = {0, 1, 127, 128, 255, 256, 65535, 65536, UINT32_MAX,
                                UINT64_C(1) << 32, UINT64_MAX};
    uint8_t data[16];
    struct mcpd_value value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct mcpd_pack pack = pack_in(data, sizeof data);
        mcpd_pack_unsigned(&pack, numbers[i]);
        CHECK_EQUAL(mcpd_unpack(data, pack.nbytes, &value), 0);
        CHECK(value.kind == MCPD_UNSIGNED && value.number == numbers[i]);
    }
    const int64_t signs[] = {-1, -32, -33, -128, -129, INT64_MIN, 5};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        struct mcpd_pack pack = pack_in(data, sizeof data);
        mcpd_pack_signed(&pack, signs[i]);
        CHECK_EQUAL(mcpd_unpack(data, pack.nbytes, &value), 0);
        CHECK_EQUAL(value.kind == MCPD_NEGATIVE ? value.negative : (int64_t)value.number, signs[i]);
    }
    struct mcpd_pack pack = pack_in(data, sizeof data);
    mcpd_pack_double(&pack, 2.5);
    CHECK_EQUAL(mcpd_unpack(data, pack.nbytes, &value), 0);
    CHECK(value.kind == MCPD_REAL && value.real == 2.5);
    CHECK_EQUAL(UNPACK("\xca\x40\x20\x00\x00", &value), 0);
    CHECK(value.kind == MCPD_REAL && value.real == 2.5);
}

TEST(signed_forms_of_positive_numbers_are_read_as_unsigned)
{
    struct mcpd_value value;
    CHECK_EQUAL(UNPACK("\xd1\x01\x02", &value), 0);
    CHECK(value.kind == MCPD_UNSIGNED && value.number == 0x102);
    CHECK_EQUAL(UNPACK("\xd2\xff\xff\xff\xfe", &value), 0);
    CHECK(value.kind == MCPD_NEGATIVE && value.negative == -2);
}

TEST(a_map_gives_what_stands_under_a_key)
{
    uint8_t data[256];
    struct mcpd_pack pack = pack_in(data, sizeof data);
    mcpd_pack_map(&pack, 4);
    mcpd_pack_unsigned(&pack, 7); /* a key that is no text is passed over */
    mcpd_pack_nil(&pack);
    mcpd_pack_text(&pack, "list");
    mcpd_pack_array(&pack, 2);
    mcpd_pack_text(&pack, "id");
    mcpd_pack_bool(&pack, 1);
    mcpd_pack_text(&pack, "id");
    mcpd_pack_unsigned(&pack, 9);
    mcpd_pack_text(&pack, "name");
    mcpd_pack_text(&pack, "gr\xc3\xbc\xc3\x9f");
    CHECK(!pack.full);
    struct mcpd_value map, value;
    CHECK_EQUAL(mcpd_unpack(data, pack.nbytes, &map), 0);
    uint64_t id = 0;
    CHECK_EQUAL(mcpd_map_unsigned(&map, "id", 9, &id), 0);
    CHECK_EQUAL(id, 9);
    CHECK_EQUAL(mcpd_map_unsigned(&map, "id", 8, &id), -EBADMSG);
    CHECK_EQUAL(mcpd_map_unsigned(&map, "name", 8, &id), -EBADMSG);
    CHECK_EQUAL(mcpd_map_unsigned(&map, "none", 8, &id), 0);
    CHECK_EQUAL(id, 9);
    CHECK(!mcpd_map_find(&map, "i", &value));
    char text[8];
    CHECK_EQUAL(mcpd_map_text(&map, "name", text, sizeof text), 0);
    CHECK(strcmp(text, "gr\xc3\xbc\xc3\x9f") == 0);
    CHECK_EQUAL(mcpd_map_text(&map, "name", text, 6), 0);
    CHECK(strcmp(text, "gr\xc3\xbc") == 0); /* not half of a character */
}

TEST(what_does_not_fit_is_not_written)
{
    uint8_t data[8] = {0};
    struct mcpd_pack pack = pack_in(data, 4);
    mcpd_pack_text(&pack, "abc");
    CHECK(!pack.full);
    mcpd_pack_nil(&pack);
    CHECK(pack.full);
    CHECK_EQUAL(pack.nbytes, 4);
    CHECK_EQUAL(data[4], 0);
}

TEST(what_is_no_message_is_refused)
{
    struct mcpd_value value;
    CHECK_EQUAL(UNPACK("", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\xc1", &value), -EBADMSG);                     /* never used */
    CHECK_EQUAL(UNPACK("\xd4\x01\x02", &value), -EBADMSG);             /* an extension */
    CHECK_EQUAL(UNPACK("\xc7\x01\x02\x03", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\x01\x02", &value), -EBADMSG);                 /* two of them */
    CHECK_EQUAL(UNPACK("\xcd\x01", &value), -EBADMSG);                 /* cut off */
    CHECK_EQUAL(UNPACK("\xa3\x61\x62", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\x92\x01", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\x81\x01", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\xdd\xff\xff\xff\xff\x01", &value), -EBADMSG); /* more than bytes left */
    CHECK_EQUAL(UNPACK("\xdf\xff\xff\xff\xff\x01\x02", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\xdb\xff\xff\xff\xff", &value), -EBADMSG);
}

TEST(text_that_is_not_utf8_is_refused)
{
    struct mcpd_value value;
    CHECK_EQUAL(UNPACK("\xa2\xc3\xa4", &value), 0);
    CHECK_EQUAL(UNPACK("\xa4\xf0\x9f\x8e\xa5", &value), 0);
    CHECK_EQUAL(UNPACK("\xa1\x80", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\xa1\xc3", &value), -EBADMSG);
    CHECK_EQUAL(UNPACK("\xa2\xc0\xaf", &value), -EBADMSG);         /* too long a form */
    CHECK_EQUAL(UNPACK("\xa3\xed\xa0\x80", &value), -EBADMSG);     /* a surrogate */
    CHECK_EQUAL(UNPACK("\xa4\xf4\x90\x80\x80", &value), -EBADMSG); /* beyond U+10FFFF */
}

TEST(depth_costs_no_stack)
{
    static uint8_t data[65536];
    struct mcpd_value value;
    memset(data, 0x91, sizeof data - 1); /* arrays of one array of one array... */
    data[sizeof data - 1] = 0xc0;
    CHECK_EQUAL(mcpd_unpack(data, sizeof data, &value), 0);
    data[sizeof data - 1] = 0x91;
    CHECK_EQUAL(mcpd_unpack(data, sizeof data, &value), -EBADMSG);
}

/* ---- fuzz: the same inputs every time ------------------------------------------------------ */

static uint64_t fuzz_state = 88172645463325252u;

static uint64_t fuzz_next(void)
{
    fuzz_state ^= fuzz_state << 13; /* Marsaglia's xorshift64 */
    fuzz_state ^= fuzz_state >> 7;
    fuzz_state ^= fuzz_state << 17;
    return fuzz_state;
}

static size_t make_answer(uint8_t *data, size_t capacity)
{
    struct mcpd_pack pack = pack_in(data, capacity);
    mcpd_pack_map(&pack, 4);
    mcpd_pack_text(&pack, "type");
    mcpd_pack_text(&pack, "reply");
    mcpd_pack_text(&pack, "id");
    mcpd_pack_unsigned_wide(&pack, 3);
    mcpd_pack_text(&pack, "fds");
    mcpd_pack_unsigned(&pack, 4);
    mcpd_pack_text(&pack, "result");
    mcpd_pack_map(&pack, 3);
    mcpd_pack_text(&pack, "grant");
    mcpd_pack_map(&pack, 2);
    mcpd_pack_text(&pack, "slot_nbytes");
    mcpd_pack_unsigned(&pack, 4096);
    mcpd_pack_text(&pack, "start_seq");
    mcpd_pack_signed(&pack, -700000000000);
    mcpd_pack_text(&pack, "labels");
    mcpd_pack_array(&pack, 2);
    mcpd_pack_text(&pack, "gr\xc3\xbcn");
    mcpd_pack_bytes(&pack, "\0\1", 2);
    mcpd_pack_text(&pack, "wait_s");
    mcpd_pack_double(&pack, 30.0);
    return pack.nbytes;
}

TEST(mutated_messages_are_read_within_their_bytes)
{
    uint8_t whole[256], data[256];
    size_t nbytes = make_answer(whole, sizeof whole);
    CHECK(exercise_msgpack(whole, nbytes));
    int messages = 0;
    for (int input = 0; input < FUZZ_INPUTS; input++) {
        memcpy(data, whole, nbytes);
        size_t length = fuzz_next() % 4 == 0 ? fuzz_next() % (nbytes + 1) : nbytes;
        for (uint64_t changes = fuzz_next() % 4; changes > 0 && length > 0; changes--)
            data[fuzz_next() % length] = (uint8_t)fuzz_next();
        messages += exercise_msgpack(data, length);
    }
    CHECK(messages > FUZZ_INPUTS / 100 && messages < FUZZ_INPUTS); /* both kinds were met */
}

TEST(bytes_of_any_kind_are_read_within_their_bytes)
{
    uint8_t data[64];
    for (int input = 0; input < FUZZ_INPUTS; input++) {
        size_t length = fuzz_next() % (sizeof data + 1);
        for (size_t i = 0; i < length; i++)
            data[i] = (uint8_t)(fuzz_next() >> 32);
        (void)exercise_msgpack(data, length);
    }
}
