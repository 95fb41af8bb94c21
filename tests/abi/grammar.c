/* llama_grammar_*: wrong arguments, lifetimes, and masks from any thread.
   (tests/models/grammar_masks asks what the masks are.) */
#include "abi.h"

#define INVALID LLAMA_E_INVALID_ARGUMENT
enum { WORDS = 16 };

static int allowed(const uint32_t *mask, int32_t t) { return (mask[t / 32] >> t % 32 & 1u) != 0; }

static llama_grammar_t *regex(const llama_t *l, const char *source) {
  llama_grammar_t *g = NULL;
  EXPECT(LLAMA_OK, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, source, SIZE_MAX, &g, err));
  CHECK(g != NULL);
  return g;
}

static void arguments(const llama_t *l) {
  llama_grammar_t *g = FOREIGN;
  char *large = malloc((1 << 20) + 2);
  memset(large, 'a', (1 << 20) + 2);
  large[(1 << 20) + 1] = 0;
  EXPECT(INVALID, llama_grammar_new(NULL, LLAMA_GRAMMAR_JSON, NULL, 0, &g, err));
  EXPECT(INVALID, llama_grammar_new(FOREIGN, LLAMA_GRAMMAR_JSON, NULL, 0, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_JSON, NULL, 0, NULL, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_JSON, "{}", 2, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, 0, "a", 1, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, 6, "a", 1, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, INT32_MIN, "a", 1, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, NULL, 1, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, NULL, SIZE_MAX, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, "a", SIZE_MAX - 1, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, "(a", 2, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, large, SIZE_MAX, &g, err));
  EXPECT(INVALID, llama_grammar_new(l, LLAMA_GRAMMAR_LARK, large, (1 << 20) + 1, &g, err));
  EXPECT(LLAMA_E_UTF8, llama_grammar_new(l, LLAMA_GRAMMAR_LARK, "\xff", 1, &g, err));
  CHECK(g == FOREIGN);
  free(large);
  llama_grammar_free(NULL);
  llama_grammar_free(FOREIGN);
}

static void masks(const llama_t *l) {
  llama_grammar_t *g = regex(l, "ab|ba");
  uint32_t mask[WORDS + 1], before;
  size_t needed = 77;
  int32_t bad[3] = {-1, INT32_MAX, 2}, t;
  llama_info info;
  info.struct_size = sizeof info;
  EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
  EXPECT(INVALID, llama_grammar_mask(NULL, NULL, 0, mask, WORDS, &needed, err));
  EXPECT(INVALID, llama_grammar_mask(FOREIGN, NULL, 0, mask, WORDS, &needed, err));
  EXPECT(INVALID,
      llama_grammar_mask((llama_grammar_t *)(const void *)l, NULL, 0, mask, WORDS, &needed, err));
  EXPECT(INVALID, llama_grammar_mask(g, NULL, 1, mask, WORDS, &needed, err));
  EXPECT(INVALID, llama_grammar_mask(g, bad, SIZE_MAX, mask, WORDS, &needed, err));
  EXPECT(INVALID, llama_grammar_mask(g, NULL, 0, mask, WORDS, NULL, err));
  EXPECT(INVALID, llama_grammar_mask(g, NULL, 0, NULL, WORDS, &needed, err));
  for (t = 0; t < 3; t++)
    EXPECT(INVALID, llama_grammar_mask(g, bad + t, 1, mask, WORDS, &needed, err));
  CHECK(needed == 77);
  EXPECT(LLAMA_OK, llama_grammar_mask(g, NULL, 0, NULL, 0, &needed, err));
  CHECK(needed == ((size_t)info.vocab_size + 31) / 32 && needed <= WORDS);
  before = mask[0] = 0x55;
  EXPECT(INVALID, llama_grammar_mask(g, NULL, 0, mask, needed - 1, &needed, err));
  CHECK(mask[0] == before);
  mask[needed] = 0x55;
  EXPECT(LLAMA_OK, llama_grammar_mask(g, NULL, 0, mask, WORDS, &needed, err));
  CHECK(mask[needed] == 0x55 && !allowed(mask, info.eos_id));
  /* Every allowed token leads on, to the end of the text at last. */
  for (t = 0; t < (int32_t)info.vocab_size; t++) {
    uint32_t next[WORDS];
    if (allowed(mask, t))
      EXPECT(LLAMA_OK, llama_grammar_mask(g, &t, 1, next, WORDS, &needed, err));
    else
      EXPECT(INVALID, llama_grammar_mask(g, &t, 1, next, WORDS, &needed, err));
  }
  llama_grammar_free(g);
  EXPECT(INVALID, llama_grammar_mask(g, NULL, 0, mask, WORDS, &needed, err));
  llama_grammar_free(g);
}

static const llama_t *shared_model;
static llama_grammar_t *shared_grammar;

static void *compile_and_ask(void *unused) {
  int i;
  (void)unused;
  for (i = 0; i < 5; i++) {
    uint32_t mask[WORDS];
    size_t needed;
    llama_grammar_t *g = NULL;
    EXPECT(LLAMA_OK, llama_grammar_new(shared_model, LLAMA_GRAMMAR_JSON, NULL, 0, &g, err));
    EXPECT(LLAMA_OK, llama_grammar_mask(g, NULL, 0, mask, WORDS, &needed, err));
    EXPECT(LLAMA_OK, llama_grammar_mask(shared_grammar, NULL, 0, mask, WORDS, &needed, err));
    llama_grammar_free(g);
  }
  return NULL;
}

/* The caller's stack may be small: the parser has one of its own. */
static void threads(const llama_t *l) {
  pthread_t thread[4];
  pthread_attr_t attributes;
  int i;
  shared_model = l;
  shared_grammar = regex(l, "((((((a|b)c)*d)?e)+f)g){3}");
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  for (i = 0; i < 4; i++)
    CHECK(pthread_create(&thread[i], &attributes, compile_and_ask, NULL) == 0);
  for (i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  pthread_attr_destroy(&attributes);
  llama_grammar_free(shared_grammar);
}

int main(int argc, char **argv) {
  llama_t *l = open_model(argc > 1 ? argv[1] : "", 64, 2);
  llama_grammar_t *survivor;
  uint32_t mask[WORDS];
  size_t needed;
  arguments(l);
  masks(l);
  threads(l);
  survivor = regex(l, "a|b");
  llama_free(l);
  EXPECT(LLAMA_OK, llama_grammar_mask(survivor, NULL, 0, mask, WORDS, &needed, err));
  llama_grammar_free(survivor);
  return summary("grammar");
}
