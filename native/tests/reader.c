/* The reader: policies, pins, back-pressure, the end. */
#include "fixture.h"

TEST(latest_jumps_to_the_newest_frame_and_counts_what_it_skipped)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN);
    for (int i = 0; i < 5; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&r), 5);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN);
    publish(&s);
    CHECK_EQUAL(read_one(&r), 6);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->received), 2);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->skipped), 4);
    detach(&r);
    stream_close(&s);
}

TEST(latest_sees_the_newest_frame_that_was_there_before_it)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    for (int i = 0; i < 5; i++)
        publish(&s);
    attach(&s, &r, MCPD_LATEST, 2);
    CHECK_EQUAL(r.start, 0);
    CHECK_EQUAL(read_one(&r), 5);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->skipped), 0);
    detach(&r);
    stream_close(&s);
}

TEST(lossless_is_owed_every_frame_from_its_admission_on_in_order)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    publish(&s);
    attach(&s, &r, MCPD_LOSSLESS, 2);
    CHECK_EQUAL(r.start, 2);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN);
    for (int i = 0; i < 6; i++)
        publish(&s);
    for (uint64_t seq = 2; seq <= 7; seq++)
        CHECK_EQUAL(read_one(&r), seq);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->skipped), 0);
    detach(&r);
    stream_close(&s);
}

TEST(a_lossless_reader_behind_makes_the_writer_wait)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 1);
    for (int i = 0; i < 6; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 1000), -ETIMEDOUT);
    CHECK_EQUAL(mcpd_load_relaxed(&s.wctl->would_block), 2);
    int pin = mcpd_reader_next(r.reader, 0, &meta);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN); /* taken, but pinned */
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), 0);
    publish(&s);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    for (uint64_t seq = 2; seq <= 7; seq++)
        CHECK_EQUAL(read_one(&r), seq);
    detach(&r);
    stream_close(&s);
}

TEST(a_lossless_reader_does_not_change_what_a_latest_one_gets)
{
    struct stream s;
    struct attached lossless, latest;
    stream_open(&s, 8, 1, 2);
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    attach(&s, &latest, MCPD_LATEST, 1);
    for (int i = 0; i < 4; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&latest), 4);
    CHECK_EQUAL(read_one(&lossless), 1);
    CHECK_EQUAL(read_one(&lossless), 2);
    publish(&s);
    CHECK_EQUAL(read_one(&latest), 5);
    CHECK_EQUAL(read_one(&lossless), 3);
    detach(&lossless);
    detach(&latest);
    stream_close(&s);
}

TEST(a_pinned_frame_stays_as_it_is_while_the_writer_goes_on)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 5, 1, 2);
    attach(&s, &r, MCPD_LATEST, 1);
    publish(&s);
    int pin = mcpd_reader_next(r.reader, 0, &meta);
    for (int i = 0; i < 100; i++)
        publish(&s);
    CHECK(is_whole(mcpd_reader_slot(r.reader, (uint32_t)pin), 1));
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), 0);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), -EINVAL);
    CHECK(mcpd_reader_slot(r.reader, (uint32_t)pin) == NULL);
    publish(&s);
    CHECK(!is_published(&s, 1));
    detach(&r);
    stream_close(&s);
}

TEST(a_reader_pins_no_more_frames_than_its_max_pins)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    publish(&s);
    int pin = mcpd_reader_next(r.reader, 0, &meta);
    publish(&s);
    CHECK(mcpd_reader_next(r.reader, 0, &meta) >= 0);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -EAGAIN); /* nothing new */
    publish(&s);
    CHECK_EQUAL(mcpd_reader_next(r.reader, -1, &meta), -EBUSY);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), 0);
    CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), pin);
    CHECK_EQUAL(meta.seq, 3);
    detach(&r);
    stream_close(&s);
}

