/*
 * PinnedSlot: one pinned frame, a read-only buffer with the attributes of its frame.
 *
 * The pin lasts until close() was called, or the object is gone, and no exported view is left.
 */
#include "pinned_slot.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "layout.h"
#include "stream.h"

struct pinned_slot {
    PyObject_HEAD
    struct mcpd_py_reader *owner;
    PyObject *description;
    Py_ssize_t exports;
    int closed;
    int read; /* whether it was ever exported */
    int unpinned;
    int lost; /* whether its memory was, when it was unpinned */
    unsigned int pin;
    unsigned int index;
    struct mcpd_meta meta;
};

/*
 * The slot's description as bytes. It is copied out once and only then looked at, because its
 * writer is not trusted. Most frames have the description of the one before, and share its object.
 */
static PyObject *copy_description(struct mcpd_py_reader *reader, uint32_t pin)
{
    struct mcpd_description copy;
    const size_t head = offsetof(struct mcpd_description, tensors);
    const struct mcpd_description *shared = mcpd_reader_description(reader->reader, pin);
    memcpy(&copy, shared, head);
    if (copy.ntensors > MCPD_MAX_TENSORS)
        return mcpd_binding_oserror(EBADMSG, "cannot read a frame's description");
    size_t nbytes = head + copy.ntensors * sizeof(struct mcpd_tensor);
    memcpy(copy.tensors, shared->tensors, nbytes - head);
    if (reader->description != NULL) {
        char *last;
        Py_ssize_t last_nbytes;
        if (PyBytes_AsStringAndSize(reader->description, &last, &last_nbytes) != 0)
            return NULL;
        if ((size_t)last_nbytes == nbytes && memcmp(last, &copy, nbytes) == 0)
            return Py_NewRef(reader->description);
    }
    PyObject *description = PyBytes_FromStringAndSize((const char *)&copy, (Py_ssize_t)nbytes);
    if (description != NULL) {
        Py_XDECREF(reader->description);
        reader->description = Py_NewRef(description);
    }
    return description;
}

PyObject *mcpd_py_pinned_slot_new(struct mcpd_py_reader *reader, uint32_t pin,
                                  const struct mcpd_meta *meta)
{
    PyTypeObject *type = mcpd_binding_state((PyObject *)reader)->pinned_slot;
    PyObject *description = copy_description(reader, pin);
    struct pinned_slot *self = NULL;
    if (description != NULL)
        self = PyObject_New(struct pinned_slot, type);
    if (self == NULL) {
        Py_XDECREF(description);
        mcpd_reader_unpin(reader->reader, pin);
        return NULL;
    }
    Py_INCREF((PyObject *)reader);
    mcpd_py_reader_use(reader);
    self->owner = reader;
    self->description = description;
    self->exports = 0;
    self->closed = 0;
    self->unpinned = 0;
    self->lost = 0;
    self->read = 0;
    self->pin = pin;
    self->index = (unsigned int)mcpd_reader_pinned(reader->reader, pin);
    self->meta = *meta;
    return mcpd_py_present(&reader->presentation, (PyObject *)self);
}

static void unpin_if_unused(struct pinned_slot *self)
{
    if (!self->closed || self->exports > 0 || self->unpinned)
        return;
    self->unpinned = 1;
    self->lost = mcpd_reader_check(self->owner->reader) == -EFAULT;
    mcpd_reader_unpin(self->owner->reader, self->pin);
    mcpd_py_reader_unuse(self->owner);
}

void mcpd_py_pinned_slot_close(PyObject *object)
{
    struct pinned_slot *self = (struct pinned_slot *)object;
    self->closed = 1;
    unpin_if_unused(self);
}

static PyObject *pinned_slot_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    mcpd_py_pinned_slot_close(object);
    Py_RETURN_NONE;
}

static PyObject *pinned_slot_give_back(PyObject *object, PyObject *unused)
{
    struct pinned_slot *self = (struct pinned_slot *)object;
    (void)unused;
    if (self->exports > 0)
        return PyErr_Format(PyExc_BufferError,
                            "frame %llu cannot be given back: %zd views of it are left, which would "
                            "outlive the claim; drop them first",
                            (unsigned long long)self->meta.seq, self->exports);
    self->closed = 1;
    if (!self->unpinned) {
        self->unpinned = 1;
        self->lost = mcpd_reader_check(self->owner->reader) == -EFAULT;
        mcpd_reader_give_back(self->owner->reader, self->pin);
        mcpd_py_reader_unuse(self->owner);
    }
    Py_RETURN_NONE;
}

