/* What a rank in a process of its own does in the tests: `ranks.c` runs it over sockets between
 * forked processes, `tests/mpi/ranks.c` over MPI. A scenario is a word; the rank that is named
 * misbehaves at the `at`th call of its communicator. */
#ifndef RANKS_H
#define RANKS_H

#include "abi.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>

struct scenario {
  const char *name;
  uint32_t rank, at;
};

static llama_comm inner;
static struct scenario scenario;
static uint32_t calls;
static llama_cancel_t *cancel;
static const uint32_t timeout_ms = 1500;

/* Whether ranks run on GPUs: each on the one of its number. */
static int on_gpus(void) { return getenv("RANKS_ON_GPUS") != NULL; }

static int is(const char *name) { return strcmp(scenario.name, name) == 0; }

/* The misbehaviour, when it is its turn. */
static void misbehave(void) {
  if (inner.rank != scenario.rank || ++calls != scenario.at) return;
  if (is("kill")) raise(SIGKILL);
  if (is("stop")) raise(SIGSTOP);
  if (is("cancel")) llama_cancel_trigger(cancel);
}

static int32_t on_send(
    void *user_data, uint32_t to, const void *bytes, size_t n, const llama_wait *w) {
  /* a message begins with its kind; 14 answers the beat of a rank 0 that has nothing to do, 20 says
   * that an adapter is loaded */
  uint32_t kind;
  memcpy(&kind, bytes, sizeof kind);
  if (is("idle") && inner.rank == scenario.rank && kind == 14) raise(SIGKILL);
  if (is("load") && inner.rank == scenario.rank && kind == 20) raise(SIGKILL);
  misbehave();
  return inner.send(user_data, to, bytes, n, w);
}

/* Has the stand-in driver, which the library has opened, refuse memory the next time. */
static void refuse_memory(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void (*set)(const char *) = NULL;
  CHECK(driver != NULL);
  if (driver != NULL) *(void **)&set = dlsym(driver, "emu_cuda_set");
  CHECK(set != NULL);
  if (set != NULL) set("fail=cuMemAlloc_v2:1:2");
}

static int32_t on_receive(
    void *user_data, uint32_t from, void *bytes, size_t cap, size_t *n, const llama_wait *w) {
  int32_t rc = inner.receive(user_data, from, bytes, cap, n, w);
  uint32_t kind = 0;
  if (rc == 0 && *n >= sizeof kind) memcpy(&kind, bytes, sizeof kind);
  /* 19 tells of an adapter to load */
  if (is("refuse") && inner.rank == 1 && kind == 19 && ++calls % 2 == 1) refuse_memory();
  return rc;
}

static int32_t on_gather(
    void *user_data, const void *mine, void *all, size_t n, const llama_wait *w) {
  misbehave();
  return inner.all_gather(user_data, mine, all, n, w);
}

static int32_t on_to_all(
    void *user_data, const void *to, void *from, size_t n, const llama_wait *w) {
  misbehave();
  return inner.all_to_all(user_data, to, from, n, w);
}

static llama_build_options rank_options(const llama_comm *comm) {
  llama_build_options o = build_defaults();
  o.device = on_gpus() ? LLAMA_DEVICE_CUDA : LLAMA_DEVICE_CPU;
  if (on_gpus() && comm != NULL) o.device_index = comm->rank;
  o.max_seq_len = 96;
  o.max_batch_size = 4;
  o.n_threads = 1;
  /* Only where a rank is to be missed: a busy machine may hold any of them up for a while. */
  o.rank_timeout_ms = scenario.rank > 0 || is("kill") || is("stop") ? timeout_ms : 60000;
  if (is("slow")) o.rank_timeout_ms = 2 * timeout_ms; /* nobody is missed, only waited for */
  o.comm = comm;
  return o;
}

enum { PROMPTS = 3, NEW = 20 };

/* Tokens and log probabilities of three prompts of different lengths, greedily and by drawing, with
 * an adapter or with 0. */
