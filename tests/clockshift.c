/* A clock that is wrong, for tests: preloaded into a process, it adds the seconds that stand in the file
   $CLOCK_SHIFT (a double, mapped into memory, so that they may change at any time) to everything that says
   or takes the time of day. Clocks that only measure time stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *shift;
static long (*real_syscall)(long, ...);
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
  if (shift) return;
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_sem = dlsym(RTLD_NEXT, "sem_timedwait");
  const char *path = getenv("CLOCK_SHIFT");
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) abort();
  void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found == MAP_FAILED) abort();
  shift = found;
}

static void move(struct timespec *time) {
  if (shift) time->tv_sec += (long)*shift; /* none before the constructor ran */
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (!real_gettime) begin(); /* somebody else's constructor was faster */
  const int result = real_gettime(clock, time);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(time);
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec time;
  if (clock_gettime(CLOCK_REALTIME, &time)) return -1;
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}

/* Who waits until a time of day waits until this clock shows it: a wait becomes several short ones by the kernel's
   clock, with a look at this one after each. What is no time of day (less than some years since the machine started)
   stays as it is. Gives 1 where this is a short one. */
static int next(const struct timespec *until, struct timespec *slice) {
  struct timespec now;
  real_gettime(CLOCK_REALTIME, slice);
  now = *slice;
  move(&now);
  const double left = (double)(until->tv_sec - now.tv_sec) + 1e-9 * (double)(until->tv_nsec - now.tv_nsec);
  const double wait = left < 0 ? 0 : left < 0.02 ? left : 0.02;
  slice->tv_nsec += (long)(wait * 1e9);
  if (slice->tv_nsec >= 1000000000) {
    slice->tv_nsec -= 1000000000;
    slice->tv_sec += 1;
  }
  return left > 0.02;
}

static int of_day(const struct timespec *until) { return until && until->tv_sec >= 1000000000; }

/* Waking without a reason is allowed to these two: who waits looks, and waits again. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  struct timespec slice;
  if (!of_day(until)) return real_cond(condition, mutex, until);
  const int more = next(until, &slice), result = real_cond(condition, mutex, &slice);
  return more && result == ETIMEDOUT ? 0 : result;
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  struct timespec slice;
  const struct timespec *until = (const struct timespec *)a[3];
  const int waits = number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && of_day(until);
  const int more = waits && next(until, &slice);
  if (waits) a[3] = (long)&slice;
  const long result = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return more && result == -1 && errno == ETIMEDOUT ? 0 : result;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  struct timespec slice;
  if (!of_day(until)) return real_sem(semaphore, until);
  for (;;) {
    const int more = next(until, &slice), result = real_sem(semaphore, &slice);
    if (!more || result == 0 || errno != ETIMEDOUT) return result;
  }
}
