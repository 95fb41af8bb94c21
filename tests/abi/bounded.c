/* llama_encode_text_bounded: text that anybody may have sent costs no more than its bounds
 * allow. */
#include "abi.h"

enum { MIB = 1 << 20 };
static const int32_t UNTOUCHED = -7;

static void bounds(const llama_t *l) {
  const char *text = "Once upon a time there was a NUL.";
  uint32_t flags = LLAMA_ENC_BOS | LLAMA_ENC_EOS;
  int32_t expected[128], tokens[128];
  size_t n = 0, m, bound;
  llama_cancel_t *cancel = llama_cancel_new();
  EXPECT(LLAMA_OK, llama_encode_text(l, text, SIZE_MAX, flags, expected, 128, &n, err));
  CHECK(n > 8);
  for (bound = 0; bound <= n + 2; bound++) {
    memset(tokens, 0, sizeof tokens);
    tokens[0] = UNTOUCHED;
    m = 99;
    if (bound < n) {
      EXPECT(LLAMA_E_TOO_LONG,
          llama_encode_text_bounded(l, text, SIZE_MAX, flags, bound, cancel, tokens, 128, &m, err));
      CHECK(m == 99 && tokens[0] == UNTOUCHED);
    } else {
      EXPECT(LLAMA_OK, llama_encode_text_bounded(
                           l, text, strlen(text), flags, bound, NULL, tokens, 128, &m, err));
      CHECK(m == n && memcmp(tokens, expected, n * sizeof *tokens) == 0);
    }
  }
  /* BOS and EOS count, and nothing else is there. */
  EXPECT(
      LLAMA_E_TOO_LONG, llama_encode_text_bounded(l, "", 0, flags, 1, NULL, tokens, 128, &m, err));
  EXPECT(LLAMA_E_TOO_LONG,
      llama_encode_text_bounded(l, "", 0, LLAMA_ENC_EOS, 0, NULL, tokens, 128, &m, err));
  EXPECT(LLAMA_OK, llama_encode_text_bounded(l, "", 0, flags, 2, NULL, tokens, 128, &m, err));
  CHECK(m == 2);
  /* A bound that is kept, a buffer that is too small, and one that only asks. */
  EXPECT(LLAMA_OK,
      llama_encode_text_bounded(l, text, SIZE_MAX, flags, SIZE_MAX, NULL, NULL, 0, &m, err));
  CHECK(m == n);
  EXPECT(LLAMA_E_INVALID_ARGUMENT,
      llama_encode_text_bounded(l, text, SIZE_MAX, flags, n, NULL, tokens, n - 1, &m, err));
  CHECK(m == n);
  EXPECT(LLAMA_E_INVALID_ARGUMENT,
      llama_encode_text_bounded(l, text, SIZE_MAX, 8, n, NULL, tokens, n, &m, err));
  EXPECT(LLAMA_E_UTF8, llama_encode_text_bounded(l, "a\xff", 2, 0, 0, NULL, tokens, n, &m, err));
  m = 99;
  llama_cancel_trigger(cancel);
  {
    llama_error err;
    err.struct_size = sizeof err;
    CHECK(llama_encode_text_bounded(l, text, SIZE_MAX, flags, n, cancel, tokens, n, &m, &err) ==
          LLAMA_CANCELLED);
    CHECK(m == 99);
  }
  llama_cancel_free(cancel);
  EXPECT(LLAMA_E_INVALID_ARGUMENT,
      llama_encode_text_bounded(l, text, SIZE_MAX, flags, n, cancel, tokens, n, &m, err));
}

/* Of the whole process: others on a busy machine do not lengthen it much. */
static double used_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double used_at_trigger;

static void *trigger(void *cancel) {
  sleep_ms(20);
  used_at_trigger = used_ms();
  llama_cancel_trigger(cancel);
  return NULL;
}

/* Tens of megabytes: refused at once where only a few tokens are wanted, left at once when told
 * to. */
static void large(const llama_t *l, size_t len) {
  char *text = malloc(len);
  int32_t token;
  size_t i, n = 99;
  double start;
  llama_cancel_t *cancel = llama_cancel_new();
  pthread_t thread;
  CHECK(text != NULL);
  for (i = 0; i < len; i++) text[i] = " etaoinshr"[(i * i + i / 977) % 10];
  start = used_ms();
  EXPECT(
      LLAMA_E_TOO_LONG, llama_encode_text_bounded(l, text, len, 0, 4096, NULL, &token, 1, &n, err));
  CHECK(used_ms() - start < 1000 && n == 99);
  CHECK(pthread_create(&thread, NULL, trigger, cancel) == 0);
  CHECK(llama_encode_text_bounded(l, text, len, 0, SIZE_MAX, cancel, &token, 1, &n, NULL) ==
        LLAMA_CANCELLED);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(used_ms() - used_at_trigger < 1000 && n == 99);
  llama_cancel_free(cancel);
  free(text);
}

int main(int argc, char **argv) {
  llama_t *l = open_model(argc > 1 ? argv[1] : "", 16, 1);
  bounds(l);
  large(l, 64 * MIB);
  llama_free(l);
  return summary("bounded");
}
