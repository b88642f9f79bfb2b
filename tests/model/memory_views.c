/*
 * C11's release, acquire and seq_cst without fences, as an operational model of views.
 *
 * Each word keeps the stores to it, in their order (the messages). A thread has a view: for each
 * word, the oldest message that it may still read. A load reads any message from there on, so each
 * load may be as late as it likes and threads may disagree about what they have seen (no
 * multi-copy atomicity). A release store's message carries its thread's view and an acquire load
 * joins it; a read-modify-write reads the newest message and hands on the view of that. A seq_cst
 * load reads nothing older than the newest seq_cst store to its word, and is otherwise an acquire; the
 * order in which seq_cst operations run here is their one total order. They are no fences for others.
 *
 * The slots' bytes are not atomic: an access that is not ordered after the last conflicting one is
 * a data race, and that is a violation. For each slot a view says whether it has seen the last write,
 * and for each thread whether it has seen that thread's last read.
 *
 * Not covered: a load that takes its value from a store that is later in its own thread's program
 * order or depends on it (load buffering), but for the slots' bytes, where it is a race; stores
 * that go before older ones of another thread in their word's order (each word here has one writer,
 * or all but seq_cst stores to it are read-modify-writes); and orders of seq_cst operations that
 * contradict happens-before, which C++20 allows for the sake of POWER.
 */
#include <stddef.h>
#include <string.h>

#include "model.h"

static uint32_t written_bit(int slot) { return UINT32_C(1) << (slot * (THREADS + 1)); }
static uint32_t read_bit(int slot, int thread) { return written_bit(slot) << (1 + thread); }

static void reset(void)
{
    struct views *m = &s->views;
    memset(m, 0, offsetof(struct views, messages));
    m->used = word.n;
    for (int at = 0; at < word.n; at++) {
        m->n[at] = 1;
        m->messages[at] = (struct message){.value = initial[at]};
    }
    for (int i = 0; i < THREADS; i++)
        m->threads[i].bytes = UINT32_MAX;
}

static struct message *first(int at)
{
    struct message *message = s->views.messages;
    for (int i = 0; i < at; i++)
        message += s->views.n[i];
    return message;
}

static void join(struct view *view, const struct view *other)
{
    for (int i = 0; i < LOCS; i++)
        view->at[i] = view->at[i] > other->at[i] ? view->at[i] : other->at[i];
    view->bytes |= other->bytes;
}

static uint8_t oldest(int at, enum order order)
{
    uint8_t from = s->views.threads[me].at[at];
    if (order == SEQ_CST && s->views.sc[at] > from)
        from = s->views.sc[at];
    return from;
}

static uint8_t take(int at, int place, enum order order)
{
    struct view *mine = &s->views.threads[me];
    const struct message *message = first(at) + place;
    mine->at[at] = (uint8_t)place;
    if (order == ACQUIRE || order == SEQ_CST)
        join(mine, &message->view);
    return message->value;
}

/* after: the message that a read-modify-write read, or NULL. */
static void append(int at, uint8_t value, enum order order, const struct message *after)
{
    struct views *m = &s->views;
    struct view *mine = &m->threads[me];
    struct message message = {.value = value};
    if (m->used == MESSAGES) {
        violate("the model's messages are too few");
        return;
    }
    if (after != NULL)
        message.view = after->view;
    mine->at[at] = m->n[at];
    if (order == RELEASE || order == SEQ_CST)
        join(&message.view, mine);
    struct message *place = first(at) + m->n[at];
    memmove(place + 1, place, (size_t)(m->messages + m->used - place) * sizeof *place);
    *place = message;
    if (order == SEQ_CST)
        m->sc[at] = m->n[at];
    m->n[at]++;
    m->used++;
}

static uint8_t views_load(int at, enum order order)
{
    int from = oldest(at, order), n = s->views.n[at] - from;
    if (newest)
        return take(at, from + n - 1, order);
    return take(at, from + n - 1 - choose(n), order);
}

static void views_store(int at, uint8_t value, enum order order)
{
    append(at, value, order, NULL);
}

/*
 * A compare that fails is a load; one that finds what it expects succeeds, and reads the newest.
 * RELEASE stands for acquire and release.
 */
