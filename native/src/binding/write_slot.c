/*
 * WriteSlot: one acquired slot, a writable buffer with the attributes of its frame.
 *
 * A slot is finished once it is published or abandoned and no view of it is exported: until then it
 * counts among the writer's holds, is not reused, and keeps the mapping.
 */
#include "write_slot.h"

#include <stddef.h>
#include <string.h>

#include "layout.h"

enum stage { OPEN, PUBLISHED, ABANDONED };

struct write_slot {
    PyObject_HEAD
    struct mcpd_py_writer *owner;
    Py_ssize_t exports;
    enum stage stage;
    int finished;
    uint32_t index;
    struct mcpd_meta meta;
};

static const struct mcpd_meta unset = {
    .pts_ns = MCPD_NO_TIME,
    .capture_ns = MCPD_NO_TIME,
    .publish_ns = MCPD_NO_TIME,
    .deadline_ns = MCPD_NO_TIME,
    .source_publish_ns = MCPD_NO_TIME,
    .awake_ns = MCPD_NO_TIME,
    .finish_ns = MCPD_NO_TIME,
    .device_event = -1,
};

/* Only if it differs: readers then find it where they read it last, in their own cache. */
static int describe(struct write_slot *self, const void *bytes, size_t nbytes)
{
    struct mcpd_description *shared = mcpd_writer_description(self->owner->writer, self->index);
    if (shared == NULL) {
        mcpd_binding_oserror(ECHILD, "cannot describe the slot");
        return -1;
    }
    if (memcmp(shared, bytes, nbytes) != 0)
        memcpy(shared, bytes, nbytes);
    return 0;
}

static int describe_as_usual(struct write_slot *self)
{
    char *bytes;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(self->owner->packed, &bytes, &nbytes) != 0)
        return -1;
    self->meta.nbytes = self->owner->nbytes;
    self->meta.flags = self->owner->flags;
    return describe(self, bytes, (size_t)nbytes);
}