TEST(what_was_published_before_the_end_is_read_first)
{
    struct stream s;
    struct attached lossless, latest;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &lossless, MCPD_LOSSLESS, 1);
    attach(&s, &latest, MCPD_LATEST, 1);
    for (int i = 0; i < 3; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_reader_ended(latest.reader), MCPD_LIVE);
    CHECK_EQUAL(mcpd_writer_end(s.writer, MCPD_END_CLOSED), 0);
    CHECK_EQUAL(read_one(&latest), 3);
    CHECK_EQUAL(mcpd_reader_next(latest.reader, -1, &meta), -EPIPE);
    for (uint64_t seq = 1; seq <= 3; seq++)
        CHECK_EQUAL(read_one(&lossless), seq);
    CHECK_EQUAL(mcpd_reader_next(lossless.reader, -1, &meta), -EPIPE);
    CHECK_EQUAL(mcpd_reader_ended(latest.reader), MCPD_END_CLOSED);
    detach(&lossless);
    detach(&latest);
    stream_close(&s);
}

TEST(a_released_reader_is_owed_nothing_but_keeps_its_pins)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 6, 1, 2);
    attach(&s, &r, MCPD_LOSSLESS, 1);
    publish(&s);
    int pin = mcpd_reader_next(r.reader, 0, &meta);
    for (int i = 0; i < 5; i++)
        publish(&s);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
    CHECK_EQUAL(mcpd_writer_release_reader(s.writer, r.id), 0);
    for (int i = 0; i < 20; i++)
        publish(&s);
    CHECK(is_whole(mcpd_reader_slot(r.reader, (uint32_t)pin), 1));
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, r.id), 0);
    publish(&s);
    CHECK(!is_published(&s, 1));
    detach(&r);
    stream_close(&s);
}

TEST(closing_a_reader_takes_its_pins_off)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    publish(&s);
    CHECK(mcpd_reader_next(r.reader, 0, &meta) >= 0);
    mcpd_reader_close(r.reader);
    r.reader = NULL;
    CHECK_EQUAL(mcpd_load_relaxed(&r.pins[0]), 0);
    publish(&s);
    publish(&s);
    CHECK(!is_published(&s, 1));
    detach(&r);
    stream_close(&s);
}

TEST(a_reader_is_refused_an_object_too_small_or_of_another_version)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    reader_make(&s, &r, MCPD_LATEST, 2);
    r.admission.policy = MCPD_FIFO;
    CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    r.admission.policy = MCPD_LATEST;
    s.geometry.nslots = 9;
    CHECK_EQUAL(reader_open(&s, &r), -EINVAL);
    s.geometry.nslots = 8;
    s.wctl->abi++;
    CHECK_EQUAL(reader_open(&s, &r), -EPROTONOSUPPORT);
    s.wctl->abi--;
    r.rctl->magic = 0;
    CHECK_EQUAL(reader_open(&s, &r), -EPROTONOSUPPORT);
    CHECK_EQUAL(reader_admit(&s, &r), -EPROTONOSUPPORT);
    detach(&r);
    stream_close(&s);
}

TEST(a_forked_child_can_neither_use_nor_disturb_a_stream)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    publish(&s);
    int pin = mcpd_reader_next(r.reader, 0, &meta);
    int slot = mcpd_writer_acquire(s.writer, 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(mcpd_reader_next(r.reader, 0, &meta), -ECHILD);
        CHECK_EQUAL(mcpd_reader_unpin(r.reader, (uint32_t)pin), -ECHILD);
        CHECK(mcpd_reader_slot(r.reader, (uint32_t)pin) == NULL);
        CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -ECHILD);
        CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)slot), -ECHILD);
        CHECK(mcpd_writer_slot(s.writer, (uint32_t)slot) == NULL);
        mcpd_reader_close(r.reader);
        mcpd_writer_close(s.writer);
        _Exit(0);
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(is_whole(mcpd_reader_slot(r.reader, (uint32_t)pin), 1));
    CHECK_EQUAL(publish_slot(&s, slot, 2), 2);
    CHECK_EQUAL(read_one(&r), 2);
    detach(&r);
    stream_close(&s);
}
