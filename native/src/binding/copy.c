/*
 * copy_rows: a plane from one buffer into another, without the GIL.
 */
#include "binding.h"

#include "copy.h"

enum fit { FITS, CANNOT, WRONG };

struct extent {
    uintptr_t start;
    uintptr_t end;
};

/* The bytes from the first to the last of a buffer whose rows are packed; a stride may be negative. */
static struct extent extent_of(const Py_buffer *buffer, size_t row_nbytes)
{
    uintptr_t first = (uintptr_t)buffer->buf;
    uintptr_t last = first + (uintptr_t)((buffer->shape[0] - 1) * buffer->strides[0]);
    return (struct extent){first < last ? first : last,
                           (first < last ? last : first) + row_nbytes};
}

static int overlap(const Py_buffer *target, const Py_buffer *source, size_t row_nbytes)
{
    struct extent a = extent_of(target, row_nbytes), b = extent_of(source, row_nbytes);
    return a.start < b.end && b.start < a.end;
}

/* WRONG, with an exception: of different shapes. CANNOT: rows that are not packed, or an overlap. */
static enum fit check(const Py_buffer *target, const Py_buffer *source)
{
    if (target->ndim != source->ndim || target->ndim < 1 ||
        target->itemsize != source->itemsize) {
        PyErr_Format(PyExc_ValueError,
                     "target has %d dimensions of %zd bytes, source %d of %zd; they must agree",
                     target->ndim, target->itemsize, source->ndim, source->itemsize);
        return WRONG;
    }
    Py_ssize_t step = target->itemsize;
    enum fit fit = FITS;
    for (int i = target->ndim - 1; i >= 0; i--) {
        if (target->shape[i] != source->shape[i]) {
            PyErr_Format(PyExc_ValueError, "dimension %d is %zd in the target, %zd in the source",
                         i, target->shape[i], source->shape[i]);
            return WRONG;
        }
        if (i > 0 && target->shape[i] > 1 &&
            (target->strides[i] != step || source->strides[i] != step))
            fit = CANNOT;
        step *= target->shape[i];
    }
    if (fit == FITS && target->len > 0 &&
        overlap(target, source, (size_t)(target->len / target->shape[0])))
        return CANNOT;
    return fit;
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
    enum fit fit = check(&target, &source);
    if (fit == FITS && target.len > 0) {
        size_t rows = (size_t)target.shape[0], row_nbytes = (size_t)target.len / rows;
        Py_BEGIN_ALLOW_THREADS
        mcpd_copy_rows(target.buf, target.strides[0], source.buf, source.strides[0], rows,
                       row_nbytes, non_temporal);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    return fit == WRONG ? NULL : PyBool_FromLong(fit == FITS);
}

static PyMethodDef functions[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "Copies a plane; releases the GIL."},
    {NULL, NULL, 0, NULL},
};

int mcpd_binding_add_copy(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
