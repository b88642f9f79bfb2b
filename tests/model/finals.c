/*
 * The beginning of a run and its end: each reader got what its policy promises, and whoever sleeps
 * has nothing to do.
 */
#include "finals.h"

#include <stddef.h>

#include "routines.h"

struct words word;
uint8_t initial[LOCS];
bool constant[LOCS];

static uint8_t place(int n)
{
    uint8_t at = word.n;
    word.n = (uint8_t)(word.n + n);
    return at;
}

void model_begin(void)
{
    int nthreads = 0, nreaders = config->nreaders;
    for (int i = 1; i < THREADS; i++)
        nthreads += config->threads[i] != NULL && config->sides[i] != WRITER;
    word = (struct words){0};
    word.state = place(config->nslots);
    word.queue = place(config->nqueue);
    word.head = place(1);
    word.ended = place(1);
    word.writer_epoch = place(1);
    word.pin = place(config->group ? 0 : nthreads + config->batch);
    word.cursor = place(config->group ? 0 : nreaders);
    word.not_before = place(config->paced ? nreaders : 0);
    word.epoch = place(nreaders);
    word.claim = place(config->group ? config->nslots : 0);
    word.group_cursor = place(config->group);
    word.returned = place(1);
    word.lock = place(config->shared ? 1 + nreaders : 0);
    word.bytes = word.n;
    constant[word.ended] = !config->ends && !config->daemon_ends;
    constant[word.writer_epoch] = !config->writer_sleeps;
    for (int i = 0; i < nreaders; i++)
        constant[word.epoch + i] = config->polls;
    constant[word.returned] = !config->gives_back && !config->may_die;
    if (config->group)
        initial[word.group_cursor] = 1;
    for (uint8_t slot = config->nslots; slot-- > 0;)
        s->writer.free[s->writer.nfree++] = slot;
    for (int i = 0; i < SIDES; i++) {
        s->readers[i].wanted = 1;
        s->writer.cursor[i] = 1;
    }
}

static const char *member_end(void)
{
    for (int seq = 1; seq <= s->ghost.published && config->policy == LOSSLESS && !config->polls;
         seq++)
        if (s->ghost.finished[seq] == 0 && !(s->ghost.lost >> seq & 1))
            return "a frame of the group is finished by nobody";
    return NULL;
}

const char *model_end(void)
{
    for (int i = 0; i < THREADS; i++) {
        bool daemon = i > 0 && config->sides[i] == WRITER;
        bool writer_waits = i == 0 && config->abandons;
        if (s->threads[i].status == RUNS && !daemon && !writer_waits && !(config->quiet && i > 0))
            return i == 0 ? "the writer sleeps for ever (lost wake-up)"
                          : "a reader sleeps for ever (lost wake-up)";
    }
    if (config->group)
        return member_end();
    for (int i = 1; i < THREADS; i++) {
        int side = config->sides[i];
        if (config->threads[i] == NULL || side == WRITER || s->threads[i].status != FINISHED ||
            config->polls)
            continue;
        if (config->policy != LATEST && config->every_n < 2 &&
            s->ghost.received[side] + s->ghost.dropped[side] < s->ghost.published)
            return "frames received and dropped are not all";
        if (config->policy == LATEST && s->readers[side].wanted <= s->ghost.published)
            return "a latest reader did not get the newest frame";
    }
    return NULL;
}
