/* The reader: which frame is next, thinning, sleep. */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_objects(struct second_reader *r, const struct reader_objects *o)
{
    uint32_t n = r->g.nslots;
    int rc = map(o->writer_control, writer_control_nbytes(n), false, &r->writer);
    if (!rc)
        rc = check_magic(&r->writer, WRITER_MAGIC);
    if (!rc)
        rc = map(o->payload, n * r->g.slot_nbytes, false, &r->payload);
    if (!rc)
        rc = map(o->control, reader_control_nbytes(r->terms.max_pins), true, &r->control);
    if (!rc)
        rc = check_magic(&r->control, READER_MAGIC);
    if (!rc && r->terms.group)
        rc = map(o->group, group_control_nbytes(n), true, &r->group);
    if (!rc && r->terms.group)
        rc = check_magic(&r->group, GROUP_MAGIC);
    if (rc)
        return rc;
    r->shared = r->writer.at;
    r->own = r->control.at;
    r->claims = r->group.at;
    r->frames = calloc(r->terms.max_pins, sizeof *r->frames);
    if (!r->frames)
        return -ENOMEM;
    r->wake = fcntl(o->wake, F_DUPFD_CLOEXEC, 3);
    if (r->wake < 0)
        return -errno;
    if (r->terms.group || r->terms.policy == POLICY_LOSSLESS) {
        r->writer_wake = fcntl(o->writer_wake, F_DUPFD_CLOEXEC, 3);
        if (r->writer_wake < 0)
            return -errno;
    }
    return 0;
}

static bool terms_make_sense(const struct geometry *g, const struct terms *t, uint64_t start_seq,
                             const struct thinning *thin)
{
    bool thins = thin && (thin->every_n > 1 || thin->skip_expired || thin->interval_ns);
    if (t->max_pins < 1 || t->max_pins > MAX_PINS || t->member >= MAX_READERS)
        return false;
    if (t->policy < POLICY_LATEST || t->policy > POLICY_LOSSLESS)
        return false;
    if (t->policy == POLICY_FIFO ? t->depth == 0 : t->policy == POLICY_LATEST && t->depth > 0)
        return false;
    if (thin && thin->interval_ns < 0)
        return false;
    if (t->group)
        return !thins;
    return t->policy == POLICY_LATEST || start_seq >= g->first_seq;
}

int second_reader_open(const struct geometry *g, const struct reader_objects *objects,
                       const struct terms *terms, uint64_t start_seq,
                       const struct thinning *thinning, struct second_reader **out)
{
    if (geometry_check(g) || !terms_make_sense(g, terms, start_seq, thinning))
        return -EINVAL;
    struct second_reader *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->g = *g;
    r->terms = *terms;
    if (thinning)
        r->thinning = *thinning;
    if (!r->thinning.every_n)
        r->thinning.every_n = 1;
    r->wake = r->writer_wake = -1;
    int rc = open_objects(r, objects);
    if (rc) {
        second_reader_close(r);
        return rc;
    }
    if (!terms->group) {
        r->wanted = start_seq;
        if (terms->policy == POLICY_LATEST) {
            uint64_t head = LOAD(r->shared->head);
            r->wanted = head >= g->first_seq && head <= MAX_SEQ ? head : g->first_seq;
        }
        STORE(r->own->cursor, r->wanted);
    }
    *out = r;
    return 0;
}

/* ---- one frame ---------------------------------------------------------------------------- */

/* Pins frame t: 0, LOST, UNCONFIRMED or -EBADMSG, and then nothing is pinned. */
static int pin_frame(struct second_reader *r, int pin, uint64_t t)
{
    int slot = find_slot(r, t);
    if (slot < 0)
        return slot;
    STEP("pin 2");
    EXCHANGE(r->own->pins[pin], tag(t, (uint32_t)slot));
    STEP("pin 3");
    if (LOAD(header_of(r, (uint32_t)slot)->state) != tag(t, SLOT_PUBLISHED)) {
        STORE(r->own->pins[pin], 0);
        COUNT(r->own->retries, 1);
        return UNCONFIRMED;
    }
    STEP("pin 4");
    r->frames[pin].seq = t;
    r->frames[pin].slot = (uint32_t)slot;
    int rc = copy_checked(r, &r->frames[pin]);
    if (rc)
        STORE(r->own->pins[pin], 0);
    STEP("pin 5");
    return rc;
}

