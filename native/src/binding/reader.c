/*
 * Reader: a stream's reading end. Its pinned slots are in pinned_slot.c.
 *
 * The C handle lives until close() was called and nobody uses it: slots that are pinned and calls
 * that run without the GIL count in `users`, which the GIL protects.
 */
#include "binding.h"

#include "mcpd.h"
#include "pinned_slot.h"
#include "stream.h"

static void detach(struct mcpd_py_reader *self)
{
    if (self->closed && self->users == 0 && self->reader != NULL) {
        mcpd_reader_close(self->reader);
        self->reader = NULL;
    }
}

void mcpd_py_reader_use(struct mcpd_py_reader *self)
{
    self->users++;
}

void mcpd_py_reader_unuse(struct mcpd_py_reader *self)
{
    self->users--;
    detach(self);
}

/* The handle, or NULL and ValueError when it is closed. */
static mcpd_reader *opened(PyObject *object)
{
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    if (!self->closed)
        return self->reader;
    PyErr_SetString(PyExc_ValueError, "the reader is closed");
    return NULL;
}

static PyObject *fail(struct mcpd_py_reader *self, int error)
{
    if (error == -EBUSY)
        return PyErr_Format(PyExc_BufferError,
                            "all %u pins are in use; close a frame and drop its views first",
                            (unsigned int)self->max_pins);
    if (error == -ECANCELED)
        return PyErr_Format(PyExc_ValueError, "the reader is closed");
    if (error != -EPIPE)
        return mcpd_binding_oserror(-error, "cannot read the next frame");
    PyObject *reason = PyLong_FromLong(mcpd_reader_ended(self->reader));
    if (reason != NULL) {
        PyErr_SetObject(mcpd_binding_state((PyObject *)self)->stream_ended, reason);
        Py_DECREF(reason);
    }
    return NULL;
}

/* What the constructor is told. */
struct arguments {
    struct mcpd_geometry geometry;
    struct mcpd_reader_fds fds;
    struct mcpd_admission admission;
    struct mcpd_thinning thinning;
    uint64_t start_seq;
};

static int parse(PyObject *args, PyObject *kwargs, struct arguments *out)
{
    static char *names[] = {
        "writer_control_fd", "payload_fd", "control_fd", "wake_fd", "writer_wake_fd", "group_fd",
        "stream_id", "generation", "nslots", "slot_nbytes", "max_pins", "policy", "start_seq",
        "first_seq", "depth", "group", "member", "every_n", "interval_ns", "skip_expired",
        "payload_offset", NULL};
    static const char *const required[] = {"stream_id", "generation", "nslots", "slot_nbytes",
                                           "max_pins", "policy", NULL};
    int skip_expired = 0;
    *out = (struct arguments){
        .geometry = {.first_seq = 1}, .fds = {.writer_wake = -1, .group = -1}};
    if (mcpd_binding_require("Reader", kwargs, required) != 0)
        return -1;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iiii|ii$O&O&O&O&O&O&O&O&O&O&O&O&O&pO&:Reader", names,
            &out->fds.writer_control, &out->fds.payload, &out->fds.control, &out->fds.wake,
            &out->fds.writer_wake, &out->fds.group, mcpd_binding_u64, &out->geometry.stream_id,
            mcpd_binding_u64, &out->geometry.generation, mcpd_binding_u32, &out->geometry.nslots,
            mcpd_binding_u64, &out->geometry.slot_nbytes, mcpd_binding_u32,
            &out->admission.max_pins, mcpd_binding_u32, &out->admission.policy, mcpd_binding_u64,
            &out->start_seq, mcpd_binding_u64, &out->geometry.first_seq, mcpd_binding_u32,
            &out->admission.depth, mcpd_binding_u64, &out->admission.group, mcpd_binding_u32,
            &out->admission.member, mcpd_binding_u32, &out->thinning.every_n, mcpd_binding_i64,
            &out->thinning.interval_ns, &skip_expired, mcpd_binding_u64, &out->geometry.payload_offset))
        return -1;
    out->thinning.skip_expired = (uint32_t)skip_expired;
    return 0;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct arguments arguments;
    int result;
    if (parse(args, kwargs, &arguments) != 0)
        return NULL;
    struct mcpd_py_reader *self = PyObject_New(struct mcpd_py_reader, type);
    if (self == NULL)
        return NULL;
    self->reader = NULL;
    self->users = 0;
    self->closed = 0;
    self->max_pins = arguments.admission.max_pins;
    self->description = NULL;
    self->presentation = (struct mcpd_py_presentation){0};
    Py_BEGIN_ALLOW_THREADS
    result = mcpd_reader_open(&arguments.geometry, &arguments.fds, &arguments.admission,
                              arguments.start_seq, &arguments.thinning, &self->reader);
    Py_END_ALLOW_THREADS
    if (result != 0) {
        Py_DECREF((PyObject *)self);
        return mcpd_binding_oserror(-result, "cannot open the stream for reading");
    }
    return (PyObject *)self;
}

