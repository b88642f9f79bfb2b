/*
 * The daemon's mapping of a control object, as the files of its three kinds see it.
 */
#ifndef MCPD_BINDING_CONTROL_H
#define MCPD_BINDING_CONTROL_H

#include "binding.h"

#include <sys/types.h>

#include "stream.h"

struct mcpd_py_control {
    PyObject_HEAD
    struct mcpd_map map;
    pid_t owner;    /* a forked child does not have the mapping */
    uint32_t count; /* nslots of a writer's or group's control, max_pins of a reader's */
};

/* whole_nbytes: what the object must have; head_nbytes: what is mapped of it, 0 for all. */
PyObject *mcpd_py_control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs, char **names,
                              int64_t (*whole_nbytes)(uint32_t), size_t head_nbytes);
/* The mapping, or NULL with an exception set. */
void *mcpd_py_control_mapped(PyObject *self);
PyObject *mcpd_py_control_close(PyObject *self, PyObject *unused);
void mcpd_py_control_dealloc(PyObject *self);

#endif
