/* A batch of the journal as one step of the disk: encode, write, sync, look for a successor and at the own file.

   Optional: journal/writer.py does the same, call by call, where this was not compiled. Here the interpreter's lock is
   let go once for all of them; there it is six times, and each time it has to be got back from the event loop.

   The bytes are those of journal/format.py; what is looked at, and how, is that of JournalWriter.check_fence and of
   tandemmq/disk.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DONE, WRITE, SYNC, SUCCESSOR_UNKNOWN, SUCCESSOR_THERE, OWN_UNKNOWN, OWN_IRREGULAR };

enum { RECORD_HEADER = 5, CONTROL = 28, END = 5, SEAL = 16, USER_RECORD = 1, BATCH_RECORD = 2 };

static const unsigned char END_RECORD[END] = {'-', 'q', 'M', 'a', '4'};

static void put_int(unsigned char *to, uint32_t number)
{
    to[0] = (unsigned char)(number >> 24);
    to[1] = (unsigned char)(number >> 16);
    to[2] = (unsigned char)(number >> 8);
    to[3] = (unsigned char)number;
}

/* RFC 1950. In runs so short that no sum overflows. */
static uint32_t adler32(const unsigned char *data, size_t length)
{
    uint32_t a = 1, b = 0;
    while (length > 0) {
        size_t run = length < 5552 ? length : 5552;
        length -= run;
        while (run >= 8) {
            a += data[0]; b += a; a += data[1]; b += a; a += data[2]; b += a; a += data[3]; b += a;
            a += data[4]; b += a; a += data[5]; b += a; a += data[6]; b += a; a += data[7]; b += a;
            data += 8;
            run -= 8;
        }
        while (run-- > 0) {
            a += *data++;
            b += a;
        }
        a %= 65521;
        b %= 65521;
    }
    return b << 16 | a;
}

/* What was found out, without the interpreter's lock. */
struct outcome {
    int step;
    int error;
    double looked_at;
    uint64_t device;
    uint64_t inode;
};

static void write_sync_look(int fd, const unsigned char *batch, size_t length, off_t offset, const char *successor,
                            const char *own, struct outcome *out)
{
    struct stat status;
    struct timespec now;
    int looking, answer;

    out->step = WRITE;
    while (length > 0) {
        ssize_t written = pwrite(fd, batch, length, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            out->error = written < 0 ? errno : EIO; /* it took no byte, and names no reason */
            return;
        }
        batch += written;
        length -= (size_t)written;
        offset += written;
    }
    out->step = SYNC;
    do
        answer = fdatasync(fd);
    while (answer < 0 && errno == EINTR);
    if (answer < 0) {
        out->error = errno;
        return;
    }
    /* From before the looks: who asks later how old they are must not think them younger. */
    clock_gettime(CLOCK_BOOTTIME, &now);
    out->looked_at = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    if (stat(successor, &status) == 0) {
        out->step = SUCCESSOR_THERE;
        return;
    }
    if (errno != ENOENT) {
        out->step = SUCCESSOR_UNKNOWN;
        out->error = errno;
        return;
    }
    /* Opened, so that a host asks its server and not what it remembers (NFS). */
    out->step = OWN_UNKNOWN;
    do
        looking = open(own, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    while (looking < 0 && errno == EINTR);
    if (looking < 0) {
        out->error = errno;
        return;
    }
    if (fstat(looking, &status) < 0)
        out->error = errno;
    else if (!S_ISREG(status.st_mode))
        out->step = OWN_IRREGULAR;
    else {
        out->device = (uint64_t)status.st_dev;
        out->inode = (uint64_t)status.st_ino;
        out->step = DONE;
    }
    close(looking);
}

/* The batch with its end record, in memory that is the caller's to free. */
static unsigned char *encode(PyObject *payloads, Py_ssize_t count, size_t length)
{
    unsigned char *batch = PyMem_RawMalloc(CONTROL + length + END);
    if (batch == NULL)
        return NULL;
    put_int(batch, CONTROL);
    batch[4] = BATCH_RECORD;
    memcpy(batch + 5, "WRITE BATCH", 11);
    put_int(batch + SEAL, (uint32_t)length);
    unsigned char *to = batch + CONTROL;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, number);
        size_t size = (size_t)PyBytes_GET_SIZE(payload);
        put_int(to, (uint32_t)(size + RECORD_HEADER));
        to[4] = USER_RECORD;
        memcpy(to + RECORD_HEADER, PyBytes_AS_STRING(payload), size);
        to += RECORD_HEADER + size;
    }
    memcpy(to, END_RECORD, END);
    return batch;
}