static void everything_with(uint32_t adapter, llama_t *l, int32_t *tokens, float *logprobs) {
  static int32_t prompts[3 + 17 + 40];
  size_t lens[PROMPTS] = {3, 17, 40}, i, n;
  int pass;
  fill_prompt(prompts, 3);
  fill_prompt(prompts + 3, 17);
  fill_prompt(prompts + 20, 40);
  for (pass = 0; pass < 2; pass++) {
    llama_generate_options g = generate_defaults();
    llama_result_t *r = NULL;
    g.flags = LLAMA_GEN_LOGPROBS | LLAMA_GEN_IGNORE_EOS;
    g.temperature = pass == 0 ? 0 : 0.8f;
    g.seed = 7;
    g.max_gen_len = NEW;
    g.adapter = adapter;
    EXPECT(LLAMA_OK, llama_generate(l, prompts, lens, PROMPTS, &g, &r, err));
    for (i = 0; i < PROMPTS; i++) {
      const int32_t *got;
      const float *p;
      CHECK(llama_result_tokens(r, i, &got, &n) == LLAMA_OK && n == NEW);
      if (n != NEW) continue;
      CHECK(llama_result_logprobs(r, i, &p, &n) == LLAMA_OK && n == NEW);
      if (n != NEW) continue;
      memcpy(tokens + ((size_t)pass * PROMPTS + i) * NEW, got, NEW * sizeof *got);
      memcpy(logprobs + ((size_t)pass * PROMPTS + i) * NEW, p, NEW * sizeof *p);
    }
    llama_result_free(r);
  }
}

static void everything(llama_t *l, int32_t *tokens, float *logprobs) {
  everything_with(0, l, tokens, logprobs);
}

/* As many ranks in one process. */
static llama_t *in_one_process(const char *dir) {
  int32_t devices[64] = {0}, i;
  llama_build_options o = rank_options(NULL);
  llama_t *threads = NULL;
  for (i = 0; i < 64 && on_gpus(); i++) devices[i] = i;
  o.devices = devices;
  o.n_devices = inner.size;
  /* GPUs of one process take adapters only without NCCL, which changes no bit. */
  if (on_gpus() && is("adapters")) setenv("LLAMABI_RANKS", "staged", 1);
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &threads, err));
  unsetenv("LLAMABI_RANKS");
  return threads;
}

/* The same bits as of as many ranks in one process. */
static void check_same(llama_t *l, const char *dir) {
  static int32_t tokens[2][2 * PROMPTS * NEW];
  static float logprobs[2][2 * PROMPTS * NEW];
  llama_t *threads = in_one_process(dir);
  everything(l, tokens[0], logprobs[0]);
  everything(threads, tokens[1], logprobs[1]);
  CHECK(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0);
  CHECK(memcmp(logprobs[0], logprobs[1], sizeof logprobs[0]) == 0);
  /* From the prefix cache, too. */
  everything(l, tokens[1], logprobs[1]);
  CHECK(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0);
  llama_free(threads);
}

static void check_figures(llama_t *l) {
  llama_info info;
  llama_rank r;
  uint64_t weights = 0, kv = 0;
  uint32_t i;
  info.struct_size = sizeof info;
  EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
  CHECK(info.model_parallel_size == inner.size);
  for (i = 0; i < inner.size; i++) {
    memset(&r, 0x55, sizeof r);
    r.struct_size = sizeof r;
    EXPECT(LLAMA_OK, llama_get_rank(l, i, &r, err));
    CHECK(r.rank == i && r.device == (on_gpus() ? LLAMA_DEVICE_CUDA : LLAMA_DEVICE_CPU));
    CHECK(r.weight_bytes > 0 && r.kv_bytes > 0);
    CHECK(r.host[0] != 0 && r.device_name[0] != 0 && (r.pid == (uint32_t)getpid()) == (i == 0));
    CHECK(r.silent_ms >= 0 && r.silent_ms < timeout_ms && r.exchange_ms >= 0);
    weights += r.weight_bytes;
    kv += r.kv_bytes;
  }
  CHECK(weights == info.weight_bytes && kv == info.kv_bytes);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_get_rank(l, inner.size, &r, err));
  EXPECT(LLAMA_OK, llama_health(l, err));
}

