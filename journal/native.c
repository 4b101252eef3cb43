/* Batches of the journal as one step of the disk: encode, write, sync, look for a successor and at the own file.

   Optional: journal/writer.py does the same, call by call, where this was not compiled. Here the interpreter's lock is
   let go once for all of them; there it is six times, and each time it has to be got back from the event loop. With a
   CommitQueue it is not even got back between two steps: the event loop submits batches, and is told of them, while
   the thread that writes stays here.

   The bytes are those of journal/format.py; what is looked at, and how, is that of JournalWriter.check_fence and of
   tandemmq/disk.py. Tests compile it with verbs of their own in the place of the system's (recorded_disk.h). */

/* proofs: native-journal */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
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

enum { LANES = 16, ADLER_BASE = 65521 };

/* RFC 1950. In runs so short that no sum overflows. Each byte of a row has a lane of its own, and the processor adds all
   lanes at once: ``sums`` are those of the bytes, ``earlier`` those of ``sums`` before each row. Byte ``lane`` of row
   ``row`` of ``rows`` counts in ``b`` once, and once for each byte that follows it: LANES * (rows - 1 - row) + LANES -
   lane times. The compiler must not unroll the inner loop before it has made vectors of it. */
static uint32_t adler32(const unsigned char *data, size_t length)
{
    uint32_t a = 1, b = 0;
    while (length >= LANES) {
        uint32_t sums[LANES] = {0}, earlier[LANES] = {0};
        size_t run = length < 5552 ? length - length % LANES : 5552;
        length -= run;
        uint64_t all = b + (uint64_t)a * run;
        for (const unsigned char *end = data + run; data < end; data += LANES) {
#pragma GCC unroll 1
            for (int lane = 0; lane < LANES; lane++) {
                earlier[lane] += sums[lane];
                sums[lane] += data[lane];
            }
        }
        for (int lane = 0; lane < LANES; lane++) {
            a += sums[lane];
            /* prove: native-checksum-counts-places "LANES - lane" -> "LANES" */
            all += (uint64_t)LANES * earlier[lane] + (uint64_t)(LANES - lane) * sums[lane];
        }
        a %= ADLER_BASE;
        b = (uint32_t)(all % ADLER_BASE);
    }
    while (length-- > 0) {
        a += *data++;
        b += a;
    }
    return b % ADLER_BASE << 16 | a % ADLER_BASE;
}

/* What was found out, without the interpreter's lock. */
struct outcome {
    int step;
    int error;
    double sync_seconds;
    double looked_at;
    uint64_t device;
    uint64_t inode;
};

static double now_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Whether all of it was written. A write may take less than it was given; the next one begins where that ended. */
static int is_written(int fd, const unsigned char *bytes, size_t length, off_t offset, struct outcome *out)
{
    while (length > 0) {
        ssize_t written = pwrite(fd, bytes, length, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) { /* prove: native-write-takes-something "<= 0" -> "< 0" */
            out->step = WRITE;
            out->error = written < 0 ? errno : EIO; /* it took no byte, and names no reason */
            return 0;
        }
        bytes += written;          /* prove: native-rest-is-written */
        length -= (size_t)written; /* prove: native-short-write-is-not-all "(size_t)written" -> "length" */
        offset += written;         /* prove: native-rest-has-its-place */
    }
    return 1;
}

static int is_synced(int fd, struct outcome *out)
{
    int answer;
    double began = now_seconds(CLOCK_MONOTONIC);
    do
        answer = fdatasync(fd); /* prove: native-batch-sync "fdatasync(fd)" -> "0" */
    while (answer < 0 && errno == EINTR);
    if (answer < 0) { /* prove: native-failed-sync-is-seen */
        out->step = SYNC;
        out->error = errno;
        return 0;
    }
    out->sync_seconds = now_seconds(CLOCK_MONOTONIC) - began;
    return 1;
}

/* Also when that cannot be known. */
static int has_successor(const char *successor, struct outcome *out)
{
    struct stat status;
    int error = stat(successor, &status) == 0 ? 0 : errno;
    if (error == ENOENT) /* prove: native-failed-fence-check-is-no-answer */
        return 0;
    out->step = error == 0 ? SUCCESSOR_THERE : SUCCESSOR_UNKNOWN;
    out->error = error;
    return 1;
}

