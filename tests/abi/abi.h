/* What the test programs share. Each runs as `program MODEL_DIR` and prints its number of
 * checks. */
#ifndef ABI_H
#define ABI_H

#include <llamabi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int checks_done, checks_failed;

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    __atomic_fetch_add(&checks_done, 1, __ATOMIC_RELAXED);                                         \
    if (!(condition)) {                                                                            \
      __atomic_fetch_add(&checks_failed, 1, __ATOMIC_RELAXED);                                     \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                      \
    }                                                                                              \
  } while (0)

/* The status of a call, with `err` in its arguments: fresh before, consistent after. */
#define EXPECT(expected, call)                                                                     \
  do {                                                                                             \
    llama_error err_;                                                                              \
    llama_error *err = &err_;                                                                      \
    llama_status got_;                                                                             \
    memset(err, 0x55, sizeof *err);                                                                \
    err->struct_size = sizeof *err;                                                                \
    got_ = (call);                                                                                 \
    __atomic_fetch_add(&checks_done, 1, __ATOMIC_RELAXED);                                         \
    if (got_ != (expected) || err->status != got_ || err->struct_size != sizeof *err ||            \
        memchr(err->message, 0, sizeof err->message) == NULL ||                                    \
        (got_ == LLAMA_OK) != (err->message[0] == 0)) {                                            \
      __atomic_fetch_add(&checks_failed, 1, __ATOMIC_RELAXED);                                     \
      fprintf(stderr, "%s:%d: %s is %d, err says %d \"%.200s\", expected %d\n", __FILE__,          \
          __LINE__, #call, (int)got_, (int)err->status, err->message, (int)(expected));            \
    }                                                                                              \
  } while (0)

static inline int summary(const char *program) {
  if (checks_failed != 0)
    fprintf(stderr, "%s: %d of %d checks failed\n", program, checks_failed, checks_done);
  else
    printf("%s: %d checks passed\n", program, checks_done);
  return checks_failed != 0;
}

static inline void sleep_ms(long ms) {
  struct timespec t;
  t.tv_sec = ms / 1000;
  t.tv_nsec = ms % 1000 * 1000000;
  nanosleep(&t, NULL);
}

static inline double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline llama_build_options build_defaults(void) {
  llama_build_options o;
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  return o;
}

static inline llama_generate_options generate_defaults(void) {
  llama_generate_options o;
  llama_generate_options_init(&o, sizeof o);
  return o;
}

/* A handle on the CPU; the program ends if there is none. */
static inline llama_t *open_model(const char *dir, uint32_t max_seq_len, uint32_t max_batch_size) {
  llama_build_options o = build_defaults();
  llama_error err;
  llama_t *l = NULL;
  err.struct_size = sizeof err;
  o.device = LLAMA_DEVICE_CPU;
  o.max_seq_len = max_seq_len;
  o.max_batch_size = max_batch_size;
  /* valgrind runs one thread at a time: another that spins for work only slows it down */
  if (getenv("LLAMABI_TEST_THREADS") != NULL)
    o.n_threads = (uint32_t)atoi(getenv("LLAMABI_TEST_THREADS"));
  if (llama_build(dir, NULL, &o, &l, &err) != LLAMA_OK) {
    fprintf(stderr, "llama_build(%s): %s\n", dir, err.message);
    exit(1);
  }
  return l;
}

/* A prompt of `n` tokens, all of them in any vocabulary. */
static inline void fill_prompt(int32_t *tokens, size_t n) {
  size_t i;
  for (i = 0; i < n; i++) tokens[i] = i == 0 ? 1 : (int32_t)(3 + i % 200);
}

/* A pointer that is no live object of ours. */
static inline char *foreign_object(void) {
  static union {
    char bytes[64];
    void *aligned;
  } object;
  return object.bytes;
}
#define FOREIGN ((void *)foreign_object())

#endif
