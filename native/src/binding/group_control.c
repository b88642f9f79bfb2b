/*
 * GroupControl: the daemon's view of a group's control object.
 */
#include "control.h"

#include "atomics.h"
#include "layout.h"
#include "mcpd.h"

static PyObject *group_control_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "nslots", NULL};
    return mcpd_py_control_new(type, args, kwargs, names, mcpd_group_control_nbytes, 0);
}

static PyObject *group_control_initialise(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream_id", "generation", "group_id", NULL};
    struct mcpd_geometry geometry = {.nslots = ((struct mcpd_py_control *)self)->count};
    uint64_t group_id;
    struct mcpd_gctl *gctl = mcpd_py_control_mapped(self);
    if (gctl == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&:initialise", names, mcpd_binding_u64,
                                     &geometry.stream_id, mcpd_binding_u64, &geometry.generation,
                                     mcpd_binding_u64, &group_id))
        return NULL;
    mcpd_gctl_format(gctl, &geometry, group_id);
    Py_RETURN_NONE;
}

static PyObject *group_control_start(PyObject *self, PyObject *argument)
{
    uint64_t cursor;
    struct mcpd_gctl *gctl = mcpd_py_control_mapped(self);
    if (gctl == NULL || !mcpd_binding_u64(argument, &cursor))
        return NULL;
    mcpd_store_seq_cst(&gctl->cursor, cursor);
    Py_RETURN_NONE;
}

static PyObject *group_control_sweep(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"member", "others", NULL};
    uint32_t member;
    int others;
    struct mcpd_gctl *gctl = mcpd_py_control_mapped(self);
    if (gctl == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O&p:sweep", names,
                                                     mcpd_binding_u32, &member, &others))
        return NULL;
    return PyLong_FromUnsignedLong(
        mcpd_gctl_sweep(gctl, ((struct mcpd_py_control *)self)->count, member, others));
}

static const _Atomic uint64_t *claims_of(const struct mcpd_gctl *gctl)
{
    return (const _Atomic uint64_t *)((const uint8_t *)gctl + MCPD_GCTL_CLAIMS);
}

static PyObject *group_control_claims(PyObject *self, PyObject *unused)
{
    (void)unused;
    const struct mcpd_gctl *gctl = mcpd_py_control_mapped(self);
    PyObject *list = gctl == NULL ? NULL : PyList_New(0);
    if (list == NULL)
        return NULL;
    for (uint32_t slot = 0; slot < ((struct mcpd_py_control *)self)->count; slot++) {
        uint64_t word = mcpd_load_acquire(&claims_of(gctl)[slot]);
        uint32_t state = MCPD_CLAIM_STATE(word);
        if (state != MCPD_CLAIM_TAKEN && state != MCPD_CLAIM_RETURNED)
            continue;
        PyObject *claim = Py_BuildValue("IKII", (unsigned int)slot,
                                        (unsigned long long)MCPD_TAG_SEQ(word),
                                        (unsigned int)MCPD_CLAIM_MEMBER(word), (unsigned int)state);
        if (claim == NULL || PyList_Append(list, claim) != 0) {
            Py_XDECREF(claim);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(claim);
    }
    return list;
}

static PyObject *group_control_stats(PyObject *self, PyObject *unused)
{
    (void)unused;
    const struct mcpd_gctl *gctl = mcpd_py_control_mapped(self);
    if (gctl == NULL)
        return NULL;
    unsigned long long returned = 0;
    for (uint32_t slot = 0; slot < ((struct mcpd_py_control *)self)->count; slot++)
        returned += MCPD_CLAIM_STATE(mcpd_load_relaxed(&claims_of(gctl)[slot])) ==
                    MCPD_CLAIM_RETURNED;
#define COUNTER(name) (unsigned long long)mcpd_load_relaxed(&gctl->name)
    return Py_BuildValue("{s:K,s:K,s:K,s:K}", "cursor", COUNTER(cursor), "returned", returned,
                         "finished", COUNTER(finished), "returns", COUNTER(returns));
#undef COUNTER
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef group_control_methods[] = {
    {"initialise", KEYWORDS(group_control_initialise), "Formats a new, all-zero object."},
    {"start", group_control_start, METH_O, "Sets the group's cursor, before its first member."},
    {"sweep", KEYWORDS(group_control_sweep), "Gives back what a dead member had claimed."},
    {"claims", group_control_claims, METH_NOARGS,
     "(slot, seq, member, state) of every claim that pins a frame."},
    {"stats", group_control_stats, METH_NOARGS, "The group's counters."},
    {"close", mcpd_py_control_close, METH_NOARGS, "Unmaps. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot group_control_slots[] = {
    {Py_tp_doc, "The daemon's view of a group's control object."},
    {Py_tp_new, group_control_new},
    {Py_tp_dealloc, mcpd_py_control_dealloc},
    {Py_tp_methods, group_control_methods},
    {0, NULL},
};

static PyType_Spec group_control_spec = {
    .name = "mcpd.native._core.GroupControl",
    .basicsize = sizeof(struct mcpd_py_control),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = group_control_slots,
};

int mcpd_binding_add_group_control(PyObject *module)
{
    PyTypeObject *type = mcpd_binding_add_type(module, &group_control_spec);
    Py_XDECREF((PyObject *)type);
    return type == NULL ? -1 : 0;
}