/* Opens it, so that a host asks its server and not what it remembers (NFS). */
static void look_at_own(const char *own, struct outcome *out)
{
    struct stat status;
    int fd;
    do
        /* prove: native-own-file-is-no-link " | O_NOFOLLOW" */
        fd = open(own, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    out->step = OWN_UNKNOWN;
    if (fd < 0) {
        out->error = errno;
        return;
    }
    if (fstat(fd, &status) < 0)
        out->error = errno;
    else if (!S_ISREG(status.st_mode)) /* prove: native-own-file-is-regular */
        out->step = OWN_IRREGULAR;
    else {
        out->device = (uint64_t)status.st_dev;
        out->inode = (uint64_t)status.st_ino;
        out->step = DONE;
    }
    close(fd);
}

static void write_sync_look(int fd, const unsigned char *batch, size_t length, off_t offset, const char *successor,
                            const char *own, struct outcome *out)
{
    out->step = WRITE;
    if (!is_written(fd, batch, length, offset, out)) return;
    if (!is_synced(fd, out)) return; /* prove: native-sync-before-fence-check order native-own-file */
    /* From before the looks: who asks later how old they are must not think them younger, nor who was suspended. */
    /* prove: native-proof-counts-suspension "CLOCK_BOOTTIME" -> "CLOCK_MONOTONIC" */
    out->looked_at = now_seconds(CLOCK_BOOTTIME); /* prove: native-proof-from-before order native-own-file */
    if (has_successor(successor, out)) return; /* prove: native-successor-before-own-file order native-own-file */
    look_at_own(own, out); /* prove: native-own-file */
}

/* How long the records of these payloads are; -1 with an exception set if one is not bytes. */
static Py_ssize_t length_of(PyObject *payloads)
{
    Py_ssize_t length = 0;
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(payloads); number++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, number);
        if (!PyBytes_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "a payload is bytes");
            return -1;
        }
        length += RECORD_HEADER + PyBytes_GET_SIZE(payload);
    }
    return length;
}

/* One batch, without an end record, whose records are ``length`` bytes. Its checksum. Without the interpreter's lock:
   the tuple is ours, and bytes do not change. */
static uint32_t encode(unsigned char *batch, PyObject *payloads, size_t length)
{
    put_int(batch, CONTROL);
    batch[4] = BATCH_RECORD;
    memcpy(batch + 5, "WRITE BATCH", 11);
    put_int(batch + SEAL, (uint32_t)length);
    unsigned char *to = batch + CONTROL;
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(payloads); number++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, number);
        size_t size = (size_t)PyBytes_GET_SIZE(payload);
        put_int(to, (uint32_t)(size + RECORD_HEADER));
        to[4] = USER_RECORD;
        memcpy(to + RECORD_HEADER, PyBytes_AS_STRING(payload), size);
        to += RECORD_HEADER + size;
    }
    uint32_t checksum = adler32(batch + CONTROL, length);
    put_int(batch + SEAL + 4, 0);
    put_int(batch + SEAL + 8, checksum); /* prove: native-batch-has-its-checksum */
    return checksum;
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
    struct outcome out = {0};

    if (!PyArg_ParseTuple(args, "iOLLO&O&", &fd, &given, &offset, &origin, PyUnicode_FSConverter, &successor,
                          PyUnicode_FSConverter, &own))
        return NULL;
    payloads = PySequence_Tuple(given); /* ours: the bytes in it stay while the lock is let go */
    if (payloads == NULL)
        goto end;
    Py_ssize_t count = PyTuple_GET_SIZE(payloads), length = length_of(payloads);
    if (length < 0)
        goto end;
    if (count == 0 || offset < 0 || length > INT32_MAX || offset + CONTROL + length + END > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one record, and its file stays below 2 GiB");
        goto end;
    }
    locations = locations_of(payloads, count, origin);
    if (locations == NULL)
        goto end;

    uint32_t checksum = 0;
    unsigned char *batch;
    Py_BEGIN_ALLOW_THREADS
    batch = PyMem_RawMalloc((size_t)(CONTROL + length + END));
    if (batch != NULL) {
        checksum = encode(batch, payloads, (size_t)length);
        memcpy(batch + CONTROL + length, END_RECORD, END);
        write_sync_look(fd, batch, (size_t)(CONTROL + length + END), (off_t)offset, PyBytes_AS_STRING(successor),
                        PyBytes_AS_STRING(own), &out);
        PyMem_RawFree(batch);
    }
    Py_END_ALLOW_THREADS
    if (batch == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    result = Py_BuildValue("(iiOnIdKKd)", out.step, out.error, locations, CONTROL + length, checksum, out.looked_at,
                           (unsigned long long)out.device, (unsigned long long)out.inode, out.sync_seconds);
end:
    Py_XDECREF(locations);
    Py_XDECREF(payloads);
    Py_XDECREF(successor);
    Py_XDECREF(own);
    return result;
}

