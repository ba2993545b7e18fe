// Prints where the fields are that `cpython` reads, as one line of JSON. It is compiled against an interpreter's own
// headers (`cargo xtask make python-offsets`); which fields there are depends on the version.

#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>

#if PY_VERSION_HEX < 0x03090000
#include <internal/pycore_pystate.h>
#else
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
typedef _PyInterpreterFrame Frame;
#else
typedef PyFrameObject Frame;
#endif

#if PY_VERSION_HEX >= 0x030d0000
#define THREAD_FRAME current_frame
#elif PY_VERSION_HEX >= 0x030b0000
#define THREAD_FRAME cframe
#else
#define THREAD_FRAME frame
#endif

#ifdef Py_GIL_DISABLED
#define FREE_THREADED ",\"free_threaded\":true"
#else
#define FREE_THREADED ""
#endif

static const char *comma = "";

static void begin(const char *name) {
    printf("%s\"%s\":{", comma, name);
    comma = "";
}

static void end(void) {
    printf("}");
    comma = ",";
}

static void field(const char *name, size_t offset) {
    printf("%s\"%s\":%zu", comma, name, offset);
    comma = ",";
}

int main(void) {
    printf("{\"made_from\":\"%s\",\"version\":{\"major\":%d,\"minor\":%d%s}", PY_VERSION, PY_MAJOR_VERSION,
           PY_MINOR_VERSION, FREE_THREADED);
    comma = ",";

    begin("runtime");
    field("interpreters_head", offsetof(_PyRuntimeState, interpreters.head));
    end();

    begin("interpreter");
    field("next", offsetof(PyInterpreterState, next));
#if PY_VERSION_HEX >= 0x030b0000
    field("threads_head", offsetof(PyInterpreterState, threads.head));
#else
    field("threads_head", offsetof(PyInterpreterState, tstate_head));
#endif
#if PY_VERSION_HEX >= 0x030e0000
    field("code_generation", offsetof(PyInterpreterState, _code_object_generation));
#endif
    end();

    begin("thread");
    field("next", offsetof(PyThreadState, next));
    field("interpreter", offsetof(PyThreadState, interp));
    field("frame", offsetof(PyThreadState, THREAD_FRAME));
    field("thread_id", offsetof(PyThreadState, thread_id));
#if PY_VERSION_HEX >= 0x030b0000
    field("native_thread_id", offsetof(PyThreadState, native_thread_id));
#endif
    end();

    begin("frame");
#if PY_VERSION_HEX >= 0x030b0000
    field("previous", offsetof(Frame, previous));
#else
    field("previous", offsetof(Frame, f_back));
#endif
#if PY_VERSION_HEX >= 0x030d0000
    field("code", offsetof(Frame, f_executable));
    field("instruction", offsetof(Frame, instr_ptr));
#else
    field("code", offsetof(Frame, f_code));
#if PY_VERSION_HEX >= 0x030b0000
    field("instruction", offsetof(Frame, prev_instr));
#else
    field("instruction", offsetof(Frame, f_lasti));
#endif
#endif
#if PY_VERSION_HEX >= 0x030b0000
    field("locals", offsetof(Frame, localsplus));
#else
    field("locals", offsetof(Frame, f_localsplus));
#endif
#if PY_VERSION_HEX >= 0x030c0000
    field("owner", offsetof(Frame, owner));
#endif
#if PY_VERSION_HEX >= 0x030e0000 && defined(Py_GIL_DISABLED)
    field("bytecode_copy", offsetof(Frame, tlbc_index));
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
    field("in_c_frame", offsetof(_PyCFrame, current_frame));
#endif
    end();

    begin("code");
    field("filename", offsetof(PyCodeObject, co_filename));
    field("name", offsetof(PyCodeObject, co_name));
#if PY_VERSION_HEX >= 0x030b0000
    field("qualname", offsetof(PyCodeObject, co_qualname));
#endif
    field("first_line", offsetof(PyCodeObject, co_firstlineno));
#if PY_VERSION_HEX >= 0x030a0000
    field("line_table", offsetof(PyCodeObject, co_linetable));
#else
    field("line_table", offsetof(PyCodeObject, co_lnotab));
#endif
#if PY_VERSION_HEX >= 0x030b0000
    field("local_names", offsetof(PyCodeObject, co_localsplusnames));
#else
    field("local_names", offsetof(PyCodeObject, co_varnames));
#endif
#if PY_VERSION_HEX >= 0x030b0000
    field("instructions", offsetof(PyCodeObject, co_code_adaptive));
#endif
#if PY_VERSION_HEX >= 0x030e0000 && defined(Py_GIL_DISABLED)
    field("bytecode_copies", offsetof(PyCodeObject, co_tlbc));
#endif
    end();

    begin("object");
    field("kind", offsetof(PyObject, ob_type));
    field("type_name", offsetof(PyTypeObject, tp_name));
    end();

    begin("bytes");
    field("length", offsetof(PyVarObject, ob_size));
    field("data", offsetof(PyBytesObject, ob_sval));
    end();

    begin("text");
    field("length", offsetof(PyASCIIObject, length));
    field("state", offsetof(PyASCIIObject, state));
    field("ascii_data", sizeof(PyASCIIObject));
    field("compact_data", sizeof(PyCompactUnicodeObject));
    end();

    begin("sequence");
    field("length", offsetof(PyVarObject, ob_size));
    field("tuple_items", offsetof(PyTupleObject, ob_item));
    field("list_items", offsetof(PyListObject, ob_item));
    end();

    begin("integer");
#if PY_VERSION_HEX >= 0x030c0000
    field("size", offsetof(PyLongObject, long_value.lv_tag));
    field("digits", offsetof(PyLongObject, long_value.ob_digit));
#else
    field("size", offsetof(PyVarObject, ob_size));
    field("digits", offsetof(PyLongObject, ob_digit));
#endif
    end();
    printf("}\n");
    return 0;
}
