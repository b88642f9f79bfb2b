/*
 * The writer's readers: admitting and forgetting them, their pins, and waking them.
 *
 * A reader's control object is mapped read-only and read as what its reader says: pins, a cursor and
 * a sleep epoch. A reader that lies holds slots it was admitted for, or loses its own frames.
 */
#include <errno.h>
#include <unistd.h>

#include "atomics.h"
#include "steps.h"
#include "writer.h"

static struct mcpd_writer_reader *find_reader(mcpd_writer *writer, uint64_t id)
{
    for (uint32_t i = 0; i < writer->nreaders; i++)
        if (writer->readers[i].id == id)
            return &writer->readers[i];
    return NULL;
}

static void deepen(uint64_t *retained, const struct mcpd_writer_owed *owed)
{
    uint32_t kept = mcpd_kept_depth(owed->policy, owed->depth);
    if (kept > *retained)
        *retained = kept;
}

/*
 * slots >= what is retained at most + every pin + the writer's holds + 1: so a free slot is always
 * found while nobody lossless is behind.
 */
uint64_t mcpd_writer_needed(const mcpd_writer *writer, uint32_t kept, uint32_t max_pins)
{
    uint64_t retained = kept > writer->history ? kept : writer->history;
    uint64_t pins = max_pins;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        if (writer->readers[i].group != 0)
            continue;
        deepen(&retained, &writer->readers[i].owed);
        pins += writer->readers[i].max_pins;
    }
    for (uint32_t i = 0; i < writer->ngroups; i++) {
        deepen(&retained, &writer->groups[i].owed);
        pins += writer->groups[i].budget;
    }
    return retained + pins + writer->holds + 1;
}

static int number_is_used(const mcpd_writer *writer, const struct mcpd_admission *admission)
{
    for (uint32_t i = 0; i < writer->nreaders; i++)
        if (writer->readers[i].group == admission->group &&
            writer->readers[i].member == admission->member)
            return 1;
    return 0;
}

/* A group whose last member has left is owed nothing any more, so nobody can join it. */
static int check_member(mcpd_writer *writer, const struct mcpd_admission *admission)
{
    if (admission->group == 0)
        return 0;
    const struct mcpd_writer_group *group = mcpd_writer_find_group(writer, admission->group);
    if (group == NULL || group->left)
        return -ENOENT;
    return number_is_used(writer, admission) ? -EEXIST : 0;
}

static int admit(mcpd_writer *writer, uint64_t id, const struct mcpd_admission *admission)
{
    if (writer->shut)
        return -ECANCELED;
    if (find_reader(writer, id) != NULL)
        return -EEXIST;
    int result = check_member(writer, admission);
    if (result != 0)
        return result;
    if (writer->nreaders == MCPD_MAX_READERS)
        return -EUSERS;
    mcpd_writer_settle_groups(writer);
    uint32_t kept = mcpd_kept_depth(admission->policy, admission->depth);
    uint64_t needed =
        mcpd_writer_needed(writer, admission->group == 0 ? kept : 0, admission->max_pins);
    return needed > writer->geometry.nslots ? -ENOSPC : 0;
}

/* Maps its control object; what is mapped is closed by close_parts, also after an error. */
static int open_parts(struct mcpd_writer_reader *entry, int control_fd, int wake_fd)
{
    entry->wake_fd = -1;
    int result = mcpd_map_open(&entry->control, control_fd, mcpd_rctl_nbytes(entry->max_pins), 0);
    if (result != 0)
        return result;
    entry->rctl = entry->control.base;
    entry->pins = (const _Atomic uint64_t *)((const uint8_t *)entry->control.base + MCPD_RCTL_PINS);
    result = mcpd_control_check(entry->rctl->magic, MCPD_RCTL_MAGIC, entry->rctl->abi);
    if (result == 0)
        result = entry->wake_fd = mcpd_wake_dup(wake_fd);
    return result < 0 ? result : 0;
}

static void close_parts(struct mcpd_writer_reader *entry)
{
    mcpd_map_close(&entry->control);
    if (entry->wake_fd >= 0)
        close(entry->wake_fd);
}

