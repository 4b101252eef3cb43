/* The head of a plain STOMP frame: command, headers, where the body begins.

   Optional: broker/protocols/stomp/frames.py can read every head, and reads all of them if this was not compiled. A
   plain head is ASCII without NUL, carriage return and backslash, has few lines, and is within the given limits. For any
   other head, and for an incomplete one, the result is None. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

enum { LINES_MAX = 64 };

/* Returns the next line feed before ``end``, or with ``colon`` the next line feed or colon; NULL: there is none, or a
   byte that a plain head cannot have comes first. */
static const unsigned char *next_of(const unsigned char *at, const unsigned char *end, int colon)
{
    for (; at < end; at++) {
        unsigned char byte = *at;
        if (byte == '\n' || (colon && byte == ':'))
            return at;
        if (byte == 0 || byte == '\r' || byte == '\\' || byte >= 0x80)
            return NULL;
    }
    return NULL;
}

static PyObject *text_of(const unsigned char *start, const unsigned char *end)
{
    PyObject *text = PyUnicode_New(end - start, 0x7f);
    if (text != NULL)
        memcpy(PyUnicode_1BYTE_DATA(text), start, (size_t)(end - start));
    return text;
}

PyDoc_STRVAR(plain_head_doc, "plain_head(data, start, bytes_max, headers_max)\n--\n\n"
                             "See broker/protocols/stomp/native.pyi.");

static PyObject *plain_head(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "plain_head(data: bytes, start: int, bytes_max: int, headers_max: int)");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    Py_ssize_t bytes_max = PyLong_AsSsize_t(args[2]);
    Py_ssize_t headers_max = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (start < 0 || start > size || bytes_max < 0) {
        PyErr_SetString(PyExc_ValueError, "the head begins within the data");
        return NULL;
    }
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    const unsigned char *at = data + start;
    /* A head of bytes_max bytes, and the two line feeds that end it. */
    const unsigned char *stop = size - start - 2 > bytes_max ? at + bytes_max + 2 : data + size;

    const unsigned char *line_end = next_of(at, stop, 0);
    if (line_end == NULL)
        Py_RETURN_NONE;
    const unsigned char *names[LINES_MAX], *colons[LINES_MAX], *ends[LINES_MAX];
    const unsigned char *command_start = at, *command_end = line_end;
    Py_ssize_t lines = 0;
    for (;;) {
        at = line_end + 1;
        if (at < stop && *at == '\n')
            break;
        if (lines == LINES_MAX || lines + 1 >= headers_max)
            Py_RETURN_NONE;
        const unsigned char *colon = next_of(at, stop, 1);
        line_end = colon == NULL || *colon != ':' ? NULL : next_of(colon + 1, stop, 0);
        if (line_end == NULL)
            Py_RETURN_NONE;
        names[lines] = at;
        colons[lines] = colon;
        ends[lines++] = line_end;
    }

    PyObject *command = text_of(command_start, command_end), *headers = PyDict_New(), *head = NULL;
    PyObject *body_start = PyLong_FromSsize_t(at + 1 - data);
    if (command == NULL || headers == NULL || body_start == NULL)
        goto end;
    /* Backwards, as in frames.py: of repeated headers the first one counts. */
    while (lines-- > 0) {
        PyObject *name = text_of(names[lines], colons[lines]);
        PyObject *value = text_of(colons[lines] + 1, ends[lines]);
        int failed = name == NULL || value == NULL || PyDict_SetItem(headers, name, value) < 0;
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (failed)
            goto end;
    }
    head = PyTuple_Pack(3, command, headers, body_start);
end:
    Py_XDECREF(command);
    Py_XDECREF(headers);
    Py_XDECREF(body_start);
    return head;
}

static PyMethodDef methods[] = {
    {"plain_head", (PyCFunction)(void (*)(void))plain_head, METH_FASTCALL, plain_head_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "The head of a plain STOMP frame.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
