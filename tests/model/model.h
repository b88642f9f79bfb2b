/*
 * The model of the stream's protocol: what a state is, how threads are written, what memory does.
 *
 * A thread is a stack of routines, each named after the function of native/src that it follows. A
 * routine runs from one STEP to the next; between two steps it does at most one operation on shared
 * memory, or one system call, so the explorer (explore.c) sees every interleaving of those. What is
 * private to a process is plain fields of struct state. Two memory models stand behind the same
 * calls: memory_tso.c and memory_views.c say what they allow.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { THREADS = 5, DEPTH = 8, SLOTS = 5, SIDES = 4, PINS = 2, LOCS = 32, FRAMES = 7 };
enum { BUFFER = 14, MESSAGES = 120 };
enum { WRITER = 0 }; /* its side; reader or member r is side 1 + r */

enum order { RELAXED, ACQUIRE, RELEASE, SEQ_CST };
enum slot_state { FREE, WRITING, PUBLISHED };
enum claim_state { TAKEN = 1, DONE, RETURNED };
enum policy { LATEST, FIFO, LOSSLESS };
enum result { NOTHING, FOUND, ENDED, STALE };

/* ---- a state ------------------------------------------------------------------------------- */

struct frame;
typedef void routine(struct frame *f);

/* One call of a routine: where it is, and its locals. */
struct frame {
    routine *run;
    uint16_t at;
    uint8_t seq, slot, word, i, keep, flag;
};

struct thread {
    uint8_t status, depth, result, seq, slot;
    struct frame frames[DEPTH];
};
enum status { RUNS, FINISHED, DEAD };

/* What struct mcpd_sleep is, but for the epoch word and the eventfd. */
struct sleep {
    uint8_t value, waiting, armed;
};

/* Of the writer's process. */
struct writer {
    uint8_t head, nfree, free[SLOTS], seq[SLOTS], state[SLOTS];
    uint8_t signalled[SIDES], cursor[SIDES];
};

/* Of a reader's or member's process. */
struct reader {
    uint8_t wanted, writer_signalled, not_before, looked, unsettled, more, again;
    uint8_t pin; /* which of its pins is used next */
};

/* What the checks know and no process does. */
struct ghost {
    uint8_t holders[SLOTS];   /* threads with a confirmed pin or claim, a bit each */
    uint8_t received[SIDES];  /* frames that each reader got */
    uint8_t dropped[SIDES];
    uint8_t finished[FRAMES]; /* how often each frame was finished by a member */
    uint8_t published;        /* the newest frame, but those published after the end */
    uint8_t looking;          /* the writer is between Reclaim 1 and 3 */
    uint8_t ended, deaths, followed, lost; /* followed: the daemon knows of the death; lost: frames that a death cost, a bit each */
};

/* What a thread or a message has seen: of each word a place in its order, of the slots' bytes all. */
struct view {
    uint8_t at[LOCS];
    uint32_t bytes; /* bits: memory_views.c */
};

struct message {
    struct view view;
    uint8_t value, zero[3];
};

struct tso {
    uint8_t value[LOCS], n[THREADS], at[THREADS][BUFFER], stored[THREADS][BUFFER];
};

struct views {
    struct view threads[THREADS];
    uint8_t sc[LOCS], n[LOCS], bytes[SLOTS];
    uint8_t used;
    struct message messages[MESSAGES]; /* of each word in their order, word after word */
};

struct state {
    struct thread threads[THREADS];
    struct sleep sleep[SIDES];
    uint8_t signal[SIDES]; /* eventfds: signalled or not */
    struct writer writer;
    struct reader readers[SIDES];
    struct ghost ghost;
    union {
        struct tso tso;
        struct views views;
    };
};

/* ---- a configuration ----------------------------------------------------------------------- */

struct configuration {
    const char *name;
    routine *threads[THREADS];
    uint8_t sides[THREADS]; /* the handle that each thread uses */
    uint8_t nslots, nqueue, frames, history;
    uint8_t nreaders; /* readers of their own, or members */
    bool group;
    enum policy policy;
    uint8_t depth;     /* fifo */
    uint8_t every_n;   /* thinning */
    uint8_t paced;     /* max_fps: frames apart, by time; a frame's time is its number */
    uint8_t may_die;   /* threads that may stop for ever, a bit each; one of them does */
    bool batch;        /* the reader has two pins */
    uint8_t takes;     /* frames after which one that polls stops */
    uint8_t gives_back; /* members that give their first frame back, a bit each */
    bool writer_sleeps; /* or gives up a frame for which there is no room */
    bool never_blocks;  /* admitted as the page says: an acquire always finds a slot */
    bool ends;          /* the writer ends the stream after its last frame */
    bool ends_last;     /* and only once the first reader has stopped */
    bool daemon_ends;   /* or the daemon does: of a writer that died, or at any time */
    bool shared;        /* threads share a handle: its mutex is used */
    bool quiet;         /* members may sleep for ever once all is finished */
    bool polls;         /* readers that stop when they like */
    bool abandons;      /* the writer may sleep for ever: a reader died that it waits for */
};

