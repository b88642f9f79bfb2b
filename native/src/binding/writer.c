/*
 * Writer: a stream's writing end. Its slots are in write_slot.c.
 *
 * The C handle lives until close() was called and nobody uses it: slots that are not finished and
 * calls that run without the GIL count in `users`, which the GIL protects.
 */
#include "binding.h"

#include "mcpd.h"
#include "stream.h"
#include "write_slot.h"

static void detach(struct mcpd_py_writer *self)
{
    if (self->closed && self->users == 0 && self->writer != NULL) {
        mcpd_writer_close(self->writer);
        self->writer = NULL;
    }
}

void mcpd_py_writer_use(struct mcpd_py_writer *self)
{
    self->users++;
}

void mcpd_py_writer_unuse(struct mcpd_py_writer *self)
{
    self->users--;
    detach(self);
}

/* The handle, or NULL and ValueError when it is closed. */
static mcpd_writer *opened(struct mcpd_py_writer *self)
{
    if (!self->closed)
        return self->writer;
    PyErr_SetString(PyExc_ValueError, "the writer is closed");
    return NULL;
}

PyObject *mcpd_py_writer_error(struct mcpd_py_writer *self, int error, const char *what)
{
    if (error == -EBUSY)
        return PyErr_Format(PyExc_BufferError,
                            "the writer holds %u slots, as many as it may; publish or abandon one, "
                            "and drop the views of published ones",
                            (unsigned int)self->holds);
    if (error == -ECANCELED)
        return PyErr_Format(PyExc_ValueError, "the writer is closed");
    if (error == -EINPROGRESS)
        return PyErr_Format(PyExc_ValueError, "the stream is being resized");
    if (error != -EPIPE)
        return mcpd_binding_oserror(-error, what);
    PyObject *reason = PyLong_FromLong(mcpd_writer_ended(self->writer));
    if (reason != NULL) {
        PyErr_SetObject(mcpd_binding_state((PyObject *)self)->stream_ended, reason);
        Py_DECREF(reason);
    }
    return NULL;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"control_fd", "payload_fd", "wake_fd", "stream_id", "generation",
                            "nslots", "slot_nbytes", "first_seq", "history", "holds",
                            "payload_offset", NULL};
    static const char *const required[] = {"stream_id", "generation", "nslots", "slot_nbytes",
                                           NULL};
    struct mcpd_geometry geometry = {.first_seq = 1};
    int control_fd, payload_fd, wake_fd, result;
    uint32_t history = 1, holds = 2;
    if (mcpd_binding_require("Writer", kwargs, required) != 0)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iii|$O&O&O&O&O&O&O&O&:Writer", names, &control_fd, &payload_fd, &wake_fd,
            mcpd_binding_u64, &geometry.stream_id, mcpd_binding_u64, &geometry.generation,
            mcpd_binding_u32, &geometry.nslots, mcpd_binding_u64, &geometry.slot_nbytes,
            mcpd_binding_u64, &geometry.first_seq, mcpd_binding_u32, &history, mcpd_binding_u32, &holds,
            mcpd_binding_u64, &geometry.payload_offset))
        return NULL;
    struct mcpd_py_writer *self = PyObject_New(struct mcpd_py_writer, type);
    if (self == NULL)
        return NULL;
    self->writer = NULL;
    self->users = 0;
    self->closed = 0;
    self->presentation = (struct mcpd_py_presentation){0};
    self->packed = NULL;
    self->holds = holds;
    self->slot_nbytes = geometry.slot_nbytes;
    Py_BEGIN_ALLOW_THREADS
    result = mcpd_writer_open(&geometry, control_fd, payload_fd, wake_fd, history, holds,
                              &self->writer);
    Py_END_ALLOW_THREADS
    if (result != 0) {
        Py_DECREF((PyObject *)self);
        return mcpd_binding_oserror(-result, "cannot open the stream for writing");
    }
    return (PyObject *)self;
}

static PyObject *writer_close(PyObject *object, PyObject *unused)
{
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    (void)unused;
    if (!self->closed) {
        self->closed = 1;
        mcpd_writer_shut(self->writer);
        detach(self);
    }
    Py_RETURN_NONE;
}

static void writer_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    mcpd_writer_close(self->writer); /* slots hold a reference, so there are none */
    mcpd_py_presentation_clear(&self->presentation);
    Py_XDECREF(self->packed);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *writer_add_group(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"group", "control_fd", "policy", "depth", NULL};
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    struct mcpd_admission group = {0};
    int control_fd;
    int64_t result;
    mcpd_writer *writer = opened(self);
    if (writer == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&iO&|O&:add_group", names, mcpd_binding_u64,
                                     &group.group, &control_fd, mcpd_binding_u32, &group.policy,
                                     mcpd_binding_u32, &group.depth))
        return NULL;
    mcpd_py_writer_use(self);
    Py_BEGIN_ALLOW_THREADS
    result = mcpd_writer_add_group(writer, control_fd, &group);
    Py_END_ALLOW_THREADS
    mcpd_py_writer_unuse(self);
    if (result < 0)
        return mcpd_py_writer_error(self, (int)result, "cannot admit the group");
    return PyLong_FromLongLong(result);
}

