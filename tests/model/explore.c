/*
 * Explores every state that a configuration can reach, depth first, and stops at the first
 * violation.
 *
 *   model CONFIGURATION MEMORY [WEAKENING [MAX_STATES]]
 *
 * prints one line of JSON: what was run, states, transitions, depth, seconds, the violation or
 * null, and whether all states were seen. With a violation, the way to it goes to stderr. Without
 * arguments it lists the names of configurations and weakenings. A state in which nothing can move
 * is a violation unless its configuration's end is reached (finals.c): a sleeper with something to
 * do that nobody will signal is one. Over 400 lines: a transition and the walk over them share most.
 */
#include <stdio.h>
#include <time.h>

#include "finals.h"
#include "model.h"
#include "seen.h"

struct state *s;
struct thread *t;
int me;
const char *label;
bool yielded, newest;
enum weakening planted;
const struct configuration *config;
const struct memory *memory;

static bool blocked, more, traced;
static int choice, nchoices;
static const char *violation;

/* ---- what the model's threads call ----------------------------------------------------------- */

void enter(struct frame frame)
{
    if (t->depth == DEPTH)
        abort();
    t->frames[t->depth++] = frame;
}

void leave(uint8_t result)
{
    t->frames[--t->depth] = (struct frame){0};
    t->result = result;
    if (t->depth == 0)
        t->status = FINISHED;
}

void block(void)
{
    blocked = true;
}

void violate(const char *what)
{
    if (violation == NULL && !blocked)
        violation = what;
}

int choose(int n)
{
    if (n == 1)
        return 0;
    nchoices = n;
    return choice;
}

void invisible(void)
{
    more = true;
}

void visible(void)
{
    more = false;
}

void note(const char *operation, int at, int value)
{
    if (traced)
        fprintf(stderr, "  %d  %-60s %s %d %d\n", me, label, operation, at, value);
}

uint8_t load(int at, enum order order)
{
    uint8_t value = memory->load(at, order);
    newest = false;
    if (constant[at])
        invisible();
    note("load", at, value);
    return value;
}

void store(int at, uint8_t value, enum order order)
{
    memory->store(at, value, order);
    note("store", at, value);
}

uint8_t exchange(int at, uint8_t value, enum order order)
{
    uint8_t seen = 0;
    (void)memory->change(SET, at, NULL, value, &seen, order);
    note("exchange", at, value);
    return seen;
}

bool compare_exchange(int at, uint8_t expected, uint8_t value, uint8_t *seen, enum order order)
{
    bool done = memory->change(SET, at, &expected, value, seen, order);
    note(done ? "compared, exchange" : "compared, not", at, done ? value : *seen);
    return done;
}

void add(int at, uint8_t amount, enum order order)
{
    uint8_t seen = 0;
    (void)memory->change(ADD, at, NULL, amount, &seen, order);
    note("add", at, amount);
}

/* ---- transitions ----------------------------------------------------------------------------- */

enum kind { STEPS, FLUSHES, DIES, KINDS };

struct transition {
    uint8_t thread, kind, tried; /* tried: threads before this one, from the last that moved */
    int choice;
};

static void run_step(void)
{
    more = yielded = false;
    while (!yielded && t->status == RUNS) {
        struct frame *f = &t->frames[t->depth - 1];
        f->run(f);
    }
}

/*
 * One step. An invisible one commutes with all that others can do, so that nothing else need be tried
 * before it (an ample set): *alone. Invisible ones that follow are done at once. Who may die can do
 * so between any two, so of that thread none counts as invisible.
 */
static void run_thread(bool *alone)
{
    static struct state before;
    run_step();
    if (!more || blocked || violation != NULL || config->may_die >> me & 1)
        return;
    *alone = true;
    while (t->status == RUNS) {
        memcpy(&before, s, memory->nbytes(s));
        run_step();
        if (!more || blocked || violation != NULL) {
            memcpy(s, &before, memory->nbytes(&before));
            blocked = false;
            violation = NULL;
            nchoices = 1;
            return;
        }
    }
}

