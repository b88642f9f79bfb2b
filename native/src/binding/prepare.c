/* mcpd.native._core.Preparation: prepare/ as Python sees it. */
#include "binding.h"

#include <string.h>

#include "prepare/prepare.h"

typedef struct {
    PyObject_HEAD
    struct mcpd_prepare_plan *plan;
} Preparation;

/* The index of `text` among names, or -1 with ValueError naming the argument and what it may be. */
static int choice(const char *argument, const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0)
            return i;
    }
    if (names[2])
        PyErr_Format(PyExc_ValueError, "%s is '%s', not '%s', '%s' or '%s'", argument, text,
                     names[0], names[1], names[2]);
    else
        PyErr_Format(PyExc_ValueError, "%s is '%s', not '%s' or '%s'", argument, text, names[0],
                     names[1]);
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

static PyObject *preparation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const layouts[] = {"nchw", "nhwc", NULL};
    static const char *const dtypes[] = {"float32", "float16", "uint8", NULL};
    static const char *const channel_orders[] = {"rgb", "bgr", "gray", NULL};
    static const char *const resizes[] = {"stretch", "letterbox", "crop", NULL};
    static const char *const samplings[] = {"half_pixel", "corner", NULL};
    static char *names[] = {"format", "width", "height", "plane_offsets", "plane_strides",
                            "matrix", "range", "out_width", "out_height", "layout", "dtype",
                            "channels", "resize", "sampling", "scale", "mean", "std", "pad_value",
                            NULL};
    struct mcpd_prepare_spec spec = {0};
    PyObject *offsets, *strides, *mean, *std;
    const char *layout, *dtype, *channels, *resize, *sampling;
    int chosen[5];
    uint32_t nstrides, nchannels;
    char why[200] = "";
    Preparation *self;
    allocfunc allocate;
    int failed;

    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$O&O&O&O!O!O&O&O&O&sssssdO!O!d:Preparation", names, mcpd_binding_u32,
            &spec.format, mcpd_binding_u32, &spec.width, mcpd_binding_u32, &spec.height,
            &PyTuple_Type, &offsets, &PyTuple_Type, &strides, mcpd_binding_u32, &spec.matrix,
            mcpd_binding_u32, &spec.range, mcpd_binding_u32, &spec.out_width, mcpd_binding_u32,
            &spec.out_height, &layout, &dtype, &channels, &resize, &sampling, &spec.scale,
            &PyTuple_Type, &mean, &PyTuple_Type, &std, &spec.pad_value))
        return NULL;
    if ((chosen[0] = choice("layout", layout, layouts)) < 0 ||
        (chosen[1] = choice("dtype", dtype, dtypes)) < 0 ||
        (chosen[2] = choice("channels", channels, channel_orders)) < 0 ||
        (chosen[3] = choice("resize", resize, resizes)) < 0 ||
        (chosen[4] = choice("sampling", sampling, samplings)) < 0)
        return NULL;
    spec.layout = (enum mcpd_prepare_layout)chosen[0];
    spec.dtype = (enum mcpd_prepare_dtype)chosen[1];
    spec.channels = (enum mcpd_prepare_channels)chosen[2];
    spec.resize = (enum mcpd_prepare_resize)chosen[3];
    spec.sampling = (enum mcpd_prepare_sampling)chosen[4];
    nchannels = spec.channels == MCPD_OUT_GRAY ? 1 : 3;
    if (read_integers("plane_offsets", offsets, spec.plane_offset, &spec.nplanes) ||
        read_integers("plane_strides", strides, spec.plane_stride, &nstrides) ||
        read_floats("mean", mean, nchannels, spec.mean) ||
        read_floats("std", std, nchannels, spec.std))
        return NULL;
    if (nstrides != spec.nplanes)
        return PyErr_Format(PyExc_ValueError, "%u plane strides for %u plane offsets", nstrides,
                            spec.nplanes);
    allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    self = (Preparation *)allocate(type, 0);
    if (!self)
        return NULL;
    failed = mcpd_prepare_plan_create(&spec, &self->plan, why, sizeof(why));
    if (failed) {
        Py_DECREF(self);
        if (failed == -ENOMEM)
            return PyErr_NoMemory();
        PyErr_SetString(PyExc_ValueError, why);
        return NULL;
    }
    return (PyObject *)self;
}

