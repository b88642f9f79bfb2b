/*
 * Every shared word may be anything: a writer, readers of each policy and members of a group call in
 * an order that the input says, while words of the control objects become what the input says.
 * Nothing may crash, hang, or hand out bytes beyond a slot.
 *
 *   fuzz_stream [COUNT [FIRST]]    runs COUNT inputs, made from the numbers FIRST, FIRST + 1, ...
 *   with -DLIBFUZZER and -fsanitize=fuzzer: inputs of libFuzzer
 */
#define CHECK_NO_MAIN
#include "group_fixture.h"

#define NSLOTS 16u
#define READERS 5u
#define MAX_HELD 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the input ------------------------------------------------------------------------------- */

struct input {
    const uint8_t *data;
    size_t size, at;
};

static uint32_t byte(struct input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

static uint64_t word(struct input *in)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | byte(in);
    return value;
}

/* Mostly what is nearly right, which gets further than noise does. */
static uint64_t value_of(struct input *in, uint64_t head)
{
    uint64_t seq = head + byte(in) % 8 - 4;
    switch (byte(in) % 10) {
    case 0:
        return word(in);
    case 1:
        return 0;
    case 2:
        return UINT64_MAX - byte(in);
    case 3:
        return seq;
    case 4:
        return MCPD_TAG(seq, byte(in) % (NSLOTS + 2));
    case 5:
        return MCPD_TAG(seq, byte(in) % 4);
    case 6:
        return MCPD_CLAIM(seq, byte(in), byte(in) % 5);
    case 7:
        return MCPD_CLAIM(seq, byte(in) % 3, MCPD_CLAIM_RETURNED);
    case 8:
        return (uint64_t)1 << byte(in) % 64;
    default:
        return byte(in);
    }
}

/* ---- the stream ------------------------------------------------------------------------------ */

struct target {
    struct stream s;
    struct group g;
    struct attached r[READERS]; /* latest, fifo, lossless, two members */
    uint32_t pins[READERS][MAX_HELD], npins[READERS];
    uint32_t slots[MAX_HELD], nslots;
    mcpd_reader *late; /* opened on what is there by then */
};

static void set_up(struct target *t, uint32_t number)
{
    memset(t, 0, sizeof *t);
    enum mcpd_policy policy = (enum mcpd_policy)(MCPD_LATEST + number % 3);
    stream_open(&t->s, NSLOTS, 1, 2);
    group_open(&t->s, &t->g, policy, policy == MCPD_FIFO ? 2 : 0);
    attach(&t->s, &t->r[0], MCPD_LATEST, 3);
    attach_thinned(&t->s, &t->r[1], MCPD_FIFO, 3,
                   (struct mcpd_thinning){.every_n = 2, .skip_expired = 1,
                                          .interval_ns = number % 4 ? 1 : INT64_MAX});
    reader_make(&t->s, &t->r[2], MCPD_LOSSLESS, 1);
    attach_made(&t->s, &t->r[2]);
    join(&t->s, &t->g, &t->r[3], 2);
    join(&t->s, &t->g, &t->r[4], 1);
}

static void tear_down(struct target *t)
{
    mcpd_reader_close(t->late);
    for (uint32_t i = 0; i < READERS; i++)
        detach(&t->r[i]);
    group_close(&t->g);
    stream_close(&t->s);
}

/* ---- what the input may do ------------------------------------------------------------------- */

static void put(void *object, size_t offset, uint64_t value, int narrow)
{
    if (narrow)
        mcpd_store_relaxed((_Atomic uint32_t *)((uint8_t *)object + offset), (uint32_t)value);
    else
        mcpd_store_relaxed((_Atomic uint64_t *)((uint8_t *)object + offset / 8 * 8), value);
}

/* Any word of the control objects but those that say which object it is. */
static void spoil(struct target *t, struct input *in)
{
    uint64_t head = mcpd_load_relaxed(&t->s.wctl->head);
    uint64_t value = value_of(in, head);
    uint32_t where = byte(in), what = byte(in);
    struct mcpd_slot_header *header = header_of(&t->s, what % NSLOTS);
    struct attached *r = &t->r[what % READERS];
    switch (where % 11) {
    case 0:
        mcpd_store_relaxed(&t->s.wctl->head, value);
        break;
    case 1:
        mcpd_store_relaxed(queue_of(&t->s, head + what % 4 - 2), value);
        break;
    case 2:
        mcpd_store_relaxed(&header->state, value);
        break;
    case 3:
        put(&header->meta, what % sizeof header->meta / 8 * 8, value, 0);
        break;
    case 4:
        put(&header->description, what % 33 * 4, value, 1);
        break;
    case 5:
        put(t->s.wctl, 64 + what % 80 * 4, value, 1);
        break;
    case 6:
        put(r->rctl, 64 + what % 112 * 4, value, 1);
        break;
    case 7:
        mcpd_store_relaxed(&r->rctl->cursor, value);
        break;
    case 8:
        mcpd_store_relaxed(&r->pins[0], value);
        break;
    case 9:
        mcpd_store_relaxed(&t->g.claims[what % NSLOTS], value);
        break;
    default:
        put(t->g.gctl, 64 + what % 40 * 4, value, 1);
        break;
    }
}

static volatile uint8_t touched;

