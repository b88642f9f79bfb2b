/*
 * Readers that the daemon brings over to another generation: handed to their streams.
 *
 * That may be told before the thread that attaches has looked at its answer, or while another gives
 * the reader back. What nobody knows is kept until the stream is listed, or the reader is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define MAX_EARLY 256u

struct mcpd_early {
    struct mcpd_early *next;
    uint64_t reader; /* in the generation before */
    struct mcpd_generation *generation;
};

/* Whether the stream is what reads under this number, and not on its way already. */
static int is_reader(struct mcpd_stream *stream, uint64_t reader)
{
    const struct mcpd_generation *last = stream->moves.now;
    if (stream->writer != NULL)
        return 0;
    for (const struct mcpd_generation *one = stream->moves.coming; one != NULL; one = one->next)
        last = one;
    return last->grant.reader == reader;
}

/* 1 when it is the stream's now; 0: the stream does not follow. Under streams_mutex. */
static int hand_over(struct mcpd_stream *stream, struct mcpd_generation *generation)
{
    struct mcpd_moves *moves = &stream->moves;
    if (moves->follow == MCPD_FOLLOW_NOT)
        return 0;
    struct mcpd_generation **at = &moves->coming;
    while (*at != NULL)
        at = &(*at)->next;
    *at = generation;
    pthread_cond_broadcast(&moves->changed);
    if (moves->idle)
        mcpd_watch_signal(moves, 1);
    return 1;
}

static void give_back(struct mcpd_client *client, struct mcpd_generation *generation)
{
    uint64_t reader = generation->grant.reader;
    mcpd_generation_free(generation);
    mcpd_detach_quietly(client, reader);
}

/* Finds whose it is: NULL when it is taken, else as it came. Under streams_mutex. */
static struct mcpd_generation *offer(struct mcpd_client *client, uint64_t reader,
                                     struct mcpd_generation *generation, int *known)
{
    *known = 0;
    for (struct mcpd_stream *stream = client->streams; stream != NULL && !*known;
         stream = stream->next) {
        if (stream->writer != NULL)
            continue;
        pthread_mutex_lock(&stream->moves.mutex);
        *known = is_reader(stream, reader);
        if (*known && hand_over(stream, generation))
            generation = NULL;
        pthread_mutex_unlock(&stream->moves.mutex);
    }
    return generation;
}

static struct mcpd_generation *read_move(const struct mcpd_value *message, const int *fds,
                                         uint32_t nfds, uint64_t *reader)
{
    struct mcpd_value grant;
    struct mcpd_generation *generation = calloc(1, sizeof *generation);
    if (generation == NULL)
        return NULL;
    if (!mcpd_map_find(message, "grant", &grant) ||
        mcpd_map_unsigned(message, "reader", UINT64_MAX, reader) != 0 || *reader == 0 ||
        mcpd_grant_read(&grant, &generation->grant, NULL) != 0 || generation->grant.reader == 0) {
        free(generation);
        return NULL;
    }
    memcpy(generation->fds, fds, nfds * sizeof *fds);
    generation->nfds = nfds;
    return generation;
}

void mcpd_move_reader(struct mcpd_client *client, const struct mcpd_value *message, const int *fds,
                      uint32_t nfds)
{
    uint64_t reader = 0;
    int known = 0;
    struct mcpd_generation *generation = read_move(message, fds, nfds, &reader);
    struct mcpd_early *early = generation != NULL ? calloc(1, sizeof *early) : NULL;
    if (early == NULL) {
        mcpd_close_fds(fds, nfds);
        free(generation);
        return;
    }
    pthread_mutex_lock(&client->streams_mutex);
    generation = offer(client, reader, generation, &known);
    if (generation != NULL && !known && client->nearly < MAX_EARLY) {
        *early = (struct mcpd_early){client->early, reader, generation};
        client->early = early;
        client->nearly++;
        generation = NULL;
        early = NULL;
    }
    pthread_mutex_unlock(&client->streams_mutex);
    free(early);
    if (generation != NULL)
        give_back(client, generation);
}

static struct mcpd_generation *take(struct mcpd_client *client, uint64_t reader)
{
    struct mcpd_early **at = &client->early, *found;
    while (*at != NULL && (*at)->reader != reader)
        at = &(*at)->next;
    if ((found = *at) == NULL)
        return NULL;
    struct mcpd_generation *generation = found->generation;
    *at = found->next;
    client->nearly--;
    free(found);
    return generation;
}

void mcpd_early_take(struct mcpd_stream *stream)
{
    if (stream->writer != NULL)
        return;
    uint64_t reader = stream->grant.reader;
    struct mcpd_generation *generation;
    while ((generation = take(stream->client, reader)) != NULL) {
        reader = generation->grant.reader;
        pthread_mutex_lock(&stream->moves.mutex);
        int taken = hand_over(stream, generation);
        pthread_mutex_unlock(&stream->moves.mutex);
        if (!taken)
            give_back(stream->client, generation);
    }
}

void mcpd_early_drop(struct mcpd_client *client, uint64_t reader)
{
    pthread_mutex_lock(&client->streams_mutex);
    struct mcpd_generation *generation = take(client, reader);
    pthread_mutex_unlock(&client->streams_mutex);
    if (generation != NULL)
        give_back(client, generation);
}

void mcpd_early_drop_all(struct mcpd_client *client)
{
    while (client->early != NULL)
        mcpd_generation_free(take(client, client->early->reader));
}
