/*
 * Moving 1080p frames in C, for bench/native.py: the eventfd floor, and a stream of ours.
 *
 * Both write a stamp (time, number) at the start of a frame just before they publish it, and the
 * reader takes the time as soon as it has it. A reader that is late misses frames. Readers return how
 * many they received, writers 0; both a negative errno on failure.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mcpd.h"

struct stamp {
    int64_t at_ns;
    int64_t index;
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pause_ns(int64_t ns)
{
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&left, NULL);
}

static void put(uint8_t *slot, const uint8_t *pixels, size_t nbytes, int64_t index)
{
    if (pixels != NULL)
        memcpy(slot, pixels, nbytes);
    struct stamp stamp = {now_ns(), index};
    memcpy(slot, &stamp, sizeof stamp);
}

/* Notes the time that the frame took; returns its number. */
static int64_t get(const uint8_t *slot, int64_t *wake_ns)
{
    struct stamp stamp;
    int64_t awake_ns = now_ns();
    memcpy(&stamp, slot, sizeof stamp);
    *wake_ns = awake_ns - stamp.at_ns;
    return stamp.index;
}

/* ---- the floor: memory, an eventfd, nothing else ------------------------------------------- */

int bench_floor_write(uint8_t *memory, uint32_t nslots, int wake_fd, const uint8_t *pixels,
                      size_t nbytes, int frames, int64_t between_ns)
{
    const uint64_t one = 1;
    for (int index = 0; index < frames; index++) {
        pause_ns(between_ns);
        put(memory + (uint32_t)index % nslots * nbytes, pixels, nbytes, index);
        if (write(wake_fd, &one, sizeof one) != sizeof one)
            return -errno;
    }
    return 0;
}

int bench_floor_read(const uint8_t *memory, uint32_t nslots, int wake_fd, size_t nbytes, int frames,
                     int64_t *wakes_ns)
{
    uint64_t count, written = 0;
    int received = 0;
    for (int64_t index = -1; index < frames - 1;) {
        if (read(wake_fd, &count, sizeof count) != sizeof count)
            return -errno;
        written += count;
        index = get(memory + (written - 1) % nslots * nbytes, &wakes_ns[received++]);
    }
    return received;
}

/* Wakes everyone who waits on one of these. */
int bench_floor_signal(const int *wake_fds, int count)
{
    const uint64_t one = 1;
    for (int i = 0; i < count; i++)
        if (write(wake_fds[i], &one, sizeof one) != sizeof one)
            return -errno;
    return 0;
}

/* ---- a stream ------------------------------------------------------------------------------ */

int bench_stream_write(mcpd_writer *writer, const uint8_t *pixels, size_t nbytes, int frames,
                       int64_t between_ns)
{
    for (int index = 0; index < frames; index++) {
        pause_ns(between_ns);
        int slot = mcpd_writer_acquire(writer, -1);
        if (slot < 0)
            return slot;
        struct mcpd_meta meta = {.nbytes = nbytes, .device_event = -1};
        put(mcpd_writer_slot(writer, (uint32_t)slot), pixels, nbytes, index);
        int64_t seq = mcpd_writer_publish(writer, (uint32_t)slot, &meta, 0);
        if (seq < 0)
            return (int)seq;
    }
    return 0;
}

int bench_stream_read(mcpd_reader *reader, int frames, int64_t *wakes_ns)
{
    int received = 0;
    for (int64_t index = -1; index < frames - 1;) {
        struct mcpd_meta meta;
        int pin = mcpd_reader_next(reader, -1, &meta);
        if (pin < 0)
            return pin;
        index = get(mcpd_reader_slot(reader, (uint32_t)pin), &wakes_ns[received++]);
        mcpd_reader_unpin(reader, (uint32_t)pin);
    }
    return received;
}