/* The adapters of `tests/data/adapters`, for the model there. */
static const char *adapter_dir(const char *dir, const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/../%s", dir, name);
  return path;
}

/* Adapters that calls choose: the same bits as of as many ranks in one process, with a stream beside
 * them; what one rank refuses, and what has been dropped. */
static void check_adapters(llama_t *l, const char *dir) {
  enum { N = 2 * PROMPTS * NEW };
  static const char *const names[2] = {"plain", "rslora-patterns"};
  static int32_t tokens[3][N], of_threads[N], again[N];
  static float logprobs[3][N], logprobs_of_threads[N], logprobs_again[N];
  llama_t *threads = in_one_process(dir);
  llama_generate_options g = generate_defaults();
  llama_stream_t *s = NULL;
  llama_event ev;
  int32_t prompt[8], streamed[2][40];
  size_t len = 8, n, i;
  uint32_t ids[3] = {0, 0, 0}, id, turn;
  llama_error e;
  e.struct_size = sizeof e;
  /* this rank finds it, another one does not */
  CHECK(chdir(adapter_dir(dir, "")) == 0);
  CHECK(llama_adapter_add(l, "plain", 1, &id, &e) == LLAMA_E_IO);
  CHECK(strstr(e.message, "rank 1 of 2 (") == e.message && strstr(e.message, "No such file"));
  CHECK(llama_adapter_add(l, adapter_dir(dir, "none"), 1, &id, &e) == LLAMA_E_IO);
  CHECK(strstr(e.message, "rank ") == NULL);
  CHECK(llama_adapter_add(l, adapter_dir(dir, "with-head"), 1, &id, &e) == LLAMA_E_UNSUPPORTED);
  for (i = 0; i < 3; i++) {
    if (i > 0) {
      EXPECT(LLAMA_OK, llama_adapter_add(l, adapter_dir(dir, names[i - 1]), 0.75f, &ids[i], err));
      CHECK(ids[i] == i); /* a failure takes no number */
      EXPECT(LLAMA_OK, llama_adapter_add(threads, adapter_dir(dir, names[i - 1]), 0.75f, &id, err));
    }
    everything_with(ids[i], l, tokens[i], logprobs[i]);
    everything_with(ids[i], threads, of_threads, logprobs_of_threads);
    CHECK(memcmp(tokens[i], of_threads, sizeof of_threads) == 0);
    CHECK(memcmp(logprobs[i], logprobs_of_threads, sizeof logprobs_of_threads) == 0);
    CHECK(i == 0 || memcmp(logprobs[i], logprobs[i - 1], sizeof logprobs[i]) != 0);
  }
  llama_free(threads);
  /* Twice the same stream; beside the second one are other calls, and its adapter is dropped. */
  fill_prompt(prompt, len);
  ev.struct_size = sizeof ev;
  g.flags = LLAMA_GEN_IGNORE_EOS;
  g.temperature = 0;
  g.max_gen_len = 40;
  g.adapter = ids[1];
  for (turn = 0; turn < 2; turn++) {
    EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &g, &s, err));
    for (n = 0; llama_stream_next(s, &ev, -1, &e) == LLAMA_OK;) {
      if (ev.kind == LLAMA_EVENT_TOKEN && n < 40) streamed[turn][n++] = ev.token;
      if (turn == 0 || n != 1 || ev.kind != LLAMA_EVENT_TOKEN) continue;
      EXPECT(LLAMA_OK, llama_adapter_drop(l, ids[1], err));
      for (i = 0; i < 3; i += 2) {
        everything_with(ids[i], l, again, logprobs_again);
        CHECK(memcmp(tokens[i], again, sizeof again) == 0);
        CHECK(memcmp(logprobs[i], logprobs_again, sizeof logprobs_again) == 0);
      }
    }
    CHECK(n == 40);
    llama_stream_free(s);
  }
  CHECK(memcmp(streamed[0], streamed[1], sizeof streamed[0]) == 0);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_stream_open(l, prompt, &len, 1, &g, &s, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_adapter_drop(l, ids[1], err));
  EXPECT(LLAMA_OK, llama_adapter_add(l, adapter_dir(dir, "plain"), 0.75f, &id, err));
  CHECK(id == 3);
  everything_with(id, l, again, logprobs_again);
  CHECK(memcmp(tokens[1], again, sizeof again) == 0);
  CHECK(memcmp(logprobs[1], logprobs_again, sizeof logprobs_again) == 0);
}

