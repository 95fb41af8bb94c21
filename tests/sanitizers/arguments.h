/* Handles, texts and tokens, valid and invalid, in memory with a guard page behind it; and what is
 * checked of the status that a call returns. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include "fuzz.h"

#define INVALID LLAMA_E_INVALID_ARGUMENT

static unsigned long long seed = 1;
static atomic_int failed;

/* Directories: the model, another model, and an adapter of the first. */
static const char *dir, *other_dir, *adapter_dir;

static void fail(const char *what, long status, const char *message) {
  fprintf(stderr, "fuzz: seed %llu, thread %u: %s: %ld %s\n", seed, self->number, what, status,
      message);
  atomic_store(&failed, 1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail(#condition, __LINE__, ""))

static int child(void) { return getpid() != self->process; }

static llama_error *an_error(void) {
  static const unsigned sizes[] = {
      sizeof(llama_error), sizeof(llama_error), 16, 12, 100, 2048, 0, 5000};
  unsigned size = sizes[below(8)];
  llama_error *e;
  if (one_in(8)) return NULL;
  e = edge(((size < 8 ? 8 : size > 4096 ? 8 : size) + 3) & ~3u);
  e->struct_size = size;
  return e;
}

/* `valid`: nothing was wrong with the arguments and the handle is the lasting one. */
static void check(const char *name, llama_status status, const llama_error *e, int valid) {
  static const llama_status possible[] = {LLAMA_OK, LLAMA_DONE, LLAMA_CANCELLED, LLAMA_TIMEOUT,
      INVALID, LLAMA_E_ABI, LLAMA_E_IO, LLAMA_E_NO_MEMORY, LLAMA_E_TOO_LONG, LLAMA_E_BATCH,
      LLAMA_E_UTF8, LLAMA_E_BUSY, LLAMA_E_UNSUPPORTED, LLAMA_E_FORMAT};
  const char *message = "";
  size_t i;
  /* other ranks, which talk nonsense, may say that anything has failed */
  int known = child() || strcmp(name, "with ranks") == 0;
  if (e != NULL && e->struct_size > 8 && e->struct_size <= 4096) {
    size_t room = (e->struct_size < sizeof *e ? e->struct_size : sizeof *e) - 8;
    message = e->message;
    if (memchr(message, 0, room) == NULL) fail(name, status, "has no end of its message");
    if (e->status != status) fail(name, status, "is not what err says");
    if (room > 1 && (status == LLAMA_OK) != (*message == 0)) fail(name, status, message);
  }
  for (i = 0; i < sizeof possible / sizeof *possible; i++) known |= status == possible[i];
  if (!known) fail(name, status, message);
  /* E_ABI is for an err whose size is nonsense; a child has nothing but what its parent made */
  if (valid && !child() && status < 0 && status != LLAMA_E_BUSY && status != LLAMA_E_ABI)
    fail(name, status, message);
  if (child() && status != INVALID && status != LLAMA_E_ABI) fail(name, status, "in a child");
}

static llama_t *a_handle(int *valid) {
  if (!one_in(3)) return lasting;
  *valid = 0;
  return some(handles);
}

/* UTF-8 mostly, `*len` bytes or SIZE_MAX. */
static const char *a_text(size_t *len, int *valid, unsigned most) {
  static const char *const parts[] = {
      "a", " the", "\xc3\xa9", "\xe6\xbc\xa2", "\n", "upon", " ", "[INST]", "."};
  char text[4096];
  size_t n = 0;
  unsigned k = below(most);
  char *at;
  while (k-- > 0 && n < sizeof text - 16) {
    const char *part = parts[below(9)];
    memcpy(text + n, part, strlen(part));
    n += strlen(part);
  }
  if (one_in(20)) {
    text[n++] = (char)(0x80 + below(128));
    *valid = 0;
  }
  if (one_in(30)) {
    *valid = 0;
    *len = one_in(2) ? 5 : (size_t)INT32_MAX + below(3);
    return NULL;
  }
  if (one_in(3)) {
    text[n++] = 0;
    *len = SIZE_MAX;
  } else {
    *len = n;
  }
  at = edge(n);
  return memcpy(at, text, n);
}

static int32_t *some_tokens(size_t n, int *valid) {
  int32_t *t = edge(n * sizeof *t);
  size_t i;
  for (i = 0; i < n; i++) t[i] = (int32_t)(3 + below(250));
  if (n > 0 && one_in(30)) {
    t[below((unsigned)n)] = one_in(2) ? -1 - (int32_t)below(100) : INT32_MAX - (int32_t)below(3);
    *valid = 0;
  }
  return t;
}

#endif
