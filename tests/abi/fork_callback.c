/* A child that is forked inside a callback: what it calls there is refused, and so is the call that
 * is under way in it. Nothing hangs, and the parent's call goes on. */
#include "abi.h"

#include <signal.h>
#include <sys/wait.h>

#define INVALID LLAMA_E_INVALID_ARGUMENT

static const char *dir;
static llama_t *l;
static llama_stream_t *s;
static llama_result_t *r;
static llama_cancel_t *c;
static int32_t prompt[8];
static const size_t len = 8;
static int calls_to_fork; /* the callback in which to fork counts down to 0 */
static int say;           /* what the event callback returns in the child */
static int free_first;    /* whether the callback frees the handle before it forks */
static pid_t child = -1;  /* 0 in the child */

/* With what the parent made, inside a callback or not. */
static void call_everything(int inside) {
  llama_result_t *r2 = FOREIGN;
  llama_stream_t *s2 = FOREIGN;
  llama_t *l2 = FOREIGN;
  llama_info info;
  llama_timings t;
  llama_event ev;
  llama_request_stats st;
  const int32_t *tokens;
  const float *logprobs;
  const char *text;
  const llama_alternative *top;
  const char *prompts[] = {"a"};
  llama_message m = {"user", "a", 4, 1};
  char out[8];
  int32_t buf[8];
  size_t n, one = 1;
  info.struct_size = sizeof info;
  t.struct_size = sizeof t;
  ev.struct_size = sizeof ev;
  st.struct_size = sizeof st;
  if (inside) {
    EXPECT(INVALID, llama_build(dir, NULL, NULL, &l2, err));
    CHECK(l2 == NULL);
  }
  EXPECT(INVALID, llama_generate(l, prompt, &len, 1, NULL, &r2, err));
  EXPECT(INVALID, llama_text_completion(l, prompts, NULL, 1, NULL, &r2, err));
  EXPECT(INVALID, llama_chat_completion(l, &m, &one, 1, NULL, &r2, err));
  EXPECT(INVALID, llama_stream_open(l, prompt, &len, 1, NULL, &s2, err));
  EXPECT(INVALID, llama_stream_open_text(l, prompts, NULL, 1, NULL, &s2, err));
  EXPECT(INVALID, llama_stream_open_chat(l, &m, &one, 1, NULL, &s2, err));
  EXPECT(INVALID, llama_stream_next(s, &ev, -1, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, 0, buf, 8, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, &m, 1, buf, 8, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, prompt, 1, out, sizeof out, &n, err));
  EXPECT(INVALID, llama_token_bytes(l, 5, &text, &n, err));
  EXPECT(INVALID, llama_get_info(l, &info, err));
  EXPECT(INVALID, llama_get_timings(l, &t, err));
  CHECK(r2 == FOREIGN && s2 == FOREIGN);
  CHECK(llama_stream_stats(s, 0, &st) == INVALID && llama_stream_fd(s) == -1);
  CHECK(llama_stream_stop(s, 0) == INVALID);
  CHECK(llama_result_count(r) == 0 && llama_result_finish_reason(r, 0) == 0);
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == INVALID);
  CHECK(llama_result_logprobs(r, 0, &logprobs, &n) == INVALID);
  CHECK(llama_result_text(r, 0, &text, &n) == INVALID);
  CHECK(llama_result_top_logprobs(r, 0, 0, &top, &n) == INVALID);
  CHECK(llama_result_stats(r, 0, &st) == INVALID);
  llama_cancel_trigger(c);
  llama_cancel_free(c);
  llama_stream_free(s);
  llama_result_free(r);
  llama_free(l);
}

static int fork_here(void) {
  if (--calls_to_fork != 0) return 1;
  if (free_first) llama_free(l);
  child = fork();
  CHECK(child >= 0);
  if (child != 0) return 1;
  alarm(300); /* rather than hang */
  checks_failed = 0;
  call_everything(1);
  return say;
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data, (void)ev;
  return fork_here();
}

