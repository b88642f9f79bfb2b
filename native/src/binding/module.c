/*
 * mcpd.native._core: constants, sizes, and a process's ties to its parent.
 */
#include "binding.h"
#include "presented.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "layout.h"
#include "mcpd.h"

PyTypeObject *mcpd_binding_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) != 0)
        Py_CLEAR(type);
    return type;
}

struct mcpd_module_state *mcpd_binding_state(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

/* ---- functions ------------------------------------------------------------------------------ */

static PyObject *sized(int64_t nbytes)
{
    if (nbytes < 0)
        return PyErr_Format(PyExc_ValueError,
                            "out of bounds: nslots is 2 to %d, max_pins is 1 to %d, and "
                            "slot_nbytes is a multiple of 4096 up to 2**40",
                            MCPD_MAX_SLOTS, MCPD_MAX_PINS);
    return PyLong_FromLongLong(nbytes);
}

static PyObject *payload_nbytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nslots", "slot_nbytes", NULL};
    struct mcpd_geometry geometry = {0};
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&:payload_nbytes", names, mcpd_binding_u32,
                                     &geometry.nslots, mcpd_binding_u64, &geometry.slot_nbytes))
        return NULL;
    return sized(mcpd_payload_nbytes(&geometry));
}

static PyObject *writer_control_nbytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nslots", NULL};
    uint32_t nslots;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:writer_control_nbytes", names,
                                     mcpd_binding_u32, &nslots))
        return NULL;
    return sized(mcpd_writer_control_nbytes(nslots));
}

static PyObject *reader_control_nbytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_pins", NULL};
    uint32_t max_pins;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:reader_control_nbytes", names,
                                     mcpd_binding_u32, &max_pins))
        return NULL;
    return sized(mcpd_reader_control_nbytes(max_pins));
}

static PyObject *group_control_nbytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nslots", NULL};
    uint32_t nslots;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:group_control_nbytes", names,
                                     mcpd_binding_u32, &nslots))
        return NULL;
    return sized(mcpd_group_control_nbytes(nslots));
}

/*
 * The kernel sends the signal when the thread that started this process ends, so a parent starts
 * its children from a thread that lives as long as it does. The parent may have died before prctl
 * ran, hence the look at getppid() afterwards.
 */
static PyObject *die_with_parent(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"signum", "parent_pid", NULL};
    int signum, parent_pid;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii:die_with_parent", names, &signum,
                                     &parent_pid))
        return NULL;
    if (signum < 1 || signum > SIGRTMAX)
        return PyErr_Format(PyExc_ValueError, "signum is %d; it must be 1 to %d", signum, SIGRTMAX);
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)signum, 0, 0, 0) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (getppid() != (pid_t)parent_pid && kill(getpid(), signum) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *set_dumpable(PyObject *module, PyObject *argument)
{
    (void)module;
    int dumpable = PyObject_IsTrue(argument);
    if (dumpable < 0)
        return NULL;
    if (prctl(PR_SET_DUMPABLE, (unsigned long)dumpable, 0, 0, 0) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef functions[] = {
    {"payload_nbytes", KEYWORDS(payload_nbytes), "Bytes of the payload object."},
    {"writer_control_nbytes", KEYWORDS(writer_control_nbytes), "Bytes of the writer's control."},
    {"reader_control_nbytes", KEYWORDS(reader_control_nbytes), "Bytes of a reader's control."},
    {"group_control_nbytes", KEYWORDS(group_control_nbytes), "Bytes of a group's control object."},
    {"die_with_parent", KEYWORDS(die_with_parent),
     "Has the kernel send signum to this process when its parent dies; now, if it is gone."},
    {"set_dumpable", set_dumpable, METH_O,
     "Whether others of this user may look into this process (ptrace, /proc/PID/fd)."},
    {NULL, NULL, 0, NULL},
};

/* ---- the module ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"ABI_VERSION", MCPD_ABI_VERSION},     {"MAX_READERS", MCPD_MAX_READERS},
    {"MAX_SLOTS", MCPD_MAX_SLOTS},         {"MAX_PINS", MCPD_MAX_PINS},
    {"MAX_TENSORS", MCPD_MAX_TENSORS},     {"POLICY_LATEST", MCPD_LATEST},
    {"POLICY_FIFO", MCPD_FIFO},            {"POLICY_LOSSLESS", MCPD_LOSSLESS},
    {"END_LIVE", MCPD_LIVE},               {"END_CLOSED", MCPD_END_CLOSED},
    {"END_WRITER_DIED", MCPD_END_WRITER_DIED}, {"END_REVOKED", MCPD_END_REVOKED},
    {"END_SHUTDOWN", MCPD_END_SHUTDOWN},   {"END_MOVED", MCPD_END_MOVED},
    {"LATENCY_BUCKETS", MCPD_LATENCY_BUCKETS},
};

static int add_constants(PyObject *module)
{
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0)
            return -1;
    PyObject *no_time = PyLong_FromLongLong(MCPD_NO_TIME);
    if (no_time == NULL)
        return -1;
    int result = PyModule_AddObjectRef(module, "NO_TIME", no_time);
    Py_DECREF(no_time);
    return result;
}

static int execute(PyObject *module)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    state->stream_ended = PyErr_NewExceptionWithDoc(
        "mcpd.native._core.StreamEnded",
        "The stream has ended and nothing is left to read. args: (reason,), one of END_*.", NULL,
        NULL);
    if (state->stream_ended == NULL ||
        PyModule_AddObjectRef(module, "StreamEnded", state->stream_ended) != 0)
        return -1;
    if (add_constants(module) != 0 || mcpd_binding_add_control(module) != 0 ||
        mcpd_binding_add_group_control(module) != 0 || mcpd_binding_add_writer(module) != 0 ||
        mcpd_binding_add_reader(module) != 0 || mcpd_binding_add_copy(module) != 0 ||
        mcpd_binding_add_presented(module) != 0)
        return -1;
    return mcpd_binding_add_prepare(module);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    Py_VISIT(state->stream_ended);
    Py_VISIT(state->write_slot);
    Py_VISIT(state->pinned_slot);
    Py_VISIT(state->frame);
    Py_VISIT(state->slot);
    return 0;
}

static int clear(PyObject *module)
{
    struct mcpd_module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->stream_ended);
    Py_CLEAR(state->write_slot);
    Py_CLEAR(state->pinned_slot);
    Py_CLEAR(state->frame);
    Py_CLEAR(state->slot);
    return 0;
}

static void release(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mcpd.native._core",
    .m_doc = "Streams in shared memory, fused preparation, process ties.",
    .m_size = sizeof(struct mcpd_module_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
