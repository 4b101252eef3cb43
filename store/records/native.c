/* Encoder of the record that stores a plain message.

   Optional: if it was not compiled, store/records/stored.py does the same. A plain message is a text or bytes message
   whose header has only ids, destination, priority, times and the persistent flag. Its properties are passed as the
   encoded map.

   store/records/fields.py describes the layout of the frame, store/records/commands.py that of the command around it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { TEXT = 28, FRAME_FIXED = 95, ADD = 1, REMOVE = 2, ID_TAG = 0x1a, FRAME_TAG = 0x22 };
enum { ADD_ARGUMENTS = 14, REMOVE_ARGUMENTS = 3, DIGITS_MAX = 18 };

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

/* A usual message id: ``<producer>:<number>`` in ASCII. ``producer``: the encoded ProducerId, an own reference. */
struct message_id {
    const char *text;
    Py_ssize_t size;
    PyObject *producer;
    long long sequence;
};

static int take_bytes(PyObject *given, const char **data, Py_ssize_t *size)
{
    if (!PyBytes_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "bytes are expected");
        return 0;
    }
    *data = PyBytes_AS_STRING(given);
    *size = PyBytes_GET_SIZE(given);
    return 1;
}

/* Returns 1 for a usual id whose producer is known, 0 for any other id, -1 with an exception set. The number has the
   form that loose.is_plain_sequence accepts. */
static int read_id(PyObject *given, PyObject *producers, struct message_id *its)
{
    if (!PyUnicode_Check(given) || !PyDict_Check(producers)) {
        PyErr_SetString(PyExc_TypeError, "a message id is a text, and the producers are a dict");
        return -1;
    }
    if (!PyUnicode_IS_COMPACT_ASCII(given))
        return 0;
    its->text = (const char *)PyUnicode_1BYTE_DATA(given);
    its->size = PyUnicode_GET_LENGTH(given);
    Py_ssize_t colon = its->size - 1;
    while (colon >= 0 && its->text[colon] >= '0' && its->text[colon] <= '9')
        colon--;
    Py_ssize_t digits = its->size - 1 - colon;
    if (colon < 0 || its->text[colon] != ':' || digits < 1 || digits > DIGITS_MAX || its->text[colon + 1] == '0')
        return 0;
    its->sequence = 0;
    for (Py_ssize_t at = colon + 1; at < its->size; at++)
        its->sequence = its->sequence * 10 + (its->text[at] - '0');
    PyObject *prefix = PyUnicode_Substring(given, 0, colon);
    if (prefix == NULL)
        return -1;
    PyObject *producer = PyDict_GetItemWithError(producers, prefix);
    Py_DECREF(prefix);
    if (producer == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyBytes_Check(producer)) {
        PyErr_SetString(PyExc_TypeError, "a producer is bytes");
        return -1;
    }
    Py_INCREF(producer);
    its->producer = producer;
    return 1;
}

PyDoc_STRVAR(plain_add_doc,
             "plain_add(message_id, producers, kind, destination, broker_sequence, persistent, expiration, priority, "
             "timestamp, body, properties, field, text, tail)\n--\n\n"
             "See store/records/native.pyi.");

static PyObject *plain_add(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct message_id id;
    const char *destination, *body, *properties, *field, *text, *tail;
    Py_ssize_t destination_size, body_size, properties_size, field_size, text_size, tail_size;

    if (count != ADD_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "plain_add() takes 14 arguments, not %zd", count);
    if (!take_bytes(args[3], &destination, &destination_size) || !take_bytes(args[9], &body, &body_size) ||
        !take_bytes(args[10], &properties, &properties_size) || !take_bytes(args[11], &field, &field_size) ||
        !take_bytes(args[12], &text, &text_size) || !take_bytes(args[13], &tail, &tail_size))
        return NULL;
    long kind = PyLong_AsLong(args[2]);
    long long broker_sequence = PyLong_AsLongLong(args[4]);
    int persistent = PyObject_IsTrue(args[5]);
    long long expiration = PyLong_AsLongLong(args[6]);
    long priority = PyLong_AsLong(args[7]);
    long long timestamp = PyLong_AsLongLong(args[8]);
    if (PyErr_Occurred())
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
    int is_usual = read_id(args[0], args[1], &id);
    if (is_usual < 0)
        return NULL;
    if (!is_usual)
        Py_RETURN_NONE;

    const char *producer = PyBytes_AS_STRING(id.producer);
    Py_ssize_t producer_size = PyBytes_GET_SIZE(id.producer);

    Py_ssize_t content_size = kind == TEXT ? 9 + body_size : body_size ? 5 + body_size : 1;
    Py_ssize_t frame_size = FRAME_FIXED + 2 * producer_size + destination_size + text_size + content_size +
                            (properties_size ? 4 + properties_size : 0);
    Py_ssize_t size = field_size + 1 + varint_size((uint64_t)id.size) + id.size + 1 +
                      varint_size((uint64_t)frame_size) + frame_size + tail_size;
    PyObject *made = PyBytes_FromStringAndSize(NULL, 1 + varint_size((uint64_t)size) + size);
    if (made == NULL)
        goto end;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(made);
    *to++ = ADD;
    to = put_varint(to, (uint64_t)size);
    to = put(to, field, field_size);
    *to++ = ID_TAG;
    to = put_varint(to, (uint64_t)id.size);
    to = put(to, id.text, id.size);
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
    to = put_number(to, (uint64_t)id.sequence, 8);
    to = put_number(to, (uint64_t)(broker_sequence ? broker_sequence : id.sequence), 8);
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
end:
    Py_DECREF(id.producer);
    return made;
}

PyDoc_STRVAR(plain_remove_doc, "plain_remove(message_id, producers, field)\n--\n\n"
                               "See store/records/native.pyi.");

static PyObject *plain_remove(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct message_id id;
    const char *field;
    Py_ssize_t field_size;

    if (count != REMOVE_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "plain_remove() takes 3 arguments, not %zd", count);
    if (!take_bytes(args[2], &field, &field_size))
        return NULL;
    int is_usual = read_id(args[0], args[1], &id);
    if (is_usual < 0)
        return NULL;
    if (!is_usual)
        Py_RETURN_NONE;
    Py_DECREF(id.producer);
    Py_ssize_t size = field_size + 1 + varint_size((uint64_t)id.size) + id.size;
    PyObject *made = PyBytes_FromStringAndSize(NULL, 1 + varint_size((uint64_t)size) + size);
    if (made == NULL)
        return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(made);
    *to++ = REMOVE;
    to = put_varint(to, (uint64_t)size);
    to = put(to, field, field_size);
    *to++ = ID_TAG;
    to = put_varint(to, (uint64_t)id.size);
    put(to, id.text, id.size);
    return made;
}


static PyMethodDef methods[] = {
    {"plain_add", (PyCFunction)(void (*)(void))plain_add, METH_FASTCALL, plain_add_doc},
    {"plain_remove", (PyCFunction)(void (*)(void))plain_remove, METH_FASTCALL, plain_remove_doc},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "The record that stores a plain message.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