static PyObject *locations_of(PyObject *payloads, Py_ssize_t count, long long origin)
{
    PyObject *locations = PyList_New(count);
    if (locations == NULL)
        return NULL;
    long long at = origin + CONTROL;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *each = PyLong_FromLongLong(at);
        if (each == NULL) {
            Py_DECREF(locations);
            return NULL;
        }
        PyList_SET_ITEM(locations, number, each);
        at += RECORD_HEADER + PyBytes_GET_SIZE(PyTuple_GET_ITEM(payloads, number));
    }
    return locations;
}

PyDoc_STRVAR(commit_doc,
             "commit(fd, payloads, offset, origin, successor, own)\n--\n\n"
             "See journal/native.pyi.");

static PyObject *commit(PyObject *module, PyObject *args)
{
    int fd;
    PyObject *given, *payloads, *successor = NULL, *own = NULL, *locations = NULL, *result = NULL;
    long long offset, origin;
    size_t length = 0;
    struct outcome out = {0};

    if (!PyArg_ParseTuple(args, "iOLLO&O&", &fd, &given, &offset, &origin, PyUnicode_FSConverter, &successor,
                          PyUnicode_FSConverter, &own))
        return NULL;
    payloads = PySequence_Tuple(given); /* ours: the bytes in it stay while the lock is let go */
    if (payloads == NULL)
        goto end;
    Py_ssize_t count = PyTuple_GET_SIZE(payloads);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, number);
        if (!PyBytes_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "a payload is bytes");
            goto end;
        }
        length += RECORD_HEADER + (size_t)PyBytes_GET_SIZE(payload);
    }
    if (count == 0 || offset < 0 || length > INT32_MAX || (unsigned long long)offset + CONTROL + length + END > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one record, and its file stays below 2 GiB");
        goto end;
    }
    locations = locations_of(payloads, count, origin);
    if (locations == NULL)
        goto end;

    uint32_t checksum = 0;
    unsigned char *batch;
    Py_BEGIN_ALLOW_THREADS
    batch = encode(payloads, count, length);
    if (batch != NULL) {
        checksum = adler32(batch + CONTROL, length);
        put_int(batch + SEAL + 4, 0);
        put_int(batch + SEAL + 8, checksum);
        write_sync_look(fd, batch, CONTROL + length + END, (off_t)offset, PyBytes_AS_STRING(successor),
                        PyBytes_AS_STRING(own), &out);
        PyMem_RawFree(batch);
    }
    Py_END_ALLOW_THREADS
    if (batch == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    result = Py_BuildValue("(iiOnIdKK)", out.step, out.error, locations, (Py_ssize_t)(CONTROL + length), checksum,
                           out.looked_at, (unsigned long long)out.device, (unsigned long long)out.inode);
end:
    Py_XDECREF(locations);
    Py_XDECREF(payloads);
    Py_XDECREF(successor);
    Py_XDECREF(own);
    return result;
}

static PyMethodDef methods[] = {{"commit", commit, METH_VARARGS, commit_doc}, {NULL, NULL, 0, NULL}};

static int add_steps(PyObject *module)
{
    static const struct {
        const char *name;
        int value;
    } steps[] = {{"DONE", DONE},
                 {"WRITE", WRITE},
                 {"SYNC", SYNC},
                 {"SUCCESSOR_UNKNOWN", SUCCESSOR_UNKNOWN},
                 {"SUCCESSOR_THERE", SUCCESSOR_THERE},
                 {"OWN_UNKNOWN", OWN_UNKNOWN},
                 {"OWN_IRREGULAR", OWN_IRREGULAR}};
    for (size_t number = 0; number < sizeof steps / sizeof *steps; number++)
        if (PyModule_AddIntConstant(module, steps[number].name, steps[number].value) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_steps}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "A batch of the journal as one step of the disk.", 0, methods, slots, NULL, NULL,
    NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
