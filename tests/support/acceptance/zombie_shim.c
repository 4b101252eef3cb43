/* What a test does to one process from outside, loaded into it by LD_PRELOAD (zombie_shim.py drives it).

   Holds calls that touch a directory until they are let go, as a volume does whose server does not answer; lets them
   fail then, if told to; holds the event loop; and steps the wall clock. What is let go is the real call.

   Everything is said through one page in a shared file, so that it can be said to a process that is stopped. Who is
   held waits for a lock on that file, which the test has meanwhile: as one that waits for a disk, it computes nothing. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The verbs; the same numbers stand in zombie_shim.py. */
enum { WRITE = 1, SYNC = 2, STAT = 4, LINK = 8, OPEN = 16, READ = 32, LIST = 64, UNLINK = 128, LOOP = 256 };
/* Where a verb is held: at the journal's files, anywhere in the data directory, at the indexes there. */
enum { JOURNAL, VOLUME, INDEX, AREAS };

struct control {
    atomic_int hold[AREAS]; /* the verbs that are held there */
    atomic_int held;        /* calls that were caught so far */
    atomic_int error;       /* what they fail with when they are let go; 0: they are done */
    atomic_llong wall_ns;   /* how far the wall clock is off */
};

static struct control *control;
static const char *control_path;
static const char *volume;

__attribute__((constructor)) static void begin(void) {
    control_path = getenv("TANDEMMQ_SHIM_CONTROL");
    volume = getenv("TANDEMMQ_SHIM_VOLUME");
    int fd = control_path ? (int)syscall(SYS_openat, AT_FDCWD, control_path, O_RDWR | O_CLOEXEC, 0) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page != MAP_FAILED) control = page;
}

static void wait_until_let_go(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control_path, O_RDONLY | O_CLOEXEC, 0);
    syscall(SYS_flock, fd, LOCK_SH);
    syscall(SYS_close, fd);
}

static int lies_in(int area, const char *path) {
    if (!volume || !*volume) return 0;
    size_t length = strlen(volume);
    if (strncmp(path, volume, length) != 0 || (path[length] != '/' && path[length] != 0)) return 0;
    if (area == JOURNAL) return strncmp(strrchr(path, '/'), "/db-", 4) == 0;
    return area != INDEX || strstr(path + length, "/index/") != NULL;
}

static int is_held(int verb, const char *path) {
    for (int area = 0; area < AREAS; area++)
        if ((control->hold[area] & verb) && lies_in(area, path)) return 1;
    return 0;
}

/* Wait here as long as this verb is held for this path. Not 0: the call is to fail, and errno says how. */
static int gate(int verb, const char *path) {
    if (!control || !path || !((control->hold[JOURNAL] | control->hold[VOLUME] | control->hold[INDEX]) & verb)) return 0;
    int was_caught = 0;
    while (is_held(verb, path)) {
        if (!was_caught++) control->held++;
        wait_until_let_go();
    }
    if (!was_caught || !control->error) return 0;
    errno = control->error;
    return -1;
}

static int gate_fd(int verb, int fd) {
    if (!control || !((control->hold[JOURNAL] | control->hold[VOLUME] | control->hold[INDEX]) & verb)) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return gate(verb, path);
}

#define REAL(type, name, parameters)                                       \
    static type(*real) parameters;                                         \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name)

#define ON_FD(type, failed, name, verb, parameters, arguments)             \
    type name parameters {                                                 \
        REAL(type, name, parameters);                                      \
        return gate_fd(verb, fd) ? failed : real arguments;                \
    }

#define ON_PATH(type, failed, name, verb, parameters, arguments)           \
    type name parameters {                                                 \
        REAL(type, name, parameters);                                      \
        return gate(verb, path) ? failed : real arguments;                 \
    }

struct stat;
struct stat64;
typedef struct __dirstream DIR;

ON_FD(ssize_t, -1, pwrite, WRITE, (int fd, const void *data, size_t length, off_t at), (fd, data, length, at))
ON_FD(ssize_t, -1, pwrite64, WRITE, (int fd, const void *data, size_t length, off64_t at), (fd, data, length, at))
ON_FD(ssize_t, -1, pread, READ, (int fd, void *data, size_t length, off_t at), (fd, data, length, at))
ON_FD(ssize_t, -1, pread64, READ, (int fd, void *data, size_t length, off64_t at), (fd, data, length, at))
ON_FD(int, -1, fsync, SYNC, (int fd), (fd))
ON_FD(int, -1, fdatasync, SYNC, (int fd), (fd))
ON_FD(int, -1, fstat, STAT, (int fd, struct stat *found), (fd, found))
ON_FD(int, -1, fstat64, STAT, (int fd, struct stat64 *found), (fd, found))
ON_PATH(int, -1, stat, STAT, (const char *path, struct stat *found), (path, found))
ON_PATH(int, -1, stat64, STAT, (const char *path, struct stat64 *found), (path, found))
ON_PATH(int, -1, lstat, STAT, (const char *path, struct stat *found), (path, found))
ON_PATH(int, -1, lstat64, STAT, (const char *path, struct stat64 *found), (path, found))
ON_PATH(int, -1, link, LINK, (const char *from, const char *path), (from, path))
ON_PATH(int, -1, linkat, LINK, (int at, const char *from, int to, const char *path, int flags), (at, from, to, path, flags))
ON_PATH(int, -1, unlink, UNLINK, (const char *path), (path))
ON_PATH(int, -1, rename, UNLINK, (const char *from, const char *path), (from, path))
ON_PATH(DIR *, NULL, opendir, LIST, (const char *path), (path))

static int mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;
}

#define OPENING(name, extra, before)                                       \
    int name(extra const char *path, int flags, ...) {                     \
        static int (*real)(extra const char *, int, ...);                  \
        if (!real) real = (int (*)(extra const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list rest;                                                      \
        va_start(rest, flags);                                             \
        int mode = mode_of(flags, rest);                                   \
        va_end(rest);                                                      \
        return gate(OPEN, path) ? -1 : real(before path, flags, mode);     \
    }
#define NOTHING
#define COMMA ,

OPENING(open, NOTHING, NOTHING)
OPENING(open64, NOTHING, NOTHING)
OPENING(openat, int at COMMA, at COMMA)
OPENING(openat64, int at COMMA, at COMMA)

/* The event loop: uvloop waits here, on the first thread of the process. */

struct epoll_event;

static void gate_loop(void) {
    if (!control || !(control->hold[JOURNAL] & LOOP) || syscall(SYS_gettid) != getpid()) return;
    control->held++;
    while (control->hold[JOURNAL] & LOOP) wait_until_let_go();
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout, const sigset_t *mask) {
    REAL(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *));
    int found = real(fd, events, most, timeout, mask);
    int error = errno;
    gate_loop(); /* behind the call: what it found is old by the time the loop sees it */
    errno = error;
    return found;
}

/* The wall clock. */

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(int, clock_gettime, (clockid_t, struct timespec *));
    int failed = real(which, now);
    if (!failed && control && control->wall_ns && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        long long nanoseconds = now->tv_sec * 1000000000LL + now->tv_nsec + control->wall_ns;
        now->tv_sec = nanoseconds / 1000000000LL;
        now->tv_nsec = nanoseconds % 1000000000LL;
    }
    return failed;
}

struct timeval_of_day { long seconds, microseconds; };

int gettimeofday(struct timeval_of_day *now, void *zone) {
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->seconds = exact.tv_sec;
    now->microseconds = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