/* Changes s by the transition; false when there is none such. */
static bool apply(struct transition transition, bool *alone)
{
    me = transition.thread;
    t = &s->threads[me];
    blocked = false;
    nchoices = 1;
    choice = transition.choice;
    if (config->threads[me] == NULL)
        return false;
    switch (transition.kind) {
    case STEPS:
        if (t->status != RUNS)
            return false;
        run_thread(alone);
        if (choice >= nchoices)
            return false;
        break;
    case FLUSHES:
        if (choice > 0 || !memory->pending(me))
            return false;
        memory->flush(me);
        label = "(its oldest store is visible)";
        note("", 0, 0);
        break;
    default:
        if (choice > 0 || t->status != RUNS || !(config->may_die >> me & 1) || s->ghost.deaths)
            return false;
        t->status = DEAD;
        s->ghost.deaths = 1;
        label = "(dies)";
        note("", 0, 0);
        break;
    }
    if (!blocked && violation == NULL)
        memory->settle();
    return !blocked;
}

static void begin(struct state *state)
{
    s = state;
    memset(s, 0, sizeof *s);
    model_begin();
    memory->reset();
    for (me = 0; me < THREADS; me++) {
        t = &s->threads[me];
        t->status = FINISHED;
        if (config->threads[me] == NULL)
            continue;
        t->status = RUNS;
        enter((struct frame){.run = config->threads[me]});
        yielded = false;
        while (!yielded)
            t->frames[t->depth - 1].run(&t->frames[t->depth - 1]);
    }
    memory->settle();
}

/* ---- exploring ------------------------------------------------------------------------------- */

/*
 * Depth first, with Tarjan's strongly connected components: a component that nothing leads out of
 * is a way for all threads to go on for ever, or an end if it is one state that cannot move. In
 * every other state the end is still within reach.
 */
struct node {
    struct state state;
    struct fingerprint print;
    struct transition next, taken;
    uint32_t number, low;
    bool moved, exits;
};

static struct node *stack;
static size_t depth, stack_len;
static struct fingerprint *open; /* states whose component is not complete */
static size_t nopen, open_len;
static struct seen seen;

static struct node *child_node(void)
{
    if (depth == stack_len) {
        stack_len = stack_len == 0 ? 1024 : 2 * stack_len;
        stack = (struct node *)realloc(stack, stack_len * sizeof *stack);
    }
    if (nopen + 1 >= open_len) {
        open_len = open_len == 0 ? 65536 : 2 * open_len;
        open = (struct fingerprint *)realloc(open, open_len * sizeof *open);
    }
    if (stack == NULL || open == NULL)
        abort();
    return &stack[depth];
}

/* The child node becomes the top, if its state is new; else the top has an edge to that state. */
static bool descend(struct transition taken)
{
    struct node *child = &stack[depth];
    bool is_new;
    struct fingerprint print = fingerprint_of(&child->state, memory->nbytes(&child->state));
    const struct found *found = seen_add(&seen, print, &is_new);
    if (!is_new) {
        struct node *node = &stack[depth - 1];
        if (found->closed)
            node->exits = true;
        else if (found->number < node->low)
            node->low = found->number;
        return false;
    }
    child->print = print;
    child->taken = taken;
    child->next = (struct transition){.thread = taken.thread};
    child->number = child->low = found->number;
    child->moved = child->exits = false;
    open[nopen++] = print;
    depth++;
    return true;
}

static void ascend(void)
{
    struct node *node = &stack[--depth], *parent = depth > 0 ? node - 1 : NULL;
    if (node->low < node->number) {
        if (node->low < parent->low)
            parent->low = node->low;
        parent->exits = parent->exits || node->exits;
        return;
    }
    s = &node->state;
    if (!node->moved)
        violation = model_end();
    else if (!node->exits)
        violation = "from here on threads can only go round in circles";
    struct found *found;
    do {
        found = seen_find(&seen, open[--nopen]);
        found->closed = true;
    } while (found->number != node->number);
    if (parent != NULL)
        parent->exits = true;
    if (violation != NULL)
        depth++; /* so that the way to it is whole */
}

