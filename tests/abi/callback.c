/* Callbacks that call back into the library, free what they run on, and log. */
#include "abi.h"

#define INVALID LLAMA_E_INVALID_ARGUMENT

static llama_t *l;
static const char *dir;
static int32_t prompt[8];
static const size_t len = 8;
static pthread_t caller;

typedef struct {
  int events, act;
  llama_stream_t *stream;
  llama_result_t *result;
} state;

static int32_t count(void *user_data, const llama_event *ev) {
  (void)ev;
  ++*(int *)user_data;
  return 1;
}

static int32_t meddle(void *user_data, const llama_event *ev) {
  state *st = user_data;
  CHECK(pthread_equal(pthread_self(), caller));
  if (++st->events != 3) return 1;
  if (st->act == 0) {
    /* what is allowed */
    llama_info info;
    llama_timings t;
    const char *p;
    char text[64];
    int32_t tokens[8];
    size_t n;
    llama_message m = {"user", "hi", SIZE_MAX, SIZE_MAX};
    info.struct_size = sizeof info;
    t.struct_size = sizeof t;
    EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
    EXPECT(LLAMA_OK, llama_get_timings(l, &t, err));
    EXPECT(LLAMA_OK, llama_encode_text(l, "a b", SIZE_MAX, 0, tokens, 8, &n, err));
    EXPECT(LLAMA_OK, llama_decode_tokens(l, &ev->token, 1, text, sizeof text, &n, err));
    EXPECT(LLAMA_OK, llama_token_bytes(l, ev->token, &p, &n, err));
    EXPECT(LLAMA_OK, llama_encode_dialog(l, &m, 1, NULL, 0, &n, err));
    CHECK(t.running <= info.max_batch_size);
    llama_cancel_trigger(NULL);
  } else if (st->act == 1) {
    /* what is not */
    llama_t *other = FOREIGN;
    llama_result_t *r = FOREIGN;
    llama_stream_t *s = FOREIGN;
    llama_event next;
    next.struct_size = sizeof next;
    EXPECT(INVALID, llama_generate(l, prompt, &len, 1, NULL, &r, err));
    EXPECT(INVALID, llama_text_completion(l, NULL, NULL, 1, NULL, &r, err));
    EXPECT(INVALID, llama_chat_completion(l, NULL, NULL, 1, NULL, &r, err));
    EXPECT(INVALID, llama_stream_open(l, prompt, &len, 1, NULL, &s, err));
    EXPECT(INVALID, llama_stream_next(st->stream, &next, -1, err));
    EXPECT(INVALID, llama_build(dir, NULL, NULL, &other, err));
    EXPECT(INVALID, llama_adapter_add(l, dir, 1, NULL, err));
    EXPECT(INVALID, llama_adapter_drop(l, 1, err));
    CHECK(other == NULL && r == FOREIGN && s == FOREIGN);
  } else if (st->act == 2) {
    llama_stream_free(st->stream);
    llama_result_free(st->result);
    llama_cancel_free(llama_cancel_new());
  } else {
    llama_free(l);
    llama_free(l);
    EXPECT(INVALID, llama_get_info(l, NULL, err));
  }
  return 1;
}

static void meddling(void) {
  llama_generate_options o = generate_defaults();
  llama_result_t *r;
  llama_status status;
  state st;
  const int32_t *tokens;
  size_t n;
  l = open_model(dir, 4096, 2);
  fill_prompt(prompt, len);
  caller = pthread_self();
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = 10;
  o.user_data = &st;
  for (st.act = 0; st.act < 4; st.act++) {
    st.events = 0;
    o.on_event = NULL;
    EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, &o, &st.result, err));
    EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &st.stream, err));
    o.on_event = meddle;
    r = NULL;
    if (st.act == 3) o.max_gen_len = LLAMABI_MAX_GEN_LEN_DEFAULT;
    status = llama_generate(l, prompt, &len, 1, &o, &r, NULL);
    if (st.act < 3) {
      CHECK(status == LLAMA_OK && st.events == 11);
    } else {
      CHECK(status == LLAMA_CANCELLED);
      CHECK(llama_result_finish_reason(r, 0) == LLAMA_FINISH_CANCELLED);
    }
    CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK && n >= 3);
    llama_result_free(r);
    llama_stream_free(st.stream);
    llama_result_free(st.result);
  }
  EXPECT(INVALID, llama_generate(l, prompt, &len, 1, &o, &r, err));
}

/* ---- the log ---- */

typedef struct {
  int lines, handle_calls, worst;
} lines;

static void on_log(void *user_data, int32_t level, const char *msg, size_t msg_len) {
  lines *seen = user_data;
  llama_info info;
  CHECK(level >= LLAMA_LOG_ERROR && level <= LLAMA_LOG_DEBUG);
  CHECK(msg_len > 0 && strlen(msg) == msg_len && msg[msg_len - 1] != '\n');
  seen->lines++;
  if (level < seen->worst) seen->worst = level;
  info.struct_size = sizeof info;
  if (seen->handle_calls && l != NULL) CHECK(llama_get_info(l, &info, NULL) != LLAMA_E_INTERNAL);
  CHECK(llama_generate(l, NULL, NULL, 1, NULL, NULL, NULL) == INVALID);
}

static void logging(void) {
  llama_build_options o = build_defaults();
  llama_generate_options g = generate_defaults();
  lines seen = {0, 1, LLAMA_LOG_DEBUG};
  int at_build, heard = 0;
  l = NULL;
  o.log = on_log;
  o.log_user_data = &seen;
  o.log_level = LLAMA_LOG_DEBUG;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  CHECK(seen.lines > 0);
  at_build = seen.lines;
  g.max_gen_len = 3;
  g.on_event = count;
  g.user_data = &heard;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, &g, NULL, err));
  CHECK(seen.lines == at_build + 1 && seen.worst == LLAMA_LOG_INFO && heard > 0);
  g.on_event = NULL;
  {
    /* one line a sequence, whichever way it ends */
    static const llama_message refused[] = {{"user", "[INST]", SIZE_MAX, SIZE_MAX}};
    size_t lens[] = {1}, two[] = {2, 3};
    llama_result_t *r;
    EXPECT(LLAMA_OK, llama_chat_completion(l, refused, lens, 1, &g, &r, err));
    llama_result_free(r);
    CHECK(seen.lines == at_build + 2);
    EXPECT(LLAMA_OK, llama_generate(l, prompt, two, 2, &g, &r, err));
    llama_result_free(r);
    CHECK(seen.lines == at_build + 4);
  }
  llama_free(l);
  at_build = seen.lines;
  EXPECT(INVALID, llama_get_info(l, NULL, err));
  CHECK(seen.lines == at_build);

  /* no request lines unless asked for; more threads than processors give a warning */
  seen.lines = 0;
  seen.worst = LLAMA_LOG_DEBUG;
  o.log_level = LLAMA_LOG_INFO;
  o.n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_CONF) + 1;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  CHECK(seen.worst == LLAMA_LOG_WARN);
  o.n_threads = 1;
  at_build = seen.lines;
  g.on_event = count;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, &g, NULL, err));
  CHECK(seen.lines == at_build);
  llama_free(l);

  /* a failed build has log lines too, and level 0 has none */
  l = NULL;
  seen.lines = 0;
  EXPECT(LLAMA_E_IO, llama_build("/nonexistent", NULL, &o, &l, err));
  CHECK(seen.lines > 0);
  seen.lines = 0;
  o.log_level = 0;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  CHECK(seen.lines == 0);
  llama_free(l);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  dir = argv[1];
  meddling();
  logging();
  return summary("callback");
}
