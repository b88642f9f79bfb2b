/*
 * Both ends in one process, as threads: RACE WRITER READER FRAMES. For ThreadSanitizer: every mapping
 * of one object is at one address, so that it sees which accesses meet. One writer publishes frames
 * whose bytes all say their number; readers of every policy and two groups' members read each byte
 * of what they are given. The exit status is 0 if all that each is promised has come true.
 */
#include "ends.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NSLOTS = 24, SLOT = 4096, READERS = 7, OBJECTS = 16 };

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            abort(); \
        } \
    } while (0)

static const struct geometry geometry = {.stream = 1, .generation = 1, .slot_nbytes = SLOT,
                                         .first_seq = 1, .nslots = NSLOTS};
static uint64_t frames;

/* ---- one address for each object ---------------------------------------------------------- */

static struct {
    ino_t inode;
    void *at;
} mapped[OBJECTS];

void *__real_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t nbytes);

void *__wrap_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0)
        for (int k = 0; k < OBJECTS; k++)
            if (mapped[k].at && mapped[k].inode == info.st_ino)
                return mapped[k].at;
    return __real_mmap(at, nbytes, protection, flags, fd, offset);
}

int __wrap_munmap(void *at, size_t nbytes)
{
    for (int k = 0; k < OBJECTS; k++)
        if (mapped[k].at == at)
            return 0;
    return __real_munmap(at, nbytes);
}

static int make(size_t nbytes, uint64_t magic)
{
    static int n;
    struct stat info;
    int fd = memfd_create("race", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0 && fstat(fd, &info) == 0 && n < OBJECTS);
    void *at = __real_mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    if (magic) {
        struct writer_control *line = at; /* magic and abi are at the same place in all */
        line->magic = magic;
        line->abi = ABI;
    }
    mapped[n].inode = info.st_ino;
    mapped[n++].at = at;
    return fd;
}

/* ---- the ends ----------------------------------------------------------------------------- */

struct end {
    const struct ends *ends;
    void *handle;
    struct terms terms;
    struct thinning thinning;
    uint64_t got, last;
};

static _Atomic uint32_t finished[2][1 << 20]; /* by each group, each frame's finishes */
static void *writer;
static const struct ends *writing;

static void *write_frames(void *unused)
{
    (void)unused;
    for (uint64_t seq = 1; seq <= frames; seq++) {
        int slot = writing->acquire(writer, -1);
        CHECK(slot >= 0);
        struct meta meta = {.nbytes = SLOT, .pts_ns = (int64_t)seq, .deadline_ns = INT64_MIN,
                            .device_event = -1};
        memset(writing->writer_slot(writer, (uint32_t)slot), (int)(seq % 251), SLOT);
        struct description *d = writing->writer_description(writer, (uint32_t)slot);
        d->width = (uint32_t)seq;
        CHECK(writing->publish(writer, (uint32_t)slot, &meta, false) == (int64_t)seq);
    }
    CHECK(writing->end(writer, 1) == 0);
    return NULL;
}

static void check_frame(struct end *e, uint32_t pin, const struct meta *meta)
{
    const uint8_t *at = e->ends->reader_slot(e->handle, pin);
    const struct description *d = e->ends->reader_description(e->handle, pin);
    for (size_t k = 0; k < SLOT; k++)
        CHECK(at[k] == meta->seq % 251);
    CHECK(meta->pts_ns == (int64_t)meta->seq && d->width == meta->seq);
}