/* A rank whose GPU refuses an adapter memory, while a stream runs: a status, and all goes on. */
static void check_refusal(llama_t *l, const char *dir) {
  enum { ROUNDS = 3 };
  llama_generate_options g = generate_defaults();
  llama_stream_t *s = NULL;
  llama_event ev;
  int32_t prompt[8];
  size_t len = 8, n = 0;
  uint32_t id = 0, round;
  llama_error e;
  e.struct_size = sizeof e;
  ev.struct_size = sizeof ev;
  fill_prompt(prompt, len);
  g.flags = LLAMA_GEN_IGNORE_EOS;
  g.max_gen_len = 40;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &g, &s, err));
  for (round = 0; round < ROUNDS; round++) {
    llama_status status = llama_adapter_add(l, adapter_dir(dir, "plain"), 1, &id, &e);
    CHECK(status == LLAMA_E_DEVICE_MEMORY && strstr(e.message, "rank 1 of 2 (") == e.message);
    EXPECT(LLAMA_OK, llama_adapter_add(l, adapter_dir(dir, "plain"), 1, &id, err));
    CHECK(id == round + 1); /* a failure takes no number */
    EXPECT(LLAMA_OK, llama_adapter_drop(l, id, err));
  }
  while (llama_stream_next(s, &ev, -1, &e) == LLAMA_OK) n += ev.kind == LLAMA_EVENT_TOKEN;
  CHECK(n == 40);
  llama_stream_free(s);
  EXPECT(LLAMA_OK, llama_health(l, err));
}

static int32_t no(void *user_data, float fraction) {
  (void)user_data;
  (void)fraction;
  return 0;
}

static float shared; /* the last share that a rank has heard */
static double paused;

/* A rank that loads for longer than the others may be silent, and is not silent itself. */
static int32_t slowly(void *user_data, float fraction) {
  const double at_a_time = timeout_ms / 4.0;
  CHECK(fraction > shared);
  shared = fraction;
  if (*(const uint32_t *)user_data == scenario.rank && paused < 2.8 * timeout_ms) {
    sleep_ms((long)at_a_time);
    paused += at_a_time;
  }
  return 1;
}

static pid_t forked = -1; /* 0 in the child */

/* Forks the first time. */
static int32_t fork_once(void *user_data, float fraction) {
  (void)user_data;
  (void)fraction;
  if (forked != -1) return 1;
  fflush(NULL);
  forked = fork();
  if (forked == 0) {
    alarm(60); /* rather than hang */
    checks_failed = 0;
  }
  return 1;
}

static void fork_once_for_a_line(void *user_data, int32_t level, const char *msg, size_t msg_len) {
  (void)level, (void)msg, (void)msg_len;
  fork_once(user_data, 0);
}

/* The end of a call that has forked: in the child it fails, and the child says nothing to the other
 * ranks, which go on with its parent. */
static void end_forked(llama_status status, const llama_error *e) {
  int how = -1;
  if (forked == 0) {
    CHECK(status == LLAMA_E_INVALID_ARGUMENT && strstr(e->message, "before a fork") != NULL);
    _exit(checks_failed != 0);
  }
  CHECK(forked > 0 && waitpid(forked, &how, 0) == forked);
  CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  CHECK(status == LLAMA_OK);
}

/* Waits, with nothing to do, until the handle says what is wrong with it. */
static llama_status until_unwell(llama_t *l, char *message, size_t room) {
  double start = now_ms();
  llama_error e;
  llama_status status = LLAMA_OK;
  e.struct_size = sizeof e;
  while (status == LLAMA_OK && now_ms() - start < timeout_ms + 5000) {
    sleep_ms(20);
    status = llama_health(l, &e);
  }
  snprintf(message, room, "%s", e.message);
  return status;
}

