/*
 * Images, one or several, by one thread or several. An image is dealt out in parts: its padding, and
 * bands of lines; who makes which part does not show in the result.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "prepare/run.h"

#define PART (2 * MCPD_PREPARE_BAND) /* lines; rows between parts are sampled twice */

struct batch {
    const struct mcpd_prepare_job *jobs;
    size_t n;
    uint32_t part; /* lines of a part */
    _Atomic uint64_t next;
    atomic_int failed;
};

/* Padding is part 0, lines follow. */
static uint64_t parts_of(const struct batch *batch, const struct mcpd_prepare_plan *plan)
{
    return 1 + (plan->lines + (uint64_t)batch->part - 1) / batch->part;
}

static void run_part(const struct batch *batch, const struct mcpd_prepare_job *job, uint32_t part,
                     struct mcpd_prepare_buffers *buffers)
{
    uint32_t first, end;

    if (part == 0) {
        if (!job->padded)
            mcpd_prepare_run_padding(job->plan, job->out);
        return;
    }
    first = (part - 1) * batch->part;
    end = job->plan->lines - first < batch->part ? job->plan->lines : first + batch->part;
    mcpd_prepare_run_lines(job->plan, buffers, job->source, job->out, first, end);
}

/* Takes parts until there are none; one of the threads that do so. */
static void *work(void *argument)
{
    struct batch *batch = argument;
    struct mcpd_prepare_buffers *buffers = NULL;
    struct mcpd_prepare_plan *plan = NULL; /* whose they are */
    uint64_t before = 0;                   /* parts of the jobs before `job` */
    size_t job = 0;

    while (!atomic_load_explicit(&batch->failed, memory_order_relaxed)) {
        uint64_t part = atomic_fetch_add_explicit(&batch->next, 1, memory_order_relaxed);

        while (job < batch->n && part >= before + parts_of(batch, batch->jobs[job].plan))
            before += parts_of(batch, batch->jobs[job++].plan);
        if (job == batch->n)
            break;
        if (plan != batch->jobs[job].plan) {
            if (plan)
                mcpd_prepare_buffers_close(plan, buffers);
            plan = batch->jobs[job].plan;
            buffers = mcpd_prepare_buffers_open(plan);
            if (!buffers) {
                plan = NULL;
                atomic_store_explicit(&batch->failed, 1, memory_order_relaxed);
                break;
            }
        }
        run_part(batch, &batch->jobs[job], (uint32_t)(part - before), buffers);
    }
    if (plan)
        mcpd_prepare_buffers_close(plan, buffers);
    return NULL;
}

/* Starts up to `wanted` threads that work; returns how many. Signals are left to the caller's. */
static unsigned start(struct batch *batch, unsigned wanted, pthread_t *threads)
{
    sigset_t all, before;
    unsigned started = 0;

    sigfillset(&all);
    if (wanted == 0 || pthread_sigmask(SIG_SETMASK, &all, &before))
        return 0;
    while (started < wanted && pthread_create(&threads[started], NULL, work, batch) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int mcpd_prepare_run_batch(const struct mcpd_prepare_job *jobs, size_t n, unsigned threads)
{
    /* One thread makes an image in one piece, so that no row between parts is sampled twice. */
    struct batch batch = {.jobs = jobs, .n = n, .part = threads > 1 ? PART : UINT32_MAX};
    pthread_t others[MCPD_PREPARE_MAX_THREADS];
    uint64_t parts = 0;
    unsigned started;

    if (threads > MCPD_PREPARE_MAX_THREADS)
        threads = MCPD_PREPARE_MAX_THREADS;
    for (size_t i = 0; i < n; i++)
        parts += parts_of(&batch, jobs[i].plan) - 1;
    if (threads > parts)
        threads = (unsigned)parts;
    started = start(&batch, threads > 1 ? threads - 1 : 0, others);
    work(&batch);
    for (unsigned i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    return atomic_load(&batch.failed) ? -ENOMEM : 0;
}

int mcpd_prepare_run(struct mcpd_prepare_plan *plan, const uint8_t *source, void *out)
{
    struct mcpd_prepare_job job = {.plan = plan, .source = source, .out = out};

    return mcpd_prepare_run_batch(&job, 1, 1);
}
