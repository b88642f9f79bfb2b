/*
 * Which frames a reader passes over by itself, and how it counts those that it did not get.
 */
#include <errno.h>

#include "atomics.h"
#include "reader.h"

static int64_t add_saturating(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int mcpd_thinning_check(const struct mcpd_thinning *thinning)
{
    return thinning->interval_ns < 0 || thinning->skip_expired > 1 ? -EINVAL : 0;
}

enum mcpd_verdict mcpd_reader_wants(const mcpd_reader *reader, const struct mcpd_meta *meta,
                                    int64_t now_ns)
{
    if (reader->thinning.interval_ns > 0 && meta->publish_ns < reader->due_ns)
        return MCPD_EARLY;
    if (reader->thinning.skip_expired && meta->deadline_ns != MCPD_NO_TIME &&
        meta->deadline_ns < now_ns)
        return MCPD_EXPIRED;
    return MCPD_WANTED;
}

/*
 * Of the frames from `wanted` to seq a fifo reader asked for one in every_n. If seq itself is early,
 * those before it were as well, and are not called dropped.
 */
void mcpd_reader_count_missed(mcpd_reader *reader, uint64_t seq, enum mcpd_verdict verdict)
{
    uint64_t missed = seq - reader->wanted, passed = reader->unasked;
    if (reader->policy == MCPD_LATEST) {
        mcpd_count(&reader->rctl->skipped, missed);
    } else if (verdict == MCPD_EARLY) {
        passed += missed;
    } else {
        uint64_t dropped = missed / reader->thinning.every_n;
        mcpd_count(&reader->rctl->dropped, dropped);
        passed += missed - dropped;
    }
    mcpd_count(&reader->rctl->passed, passed + (verdict == MCPD_EARLY));
    mcpd_count(&reader->rctl->expired, verdict == MCPD_EXPIRED);
    reader->unasked = 0;
    reader->wanted = verdict == MCPD_WANTED ? seq : seq + 1;
}

/*
 * Averaged: a frame that came late for its turn does not delay the next turn, unless by a whole
 * interval and more. Those that are given up were perhaps published already.
 */
int mcpd_reader_want_next(mcpd_reader *reader, uint64_t seq, int64_t publish_ns)
{
    int64_t interval_ns = reader->thinning.interval_ns;
    reader->wanted = seq + reader->thinning.every_n;
    reader->unasked = reader->thinning.every_n - 1;
    if (interval_ns > 0) {
        int64_t due_ns = add_saturating(reader->due_ns, interval_ns);
        if (reader->due_ns == 0 || due_ns <= publish_ns)
            due_ns = add_saturating(publish_ns, interval_ns);
        reader->due_ns = due_ns;
    }
    return reader->unasked > 0;
}

/*
 * After the pin; the cursor pairs with the load in the writer's retention. Before the epoch of the
 * reader's next sleep, and so seen by a writer that sees that. A lossless reader has to pass early
 * frames over to make room, so it is woken for them.
 */
void mcpd_reader_store_wants(mcpd_reader *reader)
{
    if (reader->thinning.interval_ns > 0 && reader->policy != MCPD_LOSSLESS)
        mcpd_store_relaxed(&reader->rctl->not_before_ns, reader->due_ns);
    mcpd_store_seq_cst(&reader->rctl->cursor, reader->wanted);
}
