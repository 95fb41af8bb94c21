/* Cancelling before and during load, prefill and decode: by flag, by callback, from a signal
   handler. */
#include "abi.h"

#include <signal.h>

static llama_cancel_t *flag;
static llama_t *l;

/* ---- loading ---- */

typedef struct {
  int calls, stop_at, trigger_at;
  float last;
} progress;

static int32_t on_progress(void *user_data, float fraction) {
  progress *p = user_data;
  CHECK(fraction >= p->last && fraction <= 1.0f);
  p->last = fraction;
  p->calls++;
  if (p->calls == p->trigger_at) llama_cancel_trigger(flag);
  return p->calls != p->stop_at;
}

static void loading(const char *dir) {
  llama_build_options o = build_defaults();
  progress p;
  int i, calls;
  o.progress = on_progress;
  o.progress_user_data = &p;
  memset(&p, 0, sizeof p);
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  CHECK(p.calls > 1 && p.last == 1.0f);
  calls = p.calls;
  llama_free(l);

  for (i = 1; i <= 3; i++) {
    int at = i == 1 ? 1 : i == 2 ? calls / 2 : calls - 1;
    memset(&p, 0, sizeof p);
    p.stop_at = at;
    l = FOREIGN;
    EXPECT(LLAMA_CANCELLED, llama_build(dir, NULL, &o, &l, err));
    CHECK(l == NULL && p.calls == at);

    memset(&p, 0, sizeof p);
    p.trigger_at = at;
    o.cancel = flag = llama_cancel_new();
    l = FOREIGN;
    EXPECT(LLAMA_CANCELLED, llama_build(dir, NULL, &o, &l, err));
    CHECK(l == NULL && p.calls <= at + 1); /* within one tensor */
    llama_cancel_free(flag);
    o.cancel = NULL;
  }
  memset(&p, 0, sizeof p);
  o.cancel = flag = llama_cancel_new();
  llama_cancel_trigger(flag);
  EXPECT(LLAMA_CANCELLED, llama_build(dir, NULL, &o, &l, err));
  CHECK(l == NULL && p.calls <= 1);
  llama_cancel_free(flag);
}

/* ---- generating ---- */

static llama_timings timings(void) {
  llama_timings t;
  t.struct_size = sizeof t;
  CHECK(llama_get_timings(l, &t, NULL) == LLAMA_OK);
  return t;
}

typedef struct {
  size_t tokens, finishes, after_stop;
  size_t act_at;
  int stop; /* return 0, rather than trigger the flag */
  uint64_t steps;
} events;

static int32_t on_event(void *user_data, const llama_event *ev) {
  events *e = user_data;
  if (e->steps != 0 && e->stop) e->after_stop++;
  if (ev->kind == LLAMA_EVENT_FINISH) {
    e->finishes++;
    return 1;
  }
  if (++e->tokens != e->act_at) return 1;
  if (!e->stop) llama_cancel_trigger(flag);
  e->steps = timings().steps;
  return !e->stop;
}

static void check_partial(llama_result_t *r, size_t at_least) {
  const int32_t *tokens;
  const char *text;
  size_t n, len;
  CHECK(llama_result_count(r) == 1);
  CHECK(llama_result_finish_reason(r, 0) == LLAMA_FINISH_CANCELLED);
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK && n >= at_least && n < 8000);
  CHECK(llama_result_text(r, 0, &text, &len) == LLAMA_OK && text[len] == 0);
  llama_result_free(r);
}

static void *trigger_in_prefill(void *unused) {
  llama_timings before = timings(), t;
  (void)unused;
  do t = timings();
  while (t.steps == before.steps);
  llama_cancel_trigger(flag);
  return NULL;
}

static void on_signal(int number) {
  (void)number;
  llama_cancel_trigger(flag);
}

static void *signal_soon(void *unused) {
  (void)unused;
  sleep_ms(30);
  kill(getpid(), SIGUSR1);
  return NULL;
}

