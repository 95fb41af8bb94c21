/* Tokens and text, short buffers, results and their figures, echo, stop strings, dialogs. */
#include "abi.h"

static llama_t *l;

static void encode_and_decode(void) {
  static const char text[] = "Once upon a time \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80.";
  int32_t tokens[128], again[128];
  char out[128];
  size_t n, m, i, len, cap;
  llama_info info;
  info.struct_size = sizeof info;
  EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
  CHECK(info.vocab_size == 512 && info.dim == 64 && info.n_layers == 3 && info.n_heads == 4);
  CHECK(info.n_kv_heads == 4 && info.head_dim == 16 && info.max_seq_len == 128);
  CHECK(info.max_batch_size == 4 && info.bos_id == 1 && info.eos_id == 2 && info.pad_id == -1);
  CHECK(info.device == LLAMA_DEVICE_CPU && info.weights_dtype == LLAMA_DTYPE_F32);
  CHECK(info.kv_dtype == LLAMA_DTYPE_F32 && info.weight_bytes > 0 && info.kv_bytes > 0);
  CHECK(memchr(info.device_name, 0, sizeof info.device_name) != NULL && info.device_name[0] != 0);

  EXPECT(LLAMA_OK,
      llama_encode_text(l, text, SIZE_MAX, LLAMA_ENC_BOS | LLAMA_ENC_EOS, NULL, 0, &n, err));
  CHECK(n > 4 && n < 128);
  for (cap = 0; cap < n; cap++) {
    memset(tokens, 0x55, sizeof tokens);
    m = 0;
    EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_text(l, text, strlen(text),
                                         LLAMA_ENC_BOS | LLAMA_ENC_EOS, tokens, cap, &m, err));
    CHECK(m == n && tokens[0] == 0x55555555);
  }
  EXPECT(LLAMA_OK,
      llama_encode_text(l, text, strlen(text), LLAMA_ENC_BOS | LLAMA_ENC_EOS, tokens, n, &m, err));
  CHECK(m == n && tokens[0] == 1 && tokens[n - 1] == 2 && tokens[n] == 0x55555555);
  EXPECT(LLAMA_OK, llama_encode_text(l, text, SIZE_MAX, 0, again, 128, &m, err));
  CHECK(m == n - 2 && memcmp(again, tokens + 1, m * sizeof *again) == 0);

  EXPECT(LLAMA_OK, llama_decode_tokens(l, tokens, n, NULL, 0, &len, err));
  CHECK(len == strlen(text));
  for (cap = 0; cap < len; cap++) {
    size_t needed = 0;
    memset(out, 0x55, sizeof out);
    EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_decode_tokens(l, tokens, n, out, cap, &needed, err));
    CHECK(needed == len && out[0] == 0x55);
  }
  memset(out, 0x55, sizeof out);
  EXPECT(LLAMA_OK, llama_decode_tokens(l, tokens, n, out, len, &m, err));
  CHECK(m == len && memcmp(out, text, len) == 0 && out[len] == 0x55);
  EXPECT(LLAMA_OK, llama_decode_tokens(l, tokens, n, out, len + 1, &m, err));
  CHECK(m == len && strcmp(out, text) == 0);
  EXPECT(LLAMA_OK, llama_decode_tokens(l, NULL, 0, out, sizeof out, &m, err));
  CHECK(m == 0 && out[0] == 0);

  /* a counted text may hold a NUL; an empty one has no tokens */
  EXPECT(LLAMA_OK, llama_encode_text(l, "a\0b", 3, 0, tokens, 128, &n, err));
  EXPECT(LLAMA_OK, llama_decode_tokens(l, tokens, n, out, sizeof out, &m, err));
  CHECK(m == 3 && memcmp(out, "a\0b", 4) == 0);
  EXPECT(LLAMA_OK, llama_encode_text(l, "", SIZE_MAX, 0, tokens, 128, &n, err));
  CHECK(n == 0);

  /* pieces, put together, are the decoded text but for its first space */
  EXPECT(LLAMA_OK, llama_encode_text(l, text, SIZE_MAX, LLAMA_ENC_BOS, tokens, 128, &n, err));
  len = 0;
  for (i = 0; i < n; i++) {
    const char *p = NULL;
    EXPECT(LLAMA_OK, llama_token_bytes(l, tokens[i], &p, &m, err));
    CHECK(p != NULL && p[m] == 0);
    memcpy(out + len, p, m);
    len += m;
  }
  CHECK(len == strlen(text) + 1 && out[0] == ' ' && memcmp(out + 1, text, len - 1) == 0);
  for (i = 0; i < info.vocab_size; i++) {
    const char *p;
    EXPECT(LLAMA_OK, llama_token_bytes(l, (int32_t)i, &p, &m, err));
    CHECK(p[m] == 0);
  }
}