/* Rank 0 of a scenario in which another rank fails: an error that names that rank, in time; the
 * handle is unusable, and it can be freed. */
static void meets_failure(const llama_comm *comm, const char *dir) {
  const char *named = is("missing")  ? "No such file"
                      : is("cancel") ? "left: cancelled"
                      : is("other")  ? "has another checkpoint"
                                     : "rank ";
  llama_build_options o = rank_options(comm);
  double start = now_ms();
  llama_t *l = NULL;
  llama_error e;
  llama_status status, later;
  char message[1016];
  e.struct_size = sizeof e;
  status = llama_build(dir, NULL, &o, &l, &e);
  snprintf(message, sizeof message, "%s", e.message);
  if (status == LLAMA_OK) {
    int32_t tokens[40];
    size_t len = 40;
    llama_generate_options g = generate_defaults();
    llama_result_t *r = NULL;
    int i;
    fill_prompt(tokens, len);
    g.flags = LLAMA_GEN_IGNORE_EOS;
    g.temperature = 0;
    for (i = is("idle") ? 3 : 0; i < 4 && status == LLAMA_OK; i++) {
      start = now_ms();
      status = llama_generate(l, tokens, &len, 1, &g, &r, &e);
      snprintf(message, sizeof message, "%s", e.message);
      llama_result_free(r);
    }
    start = status == LLAMA_OK ? now_ms() : start;
    if (status == LLAMA_OK) status = until_unwell(l, message, sizeof message);
    later = llama_generate(l, tokens, &len, 1, &g, &r, &e);
    CHECK(later == LLAMA_E_POISONED);
    CHECK(llama_health(l, &e) == LLAMA_E_POISONED && strstr(e.message, named) != NULL);
  }
  CHECK(status == LLAMA_E_PEER || (status == LLAMA_E_IO && is("missing")) ||
        status == LLAMA_E_POISONED);
  if (strstr(message, named) == NULL || now_ms() - start > timeout_ms + 3500)
    fprintf(stderr, "rank 0 says after %.0f ms: %d %s\n", now_ms() - start, (int)status, message);
  CHECK(strstr(message, named) != NULL);
  CHECK(now_ms() - start < timeout_ms + 3500);
  start = now_ms();
  llama_free(l);
  CHECK(now_ms() - start < 1000);
}

/* Rank 0 of a scenario in which another rank dies while it loads an adapter. */
static void loses_a_loader(llama_t *l, const char *dir) {
  double start = now_ms();
  char message[1016];
  uint32_t id;
  llama_error e;
  e.struct_size = sizeof e;
  CHECK(llama_adapter_add(l, adapter_dir(dir, "plain"), 1, &id, &e) == LLAMA_E_PEER);
  CHECK(strstr(e.message, "rank 1 of 2 (") == e.message);
  CHECK(now_ms() - start < timeout_ms + 3500);
  CHECK(until_unwell(l, message, sizeof message) == LLAMA_E_POISONED);
  CHECK(llama_adapter_add(l, adapter_dir(dir, "plain"), 1, &id, &e) == LLAMA_E_PEER);
}

