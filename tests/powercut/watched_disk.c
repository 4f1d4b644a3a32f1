/* Intercepts a process's calls to the file system, loaded with LD_PRELOAD. It records each change below
   $FIELDRAY_WATCHED_FOLDER in $FIELDRAY_WATCHED_LOG, in the order over all processes, and can make changes fail.

   Writes to a file named `told` there are reports to the user: they are recorded and never fail.

   Its orders are in $FIELDRAY_WATCHED_ORDERS, a page that all processes and the test share (see stage.py): whether to record,
   and the change at which failures begin, their kind and their error. Calls go straight to the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

enum { IS_ON, FAILS_AT, HOW, ERROR, CHANGES, ROOM, ORDERS };
enum { ONCE = 1, FROM_THEN_ON = 2, DISK_FULL = 3 };
enum { ENDS = -1 }; /* for `room_for`: a change that needs no space, which a full disk allows */

struct entry { /* one change; path, other path and data follow */
    uint32_t kind, path, other, data;
    uint64_t object, at;
};

static const char *folder;
static size_t folder_length;
static volatile long *orders;
static int log_handle = -1;
static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;

static void begin(void) {
    const char *page = getenv("FIELDRAY_WATCHED_ORDERS"), *log = getenv("FIELDRAY_WATCHED_LOG");
    folder = getenv("FIELDRAY_WATCHED_FOLDER");
    if (!page || !log || !folder)
        return;
    folder_length = strlen(folder);
    int handle = (int)syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC);
    void *found = mmap(NULL, ORDERS * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    log_handle = (int)syscall(SYS_openat, AT_FDCWD, log, O_RDWR | O_APPEND | O_CLOEXEC);
    if (found != MAP_FAILED && log_handle >= 0)
        orders = found;
    pthread_mutex_init(&thread_lock, NULL);
}

/* A forked process opens the log again, because a lock belongs to an opened file and not to a process. */
__attribute__((constructor)) static void begin_and_follow(void) {
    begin();
    if (orders)
        pthread_atfork(NULL, NULL, begin);
}

/* ---- one change at a time, over threads and processes; a killed process holds nothing */

static void lock_file(short kind) {
    struct flock all = {.l_type = kind, .l_whence = SEEK_SET};
    while (fcntl(log_handle, F_OFD_SETLKW, &all) && errno == EINTR)
        ;
}

static void enter(void) {
    pthread_mutex_lock(&thread_lock);
    lock_file(F_WRLCK);
}

static void leave(void) {
    int kept = errno;
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&thread_lock);
    errno = kept;
}

static void note(char kind, uint64_t object, uint64_t at, const char *path, const char *other, const void *data,
                 size_t length) {
    int kept = errno;
    struct entry entry = {(uint32_t)kind, (uint32_t)strlen(path), (uint32_t)strlen(other), (uint32_t)length, object, at};
    struct iovec parts[] = {{&entry, sizeof entry},
                            {(void *)path, entry.path},
                            {(void *)other, entry.other},
                            {(void *)data, length}};
    syscall(SYS_writev, log_handle, parts, 4);
    errno = kept;
}

/* ---- failures */

/* Returns whether a change fails; `needs` is the number of bytes that it adds. A full disk gives its last bytes. */
static int fails(long needs, long *given) {
    long number = ++orders[CHANGES], first = orders[FAILS_AT];
    if (given)
        *given = needs;
    if (!first || number < first || (orders[HOW] == ONCE && number > first))
        return 0;
    if (needs == ENDS && orders[ERROR] != EIO)
        return 0;
    if (orders[HOW] == DISK_FULL) {
        long left = orders[ROOM];
        if (needs <= left) {
            orders[ROOM] -= needs > 0 ? needs : 0;
            return 0;
        }
        if (given && left > 0) {
            *given = left;
            orders[ROOM] = 0;
            return 0;
        }
    }
    errno = (int)orders[ERROR];
    return 1;
}

