/* Every allocation of a call fails once, alone or with all that follow it: the call says
 * LLAMA_E_NO_MEMORY, or succeeds without it. Only a call's own records, which stable Rust cannot
 * allocate fallibly, and what fails together with the words for it, may end the process, and then
 * as Rust ends it, with the line that the header announces. Never another way, never a hang, and
 * nothing is leaked.
 *
 * `allocations MODEL_DIR [SCENARIO [FIRST]]`; a scenario runs in children, which go on where the
 * one before them ended. */
#include "abi.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- an allocator that can be told to fail; the library's calls land here, the program comes
 * first ---- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static long fail_at = -1;  /* counts down; the allocation that finds 0 fails. -1: none */
static int fail_all_after; /* whether those that follow it fail as well */
static long failures, live;

static int refuse(void) {
  long left;
  if (__atomic_load_n(&fail_at, __ATOMIC_RELAXED) < 0) return 0;
  left = __atomic_fetch_sub(&fail_at, 1, __ATOMIC_RELAXED);
  if (left > 0) return 0;
  if (fail_all_after) __atomic_store_n(&fail_at, 0, __ATOMIC_RELAXED);
  __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
  errno = ENOMEM;
  return 1;
}

static void *counted(void *p) {
  if (p != NULL) __atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
  return p;
}

void *malloc(size_t n) { return refuse() ? NULL : counted(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return refuse() ? NULL : counted(__libc_calloc(n, size)); }
void *realloc(void *p, size_t n) {
  if (refuse()) return NULL;
  return p == NULL ? counted(__libc_malloc(n)) : __libc_realloc(p, n);
}
void *memalign(size_t align, size_t n) {
  return refuse() ? NULL : counted(__libc_memalign(align, n));
}
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void **p, size_t align, size_t n) {
  void *got = memalign(align, n);
  if (got == NULL) return ENOMEM;
  *p = got;
  return 0;
}
void free(void *p) {
  if (p != NULL) __atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
  __libc_free(p);
}

/* ---- what is tried ---- */

static const char *dir;
static llama_t *l;
static char text[700];
static int32_t tokens[20000];

static llama_status encode(llama_error *err) {
  size_t n;
  return llama_encode_text(
      l, text, SIZE_MAX, LLAMA_ENC_BOS | LLAMA_ENC_EOS, tokens, 20000, &n, err);
}

static llama_status encode_dialog(llama_error *err) {
  llama_message m[] = {{"system", "be brief", SIZE_MAX, SIZE_MAX}, {"user", text, SIZE_MAX, 500},
      {"assistant", "yes", SIZE_MAX, SIZE_MAX}, {"user", "why", SIZE_MAX, SIZE_MAX}};
  size_t n;
  return llama_encode_dialog(l, m, 4, tokens, 20000, &n, err);
}

static llama_status decode(llama_error *err) {
  static char out[40000];
  size_t n;
  fill_prompt(tokens, 5000);
  return llama_decode_tokens(l, tokens, 5000, out, sizeof out, &n, err);
}

static int32_t hear(void *user_data, const llama_event *ev) {
  (void)user_data, (void)ev;
  return 1;
}

static llama_generate_options options(void) {
  static const char *const stop[] = {"qqqq", "zzzz"};
  llama_generate_options o = generate_defaults();
  o.max_gen_len = 5;
  o.flags = LLAMA_GEN_LOGPROBS | LLAMA_GEN_ECHO | LLAMA_GEN_IGNORE_EOS;
  o.top_logprobs = 3;
  o.stop = stop;
  o.n_stop = 2;
  o.on_event = hear;
  return o;
}

static llama_status complete(llama_error *err) {
  const char *prompts[] = {"Once upon a time", text};
  size_t lens[] = {SIZE_MAX, 30};
  llama_generate_options o = options();
  llama_result_t *r = NULL;
  llama_status status = llama_text_completion(l, prompts, lens, 2, &o, &r, err);
  llama_result_free(r);
  return status;
}

static llama_status chat(llama_error *err) {
  llama_message m[] = {{"system", "be brief", SIZE_MAX, SIZE_MAX},
      {"user", "hello", SIZE_MAX, SIZE_MAX}, {"user", "[INST]", SIZE_MAX, SIZE_MAX}};
  size_t lens[] = {2, 1};
  llama_generate_options o = options();
  llama_result_t *r = NULL;
  llama_status status = llama_chat_completion(l, m, lens, 2, &o, &r, err);
  llama_result_free(r);
  return status;
}

static llama_status generate(llama_error *err) {
  size_t lens[] = {40, 7, 3};
  llama_generate_options o = options();
  llama_result_t *r = NULL;
  llama_status status;
  fill_prompt(tokens, 50);
  status = llama_generate(l, tokens, lens, 3, &o, &r, err);
  llama_result_free(r);
  return status;
}