static PyObject *writer_add_reader(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reader_id", "control_fd", "wake_fd", "max_pins", "policy",
                            "depth",     "group",      "member",  NULL};
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    struct mcpd_admission admission = {0};
    uint64_t reader_id;
    int control_fd, wake_fd;
    int64_t result;
    mcpd_writer *writer = opened(self);
    if (writer == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&iiO&O&|O&O&O&:add_reader", names,
                                     mcpd_binding_u64, &reader_id, &control_fd, &wake_fd,
                                     mcpd_binding_u32, &admission.max_pins, mcpd_binding_u32,
                                     &admission.policy, mcpd_binding_u32, &admission.depth,
                                     mcpd_binding_u64, &admission.group, mcpd_binding_u32,
                                     &admission.member))
        return NULL;
    mcpd_py_writer_use(self);
    Py_BEGIN_ALLOW_THREADS
    result = mcpd_writer_add_reader(writer, reader_id, control_fd, wake_fd, &admission);
    Py_END_ALLOW_THREADS
    mcpd_py_writer_unuse(self);
    if (result < 0)
        return mcpd_py_writer_error(self, (int)result, "cannot admit the reader");
    return PyLong_FromLongLong(result);
}

static PyObject *reader_call(PyObject *object, PyObject *argument, const char *what,
                             int (*call)(mcpd_writer *, uint64_t))
{
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    uint64_t reader_id;
    mcpd_writer *writer = opened(self);
    if (writer == NULL || !mcpd_binding_u64(argument, &reader_id))
        return NULL;
    int result = call(writer, reader_id);
    if (result < 0)
        return mcpd_py_writer_error(self, result, what);
    Py_RETURN_NONE;
}

static PyObject *writer_release_reader(PyObject *self, PyObject *reader_id)
{
    return reader_call(self, reader_id, "cannot release the reader", mcpd_writer_release_reader);
}

static PyObject *writer_remove_reader(PyObject *self, PyObject *reader_id)
{
    return reader_call(self, reader_id, "cannot remove the reader", mcpd_writer_remove_reader);
}

static PyObject *writer_remove_group(PyObject *object, PyObject *argument)
{
    uint64_t group;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL || !mcpd_binding_u64(argument, &group))
        return NULL;
    int result = mcpd_writer_remove_group(writer, group);
    if (result < 0) /* EBUSY here is about members, not about holds */
        return mcpd_binding_oserror(-result, "cannot remove the group");
    Py_RETURN_NONE;
}

/* Waits without the GIL. Returns as mcpd_writer_acquire, -EINTR with a Python exception set. */
static int acquire_waiting(mcpd_writer *writer, int64_t timeout_ns)
{
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    int result;
    do {
        Py_BEGIN_ALLOW_THREADS
        if (deadline_ns != INT64_MAX) {
            timeout_ns = deadline_ns - mcpd_now_ns();
            timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
        }
        result = mcpd_writer_acquire(writer, timeout_ns);
        Py_END_ALLOW_THREADS
    } while (result == -EINTR && PyErr_CheckSignals() == 0);
    return result;
}

static PyObject *writer_acquire(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    PyObject *slot = NULL;
    int64_t timeout_ns;
    mcpd_writer *writer = opened(self);
    if (writer == NULL || mcpd_binding_timeout("acquire", args, nargs, kwnames, &timeout_ns) != 0)
        return NULL;
    mcpd_py_writer_use(self);
    int result = mcpd_writer_try(writer);
    if (result == -EAGAIN)
        result = timeout_ns == 0 ? mcpd_writer_acquire(writer, 0)
                                 : acquire_waiting(writer, timeout_ns);
    if (result >= 0)
        slot = mcpd_py_write_slot_new(self, (uint32_t)result);
    else if (result == -EAGAIN || result == -ETIMEDOUT)
        slot = Py_NewRef(Py_None);
    else if (result != -EINTR)
        mcpd_py_writer_error(self, result, "cannot acquire a slot");
    mcpd_py_writer_unuse(self);
    return slot;
}

