/* A communicator around another one, of which one rank misbehaves as the scenario says. */
#ifndef RANKS_SCENARIO_H
#define RANKS_SCENARIO_H

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

#endif
