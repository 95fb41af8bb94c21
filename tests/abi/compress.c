/* llama_compress: what is left of a prompt, told anew from the scores of ordinary calls; budgets;
   wrong arguments; cancelling. */
#include "abi.h"
#include <math.h>
#include <signal.h>

#define INVALID LLAMA_E_INVALID_ARGUMENT
enum { MOST = 4096 };

static const char story[] =
    "Once upon a time there was a little girl who lived in a small house near the forest. "
    "She had 12 apples and 7 pears.\nEvery day she went to the river, and she sang a song.";

static llama_compress_options defaults(void) {
  llama_compress_options o;
  llama_compress_options_init(&o, sizeof o);
  return o;
}

static llama_segment segment(const char *text, int32_t kind) {
  llama_segment s = {text, SIZE_MAX, kind, 0};
  return s;
}

static llama_result_t *compress(
    llama_t *l, const llama_segment *s, size_t n, const llama_compress_options *o) {
  llama_result_t *r = NULL;
  EXPECT(LLAMA_OK, llama_compress(l, s, n, o, &r, err));
  CHECK(llama_result_count(r) == n);
  return r;
}

static size_t tokens_of(const llama_result_t *r, size_t i, const int32_t **tokens) {
  size_t n = 0;
  CHECK(llama_result_tokens(r, i, tokens, &n) == LLAMA_OK);
  return n;
}

static size_t all_tokens(const llama_result_t *r) {
  size_t i, sum = 0;
  const int32_t *tokens;
  for (i = 0; i < llama_result_count(r); i++) sum += tokens_of(r, i, &tokens);
  return sum;
}

static size_t encode(llama_t *l, const char *text, int32_t *tokens) {
  size_t n = 0;
  EXPECT(LLAMA_OK, llama_encode_text(l, text, SIZE_MAX, 0, tokens, MOST, &n, err));
  return n;
}

/* The log probabilities of the last `n` of `len` tokens behind a BOS, by an ordinary call. */
static void scores(llama_t *l, const int32_t *tokens, size_t len, size_t n, float *found) {
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  const float *p = NULL;
  size_t all = 0, one = len + 1;
  int32_t prompt[MOST] = {1};
  memcpy(prompt + 1, tokens, len * sizeof *tokens);
  o.flags = LLAMA_GEN_ECHO | LLAMA_GEN_LOGPROBS;
  o.max_gen_len = 0;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &one, 1, &o, &r, err));
  CHECK(llama_result_logprobs(r, 0, &p, &all) == LLAMA_OK && all == len + 1);
  memcpy(found, p + 1 + len - n, n * sizeof *found);
  llama_result_free(r);
}

/* The same with at most `room` tokens behind the BOS: what is too long is scored in pieces, with
   the end of what is in front of each. */
static void cut_scores(
    llama_t *l, const int32_t *tokens, size_t len, size_t n, size_t room, float *found) {
  size_t piece = n <= room ? n : (room + 1) / 2, at, m, end, front;
  for (at = 0; at < n; at += piece) {
    m = n - at < piece ? n - at : piece;
    end = len - n + at + m;
    front = end > room ? end - room : 0;
    scores(l, tokens + front, end - front, m, found + at);
  }
}

/* Half of each window stays, whose windows are of an even number of tokens. */
static void told_anew(const char *dir, size_t max_seq_len, size_t window) {
  llama_t *l = open_model(dir, (uint32_t)max_seq_len, 2);
  char large[3 * sizeof story] = "", part[MOST];
  llama_segment s[2] = {segment("Tell me a story.", LLAMA_SEGMENT_KEEP)};
  llama_compress_options o = defaults();
  static int32_t context[MOST], text[MOST];
  const int32_t *left;
  const float *logprobs;
  float found[64];
  size_t front = encode(l, s[0].text, context), n, kept = 0, at, i, j, m, bytes = 0;
  llama_result_t *r;
  strcat(strcat(large, story), story);
  n = encode(l, large, text);
  n -= n % window;
  CHECK(n >= 2 * window);
  EXPECT(LLAMA_OK, llama_decode_tokens(l, text, n, part, sizeof part, &bytes, err));
  part[bytes] = 0;
  CHECK(encode(l, part, text) == n);
  s[1] = segment(part, LLAMA_SEGMENT_COMPRESS);
  o.window = (uint32_t)window;
  o.target_tokens = (uint32_t)(front + n / 2);
  r = compress(l, s, 2, &o);
  m = tokens_of(r, 1, &left);
  CHECK(m == n / 2);
  CHECK(llama_result_logprobs(r, 1, &logprobs, &i) == LLAMA_OK && i == m);
  for (at = 0; at < n && kept + window / 2 <= m; at += window) {
    memcpy(context + front + kept, text + at, window * sizeof *text);
    cut_scores(l, context, front + kept + window, window, max_seq_len - 1, found);
    for (i = 0; i < window; i++) {
      size_t less = 0;
      for (j = 0; j < window; j++) less += found[j] < found[i] || (found[j] == found[i] && j < i);
      if (less >= window / 2) continue;
      CHECK(left[kept] == text[at + i] && logprobs[kept] == found[i]);
      context[front + kept++] = text[at + i];
    }
  }
  CHECK(kept == m);
  CHECK(tokens_of(r, 0, &left) == front);
  llama_result_free(r);
  llama_free(l);
}

