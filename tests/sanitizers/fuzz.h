/* Random numbers, memory with a guard page behind it, and the objects that threads share. */
#ifndef FUZZ_H
#define FUZZ_H

#include <llamabi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every export, in alphabetical order: each call is counted under its name. */
// clang-format off
#define EXPORTS(X) \
  X(abi_version) X(adapter_add) X(adapter_drop) X(build) X(build_options_init) X(cancel_free) \
  X(cancel_new) X(cancel_trigger) X(chat) X(chat_completion) X(chat_options_init) \
  X(compress) X(compress_options_init) X(decode_tokens) X(destroy) X(encode_chat) X(encode_dialog) X(encode_text) \
  X(encode_text_bounded) X(free) X(generate) X(generate_options_init) X(get_info) X(get_rank) \
  X(get_timings) X(grammar_free) X(grammar_mask) X(grammar_new) X(health) X(render_chat) \
  X(result_count) \
  X(result_finish_reason) X(result_free) X(result_logprobs) X(result_score) X(result_stats) \
  X(result_text) X(result_tokens) X(result_top_logprobs) X(status_string) X(stream_fd) \
  X(stream_free) X(stream_next) X(stream_open) X(stream_open_chat) X(stream_open_messages) \
  X(stream_open_text) X(stream_stats) X(stream_stop) X(text_completion) X(token_bytes) X(version) X(worker_run)
// clang-format on

#define AS_ENUM(name) EXPORT_##name,
#define AS_NAME(name) "llama_" #name,
enum { EXPORTS(AS_ENUM) N_EXPORTS };
static const char *const export_names[] = {EXPORTS(AS_NAME)};
static atomic_long calls_of[N_EXPORTS], calls_made;

#define CALL(name)                                                                                 \
  (atomic_fetch_add(&calls_of[EXPORT_##name], 1), atomic_fetch_add(&calls_made, 1), llama_##name)

/* ---- one thread ---- */

enum { AREAS = 64, AREA = 1 << 16 };

typedef struct {
  unsigned long long random;
  unsigned number;
  pid_t process;      /* another one than getpid(): this is a child */
  int forked_inside;  /* and was forked inside a callback */
  char *areas[AREAS]; /* each AREA bytes, and a page that cannot be touched */
  unsigned next_area;
  int depth;      /* callbacks that this thread is in */
  void *stale[8]; /* numbers of objects that were freed */
} worker;

static _Thread_local worker *self;

static unsigned long long draw(void) { /* splitmix64 */
  unsigned long long z = (self->random += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* 0 to n - 1. */
static unsigned below(unsigned n) { return (unsigned)(draw() % n); }
static int one_in(unsigned n) { return below(n) == 0; }

static void make_areas(worker *w) {
  long page = sysconf(_SC_PAGESIZE);
  int i;
  for (i = 0; i < AREAS; i++) {
    char *p =
        mmap(NULL, AREA + (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + AREA, (size_t)page, PROT_NONE) != 0) abort();
    w->areas[i] = p;
  }
}

/* `n` bytes that end where the guard page begins: one more cannot be read or written. Good until
 * AREAS / 2 more were taken, which no call does; callbacks have the upper half to themselves. */
static void *edge(size_t n) {
  unsigned half = AREAS / 2, i = self->next_area++ % half;
  char *p = self->areas[self->depth > 0 ? half + i : i] + AREA - n;
  memset(p, 0x5a, n);
  return p;
}

/* ---- shared objects ---- */

enum { SLOTS = 8 };
static _Atomic(void *) handles[SLOTS], streams[SLOTS], results[SLOTS], flags[SLOTS],
    grammars[SLOTS];
/* Of the lasting handle, by their numbers. */
static _Atomic uint32_t adapters[SLOTS];
/* Never freed before the end: what it gives may be read. */
static llama_t *lasting;
/* Streams below this are used by one thread at a time, which reads what their events point to;
 * those above by any number at once, which does not. */
enum { READ_STREAMS = SLOTS / 2 };
static pthread_mutex_t reading[READ_STREAMS];

/* Mostly what is in a slot, which others may free meanwhile; NULL, freed or foreign otherwise. */
static void *some(_Atomic(void *) *slots) {
  switch (below(24)) {
  case 0:
    return NULL;
  case 1:
    return self->stale[below(8)];
  case 2:
    return (void *)(uintptr_t)(draw() >> below(64));
  case 3:
    return edge(64);
  default:
    return atomic_load(&slots[below(SLOTS)]);
  }
}

static void *take(_Atomic(void *) *slots, unsigned i) {
  void *taken = atomic_exchange(&slots[i], NULL);
  if (taken != NULL) self->stale[below(8)] = taken;
  return taken;
}

#endif
