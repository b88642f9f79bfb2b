/* The arguments of mcpd.native._core.Preparation. */
#ifndef MCPD_BINDING_PREPARE_SPEC_H
#define MCPD_BINDING_PREPARE_SPEC_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "prepare/prepare.h"

/* Fills a spec that is all 0. 0, or -1 with TypeError or ValueError, which name the argument. */
int mcpd_binding_read_spec(PyObject *args, PyObject *kwargs, struct mcpd_prepare_spec *spec);

#endif
