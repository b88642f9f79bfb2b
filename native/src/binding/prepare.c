/* mcpd.native._core.Preparation: prepare/ as Python sees it. */
#include "binding.h"

#include "prepare_spec.h"

typedef struct {
    PyObject_HEAD
    struct mcpd_prepare_plan *plan;
} Preparation;

static PyObject *preparation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct mcpd_prepare_spec spec = {0};
    char why[300] = "";
    Preparation *self;
    allocfunc allocate;
    int failed;

    if (mcpd_binding_read_spec(args, kwargs, &spec))
        return NULL;
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

/* One image of a batch checked against its plan; fills the job. 0, or -1 with ValueError. */
static int place_image(struct mcpd_prepare_job *job, const Py_buffer *source, const Py_buffer *out,
                       Py_ssize_t index)
{
    const struct mcpd_prepare_plan *plan = job->plan;
    size_t images = (size_t)out->len / plan->image_nbytes;

    if ((size_t)source->len < plan->source_nbytes) {
        PyErr_Format(PyExc_ValueError, "the source has %zd bytes, its geometry needs %zu",
                     source->len, plan->source_nbytes);
        return -1;
    }
    if (index < 0 || (size_t)index >= images) {
        PyErr_Format(PyExc_ValueError,
                     "image %zd does not fit: out has %zd bytes, room for %zu images of %zu bytes",
                     index, out->len, images, plan->image_nbytes);
        return -1;
    }
    if ((uintptr_t)out->buf % plan->value_nbytes != 0) {
        PyErr_Format(PyExc_ValueError, "out is not aligned to its values of %zu bytes",
                     plan->value_nbytes);
        return -1;
    }
    job->source = source->buf;
    job->out = (char *)out->buf + (size_t)index * plan->image_nbytes;
    return 0;
}

static int check_threads(int threads)
{
    if (threads >= 1 && threads <= (int)MCPD_PREPARE_MAX_THREADS)
        return 0;
    PyErr_Format(PyExc_ValueError, "threads is %d, not 1 to %u", threads, MCPD_PREPARE_MAX_THREADS);
    return -1;
}

/* Without the GIL. 0, or -1 with MemoryError. */
static int run_jobs(const struct mcpd_prepare_job *jobs, Py_ssize_t n, int threads)
{
    int failed;

    Py_BEGIN_ALLOW_THREADS
    failed = mcpd_prepare_run_batch(jobs, (size_t)n, (unsigned)threads);
    Py_END_ALLOW_THREADS
    if (failed)
        PyErr_NoMemory();
    return failed ? -1 : 0;
}

static PyObject *preparation_run(Preparation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", "out", "index", "threads", "padded", NULL};
    struct mcpd_prepare_job job = {.plan = self->plan};
    Py_buffer source = {0}, out = {0};
    Py_ssize_t index = 0;
    int threads = 1, failed;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*w*|n$ip:run", names, &source, &out, &index,
                                     &threads, &job.padded))
        return NULL;
    failed = check_threads(threads) || place_image(&job, &source, &out, index) ||
             run_jobs(&job, 1, threads);
    PyBuffer_Release(&source);
    PyBuffer_Release(&out);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* The frames of a batch: what each is made by and from, held while it runs. */
struct frames {
    Py_ssize_t n;
    Py_buffer *sources; /* the first `held` are to be released */
    Py_ssize_t held;
    Py_ssize_t *indices;
    struct mcpd_prepare_job *jobs;
};

static int read_frames(PyTypeObject *type, PyObject *list, struct frames *frames)
{
    size_t n;

    frames->n = PySequence_Size(list);
    if (frames->n < 0)
        return -1;
    n = (size_t)frames->n + 1; /* none is no error */
    frames->sources = PyMem_Calloc(n, sizeof(*frames->sources));
    frames->indices = PyMem_Calloc(n, sizeof(*frames->indices));
    frames->jobs = PyMem_Calloc(n, sizeof(*frames->jobs));
    if (!frames->sources || !frames->indices || !frames->jobs) {
        PyErr_NoMemory();
        return -1;
    }
    for (; frames->held < frames->n; frames->held++) {
        Py_ssize_t i = frames->held;
        PyObject *item = PyTuple_GetItem(list, i), *plan;

        if (!item || !PyTuple_Check(item) || PyTuple_Size(item) != 3) {
            PyErr_Format(PyExc_ValueError, "frame %zd is not (Preparation, source, index)", i);
            return -1;
        }
        plan = PyTuple_GetItem(item, 0);
        if (!PyObject_TypeCheck(plan, type)) {
            PyErr_Format(PyExc_TypeError, "frame %zd has no Preparation", i);
            return -1;
        }
        frames->jobs[i].plan = ((Preparation *)plan)->plan;
        frames->indices[i] = PyLong_AsSsize_t(PyTuple_GetItem(item, 2));
        if (frames->indices[i] == -1 && PyErr_Occurred())
            return -1;
        if (PyObject_GetBuffer(PyTuple_GetItem(item, 1), &frames->sources[i], PyBUF_SIMPLE))
            return -1;
    }
    return 0;
}

