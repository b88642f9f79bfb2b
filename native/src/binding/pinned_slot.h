/*
 * A Python reader and its pinned slots, as their two files see each other.
 */
#ifndef MCPD_BINDING_PINNED_SLOT_H
#define MCPD_BINDING_PINNED_SLOT_H

#include "binding.h"

#include "mcpd.h"
#include "presented.h"

struct mcpd_py_reader {
    PyObject_HEAD
    mcpd_reader *reader; /* NULL once it is closed and unused */
    Py_ssize_t users;
    int closed;
    uint32_t max_pins;
    PyObject *description; /* bytes of the description seen last, or NULL */
    struct mcpd_py_presentation presentation;
};

/* While used the C handle stays. Both need the GIL. */
void mcpd_py_reader_use(struct mcpd_py_reader *self);
void mcpd_py_reader_unuse(struct mcpd_py_reader *self);

/* The object of a pinned frame, as it is presented; on failure the pin is given back. */
PyObject *mcpd_py_pinned_slot_new(struct mcpd_py_reader *reader, uint32_t pin,
                                  const struct mcpd_meta *meta);
/* Unpins once no view is left. Idempotent. */
void mcpd_py_pinned_slot_close(PyObject *pinned_slot);
/* Whether memory under what its reader reads was lost; as it was when the slot was unpinned. */
int mcpd_py_pinned_slot_lost(PyObject *pinned_slot);
/* And it was read. */
int mcpd_py_pinned_slot_read_in_vain(PyObject *pinned_slot);
int mcpd_binding_add_pinned_slot(PyObject *module);

#endif