static void preparation_dealloc(Preparation *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    mcpd_prepare_plan_free(self->plan);
    release(self);
    Py_DECREF(type);
}

/* Checks both buffers against the plan; the address of the image in `out`, or NULL with ValueError. */
static void *check_buffers(const struct mcpd_prepare_plan *plan, const Py_buffer *source,
                           const Py_buffer *out, Py_ssize_t index)
{
    size_t images = (size_t)out->len / plan->image_nbytes;

    if ((size_t)source->len < plan->source_nbytes) {
        PyErr_Format(PyExc_ValueError, "the source has %zd bytes, its geometry needs %zu",
                     source->len, plan->source_nbytes);
        return NULL;
    }
    if (index < 0 || (size_t)index >= images) {
        PyErr_Format(PyExc_ValueError,
                     "image %zd does not fit: out has %zd bytes, room for %zu images of %zu bytes",
                     index, out->len, images, plan->image_nbytes);
        return NULL;
    }
    if ((uintptr_t)out->buf % plan->value_nbytes != 0) {
        PyErr_Format(PyExc_ValueError, "out is not aligned to its values of %zu bytes",
                     plan->value_nbytes);
        return NULL;
    }
    return (char *)out->buf + (size_t)index * plan->image_nbytes;
}

static PyObject *preparation_run(Preparation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "out", "index", NULL};
    Py_buffer source = {0}, out = {0};
    Py_ssize_t index = 0;
    void *image;
    int failed = -EINVAL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*w*|n:run", names, &source, &out, &index))
        return NULL;
    image = check_buffers(self->plan, &source, &out, index);
    if (image) {
        Py_BEGIN_ALLOW_THREADS
        failed = mcpd_prepare_run(self->plan, source.buf, image);
        Py_END_ALLOW_THREADS
        if (failed == -ENOMEM)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&out);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *preparation_out_nbytes(Preparation *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->plan->image_nbytes);
}

static PyObject *preparation_isa(Preparation *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(mcpd_prepare_plan_isa(self->plan));
}

static PyObject *preparation_transform(Preparation *self, void *closure)
{
    const double *t = self->plan->transform;

    (void)closure;
    return Py_BuildValue("(dddd)", t[0], t[1], t[2], t[3]);
}

static PyMethodDef preparation_methods[] = {
    {"run", (PyCFunction)(void (*)(void))preparation_run, METH_VARARGS | METH_KEYWORDS,
     "Writes image `index` of the batch tensor `out`; releases the GIL."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef preparation_getters[] = {
    {"out_nbytes", (getter)preparation_out_nbytes, NULL, "Bytes of one image.", NULL},
    {"isa", (getter)preparation_isa, NULL, "The instruction set that runs it: avx2 or scalar.", NULL},
    {"transform", (getter)preparation_transform, NULL,
     "(ax, bx, ay, by): source pixel x = ax * output pixel x + bx, continuous.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot preparation_slots[] = {
    {Py_tp_doc, "Turns a frame into model input in one pass, with no intermediate image."},
    {Py_tp_new, preparation_new},
    {Py_tp_dealloc, preparation_dealloc},
    {Py_tp_methods, preparation_methods},
    {Py_tp_getset, preparation_getters},
    {0, NULL},
};

static PyType_Spec preparation_spec = {
    .name = "mcpd.native._core.Preparation",
    .basicsize = sizeof(Preparation),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = preparation_slots,
};

int mcpd_binding_add_prepare(PyObject *module)
{
    PyTypeObject *type = mcpd_binding_add_type(module, &preparation_spec);

    if (!type)
        return -1;
    Py_DECREF(type);
    return 0;
}