static bool views_change(enum change how, int at, const uint8_t *expected, uint8_t value,
                         uint8_t *seen, enum order order)
{
    int newest = s->views.n[at] - 1, place = newest;
    if (expected != NULL) {
        int from = oldest(at, order), n = newest + 1 - from;
        place = newest - choose(n);
        *seen = first(at)[place].value;
        if (*seen != *expected) {
            take(at, place, order == RELEASE ? ACQUIRE : order);
            return false;
        }
        if (place != newest) {
            block();
            return false;
        }
    }
    struct message after = first(at)[newest];
    *seen = take(at, newest, order == RELEASE ? ACQUIRE : order);
    append(at, how == ADD ? (uint8_t)(*seen + value) : value, order, &after);
    return true;
}

static void forget(uint32_t bit)
{
    struct views *m = &s->views;
    for (int i = 0; i < THREADS; i++)
        m->threads[i].bytes &= ~bit;
    for (int i = 0; i < m->used; i++)
        m->messages[i].view.bytes &= ~bit;
    m->threads[me].bytes |= bit;
}

static uint8_t read_bytes(int slot)
{
    if (!(s->views.threads[me].bytes & written_bit(slot)))
        violate("a slot's bytes are read while they may be written (data race)");
    forget(read_bit(slot, me));
    invisible();
    return s->views.bytes[slot];
}

static void write_bytes(int slot, uint8_t value)
{
    uint32_t all = 0;
    for (int i = 0; i < THREADS; i++)
        all |= read_bit(slot, i);
    all |= written_bit(slot);
    if ((s->views.threads[me].bytes & all) != all)
        violate("a slot's bytes are written while they may be read (data race)");
    forget(written_bit(slot));
    s->views.bytes[slot] = value;
    invisible();
}

static bool pending(int thread)
{
    (void)thread;
    return false;
}

static void flush(int thread)
{
    (void)thread;
}

/* A process that the kernel says is gone has done all that it did before. */
static void follow(int thread)
{
    s->ghost.followed = true;
    join(&s->views.threads[me], &s->views.threads[thread]);
}

/* Who waits for a death reads nothing before, and starts with the view of who died or left. */
static bool reads(int thread)
{
    bool waits = thread > 0 && config->threads[thread] != NULL && config->may_die &&
                 config->sides[thread] == WRITER;
    if (s->threads[thread].status == RUNS && !waits)
        return true;
    if (waits && s->threads[thread].status == RUNS)
        return s->ghost.followed;
    return config->may_die >> thread & 1 && !s->ghost.followed;
}

static void lower(uint8_t *at, const uint8_t *by)
{
    for (int i = 0; i < LOCS; i++)
        at[i] = at[i] > by[i] ? (uint8_t)(at[i] - by[i]) : 0;
}

/* Messages that nobody can read any more are dropped, and what everybody has seen is seen by all. */
static void settle(void)
{
    struct views *m = &s->views;
    uint8_t seen[LOCS];
    uint32_t bytes = UINT32_MAX;
    bool any = false;
    memset(seen, UINT8_MAX, sizeof seen);
    for (int i = 0; i < THREADS; i++) {
        if (!reads(i)) {
            if (s->threads[i].status != RUNS)
                memset(&m->threads[i], 0, sizeof m->threads[i]);
            continue;
        }
        any = true;
        bytes &= m->threads[i].bytes;
        for (int at = 0; at < LOCS; at++)
            seen[at] = seen[at] < m->threads[i].at[at] ? seen[at] : m->threads[i].at[at];
    }
    if (!any)
        return;
    struct message *to = m->messages, *from = m->messages;
    for (int at = 0; at < word.n; at++) {
        from += seen[at];
        m->n[at] = (uint8_t)(m->n[at] - seen[at]);
        if (to != from)
            memmove(to, from, m->n[at] * sizeof *to);
        to += m->n[at];
        from += m->n[at];
    }
    m->used = (uint8_t)(to - m->messages);
    for (int i = 0; i < THREADS; i++) {
        lower(m->threads[i].at, seen);
        if (reads(i))
            m->threads[i].bytes |= bytes;
    }
    lower(m->sc, seen);
    for (int i = 0; i < m->used; i++) {
        lower(m->messages[i].view.at, seen);
        m->messages[i].view.bytes |= bytes;
    }
}

static unsigned nbytes(const struct state *state)
{
    return (unsigned)(offsetof(struct state, views.messages) +
                      state->views.used * sizeof(struct message));
}

const struct memory views = {"views",    reset,       views_load, views_store, views_change,
                             read_bytes, write_bytes, pending,    flush,       follow,
                             settle,     nbytes};