/* On two ranks of this process: the other one is told of each step and its choices. */
static llama_status on_ranks(llama_error *err) {
  size_t lens[] = {40, 7, 3};
  llama_generate_options o = options();
  llama_result_t *r = NULL;
  llama_status status;
  o.repetition_penalty = 1.2f;
  fill_prompt(tokens, 50);
  status = llama_generate(l, tokens, lens, 3, &o, &r, err);
  llama_result_free(r);
  return status;
}

static llama_t *open_on_ranks(void) {
  static const int32_t nodes[2] = {0, 0};
  llama_build_options o = build_defaults();
  llama_t *ranks = NULL;
  o.device = LLAMA_DEVICE_CPU;
  o.devices = nodes;
  o.n_devices = 2;
  o.n_threads = 1;
  o.max_seq_len = 512;
  o.max_batch_size = 3;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &ranks, err));
  if (ranks == NULL) exit(1);
  return ranks;
}

static llama_status stream(llama_error *err) {
  size_t lens[] = {4, 7};
  llama_generate_options o = options();
  llama_stream_t *s = NULL;
  llama_event ev;
  llama_status status;
  o.on_event = NULL;
  ev.struct_size = sizeof ev;
  fill_prompt(tokens, 11);
  status = llama_stream_open(l, tokens, lens, 2, &o, &s, err);
  if (status == LLAMA_OK) {
    (void)llama_stream_fd(s);
    while ((status = llama_stream_next(s, &ev, 10000, err)) == LLAMA_OK) {
    }
    if (status == LLAMA_DONE) status = LLAMA_OK;
  }
  llama_stream_free(s);
  return status;
}

static llama_status compress(llama_error *err) {
  const llama_segment s[] = {{"Tell me.", SIZE_MAX, LLAMA_SEGMENT_KEEP, 0},
      {"once upon a time 12", SIZE_MAX, LLAMA_SEGMENT_COMPRESS, 0},
      {text, 60, LLAMA_SEGMENT_COMPRESS, 0}, {"who", SIZE_MAX, LLAMA_SEGMENT_QUESTION, 0}};
  llama_compress_options o;
  llama_result_t *r = NULL;
  llama_status status;
  llama_compress_options_init(&o, sizeof o);
  o.rate = 0.6f;
  o.coarse = 1.1f;
  o.window = 8;
  o.flags = LLAMA_COMPRESS_KEEP_DIGITS;
  status = llama_compress(l, s, 4, &o, &r, err);
  llama_result_free(r);
  return status;
}

static llama_status build(llama_error *err) {
  llama_build_options o = build_defaults();
  llama_t *other = NULL;
  llama_status status;
  o.device = LLAMA_DEVICE_CPU;
  o.n_threads = 1;
  o.max_seq_len = 32;
  o.max_batch_size = 1;
  status = llama_build(dir, NULL, &o, &other, err);
  llama_free(other);
  return status;
}

/* Every alternative that there is: lists of thousands of bytes for each token. */
static llama_status alternatives(llama_error *err) {
  llama_info info;
  size_t lens[] = {2};
  llama_generate_options o = options();
  llama_result_t *r = NULL;
  llama_status status;
  info.struct_size = sizeof info;
  CHECK(llama_get_info(l, &info, NULL) == LLAMA_OK);
  o.top_logprobs = info.vocab_size;
  fill_prompt(tokens, 2);
  status = llama_generate(l, tokens, lens, 1, &o, &r, err);
  llama_result_free(r);
  return status;
}

/* In the first ones only the caller's thread works, so that what is live can be compared. */
enum { N_ALONE = 3 };
static const struct {
  const char *name;
  llama_status (*call)(llama_error *);
  int stride;   /* a build has thousands */
  long records; /* what may end the process where one fails has at most as many sizes: the records
                   of a call and of its outcome. How often each ends it differs, since the threads'
                   allocations come in another order each time. */
} scenarios[] = {{"encode", encode, 1, 0}, {"encode_dialog", encode_dialog, 1, 0},
    {"decode", decode, 1, 0}, {"complete", complete, 1, 4}, {"chat", chat, 1, 4},
    {"generate", generate, 1, 4}, {"stream", stream, 1, 4}, {"alternatives", alternatives, 1, 4},
    {"on_ranks", on_ranks, 1, 4}, {"compress", compress, 3, 4}, {"build", build, 53, LONG_MAX}};

/* ---- a child ---- */

typedef struct {
  long next, refused, fine;
  long without; /* tries in a row in which the allocation did not come */
} progress;

/* A call with threads makes a few more or fewer allocations each time, so one that is past the end
 * of this call may be within the next. */
enum { TRIES = 5 };

static long live_after(llama_status (*call)(llama_error *)) {
  llama_error err;
  err.struct_size = sizeof err;
  (void)call(&err);
  return __atomic_load_n(&live, __ATOMIC_RELAXED);
}