static void want(struct second_reader *r, uint64_t wanted)
{
    r->wanted = wanted;
    STORE(r->own->cursor, wanted);
}

/*
 * fifo: moves `wanted` on by whole steps of every_n until it is within the depth, and says how many
 * frames that it asked for were lost; the others between were never asked for.
 */
static uint64_t keep_in_depth(struct second_reader *r, uint64_t head)
{
    uint32_t n = r->thinning.every_n, depth = r->terms.depth;
    if (r->terms.policy != POLICY_FIFO || head < depth || r->wanted > head - depth)
        return 0;
    uint64_t lost = (head - depth - r->wanted) / n + 1;
    want(r, r->wanted + lost * n);
    return lost;
}

/*
 * Whether thinning passes the pinned frame over; if not, says what is wanted after it. `lost` frames
 * left the depth before it: too early like it, or dropped.
 */
static bool passed_over(struct second_reader *r, const struct meta *m, uint64_t lost)
{
    COUNT(r->own->passed, lost * (r->thinning.every_n - 1));
    if (m->publish_ns < r->due_ns) {
        COUNT(r->own->passed, lost + 1);
        return true;
    }
    COUNT(r->own->dropped, lost);
    if (r->thinning.skip_expired && m->deadline_ns != INT64_MIN && m->deadline_ns < now_ns()) {
        COUNT(r->own->expired, 1);
        return true;
    }
    if (r->thinning.interval_ns) {
        int64_t due = (r->due_ns ? r->due_ns : m->publish_ns) + r->thinning.interval_ns;
        r->due_ns = due > m->publish_ns ? due : m->publish_ns + r->thinning.interval_ns;
        if (r->terms.policy != POLICY_LOSSLESS)
            STORE_RELAXED(r->own->not_before_ns, r->due_ns);
    }
    return false;
}

/* A frame without waiting: the index of its pin, -EBUSY, -EAGAIN, -EPIPE or -EBADMSG. */
static int try_next(struct second_reader *r)
{
    int pin = unused_pin(r);
    uint64_t lost = 0;
    if (r->claims)
        return member_try(r, pin);
    for (;;) {
        uint32_t ended = LOAD(r->shared->ended);
        uint64_t head = LOAD(r->shared->head);
        if (head > MAX_SEQ)
            return -EBADMSG;
        if (pin >= 0)
            lost += keep_in_depth(r, head);
        uint64_t t = next_frame(r->terms.policy, r->terms.depth, r->wanted, head);
        if (!t) {
            COUNT(r->own->dropped, lost);
            COUNT(r->own->passed, lost * (r->thinning.every_n - 1));
            return ended ? -EPIPE : -EAGAIN;
        }
        if (pin < 0)
            return pin;
        int rc = pin_frame(r, pin, t);
        if (rc == LOST || rc == UNCONFIRMED) {
            if (r->terms.policy == POLICY_LOSSLESS || LOAD(r->shared->head) == head)
                return -EBADMSG;
            continue;
        }
        if (rc)
            return rc;
        if (r->terms.policy == POLICY_LATEST)
            COUNT(r->own->skipped, t - r->wanted);
        COUNT(r->own->passed, r->untold);
        r->untold = 0;
        bool over = passed_over(r, &r->frames[pin].meta, lost);
        lost = 0;
        if (over) {
            want(r, t + 1);
            empty_pin(r, (uint32_t)pin);
            continue;
        }
        r->untold = r->thinning.every_n - 1;
        want(r, t + r->thinning.every_n);
        STEP("pin 6");
        if (r->terms.policy == POLICY_LOSSLESS && (r->untold || r->terms.depth))
            wake_writer(r);
        return pin;
    }
}

static bool armed(struct second_reader *r) { return LOAD_RELAXED(r->own->epoch) % 2; }

