/*
 * A Python writer and its slots, as their two files see each other.
 */
#ifndef MCPD_BINDING_WRITE_SLOT_H
#define MCPD_BINDING_WRITE_SLOT_H

#include "binding.h"

#include "mcpd.h"
#include "presented.h"

struct mcpd_py_writer {
    PyObject_HEAD
    mcpd_writer *writer; /* NULL once it is closed and unused */
    Py_ssize_t users;
    int closed;
    uint32_t holds;
    uint64_t slot_nbytes;
    struct mcpd_py_presentation presentation;
    PyObject *packed; /* bytes of every slot's description, or NULL */
    uint64_t nbytes;  /* and the payload bytes in use that go with it, */
    uint32_t flags;   /* and the flags */
};

/* While used the C handle stays. Both need the GIL. */
void mcpd_py_writer_use(struct mcpd_py_writer *self);
void mcpd_py_writer_unuse(struct mcpd_py_writer *self);
/* Sets the Python exception for a negative errno of the writer. Returns NULL. */
PyObject *mcpd_py_writer_error(struct mcpd_py_writer *self, int error, const char *what);

/* The object of an acquired slot, as it is presented; on failure the slot is abandoned. */
PyObject *mcpd_py_write_slot_new(struct mcpd_py_writer *writer, uint32_t index);
/* As the methods of that name. */
PyObject *mcpd_py_write_slot_publish(PyObject *write_slot);
void mcpd_py_write_slot_abandon(PyObject *write_slot);
int mcpd_py_write_slot_published(PyObject *write_slot);
/* 0, or -1 and ValueError: these bytes are no description. */
int mcpd_py_description_check(const void *bytes, Py_ssize_t nbytes);
int mcpd_binding_add_write_slot(PyObject *module);

#endif
