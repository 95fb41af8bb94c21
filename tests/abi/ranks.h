/* What a rank in a process of its own does in the tests: `ranks.c` runs it over sockets between
 * forked processes, `tests/mpi/ranks.c` over MPI. A scenario is a word; the rank that is named
 * misbehaves at the `at`th call of its communicator. */
#ifndef RANKS_H
#define RANKS_H

#include "ranks_answers.h"

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