static void give_back(long bytes) {
    if (bytes > 0)
        orders[ROOM] += bytes;
}

/* Returns whether the disk is full now. */
static int is_full(void) {
    return orders && orders[IS_ON] && orders[FAILS_AT] && orders[CHANGES] >= orders[FAILS_AT] &&
           orders[HOW] != ONCE && orders[ERROR] == ENOSPC;
}

/* ---- paths of calls */

static int is_on(void) { return orders && orders[IS_ON]; }

static int is_watched(const char *path) {
    return !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static void path_of(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

static int find(int at, const char *name, char *path) {
    if (!is_on())
        return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char base[PATH_MAX];
        if (at == AT_FDCWD)
            base[syscall(SYS_getcwd, base, sizeof base) > 0 ? strlen(base) : 0] = 0;
        else
            path_of(at, base);
        if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX)
            return 0;
    }
    return is_watched(path);
}

enum { ELSEWHERE, WATCHED, TOLD };

static int find_file(int handle, struct stat *status) {
    char path[PATH_MAX];
    int kept = errno;
    int found = is_on() && !fstat(handle, status) && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode));
    if (found) {
        path_of(handle, path);
        size_t length = strlen(path);
        found = !is_watched(path) ? ELSEWHERE : length > 5 && !strcmp(path + length - 5, "/told") ? TOLD : WATCHED;
    }
    errno = kept;
    return found;
}

/* ---- opening */

static int open_at(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    int is_nameless = (flags & O_TMPFILE) == O_TMPFILE;
    if (!(flags & (O_CREAT | O_TRUNC)) && !is_nameless)
        return (int)syscall(SYS_openat, at, name, flags, mode);
    if (!find(at, name, path))
        return (int)syscall(SYS_openat, at, name, flags, mode);
    enter();
    int was_there = !is_nameless && !syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0);
    long before = was_there ? status.st_size : 0;
    int handle = -1;
    if (was_there || !fails(0, NULL))
        handle = (int)syscall(SYS_openat, at, name, flags, mode);
    if (handle >= 0 && !fstat(handle, &status)) {
        if (!was_there)
            note('C', status.st_ino, 0, is_nameless ? "" : path, "", "", 0);
        else if ((flags & O_TRUNC) && before) {
            give_back(before);
            note('T', status.st_ino, 0, "", "", "", 0);
        }
    }
    leave();
    return handle;
}

#define MODE(flags)                                  \
    mode_t mode = 0;                                 \
    if ((flags) & (O_CREAT | O_TMPFILE)) {           \
        va_list more;                                \
        va_start(more, flags);                       \
        mode = (mode_t)va_arg(more, unsigned);       \
        va_end(more);                                \
    }

