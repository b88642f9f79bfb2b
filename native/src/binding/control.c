/*
 * WriterControl and ReaderControl: the daemon's view of their control objects.
 */
#include "control.h"

#include <unistd.h>

#include "atomics.h"
#include "layout.h"
#include "mcpd.h"

PyObject *mcpd_py_control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs, char **names,
                              int64_t (*whole_nbytes)(uint32_t), size_t head_nbytes)
{
    int fd;
    uint32_t count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO&", names, &fd, mcpd_binding_u32, &count))
        return NULL;
    int64_t nbytes = whole_nbytes(count);
    if (nbytes < 0)
        return PyErr_Format(PyExc_ValueError, "%s is %u, out of bounds", names[1], count);
    struct mcpd_py_control *self = PyObject_New(struct mcpd_py_control, type);
    if (self == NULL)
        return NULL;
    self->map = (struct mcpd_map){0};
    self->owner = getpid();
    self->count = count;
    int result = mcpd_size_check(fd, (size_t)nbytes);
    if (result == 0)
        result = mcpd_map_open(&self->map, fd, head_nbytes ? head_nbytes : (size_t)nbytes, 1);
    if (result != 0) {
        Py_DECREF((PyObject *)self);
        return mcpd_binding_oserror(-result, "cannot map a control object");
    }
    return (PyObject *)self;
}

void *mcpd_py_control_mapped(PyObject *object)
{
    struct mcpd_py_control *self = (struct mcpd_py_control *)object;
    if (self->map.base == NULL)
        PyErr_SetString(PyExc_ValueError, "the control object is closed");
    else if (self->owner != getpid())
        mcpd_binding_oserror(ECHILD, "cannot use a control object");
    else
        return self->map.base;
    return NULL;
}

static void unmap(PyObject *object)
{
    struct mcpd_py_control *self = (struct mcpd_py_control *)object;
    if (self->owner == getpid())
        mcpd_map_close(&self->map);
    self->map.base = NULL;
}

PyObject *mcpd_py_control_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    unmap(self);
    Py_RETURN_NONE;
}

void mcpd_py_control_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    unmap(self);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

/* ---- WriterControl -------------------------------------------------------------------------- */

static PyObject *writer_control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "nslots", NULL};
    return mcpd_py_control_new(type, args, kwargs, names, mcpd_writer_control_nbytes,
                       sizeof(struct mcpd_wctl));
}

static PyObject *writer_control_initialise(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream_id", "generation", "slot_nbytes", "first_seq", NULL};
    struct mcpd_geometry geometry = {.nslots = ((struct mcpd_py_control *)self)->count,
                                     .first_seq = 1};
    struct mcpd_wctl *wctl = mcpd_py_control_mapped(self);
    if (wctl == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&|O&:initialise", names, mcpd_binding_u64,
                                     &geometry.stream_id, mcpd_binding_u64, &geometry.generation,
                                     mcpd_binding_u64, &geometry.slot_nbytes, mcpd_binding_u64,
                                     &geometry.first_seq))
        return NULL;
    if (mcpd_geometry_check(&geometry) != 0)
        return PyErr_Format(PyExc_ValueError,
                            "slot_nbytes is %llu and first_seq %llu; they must be a multiple of "
                            "4096 up to 2**40, and 1 to 2**48 - 1",
                            (unsigned long long)geometry.slot_nbytes,
                            (unsigned long long)geometry.first_seq);
    mcpd_wctl_format(wctl, &geometry);
    Py_RETURN_NONE;
}

static PyObject *writer_control_end(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reason", NULL};
    int reason;
    struct mcpd_wctl *wctl = mcpd_py_control_mapped(self);
    if (wctl == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "i:end", names, &reason))
        return NULL;
    if (reason < MCPD_END_CLOSED || reason > MCPD_END_MOVED)
        return PyErr_Format(PyExc_ValueError, "reason is %d; it must be one of END_*", reason);
    mcpd_wctl_end(wctl, (enum mcpd_end)reason);
    Py_RETURN_NONE;
}

PyObject *mcpd_binding_writer_stats(const struct mcpd_wctl *wctl)
{
#define COUNTER(name) (unsigned long long)mcpd_load_relaxed(&wctl->name)
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "head", COUNTER(head), "ended", COUNTER(ended),
        "published", COUNTER(published), "abandoned", COUNTER(abandoned), "would_block",
        COUNTER(would_block), "blocked_ns", COUNTER(blocked_ns),
        "blocked_since_ns", COUNTER(blocked_since_ns), "wakes", COUNTER(wakes), "publish_ns", COUNTER(publish_ns), "nbytes", COUNTER(nbytes), "held", COUNTER(held));
#undef COUNTER
}

static PyObject *writer_control_stats(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct mcpd_wctl *wctl = mcpd_py_control_mapped(self);
    return wctl == NULL ? NULL : mcpd_binding_writer_stats(wctl);
}

/* ---- ReaderControl -------------------------------------------------------------------------- */

static PyObject *reader_control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "max_pins", NULL};
    return mcpd_py_control_new(type, args, kwargs, names, mcpd_reader_control_nbytes, 0);
}