/* ---- batches that are submitted while others are written */

struct batch {
    struct batch *next;
    PyObject *payloads; /* a tuple of ours */
    size_t length;      /* of its records */
};

#define BOUNDS_MAX 32

/* How many of what was measured were not larger than each bound, and larger than the one before. */
struct histogram {
    Py_ssize_t size; /* of the bounds; one count more */
    double bounds[BOUNDS_MAX];
    unsigned long long counts[BOUNDS_MAX + 1];
    double sum;
};

static void note(struct histogram *its, double value)
{
    Py_ssize_t bucket = 0;
    while (bucket < its->size && value > its->bounds[bucket])
        bucket++;
    its->counts[bucket]++;
    its->sum += value;
}

static int take_bounds(struct histogram *its, PyObject *given)
{
    its->size = PyTuple_GET_SIZE(given);
    if (its->size > BOUNDS_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many bounds of a histogram");
        return 0;
    }
    for (Py_ssize_t number = 0; number < its->size; number++) {
        its->bounds[number] = PyFloat_AsDouble(PyTuple_GET_ITEM(given, number));
        if (its->bounds[number] == -1.0 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static PyObject *told(const struct histogram *its)
{
    PyObject *counts = PyList_New(its->size + 1);
    for (Py_ssize_t number = 0; counts != NULL && number <= its->size; number++) {
        PyObject *count = PyLong_FromUnsignedLongLong(its->counts[number]);
        if (count == NULL)
            Py_CLEAR(counts);
        else
            PyList_SET_ITEM(counts, number, count);
    }
    return Py_BuildValue("(Nd)", counts, its->sum);
}

typedef struct {
    PyObject_HEAD
    pthread_mutex_t mutex; /* of all that follows; held for moments, and never while the interpreter's lock is waited for */
    pthread_cond_t submitted;
    struct batch *first, *last;
    struct batch *reserved; /* it has its place, and is not submitted yet */
    long long end;      /* where the file will end with all that has a place; */
    long long end_max;  /* no batch gets a place that would end there or behind */
    long long origin;
    size_t bytes_max;   /* of a batch, and of a step */
    int is_open;        /* submissions are taken: by a thread in ``serve`` */
    int is_interrupted;
    int is_halted;
    Py_ssize_t done;    /* batches of which the loop was not told yet */
    double looked_at;
    struct histogram syncs, records; /* seconds, and records, of each step */
    int event;          /* an eventfd: something is done */
} CommitQueue;

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    pthread_condattr_t attributes;
    struct histogram syncs = {0}, records = {0};
    PyObject *of_syncs, *of_records;
    if (names) {
        PyErr_SetString(PyExc_TypeError, "CommitQueue() takes no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &of_syncs, &PyTuple_Type, &of_records) ||
        !take_bounds(&syncs, of_syncs) || !take_bounds(&records, of_records))
        return NULL;
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    CommitQueue *self = (CommitQueue *)type->tp_alloc(type, 0);
    if (self == NULL) {
        close(event);
        return NULL;
    }
    self->event = event;
    self->syncs = syncs;
    self->records = records;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->submitted, &attributes);
    pthread_condattr_destroy(&attributes);
    return (PyObject *)self;
}

static void free_batches(struct batch *each)
{
    while (each != NULL) {
        struct batch *next = each->next;
        Py_DECREF(each->payloads);
        PyMem_RawFree(each);
        each = next;
    }
}

static void queue_dealloc(CommitQueue *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free_batches(self->first);
    free_batches(self->reserved);
    close(self->event);
    pthread_cond_destroy(&self->submitted);
    pthread_mutex_destroy(&self->mutex);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *queue_fileno(CommitQueue *self, PyObject *nothing) { return PyLong_FromLong(self->event); }

static PyObject *queue_reserve(CommitQueue *self, PyObject *given)
{
    long long at = 0;
    PyObject *payloads = PySequence_Tuple(given);
    if (payloads == NULL)
        return NULL;
    Py_ssize_t length = length_of(payloads);
    struct batch *batch = length > 0 ? PyMem_RawMalloc(sizeof *batch) : NULL;
    if (batch == NULL) {
        Py_DECREF(payloads);
        if (length == 0)
            PyErr_SetString(PyExc_ValueError, "a batch has at least one record");
        return length > 0 ? PyErr_NoMemory() : NULL;
    }
    *batch = (struct batch){NULL, payloads, (size_t)length};
    pthread_mutex_lock(&self->mutex);
    if (self->is_open /* prove: native-place-only-while-served "self->is_open" -> "1" */
        && self->reserved == NULL && (size_t)length <= self->bytes_max
        && self->end + length < self->end_max) { /* prove: native-place-within-the-file "self->end + length" -> "0" */
        at = self->origin + self->end + CONTROL;
        self->end += CONTROL + length;
        self->reserved = batch;
    }
    pthread_mutex_unlock(&self->mutex);
    if (!at) {
        Py_DECREF(payloads);
        PyMem_RawFree(batch);
    }
    return PyLong_FromLongLong(at);
}

static PyObject *queue_submit(CommitQueue *self, PyObject *nothing)
{
    pthread_mutex_lock(&self->mutex);
    struct batch *batch = self->reserved;
    if (batch != NULL) {
        if (self->first == NULL)
            self->first = batch;
        else
            self->last->next = batch;
        self->last = batch;
        self->reserved = NULL;
    }
    pthread_mutex_unlock(&self->mutex);
    pthread_cond_signal(&self->submitted); /* behind the mutex, which whoever wakes up needs first */
    if (batch == NULL)
        return PyErr_Format(PyExc_ValueError, "nothing is reserved");
    Py_RETURN_NONE;
}

static PyObject *queue_completed(CommitQueue *self, PyObject *nothing)
{
    uint64_t count;
    while (read(self->event, &count, sizeof count) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&self->mutex);
    Py_ssize_t done = self->done;
    double looked_at = self->looked_at;
    self->done = 0;
    pthread_mutex_unlock(&self->mutex);
    return Py_BuildValue("(nd)", done, looked_at);
}

static PyObject *queue_measured(CommitQueue *self, PyObject *nothing)
{
    pthread_mutex_lock(&self->mutex);
    struct histogram syncs = self->syncs, records = self->records;
    pthread_mutex_unlock(&self->mutex);
    PyObject *of_syncs = told(&syncs), *of_records = told(&records);
    if (of_syncs == NULL || of_records == NULL) {
        Py_XDECREF(of_syncs);
        Py_XDECREF(of_records);
        return NULL;
    }
    return Py_BuildValue("(NN)", of_syncs, of_records);
}

static PyObject *tell(CommitQueue *self, int *what)
{
    pthread_mutex_lock(&self->mutex);
    *what = 1;
    self->is_open = 0; /* prove: native-interrupted-takes-no-more */
    pthread_mutex_unlock(&self->mutex);
    pthread_cond_signal(&self->submitted);
    Py_RETURN_NONE;
}

static PyObject *queue_interrupt(CommitQueue *self, PyObject *nothing) { return tell(self, &self->is_interrupted); }

static PyObject *queue_clear(CommitQueue *self, PyObject *nothing)
{
    pthread_mutex_lock(&self->mutex);
    self->is_interrupted = 0;
    pthread_mutex_unlock(&self->mutex);
    Py_RETURN_NONE;
}

static PyObject *queue_halt(CommitQueue *self, PyObject *nothing) { return tell(self, &self->is_halted); }

/* What a thread in ``serve`` is given, and what it found out. */
struct service {
    int fd;
    const char *successor, *own;
    unsigned long long device, inode;
    double seconds;
    Py_ssize_t batches_max;
    long long offset;     /* where the next batch begins */
    long long start;      /* of the last batch */
    uint32_t checksum;    /* of it */
    Py_ssize_t batches, steps, records;
    struct outcome out;   /* of the last step */
    int has_failed;
    struct batch *written;
};

/* Takes the batches of one step off the queue, with the mutex. How long they are, with their control records. */
static size_t take(CommitQueue *self, struct batch **first)
{
    size_t length = 0;
    struct batch *last = NULL;
    *first = self->first;
    while (self->first != NULL && (last == NULL || length + self->first->length <= self->bytes_max)) {
        last = self->first;
        length += CONTROL + last->length;
        self->first = last->next;
    }
    last->next = NULL;
    return length;
}

/* Writes, syncs and looks; whether all of it is done. Without the mutex. */
static int commit_step(struct service *its, struct batch *first, size_t length)
{
    unsigned char *data = PyMem_RawMalloc(length + END), *to = data;
    if (data == NULL) {
        its->out.step = WRITE;
        its->out.error = ENOMEM;
        return 0;
    }
    for (struct batch *each = first; each != NULL; each = each->next) {
        its->start = its->offset + (to - data);
        its->checksum = encode(to, each->payloads, each->length);
        to += CONTROL + each->length;
    }
    memcpy(to, END_RECORD, END);
    its->out = (struct outcome){0};
    write_sync_look(its->fd, data, length + END, (off_t)its->offset, its->successor, its->own, &its->out);
    PyMem_RawFree(data);
    its->offset += (long long)length;
    /* prove: native-step-in-its-own-file " && its->out.inode == its->inode" */
    return its->out.step == DONE && its->out.device == its->device && its->out.inode == its->inode;
}

static int is_over(const struct timespec *until)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
}

static void serve_without_lock(CommitQueue *self, struct service *its)
{
    static const uint64_t one = 1;
    struct batch **end_of_written = &its->written;
    long long enough = its->offset + (long long)self->bytes_max;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long long nanoseconds = until.tv_nsec + (long long)(its->seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;

    pthread_mutex_lock(&self->mutex);
    self->is_open = !self->is_interrupted && !self->is_halted;
    for (;;) {
        while (self->first == NULL && self->is_open)
            if (pthread_cond_timedwait(&self->submitted, &self->mutex, &until) == ETIMEDOUT)
                self->is_open = 0;
        /* prove: native-place-is-waited-for "self->reserved != NULL" -> "0" */
        while (self->first == NULL && self->reserved != NULL && !self->is_halted)
            pthread_cond_wait(&self->submitted, &self->mutex); /* whoever reserved is about to submit */
        if (self->first == NULL || self->is_halted) /* prove: native-halted-begins-nothing " || self->is_halted" */
            break;
        struct batch *step;
        size_t length = take(self, &step);
        pthread_mutex_unlock(&self->mutex);
        int is_done = commit_step(its, step, length);
        Py_ssize_t batches = 0, records = 0;
        *end_of_written = step;
        while (*end_of_written != NULL) {
            records += PyTuple_GET_SIZE((*end_of_written)->payloads);
            end_of_written = &(*end_of_written)->next;
            batches++;
        }
        pthread_mutex_lock(&self->mutex);
        if (!is_done) { /* prove: native-failed-step-is-not-told */
            its->has_failed = 1;
            break;
        }
        its->batches += batches;
        its->steps++;
        its->records += records;
        self->done += batches;
        self->looked_at = its->out.looked_at; /* prove: native-proof-is-passed-on */
        note(&self->syncs, its->out.sync_seconds);
        note(&self->records, (double)records);
        while (write(self->event, &one, sizeof one) < 0 && errno == EINTR)
            ;
        /* prove: native-serves-so-long "is_over(&until)" -> "0" */
        if (its->batches >= its->batches_max || its->offset >= enough || is_over(&until))
            self->is_open = 0; /* what has a place is still done */
    }
    self->is_open = 0;
    self->is_interrupted = 0;
    pthread_mutex_unlock(&self->mutex);
}

static PyObject *queue_serve(CommitQueue *self, PyObject *args)
{
    PyObject *successor = NULL, *own = NULL, *result = NULL;
    long long end_max, origin;
    Py_ssize_t bytes_max;
    struct service its = {0};

    if (!PyArg_ParseTuple(args, "iLLLnndO&O&KK", &its.fd, &its.offset, &origin, &end_max, &bytes_max, &its.batches_max,
                          &its.seconds, PyUnicode_FSConverter, &successor, PyUnicode_FSConverter, &own, &its.device,
                          &its.inode))
        return NULL;
    if (its.offset < 0 || end_max > INT32_MAX - CONTROL - END || bytes_max < 0 || its.batches_max < 1 || !(its.seconds >= 0) ||
        its.seconds > 1e9) {
        PyErr_SetString(PyExc_ValueError, "a journal file stays below 2 GiB, and a thread serves for some time");
        goto end;
    }
    its.successor = PyBytes_AS_STRING(successor);
    its.own = PyBytes_AS_STRING(own);
    pthread_mutex_lock(&self->mutex);
    self->origin = origin;
    self->end = its.offset;
    self->end_max = end_max;
    self->bytes_max = (size_t)bytes_max;
    pthread_mutex_unlock(&self->mutex);
    Py_BEGIN_ALLOW_THREADS
    serve_without_lock(self, &its);
    Py_END_ALLOW_THREADS
    free_batches(its.written);
    result = Py_BuildValue("(NiinnnLLkdKK)", PyBool_FromLong(its.has_failed), its.out.step, its.out.error, its.batches, its.steps,
                           its.records, its.offset, its.start, (unsigned long)its.checksum, its.out.looked_at,
                           (unsigned long long)its.out.device, (unsigned long long)its.out.inode);
end:
    Py_XDECREF(successor);
    Py_XDECREF(own);
    return result;
}

PyDoc_STRVAR(queue_doc, "Batches that are submitted while others are written. See journal/native.pyi.");

static PyMethodDef queue_methods[] = {
    {"fileno", (PyCFunction)queue_fileno, METH_NOARGS, NULL},
    {"reserve", (PyCFunction)queue_reserve, METH_O, NULL},
    {"submit", (PyCFunction)queue_submit, METH_NOARGS, NULL},
    {"completed", (PyCFunction)queue_completed, METH_NOARGS, NULL},
    {"measured", (PyCFunction)queue_measured, METH_NOARGS, NULL},
    {"interrupt", (PyCFunction)queue_interrupt, METH_NOARGS, NULL},
    {"clear", (PyCFunction)queue_clear, METH_NOARGS, NULL},
    {"halt", (PyCFunction)queue_halt, METH_NOARGS, NULL},
    {"serve", (PyCFunction)queue_serve, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot queue_slots[] = {{Py_tp_new, queue_new},
                                    {Py_tp_dealloc, queue_dealloc},
                                    {Py_tp_methods, queue_methods},
                                    {Py_tp_doc, (void *)queue_doc},
                                    {0, NULL}};

static PyType_Spec queue_spec = {"tandemmq.journal.native.CommitQueue", sizeof(CommitQueue), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, queue_slots};

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
    PyObject *queue = PyType_FromModuleAndSpec(module, &queue_spec, NULL);
    int answer = queue == NULL ? -1 : PyModule_AddObjectRef(module, "CommitQueue", queue);
    Py_XDECREF(queue);
    return answer;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_steps}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "A batch of the journal as one step of the disk.", 0, methods, slots, NULL, NULL,
    NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