/* Fails one allocation after another from `at->next` on. 0: all were tried. */
static int child(int s, int all_after, progress *at) {
  llama_status (*call)(llama_error *) = scenarios[s].call;
  const int alone = s < N_ALONE;
  int odd = 0;
  alarm(600);
  l = call == on_ranks ? open_on_ranks() : open_model(dir, 512, 3);
  (void)live_after(call);
  for (;; at->next += scenarios[s].stride) {
    llama_error err;
    llama_status status;
    long before = live_after(call);
    err.struct_size = sizeof err;
    failures = 0;
    fail_all_after = all_after;
    __atomic_store_n(&fail_at, at->next, __ATOMIC_RELAXED);
    status = call(&err);
    __atomic_store_n(&fail_at, -1, __ATOMIC_RELAXED);
    if (status != LLAMA_OK && status != LLAMA_E_NO_MEMORY) {
      fprintf(stderr, "%s, allocation %ld: status %d, %s\n", scenarios[s].name, at->next,
          (int)status, err.message);
      return 3;
    }
    if (failures == 0) {
      if (++at->without < TRIES) continue;
      at->next -= (TRIES - 1) * scenarios[s].stride;
      break;
    }
    at->without = 0;
    /* Fewer blocks than before are no leak: the threads of a model that was just built have freed
       what they were begun with meanwhile. */
    if (alone && __atomic_load_n(&live, __ATOMIC_RELAXED) < before && ++odd < TRIES) {
      at->next -= scenarios[s].stride;
      continue;
    }
    odd = 0;
    if (status == LLAMA_OK)
      at->fine++;
    else
      at->refused++;
    if (alone && __atomic_load_n(&live, __ATOMIC_RELAXED) != before) {
      fprintf(stderr, "%s, allocation %ld: %ld blocks are leaked\n", scenarios[s].name, at->next,
          live - before);
      return 4;
    }
    /* and the handle goes on */
    status = call(&err);
    if (status != LLAMA_OK) {
      fprintf(stderr, "%s, after allocation %ld: status %d, %s\n", scenarios[s].name, at->next,
          (int)status, err.message);
      return 5;
    }
  }
  llama_free(l);
  return 0;
}

static progress *shared;

enum { MAX_SIZES = 16 };

/* Notes the size that Rust's last line names; gives how many there are. */
static long note_size(long *sizes, long n, const char *said) {
  const char *at = strstr(said, "memory allocation of ");
  long i, size = at == NULL ? 0 : atol(at + strlen("memory allocation of "));
  for (i = 0; i < n; i++)
    if (sizes[i] == size) return n;
  if (n < MAX_SIZES) sizes[n++] = size;
  return n;
}

static void run(int s, int all_after, long first) {
  long aborts = 0, n_sizes = 0, sizes[MAX_SIZES];
  memset(shared, 0, sizeof *shared);
  shared->next = first;
  for (;;) {
    char said[4096];
    size_t n = 0;
    ssize_t got;
    int pipes[2], how = 0;
    pid_t pid;
    CHECK(pipe(pipes) == 0);
    pid = fork();
    if (pid == 0) {
      dup2(pipes[1], 2);
      close(pipes[0]);
      _exit(child(s, all_after, shared));
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + n, sizeof said - 1 - n)) > 0) {
      n += (size_t)got;
      /* read on: a broken pipe ends the child */
      if (n > sizeof said / 2) n = sizeof said / 2;
    }
    said[n] = 0;
    close(pipes[0]);
    CHECK(waitpid(pid, &how, 0) == pid);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) break;
    /* Rust's end; or that of glibc, where nothing is left even for Rust's line, and where a thread
       that a build starts has no memory for its own data. */
    if (!(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT &&
            (strstr(said, "memory allocation of ") != NULL ||
                ((all_after || scenarios[s].call == build) &&
                    strstr(said, "failed to register TLS destructor") != NULL)))) {
      CHECK(!"the documented end");
      fprintf(stderr, "%s, allocation %ld%s: %s %d\n%s\n", scenarios[s].name, shared->next,
          all_after ? " and all after" : "", WIFSIGNALED(how) ? "signal" : "exit",
          WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), said);
    }
    aborts++;
    n_sizes = note_size(sizes, n_sizes, said);
    shared->next += scenarios[s].stride;
    shared->without = 0;
  }
  /* Where one allocation fails and the next ones do not, there is memory for the words. */
  CHECK(all_after || shared->refused > 0 || scenarios[s].call == build);
  CHECK(all_after || n_sizes <= scenarios[s].records);
  printf(
      "%s%s: %ld allocations; LLAMA_E_NO_MEMORY %ld, done without %ld, aborts %ld of %ld sizes\n",
      scenarios[s].name, all_after ? ", all after" : "", shared->next, shared->refused,
      shared->fine, aborts, n_sizes);
  fflush(stdout);
}

int main(int argc, char **argv) {
  size_t i;
  if (argc < 2) return 2;
  dir = argv[1];
  setenv("RUST_BACKTRACE", "0", 1);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  for (i = 0; i < sizeof text - 1; i++) text[i] = " etaoin"[i * i % 7];
  for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (argc > 2 && strcmp(argv[2], scenarios[i].name) != 0) continue;
    run((int)i, 0, argc > 3 ? atol(argv[3]) : 0);
    run((int)i, 1, argc > 3 ? atol(argv[3]) : 0);
  }
  return summary("allocations");
}