SHOWN int open(const char *name, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, name, flags, mode);
}
SHOWN int open64(const char *name, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, name, flags | O_LARGEFILE, mode);
}
SHOWN int openat(int at, const char *name, int flags, ...) {
    MODE(flags)
    return open_at(at, name, flags, mode);
}
SHOWN int openat64(int at, const char *name, int flags, ...) {
    MODE(flags)
    return open_at(at, name, flags | O_LARGEFILE, mode);
}
SHOWN int creat(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
SHOWN int creat64(const char *name, mode_t mode) { return creat(name, mode); }

/* ---- writing */

static ssize_t write_at(int handle, const void *data, size_t length, off_t at, int has_place) {
    struct stat status;
    int found = find_file(handle, &status);
    if (!found)
        return has_place ? syscall(SYS_pwrite64, handle, data, length, at) : syscall(SYS_write, handle, data, length);
    enter();
    fstat(handle, &status);
    if (!has_place)
        at = fcntl(handle, F_GETFL) & O_APPEND ? status.st_size : syscall(SYS_lseek, handle, 0, SEEK_CUR);
    long more = at + (off_t)length - status.st_size, given = 0;
    long needs = more > 0 ? more : 0;
    ssize_t done = -1;
    if (found == TOLD || !fails(needs, &given)) {
        if (found == WATCHED && given < needs)
            length -= (size_t)(needs - given); /* a full disk takes a part of it */
        done = has_place ? syscall(SYS_pwrite64, handle, data, length, at) : syscall(SYS_write, handle, data, length);
        if (done > 0)
            note(found == TOLD ? 'M' : 'W', status.st_ino, (uint64_t)at, "", "", data, (size_t)done);
    }
    leave();
    return done;
}

SHOWN ssize_t write(int handle, const void *data, size_t length) { return write_at(handle, data, length, 0, 0); }
SHOWN ssize_t pwrite(int handle, const void *data, size_t length, off_t at) {
    return write_at(handle, data, length, at, 1);
}
SHOWN ssize_t pwrite64(int handle, const void *data, size_t length, off_t at) {
    return write_at(handle, data, length, at, 1);
}

SHOWN ssize_t writev(int handle, const struct iovec *parts, int count) {
    struct stat status;
    if (!find_file(handle, &status))
        return syscall(SYS_writev, handle, parts, count);
    ssize_t all = 0;
    for (int part = 0; part < count; part++) {
        ssize_t done = write_at(handle, parts[part].iov_base, parts[part].iov_len, 0, 0);
        if (done < 0)
            return all ? all : done;
        all += done;
        if ((size_t)done < parts[part].iov_len)
            break;
    }
    return all;
}

static int cut(int handle, off_t length) {
    struct stat status;
    if (!find_file(handle, &status))
        return (int)syscall(SYS_ftruncate, handle, length);
    enter();
    fstat(handle, &status);
    int done = -1;
    if (!fails(length > status.st_size ? length - status.st_size : ENDS, NULL)) {
        done = (int)syscall(SYS_ftruncate, handle, length);
        if (!done) {
            give_back(status.st_size - length);
            note('T', status.st_ino, (uint64_t)length, "", "", "", 0);
        }
    }
    leave();
    return done;
}

SHOWN int ftruncate(int handle, off_t length) { return cut(handle, length); }
SHOWN int ftruncate64(int handle, off_t length) { return cut(handle, length); }

SHOWN int truncate(const char *name, off_t length) {
    int handle = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CLOEXEC);
    if (handle < 0)
        return -1;
    int done = cut(handle, length), kept = errno;
    syscall(SYS_close, handle);
    errno = kept;
    return done;
}
SHOWN int truncate64(const char *name, off_t length) { return truncate(name, length); }

/* ---- syncing; `sync_file_range` guarantees nothing after a power cut and is not recorded */

static int bring(long call, int handle) {
    struct stat status;
    if (!find_file(handle, &status))
        return (int)syscall(call, handle);
    enter();
    int done = -1;
    if (!fails(0, NULL)) {
        done = (int)syscall(call, handle);
        if (!done)
            note('S', status.st_ino, 0, "", "", "", 0);
    }
    leave();
    return done;
}

SHOWN int fsync(int handle) { return bring(SYS_fsync, handle); }
SHOWN int fdatasync(int handle) { return bring(SYS_fdatasync, handle); }

/* ---- allocating space */

static int tell_room(int done, unsigned long *is_free, unsigned long *is_free_for_all) {
    if (!done && is_full())
        *is_free = *is_free_for_all = 0;
    return done;
}

SHOWN int statvfs(const char *name, struct statvfs *room) {
    int (*ask)(const char *, struct statvfs *) = dlsym(RTLD_NEXT, "statvfs");
    return tell_room(ask(name, room), &room->f_bavail, &room->f_bfree);
}
SHOWN int statvfs64(const char *name, struct statvfs64 *room) {
    int (*ask)(const char *, struct statvfs64 *) = dlsym(RTLD_NEXT, "statvfs64");
    return tell_room(ask(name, room), &room->f_bavail, &room->f_bfree);
}

/* ---- names */

