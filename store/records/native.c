/* Encoder of the record that stores a plain message.

   Optional: if it was not compiled, store/records/stored.py does the same. A plain message is a text or bytes message
   whose header has only ids, destination, priority, times and the persistent flag. Its properties are passed as the
   encoded map.

   store/records/fields.py describes the layout of the frame, store/records/commands.py that of the command around it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { TEXT = 28, FRAME_FIXED = 95, ADD = 1, ID_TAG = 0x1a, FRAME_TAG = 0x22 };

static unsigned char *put(unsigned char *to, const char *bytes, Py_ssize_t length)
{
    memcpy(to, bytes, (size_t)length);
    return to + length;
}

static unsigned char *put_zeros(unsigned char *to, size_t count)
{
    memset(to, 0, count);
    return to + count;
}

static unsigned char *put_number(unsigned char *to, uint64_t number, int bytes)
{
    for (int at = bytes - 1; at >= 0; at--) {
        to[at] = (unsigned char)number;
        number >>= 8;
    }
    return to + bytes;
}

static unsigned char *put_varint(unsigned char *to, uint64_t number)
{
    while (number > 0x7f) {
        *to++ = (unsigned char)(number & 0x7f) | 0x80;
        number >>= 7;
    }
    *to++ = (unsigned char)number;
    return to;
}

static Py_ssize_t varint_size(uint64_t number)
{
    Py_ssize_t size = 1;
    while (number > 0x7f) {
        number >>= 7;
        size++;
    }
    return size;
}

/* Returns whether modified UTF-8 is the same as UTF-8 for this text: it is ASCII without NUL. */
static int is_plain_text(const char *body, Py_ssize_t length)
{
    for (Py_ssize_t at = 0; at < length; at++)
        if ((unsigned char)(body[at] - 1) >= 0x7f)
            return 0;
    return 1;
}

PyDoc_STRVAR(plain_add_doc,
             "plain_add(kind, producer, destination, sequence, broker_sequence, persistent, expiration, priority, "
             "timestamp, body, properties, field, key, text, tail)\n--\n\n"
             "See store/records/native.pyi.");

static PyObject *plain_add(PyObject *module, PyObject *args)
{
    int kind, persistent, priority;
    long long sequence, broker_sequence, expiration, timestamp;
    const char *producer, *destination, *body, *properties, *field, *key, *text, *tail;
    Py_ssize_t producer_size, destination_size, body_size, properties_size, field_size, key_size, text_size, tail_size;

    if (!PyArg_ParseTuple(args, "iy#y#LLpLiLy#y#y#y#y#y#", &kind, &producer, &producer_size, &destination,
                          &destination_size, &sequence, &broker_sequence, &persistent, &expiration, &priority,
                          &timestamp, &body, &body_size, &properties, &properties_size, &field, &field_size, &key,
                          &key_size, &text, &text_size, &tail, &tail_size))
        return NULL;
    if (priority < -128 || priority > 127) {
        PyErr_SetString(PyExc_OverflowError, "a priority has 8 bits");
        return NULL;
    }
    if (body_size > INT32_MAX / 2 || properties_size > INT32_MAX / 4) {
        PyErr_SetString(PyExc_OverflowError, "a body has less than 1 GiB, and properties have half of that");
        return NULL;
    }
    if (kind == TEXT && !is_plain_text(body, body_size))
        Py_RETURN_NONE;

    Py_ssize_t content_size = kind == TEXT ? 9 + body_size : body_size ? 5 + body_size : 1;
    Py_ssize_t frame_size = FRAME_FIXED + 2 * producer_size + destination_size + text_size + content_size +
                            (properties_size ? 4 + properties_size : 0);
    Py_ssize_t size = field_size + 1 + varint_size((uint64_t)key_size) + key_size + 1 +
                      varint_size((uint64_t)frame_size) + frame_size + tail_size;
    PyObject *made = PyBytes_FromStringAndSize(NULL, 1 + varint_size((uint64_t)size) + size);
    if (made == NULL)
        return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(made);
    *to++ = ADD;
    to = put_varint(to, (uint64_t)size);
    to = put(to, field, field_size);
    *to++ = ID_TAG;
    to = put_varint(to, (uint64_t)key_size);
    to = put(to, key, key_size);
    *to++ = FRAME_TAG;
    to = put_varint(to, (uint64_t)frame_size);

    to = put_number(to, (uint64_t)frame_size - 4, 4);
    *to++ = (unsigned char)kind;
    to = put_zeros(to, 5); /* command id, response required */
    to = put(to, producer, producer_size);
    to = put(to, destination, destination_size);
    to = put_zeros(to, 2); /* transaction id, original destination */
    to = put(to, "\1\x6e", 2); /* message id */
    to = put(to, text, text_size);
    to = put(to, producer, producer_size);
    to = put_number(to, (uint64_t)sequence, 8);
    to = put_number(to, (uint64_t)broker_sequence, 8);
    to = put_zeros(to, 1 + 1 + 4 + 1); /* original transaction id, group id, group sequence, correlation id */
    *to++ = persistent ? 1 : 0;
    to = put_number(to, (uint64_t)expiration, 8);
    *to++ = (unsigned char)priority;
    *to++ = 0; /* reply to */
    to = put_number(to, (uint64_t)timestamp, 8);
    *to++ = 0; /* type */
    if (kind == TEXT || body_size) {
        *to++ = 1;
        if (kind == TEXT)
            to = put_number(to, (uint64_t)body_size + 4, 4);
        to = put_number(to, (uint64_t)body_size, 4);
        to = put(to, body, body_size);
    } else
        *to++ = 0;
    if (properties_size) {
        *to++ = 1;
        to = put_number(to, (uint64_t)properties_size, 4);
        to = put(to, properties, properties_size);
    } else
        *to++ = 0;
    /* data structure, target, compressed, redelivery counter, broker path, arrival, user id, by bridge, droppable,
       cluster */
    to = put_zeros(to, 3 + 4 + 1 + 8 + 1 + 3);
    to = put_number(to, (uint64_t)timestamp, 8); /* broker in */
    to = put_zeros(to, 8 + 1); /* broker out, first for consumer */
    put(to, tail, tail_size);
    return made;
}

static PyMethodDef methods[] = {{"plain_add", plain_add, METH_VARARGS, plain_add_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "The record that stores a plain message.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