PyObject *mcpd_py_write_slot_new(struct mcpd_py_writer *writer, uint32_t index)
{
    PyTypeObject *type = mcpd_binding_state((PyObject *)writer)->write_slot;
    struct write_slot *self = PyObject_New(struct write_slot, type);
    if (self == NULL) {
        mcpd_writer_abandon(writer->writer, index);
        return NULL;
    }
    Py_INCREF((PyObject *)writer);
    mcpd_py_writer_use(writer);
    self->owner = writer;
    self->exports = 0;
    self->stage = OPEN;
    self->finished = 0;
    self->index = index;
    self->meta = unset;
    self->meta.nbytes = writer->slot_nbytes;
    if (writer->packed != NULL && describe_as_usual(self) != 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return mcpd_py_present(&writer->presentation, (PyObject *)self);
}

static void finish(struct write_slot *self)
{
    self->finished = 1;
    mcpd_py_writer_unuse(self->owner);
}

static void abandon(struct write_slot *self)
{
    if (self->stage == OPEN)
        self->stage = ABANDONED;
    if (self->stage == ABANDONED && self->exports == 0 && !self->finished) {
        mcpd_writer_abandon(self->owner->writer, self->index);
        finish(self);
    }
}

static void write_slot_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct write_slot *self = (struct write_slot *)object;
    abandon(self); /* views hold a reference, so there are none */
    Py_DECREF((PyObject *)self->owner);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

/* ---- methods -------------------------------------------------------------------------------- */

static int check_open(const struct write_slot *self)
{
    if (self->stage == OPEN)
        return 0;
    PyErr_Format(PyExc_ValueError, "slot %u is %s already", (unsigned int)self->index,
                 self->stage == PUBLISHED ? "published" : "abandoned");
    return -1;
}

PyObject *mcpd_py_write_slot_publish(PyObject *object)
{
    struct write_slot *self = (struct write_slot *)object;
    if (check_open(self) != 0)
        return NULL;
    int64_t seq = mcpd_writer_publish(self->owner->writer, self->index, &self->meta,
                                      self->exports > 0);
    if (seq < 0)
        return mcpd_py_writer_error(self->owner, (int)seq, "cannot publish the slot");
    self->stage = PUBLISHED;
    if (self->exports == 0)
        finish(self);
    return PyLong_FromLongLong(seq);
}

static PyObject *write_slot_publish(PyObject *object, PyObject *unused)
{
    (void)unused;
    return mcpd_py_write_slot_publish(object);
}

void mcpd_py_write_slot_abandon(PyObject *object)
{
    abandon((struct write_slot *)object);
}

static PyObject *write_slot_abandon(PyObject *object, PyObject *unused)
{
    (void)unused;
    abandon((struct write_slot *)object);
    Py_RETURN_NONE;
}

int mcpd_py_write_slot_published(PyObject *object)
{
    return ((struct write_slot *)object)->stage == PUBLISHED;
}

int mcpd_py_description_check(const void *bytes, Py_ssize_t nbytes)
{
    Py_ssize_t head = (Py_ssize_t)offsetof(struct mcpd_description, tensors);
    uint32_t ntensors;
    if (nbytes < head || nbytes > (Py_ssize_t)sizeof(struct mcpd_description)) {
        PyErr_Format(PyExc_ValueError, "the description has %zd bytes; it must have %zd to %zd",
                     nbytes, head, (Py_ssize_t)sizeof(struct mcpd_description));
        return -1;
    }
    memcpy(&ntensors, (const char *)bytes + offsetof(struct mcpd_description, ntensors),
           sizeof ntensors);
    if (ntensors > MCPD_MAX_TENSORS ||
        nbytes < head + (Py_ssize_t)(ntensors * sizeof(struct mcpd_tensor))) {
        PyErr_Format(PyExc_ValueError,
                     "the description names %u tensors; %d is the most, and each needs %zu bytes",
                     (unsigned int)ntensors, MCPD_MAX_TENSORS, sizeof(struct mcpd_tensor));
        return -1;
    }
    return 0;
}

static PyObject *write_slot_describe(PyObject *object, PyObject *argument)
{
    struct write_slot *self = (struct write_slot *)object;
    Py_buffer bytes;
    if (check_open(self) != 0 || PyObject_GetBuffer(argument, &bytes, PyBUF_SIMPLE) != 0)
        return NULL;
    int result = mcpd_py_description_check(bytes.buf, bytes.len);
    if (result == 0)
        result = describe(self, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    if (result != 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- buffer --------------------------------------------------------------------------------- */

static int write_slot_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    struct write_slot *self = (struct write_slot *)object;
    view->obj = NULL;
    void *base = NULL;
    if (self->stage == OPEN)
        base = mcpd_writer_slot(self->owner->writer, self->index);
    if (base == NULL) {
        PyErr_Format(PyExc_BufferError, "slot %u cannot be written: it is %s",
                     (unsigned int)self->index,
                     self->stage == PUBLISHED   ? "published already"
                     : self->stage == ABANDONED ? "abandoned already"
                                                : "the slot of another process");
        return -1;
    }
    if (PyBuffer_FillInfo(view, object, base, (Py_ssize_t)self->owner->slot_nbytes, 0, flags) != 0)
        return -1;
    self->exports++;
    return 0;
}

static void write_slot_releasebuffer(PyObject *object, Py_buffer *view)
{
    struct write_slot *self = (struct write_slot *)object;
    (void)view;
    if (--self->exports > 0)
        return;
    if (self->stage == ABANDONED) {
        abandon(self);
    } else if (self->stage == PUBLISHED && !self->finished) {
        mcpd_writer_release(self->owner->writer, self->index);
        finish(self);
    }
}

/* ---- attributes ----------------------------------------------------------------------------- */

struct field {
    const char *name;
    size_t offset; /* in struct mcpd_meta */
    enum { U64, I64, U32 } kind;
};

static PyObject *get_field(PyObject *object, void *closure)
{
    const struct field *field = closure;
    const char *at = (const char *)&((struct write_slot *)object)->meta + field->offset;
    if (field->kind == U64)
        return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    if (field->kind == I64)
        return PyLong_FromLongLong(*(const int64_t *)at);
    return PyLong_FromUnsignedLong(*(const uint32_t *)at);
}

/* Names the field and its range; the value itself may have thousands of digits. */
static int refuse(const struct field *field, const char *range)
{
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_OverflowError, "%s must be %s", field->name, range);
    else if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s must be an integer, %s", field->name, range);
    return -1;
}

static int set_field(PyObject *object, PyObject *value, void *closure)
{
    struct write_slot *self = (struct write_slot *)object;
    const struct field *field = closure;
    char *at = (char *)&self->meta + field->offset;
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", field->name);
        return -1;
    }
    if (check_open(self) != 0)
        return -1;
    if (field->offset == offsetof(struct mcpd_meta, nbytes)) {
        uint64_t nbytes;
        if (!mcpd_binding_u64(value, &nbytes))
            return refuse(field, "0 to the bytes of the slot");
        if (nbytes > self->owner->slot_nbytes) {
            PyErr_Format(PyExc_ValueError, "nbytes is %llu; the slot has %llu bytes",
                         (unsigned long long)nbytes, (unsigned long long)self->owner->slot_nbytes);
            return -1;
        }
        self->meta.nbytes = nbytes;
        return 0;
    }
    switch (field->kind) {
    case U64:
        return mcpd_binding_u64(value, at) ? 0 : refuse(field, "0 to 2**64 - 1");
    case I64:
        return mcpd_binding_i64(value, at) ? 0 : refuse(field, "-2**63 to 2**63 - 1");
    default:
        return mcpd_binding_u32(value, at) ? 0 : refuse(field, "0 to 2**32 - 1");
    }
}

static PyObject *get_trace_id(PyObject *object, void *closure)
{
    (void)closure;
    const struct mcpd_meta *meta = &((struct write_slot *)object)->meta;
    return PyBytes_FromStringAndSize((const char *)meta->trace_id, sizeof meta->trace_id);
}

static int set_trace_id(PyObject *object, PyObject *value, void *closure)
{
    struct write_slot *self = (struct write_slot *)object;
    char *bytes;
    Py_ssize_t nbytes;
    (void)closure;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "trace_id cannot be deleted");
        return -1;
    }
    if (check_open(self) != 0 || PyBytes_AsStringAndSize(value, &bytes, &nbytes) != 0)
        return -1;
    if (nbytes != 16 && nbytes != 0) {
        PyErr_Format(PyExc_ValueError, "trace_id has %zd bytes; it must have 16, or none", nbytes);
        return -1;
    }
    memset(self->meta.trace_id, 0, sizeof self->meta.trace_id);
    memcpy(self->meta.trace_id, bytes, (size_t)nbytes);
    return 0;
}

