/*
 * The races of claiming and reclaiming one step at a time: the steps of the other side run inside
 * mcpd_reader_find (before the claim), mcpd_reader_confirm (after it, before the slot is looked at
 * again) and mcpd_writer_claimed (after the slot's state was exchanged, before the claims are looked
 * at). Linked with --wrap for the three.
 */
#include "group_fixture.h"
#include "reader.h"
#include "writer.h"

int __real_mcpd_reader_find(const mcpd_reader *reader, uint64_t seq);
int __wrap_mcpd_reader_find(const mcpd_reader *reader, uint64_t seq);
int __real_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta);
int __wrap_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta);
int __real_mcpd_writer_claimed(mcpd_writer *writer, uint64_t seq, uint32_t slot);
int __wrap_mcpd_writer_claimed(mcpd_writer *writer, uint64_t seq, uint32_t slot);

static struct stream s;
static struct group g;
static struct attached a, b;
static void (*before_claim)(void), (*before_recheck)(void), (*before_scan)(void);

/* Each runs once, and what it calls runs undisturbed. */
static void run_once(void (**step)(void))
{
    void (*run)(void) = *step;
    *step = NULL;
    if (run != NULL)
        run();
}

int __wrap_mcpd_reader_find(const mcpd_reader *reader, uint64_t seq)
{
    run_once(&before_claim);
    return __real_mcpd_reader_find(reader, seq);
}

int __wrap_mcpd_reader_confirm(const mcpd_reader *reader, uint32_t slot, uint64_t seq,
                               struct mcpd_meta *meta)
{
    run_once(&before_recheck);
    return __real_mcpd_reader_confirm(reader, slot, seq, meta);
}

int __wrap_mcpd_writer_claimed(mcpd_writer *writer, uint64_t seq, uint32_t slot)
{
    run_once(&before_scan);
    return __real_mcpd_writer_claimed(writer, seq, slot);
}

static void set_up(enum mcpd_policy policy)
{
    stream_open(&s, 6, 1, 1);
    group_open(&s, &g, policy, 0);
    join(&s, &g, &a, 1);
    join(&s, &g, &b, 1);
    publish(&s);
}

static void tear_down(void)
{
    detach(&a);
    detach(&b);
    group_close(&g);
    stream_close(&s);
}

static _Atomic uint64_t *word_of_first(void)
{
    return &g.claims[MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, 1)))];
}

/* As if the writer had gone on between a's look at the queue and its claim. */
static void writer_goes_on_before_the_claim(void)
{
    _Atomic uint64_t *word = word_of_first();
    uint64_t claim = mcpd_load_relaxed(word);
    mcpd_store_seq_cst(word, 0);
    for (int i = 0; i < 10; i++)
        publish(&s);
    mcpd_store_seq_cst(word, claim);
}

TEST(a_slot_that_moved_on_before_it_was_claimed_is_left_for_the_newest)
{
    set_up(MCPD_LATEST);
    before_recheck = writer_goes_on_before_the_claim;
    CHECK_EQUAL(read_one(&a), 11);
    CHECK_EQUAL(COUNTER(a, retries), 1);
    CHECK_EQUAL(COUNTER(a, skipped), 10);
    for (uint32_t slot = 0; slot < g.nslots; slot++)
        CHECK(MCPD_CLAIM_STATE(g.claims[slot]) != MCPD_CLAIM_TAKEN);
    tear_down();
}

/* The slot goes on until b claims the frame that is in it then, over a's word. */
static void another_claims_the_slot(void)
{
    _Atomic uint64_t *word = word_of_first();
    uint64_t claim = mcpd_load_relaxed(word);
    uint32_t slot = (uint32_t)(word - g.claims);
    mcpd_store_seq_cst(word, 0);
    do
        publish(&s);
    while (MCPD_TAG_LOW(mcpd_load_acquire(queue_of(&s, s.wctl->head))) != slot);
    mcpd_store_seq_cst(word, claim);
    pin_next(&b, s.wctl->head);
}

TEST(a_claim_that_is_withdrawn_leaves_another_members_as_it_is)
{
    set_up(MCPD_LATEST);
    _Atomic uint64_t *word = word_of_first();
    before_recheck = another_claims_the_slot;
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(word), MCPD_CLAIM(s.wctl->head, 1, MCPD_CLAIM_TAKEN));
    tear_down();
}

static void another_has_claimed_the_first(void)
{
    mcpd_store_seq_cst(word_of_first(), MCPD_CLAIM(1, 1, MCPD_CLAIM_TAKEN));
}

static void another_has_returned_the_first(void)
{
    mcpd_store_seq_cst(word_of_first(), MCPD_CLAIM(1, 1, MCPD_CLAIM_RETURNED));
}

static void put_back_because(void (*claimed)(void))
{
    set_up(MCPD_LATEST);
    _Atomic uint64_t *word = word_of_first();
    publish(&s);
    before_scan = claimed;
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK(is_published(&s, 1));
    mcpd_store_seq_cst(word, MCPD_CLAIM(1, 1, MCPD_CLAIM_DONE));
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, 0), -EINVAL);
    mcpd_writer_end(s.writer, MCPD_END_CLOSED);
    tear_down();
}

TEST(a_frame_claimed_before_the_scan_is_put_back)
{
    put_back_because(another_has_claimed_the_first);
}

TEST(a_frame_returned_before_the_scan_is_put_back)
{
    put_back_because(another_has_returned_the_first);
}

static uint32_t first_pin;

/* The writer has seen frame 1 claimed, and frame 2 comes next. */
static void a_moves_on_to_the_second(void)
{
    CHECK_EQUAL(mcpd_reader_unpin(a.reader, first_pin), 0);
    mcpd_store_seq_cst(&g.claims[1], MCPD_CLAIM(2, 0, MCPD_CLAIM_TAKEN));
}

