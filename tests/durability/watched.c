/* Preloaded into a process. Every change to what lies below the folder WATCHED is appended to the file WATCHED_LOG, with the bytes that
   were written: see watched.py, which reads it. Change number KILLED_AT, from 1, comes no further than its first KILLED_BYTES bytes: the
   process dies by SIGKILL there, as it can inside a large write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { PATH = 4096 };

struct change {
    char kind;
    uint32_t path_bytes;
    uint64_t offset, size;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *below(const char *path) {
    const char *root = getenv("WATCHED");
    size_t length = root ? strlen(root) : 0;
    return root && strncmp(path, root, length) == 0 && path[length] == '/' ? path + length + 1 : NULL;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

/* Whether the process is to die here. */
static int noted(char kind, const char *path, uint64_t offset, const void *data, uint64_t size) {
    static int changes = 0;
    const char *name = below(path), *log = getenv("WATCHED_LOG"), *at = getenv("KILLED_AT");
    if (name == NULL) return 0;
    pthread_mutex_lock(&lock);
    if (log != NULL) {
        struct change change = {kind, (uint32_t)strlen(name), offset, size};
        int fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        REAL(write)(fd, &change, sizeof change);
        REAL(write)(fd, name, change.path_bytes);
        REAL(write)(fd, data, data ? size : 0);
        REAL(close)(fd);
    }
    int is_last = at != NULL && kind != 's' && ++changes == atoi(at);
    pthread_mutex_unlock(&lock);
    return is_last;
}

static size_t share(size_t size) {
    size_t most = (size_t)atoll(getenv("KILLED_BYTES"));
    return most < size ? most : size;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    pause();
}

static ssize_t placed(int fd, const void *data, size_t size, off_t offset) {
    char path[PATH];
    if (noted('w', path_of(fd, path), (uint64_t)offset, data, size)) {
        REAL(pwrite)(fd, data, share(size), offset);
        die();
    }
    return REAL(pwrite)(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return placed(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return placed(fd, data, size, offset); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH];
    if (below(path_of(fd, path)) != NULL) {
        struct stat about;
        int is_appended = fcntl(fd, F_GETFL) & O_APPEND;
        off_t offset = is_appended && fstat(fd, &about) == 0 ? about.st_size : lseek(fd, 0, SEEK_CUR);
        if (noted('w', path, (uint64_t)offset, data, size)) {
            REAL(write)(fd, data, share(size));
            die();
        }
    }
    return REAL(write)(fd, data, size);
}

static int cut(int fd, off_t size) {
    char path[PATH];
    if (noted('t', path_of(fd, path), (uint64_t)size, NULL, 0)) die();
    return REAL(ftruncate)(fd, size);
}

int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off_t size) { return cut(fd, size); }

static int synced(int fd) {
    char path[PATH];
    int done = REAL(fsync)(fd);
    noted('s', path_of(fd, path), 0, NULL, 0);
    return done;
}

int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }

static int removed(const char *path) {
    if (below(path) != NULL && access(path, F_OK) == 0 && noted('r', path, 0, NULL, 0)) die();
    return REAL(unlink)(path);
}

int unlink(const char *path) { return removed(path); }

int remove(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && !S_ISDIR(about.st_mode) ? removed(path) : REAL(remove)(path);
}

int rename(const char *from, const char *to) {
    const char *name = below(to);
    if (name != NULL && noted('n', from, 0, name, strlen(name))) die();
    return REAL(rename)(from, to);
}

static int opened(const char *path, int flags, mode_t mode) {
    if (flags & O_CREAT && below(path) != NULL && access(path, F_OK) != 0 && noted('c', path, 0, NULL, 0)) die();
    int fd = REAL(open)(path, flags, mode);
    if (fd >= 0 && flags & O_TRUNC && noted('t', path, 0, NULL, 0)) die();
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(path, flags, mode);
}