/* Runs a scenario as one of its ranks. Returns whether something went wrong. */
static int run_rank(llama_comm comm, struct scenario which, const char *dir) {
  llama_comm wrapped = comm;
  llama_build_options o;
  llama_t *l = NULL;
  inner = comm;
  scenario = which;
  wrapped.send = on_send;
  wrapped.receive = on_receive;
  wrapped.all_gather = on_gather;
  wrapped.all_to_all = on_to_all;
  o = rank_options(&wrapped);
  cancel = llama_cancel_new();
  o.cancel = cancel;
  if (is("never") && comm.rank == scenario.rank) return 0;
  if (comm.rank > 0) {
    const char *mine = is("missing") && comm.rank == scenario.rank ? "no/such/directory" : dir;
    char other[4096];
    snprintf(other, sizeof other, "%s/../../gqa-bf16/meta", dir);
    if (is("other")) mine = other;
    if (is("adapters")) CHECK(chdir("/") == 0);
    llama_error e;
    llama_status status;
    e.struct_size = sizeof e;
    if (is("fork") && comm.rank == scenario.rank) {
      /* It hears of progress only where that takes a while; a line of the log there always is. */
      o.log = fork_once_for_a_line;
      o.log_level = LLAMA_LOG_INFO;
    }
    if (is("slow")) {
      o.progress = slowly;
      o.progress_user_data = &comm.rank;
    }
    status = llama_worker_run(mine, &o, &e);
    if (is("slow")) CHECK(shared == 1);
    if (is("slow") && comm.rank == scenario.rank) CHECK(paused >= 2.8 * timeout_ms);
    if (o.log != NULL) end_forked(status, &e);
    if (is("slow") || is("same") || is("fork") || is("free") || is("adapters") || is("refuse"))
      CHECK(status == LLAMA_OK);
    else if (is("missing") && comm.rank == scenario.rank)
      CHECK(status == LLAMA_E_IO);
    else if (is("cancelled") || (is("cancel") && comm.rank == scenario.rank))
      CHECK(status == LLAMA_CANCELLED);
    else
      CHECK(status == LLAMA_E_PEER);
    if (checks_failed > 0) fprintf(stderr, "rank %u: %d %s\n", comm.rank, (int)status, e.message);
  } else if (is("same")) {
    EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
    check_figures(l);
    check_same(l, dir);
    llama_free(l);
  } else if (is("adapters") || is("refuse") || is("load")) {
    EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
    if (is("adapters"))
      check_adapters(l, dir);
    else if (is("refuse"))
      check_refusal(l, dir);
    else
      loses_a_loader(l, dir);
    llama_free(l);
  } else if (is("slow")) { /* the others are well, though they had nothing to say */
    llama_error e;
    e.struct_size = sizeof e;
    EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
    sleep_ms(timeout_ms);
    CHECK(llama_health(l, &e) == LLAMA_OK);
    llama_free(l);
  } else if (is("free")) { /* in the middle of a stream */
    llama_stream_t *s = NULL;
    llama_event ev;
    int32_t tokens[8];
    size_t len = 8;
    fill_prompt(tokens, len);
    EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
    EXPECT(LLAMA_OK, llama_stream_open(l, tokens, &len, 1, NULL, &s, err));
    ev.struct_size = sizeof ev;
    EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
    llama_free(l);
    llama_stream_free(s);
  } else if (is("fork")) {
    static int32_t tokens[2 * PROMPTS * NEW];
    static float logprobs[2 * PROMPTS * NEW];
    llama_error e;
    llama_status status;
    e.struct_size = sizeof e;
    if (scenario.rank == 0) o.progress = fork_once;
    status = llama_build(dir, NULL, &o, &l, &e);
    if (scenario.rank == 0) end_forked(status, &e);
    CHECK(status == LLAMA_OK);
    everything(l, tokens, logprobs);
    llama_free(l);
  } else if (is("cancelled")) {
    o.progress = no;
    EXPECT(LLAMA_CANCELLED, llama_build(dir, NULL, &o, &l, err));
  } else if (is("refused")) {
    o.max_batch_size = 0;
    EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_build(dir, NULL, &o, &l, err));
  } else {
    if (scenario.rank == 0 && (is("kill") || is("stop"))) {
      int32_t tokens[40];
      size_t len = 40;
      llama_generate_options g = generate_defaults();
      llama_result_t *r = NULL;
      llama_error e;
      e.struct_size = sizeof e;
      g.flags = LLAMA_GEN_IGNORE_EOS;
      fill_prompt(tokens, len);
      if (llama_build(dir, NULL, &o, &l, &e) == LLAMA_OK)
        while (llama_generate(l, tokens, &len, 1, &g, &r, &e) == LLAMA_OK) llama_result_free(r);
      return 1; /* it should not have come here */
    }
    meets_failure(&wrapped, dir);
  }
  llama_cancel_free(cancel);
  return checks_failed > 0;
}

#endif