static PyObject *reader_control_initialise(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream_id", "generation", "reader_id", NULL};
    struct mcpd_geometry geometry = {0};
    uint64_t reader_id;
    struct mcpd_rctl *rctl = mcpd_py_control_mapped(self);
    if (rctl == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&:initialise", names, mcpd_binding_u64,
                                     &geometry.stream_id, mcpd_binding_u64, &geometry.generation,
                                     mcpd_binding_u64, &reader_id))
        return NULL;
    mcpd_rctl_format(rctl, &geometry, reader_id, ((struct mcpd_py_control *)self)->count);
    Py_RETURN_NONE;
}

static PyObject *reader_control_pins(PyObject *self, PyObject *unused)
{
    (void)unused;
    const uint8_t *base = mcpd_py_control_mapped(self);
    PyObject *list = base == NULL ? NULL : PyList_New(0);
    if (list == NULL)
        return NULL;
    const _Atomic uint64_t *pins = (const _Atomic uint64_t *)(base + MCPD_RCTL_PINS);
    for (uint32_t i = 0; i < ((struct mcpd_py_control *)self)->count; i++) {
        uint64_t word = mcpd_load_acquire(&pins[i]);
        if (word == 0)
            continue;
        PyObject *pin = Py_BuildValue("KI", (unsigned long long)MCPD_TAG_SEQ(word),
                                      (unsigned int)MCPD_TAG_LOW(word));
        if (pin == NULL || PyList_Append(list, pin) != 0) {
            Py_XDECREF(pin);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(pin);
    }
    return list;
}

PyObject *mcpd_binding_reader_stats(const struct mcpd_rctl *rctl)
{
#define COUNTER(name) (unsigned long long)mcpd_load_relaxed(&rctl->name)
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "cursor", COUNTER(cursor), "asleep",
        COUNTER(epoch) & 1, "received", COUNTER(received), "skipped", COUNTER(skipped), "dropped",
        COUNTER(dropped), "passed", COUNTER(passed), "expired", COUNTER(expired), "wakeups",
        COUNTER(wakeups), "spurious", COUNTER(spurious), "retries", COUNTER(retries), "pinned",
        COUNTER(pinned), "pinned_since_ns", COUNTER(pinned_since_ns), "longest_pin_ns",
        COUNTER(longest_pin_ns));
#undef COUNTER
}

static PyObject *reader_control_stats(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct mcpd_rctl *rctl = mcpd_py_control_mapped(self);
    return rctl == NULL ? NULL : mcpd_binding_reader_stats(rctl);
}

static PyObject *reader_control_latency(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct mcpd_rctl *rctl = mcpd_py_control_mapped(self);
    PyObject *list = rctl == NULL ? NULL : PyList_New(0);
    for (int bucket = 0; list != NULL && bucket < MCPD_LATENCY_BUCKETS; bucket++) {
        PyObject *count = PyLong_FromUnsignedLongLong(mcpd_load_relaxed(&rctl->latency[bucket]));
        if (count == NULL || PyList_Append(list, count) != 0)
            Py_CLEAR(list);
        Py_XDECREF(count);
    }
    return list;
}

/* ---- types ---------------------------------------------------------------------------------- */

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef writer_control_methods[] = {
    {"initialise", KEYWORDS(writer_control_initialise), "Formats a new, all-zero object."},
    {"end", KEYWORDS(writer_control_end), "Marks the stream ended unless it is already."},
    {"stats", writer_control_stats, METH_NOARGS, "The writer's counters."},
    {"close", mcpd_py_control_close, METH_NOARGS, "Unmaps. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef reader_control_methods[] = {
    {"initialise", KEYWORDS(reader_control_initialise), "Formats a new, all-zero object."},
    {"pins", reader_control_pins, METH_NOARGS, "(seq, slot) of every pin that stands now."},
    {"stats", reader_control_stats, METH_NOARGS, "The reader's counters."},
    {"latency", reader_control_latency, METH_NOARGS, "Frames by time from publish to pin."},
    {"close", mcpd_py_control_close, METH_NOARGS, "Unmaps. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_control_slots[] = {
    {Py_tp_doc, "The daemon's view of a writer's control object."},
    {Py_tp_new, writer_control_new},
    {Py_tp_dealloc, mcpd_py_control_dealloc},
    {Py_tp_methods, writer_control_methods},
    {0, NULL},
};

static PyType_Slot reader_control_slots[] = {
    {Py_tp_doc, "The daemon's view of a reader's control object."},
    {Py_tp_new, reader_control_new},
    {Py_tp_dealloc, mcpd_py_control_dealloc},
    {Py_tp_methods, reader_control_methods},
    {0, NULL},
};

static PyType_Spec writer_control_spec = {
    .name = "mcpd.native._core.WriterControl",
    .basicsize = sizeof(struct mcpd_py_control),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = writer_control_slots,
};

static PyType_Spec reader_control_spec = {
    .name = "mcpd.native._core.ReaderControl",
    .basicsize = sizeof(struct mcpd_py_control),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_control_slots,
};

int mcpd_binding_add_control(PyObject *module)
{
    PyTypeObject *type = mcpd_binding_add_type(module, &writer_control_spec);
    if (type == NULL)
        return -1;
    Py_DECREF((PyObject *)type);
    type = mcpd_binding_add_type(module, &reader_control_spec);
    Py_XDECREF((PyObject *)type);
    return type == NULL ? -1 : 0;
}
