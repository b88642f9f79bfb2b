/*
 * An end of a stream, driven by commands: PROGRAM ours|second. Commands and answers are datagrams on
 * the SOCK_SEQPACKET socket that is descriptor 0; descriptors ride along and are named @0, @1 ... in
 * the command, - is none. An answer is "ok" and numbers, or "error" and the errno's name. After
 * `stop NAME` the second implementation halts once at the step of that name, says "at NAME", and goes
 * on when it is told "go", if it is "go NAME" until that step; a test that kills it there has killed it exactly there.
 */
#include "ends.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 32, MAX_FDS = 8, MESSAGE = 65536 };

struct command {
    int argc, nfds, fds[MAX_FDS];
    char *argv[MAX_ARGUMENTS];
    char text[MESSAGE];
};

static const struct ends *ends;
static void *writer, *reader;
static uint64_t slot_nbytes;
static char stop_at[64];

/* ---- messages ----------------------------------------------------------------------------- */

static void say(const char *format, ...)
{
    static char text[MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (send(0, text, (size_t)n, MSG_NOSIGNAL) != n)
        exit(0); /* the test is gone */
}

static bool hear(struct command *c)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec part = {c->text, sizeof c->text - 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do
        n = recvmsg(0, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    c->text[n] = 0;
    c->argc = c->nfds = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) {
        c->nfds = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(c->fds, CMSG_DATA(header), sizeof(int) * (size_t)c->nfds);
    }
    for (char *save, *word = strtok_r(c->text, " ", &save); word && c->argc < MAX_ARGUMENTS;
         word = strtok_r(NULL, " ", &save))
        c->argv[c->argc++] = word;
    return c->argc > 0;
}

/* The step that the words from k on name. */
static void set_stop(const struct command *c, int k)
{
    size_t at = 0;
    stop_at[0] = 0;
    for (int first = k; k < c->argc; k++)
        at += (size_t)snprintf(stop_at + at, sizeof stop_at - at, "%s%s", k > first ? " " : "",
                               c->argv[k]);
}

static void stop(const char *name)
{
    static struct command c;
    if (strcmp(name, stop_at) != 0)
        return;
    stop_at[0] = 0;
    say("at %s", name);
    if (!hear(&c) || strcmp(c.argv[0], "go") != 0)
        exit(2);
    set_stop(&c, 1);
}

static void answer(int64_t rc)
{
    if (rc < 0)
        say("error %s", strerrorname_np((int)-rc));
    else
        say("ok %" PRId64, rc);
}

static uint64_t number(const struct command *c, int k)
{
    return k < c->argc ? strtoull(c->argv[k], NULL, 0) : 0; /* "-1" is 2^64 - 1 */
}

static int descriptor(const struct command *c, int k)
{
    if (k >= c->argc || c->argv[k][0] != '@')
        return -1;
    int at = atoi(c->argv[k] + 1);
    return at < c->nfds ? c->fds[at] : -1;
}

static void to_hex(const void *bytes, size_t n, char *text)
{
    for (size_t k = 0; k < n; k++)
        sprintf(text + 2 * k, "%02x", ((const uint8_t *)bytes)[k]);
    text[2 * n] = 0;
}

static size_t from_hex(const char *text, void *bytes, size_t most)
{
    size_t n = 0;
    for (unsigned value; n < most && sscanf(text + 2 * n, "%2x", &value) == 1; n++)
        ((uint8_t *)bytes)[n] = (uint8_t)value;
    return n;
}

/* ---- commands ----------------------------------------------------------------------------- */

static struct geometry geometry_at(const struct command *c, int k)
{
    slot_nbytes = number(c, k + 3);
    return (struct geometry){.stream = number(c, k), .generation = number(c, k + 1),
                             .nslots = (uint32_t)number(c, k + 2), .slot_nbytes = slot_nbytes,
                             .first_seq = number(c, k + 4)};
}

static struct terms terms_at(const struct command *c, int k)
{
    return (struct terms){.group = number(c, k), .member = (uint32_t)number(c, k + 1),
                          .max_pins = (uint32_t)number(c, k + 2),
                          .policy = (uint32_t)number(c, k + 3),
                          .depth = (uint32_t)number(c, k + 4)};
}

/* open_writer GEOMETRY(5) CONTROL PAYLOAD WAKE HISTORY HOLDS */
static void open_writer(const struct command *c)
{
    struct geometry g = geometry_at(c, 1);
    answer(ends->writer_open(&g, descriptor(c, 6), descriptor(c, 7), descriptor(c, 8),
                             (uint32_t)number(c, 9), (uint32_t)number(c, 10), &writer));
}

/* open_reader GEOMETRY(5) WRITER_CONTROL PAYLOAD CONTROL WAKE WRITER_WAKE GROUP TERMS(5) START
 * EVERY_N SKIP_EXPIRED INTERVAL_NS */
static void open_reader(const struct command *c)
{
    struct geometry g = geometry_at(c, 1);
    struct reader_objects o = {descriptor(c, 6), descriptor(c, 7), descriptor(c, 8),
                               descriptor(c, 9), descriptor(c, 10), descriptor(c, 11)};
    struct terms terms = terms_at(c, 12);
    struct thinning thin = {(uint32_t)number(c, 18), (uint32_t)number(c, 19),
                            (int64_t)number(c, 20)};
    bool thins = thin.every_n || thin.skip_expired || thin.interval_ns;
    answer(ends->reader_open(&g, &o, &terms, number(c, 17), thins ? &thin : NULL, &reader));
}

/* publish SLOT META HOLD */
static void publish(const struct command *c)
{
    struct meta meta = {0};
    from_hex(c->argv[2], &meta, sizeof meta);
    answer(ends->publish(writer, (uint32_t)number(c, 1), &meta, number(c, 3) != 0));
}

static void fill(const struct command *c)
{
    void *at = ends->writer_slot(writer, (uint32_t)number(c, 1));
    if (at)
        memset(at, (int)number(c, 2), slot_nbytes);
    answer(at ? 0 : -EINVAL);
}

static void describe(const struct command *c)
{
    void *at = ends->writer_description(writer, (uint32_t)number(c, 1));
    if (at)
        from_hex(c->argv[2], at, sizeof(struct description));
    answer(at ? 0 : -EINVAL);
}

static void next(const struct command *c)
{
    struct meta meta;
    char text[2 * sizeof meta + 1];
    int pin = ends->next(reader, (int64_t)number(c, 1), &meta);
    if (pin < 0) {
        answer(pin);
        return;
    }
    to_hex(&meta, sizeof meta, text);
    say("ok %d %s", pin, text);
}

static void recent(const struct command *c)
{
    uint32_t pins[256];
    struct meta metas[256];
    static char text[MESSAGE];
    int n = ends->recent(reader, (uint32_t)number(c, 1), pins, metas), at = 0;
    if (n < 0) {
        answer(n);
        return;
    }
    for (int k = 0; k < n; k++)
        at += sprintf(text + at, " %u %" PRIu64, pins[k], metas[k].seq);
    say("ok %d%s", n, n ? text : "");
}

/* The byte that fills the whole of a pinned slot; -EIO if there are two. */
static void look(const struct command *c)
{
    const uint8_t *at = ends->reader_slot(reader, (uint32_t)number(c, 1));
    if (!at) {
        answer(-EINVAL);
        return;
    }
    bool same = memcmp(at, at + 1, slot_nbytes - 1) == 0;
    answer(same ? at[0] : -EIO);
}

static void description(const struct command *c)
{
    static char text[2 * sizeof(struct description) + 1];
    const void *at = ends->reader_description(reader, (uint32_t)number(c, 1));
    if (!at) {
        answer(ends->reader_slot(reader, (uint32_t)number(c, 1)) ? -EBADMSG : -EINVAL);
        return;
    }
    to_hex(at, number(c, 2), text);
    say("ok %s", text);
}

static void close_ends(void)
{
    if (writer)
        ends->writer_close(writer);
    if (reader)
        ends->reader_close(reader);
    writer = reader = NULL;
    stop_at[0] = 0;
}

static bool run_writer(const struct command *c)
{
    const char *name = c->argv[0];
    uint64_t first = number(c, 1);
    struct terms terms;
    if (!strcmp(name, "add_group")) {
        terms = terms_at(c, 2);
        answer(ends->add_group(writer, descriptor(c, 1), &terms));
    } else if (!strcmp(name, "add_reader")) {
        terms = terms_at(c, 4);
        answer(ends->add_reader(writer, first, descriptor(c, 2), descriptor(c, 3), &terms));
    } else if (!strcmp(name, "remove_group"))
        answer(ends->remove_group(writer, first));
    else if (!strcmp(name, "release_reader"))
        answer(ends->release_reader(writer, first));
    else if (!strcmp(name, "remove_reader"))
        answer(ends->remove_reader(writer, first));
    else if (!strcmp(name, "acquire"))
        answer(ends->acquire(writer, (int64_t)first));
    else if (!strcmp(name, "fill"))
        fill(c);
    else if (!strcmp(name, "describe"))
        describe(c);
    else if (!strcmp(name, "publish"))
        publish(c);
    else if (!strcmp(name, "abandon"))
        answer(ends->abandon(writer, (uint32_t)first));
    else if (!strcmp(name, "release"))
        answer(ends->release(writer, (uint32_t)first));
    else if (!strcmp(name, "arm_writer"))
        answer(ends->arm_writer(writer));
    else if (!strcmp(name, "disarm_writer"))
        answer(ends->disarm_writer(writer));
    else if (!strcmp(name, "end"))
        answer(ends->end(writer, (uint32_t)first));
    else
        return false;
    return true;
}

static bool run_reader(const struct command *c)
{
    const char *name = c->argv[0];
    uint32_t first = (uint32_t)number(c, 1);
    if (!strcmp(name, "next"))
        next(c);
    else if (!strcmp(name, "recent"))
        recent(c);
    else if (!strcmp(name, "look"))
        look(c);
    else if (!strcmp(name, "description"))
        description(c);
    else if (!strcmp(name, "unpin"))
        answer(ends->unpin(reader, first));
    else if (!strcmp(name, "give_back"))
        answer(ends->give_back(reader, first));
    else if (!strcmp(name, "arm"))
        answer(ends->arm(reader));
    else if (!strcmp(name, "disarm"))
        answer(ends->disarm(reader));
    else if (!strcmp(name, "ended"))
        answer(ends->ended(reader));
    else
        return false;
    return true;
}

static void run(const struct command *c)
{
    const char *name = c->argv[0];
    if (!strcmp(name, "open_writer") && !writer) {
        open_writer(c);
    } else if (!strcmp(name, "open_reader") && !reader) {
        open_reader(c);
    } else if (!strcmp(name, "stop")) {
        set_stop(c, 1);
        answer(0);
    } else if (!strcmp(name, "close")) {
        close_ends();
        answer(0);
    } else if (!((writer && run_writer(c)) || (reader && run_reader(c)))) {
        answer(-ENOSYS);
    }
}

int main(int argc, char **argv)
{
    static struct command c;
    static const struct ends *const all[] = {&second_ends, &our_ends};
    for (size_t k = 0; argc == 2 && k < sizeof all / sizeof *all; k++)
        if (strcmp(all[k]->name, argv[1]) == 0)
            ends = all[k];
    if (!ends)
        return 2;
    second_step = stop;
    while (hear(&c)) {
        run(&c);
        for (int k = 0; k < c.nfds; k++)
            close(c.fds[k]);
    }
    close_ends();
    return 0;
}
