/* What a model says whose ranks are in several processes: the same as with as many ranks in one
 * process, of adapters too. */
#ifndef RANKS_ANSWERS_H
#define RANKS_ANSWERS_H

#include "ranks_scenario.h"

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

/* Adapters that calls choose: the same bits as of as many ranks in one process, with a stream
 * beside them; what one rank refuses, and what has been dropped. */
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

#endif
