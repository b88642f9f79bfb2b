/*
 * Payloads that lose memory while they are written and read: guard.c.
 */
#include <sys/stat.h>

#include "guard_fixture.h"

TEST(a_frame_whose_memory_was_taken_away_reads_as_zeros_and_is_reported)
{
    struct stream s;
    struct attached r;
    open_unsealed(&s, &r);
    uint64_t seq = publish(&s);
    uint32_t pin = pin_next(&r, seq);
    CHECK_EQUAL(mcpd_reader_check(r.reader), 0);
    CHECK_EQUAL(ftruncate(s.payload, 0), 0);
    CHECK(is_zero(mcpd_reader_slot(r.reader, pin)));
    CHECK_EQUAL(mcpd_reader_check(r.reader), -EFAULT);
    /* It stays lost when there is memory again, and whole frames are in it. */
    CHECK_EQUAL(ftruncate(s.payload, (off_t)OFFSET + mcpd_payload_nbytes(&s.geometry)), 0);
    CHECK_EQUAL(publish(&s), seq + 1);
    int next = next_now(&r);
    CHECK(next >= 0);
    CHECK(is_zero(mcpd_reader_slot(r.reader, (uint32_t)next)));
    CHECK_EQUAL(mcpd_reader_check(r.reader), -EFAULT);
    CHECK_EQUAL(mcpd_reader_unpin(r.reader, pin), 0);
    close_both(&s, &r);
}

TEST(a_writer_whose_memory_was_taken_away_neither_publishes_nor_acquires)
{
    struct stream s;
    struct attached r;
    struct mcpd_meta meta = {.nbytes = SLOT_NBYTES};
    open_unsealed(&s, &r);
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK(slot >= 0);
    CHECK_EQUAL(ftruncate(s.payload, (off_t)OFFSET), 0);
    fill(mcpd_writer_slot(s.writer, (uint32_t)slot), 1);
    CHECK(is_whole(mcpd_writer_slot(s.writer, (uint32_t)slot), 1)); /* into memory of its own */
    CHECK_EQUAL(mcpd_writer_publish(s.writer, (uint32_t)slot, &meta, 0), -EFAULT);
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)slot), 0);
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, LONG_NS), -EFAULT);
    CHECK_EQUAL(next_now(&r), -EAGAIN);
    close_both(&s, &r);
}

TEST(a_system_call_that_is_given_lost_memory_fails)
{
    struct stream s;
    struct attached r;
    int pipe_fds[2];
    open_unsealed(&s, &r);
    CHECK_EQUAL(pipe(pipe_fds), 0);
    uint32_t pin = pin_next(&r, publish(&s));
    CHECK_EQUAL(ftruncate(s.payload, 0), 0);
    CHECK_EQUAL(write(pipe_fds[1], mcpd_reader_slot(r.reader, pin), SLOT_NBYTES), -1);
    CHECK_EQUAL(errno, EFAULT);
    CHECK(is_zero(mcpd_reader_slot(r.reader, pin)));
    CHECK_EQUAL(write(pipe_fds[1], mcpd_reader_slot(r.reader, pin), SLOT_NBYTES), SLOT_NBYTES);
    CHECK_EQUAL(mcpd_reader_check(r.reader), -EFAULT);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    close_both(&s, &r);
}

TEST(offsets_and_sizes_that_the_object_has_not_are_refused)
{
    struct stream s;
    struct attached r;
    mcpd_writer *writer;
    const uint64_t wrong[] = {OFFSET + SLOT_NBYTES, UINT64_MAX - 4095, (uint64_t)INT64_MAX + 1,
                              UINT64_MAX - OFFSET + 1, OFFSET + 2048, 1, UINT64_MAX};
    open_unsealed(&s, &r);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct mcpd_geometry geometry = s.geometry;
        geometry.payload_offset = wrong[i];
        CHECK_EQUAL(mcpd_writer_open(&geometry, s.control, s.payload, s.wake, 1, 2, &writer),
                    wrong[i] % SLOT_NBYTES != 0 ? -EINVAL : -EFAULT);
    }
    struct mcpd_geometry geometry = s.geometry;
    geometry.slot_nbytes = UINT64_C(1) << 40;
    CHECK_EQUAL(mcpd_writer_open(&geometry, s.control, s.payload, s.wake, 1, 2, &writer), -EFAULT);
    CHECK_EQUAL(publish(&s), 1); /* the one that stands is as it was */
    close_both(&s, &r);
}

