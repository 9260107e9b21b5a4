/* Preloaded into a process: its write number TORN_AT, from 1, of a whole block over bytes that the file named by TORN_FILE already has is
   cut short by SIGKILL after one page, as the kernel does when a process is killed inside a large write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 262144, PAGE = 4096 };

static int is_torn(int fd, size_t size, off_t offset) {
    const char *wanted = getenv("TORN_FILE");
    char link[64], path[4096];
    struct stat about;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (wanted == NULL || length < 0 || size < BLOCK || fstat(fd, &about) != 0) return 0;
    path[length] = 0;
    static int writes = 0;
    return strcmp(path, wanted) == 0 && offset + (off_t)size <= about.st_size && ++writes == atoi(getenv("TORN_AT"));
}

static ssize_t torn(int fd, const void *data, size_t size, off_t offset) {
    ssize_t (*real)(int, const void *, size_t, off_t) = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    if (is_torn(fd, size, offset)) {
        real(fd, data, PAGE, offset);
        kill(getpid(), SIGKILL);
    }
    return real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return torn(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return torn(fd, data, size, offset); }