static PyObject *reader_close(PyObject *object, PyObject *unused)
{
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    (void)unused;
    if (!self->closed) {
        self->closed = 1;
        mcpd_reader_shut(self->reader);
        detach(self);
    }
    Py_RETURN_NONE;
}

static void reader_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    mcpd_reader_close(self->reader); /* pinned slots hold a reference, so there are none */
    Py_XDECREF(self->description);
    mcpd_py_presentation_clear(&self->presentation);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

/* Waits without the GIL. Returns as mcpd_reader_next, -EINTR with a Python exception set. */
static int next_waiting(mcpd_reader *reader, int64_t timeout_ns, struct mcpd_meta *meta)
{
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    int result;
    do {
        Py_BEGIN_ALLOW_THREADS
        if (deadline_ns != INT64_MAX) {
            timeout_ns = deadline_ns - mcpd_now_ns();
            timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
        }
        result = mcpd_reader_next(reader, timeout_ns, meta);
        Py_END_ALLOW_THREADS
    } while (result == -EINTR && PyErr_CheckSignals() == 0);
    return result;
}

static PyObject *reader_next(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    PyObject *slot = NULL;
    struct mcpd_meta meta;
    int64_t timeout_ns;
    mcpd_reader *reader = opened(object);
    if (reader == NULL || mcpd_binding_timeout("next", args, nargs, kwnames, &timeout_ns) != 0)
        return NULL;
    mcpd_py_reader_use(self);
    int result = mcpd_reader_next(reader, 0, &meta);
    if (result == -EAGAIN && timeout_ns != 0)
        result = next_waiting(reader, timeout_ns, &meta);
    if (result >= 0)
        slot = mcpd_py_pinned_slot_new(self, (uint32_t)result, &meta);
    else if (result == -EAGAIN || result == -ETIMEDOUT)
        slot = Py_NewRef(Py_None);
    else if (result != -EINTR)
        fail(self, result);
    mcpd_py_reader_unuse(self);
    return slot;
}

static PyObject *recent_slots(struct mcpd_py_reader *self, const uint32_t *pins,
                              const struct mcpd_meta *metas, int count)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; i < count; i++) {
        PyObject *slot = NULL;
        if (list == NULL)
            mcpd_reader_unpin(self->reader, pins[i]);
        else
            slot = mcpd_py_pinned_slot_new(self, pins[i], &metas[i]);
        if (list != NULL && (slot == NULL || PyList_Append(list, slot) != 0))
            Py_CLEAR(list);
        Py_XDECREF(slot);
    }
    return list;
}

