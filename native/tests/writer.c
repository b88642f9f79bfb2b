/* The writer: numbering, reuse, holds, admission, the end. */
#include "fixture.h"

TEST(frames_are_numbered_from_one)
{
    struct stream s;
    stream_open(&s, 4, 1, 2);
    CHECK_EQUAL(publish(&s), 1);
    CHECK_EQUAL(publish(&s), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->head), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->published), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->nbytes), 2 * SLOT_NBYTES);
    stream_close(&s);
}

TEST(publish_fills_in_number_generation_and_time)
{
    struct stream s;
    stream_open(&s, 4, 1, 2);
    int64_t before_ns = mcpd_now_ns();
    struct mcpd_meta meta = {.nbytes = 5, .pts_ns = 42, .seq = 99, .generation = 99};
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), 1);
    CHECK_EQUAL(meta.seq, 1);
    CHECK_EQUAL(meta.generation, 3);
    CHECK(meta.publish_ns >= before_ns && meta.publish_ns <= mcpd_now_ns());
    CHECK(memcmp(&header_of(&s, (uint32_t)slot)->meta, &meta, sizeof meta) == 0);
    stream_close(&s);
}

TEST(the_most_recently_freed_slot_is_used_again)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    int first = mcpd_writer_acquire(s.writer, 0);
    publish_slot(&s, first, 1);
    int second = mcpd_writer_acquire(s.writer, 0);
    publish_slot(&s, second, 2);
    CHECK(first != second);
    for (uint64_t seq = 3; seq < 20; seq++) { /* of eight slots, two stay warm */
        int slot = mcpd_writer_acquire(s.writer, 0);
        CHECK_EQUAL(slot, seq % 2 ? first : second);
        publish_slot(&s, slot, seq);
    }
    stream_close(&s);
}

TEST(an_abandoned_slot_is_the_next_one_acquired)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    int slot = mcpd_writer_acquire(s.writer, 0);
    int other = mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)slot), 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), slot);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)other), 0);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)other), -EINVAL);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->abandoned), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->held), 1);
    stream_close(&s);
}

TEST(the_newest_frames_of_the_history_are_retained)
{
    struct stream s;
    stream_open(&s, 8, 3, 2);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        CHECK_EQUAL(publish(&s), seq);
        CHECK(is_published(&s, seq));
        CHECK(seq < 3 || (is_published(&s, seq - 1) && is_published(&s, seq - 2)));
        CHECK(seq < 5 || !is_published(&s, seq - 4));
    }
    stream_close(&s);
}

TEST(a_writer_holds_no_more_slots_than_its_holds)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, -1), -EBUSY);
    CHECK_EQUAL(publish_slot(&s, slot, 1), 1);
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    stream_close(&s);
}

TEST(a_slot_held_after_publishing_is_not_reused_until_released)
{
    struct stream s;
    stream_open(&s, 5, 1, 2);
    struct mcpd_meta meta = {.nbytes = 8};
    int held = mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)held, &meta, 1), 1);
    for (int i = 0; i < 20; i++) {
        int slot = mcpd_writer_acquire(s.writer, 0);
        CHECK(slot >= 0 && slot != held);
        publish_slot(&s, slot, (uint64_t)i + 2);
    }
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->held), 1);
    CHECK_EQUAL(mcpd_writer_release(s.writer, (uint32_t)held), 0);
    CHECK_EQUAL(mcpd_writer_release(s.writer, (uint32_t)held), -EINVAL);
    publish(&s);
    CHECK(!is_published(&s, 1));
    stream_close(&s);
}

TEST(readers_are_admitted_while_slots_suffice_for_all_pins)
{
    struct stream s;
    struct attached r[4];
    stream_open(&s, 10, 1, 2); /* 10 - 1 - 2 - 1 leaves room for 6 pins */
    for (int i = 0; i < 3; i++)
        attach(&s, &r[i], MCPD_LATEST, 2);
    reader_make(&s, &r[3], MCPD_LATEST, 1);
    CHECK_EQUAL(reader_admit(&s, &r[3]), -ENOSPC);
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, r[1].id), 0);
    CHECK_EQUAL(reader_admit(&s, &r[3]), -ENOSPC); /* it may still be looking */
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, r[1].id), 0);
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, r[1].id), -ENOENT);
    CHECK_EQUAL(reader_admit(&s, &r[3]), 0);
    for (int i = 0; i < 4; i++)
        detach(&r[i]);
    stream_close(&s);
}

