/* Eight threads on one handle, results as if alone; the handle freed while they run. */
#include "abi.h"

enum { THREADS = 8, ROUNDS = 6, TOKENS = 24 };

static llama_t *l;
static int32_t alone[THREADS][TOKENS];
static int32_t prompts[THREADS][32];

static size_t prompt_len(size_t i) { return 3 + 3 * i; }

static void run(size_t i, int32_t *tokens) {
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  const int32_t *p;
  size_t n, len = prompt_len(i);
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = TOKENS;
  o.temperature = i % 2 == 0 ? 0.0f : 0.8f;
  o.seed = i + 1;
  EXPECT(LLAMA_OK, llama_generate(l, prompts[i], &len, 1, &o, &r, err));
  CHECK(llama_result_tokens(r, 0, &p, &n) == LLAMA_OK && n == TOKENS);
  if (n == TOKENS) memcpy(tokens, p, sizeof alone[0]);
  llama_result_free(r);
}

static void *same_as_alone(void *index) {
  size_t i = (size_t)index, round;
  for (round = 0; round < ROUNDS; round++) {
    int32_t tokens[TOKENS];
    char text[512];
    size_t n;
    run(i, tokens);
    CHECK(memcmp(tokens, alone[i], sizeof tokens) == 0);
    EXPECT(LLAMA_OK, llama_decode_tokens(l, tokens, TOKENS, text, sizeof text, &n, err));
  }
  return NULL;
}

static void *until_freed(void *index) {
  size_t i = (size_t)index, len = prompt_len(i);
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  llama_status status;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  do {
    status = llama_generate(l, prompts[i], &len, 1, &o, &r, NULL);
    if (status == LLAMA_OK || status == LLAMA_CANCELLED) {
      CHECK(llama_result_count(r) == 1);
      llama_result_free(r);
    }
  } while (status == LLAMA_OK);
  CHECK(status == LLAMA_CANCELLED || status == LLAMA_E_INVALID_ARGUMENT);
  return NULL;
}

static void *free_it(void *unused) {
  (void)unused;
  llama_free(l);
  return NULL;
}

static void on_all(void *(*body)(void *)) {
  pthread_t threads[THREADS];
  size_t i;
  for (i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
  for (i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv) {
  size_t i;
  int round;
  if (argc < 2) return 2;
  for (i = 0; i < THREADS; i++) fill_prompt(prompts[i], 32);
  for (i = 0; i < THREADS; i++) prompts[i][1] = (int32_t)(10 + i); /* no common prefix but BOS */
  l = open_model(argv[1], 64, 3); /* fewer slots than threads: some wait */
  for (i = 0; i < THREADS; i++) run(i, alone[i]);
  on_all(same_as_alone);
  llama_free(l);

  for (round = 0; round < 3; round++) {
    pthread_t threads[THREADS], killers[2];
    l = open_model(argv[1], 2048, 3);
    for (i = 0; i < THREADS; i++)
      CHECK(pthread_create(&threads[i], NULL, until_freed, (void *)i) == 0);
    sleep_ms(round * 25);
    for (i = 0; i < 2; i++) CHECK(pthread_create(&killers[i], NULL, free_it, NULL) == 0);
    for (i = 0; i < 2; i++) CHECK(pthread_join(killers[i], NULL) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  }
  return summary("threads");
}
