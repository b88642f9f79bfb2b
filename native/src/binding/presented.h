/*
 * How a reader or writer presents its slots to Python: as instances of a subclass of Frame or Slot.
 */
#ifndef MCPD_BINDING_PRESENTED_H
#define MCPD_BINDING_PRESENTED_H

#include "binding.h"

struct mcpd_py_presentation {
    PyTypeObject *type; /* NULL: the bare core is handed out */
    PyObject *grant;
    PyObject *description; /* what every slot holds, or None */
};

/* 0, or -1 and TypeError when `type` does not derive from `base`. */
int mcpd_py_presentation_set(struct mcpd_py_presentation *self, PyTypeObject *base, PyObject *type,
                             PyObject *grant, PyObject *description);
void mcpd_py_presentation_clear(struct mcpd_py_presentation *self);
/* What is handed out for a core; takes the reference to it. NULL gives NULL. */
PyObject *mcpd_py_present(const struct mcpd_py_presentation *how, PyObject *core);
int mcpd_binding_add_presented(PyObject *module);

#endif
