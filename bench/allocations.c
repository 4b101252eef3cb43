/* Counts what a program allocates, in a file that it maps: preloaded into it (LD_PRELOAD), by bench/allocations.py. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static uint64_t *counter;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TANDEMMQ_BENCH_ALLOCATIONS");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        counter = mapped;
    close(fd);
}

static void count(void)
{
    if (counter != NULL)
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}
