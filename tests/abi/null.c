/* Every export with NULL, zero, huge, stale and foreign arguments: a status and a sentence, never a
   crash. The first part needs no model. */
#include "abi.h"

#include <math.h>

#include <limits.h>

#define INVALID LLAMA_E_INVALID_ARGUMENT

static const int32_t one_token[1] = {1};
static const size_t one_len[1] = {1};
static const char *one_text[1] = {"a"};
static const llama_message one_message[1] = {{"user", "hello", SIZE_MAX, SIZE_MAX}};

/* Functions that take a handle, given something that is none. */
static void not_a_handle(llama_t *l) {
  llama_result_t *r = FOREIGN;
  llama_stream_t *s = FOREIGN;
  llama_event ev;
  llama_info info;
  llama_timings timings;
  uint32_t id = 78;
  const char *p = NULL;
  int32_t buf[4];
  char text[4];
  size_t n = 77;
  ev.struct_size = sizeof ev;
  info.struct_size = sizeof info;
  timings.struct_size = sizeof timings;
  EXPECT(INVALID, llama_generate(l, one_token, one_len, 1, NULL, &r, err));
  EXPECT(INVALID, llama_generate(l, NULL, NULL, 0, NULL, NULL, err));
  EXPECT(INVALID, llama_generate(l, NULL, NULL, SIZE_MAX, NULL, &r, err));
  EXPECT(INVALID, llama_text_completion(l, one_text, NULL, 1, NULL, &r, err));
  EXPECT(INVALID, llama_chat_completion(l, one_message, one_len, 1, NULL, &r, err));
  EXPECT(INVALID, llama_stream_open(l, one_token, one_len, 1, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_text(l, one_text, NULL, 1, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_chat(l, one_message, one_len, 1, NULL, &s, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text_bounded(l, "a", 1, 0, 4, NULL, buf, 4, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, one_token, 1, text, 4, &n, err));
  EXPECT(INVALID, llama_token_bytes(l, 1, &p, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, one_message, 1, buf, 4, &n, err));
  EXPECT(INVALID, llama_get_info(l, &info, err));
  EXPECT(INVALID, llama_get_timings(l, &timings, err));
  EXPECT(INVALID, llama_adapter_add(l, "/nonexistent", 1, &id, err));
  EXPECT(INVALID, llama_adapter_drop(l, 1, err));
  EXPECT(INVALID, llama_get_rank(l, 0, NULL, err));
  EXPECT(INVALID, llama_health(l, err));
  CHECK(llama_generate(l, one_token, one_len, 1, NULL, &r, NULL) == INVALID);
  CHECK(r == FOREIGN && s == FOREIGN && n == 77 && p == NULL && id == 78);
  llama_free(l);
  llama_destroy(l);
}

static void not_a_result(llama_result_t *r) {
  const int32_t *tokens = one_token;
  const float *logprobs = NULL;
  const char *text = NULL;
  const llama_alternative *top = NULL;
  llama_request_stats stats;
  float sum = 7, score = 8;
  size_t n = 77;
  stats.struct_size = sizeof stats;
  CHECK(llama_result_count(r) == 0);
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == INVALID);
  CHECK(llama_result_logprobs(r, 0, &logprobs, &n) == INVALID);
  CHECK(llama_result_text(r, 0, &text, &n) == INVALID);
  CHECK(llama_result_top_logprobs(r, 0, 0, &top, &n) == INVALID);
  CHECK(llama_result_finish_reason(r, 0) == 0);
  CHECK(llama_result_stats(r, 0, &stats) == INVALID);
  CHECK(llama_result_score(r, 0, &sum, &score) == INVALID);
  CHECK(tokens == one_token && n == 77 && sum == 7 && score == 8);
  llama_result_free(r);
}

static void not_a_stream(llama_stream_t *s) {
  llama_event ev;
  memset(&ev, 0x55, sizeof ev);
  ev.struct_size = sizeof ev;
  EXPECT(INVALID, llama_stream_next(s, &ev, 0, err));
  EXPECT(INVALID, llama_stream_next(s, &ev, -1, err));
  CHECK(ev.kind == 0x55555555);
  CHECK(llama_stream_fd(s) == -1);
  CHECK(llama_stream_stop(s, 0) == INVALID && llama_stream_stop(s, SIZE_MAX) == INVALID);
  llama_stream_free(s);
}

static void not_a_cancel(llama_cancel_t *c) {
  llama_build_options o = build_defaults();
  llama_t *l = FOREIGN;
  llama_cancel_trigger(c);
  llama_cancel_free(c);
  o.cancel = c;
  if (c != NULL) {
    EXPECT(INVALID, llama_build("/nonexistent", NULL, &o, &l, err));
    CHECK(l == NULL);
  }
}

/* The numbers of dtypes are those below this one. */
static int32_t count_dtypes(void) {
  llama_build_options o = build_defaults();
  llama_t *l = NULL;
  do {
    o.weights_dtype++;
  } while (llama_build("/nonexistent", NULL, &o, &l, NULL) != INVALID);
  return o.weights_dtype;
}

static void build_arguments(void) {
  llama_build_options o;
  llama_t *l = FOREIGN;
  const int32_t dtypes = count_dtypes();
  size_t i;
  EXPECT(INVALID, llama_build(NULL, NULL, NULL, &l, err));
  CHECK(l == NULL);
  EXPECT(INVALID, llama_build("/nonexistent", NULL, NULL, NULL, err));
  EXPECT(INVALID,
      llama_build("/nonexistent", NULL, NULL, (llama_t **)(void *)(foreign_object() + 1), err));
  EXPECT(INVALID, llama_build("/nonexistent", NULL,
                      (llama_build_options *)(void *)(foreign_object() + 1), &l, err));
  EXPECT(LLAMA_E_IO, llama_build("/nonexistent", NULL, NULL, &l, err));
  EXPECT(LLAMA_E_IO, llama_build("", NULL, NULL, &l, err));
  EXPECT(INVALID, llama_build("/nonexistent", "", NULL, &l, err)); /* is no working directory */
  for (i = 0; i < 3; i++) {
    const char *const empty[] = {""};
    o = build_defaults();
    if (i == 0) o.draft_dir = "";
    if (i == 1) o.medusa_dir = "";
    if (i == 2) o.adapters = empty, o.n_adapters = 1;
    EXPECT(INVALID, llama_build("/nonexistent", NULL, &o, &l, err));
  }
  EXPECT(LLAMA_E_IO, llama_build("/dev/null", NULL, NULL, &l, err));
  EXPECT(LLAMA_E_IO, llama_build("/\xff\xfe", NULL, NULL, &l, err)); /* a path is bytes */
  CHECK(l == NULL);
  {
    /* an error struct that nobody has filled is wrong itself, and *out is NULL all the same */
    llama_error unfilled;
    memset(&unfilled, 0xaa, sizeof unfilled);
    l = FOREIGN;
    CHECK(llama_build("/nonexistent", NULL, NULL, &l, &unfilled) == LLAMA_E_ABI && l == NULL);
  }

#define WITH(field, value, expected) ON(LLAMA_DEVICE_AUTO, field, value, expected)
#define ON(where, field, value, expected)                                                          \
  do {                                                                                             \
    o = build_defaults();                                                                          \
    o.device = (where);                                                                            \
    o.field = (value);                                                                             \
    l = FOREIGN;                                                                                   \
    EXPECT(expected, llama_build("/nonexistent", NULL, &o, &l, err));                              \
    CHECK(l == NULL);                                                                              \
  } while (0)
  WITH(max_seq_len, 0, INVALID);
  WITH(max_batch_size, 0, INVALID);
  WITH(model_parallel_size, -1, INVALID);
  WITH(model_parallel_size, INT32_MIN, INVALID);
  WITH(device, 3, INVALID);
  WITH(device, -1, INVALID);
  WITH(device, INT32_MAX, INVALID);
  WITH(device_index, -1, INVALID);
  WITH(device_index, 1, INVALID);
  WITH(device_index, INT32_MAX, INVALID);
  WITH(n_threads, 1025, INVALID);
  WITH(n_threads, UINT32_MAX, INVALID);
  WITH(n_threads, 1024, LLAMA_E_IO);
  for (i = 0; i < 2; i++) {
    const int32_t unknown[] = {-1, dtypes, INT32_MAX, INT32_MIN};
    int32_t dtype;
    size_t k;
    for (k = 0; k < 4; k++) {
      if (i == 0)
        WITH(weights_dtype, unknown[k], INVALID);
      else
        WITH(kv_dtype, unknown[k], INVALID);
    }
    for (dtype = LLAMA_DTYPE_AUTO; dtype < dtypes; dtype++) {
      int32_t last = i == 0 ? LLAMA_DTYPE_NF4 : LLAMA_DTYPE_INT8;
      llama_status expected = dtype <= last ? LLAMA_E_IO : LLAMA_E_UNSUPPORTED;
      /* Where AUTO finds a GPU, that takes fp8. */
      if (i == 0)
        ON(LLAMA_DEVICE_CPU, weights_dtype, dtype, expected);
      else
        ON(LLAMA_DEVICE_CPU, kv_dtype, dtype, expected);
    }
  }
  WITH(log_level, -1, INVALID);
  WITH(log_level, 5, INVALID);
  WITH(abi_version, LLAMABI_ABI_VERSION + 1, LLAMA_E_ABI);
  WITH(reserved0, 1, LLAMA_E_ABI);
  WITH(precision, 3, LLAMA_E_INVALID_ARGUMENT);
  WITH(precision, -1, LLAMA_E_INVALID_ARGUMENT);
  WITH(draft_weights_dtype, dtypes, INVALID);
  WITH(draft_weights_dtype, -1, INVALID);
  WITH(draft_kv_dtype, dtypes, INVALID);
  WITH(draft_kv_dtype, LLAMA_DTYPE_INT4, LLAMA_E_UNSUPPORTED);
  WITH(n_devices, 1, INVALID); /* devices is NULL */
  WITH(n_devices, UINT32_MAX, INVALID);
  WITH(struct_size, 0, LLAMA_E_ABI);
  WITH(struct_size, 7, LLAMA_E_ABI);
  WITH(struct_size, 8, LLAMA_E_IO);
  WITH(struct_size, 4097, LLAMA_E_ABI);
  WITH(struct_size, UINT32_MAX, LLAMA_E_ABI);
#undef ON
#undef WITH
  llama_build_options_init(NULL, sizeof o, LLAMABI_ABI_VERSION);
  llama_generate_options_init(NULL, 88);
  llama_build_options_init(&o, SIZE_MAX, LLAMABI_ABI_VERSION); /* writes nothing */
}

static void strings(void) {
  llama_status s;
  CHECK(strcmp(llama_version(), LLAMABI_VERSION) == 0);
  CHECK(llama_abi_version() == LLAMABI_ABI_VERSION);
  for (s = -101; s <= 5; s++) {
    const char *text = llama_status_string(s);
    CHECK(text != NULL && text[0] != 0);
    CHECK((strcmp(text, "unknown status") == 0) == (s > 3 || (s < -14 && s != -99)));
  }
  CHECK(llama_status_string(INT32_MIN) != NULL && llama_status_string(INT32_MAX) != NULL);
}

/* Both ends of every range are taken. What is outside is refused, by the name of the option. */
static void ranges(llama_t *l) {
  llama_generate_options o;
  llama_result_t *r = FOREIGN;
  llama_stream_t *s = FOREIGN;
  llama_error e;
#define SET(field, value)                                                                          \
  o = generate_defaults();                                                                         \
  o.max_gen_len = 1;                                                                               \
  o.field = (value)
#define TAKEN(field, value)                                                                        \
  SET(field, value);                                                                               \
  EXPECT(LLAMA_OK, llama_generate(l, one_token, one_len, 1, &o, &r, err));                         \
  llama_result_free(r);
#define FLOAT(field, least, most) TAKEN(field, least) TAKEN(field, most)
#define INTEGER                   FLOAT
#define OUTSIDE(field, value)                                                                      \
  SET(field, value);                                                                               \
  e.struct_size = sizeof e;                                                                        \
  CHECK(llama_generate(l, one_token, one_len, 1, &o, &r, &e) == INVALID);                          \
  CHECK(strstr(e.message, #field " is ") != NULL);                                                 \
  EXPECT(INVALID, llama_stream_open(l, one_token, one_len, 1, &o, &s, err));
#include "ranges.def"
#undef TAKEN
#undef SET
}

/* With a live handle: one argument at a time is wrong. */
static void with_model(const char *dir) {
  uint32_t id = 78;
  llama_t *l = open_model(dir, 64, 2);
  llama_generate_options o;
  llama_result_t *r = FOREIGN;
  llama_stream_t *s = FOREIGN;
  llama_event ev;
  llama_info info;
  llama_timings timings;
  const char *p = NULL;
  const int32_t *tp;
  size_t n = 77, huge[2] = {SIZE_MAX, SIZE_MAX}, zero[2] = {0, 0}, lens[2] = {1, 65};
  size_t max_len[2] = {64, SIZE_MAX / 2};
  int32_t tokens[66], buf[4], bad;
  float sum = 7;
  char text[16];
  const char *two_texts[2] = {"a", NULL};
  llama_message m;
  fill_prompt(tokens, 66);

  /* n, then every length, before any token is read: the tokens are nowhere. */
  EXPECT(LLAMA_E_BATCH, llama_generate(l, NULL, NULL, 0, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_generate(l, NULL, NULL, 65537, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_generate(l, NULL, NULL, SIZE_MAX, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_text_completion(l, NULL, NULL, SIZE_MAX, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_chat_completion(l, NULL, NULL, SIZE_MAX, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_stream_open(l, NULL, NULL, 0, NULL, &s, err));
  EXPECT(LLAMA_E_TOO_LONG, llama_generate(l, NULL, huge, 1, NULL, &r, err));
  EXPECT(LLAMA_E_TOO_LONG, llama_generate(l, NULL, lens, 2, NULL, &r, err));
  EXPECT(LLAMA_E_TOO_LONG, llama_generate(l, NULL, max_len, 2, NULL, &r, err));
  EXPECT(LLAMA_E_TOO_LONG, llama_stream_open(l, NULL, huge, 2, NULL, &s, err));
  EXPECT(LLAMA_E_TOO_LONG, llama_chat_completion(l, NULL, huge, 1, NULL, &r, err));
  EXPECT(INVALID, llama_generate(l, tokens, zero, 1, NULL, &r, err));
  EXPECT(INVALID, llama_generate(l, tokens, NULL, 1, NULL, &r, err));
  EXPECT(INVALID, llama_generate(l, NULL, one_len, 1, NULL, &r, err));
  EXPECT(INVALID,
      llama_generate(l, (int32_t *)(void *)((char *)tokens + 1), one_len, 1, NULL, &r, err));
  EXPECT(
      INVALID, llama_generate(l, tokens, (size_t *)(void *)((char *)lens + 4), 1, NULL, &r, err));
  EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, NULL, NULL, err));
  EXPECT(INVALID, llama_stream_open(l, tokens, one_len, 1, NULL, NULL, err));
  EXPECT(INVALID, llama_stream_open_text(l, NULL, NULL, 1, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_text(l, one_text, NULL, 1, NULL, NULL, err));
  EXPECT(LLAMA_E_BATCH, llama_stream_open_text(l, NULL, NULL, SIZE_MAX, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_chat(l, NULL, one_len, 1, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_chat(l, one_message, zero, 1, NULL, &s, err));
  EXPECT(INVALID, llama_stream_open_chat(l, one_message, one_len, 1, NULL, NULL, err));
  bad = -1;
  EXPECT(INVALID, llama_generate(l, &bad, one_len, 1, NULL, &r, err));
  bad = INT32_MAX;
  EXPECT(INVALID, llama_generate(l, &bad, one_len, 1, NULL, &r, err));
  EXPECT(INVALID, llama_stream_open(l, &bad, one_len, 1, NULL, &s, err));

  /* text and dialogs */
  EXPECT(INVALID, llama_text_completion(l, NULL, NULL, 1, NULL, &r, err));
  EXPECT(INVALID, llama_text_completion(l, two_texts, NULL, 2, NULL, &r, err));
  EXPECT(INVALID, llama_text_completion(l, one_text, max_len + 1, 1, NULL, &r, err));
  two_texts[0] = "ab\xff";
  EXPECT(LLAMA_E_UTF8, llama_text_completion(l, two_texts, NULL, 1, NULL, &r, err));
  EXPECT(INVALID, llama_chat_completion(l, NULL, one_len, 1, NULL, &r, err));
  EXPECT(INVALID, llama_chat_completion(l, one_message, NULL, 1, NULL, &r, err));
  EXPECT(INVALID, llama_chat_completion(l, one_message, zero, 1, NULL, &r, err));
  m = one_message[0];
  m.role = NULL;
  EXPECT(INVALID, llama_chat_completion(l, &m, one_len, 1, NULL, &r, err));
  m.role = "robot";
  EXPECT(INVALID, llama_chat_completion(l, &m, one_len, 1, NULL, &r, err));
  m.role = "user2";
  m.role_len = 4;
  m.content = NULL;
  EXPECT(INVALID, llama_chat_completion(l, &m, one_len, 1, NULL, &r, err));
  m.content = "\xc3";
  EXPECT(LLAMA_E_UTF8, llama_chat_completion(l, &m, one_len, 1, NULL, &r, err));
  EXPECT(LLAMA_E_UTF8, llama_encode_dialog(l, &m, 1, buf, 4, &n, err));
  m.content_len = SIZE_MAX / 2;
  EXPECT(INVALID, llama_encode_dialog(l, &m, 1, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, NULL, 1, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, one_message, SIZE_MAX, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, one_message, SIZE_MAX / 2, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_dialog(l, one_message, 0, buf, 4, &n, err));

#define WITH(field, value, expected)                                                               \
  do {                                                                                             \
    o = generate_defaults();                                                                       \
    o.max_gen_len = 1;                                                                             \
    o.field = (value);                                                                             \
    EXPECT(expected, llama_generate(l, tokens, one_len, 1, &o, &r, err));                          \
    EXPECT(expected, llama_stream_open(l, tokens, one_len, 1, &o, &s, err));                       \
  } while (0)
  ranges(l);
  WITH(flags, 16, INVALID);
  WITH(flags, UINT32_MAX, INVALID);
  WITH(n_stop, 1, INVALID);
  WITH(n_stop, SIZE_MAX, INVALID);
  WITH(n_stop, SIZE_MAX / 8 + 1, INVALID);
  WITH(cancel, (llama_cancel_t *)FOREIGN, INVALID);
  WITH(cancel, (llama_cancel_t *)(void *)l, INVALID);
  WITH(grammar, (llama_grammar_t *)FOREIGN, INVALID);
  WITH(grammar, (llama_grammar_t *)(void *)l, INVALID);
  WITH(top_logprobs, UINT32_MAX, INVALID);
  WITH(reserved1, 1, LLAMA_E_ABI);
  WITH(num_return_sequences, UINT32_MAX, LLAMA_E_BATCH);
  WITH(num_beams, UINT32_MAX, LLAMA_E_BATCH);
  WITH(speculation, 5, INVALID);
  WITH(speculation, -1, INVALID);
  WITH(speculation, LLAMA_SPEC_DRAFT, INVALID);  /* there is no draft model */
  WITH(speculation, LLAMA_SPEC_MEDUSA, INVALID); /* there are no Medusa heads */
  WITH(contrast_beta, 0.5f, INVALID);
  WITH(contrast_beta, -0.5f, INVALID);
  WITH(contrast_beta, NAN, INVALID);
  WITH(contrast_beta, INFINITY, INVALID);
  WITH(n_predicted, 1, INVALID);
  WITH(n_predicted, SIZE_MAX / 4 + 1, INVALID);
  WITH(n_predicted, 65537, INVALID);
  WITH(n_force_groups, 1, INVALID);
  WITH(n_force_groups, SIZE_MAX, INVALID);
  WITH(n_force_groups, 65537, INVALID);
  WITH(early_stopping, 3, INVALID);
  WITH(early_stopping, -1, INVALID);
  WITH(flags, LLAMA_GEN_BEAM_EVENTS, INVALID);
  WITH(min_gen_len, 2, INVALID);
  WITH(n_logit_bias, 1, INVALID);
  WITH(n_logit_bias, SIZE_MAX, INVALID);
  WITH(n_logit_bias, 65537, INVALID);
  WITH(n_stop_tokens, 1, INVALID);
  WITH(n_stop_tokens, SIZE_MAX / 4 + 1, INVALID);
  WITH(n_stop_tokens, 65537, INVALID);
  WITH(n_bad_words, 1, INVALID);
  WITH(n_bad_words, SIZE_MAX, INVALID);
  WITH(n_bad_words, 65537, INVALID);
  WITH(struct_size, 7, LLAMA_E_ABI);
  WITH(struct_size, 4097, LLAMA_E_ABI);
#undef WITH
  {
    /* lists whose contents are wrong; bad words are not read before their lengths are added */
    const llama_bias bias[] = {{1, 0.5f}, {1, (float)(1e30 * 1e30)}, {-1, 0.0f}};
    const size_t lens[] = {1, SIZE_MAX, 2, 65535, 0};
    size_t i;
    for (i = 1; i < 3; i++) {
      o = generate_defaults();
      o.logit_bias = bias + i;
      o.n_logit_bias = 1;
      EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    }
    o = generate_defaults();
    o.stop_tokens = &bad;
    o.n_stop_tokens = 1;
    EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    o = generate_defaults();
    o.predicted = &bad;
    o.n_predicted = 1;
    EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    for (i = 0; i < 5; i++) {
      o = generate_defaults();
      o.bad_words = &bad;
      o.bad_word_lens = lens + i;
      o.n_bad_words = i == 0 || i == 2 ? 2 : 1;
      if (i != 3) EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    }
    o = generate_defaults();
    o.bad_word_lens = lens;
    o.n_bad_words = 1;
    EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    /* groups and phrases: no length is believed before it is added up */
    for (i = 0; i < 5; i++) {
      o = generate_defaults();
      o.num_beams = 2;
      o.force_words = &bad;
      o.force_word_lens = lens + i;
      o.force_group_lens = one_len;
      o.n_force_groups = 1;
      if (i != 2 && i != 3) EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
      o.force_word_lens = NULL;
      o.force_group_lens = lens + i;
      EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
    }
    o.force_group_lens = NULL;
    EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
  }
  two_texts[0] = "\xff";
  o = generate_defaults();
  o.stop = two_texts;
  o.n_stop = 1;
  EXPECT(LLAMA_E_UTF8, llama_generate(l, tokens, one_len, 1, &o, &r, err));
  two_texts[0] = NULL;
  EXPECT(INVALID, llama_generate(l, tokens, one_len, 1, &o, &r, err));
  CHECK(r == FOREIGN && s == FOREIGN && n == 77);

  /* tokens and text */
  EXPECT(INVALID, llama_encode_text(l, NULL, 1, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, NULL, SIZE_MAX, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", SIZE_MAX / 2, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", SIZE_MAX - 1, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, 8, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, UINT32_MAX, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, 0, NULL, 4, &n, err));
  EXPECT(INVALID, llama_encode_text(l, "a", 1, 0, buf, 4, NULL, err));
  EXPECT(LLAMA_E_UTF8, llama_encode_text(l, "a\xff", 2, 0, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text_bounded(l, NULL, 1, 0, 4, NULL, buf, 4, &n, err));
  EXPECT(INVALID, llama_encode_text_bounded(l, "a", 1, 0, 4, FOREIGN, buf, 4, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, NULL, 1, text, 16, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, tokens, SIZE_MAX, text, 16, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, tokens, SIZE_MAX / 4, text, 16, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, &bad, 1, text, 16, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, tokens, 1, NULL, 16, &n, err));
  EXPECT(INVALID, llama_decode_tokens(l, tokens, 1, text, 16, NULL, err));
  EXPECT(INVALID, llama_token_bytes(l, -1, &p, &n, err));
  EXPECT(INVALID, llama_token_bytes(l, INT32_MAX, &p, &n, err));
  EXPECT(INVALID, llama_token_bytes(l, 1, NULL, &n, err));
  EXPECT(INVALID, llama_token_bytes(l, 1, &p, NULL, err));
  CHECK(n == 77 && p == NULL);
  EXPECT(INVALID, llama_get_info(l, NULL, err));
  EXPECT(INVALID, llama_get_timings(l, NULL, err));
  EXPECT(INVALID, llama_get_rank(l, 0, NULL, err));
  EXPECT(LLAMA_OK, llama_health(l, err));
  EXPECT(INVALID, llama_adapter_add(l, NULL, 1, &id, err));
  EXPECT(INVALID, llama_adapter_add(l, "", 1, &id, err));
  EXPECT(INVALID, llama_adapter_add(l, "/nonexistent", 1, NULL, err));
  EXPECT(INVALID, llama_adapter_add(l, "/nonexistent", (float)NAN, &id, err));
  EXPECT(LLAMA_E_IO, llama_adapter_add(l, "/nonexistent", 1, &id, err));
  EXPECT(INVALID, llama_adapter_drop(l, 1, err));
  CHECK(id == 78);
  info.struct_size = 7;
  timings.struct_size = 4097;
  EXPECT(LLAMA_E_ABI, llama_get_info(l, &info, err));
  EXPECT(LLAMA_E_ABI, llama_get_timings(l, &timings, err));

  /* results and streams */
  o = generate_defaults();
  o.max_gen_len = 2;
  EXPECT(LLAMA_OK, llama_generate(l, tokens, one_len, 1, &o, &r, err));
  CHECK(llama_result_count(r) == 1);
  CHECK(llama_result_tokens(r, 1, &tp, &n) == INVALID);
  CHECK(llama_result_tokens(r, SIZE_MAX, &tp, &n) == INVALID);
  CHECK(llama_result_tokens(r, 0, NULL, &n) == INVALID);
  CHECK(llama_result_tokens(r, 0, &tp, NULL) == INVALID);
  CHECK(llama_result_text(r, 1, &p, &n) == INVALID);
  CHECK(llama_result_finish_reason(r, 1) == 0);
  CHECK(llama_result_top_logprobs(r, 0, SIZE_MAX, NULL, NULL) == INVALID);
  CHECK(llama_result_stats(r, 0, NULL) == INVALID);
  CHECK(llama_result_score(r, 0, NULL, &sum) == INVALID);
  CHECK(llama_result_score(r, 0, &sum, NULL) == INVALID);
  CHECK(llama_result_score(r, 1, &sum, &sum) == INVALID);
  CHECK(llama_result_score(r, 0, &sum, &sum) == LLAMA_OK && sum == 0);
  not_a_stream((llama_stream_t *)(void *)r); /* the wrong kind of object */
  not_a_handle((llama_t *)(void *)r);
  CHECK(llama_result_count(r) == 1);
  llama_result_free(r);
  not_a_result(r); /* stale */
  EXPECT(LLAMA_OK, llama_stream_open(l, tokens, one_len, 1, &o, &s, err));
  EXPECT(INVALID, llama_stream_next(s, NULL, -1, err));
  ev.struct_size = 7;
  EXPECT(LLAMA_E_ABI, llama_stream_next(s, &ev, -1, err));
  ev.struct_size = sizeof ev;
  EXPECT(INVALID, llama_stream_next(s, &ev, -2, err));
  EXPECT(INVALID, llama_stream_next(s, &ev, INT32_MIN, err));
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, INT32_MAX, err));
  llama_stream_free(s);
  not_a_stream(s);
  not_a_handle((llama_t *)(void *)s);

  EXPECT(LLAMA_OK, llama_encode_text(l, NULL, 0, LLAMA_ENC_BOS, buf, 4, &n, err));
  CHECK(n == 1);
  llama_free(l);
  not_a_handle(l); /* stale */
  {
    llama_t *next = open_model(dir, 64, 2);
    CHECK(next != l);
    not_a_handle(l); /* still stale: frees nothing of the new one's */
    EXPECT(LLAMA_OK, llama_generate(next, tokens, one_len, 1, &o, &r, err));
    llama_result_free(r);
    llama_destroy(next);
  }
}

int main(int argc, char **argv) {
  llama_cancel_t *c = llama_cancel_new();
  not_a_handle(NULL);
  not_a_handle(FOREIGN);
  not_a_handle((llama_t *)8);
  not_a_handle((llama_t *)UINTPTR_MAX);
  not_a_handle((llama_t *)(void *)c);
  not_a_result(NULL);
  not_a_result(FOREIGN);
  not_a_result((llama_result_t *)UINTPTR_MAX);
  not_a_stream(NULL);
  not_a_stream(FOREIGN);
  not_a_stream((llama_stream_t *)UINTPTR_MAX);
  not_a_cancel(NULL);
  not_a_cancel(FOREIGN);
  not_a_cancel((llama_cancel_t *)16);
  not_a_cancel((llama_cancel_t *)UINTPTR_MAX);
  CHECK(c != NULL);
  llama_cancel_free(c);
  not_a_cancel(c);
  build_arguments();
  strings();
  if (argc > 1) with_model(argv[1]);
  return summary("null");
}
