/*
 * What the files of the Python binding share. This folder alone includes Python.h; everything is
 * built under the limited API of Python 3.11. All state hangs off the module: there are no globals.
 */
#ifndef MCPD_BINDING_H
#define MCPD_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdint.h>

struct mcpd_module_state {
    PyObject *stream_ended;
    PyTypeObject *write_slot;
    PyTypeObject *pinned_slot;
    PyTypeObject *frame;
    PyTypeObject *slot;
};

/* Each adds its types to the module. 0, or -1 with an exception set. */
int mcpd_binding_add_control(PyObject *module);
int mcpd_binding_add_group_control(PyObject *module);
int mcpd_binding_add_writer(PyObject *module);
int mcpd_binding_add_reader(PyObject *module);
int mcpd_binding_add_prepare(PyObject *module);
int mcpd_binding_add_copy(PyObject *module);

/* Makes a type of the module, adds it, and returns a new reference to it. */
PyTypeObject *mcpd_binding_add_type(PyObject *module, PyType_Spec *spec);
/* The state of the module that defines the object's type; not of a Frame or Slot: they are subclassed. */
struct mcpd_module_state *mcpd_binding_state(PyObject *self);

/* Converters for "O&": integers in range, or OverflowError / TypeError. */
int mcpd_binding_u64(PyObject *object, void *out);
int mcpd_binding_u32(PyObject *object, void *out);
int mcpd_binding_i64(PyObject *object, void *out);

/*
 * Reads the only argument of `next` and `acquire`: seconds, or None for ever, as nanoseconds (-1
 * for ever). 0, or -1 with an exception set.
 */
int mcpd_binding_timeout(const char *function, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames, int64_t *timeout_ns);

/* Sets OSError(error, "what: reason"), or what Python calls that errno. error > 0. Returns NULL. */
PyObject *mcpd_binding_oserror(int error, const char *what);

/* 0, or -1 and TypeError when one of the NULL-ended names is not in kwargs. */
int mcpd_binding_require(const char *function, PyObject *kwargs, const char *const *names);

struct mcpd_wctl;
struct mcpd_rctl;
PyObject *mcpd_binding_writer_stats(const struct mcpd_wctl *wctl);
PyObject *mcpd_binding_reader_stats(const struct mcpd_rctl *rctl);

#endif
