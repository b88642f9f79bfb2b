/*
 * Frame and Slot: what a reader and a writer hand out, made here so that no Python runs per frame.
 *
 * Python subclasses both (shm/frame.py, shm/slot.py). Each holds its core, the pinned or acquired slot,
 * and keeps the views that were made of it. Views refer to the core and never to the Frame or Slot,
 * which would then be part of a cycle, and a pin would outlast the last name for it.
 */
#include "presented.h"

#include <stddef.h>
#include <structmember.h>

#include "pinned_slot.h"
#include "write_slot.h"

struct presented {
    PyObject_HEAD
    PyObject *core;
    PyObject *grant;       /* what the daemon granted, as given to `presents` */
    PyObject *description; /* parsed, or NULL */
    PyObject *planes;      /* views kept, or NULL */
    PyObject *tensors;
    char closed;
};

/* ---- making --------------------------------------------------------------------------------- */

int mcpd_py_presentation_set(struct mcpd_py_presentation *self, PyTypeObject *base, PyObject *type,
                             PyObject *grant, PyObject *description)
{
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, base)) {
        PyErr_Format(PyExc_TypeError, "%R is no subclass of %R", type, (PyObject *)base);
        return -1;
    }
    mcpd_py_presentation_clear(self);
    self->type = (PyTypeObject *)Py_NewRef(type);
    self->grant = Py_NewRef(grant);
    self->description = Py_NewRef(description);
    return 0;
}

void mcpd_py_presentation_clear(struct mcpd_py_presentation *self)
{
    Py_CLEAR(self->type);
    Py_CLEAR(self->grant);
    Py_CLEAR(self->description);
}

PyObject *mcpd_py_present(const struct mcpd_py_presentation *how, PyObject *core)
{
    if (how->type == NULL || core == NULL)
        return core;
    allocfunc allocate = (allocfunc)PyType_GetSlot(how->type, Py_tp_alloc);
    struct presented *self = (struct presented *)allocate(how->type, 0);
    if (self == NULL) {
        Py_DECREF(core);
        return NULL;
    }
    self->core = core;
    self->grant = Py_NewRef(how->grant);
    self->description = how->description == Py_None ? NULL : Py_NewRef(how->description);
    return (PyObject *)self;
}

/* ---- both ----------------------------------------------------------------------------------- */

static void drop_views(struct presented *self)
{
    Py_CLEAR(self->planes);
    Py_CLEAR(self->tensors);
}

static void presented_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct presented *self = (struct presented *)object;
    drop_views(self);
    Py_CLEAR(self->description);
    Py_CLEAR(self->grant);
    Py_CLEAR(self->core);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *presented_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *get_of_core(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((struct presented *)self)->core, name);
}

static int set_of_core(PyObject *self, PyObject *value, void *name)
{
    return PyObject_SetAttrString(((struct presented *)self)->core, name, value);
}

#define READ(name) {name, get_of_core, NULL, NULL, (void *)(uintptr_t)name}
#define SET(name) {name, get_of_core, set_of_core, NULL, (void *)(uintptr_t)name}