static void generating(const char *dir) {
  static int32_t prompt[8000];
  llama_generate_options o = generate_defaults();
  llama_result_t *r;
  pthread_t thread;
  events e;
  size_t len = 8, n;
  const int32_t *tokens;
  l = open_model(dir, 8192, 2);
  fill_prompt(prompt, 8000);
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.user_data = &e;

  /* before */
  o.cancel = flag = llama_cancel_new();
  llama_cancel_trigger(flag);
  r = NULL;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, &r, err));
  check_partial(r, 0);
  llama_cancel_free(flag);

  /* before its text is tokens: it has an end all the same, and the handle is not used */
  o.cancel = flag = llama_cancel_new();
  llama_cancel_trigger(flag);
  o.on_event = on_event;
  {
    const char *texts[] = {"one", "two"};
    llama_message message = {"user", "one", SIZE_MAX, SIZE_MAX};
    llama_timings t = timings();
    size_t one = 1;
    memset(&e, 0, sizeof e);
    r = NULL;
    EXPECT(LLAMA_CANCELLED, llama_text_completion(l, texts, NULL, 2, &o, &r, err));
    CHECK(e.finishes == 2 && e.tokens == 0 && llama_result_count(r) == 2);
    CHECK(llama_result_finish_reason(r, 1) == LLAMA_FINISH_CANCELLED);
    llama_result_free(r);
    EXPECT(LLAMA_CANCELLED, llama_chat_completion(l, &message, &one, 1, &o, &r, err));
    check_partial(r, 0);
    CHECK(e.finishes == 3 && timings().steps == t.steps);
    /* as many ends as sequences, of which there are no more than of a call that runs */
    o.num_return_sequences = 2;
    r = NULL;
    EXPECT(LLAMA_CANCELLED, llama_text_completion(l, texts, NULL, 2, &o, &r, err));
    CHECK(e.finishes == 7 && llama_result_count(r) == 4);
    llama_result_free(r);
    for (n = 10000000; n <= UINT32_MAX; n += UINT32_MAX - 10000000) {
      o.num_return_sequences = (uint32_t)n;
      EXPECT(LLAMA_E_BATCH, llama_text_completion(l, texts, NULL, 1, &o, &r, err));
      EXPECT(LLAMA_E_BATCH, llama_chat_completion(l, &message, &one, 1, &o, &r, err));
    }
    CHECK(e.finishes == 7);
    o.num_return_sequences = 0;
  }
  o.on_event = NULL;
  {
    /* a stream alike: the flag ends the encoding of a text that would be too long */
    static char longer[200001];
    const char *texts[] = {"one", longer};
    llama_timings t = timings();
    llama_stream_t *s = NULL;
    llama_event ev;
    ev.struct_size = sizeof ev;
    memset(longer, 'a', sizeof longer - 1);
    EXPECT(LLAMA_OK, llama_stream_open_text(l, texts, NULL, 2, &o, &s, err));
    for (n = 0; n < 2; n++) {
      EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
      CHECK(ev.kind == LLAMA_EVENT_FINISH && ev.finish_reason == LLAMA_FINISH_CANCELLED);
    }
    EXPECT(LLAMA_CANCELLED, llama_stream_next(s, &ev, -1, err));
    CHECK(timings().steps == t.steps);
    llama_stream_free(s);
  }
  llama_cancel_free(flag);

  /* during decode, by flag: within one step (and the one that was being prepared) */
  o.cancel = flag = llama_cancel_new();
  o.on_event = on_event;
  memset(&e, 0, sizeof e);
  e.act_at = 5;
  r = NULL;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, &r, err));
  CHECK(e.finishes == 1 && e.steps > 0 && timings().steps <= e.steps + 2);
  check_partial(r, 5);
  llama_cancel_free(flag);

  /* during decode, by the callback: it is not called again */
  o.cancel = NULL;
  memset(&e, 0, sizeof e);
  e.act_at = 5;
  e.stop = 1;
  r = NULL;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, &r, err));
  CHECK(e.tokens == 5 && e.finishes == 0 && e.after_stop == 0 && timings().steps <= e.steps + 2);
  check_partial(r, 5);

  /* during prefill: within one chunk of the prompt */
  o.on_event = NULL;
  o.cancel = flag = llama_cancel_new();
  len = 8000;
  CHECK(pthread_create(&thread, NULL, trigger_in_prefill, NULL) == 0);
  r = NULL;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, &r, err));
  pthread_join(thread, NULL);
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK && n == 0);
  check_partial(r, 0);
  llama_cancel_free(flag);

  /* from a signal handler, which may interrupt any thread anywhere */
  {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    o.cancel = flag = llama_cancel_new();
    len = 8;
    CHECK(pthread_create(&thread, NULL, signal_soon, NULL) == 0);
    r = NULL;
    EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, &r, err));
    pthread_join(thread, NULL);
    check_partial(r, 0);
    llama_cancel_free(flag);
  }

  /* and the handle is as good as new */
  o = generate_defaults();
  o.max_gen_len = 3;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, &o, &r, err));
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK && n == 3);
  llama_result_free(r);
  {
    llama_timings t = timings();
    CHECK(t.running == 0 && t.waiting == 0 && t.pages_used == 0 && t.pages_total > 0);
    CHECK(t.load_ms > 0 && t.decode_ms > 0 && t.generated_tokens >= 13);
  }
  llama_free(l);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  loading(argv[1]);
  generating(argv[1]);
  return summary("cancel");
}