extern const struct configuration configurations[];
extern const struct configuration *config;

/* Where each shared word lives; words of one kind follow each other. */
struct words {
    uint8_t state, queue, head, ended, writer_epoch, pin, cursor, not_before, epoch, claim, group_cursor,
        returned, lock, bytes, n;
};
extern struct words word;
extern bool constant[LOCS];   /* words that nobody changes in this configuration */
extern uint8_t initial[LOCS]; /* what the daemon has stored in them before anybody looks */

/* ---- weakenings ---------------------------------------------------------------------------- */

#define WEAKENING(name) name,
enum weakening {
    NONE,
#include "weakenings.h"
};
#undef WEAKENING
extern enum weakening planted;

/* ---- running ------------------------------------------------------------------------------- */

extern struct state *s;
extern struct thread *t;
extern int me; /* t's index */
extern const char *label;
extern bool yielded;
extern bool newest; /* the next load reads the newest: every store is seen in the end */

#define BEGIN                                                                                      \
    switch (f->at) {                                                                               \
    case 0:;
#define END                                                                                        \
    }                                                                                              \
    leave(NOTHING)
/* From here on, what the text says; others may run before. */
#define STEP(text)                                                                                 \
    do {                                                                                           \
        f->at = __LINE__;                                                                          \
        yielded = true;                                                                            \
        return;                                                                                    \
    case __LINE__:                                                                                 \
        label = text;                                                                              \
    } while (0)
/* Runs a routine; what it returned is t->result then. */
#define CALL(...)                                                                                  \
    do {                                                                                           \
        f->at = __LINE__;                                                                          \
        enter((struct frame){.run = __VA_ARGS__});                                                 \
        return;                                                                                    \
    case __LINE__:;                                                                                \
    } while (0)
#define RETURN(value)                                                                              \
    do {                                                                                           \
        leave(value);                                                                              \
        return;                                                                                    \
    } while (0)

void enter(struct frame frame);
void leave(uint8_t result);
/* The thread cannot move now: what this step did is undone. */
void block(void);
void violate(const char *what);
/* One of n, each of them explored; at most once in a step. */
int choose(int n);
/* What this step did cannot be told from having been done earlier or later; or it can. */
void invisible(void);
void visible(void);
/* For the trace. */
void note(const char *operation, int at, int value);

/* ---- memory: one of memory_tso.c and memory_views.c ------------------------------------------ */

enum change { SET, ADD };

struct memory {
    const char *name;
    void (*reset)(void);
    uint8_t (*load)(int at, enum order order);
    void (*store)(int at, uint8_t value, enum order order);
    /* A read-modify-write that sets or adds, if what is there is what is expected or nothing is. */
    bool (*change)(enum change how, int at, const uint8_t *expected, uint8_t value, uint8_t *seen,
                   enum order order);
    uint8_t (*read_bytes)(int slot);
    void (*write_bytes)(int slot, uint8_t value);
    bool (*pending)(int thread); /* whether a store of it is not visible yet */
    void (*flush)(int thread);   /* makes the oldest such store visible */
    void (*follow)(int thread);  /* the current thread knows that this one is gone */
    void (*settle)(void);        /* brings equal states to equal bytes */
    unsigned (*nbytes)(const struct state *state);
};
extern const struct memory tso, views;
extern const struct memory *memory;

uint8_t load(int at, enum order order);
void store(int at, uint8_t value, enum order order);
uint8_t exchange(int at, uint8_t value, enum order order);
/* As the C function; what was there is in `seen`. */
bool compare_exchange(int at, uint8_t expected, uint8_t value, uint8_t *seen, enum order order);
void add(int at, uint8_t amount, enum order order);

/* ---- words --------------------------------------------------------------------------------- */

static inline uint8_t tag(uint8_t seq, uint8_t low) { return (uint8_t)(seq << 3 | low); }
static inline uint8_t claim(uint8_t seq, int member, enum claim_state state)
{
    return (uint8_t)(seq << 4 | member << 2 | (int)state);
}
static inline uint8_t claim_seq(uint8_t word) { return word >> 4; }
static inline uint8_t claim_state(uint8_t word) { return word & 3; }

#endif