TEST(a_stream_has_at_most_64_readers)
{
    struct stream s;
    struct attached r[MCPD_MAX_READERS + 1];
    stream_open(&s, 80, 1, 2);
    for (int i = 0; i < MCPD_MAX_READERS; i++)
        attach(&s, &r[i], MCPD_LATEST, 1);
    reader_make(&s, &r[MCPD_MAX_READERS], MCPD_LATEST, 1);
    CHECK_EQUAL(reader_admit(&s, &r[MCPD_MAX_READERS]), -EUSERS);
    for (int i = 0; i <= MCPD_MAX_READERS; i++)
        detach(&r[i]);
    stream_close(&s);
}

TEST(a_reader_with_a_used_id_or_an_unknown_policy_is_refused)
{
    struct stream s;
    struct attached a, b;
    stream_open(&s, 10, 1, 2);
    attach(&s, &a, MCPD_LATEST, 1);
    reader_make(&s, &b, MCPD_LATEST, 1);
    b.id = a.id;
    CHECK_EQUAL(reader_admit(&s, &b), -EEXIST);
    b.id = 99;
    b.admission.policy = MCPD_FIFO;
    CHECK_EQUAL(reader_admit(&s, &b), -EINVAL);
    b.admission.policy = MCPD_LATEST;
    b.admission.max_pins = MCPD_MAX_PINS + 1;
    CHECK_EQUAL(reader_admit(&s, &b), -EINVAL);
    b.admission.max_pins = 1;
    CHECK_EQUAL(reader_admit(&s, &b), 0);
    detach(&a);
    detach(&b);
    stream_close(&s);
}

TEST(a_geometry_out_of_bounds_or_an_object_too_small_is_refused)
{
    struct stream s;
    stream_make(&s, 8);
    struct mcpd_geometry g = s.geometry;
    mcpd_writer *w;
#define OPEN(history, holds) \
    mcpd_writer_open(&g, s.control, s.payload, s.wake, history, holds, &w)
    g.nslots = 1;
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g.nslots = MCPD_MAX_SLOTS + 1;
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g.nslots = 9; /* more than the objects have */
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g = s.geometry;
    g.slot_nbytes = 4097;
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g.slot_nbytes = UINT64_C(1) << 41;
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g.slot_nbytes = 8192; /* more than the payload has */
    CHECK_EQUAL(OPEN(1, 2), -EINVAL);
    g = s.geometry;
    CHECK_EQUAL(OPEN(0, 2), -EINVAL);
    CHECK_EQUAL(OPEN(1, 0), -EINVAL);
    CHECK_EQUAL(OPEN(6, 2), -ENOSPC);
    CHECK_EQUAL(OPEN(UINT32_MAX, UINT32_MAX), -ENOSPC);
#undef OPEN
    stream_close(&s);
}

TEST(a_stream_is_written_by_one_writer_in_its_life)
{
    struct stream s;
    mcpd_writer *other;
    stream_open(&s, 8, 1, 2);
    publish(&s);
    CHECK_EQUAL(mcpd_writer_open(&s.geometry, s.control, s.payload, s.wake, 1, 2, &other), -EEXIST);
    stream_close(&s);
}

TEST(only_an_acquired_slot_can_be_published_and_no_more_bytes_than_it_has)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    struct mcpd_meta meta = {.nbytes = 1};
    CHECK_EQUAL(mcpd_writer_publish(s.writer, 0, &meta, 0), -EINVAL);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, 8, &meta, 0), -EINVAL);
    int slot = mcpd_writer_acquire(s.writer, 0);
    meta.nbytes = SLOT_NBYTES + 1;
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), -EINVAL);
    meta.nbytes = SLOT_NBYTES;
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), 1);
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), -EINVAL);
    CHECK(mcpd_writer_slot(s.writer, 8) == NULL);
    CHECK(mcpd_writer_description(s.writer, 8) == NULL);
    stream_close(&s);
}

TEST(nothing_is_acquired_or_published_after_the_end)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    struct mcpd_meta meta = {.nbytes = 1};
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_LIVE), -EINVAL);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_CLOSED), 0);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_REVOKED), 0);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->ended), MCPD_END_CLOSED); /* the first reason stands */
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), -EPIPE);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, -1), -EPIPE);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)slot), 0);
    stream_close(&s);
}

TEST(a_writer_never_waits_for_readers_that_are_not_lossless)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2); /* 1 + 2 + 1, and 4 pins */
    attach(&s, &r, MCPD_LATEST, 4);
    for (int i = 0; i < 4; i++) {
        publish(&s);
        CHECK(mcpd_reader_next(r.reader, 0, &meta) >= 0);
    }
    for (int i = 0; i < 100; i++) {
        int a = mcpd_writer_acquire(s.writer, 0), b = mcpd_writer_acquire(s.writer, 0);
        CHECK(a >= 0 && b >= 0);
        CHECK(publish_slot(&s, a, 1) > 0 && publish_slot(&s, b, 1) > 0);
    }
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 0);
    detach(&r);
    stream_close(&s);
}
