/*
 * The writer's readers: admitting and forgetting them, and what each of them keeps the writer from.
 *
 * A reader's control object is mapped read-only and read as what its reader says: pins, a lossless
 * cursor and a sleep epoch. A reader that lies holds slots it was admitted for, or loses its own
 * frames.
 */
#include <errno.h>
#include <unistd.h>

#include "atomics.h"
#include "writer.h"

static struct mcpd_writer_reader *find_reader(mcpd_writer *writer, uint64_t id)
{
    for (uint32_t i = 0; i < writer->nreaders; i++)
        if (writer->readers[i].id == id)
            return &writer->readers[i];
    return NULL;
}

/*
 * slots >= retained history + every pin + the writer's holds + 1: so a free slot is always found
 * while no lossless reader is behind.
 */
static int admit(mcpd_writer *writer, uint64_t id, uint32_t max_pins)
{
    if (writer->shut)
        return -ECANCELED;
    if (find_reader(writer, id) != NULL)
        return -EEXIST;
    if (writer->nreaders == MCPD_MAX_READERS)
        return -EUSERS;
    uint64_t needed = (uint64_t)writer->history + writer->holds + 1 + max_pins;
    for (uint32_t i = 0; i < writer->nreaders; i++)
        needed += writer->readers[i].max_pins;
    return needed > writer->geometry.nslots ? -ENOSPC : 0;
}

int64_t mcpd_writer_add_reader(mcpd_writer *writer, uint64_t reader_id, int control_fd, int wake_fd,
                               uint32_t max_pins, enum mcpd_policy policy)
{
    if (max_pins < 1 || max_pins > MCPD_MAX_PINS)
        return -EINVAL;
    if (policy != MCPD_LATEST && policy != MCPD_LOSSLESS)
        return -ENOTSUP;
    if (!*writer->guard)
        return -ECHILD;
    struct mcpd_writer_reader entry = {.id = reader_id, .max_pins = max_pins};
    int result = mcpd_map_open(&entry.control, control_fd, mcpd_rctl_nbytes(max_pins), 0);
    if (result != 0)
        return result;
    entry.rctl = entry.control.base;
    entry.pins = (const _Atomic uint64_t *)((const uint8_t *)entry.control.base + MCPD_RCTL_PINS);
    entry.lossless = policy == MCPD_LOSSLESS;
    result = mcpd_control_check(entry.rctl->magic, MCPD_RCTL_MAGIC, entry.rctl->abi);
    if (result == 0)
        result = entry.wake_fd = mcpd_wake_dup(wake_fd);
    if (result < 0) {
        mcpd_map_close(&entry.control);
        return result;
    }
    pthread_mutex_lock(&writer->mutex);
    result = admit(writer, reader_id, max_pins);
    if (result != 0) {
        mcpd_map_close(&entry.control);
        close(entry.wake_fd);
        return mcpd_writer_leave(writer, result);
    }
    entry.cursor = writer->head + 1;
    writer->readers[writer->nreaders++] = entry;
    pthread_mutex_unlock(&writer->mutex);
    return entry.lossless ? (int64_t)entry.cursor : 0;
}

int mcpd_writer_release_reader(mcpd_writer *writer, uint64_t reader_id)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    struct mcpd_writer_reader *reader = find_reader(writer, reader_id);
    if (reader == NULL)
        return mcpd_writer_leave(writer, -ENOENT);
    reader->released = 1;
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

int mcpd_writer_remove_reader(mcpd_writer *writer, uint64_t reader_id)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    struct mcpd_writer_reader *reader = find_reader(writer, reader_id);
    if (reader == NULL)
        return mcpd_writer_leave(writer, -ENOENT);
    mcpd_map_close(&reader->control);
    close(reader->wake_fd);
    *reader = writer->readers[--writer->nreaders];
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

/*
 * Frames from here on are retained whether pinned or not. A lossless cursor is its reader's word:
 * it may not go back, nor beyond the next frame. seq_cst: pairs with the store in mcpd_reader_next,
 * so that the pin of the frame just passed is seen by the scan that follows, and that a writer
 * about to sleep sees the cursor of any reader that does not see its epoch.
 */
uint64_t mcpd_writer_retained_from(mcpd_writer *writer)
{
    uint64_t next = writer->head + 1;
    uint64_t from = next > writer->history ? next - writer->history : 1;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        struct mcpd_writer_reader *reader = &writer->readers[i];
        if (!reader->lossless || reader->released)
            continue;
        uint64_t cursor = mcpd_load_seq_cst(&reader->rctl->cursor);
        if (cursor > next)
            cursor = next;
        if (cursor > reader->cursor)
            reader->cursor = cursor;
        if (reader->cursor < from)
            from = reader->cursor;
    }
    return from;
}

int mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag)
{
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        const struct mcpd_writer_reader *reader = &writer->readers[i];
        for (uint32_t pin = 0; pin < reader->max_pins; pin++)
            if (mcpd_load_seq_cst(&reader->pins[pin]) == tag)
                return 1;
    }
    return 0;
}

/* After a seq_cst store of what they wait for; pairs with the look after mcpd_sleep_begin. */
void mcpd_writer_wake_readers(mcpd_writer *writer)
{
    uint64_t wakes = 0;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        struct mcpd_writer_reader *reader = &writer->readers[i];
        if (!reader->released)
            wakes += (uint64_t)mcpd_wake_peer(&reader->rctl->epoch, &reader->signalled,
                                              reader->wake_fd);
    }
    if (wakes > 0)
        mcpd_count(&writer->wctl->wakes, wakes);
}