/* The transition after this one, which had n choices. */
static struct transition successor(struct transition from, int n)
{
    if (from.choice + 1 < n)
        from.choice++;
    else if (from.kind + 1 < KINDS)
        from = (struct transition){from.thread, (uint8_t)(from.kind + 1), from.tried, 0};
    else
        from = (struct transition){(uint8_t)((from.thread + 1) % THREADS), STEPS,
                                   (uint8_t)(from.tried + 1), 0};
    return from;
}

static void retrace(struct transition last)
{
    static struct state state;
    const char *found = violation;
    violation = NULL;
    traced = true;
    begin(&state);
    bool alone;
    for (size_t i = 1; i < depth; i++)
        (void)apply(stack[i].taken, &alone);
    if (last.kind != KINDS)
        (void)apply(last, &alone);
    violation = found;
}

struct figures {
    uint64_t transitions;
    size_t depth;
    bool all;
};

static struct figures explore(uint64_t max_states)
{
    struct figures figures = {.all = true};
    begin(&child_node()->state);
    (void)descend((struct transition){0});
    while (depth > 0 && violation == NULL) {
        if (seen.n >= max_states) {
            figures.all = false;
            break;
        }
        struct node *child = child_node(), *node = &stack[depth - 1];
        struct transition taken = node->next;
        if (taken.tried == THREADS) {
            ascend();
            if (violation != NULL)
                retrace((struct transition){.kind = KINDS});
            continue;
        }
        memcpy(&child->state, &node->state, memory->nbytes(&node->state));
        s = &child->state;
        bool alone = false, done = apply(taken, &alone);
        node->next = successor(taken, nchoices);
        if (done && alone)
            node->next.tried = THREADS;
        if (!done)
            continue;
        node->moved = true;
        figures.transitions++;
        if (violation != NULL)
            retrace(taken);
        else if (descend(taken) && depth > figures.depth)
            figures.depth = depth;
    }
    return figures;
}

static const struct memory *memory_named(const char *name)
{
    return strcmp(name, "tso") == 0 ? &tso : strcmp(name, "views") == 0 ? &views : NULL;
}

#define WEAKENING(name) #name,
static const char *const weakenings[] = {"NONE",
#include "weakenings.h"
};
#undef WEAKENING

static const struct configuration *configuration_named(const char *name)
{
    const struct configuration *found = configurations;
    while (found->name != NULL && strcmp(found->name, name) != 0)
        found++;
    return found->name != NULL ? found : NULL;
}

int main(int argc, char **argv)
{
    const int nweakenings = (int)(sizeof weakenings / sizeof weakenings[0]);
    if (argc < 3) {
        for (config = configurations; config->name != NULL; config++)
            printf("configuration %s\n", config->name);
        for (int i = 1; i < nweakenings; i++)
            printf("weakening %s\n", weakenings[i]);
        return 0;
    }
    config = configuration_named(argv[1]);
    memory = memory_named(argv[2]);
    int found = 0;
    while (argc > 3 && found < nweakenings && strcmp(weakenings[found], argv[3]) != 0)
        found++;
    if (config == NULL || memory == NULL || found == nweakenings) {
        fprintf(stderr, "no such configuration, memory or weakening\n");
        return 2;
    }
    planted = (enum weakening)found;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    struct figures figures = explore(argc > 4 ? strtoull(argv[4], NULL, 10) : UINT32_MAX);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    printf("{\"configuration\": \"%s\", \"memory\": \"%s\", \"weakening\": \"%s\", "
           "\"states\": %llu, \"transitions\": %llu, \"depth\": %zu, \"seconds\": %.3f, "
           "\"all\": %s, \"violation\": ",
           config->name, memory->name, weakenings[found], (unsigned long long)seen.n,
           (unsigned long long)figures.transitions, figures.depth, seconds,
           figures.all && violation == NULL ? "true" : "false");
    printf(violation != NULL ? "\"%s\"}\n" : "null}\n", violation);
    return 0;
}
