/* A fake drive with read errors, loaded with LD_PRELOAD. $FIELDRAY_DRIVE_ERRORS has rules, each ended by a semicolon:

       END,BYTE,ERROR,TIMES;

   Reading a file whose path ends in END, at BYTE or beyond, gives ERROR (a number of errno.h), TIMES times over all
   processes (-1: always). BYTE -1 means: on opening. The file $FIELDRAY_DRIVE_COUNTS counts the uses of each rule. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
#define MOST 16

static struct rule {
    char end[256];
    long at, error, times;
} rules[MOST];
static int count;
static volatile long *used;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FIELDRAY_DRIVE_ERRORS"), *page = getenv("FIELDRAY_DRIVE_COUNTS");
    if (!text || !page)
        return;
    int handle = (int)syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC);
    void *found = mmap(NULL, MOST * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    if (found == MAP_FAILED)
        return;
    used = found;
    for (struct rule *rule = rules; count < MOST; rule++, count++) {
        if (sscanf(text, "%255[^,],%ld,%ld,%ld", rule->end, &rule->at, &rule->error, &rule->times) < 4)
            break;
        text = strchr(text, ';') + 1;
    }
}

/* Returns the rule for opening a path (-1), or for reading its bytes up to `last`. */
static struct rule *rule_of(const char *path, long last) {
    size_t length = strlen(path);
    for (struct rule *rule = rules; rule < rules + count; rule++) {
        size_t end = strlen(rule->end);
        if (length >= end && !strcmp(path + length - end, rule->end) && (rule->at < 0) == (last < 0) && last >= rule->at)
            if (rule->times < 0 || used[rule - rules] < rule->times)
                return rule;
    }
    return NULL;
}

static int suffer(struct rule *rule) {
    __sync_fetch_and_add(&used[rule - rules], 1);
    errno = (int)rule->error;
    return -1;
}

static void path_of(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

/* Returns how many bytes of a read succeed before the error, -1 if none. */
static ssize_t allowed(int handle, size_t length, off_t at) {
    char path[PATH_MAX];
    int kept = errno;
    if (!count || !length)
        return (ssize_t)length;
    path_of(handle, path);
    struct rule *rule = rule_of(path, at + (long)length - 1);
    errno = kept;
    if (!rule)
        return (ssize_t)length;
    if (rule->at > at)
        return rule->at - at;
    return suffer(rule);
}

SHOWN ssize_t read(int handle, void *data, size_t length) {
    ssize_t most = count ? allowed(handle, length, syscall(SYS_lseek, handle, 0, SEEK_CUR)) : (ssize_t)length;
    return most < 0 ? -1 : syscall(SYS_read, handle, data, (size_t)most);
}
SHOWN ssize_t pread(int handle, void *data, size_t length, off_t at) {
    ssize_t most = allowed(handle, length, at);
    return most < 0 ? -1 : syscall(SYS_pread64, handle, data, (size_t)most, at);
}
SHOWN ssize_t pread64(int handle, void *data, size_t length, off_t at) { return pread(handle, data, length, at); }

static int open_at(int at, const char *name, int flags, mode_t mode) {
    struct rule *rule = count ? rule_of(name, -1) : NULL;
    return rule ? suffer(rule) : (int)syscall(SYS_openat, at, name, flags, mode);
}

#define MODE(flags)                           \
    va_list more;                             \
    va_start(more, flags);                    \
    mode_t mode = (mode_t)va_arg(more, int);  \
    va_end(more);

SHOWN int open(const char *name, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, name, flags, mode);
}
SHOWN int open64(const char *name, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, name, flags | O_LARGEFILE, mode);
}