static int make_folder(int at, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    if (!find(at, name, path))
        return (int)syscall(SYS_mkdirat, at, name, mode);
    enter();
    int done = -1;
    if (!fails(4096, NULL)) {
        done = (int)syscall(SYS_mkdirat, at, name, mode);
        if (!done && !syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW))
            note('D', status.st_ino, 0, path, "", "", 0);
    }
    leave();
    return done;
}

SHOWN int mkdir(const char *name, mode_t mode) { return make_folder(AT_FDCWD, name, mode); }
SHOWN int mkdirat(int at, const char *name, mode_t mode) { return make_folder(at, name, mode); }

static int rename_at(int at, const char *name, int new_at, const char *new_name, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    struct stat status, replaced;
    int is_inside = find(at, name, path), other_is_inside = find(new_at, new_name, other);
    if (!is_inside || !other_is_inside)
        return (int)syscall(SYS_renameat2, at, name, new_at, new_name, flags);
    enter();
    int done = -1;
    if (!fails(0, NULL) && !(done = (int)syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW))) {
        int replaces = !syscall(SYS_newfstatat, AT_FDCWD, other, &replaced, AT_SYMLINK_NOFOLLOW);
        done = (int)syscall(SYS_renameat2, at, name, new_at, new_name, flags);
        if (!done && replaces && !(flags & 2) && replaced.st_nlink == 1)
            give_back(replaced.st_size);
        if (!done)
            note(flags & 2 ? 'X' : 'R', status.st_ino, 0, path, other, "", 0);
    }
    leave();
    return done;
}

SHOWN int rename(const char *name, const char *new_name) {
    return rename_at(AT_FDCWD, name, AT_FDCWD, new_name, 0);
}
SHOWN int renameat(int at, const char *name, int new_at, const char *new_name) {
    return rename_at(at, name, new_at, new_name, 0);
}
SHOWN int renameat2(int at, const char *name, int new_at, const char *new_name, unsigned flags) {
    return rename_at(at, name, new_at, new_name, flags);
}

static int link_at(int at, const char *name, int new_at, const char *new_name, int flags) {
    char path[PATH_MAX], other[PATH_MAX];
    struct stat status;
    int is_inside = find(at, name, path), other_is_inside = find(new_at, new_name, other);
    if (!is_inside || !other_is_inside)
        return (int)syscall(SYS_linkat, at, name, new_at, new_name, flags);
    enter();
    int done = -1;
    if (!fails(0, NULL)) {
        done = (int)syscall(SYS_linkat, at, name, new_at, new_name, flags);
        if (!done && !syscall(SYS_newfstatat, AT_FDCWD, other, &status, AT_SYMLINK_NOFOLLOW))
            note('L', status.st_ino, 0, path, other, "", 0);
    }
    leave();
    return done;
}

SHOWN int link(const char *name, const char *new_name) { return link_at(AT_FDCWD, name, AT_FDCWD, new_name, 0); }
SHOWN int linkat(int at, const char *name, int new_at, const char *new_name, int flags) {
    return link_at(at, name, new_at, new_name, flags);
}

static int remove_at(int at, const char *name, int flags) {
    char path[PATH_MAX];
    struct stat status;
    if (!find(at, name, path))
        return (int)syscall(SYS_unlinkat, at, name, flags);
    enter();
    int done = -1;
    if (!(done = (int)syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW)) &&
        !(done = fails(ENDS, NULL) ? -1 : 0)) {
        done = (int)syscall(SYS_unlinkat, at, name, flags);
        if (!done) {
            give_back(status.st_nlink == 1 ? status.st_size : 0);
            note('U', status.st_ino, 0, path, "", "", 0);
        }
    }
    leave();
    return done;
}

SHOWN int unlink(const char *name) { return remove_at(AT_FDCWD, name, 0); }
SHOWN int rmdir(const char *name) { return remove_at(AT_FDCWD, name, AT_REMOVEDIR); }
SHOWN int unlinkat(int at, const char *name, int flags) { return remove_at(at, name, flags); }
