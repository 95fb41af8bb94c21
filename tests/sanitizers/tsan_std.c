/* The standard library comes compiled without ThreadSanitizer, which therefore sees a lock that is
 * taken at once (inlined into our code) and not one that is waited for. `ld --wrap` puts these
 * around the four functions that wait: they say what order each makes. The names are mangled,
 * run.sh gives them. */
#include <stdbool.h>
#include <stdint.h>

extern void __tsan_acquire(void *);
extern void __tsan_release(void *);

#define PASTE(a, b) a##b
#define WRAP(name)  PASTE(__wrap_, name)
#define REAL(name)  PASTE(__real_, name)

extern void REAL(LOCK_CONTENDED)(void *mutex);
void WRAP(LOCK_CONTENDED)(void *mutex) {
  REAL(LOCK_CONTENDED)(mutex);
  __tsan_acquire(mutex);
}

extern void REAL(WAIT)(void *condvar, void *mutex);
void WRAP(WAIT)(void *condvar, void *mutex) {
  __tsan_release(mutex);
  REAL(WAIT)(condvar, mutex);
  __tsan_acquire(mutex);
}

extern bool REAL(WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds);
bool WRAP(WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds) {
  bool in_time;
  __tsan_release(mutex);
  in_time = REAL(WAIT_TIMEOUT)(condvar, mutex, seconds, nanoseconds);
  __tsan_acquire(mutex);
  return in_time;
}

/* `once, ignore_poison, closure, vtable` and perhaps a location. */
extern void REAL(ONCE_CALL)(void *, long, void *, void *, void *, void *);
void WRAP(ONCE_CALL)(
    void *once, long ignore_poison, void *closure, void *vtable, void *more, void *most) {
  REAL(ONCE_CALL)(once, ignore_poison, closure, vtable, more, most);
  __tsan_acquire(once);
  __tsan_release(once);
}