static void budgets(llama_t *l) {
  llama_segment s[3] = {segment(story, LLAMA_SEGMENT_COMPRESS), segment("", LLAMA_SEGMENT_COMPRESS),
      segment("Who sang?", LLAMA_SEGMENT_QUESTION)};
  llama_compress_options o = defaults();
  llama_request_stats stats;
  llama_result_t *r = compress(l, s, 3, NULL);
  int32_t tokens[MOST];
  const int32_t *left;
  const char *text;
  float sum, score;
  size_t question = encode(l, s[2].text, tokens), all = encode(l, story, tokens) + question, n, i;
  CHECK(o.struct_size == sizeof o && o.rate == 0.5f && o.window == 100 && o.coarse == 2.0f);
  CHECK(all_tokens(r) == (all + 1) / 2);
  CHECK(llama_result_text(r, 2, &text, &n) == LLAMA_OK && strcmp(text, s[2].text) == 0);
  CHECK(llama_result_text(r, 1, &text, &n) == LLAMA_OK && n == 0);
  CHECK(llama_result_text(r, 0, &text, &n) == LLAMA_OK && n > 0 && text[0] != ' ');
  CHECK(llama_result_finish_reason(r, 0) == LLAMA_FINISH_STOP);
  stats.struct_size = sizeof stats;
  CHECK(llama_result_stats(r, 0, &stats) == LLAMA_OK);
  CHECK(stats.prompt_tokens == all - question);
  CHECK(stats.generated_tokens == tokens_of(r, 0, &left));
  CHECK(llama_result_score(r, 0, &sum, &score) == LLAMA_OK && sum == 0 && score == 0);
  llama_result_free(r);
  /* whole, one, none, and less than stays in any case */
  o.rate = 1;
  r = compress(l, s, 3, &o);
  CHECK(all_tokens(r) == all);
  CHECK(llama_result_text(r, 0, &text, &n) == LLAMA_OK && strcmp(text, story) == 0);
  llama_result_free(r);
  for (i = 0; i < 3; i++) {
    o.target_tokens = (uint32_t)(i == 2 ? 1 : question + 1 - i);
    r = compress(l, s, 3, &o);
    CHECK(all_tokens(r) == question + (i == 0));
    llama_result_free(r);
  }
  /* newlines and digits */
  o.flags = LLAMA_COMPRESS_KEEP_NEWLINES | LLAMA_COMPRESS_KEEP_DIGITS;
  o.target_tokens = (uint32_t)(question + 12);
  o.window = 16;
  r = compress(l, s, 3, &o);
  CHECK(all_tokens(r) == question + 12);
  CHECK(llama_result_text(r, 0, &text, &n) == LLAMA_OK);
  CHECK(strchr(text, '\n') && strchr(text, '1') && strchr(text, '2') && strchr(text, '7'));
  llama_result_free(r);
}

/* Two passages are ranked, and texts longer than the context are shortened. */
static void many(const char *dir) {
  llama_t *l = open_model(dir, 32, 2);
  char large[8 * sizeof story] = "";
  llama_segment s[4];
  llama_compress_options o = defaults();
  llama_result_t *r, *again;
  float sum, score[3];
  const int32_t *a, *b;
  size_t i, n;
  for (i = 0; i < 6; i++) strcat(large, story);
  s[0] = segment("She liked apples.", LLAMA_SEGMENT_COMPRESS);
  s[1] = segment(large, LLAMA_SEGMENT_COMPRESS);
  s[2] = segment("He was tired.", LLAMA_SEGMENT_COMPRESS);
  s[3] = segment("What did she like?", LLAMA_SEGMENT_QUESTION);
  o.target_tokens = 60;
  o.window = 40; /* more than one call for a window */
  o.coarse = 1;
  r = compress(l, s, 4, &o);
  CHECK(all_tokens(r) == 60);
  for (i = 0; i < 3; i++)
    CHECK(llama_result_score(r, i, &sum, score + i) == LLAMA_OK && score[i] < 0);
  again = compress(l, s, 4, &o);
  for (i = 0; i < 4; i++) {
    n = tokens_of(r, i, &a);
    CHECK(tokens_of(again, i, &b) == n && (n == 0 || memcmp(a, b, n * sizeof *a) == 0));
  }
  llama_result_free(again);
  llama_result_free(r);
  r = compress(l, s, 3, &o); /* without a question: each by itself */
  for (i = 0; i < 3; i++)
    CHECK(llama_result_score(r, i, &sum, score + i) == LLAMA_OK && score[i] > 0);
  llama_result_free(r);
  llama_free(l);
}