static void *read_frames(void *argument)
{
    struct end *e = argument;
    struct meta meta;
    uint64_t member_random = e->terms.member + 1;
    int pin;
    while ((pin = e->ends->next(e->handle, -1, &meta)) >= 0) {
        check_frame(e, (uint32_t)pin, &meta);
        member_random = member_random * 6364136223846793005ull + 1442695040888963407ull;
        if (e->terms.group && member_random >> 61 == 0) {
            CHECK(e->ends->give_back(e->handle, (uint32_t)pin) == 0);
            continue;
        }
        if (e->terms.group)
            atomic_fetch_add(&finished[e->terms.group - 1][meta.seq], 1);
        else
            CHECK(meta.seq > e->last);
        if (e->terms.policy == POLICY_LOSSLESS && !e->terms.group)
            CHECK(meta.seq == (!e->last ? 1 : e->last + (e->thinning.every_n ? 3 : 1)));
        e->last = meta.seq;
        e->got++;
        CHECK(e->ends->unpin(e->handle, (uint32_t)pin) == 0);
    }
    CHECK(pin == -EPIPE);
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct ends *const all[] = {&second_ends, &our_ends};
    static struct end readers[READERS] = {
        {.terms = {0, 0, 1, POLICY_LATEST, 0}},
        {.terms = {0, 0, 2, POLICY_FIFO, 4}},
        {.terms = {0, 0, 1, POLICY_LOSSLESS, 0}},
        {.terms = {0, 0, 1, POLICY_LOSSLESS, 0}, .thinning = {3, 0, 0}},
        {.terms = {1, 0, 1, POLICY_LOSSLESS, 0}},
        {.terms = {1, 1, 1, POLICY_LOSSLESS, 0}},
        {.terms = {2, 0, 1, POLICY_FIFO, 3}},
    };
    CHECK(argc == 4);
    const struct ends *reading = NULL;
    for (int k = 0; k < 2; k++) {
        writing = strcmp(all[k]->name, argv[1]) == 0 ? all[k] : writing;
        reading = strcmp(all[k]->name, argv[2]) == 0 ? all[k] : reading;
    }
    frames = strtoull(argv[3], NULL, 10);
    CHECK(writing && reading && frames < sizeof finished[0] / sizeof finished[0][0]);

    int control = make(4096 * (2 + NSLOTS), WRITER_MAGIC), payload = make(NSLOTS * SLOT, 0);
    int wake = eventfd(0, EFD_NONBLOCK);
    CHECK(writing->writer_open(&geometry, control, payload, wake, 2, 1, &writer) == 0);
    int groups[2];
    for (uint32_t k = 0; k < 2; k++) {
        struct terms terms = {.group = k + 1, .policy = k ? POLICY_FIFO : POLICY_LOSSLESS,
                              .depth = k ? 3 : 0};
        groups[k] = make(4096, GROUP_MAGIC);
        int64_t start = writing->add_group(writer, groups[k], &terms);
        CHECK(start == 1);
        struct group_control *shared = __wrap_mmap(NULL, 4096, 0, 0, groups[k], 0);
        atomic_store(&shared->cursor, (uint64_t)start);
    }
    for (uint32_t k = 0; k < READERS; k++) {
        struct end *e = &readers[k];
        e->ends = reading;
        struct reader_objects objects = {control, payload, make(4096, READER_MAGIC),
                                         eventfd(0, EFD_NONBLOCK), wake,
                                         e->terms.group ? groups[e->terms.group - 1] : -1};
        int64_t start = writing->add_reader(writer, k + 1, objects.control, objects.wake,
                                            &e->terms);
        CHECK(start >= 0);
        CHECK(reading->reader_open(&geometry, &objects, &e->terms, (uint64_t)start,
                                   e->thinning.every_n ? &e->thinning : NULL, &e->handle) == 0);
    }

    pthread_t threads[READERS + 1];
    CHECK(pthread_create(&threads[READERS], NULL, write_frames, NULL) == 0);
    for (int k = 0; k < READERS; k++)
        CHECK(pthread_create(&threads[k], NULL, read_frames, &readers[k]) == 0);
    for (int k = 0; k <= READERS; k++)
        CHECK(pthread_join(threads[k], NULL) == 0);

    CHECK(readers[0].last == frames && readers[1].last == frames);
    CHECK(readers[2].got == frames && readers[3].got == (frames + 2) / 3);
    for (uint64_t seq = 1; seq <= frames; seq++) {
        CHECK(atomic_load(&finished[0][seq]) == 1);
        CHECK(atomic_load(&finished[1][seq]) <= 1);
    }
    for (int k = 0; k < READERS; k++)
        reading->reader_close(readers[k].handle);
    writing->writer_close(writer);
    return 0;
}