int64_t mcpd_writer_add_reader(mcpd_writer *writer, uint64_t reader_id, int control_fd, int wake_fd,
                               const struct mcpd_admission *admission)
{
    if (admission->max_pins < 1 || admission->max_pins > MCPD_MAX_PINS ||
        admission->member >= MCPD_MAX_READERS)
        return -EINVAL;
    if (mcpd_policy_check(admission->policy, admission->depth) != 0)
        return -EINVAL;
    if (!*writer->guard)
        return -ECHILD;
    struct mcpd_writer_reader entry = {.id = reader_id,
                                       .max_pins = admission->max_pins,
                                       .group = admission->group,
                                       .member = admission->member};
    int result = open_parts(&entry, control_fd, wake_fd);
    pthread_mutex_lock(&writer->mutex);
    if (result == 0)
        result = admit(writer, reader_id, admission);
    if (result != 0) {
        close_parts(&entry);
        return mcpd_writer_leave(writer, result);
    }
    MCPD_STEP("writer.admit.mapped");
    uint64_t start = writer->head + 1;
    if (entry.group != 0)
        mcpd_group_join(mcpd_writer_find_group(writer, entry.group), entry.max_pins);
    else
        entry.owed = (struct mcpd_writer_owed){.word = &entry.rctl->cursor,
                                               .cursor = start,
                                               .policy = admission->policy,
                                               .depth = admission->depth};
    writer->readers[writer->nreaders++] = entry;
    MCPD_STEP("writer.admit.admitted");
    pthread_mutex_unlock(&writer->mutex);
    return entry.group != 0 || admission->policy == MCPD_LATEST ? 0 : (int64_t)start;
}

static void release(mcpd_writer *writer, struct mcpd_writer_reader *reader)
{
    if (!reader->released && reader->group != 0)
        mcpd_group_release(mcpd_writer_find_group(writer, reader->group));
    reader->released = 1;
}

int mcpd_writer_release_reader(mcpd_writer *writer, uint64_t reader_id)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    struct mcpd_writer_reader *reader = find_reader(writer, reader_id);
    if (reader == NULL)
        return mcpd_writer_leave(writer, -ENOENT);
    release(writer, reader);
    MCPD_STEP("writer.leave.released");
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
    release(writer, reader);
    if (reader->group != 0)
        mcpd_group_leave(mcpd_writer_find_group(writer, reader->group), reader->max_pins);
    close_parts(reader);
    *reader = writer->readers[--writer->nreaders];
    MCPD_STEP("writer.leave.removed");
    mcpd_sleep_pass_on(&writer->sleep);
    return mcpd_writer_leave(writer, 0);
}

/* The pins of a group's members are not used: their claims are. */
int mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag)
{
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        const struct mcpd_writer_reader *reader = &writer->readers[i];
        if (i + MCPD_FETCH_AHEAD < writer->nreaders)
            mcpd_fetch(writer->readers[i + MCPD_FETCH_AHEAD].pins, 1);
        for (uint32_t pin = 0; reader->group == 0 && pin < reader->max_pins; pin++)
            if (mcpd_load_seq_cst(&reader->pins[pin]) == tag)
                return 1;
    }
    return 0;
}

/*
 * A reader of its own that does not want the frame sleeps on. What it wants only ever grows, and was
 * stored before the epoch of its sleep, so it is read after that: an older word would wake it for
 * nothing.
 */
static int wake(struct mcpd_writer_reader *reader, uint64_t seq, int64_t publish_ns)
{
    uint32_t seen = mcpd_load_seq_cst(&reader->rctl->epoch);
    if ((seen & 1) != 0 && reader->group == 0 &&
        (mcpd_load_seq_cst(&reader->rctl->cursor) > seq ||
         mcpd_load_relaxed(&reader->rctl->not_before_ns) > publish_ns))
        return 0;
    return mcpd_wake_seen(seen, &reader->signalled, reader->wake_fd);
}

/* Asks for the words of a reader that say whether it sleeps: they are in its processor's cache. */
void mcpd_writer_fetch_reader(const mcpd_writer *writer, uint32_t i)
{
    if (i < writer->nreaders)
        mcpd_fetch(&writer->readers[i].rctl->cursor, 128);
}

/* Pairs with the look after mcpd_sleep_begin. */
void mcpd_writer_wake_readers(mcpd_writer *writer, uint64_t seq, int64_t publish_ns)
{
    uint64_t wakes = 0;
    for (uint32_t i = 0; i < writer->nreaders; i++) {
        mcpd_writer_fetch_reader(writer, i + MCPD_FETCH_AHEAD);
        if (!writer->readers[i].released)
            wakes += (uint64_t)wake(&writer->readers[i], seq, publish_ns);
    }
    if (wakes > 0)
        mcpd_count(&writer->wctl->wakes, wakes);
}
