/* A disk that takes its time: fsync and fdatasync last at least BENCH_SYNC_US microseconds.

   Loaded before the C library (LD_PRELOAD) into everybody who is measured. The data is synced as
   ever; then the caller sleeps for what is left, as it would while a slower disk works. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

typedef int (*sync_call)(int);

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int slowly(const char *name, int file)
{
    const char *text = getenv("BENCH_SYNC_US");
    long long until = now_ns() + (text == NULL ? 0 : atoll(text)) * 1000;
    int answer = ((sync_call)dlsym(RTLD_NEXT, name))(file);
    int kept = errno;
    struct timespec end = {until / 1000000000LL, until % 1000000000LL};
    prctl(PR_SET_TIMERSLACK, 1UL); /* of this thread: else it sleeps 50 us too long */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        ;
    errno = kept;
    return answer;
}

int fsync(int file) { return slowly("fsync", file); }

int fdatasync(int file) { return slowly("fdatasync", file); }