static void pinned_slot_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct pinned_slot *self = (struct pinned_slot *)object;
    self->closed = 1;
    unpin_if_unused(self); /* views hold a reference, so there are none */
    Py_DECREF(self->description);
    Py_DECREF((PyObject *)self->owner);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

static int pinned_slot_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    struct pinned_slot *self = (struct pinned_slot *)object;
    const void *base = NULL;
    view->obj = NULL;
    if (!self->closed)
        base = mcpd_reader_slot(self->owner->reader, self->pin);
    if (base == NULL || mcpd_py_pinned_slot_lost(object)) {
        PyErr_Format(PyExc_BufferError, "frame %llu cannot be read: %s",
                     (unsigned long long)self->meta.seq,
                     self->closed   ? "it is closed"
                     : base == NULL ? "it is pinned by another process"
                                    : "its memory was taken away");
        return -1;
    }
    /* The mapping is read-only, and FillInfo refuses whoever asks for a writable view. */
    if (PyBuffer_FillInfo(view, object, (void *)(uintptr_t)base, (Py_ssize_t)self->meta.nbytes, 1,
                          flags) != 0)
        return -1;
    self->exports++;
    self->read = 1;
    return 0;
}

static void pinned_slot_releasebuffer(PyObject *object, Py_buffer *view)
{
    struct pinned_slot *self = (struct pinned_slot *)object;
    (void)view;
    self->exports--;
    unpin_if_unused(self);
}

static PyObject *get_trace_id(PyObject *object, void *closure)
{
    (void)closure;
    const struct mcpd_meta *meta = &((struct pinned_slot *)object)->meta;
    return PyBytes_FromStringAndSize((const char *)meta->trace_id, sizeof meta->trace_id);
}

int mcpd_py_pinned_slot_lost(PyObject *object)
{
    struct pinned_slot *self = (struct pinned_slot *)object;
    if (self->unpinned)
        return self->lost;
    return mcpd_reader_check(self->owner->reader) == -EFAULT;
}

int mcpd_py_pinned_slot_read_in_vain(PyObject *object)
{
    return ((struct pinned_slot *)object)->read && mcpd_py_pinned_slot_lost(object);
}

static PyObject *get_lost(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(mcpd_py_pinned_slot_lost(object));
}

static PyGetSetDef pinned_slot_attributes[] = {
    {"lost", get_lost, NULL, NULL, NULL},
    {"trace_id", get_trace_id, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define META(name, type) {#name, type, offsetof(struct pinned_slot, meta.name), READONLY, NULL}

static PyMemberDef pinned_slot_members[] = {
    {"pin", T_UINT, offsetof(struct pinned_slot, pin), READONLY, NULL},
    {"index", T_UINT, offsetof(struct pinned_slot, index), READONLY, NULL},
    {"description", T_OBJECT_EX, offsetof(struct pinned_slot, description), READONLY, NULL},
    META(generation, T_ULONGLONG),
    META(seq, T_ULONGLONG),
    META(nbytes, T_ULONGLONG),
    META(pts_ns, T_LONGLONG),
    META(capture_ns, T_LONGLONG),
    META(publish_ns, T_LONGLONG),
    META(deadline_ns, T_LONGLONG),
    META(source_seq, T_ULONGLONG),
    META(source_stream, T_ULONGLONG),
    META(source_publish_ns, T_LONGLONG),
    META(awake_ns, T_LONGLONG),
    META(finish_ns, T_LONGLONG),
    META(model_version, T_UINT),
    META(flags, T_UINT),
    META(status, T_UINT),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef pinned_slot_methods[] = {
    {"close", pinned_slot_close, METH_NOARGS, "Unpins once no view is left. Idempotent."},
    {"give_back", pinned_slot_give_back, METH_NOARGS, "Closes it and leaves it to the group."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pinned_slot_slots[] = {
    {Py_tp_doc, "One pinned frame: a read-only buffer with the attributes of its frame."},
    {Py_tp_dealloc, pinned_slot_dealloc},
    {Py_tp_methods, pinned_slot_methods},
    {Py_tp_members, pinned_slot_members},
    {Py_tp_getset, pinned_slot_attributes},
    {Py_bf_getbuffer, pinned_slot_getbuffer},
    {Py_bf_releasebuffer, pinned_slot_releasebuffer},
    {0, NULL},
};

static PyType_Spec pinned_slot_spec = {
    .name = "mcpd.native._core.PinnedSlot",
    .basicsize = sizeof(struct pinned_slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pinned_slot_slots,
};

int mcpd_binding_add_pinned_slot(PyObject *module)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    state->pinned_slot = mcpd_binding_add_type(module, &pinned_slot_spec);
    return state->pinned_slot == NULL ? -1 : 0;
}