static bool end_sleep(struct second_reader *r)
{
    bool taken = sleep_end(&r->own->epoch, r->wake);
    COUNT(r->own->wakeups, taken);
    return taken;
}

int second_reader_next(struct second_reader *r, int64_t timeout_ns, struct meta *meta)
{
    int64_t until = deadline_of(timeout_ns);
    int rc = try_next(r);
    if (rc == -EAGAIN && armed(r)) {
        bool taken = end_sleep(r);
        sleep_begin(&r->own->epoch);
        rc = try_next(r);
        COUNT(r->own->spurious, taken && rc == -EAGAIN);
    } else if (rc == -EAGAIN && timeout_ns) {
        while (rc == -EAGAIN) {
            sleep_begin(&r->own->epoch);
            rc = try_next(r);
            int slept = rc == -EAGAIN && !r->unsettled ? sleep_until(r->wake, until) : 0;
            bool looked = rc != -EAGAIN, taken = end_sleep(r);
            if (!looked) {
                rc = try_next(r);
                COUNT(r->own->spurious, taken && rc == -EAGAIN);
                if (rc == -EAGAIN && r->unsettled && until >= 0 && now_ns() >= until)
                    rc = -ETIMEDOUT;
                if (rc == -EAGAIN && slept)
                    rc = slept;
            }
        }
    }
    if (rc >= 0) {
        count_received(r, &r->frames[rc]);
        *meta = r->frames[rc].meta;
    }
    return rc;
}

int second_reader_recent(struct second_reader *r, uint32_t count, uint32_t *pins,
                         struct meta *metas)
{
    if (!count || r->claims || r->terms.policy != POLICY_LATEST)
        return -EINVAL;
    uint32_t free_pins = 0;
    for (uint32_t k = 0; k < r->terms.max_pins; k++)
        free_pins += !r->frames[k].used;
    if (free_pins < count)
        return -EBUSY;
    for (;;) {
        uint64_t head = LOAD(r->shared->head);
        if (head > MAX_SEQ)
            return -EBADMSG;
        if (head < r->g.first_seq)
            return -EAGAIN;
        uint64_t t = r->g.first_seq;
        if (head - t >= count)
            t = head - count + 1;
        int n = 0, rc = 0;
        uint64_t unseen = 0;
        for (; t <= head; t++) {
            int pin = unused_pin(r);
            rc = pin_frame(r, pin, t);
            if (rc == -EBADMSG)
                break;
            if (rc)
                continue;
            unseen += t >= r->wanted;
            r->frames[pin].used = true;
            pins[n++] = (uint32_t)pin;
        }
        if (!rc) {
            if (head + 1 > r->wanted) {
                COUNT(r->own->skipped, head + 1 - r->wanted - unseen);
                COUNT(r->own->passed, r->untold);
                r->untold = 0;
                want(r, head + 1);
            }
            for (int k = 0; k < n; k++) {
                count_received(r, &r->frames[pins[k]]);
                metas[k] = r->frames[pins[k]].meta;
            }
            return n;
        }
        while (n > 0) { /* the newest was not had: all of them again, from a newer head */
            STORE(r->own->pins[pins[--n]], 0);
            r->frames[pins[n]].used = false;
        }
        if (rc == -EBADMSG || LOAD(r->shared->head) == head)
            return -EBADMSG;
    }
}

/* ---- for event loops ----------------------------------------------------------------------- */

int second_reader_arm(struct second_reader *r)
{
    if (armed(r))
        end_sleep(r);
    sleep_begin(&r->own->epoch);
    /* Whether something is there is told without taking it: a look at the numbers is enough, and
     * a call that then finds nothing after all renews the sleep. */
    bool ready = LOAD(r->shared->ended) != 0;
    if (r->claims)
        ready |= member_has_returned(r) || LOAD(r->shared->head) >= LOAD(r->claims->cursor);
    else
        ready |= LOAD(r->shared->head) >= r->wanted;
    if (ready)
        second_reader_disarm(r);
    return ready;
}

int second_reader_disarm(struct second_reader *r)
{
    if (armed(r))
        end_sleep(r);
    return 0;
}

int second_reader_ended(struct second_reader *r) { return (int)LOAD(r->shared->ended); }