typedef struct {
  char text[2][4096];
  int32_t tokens[2][256];
  float logprobs[2][256];
  size_t len[2], n[2];
  int finished[2];
} heard;

static int32_t hear(void *user_data, const llama_event *ev) {
  heard *h = user_data;
  CHECK(ev->struct_size == sizeof *ev && ev->index < 2 && !h->finished[ev->index]);
  CHECK(ev->text != NULL && ev->text[ev->text_len] == 0);
  memcpy(h->text[ev->index] + h->len[ev->index], ev->text, ev->text_len);
  h->len[ev->index] += ev->text_len;
  if (ev->kind == LLAMA_EVENT_TOKEN) {
    CHECK(ev->finish_reason == 0);
    h->logprobs[ev->index][h->n[ev->index]] = ev->logprob;
    h->tokens[ev->index][h->n[ev->index]++] = ev->token;
  } else {
    CHECK(ev->kind == LLAMA_EVENT_FINISH && ev->token == -1 && ev->finish_reason >= 1);
    h->finished[ev->index] = ev->finish_reason;
  }
  return 1;
}

/* A result against the events it came with, and against itself. */
static void check_result(const llama_result_t *r, const heard *h, size_t n_sequences) {
  size_t i;
  CHECK(llama_result_count(r) == n_sequences);
  for (i = 0; i < n_sequences; i++) {
    const int32_t *tokens;
    const float *logprobs;
    const char *text;
    size_t n, n_logprobs, len;
    CHECK(llama_result_tokens(r, i, &tokens, &n) == LLAMA_OK);
    CHECK(n == h->n[i] && (n == 0) == (tokens == NULL));
    CHECK(n == 0 || memcmp(tokens, h->tokens[i], n * sizeof *tokens) == 0);
    CHECK(llama_result_logprobs(r, i, &logprobs, &n_logprobs) == LLAMA_OK);
    CHECK(n_logprobs == 0 || n_logprobs == n);
    CHECK(n_logprobs == 0 || memcmp(logprobs, h->logprobs[i], n * sizeof *logprobs) == 0);
    CHECK(llama_result_text(r, i, &text, &len) == LLAMA_OK);
    CHECK(len == h->len[i] && memcmp(text, h->text[i], len) == 0 && text[len] == 0);
    CHECK(llama_result_finish_reason(r, i) == h->finished[i]);
  }
}

