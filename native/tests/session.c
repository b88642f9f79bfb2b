/*
 * A program that uses the connection, for the sanitizers to look at.
 *
 *   session work PATH   threads of one connection make, read and close streams side by side
 *   session follow PATH   a writer resizes and comes again, readers of each kind follow it
 *   session probe FD    asks for everything once over a connected socket, whatever the other side says,
 *                       and prints how each call ended
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mcpd_client.h"

#define PATIENCE_NS INT64_C(20000000000)
#define THREADS 4
#define ROUNDS 8
#define FRAMES 30

static mcpd_client *client;

static void die(const char *what, const struct mcpd_error *error, int number)
{
    fprintf(stderr, "FAILED %s: %d %s\n", what, number, error != NULL ? error->message : "");
    exit(1);
}

/* A name that comes again goes on with its numbers: `before` of them are taken. */
static void pass_frames(mcpd_stream *out, mcpd_stream *in, int before)
{
    mcpd_writer *writer = mcpd_stream_writer(out);
    mcpd_reader *reader = mcpd_stream_reader(in);
    for (int i = 1; i <= FRAMES; i++) {
        struct mcpd_meta meta;
        int slot = mcpd_writer_acquire(writer, PATIENCE_NS);
        if (slot < 0 || mcpd_stream_describe(out, (uint32_t)slot) != 0)
            die("acquire", NULL, slot);
        memset(mcpd_writer_slot(writer, (uint32_t)slot), i, 64);
        mcpd_meta_init(&meta);
        meta.nbytes = 64;
        if (mcpd_writer_publish(writer, (uint32_t)slot, &meta, 0) != before + i)
            die("publish", NULL, i);
        int pin = mcpd_reader_next(reader, PATIENCE_NS, &meta);
        if (pin < 0 || meta.seq != (uint64_t)(before + i))
            die("next", NULL, pin);
        const uint8_t *seen = mcpd_reader_slot(reader, (uint32_t)pin);
        if (seen[0] != i || seen[63] != i)
            die("frame", NULL, seen[0]);
        mcpd_reader_unpin(reader, (uint32_t)pin);
    }
}

static void *work(void *argument)
{
    const char *name = argument;
    for (int round = 0; round < ROUNDS; round++) {
        struct mcpd_error error;
        mcpd_stream *out, *in, *none;
        struct mcpd_stream_options how = {
            .frame = {.format = MCPD_GRAY8, .width = 64, .height = 1}};
        struct mcpd_reader_options lossless = {.policy = MCPD_LOSSLESS};
        int result = mcpd_create_stream(client, name, &how, &out, &error);
        if (result != 0)
            die("create", &error, result);
        if ((result = mcpd_attach(client, name, &lossless, &in, &error)) != 0)
            die("attach", &error, result);
        if (mcpd_create_stream(client, name, &how, &none, &error) != -EEXIST)
            die("a name twice", &error, 0);
        if (mcpd_attach(client, "nobody", NULL, &none, &error) != -ENOENT)
            die("a name that is none", &error, 0);
        pass_frames(out, in, round * FRAMES);
        if (round % 2 == 0) {
            struct mcpd_meta meta;
            mcpd_stream_end(out, &error);
            if (mcpd_reader_next(mcpd_stream_reader(in), PATIENCE_NS, &meta) != -EPIPE)
                die("end", NULL, 0);
        }
        mcpd_stream_close(in);
        mcpd_stream_close(out);
    }
    return NULL;
}

