/*
 * The races of pinning and reclaiming one step at a time: the steps of the other side run inside
 * mcpd_reader_confirm (after the pin was put, before the slot is looked at again) and inside
 * mcpd_writer_pinned (after the slot's state was exchanged, before the pins are scanned).
 * Linked with --wrap for both. PLANT_NO_RECHECK and PLANT_NO_SCAN leave out the step that saves the
 * frame, and the tests must then fail.
 */
#include "fixture.h"
#include "reader.h"
#include "writer.h"

int __real_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta);
int __wrap_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta);
int __real_mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag);
int __wrap_mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag);

static struct stream s;
static struct attached r;
static void (*before_recheck)(void), (*after_recheck)(void), (*before_scan)(void);
static uint64_t published;

/* Each runs once, and what it calls runs undisturbed. */
static void run_once(void (**step)(void))
{
    void (*run)(void) = *step;
    *step = NULL;
    if (run != NULL)
        run();
}

int __wrap_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta)
{
    run_once(&before_recheck);
    int result = __real_mcpd_reader_confirm(reader, slot, seq, meta);
#ifdef PLANT_NO_RECHECK
    meta->seq = seq;
    result = 0;
#endif
    run_once(&after_recheck);
    return result;
}

int __wrap_mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag)
{
    run_once(&before_scan);
#ifdef PLANT_NO_SCAN
    (void)writer;
    (void)tag;
    return 0;
#else
    return __real_mcpd_writer_pinned(writer, tag);
#endif
}

static void set_up(void)
{
    stream_open(&s, 5, 1, 2);
    attach(&s, &r, MCPD_LATEST, 1);
    published = publish(&s);
}

static void tear_down(void)
{
    detach(&r);
    stream_close(&s);
}

/* As if the writer had gone on between the reader's look at the queue and its pin. */
static void writer_goes_on_before_the_pin(void)
{
    uint64_t pin = mcpd_load_relaxed(&r.pins[0]);
    mcpd_store_seq_cst(&r.pins[0], 0);
    for (int i = 0; i < 10; i++)
        published = publish(&s);
    mcpd_store_seq_cst(&r.pins[0], pin);
}

TEST(a_slot_that_moved_on_before_it_was_pinned_is_left_for_the_newest)
{
    set_up();
    before_recheck = writer_goes_on_before_the_pin;
    CHECK_EQUAL(read_one(&r), published);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->retries), 1);
    tear_down();
}

static void reader_has_pinned_the_first(void)
{
    mcpd_store_seq_cst(&r.pins[0], mcpd_load_relaxed(queue_of(&s, 1)));
}

TEST(a_frame_pinned_before_the_scan_is_put_back)
{
    set_up();
    publish(&s);
    before_scan = reader_has_pinned_the_first;
    int slot = mcpd_writer_acquire(s.writer, 0);
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(publish_slot(&s, slot, 3), 3);
    CHECK(is_published(&s, 1));
    CHECK(slot != (int)MCPD_TAG_LOW(mcpd_load_relaxed(&r.pins[0])));
    mcpd_store_seq_cst(&r.pins[0], 0);
    publish(&s);
    CHECK(!is_published(&s, 1));
    tear_down();
}

static void head_as_it_is_now(void)
{
    mcpd_store_seq_cst(&s.wctl->head, 2);
}

/* As if the reader had looked at head before frame 2 was published. */
static void reader_pins_the_first_now(void)
{
    mcpd_store_seq_cst(&s.wctl->head, 1);
    after_recheck = head_as_it_is_now;
    CHECK_EQUAL(read_one(&r), 2);
}

TEST(a_reader_that_pins_in_mid_reclaim_withdraws)
{
    set_up();
    publish(&s);
    before_scan = reader_pins_the_first_now;
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK_EQUAL(mcpd_load_relaxed(&r.rctl->retries), 1);
    CHECK_EQUAL(mcpd_load_relaxed(&r.pins[0]), 0);
    CHECK(!is_published(&s, 1));
    tear_down();
}