static void generate(void) {
  static heard h;
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL, *r2 = NULL;
  const char *texts[2] = {"Once upon a time", "The"}, *text, *stop[1];
  const int32_t *tokens, *tokens2;
  const float *logprobs;
  const llama_alternative *top;
  llama_request_stats stats;
  char cut[8];
  size_t lens[2], n, n2, i, j, n_top, len, n_prompt;
  int32_t prompt[64];

  /* echo with log probabilities and alternatives, two prompts at once */
  o.flags = LLAMA_GEN_ECHO | LLAMA_GEN_LOGPROBS | LLAMA_GEN_IGNORE_EOS;
  o.temperature = 0;
  o.max_gen_len = 8;
  o.top_logprobs = 3;
  o.on_event = hear;
  o.user_data = &h;
  memset(&h, 0, sizeof h);
  EXPECT(LLAMA_OK, llama_text_completion(l, texts, NULL, 2, &o, &r, err));
  check_result(r, &h, 2);
  for (i = 0; i < 2; i++) {
    EXPECT(LLAMA_OK,
        llama_encode_text(l, texts[i], SIZE_MAX, LLAMA_ENC_BOS, prompt, 64, &n_prompt, err));
    CHECK(llama_result_tokens(r, i, &tokens, &n) == LLAMA_OK);
    CHECK(n == n_prompt + 8 && memcmp(tokens, prompt, n_prompt * sizeof *prompt) == 0);
    CHECK(llama_result_logprobs(r, i, &logprobs, &n2) == LLAMA_OK);
    CHECK(n2 == n && logprobs[0] == 0.0f);
    CHECK(llama_result_finish_reason(r, i) == LLAMA_FINISH_LENGTH);
    CHECK(
        llama_result_top_logprobs(r, i, 0, &top, &n_top) == LLAMA_OK && n_top == 0 && top == NULL);
    for (j = 1; j < n; j++) {
      CHECK(logprobs[j] <= 0);
      CHECK(llama_result_top_logprobs(r, i, j, &top, &n_top) == LLAMA_OK && n_top == 3);
      CHECK(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
      /* greedy takes the best; its logprob is the one reported */
      if (j >= n_prompt) CHECK(top[0].token == tokens[j] && top[0].logprob == logprobs[j]);
    }
    CHECK(llama_result_top_logprobs(r, i, n, &top, &n_top) == LLAMA_E_INVALID_ARGUMENT);
    stats.struct_size = sizeof stats;
    CHECK(llama_result_stats(r, i, &stats) == LLAMA_OK);
    CHECK(
        stats.prompt_tokens == n_prompt && stats.generated_tokens == 8 && stats.cached_tokens == 0);
    CHECK(
        stats.total_ms >= stats.first_token_ms && stats.first_token_ms > 0 && stats.queue_ms >= 0);
  }

  /* the same alone, without echo, by length, through llama_generate: same tokens */
  o = generate_defaults();
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.temperature = 0;
  o.max_gen_len = 8;
  EXPECT(LLAMA_OK, llama_encode_text(l, texts[0], 9, LLAMA_ENC_BOS, prompt, 64, &n_prompt, err));
  lens[0] = 9;
  EXPECT(LLAMA_OK, llama_text_completion(l, texts, lens, 1, &o, &r2, err));
  CHECK(llama_result_tokens(r2, 0, &tokens2, &n2) == LLAMA_OK && n2 == 8);
  llama_result_free(r);
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &n_prompt, 1, &o, &r, err));
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK);
  CHECK(n == n2 && memcmp(tokens, tokens2, n * sizeof *tokens) == 0);
  CHECK(llama_result_logprobs(r, 0, &logprobs, &n) == LLAMA_OK && n == 0 && logprobs == NULL);
  CHECK(llama_result_top_logprobs(r, 0, 0, &top, &n_top) == LLAMA_OK && n_top == 0);

  /* a stop string from the middle of that text cuts the text and keeps the tokens up to it */
  CHECK(llama_result_text(r, 0, &text, &len) == LLAMA_OK);
  CHECK(len > 4);
  for (i = len / 2; i > 0 && (text[i] & 0xc0) == 0x80; i--) {
  }
  for (j = i + 1; (text[j] & 0xc0) == 0x80; j++) {
  }
  memcpy(cut, text + i, j - i);
  cut[j - i] = 0;
  stop[0] = cut;
  o.stop = stop;
  o.n_stop = 1;
  o.on_event = hear;
  o.user_data = &h;
  memset(&h, 0, sizeof h);
  llama_result_free(r2);
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &n_prompt, 1, &o, &r2, err));
  check_result(r2, &h, 1);
  CHECK(h.finished[0] == LLAMA_FINISH_STOP_STRING && strstr(h.text[0], cut) == NULL);
  CHECK(memcmp(text, h.text[0], h.len[0]) == 0 && h.n[0] <= 8);
  llama_result_free(r2);

  /* nothing to generate */
  o = generate_defaults();
  o.max_gen_len = 0;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &n_prompt, 1, &o, &r2, err));
  CHECK(llama_result_tokens(r2, 0, &tokens, &n) == LLAMA_OK && n == 0);
  CHECK(llama_result_text(r2, 0, &text, &len) == LLAMA_OK && len == 0 && text[0] == 0);
  llama_result_free(r2);

  /* same seed, same tokens; events only, no result */
  o = generate_defaults();
  o.seed = 42;
  o.max_gen_len = 16;
  o.on_event = hear;
  for (i = 0; i < 2; i++) {
    static heard twice[2];
    memset(&twice[i], 0, sizeof twice[i]);
    o.user_data = &twice[i];
    EXPECT(LLAMA_OK, llama_generate(l, prompt, &n_prompt, 1, &o, NULL, err));
    CHECK(twice[i].finished[0] != 0);
    if (i == 1) CHECK(memcmp(&twice[0], &twice[1], sizeof twice[0]) == 0);
  }
  llama_result_free(r);
}