static void arguments(llama_t *l) {
  llama_segment s[2] = {segment("a b c d", LLAMA_SEGMENT_COMPRESS), segment("e", 0)};
  llama_compress_options o = defaults();
  llama_result_t *r = FOREIGN;
  llama_cancel_t *flag = llama_cancel_new();
  llama_error said = {.struct_size = sizeof said};
  size_t i;
  EXPECT(INVALID, llama_compress(NULL, s, 2, NULL, &r, err));
  EXPECT(INVALID, llama_compress(FOREIGN, s, 2, NULL, &r, err));
  EXPECT(INVALID, llama_compress(l, NULL, 2, NULL, &r, err));
  EXPECT(INVALID, llama_compress(l, s, 2, NULL, NULL, err));
  EXPECT(LLAMA_E_BATCH, llama_compress(l, s, 0, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_compress(l, s, SIZE_MAX, NULL, &r, err));
  CHECK(llama_compress(l, s, 0, NULL, &r, &said) == LLAMA_E_BATCH);
  CHECK(strcmp(said.message, "n, the number of segments, is 0, must be 1 to 65536") == 0);
#define WITH(field, value, expected)                                                               \
  do {                                                                                             \
    o = defaults();                                                                                \
    o.field = (value);                                                                             \
    EXPECT(expected, llama_compress(l, s, 2, &o, &r, err));                                        \
  } while (0)
  WITH(struct_size, 4, LLAMA_E_ABI);
  WITH(struct_size, 4097, LLAMA_E_ABI);
  WITH(flags, 4, INVALID);
  WITH(rate, 0.0f, INVALID);
  WITH(rate, 1.01f, INVALID);
  WITH(rate, NAN, INVALID);
  WITH(window, 0, INVALID);
  WITH(coarse, 0.9f, INVALID);
  WITH(coarse, NAN, INVALID);
  WITH(coarse, INFINITY, INVALID);
  WITH(cancel, (llama_cancel_t *)FOREIGN, INVALID);
#undef WITH
  s[1].kind = 3;
  EXPECT(INVALID, llama_compress(l, s, 2, NULL, &r, err));
  s[1].kind = -1;
  EXPECT(INVALID, llama_compress(l, s, 2, NULL, &r, err));
  s[1] = segment(NULL, 0);
  EXPECT(INVALID, llama_compress(l, s, 2, NULL, &r, err));
  s[1] = segment("\xff", 0);
  EXPECT(LLAMA_E_UTF8, llama_compress(l, s, 2, NULL, &r, err));
  s[1] = segment("e", 0);
  s[1].reserved0 = 1;
  EXPECT(LLAMA_E_ABI, llama_compress(l, s, 2, NULL, &r, err));
  s[1].reserved0 = 0;
  s[1].len = SIZE_MAX - 1;
  EXPECT(INVALID, llama_compress(l, s, 2, NULL, &r, err));
  CHECK(r == FOREIGN);
  /* numbers beyond all tokens, and an older caller without most fields */
  s[1].len = SIZE_MAX;
  o = defaults();
  o.target_tokens = UINT32_MAX;
  o.window = UINT32_MAX;
  o.coarse = 3e38f;
  r = compress(l, s, 2, &o);
  llama_result_free(r);
  o.target_tokens = 3;
  r = compress(l, s, 2, &o);
  llama_result_free(r);
  o.struct_size = 12;
  r = compress(l, s, 2, &o);
  CHECK(all_tokens(r) == 3);
  llama_result_free(r);
  /* cancelled before it begins */
  o = defaults();
  o.cancel = flag;
  llama_cancel_trigger(flag);
  r = NULL;
  EXPECT(LLAMA_CANCELLED, llama_compress(l, s, 2, &o, &r, err));
  CHECK(llama_result_count(r) == 2 && all_tokens(r) == 0);
  for (i = 0; i < 2; i++) CHECK(llama_result_finish_reason(r, i) == LLAMA_FINISH_CANCELLED);
  llama_result_free(r);
  llama_cancel_free(flag);
}

/* Contexts of one token, which has nothing in front of it, and of two. */
static void short_contexts(const char *dir) {
  llama_segment s = segment("a b c d", LLAMA_SEGMENT_COMPRESS);
  llama_compress_options o = defaults();
  llama_t *l = open_model(dir, 1, 1);
  llama_result_t *r = NULL;
  EXPECT(INVALID, llama_compress(l, &s, 1, NULL, &r, err));
  CHECK(r == NULL);
  llama_free(l);
  l = open_model(dir, 2, 1);
  o.target_tokens = 2;
  r = compress(l, &s, 1, &o);
  CHECK(all_tokens(r) == 2);
  llama_result_free(r);
  llama_free(l);
}

static int32_t inside(void *user_data, const llama_event *ev) {
  llama_segment s = segment("a b c d", LLAMA_SEGMENT_COMPRESS);
  llama_result_t *r = NULL;
  (void)ev;
  EXPECT(INVALID, llama_compress(user_data, &s, 1, NULL, &r, err));
  return 0;
}

static void in_callback(llama_t *l) {
  llama_generate_options o = generate_defaults();
  int32_t prompt[2] = {1, 5};
  size_t len = 2;
  o.on_event = inside;
  o.user_data = l;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, &len, 1, &o, NULL, err));
}

