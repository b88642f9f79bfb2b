/*
 * The writer's free slots: taking one, or waiting until a lossless reader has made room.
 */
#include "atomics.h"
#include "steps.h"
#include "writer.h"

void mcpd_writer_count_held(mcpd_writer *writer, int change)
{
    writer->nheld += (uint32_t)change;
    mcpd_store_relaxed(&writer->wctl->held, writer->nheld);
}

/* ---- time spent waiting for room ------------------------------------------------------------- */

static void begin_blocked(mcpd_writer *writer)
{
    if (writer->blocked++ > 0)
        return;
    writer->blocked_since_ns = mcpd_now_ns();
    mcpd_store_relaxed(&writer->wctl->blocked_since_ns, (uint64_t)writer->blocked_since_ns);
}

static void end_blocked(mcpd_writer *writer)
{
    if (--writer->blocked > 0)
        return;
    mcpd_count(&writer->wctl->blocked_ns, (uint64_t)(mcpd_now_ns() - writer->blocked_since_ns));
    mcpd_store_relaxed(&writer->wctl->blocked_since_ns, 0);
}

static void set_armed_blocked(mcpd_writer *writer, int blocked)
{
    if (blocked && !writer->armed_blocked)
        begin_blocked(writer);
    if (!blocked && writer->armed_blocked)
        end_blocked(writer);
    writer->armed_blocked = blocked;
}

/* ---- acquiring ------------------------------------------------------------------------------- */

/* Whether an acquire would return at once: 1, or -EAGAIN, or why there is nothing to acquire. */
static int ready(mcpd_writer *writer)
{
    if (writer->shut)
        return -ECANCELED;
    if (mcpd_load_seq_cst(&writer->wctl->ended) != MCPD_LIVE)
        return -EPIPE;
    if (mcpd_guarded_lost(writer->guarded))
        return -EFAULT;
    if (writer->frozen)
        return -EAGAIN;
    if (writer->nheld >= writer->holds)
        return -EBUSY;
    mcpd_writer_reclaim(writer);
    if (writer->ahead)
        return -EAGAIN;
    if (writer->nfree == 0) {
        /* A pin that moved during the walk may have held up two slots; now it holds up one. */
        mcpd_writer_audit_groups(writer);
        mcpd_writer_reclaim(writer);
    }
    return writer->nfree > 0 ? 1 : -EAGAIN;
}

static int take(mcpd_writer *writer)
{
    int result = ready(writer);
    if (result < 0)
        return result;
    mcpd_guarded_watch(writer->guarded);
    uint32_t index = writer->free[--writer->nfree];
    struct mcpd_writer_slot *slot = &writer->slots[index];
    slot->state = MCPD_SLOT_WRITING;
    MCPD_STEP("writer.acquire.chosen");
    /* Of no frame: that of one says that its reclaim is under way, and members wait for that. */
    mcpd_store_release(&writer->headers[index].state, MCPD_TAG(0, MCPD_SLOT_WRITING));
    MCPD_STEP("writer.acquire.writing");
    mcpd_writer_count_held(writer, 1);
    return (int)index;
}

/* Takes if it can; an armed event loop that finds nothing goes on sleeping. */
static int try_locked(mcpd_writer *writer)
{
    int result = take(writer);
    if (result == -EAGAIN && writer->sleep.armed) {
        mcpd_sleep_arm(&writer->sleep);
        result = take(writer);
        if (result != -EAGAIN)
            mcpd_sleep_pass_on(&writer->sleep);
    }
    if (writer->sleep.armed)
        set_armed_blocked(writer, result == -EAGAIN);
    return result;
}

static int wait_locked(mcpd_writer *writer, int64_t timeout_ns)
{
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    int result, woken;
    begin_blocked(writer);
    MCPD_STEP("writer.wait.blocked");
    do {
        mcpd_sleep_begin(&writer->sleep);
        MCPD_STEP("writer.wait.asleep");
        result = take(writer);
        woken = 1;
        if (result == -EAGAIN) {
            MCPD_STEP("writer.wait.rechecked");
            pthread_mutex_unlock(&writer->mutex);
            woken = mcpd_sleep_poll(writer->sleep.fd, deadline_ns);
            pthread_mutex_lock(&writer->mutex);
            MCPD_STEP("writer.wait.woken");
        }
        mcpd_sleep_finish(&writer->sleep);
        if (result == -EAGAIN)
            result = take(writer);
    } while (result == -EAGAIN && woken == 1);
    if (result == -EAGAIN)
        result = woken == 0 ? -ETIMEDOUT : woken;
    else
        mcpd_sleep_pass_on(&writer->sleep);
    end_blocked(writer);
    return result;
}

int mcpd_writer_try(mcpd_writer *writer)
{
    int result = mcpd_writer_enter(writer);
    return result != 0 ? result : mcpd_writer_leave(writer, try_locked(writer));
}

int mcpd_writer_acquire(mcpd_writer *writer, int64_t timeout_ns)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    result = try_locked(writer);
    if (result == -EAGAIN) {
        mcpd_count(&writer->wctl->would_block, 1);
        if (timeout_ns != 0)
            result = wait_locked(writer, timeout_ns);
    }
    return mcpd_writer_leave(writer, result);
}

int mcpd_writer_arm(mcpd_writer *writer)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    mcpd_sleep_arm(&writer->sleep);
    MCPD_STEP("writer.arm.asleep");
    if (ready(writer) == -EAGAIN) {
        set_armed_blocked(writer, 1);
        return mcpd_writer_leave(writer, 0);
    }
    mcpd_sleep_disarm(&writer->sleep);
    set_armed_blocked(writer, 0);
    return mcpd_writer_leave(writer, 1);
}

int mcpd_writer_disarm(mcpd_writer *writer)
{
    int result = mcpd_writer_enter(writer);
    if (result != 0)
        return result;
    mcpd_sleep_disarm(&writer->sleep);
    set_armed_blocked(writer, 0);
    return mcpd_writer_leave(writer, 0);
}
