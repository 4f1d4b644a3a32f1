/* The calendar clock starts at $ATTACK_CLOCK (seconds since 1970) and goes on from there; other clocks are as they are.
   Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    static long seconds;
    if (!seconds) {
        struct timespec now;
        const char *start = getenv("ATTACK_CLOCK");
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
        seconds = (start ? atol(start) : now.tv_sec) - now.tv_sec;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (seconds)
        *seconds = found.tv_sec;
    return found.tv_sec;
}
