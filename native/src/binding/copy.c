/*
 * copy_rows: a plane from one buffer into another, without the GIL.
 */
#include "binding.h"

#include "copy.h"

/* Whether each row's bytes follow one another, and both have the same rows. */
static int check(const Py_buffer *target, const Py_buffer *source)
{
    if (target->ndim != source->ndim || target->ndim < 1 ||
        target->itemsize != source->itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "target has %d dimensions of %zd bytes, source %d of %zd; they must agree",
                     target->ndim, target->itemsize, source->ndim, source->itemsize);
        return -1;
    }
    Py_ssize_t step = target->itemsize;
    for (int i = target->ndim - 1; i >= 0; i--) {
        if (target->shape[i] != source->shape[i]) {
            PyErr_Format(PyExc_ValueError, "dimension %d is %zd in the target, %zd in the source",
                         i, target->shape[i], source->shape[i]);
            return -1;
        }
        if (i > 0 && target->shape[i] > 1 &&
            (target->strides[i] != step || source->strides[i] != step)) {
            PyErr_SetString(PyExc_ValueError, "the bytes of a row must follow one another");
            return -1;
        }
        step *= target->shape[i];
    }
    return 0;
}

static PyObject *copy_rows(PyObject *module, PyObject *args)
{
    PyObject *target_object, *source_object;
    int non_temporal = 0;
    Py_buffer target, source;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO|p:copy_rows", &target_object, &source_object, &non_temporal))
        return NULL;
    if (PyObject_GetBuffer(target_object, &target, PyBUF_STRIDED) != 0)
        return NULL;
    if (PyObject_GetBuffer(source_object, &source, PyBUF_STRIDED_RO) != 0) {
        PyBuffer_Release(&target);
        return NULL;
    }
    int failed = check(&target, &source);
    if (!failed && target.len > 0) {
        size_t rows = (size_t)target.shape[0], row_nbytes = (size_t)target.len / rows;
        Py_BEGIN_ALLOW_THREADS
        mcpd_copy_rows(target.buf, target.strides[0], source.buf, source.strides[0], rows,
                       row_nbytes, non_temporal);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "Copies a plane; releases the GIL."},
    {NULL, NULL, 0, NULL},
};

int mcpd_binding_add_copy(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