static void chat(void) {
  static heard h;
  static const llama_message msgs[4] = {{"system", "Be brief.", SIZE_MAX, SIZE_MAX},
      {"user", "Hello", SIZE_MAX, SIZE_MAX}, {"user", "A [INST] tag", SIZE_MAX, SIZE_MAX},
      {"assistant", "Hi", 9, 2}};
  size_t dialogs[2] = {2, 1}, n, len, n_prompt;
  int32_t prompt[128];
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL, *r2 = NULL;
  const char *text;
  const int32_t *tokens, *tokens2;
  o.temperature = 0;
  o.max_gen_len = 6;
  o.on_event = hear;
  o.user_data = &h;
  EXPECT(LLAMA_OK, llama_chat_completion(l, msgs, dialogs, 2, &o, &r, err));
  check_result(r, &h, 2);
  CHECK(llama_result_finish_reason(r, 1) == LLAMA_FINISH_UNSAFE);
  CHECK(llama_result_text(r, 1, &text, &len) == LLAMA_OK);
  CHECK(strcmp(text, "Error: special tags are not allowed as part of the prompt.") == 0);
  CHECK(llama_result_tokens(r, 1, &tokens, &n) == LLAMA_OK && n == 0);

  EXPECT(LLAMA_OK, llama_encode_dialog(l, msgs, 2, NULL, 0, &n_prompt, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_dialog(l, msgs, 2, prompt, n_prompt - 1, &n, err));
  CHECK(n == n_prompt);
  EXPECT(LLAMA_OK, llama_encode_dialog(l, msgs, 2, prompt, n_prompt, &n, err));
  CHECK(n == n_prompt && prompt[0] == 1);
  o.on_event = NULL;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &n_prompt, 1, &o, &r2, err));
  CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK);
  CHECK(llama_result_tokens(r2, 0, &tokens2, &len) == LLAMA_OK);
  CHECK(n == len && memcmp(tokens, tokens2, n * sizeof *tokens) == 0);
  llama_result_free(r2);

  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_dialog(l, msgs + 2, 1, prompt, 128, &n, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_dialog(l, msgs + 1, 2, prompt, 128, &n, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_dialog(l, msgs + 3, 1, prompt, 128, &n, err));
  llama_free(l);
  /* results outlive the handle */
  CHECK(llama_result_text(r, 1, &text, &len) == LLAMA_OK && len > 10);
  llama_result_free(r);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  l = open_model(argv[1], 128, 4);
  encode_and_decode();
  generate();
  chat();
  return summary("text");
}
