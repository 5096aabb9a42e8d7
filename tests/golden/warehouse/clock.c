/* A clock that is CLOCK_BACK_S seconds behind, for the processes of make.py (LD_PRELOAD). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    const char *back = getenv("CLOCK_BACK_S");
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && back && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec -= atol(back);
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (out)
        *out = found.tv_sec;
    return found.tv_sec;
}