static PyObject *get_index(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((struct write_slot *)object)->index);
}

static PyObject *get_published(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct write_slot *)object)->stage == PUBLISHED);
}

static const struct field fields[] = {
#define FIELD(name, kind) {#name, offsetof(struct mcpd_meta, name), kind}
    FIELD(seq, U64),         FIELD(publish_ns, I64),   FIELD(nbytes, U64),
    FIELD(pts_ns, I64),      FIELD(capture_ns, I64),   FIELD(deadline_ns, I64),
    FIELD(source_seq, U64),  FIELD(source_stream, U64), FIELD(source_publish_ns, I64),
    FIELD(awake_ns, I64),    FIELD(finish_ns, I64),    FIELD(model_version, U32),
    FIELD(flags, U32),       FIELD(status, U32),
#undef FIELD
};

#define READ_ONLY(i, name) {name, get_field, NULL, NULL, (void *)&fields[i]}
#define WRITABLE(i, name) {name, get_field, set_field, NULL, (void *)&fields[i]}

static PyGetSetDef write_slot_attributes[] = {
    {"index", get_index, NULL, NULL, NULL},
    {"published", get_published, NULL, NULL, NULL},
    {"trace_id", get_trace_id, set_trace_id, NULL, NULL},
    READ_ONLY(0, "seq"),
    READ_ONLY(1, "publish_ns"),
    WRITABLE(2, "nbytes"),
    WRITABLE(3, "pts_ns"),
    WRITABLE(4, "capture_ns"),
    WRITABLE(5, "deadline_ns"),
    WRITABLE(6, "source_seq"),
    WRITABLE(7, "source_stream"),
    WRITABLE(8, "source_publish_ns"),
    WRITABLE(9, "awake_ns"),
    WRITABLE(10, "finish_ns"),
    WRITABLE(11, "model_version"),
    WRITABLE(12, "flags"),
    WRITABLE(13, "status"),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef write_slot_methods[] = {
    {"describe", write_slot_describe, METH_O, "Sets the slot's description."},
    {"publish", write_slot_publish, METH_NOARGS, "Publishes; returns the sequence number."},
    {"abandon", write_slot_abandon, METH_NOARGS, "Gives the slot back unpublished. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot write_slot_slots[] = {
    {Py_tp_doc, "One acquired slot: a writable buffer with the attributes of its frame."},
    {Py_tp_dealloc, write_slot_dealloc},
    {Py_tp_methods, write_slot_methods},
    {Py_tp_getset, write_slot_attributes},
    {Py_bf_getbuffer, write_slot_getbuffer},
    {Py_bf_releasebuffer, write_slot_releasebuffer},
    {0, NULL},
};

static PyType_Spec write_slot_spec = {
    .name = "mcpd.native._core.WriteSlot",
    .basicsize = sizeof(struct write_slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = write_slot_slots,
};

int mcpd_binding_add_write_slot(PyObject *module)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    state->write_slot = mcpd_binding_add_type(module, &write_slot_spec);
    return state->write_slot == NULL ? -1 : 0;
}
