/* What a host that limits its memory sees: LLAMA_E_NO_MEMORY, never its own end. */
#include "address_space.h"

#include <malloc.h>

static int refused;

/* A dialog of many small values. */
static char messages[1 << 22];

static void fill_messages(void) {
  size_t n = (size_t)snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"a\"");
  unsigned i;
  for (i = 0; n < sizeof messages - 64; i++)
    n += (size_t)snprintf(messages + n, sizeof messages - n, ",\"%u\":[[],\"\"]", i);
  snprintf(messages + n, sizeof messages - n, "}]");
}

static void try_all(llama_t *l, const char *dir, const char *text, size_t len, int32_t *tokens,
    char *back, int enough) {
  llama_error err_, *err = &err_;
  llama_message message = {"user", text, SIZE_MAX, len};
  llama_generate_options o = generate_defaults();
  llama_result_t *result = NULL;
  llama_status status[8];
  llama_chat_options c;
  char out[64];
  char big_tokenizer[4096];
  size_t n = 0, i, one = 1;
  llama_t *second = NULL;
  llama_build_options b = build_defaults();
  err->struct_size = sizeof *err;
  o.max_gen_len = 4;

  status[0] = llama_encode_text(l, text, len, LLAMA_ENC_BOS, tokens, len, &n, err);
  n = len;
  for (i = 0; i < n; i++) tokens[i] = 3 + (int32_t)(i % 300);
  status[1] = llama_decode_tokens(l, tokens, n, back, 8 * len, &n, err);
  status[2] = llama_encode_dialog(l, &message, 1, tokens, len, &n, err);
  n = 1 << 12;
  fill_prompt(tokens, n);
  status[3] = llama_generate(l, tokens, &n, 1, &o, &result, err);
  llama_result_free(result);
  result = NULL;
  n = len;
  status[4] = llama_text_completion(l, &text, &n, one, &o, &result, err);
  CHECK(status[4] == LLAMA_E_TOO_LONG || status[4] == LLAMA_E_NO_MEMORY);
  llama_result_free(result);
  b.n_threads = 1;
  b.max_seq_len = 64;
  b.max_batch_size = 1;
  status[5] = llama_build(dir, NULL, &b, &second, err);
  CHECK(status[5] == LLAMA_OK || status[5] == LLAMA_E_NO_MEMORY);
  llama_free(second);
  /* Of a tokenizer of half a megabyte it is only found late that it is not this model's. */
  snprintf(big_tokenizer, sizeof big_tokenizer, "%s/../../../tokenizer/tokenizer.model", dir);
  status[6] = llama_build(dir, big_tokenizer, &b, &second, err);
  CHECK(status[6] == LLAMA_E_FORMAT || status[6] == LLAMA_E_NO_MEMORY);
  CHECK(!enough || status[6] == LLAMA_E_FORMAT);
  llama_chat_options_init(&c, sizeof c);
  c.chat_template = "{{ messages | length }}";
  status[7] = llama_render_chat(l, messages, SIZE_MAX, &c, out, sizeof out, &n, err);
  CHECK(status[7] == LLAMA_OK || status[7] == LLAMA_E_NO_MEMORY);
  CHECK(status[7] == LLAMA_OK || strstr(err->message, "needs 0 bytes") == NULL);
  CHECK(!enough || (status[7] == LLAMA_OK && n == 1 && *out == '1'));
  for (i = 0; i < 8; i++) {
    if (i < 4) CHECK(status[i] == LLAMA_OK || status[i] == LLAMA_E_NO_MEMORY);
    if (enough && i < 6 && i != 4) CHECK(status[i] == LLAMA_OK);
    refused += status[i] == LLAMA_E_NO_MEMORY;
  }
}

/* A long message whose texts filters and methods make anew. */
static void try_filters(llama_t *l) {
  static const char *const templates[] = {
      "{{ messages[0].content | upper | length }}",
      "{{ messages[0].content | capitalize | length }}",
      "{{ messages[0].content.casefold() | length }}",
      "{{ messages[0].content | int }}",
      "{{ messages | length }}",
  };
  static const char head[] = "[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]";
  const size_t len = 8 << 20;
  char *dialog = malloc(len + 64), out[64];
  size_t i, n = sizeof head - 1, extra;
  CHECK(dialog != NULL);
  memcpy(dialog, head, n);
  for (i = 0; i < len; i++) dialog[n++] = "9_"[i % 2];
  memcpy(dialog + n - 1, tail, sizeof tail);
  for (extra = 8 * MIB; extra <= 64 * MIB; extra += 2 * MIB) {
    for (i = 0; i < sizeof templates / sizeof *templates; i++) {
      llama_chat_options c;
      llama_status status;
      llama_error err;
      err.struct_size = sizeof err;
      llama_chat_options_init(&c, sizeof c);
      c.chat_template = templates[i];
      allow(extra);
      status = llama_render_chat(l, dialog, SIZE_MAX, &c, out, sizeof out, &n, &err);
      allow(0);
      /* The integer has too many digits. */
      if (i == 3 && status == LLAMA_E_FORMAT) status = LLAMA_OK;
      CHECK(status == LLAMA_OK || status == LLAMA_E_NO_MEMORY);
      refused += status == LLAMA_E_NO_MEMORY;
    }
  }
  free(dialog);
}

int main(int argc, char **argv) {
  /* What is freed leaves the address space, and no thread has a part of it of its own. */
  const int gives_back = mallopt(M_MMAP_THRESHOLD, 1 << 17) && mallopt(M_ARENA_MAX, 1);
  llama_t *l = open_model(argc > 1 ? argv[1] : "", 1 << 12, 1);
  size_t len = 1 << 20, i, extra;
  char *text = malloc(len), *back = malloc(8 * len);
  int32_t *tokens = malloc(len * sizeof *tokens);
  fill_messages();
  CHECK(gives_back == 1);
  CHECK(text != NULL && back != NULL && tokens != NULL);
  for (i = 0; i < len; i++) text[i] = " etaoin"[i * i % 7];
  try_filters(l);
  CHECK(refused > 3);
  refused = 0;
  for (extra = 4 * MIB; extra <= 256 * MIB; extra *= 2) {
    allow(extra);
    try_all(l, argv[1], text, len, tokens, back, 0);
  }
  CHECK(refused > 3);
  allow(0);
  try_all(l, argv[1], text, len, tokens, back, 1);
  llama_free(l);
  free(text);
  free(back);
  free(tokens);
  return summary("memory");
}
