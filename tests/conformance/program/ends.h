/*
 * Both ends of a stream as the conformance program drives them, whoever implements them. Types are
 * the second implementation's; results are 0, a count or a negative errno as in mcpd.h.
 */
#ifndef ENDS_H
#define ENDS_H

#include "second.h"

struct ends {
    const char *name;
    int (*writer_open)(const struct geometry *g, int control, int payload, int wake,
                       uint32_t history, uint32_t holds, void **out);
    void (*writer_close)(void *w);
    int64_t (*add_group)(void *w, int control, const struct terms *terms);
    int (*remove_group)(void *w, uint64_t group);
    int64_t (*add_reader)(void *w, uint64_t id, int control, int wake, const struct terms *terms);
    int (*release_reader)(void *w, uint64_t id);
    int (*remove_reader)(void *w, uint64_t id);
    int (*acquire)(void *w, int64_t timeout_ns);
    void *(*writer_slot)(void *w, uint32_t slot);
    void *(*writer_description)(void *w, uint32_t slot);
    int64_t (*publish)(void *w, uint32_t slot, const struct meta *meta, bool hold);
    int (*abandon)(void *w, uint32_t slot);
    int (*release)(void *w, uint32_t slot);
    int (*arm_writer)(void *w);
    int (*disarm_writer)(void *w);
    int (*end)(void *w, uint32_t reason);

    int (*reader_open)(const struct geometry *g, const struct reader_objects *objects,
                       const struct terms *terms, uint64_t start_seq,
                       const struct thinning *thinning, void **out);
    void (*reader_close)(void *r);
    int (*next)(void *r, int64_t timeout_ns, struct meta *meta);
    int (*recent)(void *r, uint32_t count, uint32_t *pins, struct meta *metas);
    const void *(*reader_slot)(void *r, uint32_t pin);
    const void *(*reader_description)(void *r, uint32_t pin);
    int (*unpin)(void *r, uint32_t pin);
    int (*give_back)(void *r, uint32_t pin);
    int (*arm)(void *r);
    int (*disarm)(void *r);
    int (*ended)(void *r);
};

extern const struct ends second_ends, our_ends;

#endif