TEST(a_sparse_object_is_mapped_without_filling_it)
{
    struct stream s;
    struct attached r;
    struct stat status;
    open_unsealed(&s, &r);
    CHECK_EQUAL(fstat(s.payload, &status), 0);
    CHECK_EQUAL(status.st_blocks, 0);
    close_both(&s, &r);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void *sum_zeros(void *slot)
{
    const volatile uint8_t *bytes = slot;
    uintptr_t sum = 0;
    for (size_t i = 0; i < SLOT_NBYTES; i += 64)
        sum += bytes[i];
    return (void *)sum;
}

TEST(threads_that_find_the_hole_at_once_all_go_on)
{
    for (int round = 0; round < 50; round++) {
        struct stream s;
        struct attached r;
        pthread_t threads[4];
        open_unsealed(&s, &r);
        uint32_t pin = pin_next(&r, publish(&s));
        CHECK_EQUAL(ftruncate(s.payload, 0), 0);
        for (int i = 0; i < 4; i++)
            threads[i] = start(sum_zeros, (void *)(uintptr_t)mcpd_reader_slot(r.reader, pin));
        for (int i = 0; i < 4; i++)
            CHECK_EQUAL((uintptr_t)finish(threads[i]), 0);
        CHECK_EQUAL(mcpd_reader_check(r.reader), -EFAULT);
        close_both(&s, &r);
    }
}

/* Maps, loses, reads and unmaps, beside others that do the same. */
static void *come_and_go(void *unused)
{
    (void)unused;
    for (int round = 0; round < 60; round++) {
        struct mcpd_map map = {0};
        struct mcpd_guarded *guarded;
        int fd = memfd_create("come", MFD_CLOEXEC);
        CHECK(fd >= 0);
        CHECK_EQUAL(ftruncate(fd, 4 * SLOT_NBYTES), 0);
        CHECK_EQUAL(mcpd_payload_open(&map, &guarded, fd, 0, 4 * SLOT_NBYTES, round % 2), 0);
        CHECK_EQUAL(mcpd_guarded_lost(guarded), 0);
        if (round % 3 != 0) {
            CHECK_EQUAL(ftruncate(fd, SLOT_NBYTES), 0);
            CHECK_EQUAL((uintptr_t)sum_zeros((uint8_t *)map.base + 2 * SLOT_NBYTES), 0);
        }
        CHECK_EQUAL(mcpd_guarded_lost(guarded), round % 3 != 0);
        mcpd_payload_close(&map, &guarded);
        close(fd);
    }
    return NULL;
}

TEST(mappings_come_and_go_while_others_fault)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = start(come_and_go, NULL);
    for (int i = 0; i < 4; i++)
        finish(threads[i]);
}

TEST(more_mappings_than_one_table_holds_are_guarded_each)
{
    enum { COUNT = 300 };
    static struct mcpd_map maps[COUNT];
    static struct mcpd_guarded *guarded[COUNT];
    int fd = memfd_create("many", MFD_CLOEXEC), other = memfd_create("one", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, SLOT_NBYTES), 0);
    CHECK_EQUAL(ftruncate(other, SLOT_NBYTES), 0);
    for (int i = 0; i < COUNT; i++)
        CHECK_EQUAL(mcpd_payload_open(&maps[i], &guarded[i], i == 250 ? other : fd, 0, SLOT_NBYTES,
                                      0),
                    0);
    CHECK_EQUAL(ftruncate(other, 0), 0);
    CHECK_EQUAL((uintptr_t)sum_zeros(maps[250].base), 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(mcpd_guarded_lost(guarded[i]), i == 250);
        mcpd_payload_close(&maps[i], &guarded[i]);
    }
    close(fd);
    close(other);
}