static pthread_t held;
static int holding;

static void hold(int signal) {
  struct timespec time = {0, 30 * 1000 * 1000};
  (void)signal;
  nanosleep(&time, NULL);
}

static void *keep_holding(void *unused) {
  struct timespec time = {0, 70 * 1000 * 1000};
  (void)unused;
  while (__atomic_load_n(&holding, __ATOMIC_RELAXED)) {
    pthread_kill(held, SIGUSR1);
    nanosleep(&time, NULL);
  }
  return NULL;
}

static int is_same(const llama_result_t *a, const llama_result_t *b) {
  size_t i;
  if (llama_result_count(a) != llama_result_count(b)) return 0;
  for (i = 0; i < llama_result_count(a); i++) {
    const int32_t *left, *right;
    size_t n = tokens_of(a, i, &left);
    if (tokens_of(b, i, &right) != n) return 0;
    if (n > 0 && memcmp(left, right, n * sizeof *left) != 0) return 0;
  }
  return 1;
}

/* A thread that is held up for longer than max_unread_ms gets the same, or an error that says so,
   and the handle goes on. Without the second try of src/llama/compress.rs, scores were those of
   other tokens, or missing. */
static void held_up(const char *dir) {
  enum { WORDS = 1500, TRIES = 10 };
  char *text = malloc(16 * WORDS), *at = text;
  llama_build_options b = build_defaults();
  llama_compress_options o = defaults();
  struct sigaction action;
  llama_segment both[2];
  llama_result_t *r, *want;
  llama_t *l = NULL;
  pthread_t other;
  int i, done = 0;
  for (i = 0; i < WORDS; i++) at += sprintf(at, "word%d cat ", i % 97);
  both[0] = both[1] = segment(text, LLAMA_SEGMENT_COMPRESS);
  o.rate = 0.1f;
  b.device = LLAMA_DEVICE_CPU;
  b.n_threads = 1;
  b.max_seq_len = 2048;
  b.max_batch_size = 8;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &b, &l, err));
  want = compress(l, both, 2, &o);
  llama_free(l);
  b.max_unread_ms = 1;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &b, &l, err));
  memset(&action, 0, sizeof action);
  action.sa_handler = hold;
  sigaction(SIGUSR1, &action, NULL);
  held = pthread_self();
  holding = 1;
  pthread_create(&other, NULL, keep_holding, NULL);
  /* A busy machine may hold it up in every try. */
  for (i = 0; i < TRIES && done < 3; i++) {
    llama_error e;
    int32_t status;
    e.struct_size = sizeof e;
    status = llama_compress(l, both, 2, &o, &r, &e);
    if (status == LLAMA_E_BUSY) {
      CHECK(strstr(e.message, "max_unread_ms") != NULL);
      continue;
    }
    done++;
    CHECK(status == LLAMA_OK && is_same(want, r));
    if (status != LLAMA_OK) break;
    llama_result_free(r);
  }
  __atomic_store_n(&holding, 0, __ATOMIC_RELAXED);
  pthread_join(other, NULL);
  EXPECT(LLAMA_OK, llama_health(l, err));
  llama_result_free(want);
  llama_free(l);
  free(text);
}

static void *side(void *l) {
  budgets(l);
  return NULL;
}

int main(int argc, char **argv) {
  llama_t *l;
  pthread_t other;
  if (argc != 2) return 2;
  told_anew(argv[1], 512, 8);
  told_anew(argv[1], 48, 8);  /* contexts are cut */
  told_anew(argv[1], 32, 40); /* and windows, too */
  l = open_model(argv[1], 256, 2);
  pthread_create(&other, NULL, side, l);
  budgets(l);
  pthread_join(other, NULL);
  arguments(l);
  in_callback(l);
  llama_free(l);
  many(argv[1]);
  short_contexts(argv[1]);
  held_up(argv[1]);
  return summary("compress");
}
