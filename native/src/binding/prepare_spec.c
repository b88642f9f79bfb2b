/* The arguments of mcpd.native._core.Preparation, as prepare.h takes them. */
#include "prepare_spec.h"

#include <stdio.h>
#include <string.h>

#include "binding.h"

/* The index of `text` among names, or -1 with ValueError naming the argument and what it may be. */
static int choice(const char *argument, const char *text, const char *const *names)
{
    char allowed[100] = "";
    size_t n = 0;

    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0)
            return i;
        n += (size_t)snprintf(allowed + n, sizeof(allowed) - n, "%s'%s'",
                              i == 0 ? "" : names[i + 1] ? ", " : " or ", names[i]);
    }
    PyErr_Format(PyExc_ValueError, "%s is '%s', not %s", argument, text, allowed);
    return -1;
}

static int read_integers(const char *argument, PyObject *tuple, uint64_t out[4], uint32_t *count)
{
    Py_ssize_t n = PyTuple_Size(tuple);

    if (n < 1 || n > 4) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s has %zd values, not 1 to 4", argument, n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, i));
        if (PyErr_Occurred())
            return -1;
    }
    *count = (uint32_t)n;
    return 0;
}

/* One value for each of `count` output channels; one value alone goes for all of them. */
static int read_floats(const char *argument, PyObject *tuple, uint32_t count, double out[3])
{
    Py_ssize_t n = PyTuple_Size(tuple);

    if (n < 0)
        return -1;
    if (n != 1 && n != (Py_ssize_t)count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd values, not 1 or %u, one for each channel",
                     argument, n, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        out[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i < n ? i : n - 1));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* A rectangle of the frame, or None: the whole. */
static int read_roi(PyObject *roi, double out[4])
{
    if (roi == Py_None)
        return 0;
    if (!PyTuple_Check(roi) || PyTuple_Size(roi) != 4) {
        PyErr_SetString(PyExc_ValueError, "roi is not None or a tuple (x, y, width, height)");
        return -1;
    }
    for (Py_ssize_t i = 0; i < 4; i++) {
        out[i] = PyFloat_AsDouble(PyTuple_GetItem(roi, i));
        if (PyErr_Occurred())
            return -1;
    }
    if (out[2] == 0.0 || out[3] == 0.0) { /* in C, all 0 is the whole frame */
        PyErr_SetString(PyExc_ValueError, "roi has no width or no height");
        return -1;
    }
    return 0;
}

int mcpd_binding_read_spec(PyObject *args, PyObject *kwargs, struct mcpd_prepare_spec *spec)
{
    static const char *const layouts[] = {"nchw", "nhwc", NULL};
    static const char *const dtypes[] = {"float32", "float16", "uint8", "int8", NULL};
    static const char *const channel_orders[] = {"rgb", "bgr", "gray", NULL};
    static const char *const resizes[] = {"stretch", "letterbox", "crop", NULL};
    static const char *const samplings[] = {"half_pixel", "corner", "area", NULL};
    static char *names[] = {"format", "width", "height", "plane_offsets", "plane_strides",
                            "matrix", "range", "out_width", "out_height", "layout", "dtype",
                            "channels", "resize", "sampling", "scale", "mean", "std", "pad_value",
                            "roi", "rotation", "quant_scale", "zero_point", NULL};
    PyObject *offsets, *strides, *mean, *std, *roi = Py_None;
    const char *layout, *dtype, *channels, *resize, *sampling;
    int chosen[5];
    uint32_t nstrides, nchannels;

    if (PyTuple_Size(args) != 0) {
        PyErr_SetString(PyExc_TypeError, "Preparation() takes keyword arguments alone");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O&O&O&O!O!O&O&O&O&sssssdO!O!d|$OO&di:Preparation", names, mcpd_binding_u32,
            &spec->format, mcpd_binding_u32, &spec->width, mcpd_binding_u32, &spec->height,
            &PyTuple_Type, &offsets, &PyTuple_Type, &strides, mcpd_binding_u32, &spec->matrix,
            mcpd_binding_u32, &spec->range, mcpd_binding_u32, &spec->out_width, mcpd_binding_u32,
            &spec->out_height, &layout, &dtype, &channels, &resize, &sampling, &spec->scale,
            &PyTuple_Type, &mean, &PyTuple_Type, &std, &spec->pad_value,
            &roi, mcpd_binding_u32, &spec->rotation, &spec->quant_scale, &spec->zero_point))
        return -1;
    if ((chosen[0] = choice("layout", layout, layouts)) < 0 ||
        (chosen[1] = choice("dtype", dtype, dtypes)) < 0 ||
        (chosen[2] = choice("channels", channels, channel_orders)) < 0 ||
        (chosen[3] = choice("resize", resize, resizes)) < 0 ||
        (chosen[4] = choice("sampling", sampling, samplings)) < 0)
        return -1;
    spec->layout = (enum mcpd_prepare_layout)chosen[0];
    spec->dtype = (enum mcpd_prepare_dtype)chosen[1];
    spec->channels = (enum mcpd_prepare_channels)chosen[2];
    spec->resize = (enum mcpd_prepare_resize)chosen[3];
    spec->sampling = (enum mcpd_prepare_sampling)chosen[4];
    nchannels = spec->channels == MCPD_OUT_GRAY ? 1 : 3;
    if (read_integers("plane_offsets", offsets, spec->plane_offset, &spec->nplanes) ||
        read_integers("plane_strides", strides, spec->plane_stride, &nstrides) ||
        read_floats("mean", mean, nchannels, spec->mean) ||
        read_floats("std", std, nchannels, spec->std) || read_roi(roi, spec->roi))
        return -1;
    if (nstrides != spec->nplanes) {
        PyErr_Format(PyExc_ValueError, "%u plane strides for %u plane offsets", nstrides,
                     spec->nplanes);
        return -1;
    }
    return 0;
}