static void and_then(void)
{
    before_scan = a_moves_on_to_the_second;
}

TEST(a_claim_made_while_another_is_finished_is_honoured)
{
    set_up(MCPD_LATEST);
    struct attached other;
    CHECK_EQUAL(mcpd_writer_remove_reader(s.writer, b.id), 0);
    attach(&s, &other, MCPD_LATEST, 1); /* only a's one pin is reckoned with for the group */
    first_pin = pin_next(&a, 1);
    publish(&s);
    publish(&s);
    before_scan = and_then; /* at frame 1, and then at frame 2 */
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK(is_published(&s, 2));
    detach(&other);
    tear_down();
}

static void head_as_it_is_now(void)
{
    mcpd_store_seq_cst(&s.wctl->head, 2);
}

/* As if it had looked at head before frame 2 was published. */
static void a_claims_the_first_now(void)
{
    mcpd_store_seq_cst(&s.wctl->head, 1);
    before_recheck = head_as_it_is_now;
    CHECK_EQUAL(read_one(&a), 2);
}

TEST(a_member_that_claims_in_mid_reclaim_leaves_the_frame_for_later)
{
    set_up(MCPD_LATEST);
    _Atomic uint64_t *word = word_of_first();
    publish(&s);
    before_scan = a_claims_the_first_now;
    CHECK(mcpd_writer_acquire(s.writer, 0) >= 0);
    CHECK_EQUAL(mcpd_load_relaxed(word), MCPD_CLAIM(1, 0, MCPD_CLAIM_RETURNED));
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(read_one(&b), 1);
    tear_down();
}

static void writer_wants_a_slot(void)
{
    CHECK_EQUAL(mcpd_writer_acquire(s.writer, 0), -EAGAIN);
}

TEST(a_frame_that_is_about_to_be_claimed_is_still_owed)
{
    set_up(MCPD_LOSSLESS);
    for (int i = 0; i < 5; i++)
        publish(&s);
    before_claim = writer_wants_a_slot;
    CHECK_EQUAL(read_one(&a), 1);
    CHECK_EQUAL(COUNTER(a, dropped), 0);
    tear_down();
}

static void another_claims_first(void)
{
    pin_next(&b, 1);
}

TEST(of_two_members_that_see_the_same_frame_one_has_it)
{
    set_up(MCPD_LOSSLESS);
    publish(&s);
    before_claim = another_claims_first;
    pin_next(&a, 2);
    CHECK_EQUAL(claim_of(&s, &g, 1), MCPD_CLAIM(1, 1, MCPD_CLAIM_TAKEN));
    CHECK_EQUAL(COUNTER(a, retries), 1);
    CHECK_EQUAL(mcpd_load_relaxed(&g.gctl->cursor), 3);
    tear_down();
}

/* ---- taking over while the writer looks ------------------------------------------------------- */

static void a_looks_for_the_returned_frame(void)
{
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    CHECK_EQUAL(mcpd_load_relaxed(word_of_first()), MCPD_CLAIM(1, 1, MCPD_CLAIM_RETURNED));
}

TEST(a_returned_frame_that_the_writer_looks_at_is_taken_over_later)
{
    set_up(MCPD_LOSSLESS);
    publish(&s);
    uint32_t pin = pin_next(&b, 1);
    CHECK_EQUAL(read_one(&a), 2);
    CHECK_EQUAL(mcpd_reader_give_back(b.reader, pin), 0);
    before_scan = a_looks_for_the_returned_frame;
    CHECK_EQUAL(mcpd_writer_abandon(s.writer, (uint32_t)mcpd_writer_acquire(s.writer, 0)), 0);
    CHECK(is_published(&s, 1));
    CHECK_EQUAL(mcpd_reader_arm(a.reader), 1); /* nobody would wake it for that */
    CHECK_EQUAL(read_one(&a), 1);
    CHECK_EQUAL(next_now(&a), -EAGAIN);
    tear_down();
}

TEST(a_returned_claim_of_a_slot_that_has_moved_on_names_no_frame)
{
    set_up(MCPD_LATEST);
    _Atomic uint64_t *word = word_of_first();
    for (int i = 0; i < 5; i++)
        publish(&s);
    CHECK_EQUAL(read_one(&b), 6);
    mcpd_store_seq_cst(word, MCPD_CLAIM(1, 1, MCPD_CLAIM_TAKEN)); /* b dies before its step 4 */
    CHECK_EQUAL(mcpd_gctl_sweep(g.gctl, g.nslots, 1, 1), 1);
    publish(&s);
    CHECK_EQUAL(read_one(&a), 7);
    CHECK_EQUAL(MCPD_CLAIM_STATE(mcpd_load_relaxed(word)), MCPD_CLAIM_DONE);
    CHECK_EQUAL(COUNTER(a, dropped), 1);
    tear_down();
}

TEST(a_returned_frame_whose_writer_died_while_it_looked_is_lost)
{
    set_up(MCPD_LOSSLESS);
    CHECK_EQUAL(mcpd_reader_give_back(b.reader, pin_next(&b, 1)), 0);
    uint32_t slot = (uint32_t)(word_of_first() - g.claims);
    mcpd_store_seq_cst(&header_of(&s, slot)->state, MCPD_TAG(1, MCPD_SLOT_WRITING));
    CHECK_EQUAL(mcpd_wctl_end(s.wctl, MCPD_END_WRITER_DIED), 1);
    CHECK_EQUAL(next_now(&a), -EPIPE);
    CHECK_EQUAL(mcpd_load_relaxed(word_of_first()), MCPD_CLAIM(1, 0, MCPD_CLAIM_DONE));
    tear_down();
}