static PyObject *writer_presents(PyObject *object, PyObject *args)
{
    struct mcpd_py_writer *self = (struct mcpd_py_writer *)object;
    PyObject *type, *grant, *description, *packed;
    uint64_t nbytes;
    uint32_t flags;
    char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OOOOO&O&:presents", &type, &grant, &description, &packed,
                          mcpd_binding_u64, &nbytes, mcpd_binding_u32, &flags))
        return NULL;
    if (nbytes > self->slot_nbytes)
        return PyErr_Format(PyExc_ValueError, "nbytes is %llu; the slots have %llu bytes",
                            (unsigned long long)nbytes, (unsigned long long)self->slot_nbytes);
    if (packed != Py_None && (PyBytes_AsStringAndSize(packed, &bytes, &size) != 0 ||
                              mcpd_py_description_check(bytes, size) != 0))
        return NULL;
    if (mcpd_py_presentation_set(&self->presentation, mcpd_binding_state(object)->slot, type, grant,
                                 description) != 0)
        return NULL;
    Py_XDECREF(self->packed);
    self->packed = packed == Py_None ? NULL : Py_NewRef(packed);
    self->nbytes = nbytes;
    self->flags = flags;
    Py_RETURN_NONE;
}

static PyObject *writer_end(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reason", NULL};
    int reason;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "i:end", names, &reason))
        return NULL;
    int result = mcpd_writer_end(writer, (enum mcpd_end)reason);
    if (result == -EINVAL)
        return PyErr_Format(PyExc_ValueError, "reason is %d; it must be one of END_*", reason);
    if (result < 0)
        return mcpd_binding_oserror(-result, "cannot end the stream");
    Py_RETURN_NONE;
}

static PyObject *writer_freeze(PyObject *object, PyObject *frozen)
{
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL)
        return NULL;
    mcpd_writer_freeze(writer, frozen == Py_True);
    Py_RETURN_NONE;
}

static PyObject *writer_fileno(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    return writer == NULL ? NULL : PyLong_FromLong(mcpd_writer_fileno(writer));
}

static PyObject *writer_arm(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL)
        return NULL;
    int result = mcpd_writer_arm(writer);
    if (result < 0)
        return mcpd_binding_oserror(-result, "cannot arm the writer");
    return PyBool_FromLong(result);
}

static PyObject *writer_disarm(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL)
        return NULL;
    int result = mcpd_writer_disarm(writer);
    if (result < 0)
        return mcpd_binding_oserror(-result, "cannot disarm the writer");
    Py_RETURN_NONE;
}

static PyObject *writer_stats(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_writer *writer = opened((struct mcpd_py_writer *)object);
    if (writer == NULL)
        return NULL;
    const struct mcpd_wctl *wctl = mcpd_writer_counters(writer);
    return wctl == NULL ? mcpd_binding_oserror(ECHILD, "cannot read the counters")
                        : mcpd_binding_writer_stats(wctl);
}

#define CALLABLE(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef writer_methods[] = {
    {"add_group", CALLABLE(writer_add_group), METH_VARARGS | METH_KEYWORDS,
     "Makes a group known; returns the first sequence number that it is owed."},
    {"remove_group", writer_remove_group, METH_O, "Forgets a group that has no members."},
    {"presents", CALLABLE(writer_presents), METH_VARARGS,
     "Has `acquire` give instances of a Slot's subclass, described already."},
    {"add_reader", CALLABLE(writer_add_reader), METH_VARARGS | METH_KEYWORDS,
     "Admits a reader; returns the first sequence number that it is owed."},
    {"release_reader", writer_release_reader, METH_O, "Owes it nothing more; its pins stand."},
    {"remove_reader", writer_remove_reader, METH_O, "Forgets a reader and its pins."},
    {"acquire", CALLABLE(writer_acquire), METH_FASTCALL | METH_KEYWORDS,
     "The most recently freed slot; None when none came free within timeout_s."},
    {"end", CALLABLE(writer_end), METH_VARARGS | METH_KEYWORDS,
     "Ends the stream for every reader."},
    {"freeze", writer_freeze, METH_O, "While frozen, nothing is acquired or published."},
    {"fileno", writer_fileno, METH_NOARGS, "Readable when there is room, while armed."},
    {"arm", writer_arm, METH_NOARGS, "True if an acquire would return at once, else sleeps."},
    {"disarm", writer_disarm, METH_NOARGS, "Awake again; fileno() is drained."},
    {"stats", writer_stats, METH_NOARGS, "The writer's counters."},
    {"close", writer_close, METH_NOARGS, "Detaches; exported views keep the mapping. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "A stream's writing end."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    .name = "mcpd.native._core.Writer",
    .basicsize = sizeof(struct mcpd_py_writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = writer_slots,
};

int mcpd_binding_add_writer(PyObject *module)
{
    PyTypeObject *type = mcpd_binding_add_type(module, &writer_spec);
    Py_XDECREF((PyObject *)type);
    return type == NULL ? -1 : mcpd_binding_add_write_slot(module);
}