static int32_t on_stop(
    void *user_data, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  (void)user_data, (void)index, (void)tokens, (void)n, (void)n_prompt;
  return !fork_here();
}

static int32_t on_logits(void *user_data, const llama_logits *row) {
  (void)user_data, (void)row;
  return fork_here();
}

/* Callbacks that a call goes on to after one that has forked: they run in the parent alone. */
static int heard_in_child;

static int32_t on_later_event(void *user_data, const llama_event *ev) {
  (void)user_data, (void)ev;
  heard_in_child += child == 0;
  return 1;
}

static void on_later_log(void *user_data, int32_t level, const char *msg, size_t msg_len) {
  (void)user_data, (void)level, (void)msg, (void)msg_len;
  heard_in_child += child == 0;
}

static int32_t on_progress(void *user_data, float fraction) {
  (void)user_data, (void)fraction;
  return fork_here();
}

static void on_log(void *user_data, int32_t level, const char *msg, size_t msg_len) {
  (void)user_data, (void)level, (void)msg, (void)msg_len;
  fork_here();
}

/* The end of a call that has forked. In the child: it is refused, and the child can work for
 * itself. */
static void end(llama_status status, llama_status expected, const llama_error *err) {
  int how = -1;
  if (child == 0) {
    llama_generate_options o = generate_defaults();
    llama_result_t *result = NULL;
    llama_t *own;
    CHECK(status == INVALID && err->status == INVALID && strstr(err->message, "before a fork"));
    if (status != INVALID) fprintf(stderr, "the child's call is %d, not refused\n", (int)status);
    call_everything(0);
    /* flags of before the fork are refused, the child's own stop its calls */
    own = open_model(dir, 64, 2);
    o.cancel = c;
    EXPECT(INVALID, llama_generate(own, prompt, &len, 1, &o, &result, err));
    o.cancel = llama_cancel_new();
    CHECK(o.cancel != c);
    llama_cancel_trigger(o.cancel);
    llama_cancel_free(c);
    EXPECT(LLAMA_CANCELLED, llama_generate(own, prompt, &len, 1, &o, &result, err));
    llama_result_free(result);
    llama_cancel_free(o.cancel);
    llama_free(own);
    _exit(checks_failed != 0);
  }
  CHECK(status == expected);
  CHECK(calls_to_fork <= 0);
  CHECK(child > 0 && waitpid(child, &how, 0) == child);
  CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  child = -1;
}

static void in_events(int at) {
  llama_generate_options o = generate_defaults();
  llama_result_t *result = NULL;
  llama_error err;
  llama_status status;
  err.struct_size = sizeof err;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = free_first ? LLAMABI_MAX_GEN_LEN_DEFAULT : 20;
  o.on_event = on_event;
  o.cancel = c;
  calls_to_fork = at;
  status = llama_generate(l, prompt, &len, 1, &o, &result, &err);
  end(status, free_first ? LLAMA_CANCELLED : LLAMA_OK, &err);
  llama_result_free(result);
}

/* The callbacks that decide, of a call and of a stream. */
static void in_decisions(int kind, int streams, int at) {
  llama_generate_options o = generate_defaults();
  llama_result_t *result = NULL;
  llama_stream_t *stream = NULL;
  llama_error err;
  llama_event ev;
  llama_status status;
  err.struct_size = sizeof err;
  ev.struct_size = sizeof ev;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = 20;
  if (kind == 0) o.on_stop = on_stop;
  if (kind == 1) o.on_logits = on_logits;
  calls_to_fork = at;
  if (streams) {
    EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &stream, err));
    do status = llama_stream_next(stream, &ev, -1, &err);
    while (status == LLAMA_OK);
  } else {
    status = llama_generate(l, prompt, &len, 1, &o, &result, &err);
  }
  end(status, streams ? LLAMA_DONE : LLAMA_OK, &err);
  llama_result_free(result);
  llama_stream_free(stream);
}