/* Reads as the binding does: the bytes in use, and the description once ntensors is checked. */
static void look(struct attached *r, uint32_t pin, const struct mcpd_meta *meta)
{
    const uint8_t *slot = mcpd_reader_slot(r->reader, pin);
    struct mcpd_description copy;
    CHECK(slot != NULL && meta->nbytes <= SLOT_NBYTES);
    if (meta->nbytes > 0)
        touched = slot[0] ^ slot[meta->nbytes - 1];
    memcpy(&copy, mcpd_reader_description(r->reader, pin), sizeof copy);
    touched ^= (uint8_t)copy.ntensors;
}

static void next(struct target *t, uint32_t i)
{
    struct mcpd_meta meta;
    int pin = mcpd_reader_next(t->r[i].reader, 0, &meta);
    if (pin < 0)
        return;
    CHECK((uint32_t)pin < t->r[i].admission.max_pins);
    look(&t->r[i], (uint32_t)pin, &meta);
    CHECK(t->npins[i] < MAX_HELD);
    t->pins[i][t->npins[i]++] = (uint32_t)pin;
}

static void recent(struct target *t, uint32_t count)
{
    struct mcpd_meta metas[MAX_HELD];
    uint32_t pins[MAX_HELD];
    int taken = mcpd_reader_recent(t->r[0].reader, count % MAX_HELD, pins, metas);
    for (int i = 0; i < taken; i++) {
        look(&t->r[0], pins[i], &metas[i]);
        t->pins[0][t->npins[0]++] = pins[i];
    }
}

static void let_go(struct target *t, uint32_t i, int give_back)
{
    if (t->npins[i] == 0)
        return;
    uint32_t pin = t->pins[i][--t->npins[i]];
    CHECK_EQUAL(give_back ? mcpd_reader_give_back(t->r[i].reader, pin)
                          : mcpd_reader_unpin(t->r[i].reader, pin),
                0);
}

static void acquire(struct target *t)
{
    int slot = mcpd_writer_acquire(t->s.writer, 0);
    if (slot < 0)
        return;
    CHECK((uint32_t)slot < NSLOTS && t->nslots < MAX_HELD);
    memset(mcpd_writer_slot(t->s.writer, (uint32_t)slot), 7, SLOT_NBYTES);
    t->slots[t->nslots++] = (uint32_t)slot;
}

static void publish_one(struct target *t, struct input *in)
{
    if (t->nslots == 0)
        acquire(t);
    if (t->nslots == 0)
        return;
    struct mcpd_meta meta = {.nbytes = byte(in) * 17, .deadline_ns = byte(in) % 2 ? INT64_MAX : 0};
    uint32_t slot = t->slots[--t->nslots];
    if (mcpd_writer_publish(t->s.writer, slot, &meta, 0) < 0)
        CHECK_EQUAL(mcpd_writer_abandon(t->s.writer, slot), 0);
}

static void open_late(struct target *t, uint32_t what)
{
    struct attached *r = &t->r[what % READERS];
    mcpd_reader *own = r->reader;
    mcpd_reader_close(t->late);
    t->late = NULL;
    if (reader_open(&t->s, r) == 0)
        t->late = r->reader;
    r->reader = own;
}

static void step(struct target *t, struct input *in)
{
    uint32_t op = byte(in), i = byte(in) % READERS;
    struct mcpd_meta meta;
    switch (op % 20) {
    case 0:
    case 1:
    case 2:
        publish_one(t, in);
        break;
    case 3:
    case 4:
    case 5:
        next(t, i);
        break;
    case 6:
    case 7:
        let_go(t, i, op % 2);
        break;
    case 8:
        recent(t, byte(in));
        break;
    case 9:
        acquire(t);
        break;
    case 10:
        mcpd_reader_arm(t->r[i].reader);
        break;
    case 11:
        mcpd_reader_disarm(t->r[i].reader);
        break;
    case 12:
        if (op % 40 < 20)
            mcpd_writer_arm(t->s.writer);
        else
            mcpd_writer_disarm(t->s.writer);
        break;
    case 13:
        if (op > 200) {
            mcpd_writer_release_reader(t->s.writer, t->r[i].id);
            mcpd_writer_remove_reader(t->s.writer, t->r[i].id);
        }
        (void)reader_admit(&t->s, &t->r[i]);
        break;
    case 14:
        mcpd_gctl_sweep(t->g.gctl, NSLOTS, byte(in), op % 2);
        break;
    case 15:
        open_late(t, i);
        if (t->late != NULL && mcpd_reader_next(t->late, 0, &meta) >= 0)
            CHECK(meta.nbytes <= SLOT_NBYTES);
        break;
    default:
        spoil(t, in);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct target target;
    struct input in = {.data = data, .size = size};
    set_up(&target, byte(&in));
    while (in.at < in.size)
        step(&target, &in);
    tear_down(&target);
    return 0;
}

#ifndef LIBFUZZER
static void make_input(uint64_t number, uint8_t *data, size_t size)
{
    uint64_t state = number * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data[i] = (uint8_t)(state >> 32);
    }
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint8_t data[512];
    for (uint64_t number = first; number < first + count; number++) {
        size_t size = 32 + number * 37 % (sizeof data - 32);
        make_input(number, data, size);
        alarm(20); /* one that takes this long hangs */
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("ok %llu inputs\n", (unsigned long long)count);
    return 0;
}
#endif