static PyMemberDef presented_members[] = {
    {"core", T_OBJECT_EX, offsetof(struct presented, core), READONLY, NULL},
    {"grant", T_OBJECT_EX, offsetof(struct presented, grant), READONLY, NULL},
    {"closed", T_BOOL, offsetof(struct presented, closed), READONLY, NULL},
    {"_description", T_OBJECT, offsetof(struct presented, description), 0, NULL},
    {"_planes", T_OBJECT, offsetof(struct presented, planes), 0, NULL},
    {"_tensors", T_OBJECT, offsetof(struct presented, tensors), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* ---- Frame ---------------------------------------------------------------------------------- */

static void close_frame(struct presented *self)
{
    self->closed = 1;
    drop_views(self);
    mcpd_py_pinned_slot_close(self->core);
}

/* Closes it in any case; the subclass's `check` tells who read it what is wrong, once. */
static PyObject *frame_close(PyObject *object, PyObject *unused)
{
    struct presented *self = (struct presented *)object;
    int closed = self->closed;
    (void)unused;
    close_frame(self);
    if (!closed && mcpd_py_pinned_slot_read_in_vain(self->core))
        return PyObject_CallMethod(object, "check", NULL);
    Py_RETURN_NONE;
}

/* Views that the caller took make it fail, and the frame stays open. */
static PyObject *frame_give_back(PyObject *object, PyObject *unused)
{
    struct presented *self = (struct presented *)object;
    (void)unused;
    drop_views(self);
    PyObject *result = PyObject_CallMethod(self->core, "give_back", NULL);
    if (result != NULL)
        self->closed = 1;
    return result;
}

static PyObject *frame_exit(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs == 0 || args[0] == Py_None)
        return frame_close(object, NULL);
    close_frame((struct presented *)object); /* what is raised already comes first */
    Py_RETURN_NONE;
}

static PyGetSetDef frame_attributes[] = {
    READ("seq"),        READ("generation"),    READ("nbytes"),            READ("pts_ns"),
    READ("capture_ns"), READ("publish_ns"),    READ("deadline_ns"),       READ("trace_id"),
    READ("flags"),      READ("status"),        READ("source_seq"),        READ("source_stream"),
    READ("awake_ns"),   READ("finish_ns"),     READ("source_publish_ns"), READ("model_version"),
    {NULL, NULL, NULL, NULL, NULL},
};

#define CALLABLE(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef frame_methods[] = {
    {"close", frame_close, METH_NOARGS,
     "Unpins, once no view is left that the caller took. Idempotent."},
    {"give_back", frame_give_back, METH_NOARGS, "Closes it and leaves it to the group."},
    {"__enter__", presented_enter, METH_NOARGS, NULL},
    {"__exit__", CALLABLE(frame_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot frame_slots[] = {
    {Py_tp_doc, "A pinned frame. Made by a reader."},
    {Py_tp_dealloc, presented_dealloc},
    {Py_tp_methods, frame_methods},
    {Py_tp_members, presented_members},
    {Py_tp_getset, frame_attributes},
    {0, NULL},
};

static PyType_Spec frame_spec = {
    .name = "mcpd.native._core.Frame",
    .basicsize = sizeof(struct presented),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = frame_slots,
};

/* ---- Slot ----------------------------------------------------------------------------------- */

static PyObject *slot_publish(PyObject *object, PyObject *unused)
{
    struct presented *self = (struct presented *)object;
    (void)unused;
    drop_views(self);
    return mcpd_py_write_slot_publish(self->core);
}

static PyObject *slot_abandon(PyObject *object, PyObject *unused)
{
    struct presented *self = (struct presented *)object;
    (void)unused;
    drop_views(self);
    self->closed = 1;
    mcpd_py_write_slot_abandon(self->core);
    Py_RETURN_NONE;
}

/* The subclass's `publish` knows how to tell what went wrong: publishing fails again. */
static PyObject *slot_exit(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    struct presented *self = (struct presented *)object;
    if (nargs > 0 && args[0] != Py_None)
        return slot_abandon(object, NULL);
    if (self->closed || mcpd_py_write_slot_published(self->core))
        Py_RETURN_NONE;
    PyObject *seq = slot_publish(object, NULL);
    if (seq == NULL) {
        PyErr_Clear();
        seq = PyObject_CallMethod(object, "publish", NULL);
        if (seq == NULL)
            return NULL;
    }
    Py_DECREF(seq);
    Py_RETURN_NONE;
}

static PyGetSetDef slot_attributes[] = {
    READ("index"),          READ("seq"),           READ("publish_ns"),   SET("nbytes"),
    SET("pts_ns"),          SET("capture_ns"),     SET("deadline_ns"),   SET("trace_id"),
    SET("flags"),           SET("status"),         SET("source_seq"),    SET("source_stream"),
    SET("awake_ns"),        SET("finish_ns"),      SET("model_version"), SET("source_publish_ns"),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef slot_methods[] = {
    {"publish", slot_publish, METH_NOARGS, "Publishes; returns the sequence number."},
    {"abandon", slot_abandon, METH_NOARGS,
     "Gives the slot back unpublished. Idempotent; does nothing after publish."},
    {"__enter__", presented_enter, METH_NOARGS, NULL},
    {"__exit__", CALLABLE(slot_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slot_slots[] = {
    {Py_tp_doc, "An acquired slot. Made by a writer."},
    {Py_tp_dealloc, presented_dealloc},
    {Py_tp_methods, slot_methods},
    {Py_tp_members, presented_members},
    {Py_tp_getset, slot_attributes},
    {0, NULL},
};

static PyType_Spec slot_spec = {
    .name = "mcpd.native._core.Slot",
    .basicsize = sizeof(struct presented),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slot_slots,
};

int mcpd_binding_add_presented(PyObject *module)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    state->frame = mcpd_binding_add_type(module, &frame_spec);
    state->slot = mcpd_binding_add_type(module, &slot_spec);
    return state->frame == NULL || state->slot == NULL ? -1 : 0;
}
