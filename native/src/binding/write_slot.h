/*
 * A Python writer and its slots, as their two files see each other.
 */
#ifndef MCPD_BINDING_WRITE_SLOT_H
#define MCPD_BINDING_WRITE_SLOT_H

#include "binding.h"

#include "mcpd.h"

struct mcpd_py_writer {
    PyObject_HEAD
    mcpd_writer *writer; /* NULL once it is closed and unused */
    Py_ssize_t users;
    int closed;
    uint32_t holds;
    uint64_t slot_nbytes;
};

/* While used the C handle stays. Both need the GIL. */
void mcpd_py_writer_use(struct mcpd_py_writer *self);
void mcpd_py_writer_unuse(struct mcpd_py_writer *self);
/* Sets the Python exception for a negative errno of the writer. Returns NULL. */
PyObject *mcpd_py_writer_error(struct mcpd_py_writer *self, int error, const char *what);

/* The object of an acquired slot; on failure the slot is abandoned. */
PyObject *mcpd_py_write_slot_new(struct mcpd_py_writer *writer, uint32_t index);
int mcpd_binding_add_write_slot(PyObject *module);

#endif
