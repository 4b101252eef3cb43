/* The system's calls of journal/native.c as verbs of a disk of the tests: this is compiled before it (-include).

   A thread that has a disk (tandemmq_use_disk) asks that; any other asks the system. Each verb has the name, arguments
   and exceptions of its namesake in ``os``; ``boottime`` says what CLOCK_BOOTTIME shows, where the disk has it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static _Thread_local PyObject *recorded_disk;

/* With the interpreter's lock; ``disk`` stays until this is called with None. */
__attribute__((visibility("default"))) void tandemmq_use_disk(PyObject *disk)
{
    recorded_disk = disk == Py_None ? NULL : disk;
}

/* What a verb returned; NULL, and ``error`` set, when it raised. */
static PyObject *recorded_call(int *error, const char *verb, const char *format, ...)
{
    va_list given;
    va_start(given, format);
    PyObject *arguments = Py_VaBuildValue(format, given);
    va_end(given);
    PyObject *method = PyObject_GetAttrString(recorded_disk, verb);
    PyObject *answer = method != NULL && arguments != NULL ? PyObject_CallObject(method, arguments) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    if (answer == NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        PyObject *number = PyErr_GivenExceptionMatches(type, PyExc_OSError) ? PyObject_GetAttrString(value, "errno") : NULL;
        *error = number != NULL && PyLong_Check(number) ? (int)PyLong_AsLong(number) : EIO;
        Py_XDECREF(number);
        if (PyErr_GivenExceptionMatches(type, PyExc_OSError)) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        } else { /* a fault of the test: it is told, and the disk has failed */
            PyErr_Restore(type, value, trace);
            PyErr_WriteUnraisable(recorded_disk);
        }
    }
    return answer;
}

/* The number that a verb returned, None being 0; -1 with errno when it raised. Without the interpreter's lock. */
#define RECORDED(...)                                                      \
    int error = 0;                                                         \
    PyGILState_STATE state = PyGILState_Ensure();                          \
    PyObject *answer = recorded_call(&error, __VA_ARGS__);                 \
    long long number = answer == NULL ? -1 : answer == Py_None ? 0 : PyLong_AsLongLong(answer); \
    Py_XDECREF(answer);                                                    \
    PyGILState_Release(state);                                             \
    errno = error;                                                         \
    return number

static ssize_t recorded_pwrite(int fd, const void *data, size_t length, off_t offset)
{
    if (recorded_disk == NULL)
        return pwrite(fd, data, length, offset);
    RECORDED("pwrite", "(iy#L)", fd, data, (Py_ssize_t)length, (long long)offset);
}

static int recorded_fdatasync(int fd)
{
    if (recorded_disk == NULL)
        return fdatasync(fd);
    RECORDED("fdatasync", "(i)", fd);
}

static int recorded_open(const char *path, int flags)
{
    if (recorded_disk == NULL)
        return open(path, flags);
    RECORDED("open", "(sii)", path, flags, 0);
}

static int recorded_close(int fd)
{
    if (recorded_disk == NULL)
        return close(fd);
    RECORDED("close", "(i)", fd);
}

static unsigned long long recorded_field(PyObject *status, const char *name)
{
    PyObject *field = PyObject_GetAttrString(status, name);
    unsigned long long number = PyLong_AsUnsignedLongLong(field);
    Py_DECREF(field);
    return number;
}

/* 0 with what ``answer``, a result of stat, says of which file it is; -1 with errno. */
static int recorded_status(PyGILState_STATE state, PyObject *answer, int error, struct stat *status)
{
    if (answer != NULL) {
        status->st_dev = recorded_field(answer, "st_dev");
        status->st_ino = recorded_field(answer, "st_ino");
        status->st_mode = (mode_t)recorded_field(answer, "st_mode");
        Py_DECREF(answer);
    }
    PyGILState_Release(state);
    errno = error;
    return error ? -1 : 0;
}

static int recorded_stat(const char *path, struct stat *status)
{
    int error = 0;
    if (recorded_disk == NULL)
        return stat(path, status);
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *answer = recorded_call(&error, "stat", "(s)", path);
    return recorded_status(state, answer, error, status);
}

static int recorded_fstat(int fd, struct stat *status)
{
    int error = 0;
    if (recorded_disk == NULL)
        return fstat(fd, status);
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *answer = recorded_call(&error, "fstat", "(i)", fd);
    return recorded_status(state, answer, error, status);
}

/* Other clocks are the system's: they are read where the interpreter's lock must not be waited for. */
static int recorded_clock(clockid_t clock, struct timespec *now)
{
    int failed = clock_gettime(clock, now), error = 0;
    if (recorded_disk == NULL || clock != CLOCK_BOOTTIME)
        return failed;
    PyGILState_STATE state = PyGILState_Ensure();
    if (PyObject_HasAttrString(recorded_disk, "boottime")) {
        PyObject *answer = recorded_call(&error, "boottime", "()");
        now->tv_sec = answer == NULL ? 0 : (time_t)PyLong_AsLong(answer);
        now->tv_nsec = 0;
        Py_XDECREF(answer);
    }
    PyGILState_Release(state);
    return 0;
}

#define pwrite(fd, data, length, offset) recorded_pwrite(fd, data, length, offset)
#define fdatasync(fd) recorded_fdatasync(fd)
#define open(path, flags) recorded_open(path, flags)
#define close(fd) recorded_close(fd)
#define stat(path, status) recorded_stat(path, status)
#define fstat(fd, status) recorded_fstat(fd, status)
#define clock_gettime(clock, now) recorded_clock(clock, now)