static PyObject *reader_recent(PyObject *object, PyObject *argument)
{
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    uint32_t count, pins[MCPD_MAX_PINS];
    PyObject *list = NULL;
    mcpd_reader *reader = opened(object);
    if (reader == NULL || !mcpd_binding_u32(argument, &count))
        return NULL;
    struct mcpd_meta *metas = PyMem_Calloc(self->max_pins, sizeof *metas);
    if (metas == NULL)
        return PyErr_NoMemory();
    int result = mcpd_reader_recent(reader, count, pins, metas);
    if (result >= 0)
        list = recent_slots(self, pins, metas, result);
    else if (result == -EAGAIN)
        list = PyList_New(0);
    else if (result == -EINVAL)
        PyErr_Format(PyExc_ValueError,
                     "recent(%u): count must be 1 or more, of a reader with policy latest that is "
                     "in no group",
                     (unsigned int)count);
    else if (result == -EBUSY)
        PyErr_Format(PyExc_BufferError,
                     "recent(%u): fewer than that of the %u pins are free; close frames and drop "
                     "their views first",
                     (unsigned int)count, (unsigned int)self->max_pins);
    else
        fail(self, result);
    PyMem_Free(metas);
    return list;
}

static PyObject *reader_presents(PyObject *object, PyObject *args)
{
    struct mcpd_py_reader *self = (struct mcpd_py_reader *)object;
    PyObject *type, *grant;
    if (!PyArg_ParseTuple(args, "OO:presents", &type, &grant) ||
        mcpd_py_presentation_set(&self->presentation, mcpd_binding_state(object)->frame, type,
                                 grant, Py_None) != 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *reader_arm(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_reader *reader = opened(object);
    if (reader == NULL)
        return NULL;
    int result = mcpd_reader_arm(reader);
    return result < 0 ? mcpd_binding_oserror(-result, "cannot arm the reader")
                      : PyBool_FromLong(result);
}

static PyObject *reader_disarm(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_reader *reader = opened(object);
    if (reader == NULL)
        return NULL;
    int result = mcpd_reader_disarm(reader);
    if (result < 0)
        return mcpd_binding_oserror(-result, "cannot disarm the reader");
    Py_RETURN_NONE;
}

static PyObject *reader_fileno(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_reader *reader = opened(object);
    return reader == NULL ? NULL : PyLong_FromLong(mcpd_reader_fileno(reader));
}

static PyObject *reader_ended(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_reader *reader = opened(object);
    if (reader == NULL)
        return NULL;
    int result = mcpd_reader_ended(reader);
    return result < 0 ? mcpd_binding_oserror(-result, "cannot read the stream's state")
                      : PyLong_FromLong(result);
}

static PyObject *reader_stats(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_reader *reader = opened(object);
    if (reader == NULL)
        return NULL;
    const struct mcpd_rctl *rctl = mcpd_reader_counters(reader);
    return rctl == NULL ? mcpd_binding_oserror(ECHILD, "cannot read the counters")
                        : mcpd_binding_reader_stats(rctl);
}

static PyMethodDef reader_methods[] = {
    {"next", (PyCFunction)(void (*)(void))reader_next, METH_FASTCALL | METH_KEYWORDS,
     "The next frame by the policy; None when none came within timeout_s."},
    {"recent", reader_recent, METH_O, "Those of the newest frames that still stand, oldest first."},
    {"arm", reader_arm, METH_NOARGS, "True if something is there now, else sleeps."},
    {"disarm", reader_disarm, METH_NOARGS, "Awake again; fileno() is drained."},
    {"presents", reader_presents, METH_VARARGS, "Has `next` give instances of a Frame's subclass."},
    {"fileno", reader_fileno, METH_NOARGS, "Readable when something came, while armed."},
    {"ended", reader_ended, METH_NOARGS, "One of END_*."},
    {"stats", reader_stats, METH_NOARGS, "The reader's counters."},
    {"close", reader_close, METH_NOARGS, "Detaches; exported views keep pin and mapping."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "A stream's reading end."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "mcpd.native._core.Reader",
    .basicsize = sizeof(struct mcpd_py_reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

int mcpd_binding_add_reader(PyObject *module)
{
    PyTypeObject *type = mcpd_binding_add_type(module, &reader_spec);
    Py_XDECREF((PyObject *)type);
    return type == NULL ? -1 : mcpd_binding_add_pinned_slot(module);
}