/* The callbacks that decide, beside those that hear of it. */
static void in_decisions_beside_others(int kind) {
  llama_build_options b = build_defaults();
  llama_generate_options o = generate_defaults();
  llama_result_t *result = NULL;
  llama_t *before = l;
  llama_error err;
  llama_status status;
  err.struct_size = sizeof err;
  b.n_threads = 2;
  b.log = on_later_log;
  b.log_level = LLAMA_LOG_DEBUG;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &b, &l, err));
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = 5;
  o.on_event = on_later_event;
  if (kind == 0) o.on_stop = on_stop;
  if (kind == 1) o.on_logits = on_logits;
  calls_to_fork = 3;
  status = llama_generate(l, prompt, &len, 1, &o, &result, &err);
  CHECK(heard_in_child == 0);
  end(status, LLAMA_OK, &err);
  llama_result_free(result);
  llama_free(l);
  l = before;
}

/* Inside llama_build: with no handle yet, and with one that was just made (the last log line). */
static void in_build(llama_progress_fn progress, llama_log_fn log, int at) {
  llama_build_options o = build_defaults();
  llama_error err;
  llama_t *built = NULL;
  llama_status status;
  err.struct_size = sizeof err;
  o.n_threads = 3;
  o.progress = progress;
  o.log = log;
  calls_to_fork = at;
  status = llama_build(dir, NULL, &o, &built, &err);
  end(status, LLAMA_OK, &err);
  llama_free(built);
}

/* The log of a call: its lines come before the first event, between events and at the end. */
static void in_log_of_calls(void) {
  llama_build_options o = build_defaults();
  llama_error err;
  llama_t *before = l;
  int at;
  err.struct_size = sizeof err;
  o.n_threads = 2;
  o.log = on_log;
  o.log_level = LLAMA_LOG_DEBUG;
  calls_to_fork = 0;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  for (at = 1; at <= 2; at++) {
    llama_result_t *result = NULL;
    llama_generate_options g = generate_defaults();
    size_t lens[] = {2, 3};
    llama_status status;
    g.max_gen_len = 3;
    g.on_event = on_later_event;
    calls_to_fork = at;
    status = llama_generate(l, prompt, lens, 2, &g, &result, &err);
    CHECK(heard_in_child == 0);
    end(status, LLAMA_OK, &err);
    llama_result_free(result);
  }
  {
    /* a stream's: one line, at its end, which is not there yet when it has been opened */
    llama_stream_t *stream;
    llama_event ev;
    llama_generate_options g = generate_defaults();
    llama_status status;
    g.max_gen_len = 500;
    g.flags = LLAMA_GEN_IGNORE_EOS;
    ev.struct_size = sizeof ev;
    EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &g, &stream, err));
    calls_to_fork = 1;
    do status = llama_stream_next(stream, &ev, -1, &err);
    while (status == LLAMA_OK && child == -1);
    end(status, status, &err);
    llama_stream_free(stream);
  }
  llama_free(l);
  l = before;
}

int main(int argc, char **argv) {
  llama_generate_options o = generate_defaults();
  llama_event ev;
  int i;
  if (argc < 2) return 2;
  dir = argv[1];
  fill_prompt(prompt, len);
  l = open_model(dir, 4096, 3);
  c = llama_cancel_new();
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, NULL, &r, err));
  o.flags = LLAMA_GEN_IGNORE_EOS;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  for (i = 0; i < 20; i++) {
    say = i % 2;
    in_events(1 + i);
  }
  for (i = 0; i < 8; i++) {
    say = i % 2;
    in_decisions(i / 2 % 2, i / 4, 1 + i);
  }
  for (i = 0; i < 4; i++) {
    say = i % 2;
    in_decisions_beside_others(i / 2);
  }
  for (i = 1; i <= 3; i++) {
    in_build(on_progress, NULL, i);
    in_build(NULL, on_log, i);
  }
  in_log_of_calls();
  /* the parent's are as they were */
  ev.struct_size = sizeof ev;
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  CHECK(llama_result_count(r) == 1);
  free_first = 1;
  in_events(2);
  llama_stream_free(s);
  llama_result_free(r);
  llama_cancel_free(c);
  return summary("fork_callback");
}