static void release_frames(struct frames *frames)
{
    for (Py_ssize_t i = 0; i < frames->held; i++)
        PyBuffer_Release(&frames->sources[i]);
    PyMem_Free(frames->sources);
    PyMem_Free(frames->indices);
    PyMem_Free(frames->jobs);
}

/* Images of one size, each with a place of its own. */
static int place_images(struct frames *frames, const Py_buffer *out)
{
    for (Py_ssize_t i = 0; i < frames->n; i++) {
        const struct mcpd_prepare_plan *plan = frames->jobs[i].plan, *first = frames->jobs[0].plan;

        if (plan->image_nbytes != first->image_nbytes || plan->out_width != first->out_width ||
            plan->nchannels != first->nchannels || plan->dtype != first->dtype ||
            plan->layout != first->layout) {
            PyErr_Format(PyExc_ValueError, "frame %zd is prepared to another shape or dtype than frame 0",
                         i);
            return -1;
        }
        for (Py_ssize_t before = 0; before < i; before++) {
            if (frames->indices[before] == frames->indices[i]) {
                PyErr_Format(PyExc_ValueError, "frames %zd and %zd are both image %zd", before, i,
                             frames->indices[i]);
                return -1;
            }
        }
        if (place_image(&frames->jobs[i], &frames->sources[i], out, frames->indices[i]))
            return -1;
    }
    return 0;
}

static PyObject *preparation_run_batch(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"frames", "out", "threads", "padded", NULL};
    struct frames frames = {0};
    PyObject *list, *given;
    Py_buffer out = {0};
    int threads = 1, padded = 0, failed;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ow*|$ip:run_batch", names, &given, &out,
                                     &threads, &padded))
        return NULL;
    list = PySequence_Tuple(given); /* held, and with it what is in it */
    failed = !list || check_threads(threads) ||
             read_frames((PyTypeObject *)type, list, &frames) || place_images(&frames, &out);
    for (Py_ssize_t i = 0; !failed && i < frames.n; i++)
        frames.jobs[i].padded = padded;
    failed = failed || run_jobs(frames.jobs, frames.n, threads);
    release_frames(&frames);
    PyBuffer_Release(&out);
    Py_XDECREF(list);
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
    const double *a = self->plan->affine;

    (void)closure;
    if (self->plan->turned) {
        PyErr_SetString(PyExc_ValueError,
                        "a frame turned by 90 or 270 degrees has no (ax, bx, ay, by): use affine");
        return NULL;
    }
    return Py_BuildValue("(dddd)", a[0], a[2], a[4], a[5]);
}

static PyObject *preparation_affine(Preparation *self, void *closure)
{
    const double *a = self->plan->affine;

    (void)closure;
    return Py_BuildValue("(dddddd)", a[0], a[1], a[2], a[3], a[4], a[5]);
}

static PyMethodDef preparation_methods[] = {
    {"run", (PyCFunction)(void (*)(void))preparation_run, METH_VARARGS | METH_KEYWORDS,
     "Writes image `index` of the batch tensor `out`; releases the GIL."},
    {"run_batch", (PyCFunction)(void (*)(void))preparation_run_batch,
     METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "Writes images of the batch tensor `out`; releases the GIL."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef preparation_getters[] = {
    {"out_nbytes", (getter)preparation_out_nbytes, NULL, "Bytes of one image.", NULL},
    {"isa", (getter)preparation_isa, NULL, "The instruction set that runs it: avx2 or scalar.", NULL},
    {"transform", (getter)preparation_transform, NULL,
     "(ax, bx, ay, by): source pixel x = ax * output pixel x + bx, continuous.", NULL},
    {"affine", (getter)preparation_affine, NULL,
     "(a, b, c, d, e, f): source x = a*x + b*y + c, y = d*x + e*y + f of an output pixel.", NULL},
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
