/*
 * Arguments from Python and errors to Python.
 */
#include <math.h>
#include <string.h>

#include "binding.h"

int mcpd_binding_u64(PyObject *object, void *out)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL)
        return 0;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return 0;
    *(uint64_t *)out = value;
    return 1;
}

int mcpd_binding_u32(PyObject *object, void *out)
{
    uint64_t value;
    if (!mcpd_binding_u64(object, &value))
        return 0;
    if (value > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%llu does not fit in 32 bits",
                     (unsigned long long)value);
        return 0;
    }
    *(uint32_t *)out = (uint32_t)value;
    return 1;
}

int mcpd_binding_i64(PyObject *object, void *out)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL)
        return 0;
    long long value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (value == -1 && PyErr_Occurred())
        return 0;
    *(int64_t *)out = value;
    return 1;
}

static int one_argument(const char *function, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames, PyObject **out)
{
    Py_ssize_t nkeywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
    *out = NULL;
    if (nargs + nkeywords > 1) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most 1 argument", function);
        return -1;
    }
    if (nkeywords == 1 &&
        PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, 0), "timeout_s") != 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
                     PyTuple_GetItem(kwnames, 0));
        return -1;
    }
    if (nargs + nkeywords == 1)
        *out = args[0];
    return 0;
}

int mcpd_binding_timeout(const char *function, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames, int64_t *timeout_ns)
{
    PyObject *argument;
    if (one_argument(function, args, nargs, kwnames, &argument) != 0)
        return -1;
    *timeout_ns = -1;
    if (argument == NULL || argument == Py_None)
        return 0;
    double timeout_s = PyFloat_AsDouble(argument);
    if (timeout_s == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(timeout_s) || timeout_s < 0) {
        PyErr_Format(PyExc_ValueError, "%s(): timeout_s is %R; it must be 0 or more, or None",
                     function, argument);
        return -1;
    }
    *timeout_ns = timeout_s < 9e9 ? (int64_t)(timeout_s * 1e9) : -1; /* 285 years are for ever */
    return 0;
}

/* PyArg_ParseTupleAndKeywords knows no required keywords beside optional ones. */
int mcpd_binding_require(const char *function, PyObject *kwargs, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (kwargs == NULL || PyDict_GetItemString(kwargs, *names) == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses the keyword argument '%s'", function,
                         *names);
            return -1;
        }
    }
    return 0;
}

PyObject *mcpd_binding_oserror(int error, const char *what)
{
    const char *reason = strerror(error);
    switch (error) {
    case EBADMSG:
        reason = "the control object is inconsistent, its writer does not follow the protocol";
        break;
    case ECHILD:
        reason = "it was opened before this process was forked; open it again here";
        break;
    case EPROTONOSUPPORT:
        reason = "the control object is not one of this version of the shared-memory layout";
        break;
    }
    PyObject *message = PyUnicode_FromFormat("%s: %s", what, reason);
    if (message == NULL)
        return NULL;
    PyObject *exception = PyObject_CallFunction(PyExc_OSError, "iO", error, message);
    Py_DECREF(message);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}
