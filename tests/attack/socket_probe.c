/* Native code inside the program. As soon as the process has a seccomp filter, the probe requests every kind of socket and
   writes a line for each: "<process id> <what> <errno, 0 for granted>". A process that never gets a filter reports that at
   its end. Loaded with LD_PRELOAD; the report goes to $FIELDRAY_ATTACK_REPORT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_done;

static void tell(const char *what, int number, int error) {
    char line[128];
    const char *report = getenv("FIELDRAY_ATTACK_REPORT");
    int length = snprintf(line, sizeof line, "%d %s%d %d\n", (int)getpid(), what, number, error);
    int file = report ? (int)syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0) {
        if (write(file, line, length) < 0) { }
        close(file);
    }
}

static int error_of(long result) {
    if (result < 0)
        return errno;
    close((int)result);
    return 0;
}

#ifdef __x86_64__
/* socket(AF_INET, SOCK_STREAM, 0) in the numbering of 32-bit programs; in a child, since it may be killed for it. */
static int call_of_32_bits(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "0"(359L), "b"(2L), "c"(1L), "d"(0L) : "memory");
        _exit(result >= 0 ? 42 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return EPERM;
    return WIFEXITED(status) && WEXITSTATUS(status) == 42 ? 0 : EPERM;
}
#endif

/* A descriptor out of another process of this user, as it could be an open connection. */
static int descriptor_of_parent(void) {
    int process = (int)syscall(434, getppid(), 0); /* pidfd_open */
    int error = process < 0 ? errno : error_of(syscall(438, process, 0, 0)); /* pidfd_getfd */
    if (process >= 0)
        close(process);
    return error;
}

/* Another Python, started from here, without this library: it inherits the filter. */
static int other_python(void) {
    int status;
    const char *python = getenv("FIELDRAY_ATTACK_PYTHON");
    pid_t child;
    if (!python)
        return EPERM;
    child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_WRONLY);
        dup2(nothing, 1);
        dup2(nothing, 2);
        unsetenv("LD_PRELOAD");
        execl(python, python, "-I", "-c", "import socket; socket.socket()", (char *)NULL);
        _exit(1);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return EPERM;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : EPERM;
}

static void probe(void) {
    int family;
    if (is_done || prctl(PR_GET_SECCOMP) != 2)
        return;
    is_done = 1;
    for (family = 0; family < 46; family++) {
        int error = error_of(syscall(SYS_socket, family, SOCK_STREAM, 0));
        if (error)
            error = error_of(syscall(SYS_socket, family, SOCK_DGRAM, 0)) ? error : 0;
        if (error)
            error = error_of(syscall(SYS_socket, family, SOCK_RAW, 0)) ? error : 0;
        tell("family-", family, error);
    }
    {
        char parameters[120];
        memset(parameters, 0, sizeof parameters);
        tell("io_uring-", 0, error_of(syscall(425, 4, parameters)));
    }
#ifdef __x86_64__
    tell("x32-", 0, error_of(syscall(0x40000000L + SYS_socket, AF_INET, SOCK_STREAM, 0)));
    tell("int80-", 0, call_of_32_bits());
#endif
    tell("other-descriptor-", 0, descriptor_of_parent());
    tell("python-", 0, other_python());
}

static void before_end(void) __attribute__((destructor));
static void before_end(void) {
    if (!is_done && getenv("FIELDRAY_ATTACK_REPORT"))
        tell("no-filter-", 0, 0);
}

/* What every process calls again and again. */
int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list arguments;
    mode_t mode;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (!real)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    probe();
    return real(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list arguments;
    mode_t mode;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (!real)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    probe();
    return real(path, flags, mode);
}
