/* Preloaded into the processes under test: a clock that can be set, and a disk that can be slow or
 * fail.
 *
 * The control file is mapped, so that a change counts at once. It holds, in this order: how many ms
 * the wall clock is off (int64), how many ms a sync takes longer (int64), and a write (int64), and
 * whether every sync fails with EIO (int64).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t nothing[4];
static volatile int64_t *control = nothing;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("NEMESIS_CONTROL");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd >= 0) {
    void *found = mmap(NULL, sizeof nothing, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) control = found;
    close(fd);
  }
}

static void wait_ms(int64_t ms) {
  struct timespec left = {ms / 1000, (ms % 1000) * 1000000};
  if (ms > 0) nanosleep(&left, NULL);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (!result && control[0] && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = now->tv_nsec + (control[0] % 1000) * 1000000;
    now->tv_sec += control[0] / 1000 + (ns < 0 ? -1 : ns / 1000000000);
    now->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (at) *at = precise.tv_sec;
  return precise.tv_sec;
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
  wait_ms(control[1]);
  if (control[3]) return errno = EIO, -1;
  return real(fd);
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  wait_ms(control[1]);
  if (control[3]) return errno = EIO, -1;
  return real(fd);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
  static ssize_t (*real)(int, const struct iovec *, int, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pwritev");
  wait_ms(control[2]);
  return real(fd, parts, count, at);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
  static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
  if (!real) real = dlsym(RTLD_NEXT, "pwritev2");
  wait_ms(control[2]);
  return real(fd, parts, count, at, flags);
}