static int work_side_by_side(const char *path)
{
    static char names[THREADS][16];
    pthread_t threads[THREADS];
    struct mcpd_error error;
    int result = mcpd_connect(path, "session", PATIENCE_NS, &client, &error);
    if (result != 0)
        die("connect", &error, result);
    for (int i = 0; i < THREADS; i++) {
        snprintf(names[i], sizeof names[i], "cam%d", i);
        pthread_create(&threads[i], NULL, work, names[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    mcpd_close(client);
    return 0;
}

enum { MOVES = 6, EACH = 10 };

static void *follow(void *argument)
{
    mcpd_stream *in = argument;
    struct mcpd_meta meta;
    int held = -1, pin;
    uint64_t last = 0, held_seq = 0;
    while (last < MOVES * EACH) {
        if ((pin = mcpd_stream_next(in, PATIENCE_NS, &meta)) < 0)
            die("follow", NULL, pin);
        const uint8_t *seen = mcpd_stream_slot(in, (uint32_t)pin);
        if (meta.seq <= last || seen[0] != (uint8_t)meta.seq)
            die("order", NULL, (int)meta.seq);
        last = meta.seq;
        if (held >= 0 && meta.seq < held_seq + EACH) {
            mcpd_stream_unpin(in, (uint32_t)pin);
            continue;
        }
        if (held >= 0) { /* across a resize */
            if (*(const uint8_t *)mcpd_stream_slot(in, (uint32_t)held) != (uint8_t)held_seq)
                die("held", NULL, held);
            mcpd_stream_unpin(in, (uint32_t)held);
        }
        held = pin;
        held_seq = meta.seq;
    }
    return NULL;
}

static void write_some(mcpd_stream *out, int64_t before)
{
    mcpd_writer *writer = mcpd_stream_writer(out);
    for (int64_t seq = before + 1; seq <= before + EACH; seq++) {
        struct mcpd_meta meta;
        int slot = mcpd_writer_acquire(writer, PATIENCE_NS);
        if (slot < 0 || mcpd_stream_describe(out, (uint32_t)slot) != 0)
            die("acquire", NULL, slot);
        memset(mcpd_writer_slot(writer, (uint32_t)slot), (int)seq, 64);
        mcpd_meta_init(&meta);
        meta.nbytes = 64;
        if (mcpd_writer_publish(writer, (uint32_t)slot, &meta, 0) != seq)
            die("publish", NULL, (int)seq);
    }
}

static int follow_moves(const char *path)
{
    struct mcpd_error error;
    struct mcpd_stream_options how = {
        .slots = 24, .frame = {.format = MCPD_GRAY8, .width = 64, .height = 1}};
    struct mcpd_reader_options kinds[3] = {
        {.policy = MCPD_LOSSLESS, .follow = MCPD_FOLLOW_NAME, .max_pins = 3},
        {.policy = MCPD_FIFO, .depth = 4, .follow = MCPD_FOLLOW_NAME, .max_pins = 3},
        {.policy = MCPD_LATEST, .follow = MCPD_FOLLOW_NAME, .max_pins = 3},
    };
    mcpd_stream *out, *in[3], *next;
    pthread_t threads[3];
    int result = mcpd_connect(path, "session", PATIENCE_NS, &client, &error);
    if (result != 0 || (result = mcpd_create_stream(client, "cam", &how, &out, &error)) != 0)
        die("create", &error, result);
    for (int i = 0; i < 3; i++) {
        if ((result = mcpd_attach(client, "cam", &kinds[i], &in[i], &error)) != 0)
            die("attach", &error, result);
        pthread_create(&threads[i], NULL, follow, in[i]);
    }
    for (int move = 0; move < MOVES; move++) {
        write_some(out, move * EACH);
        how.frame.height = (uint32_t)move + 2;
        if (move % 3 == 2) { /* the name goes on with another writer */
            mcpd_stream_close(out);
            result = mcpd_create_stream(client, "cam", &how, &next, &error);
        } else if ((result = mcpd_resize_stream(out, &how, &next, &error)) == 0) {
            if (mcpd_stream_ended(out) != MCPD_END_MOVED || mcpd_stream_nreaders(next) != 3)
                die("moved", NULL, mcpd_stream_nreaders(next));
            mcpd_stream_close(out);
        }
        if (result != 0)
            die("go on", &error, result);
        out = next;
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        mcpd_stream_close(in[i]);
    }
    mcpd_stream_close(out);
    mcpd_close(client);
    return 0;
}

static void print(const char *call, int result, const struct mcpd_error *error)
{
    printf("%s %d %s: %s\n", call, result, result < 0 ? error->code : "ok",
           result < 0 ? error->message : "");
    fflush(stdout);
}

static int probe(int fd)
{
    struct mcpd_error error = {0};
    mcpd_stream *out = NULL, *in = NULL, *results = NULL;
    struct mcpd_stream_options how = {.slot_nbytes = 4096};
    struct mcpd_reader_options follows = {.follow = MCPD_FOLLOW_NAME};
    int result = mcpd_connect_fd(fd, "probe", PATIENCE_NS, &client, &error);
    print("connect", result, &error);
    if (result != 0)
        return 0;
    print("create_stream", mcpd_create_stream(client, "cam", &how, &out, &error), &error);
    print("attach", mcpd_attach(client, "cam", &follows, &in, &error), &error);
    print("open_results", mcpd_open_results(client, "cam", "m", NULL, &results, &error), &error);
    if (results != NULL)
        printf("labels %u %s\n", mcpd_results_nlabels(results), mcpd_results_model(results));
    printf("waits\n");
    fflush(stdout);
    char byte; /* the other side says when it is enough */
    while (read(0, &byte, 1) < 0 && errno == EINTR)
        continue;
    printf("lost %d: %s\n", mcpd_lost(client, &error), error.message);
    mcpd_stream_close(results);
    mcpd_stream_close(in);
    mcpd_stream_close(out);
    mcpd_close(client);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "work") == 0)
        return work_side_by_side(argv[2]);
    if (argc == 3 && strcmp(argv[1], "follow") == 0)
        return follow_moves(argv[2]);
    if (argc == 3 && strcmp(argv[1], "probe") == 0)
        return probe(atoi(argv[2]));
    return 2;
}
