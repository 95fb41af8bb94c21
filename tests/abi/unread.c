/* Many streams that nobody reads, on a handle with few slots: others finish all the same; a stream
 * that is read after all has what it would have had; and all of them can be freed in any order,
 * from any thread, whatever they do at the time, also after their handle. */
#include "abi.h"

#include <stdatomic.h>

/* A reader is behind with more than 1,024 events: those of an echoed prompt do. */
enum { BEHIND = 1025, PROMPT = 1100, GENERATED = 40, STREAMS = 64, SLOTS = 3, THREADS = 4 };

static llama_t *l;
static size_t n_streams = STREAMS;
static int32_t prompt[PROMPT];
static llama_stream_t *streams[STREAMS];
static atomic_size_t next_to_free;

static llama_t *open_with(
    const char *dir, uint32_t max_stall_ms, uint32_t max_unread_ms, uint64_t stall_memory_bytes) {
  llama_build_options o = build_defaults();
  llama_t *model = NULL;
  o.device = LLAMA_DEVICE_CPU;
  o.max_seq_len = 2048;
  o.max_batch_size = SLOTS;
  o.max_stall_ms = max_stall_ms;
  o.max_unread_ms = max_unread_ms;
  o.stall_memory_bytes = stall_memory_bytes;
  o.n_threads = 1;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &model, err));
  return model;
}

static llama_timings timings(void) {
  llama_timings t;
  t.struct_size = sizeof t;
  EXPECT(LLAMA_OK, llama_get_timings(l, &t, err));
  return t;
}

static llama_generate_options echoed(void) {
  llama_generate_options o = generate_defaults();
  o.flags = LLAMA_GEN_ECHO | LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = GENERATED;
  o.temperature = 0.8f;
  return o;
}

/* Streams of one, two and three sequences; some draw several from one prompt. */
static size_t n_prompts(size_t i) { return i % 5 == 1 ? SLOTS : 1; }
static uint32_t n_samples(size_t i) { return i % 5 == 2 ? 2 : 1; }

static void open_all(void) {
  size_t i, lens[SLOTS] = {PROMPT, PROMPT, PROMPT};
  int32_t *tokens = malloc(SLOTS * sizeof prompt);
  for (i = 0; i < SLOTS; i++) memcpy(tokens + i * PROMPT, prompt, sizeof prompt);
  for (i = 0; i < n_streams; i++) {
    llama_generate_options o = echoed();
    o.seed = i + 1;
    o.num_return_sequences = n_samples(i);
    EXPECT(LLAMA_OK, llama_stream_open(l, tokens, lens, n_prompts(i), &o, &streams[i], err));
  }
  free(tokens);
}

/* It needs all slots. */
static void *be_a_victim(void *unused) {
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  const int32_t tokens[SLOTS] = {5, 6, 7};
  const size_t lens[SLOTS] = {1, 1, 1};
  const int32_t *got;
  size_t n, i;
  (void)unused;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = 5;
  EXPECT(LLAMA_OK, llama_generate(l, tokens, lens, SLOTS, &o, &r, err));
  for (i = 0; i < SLOTS; i++) CHECK(llama_result_tokens(r, i, &got, &n) == LLAMA_OK && n == 5);
  llama_result_free(r);
  return NULL;
}

/* The tokens of stream `i`, sequence by sequence; how it ended. */
static llama_status read_all(size_t i, int32_t (*tokens)[PROMPT + GENERATED], int32_t *reason) {
  llama_event ev;
  size_t n[SLOTS] = {0};
  llama_status status;
  ev.struct_size = sizeof ev;
  while ((status = llama_stream_next(streams[i], &ev, 60000, NULL)) == LLAMA_OK) {
    CHECK(ev.index < SLOTS && ev.text[ev.text_len] == 0);
    if (ev.kind == LLAMA_EVENT_FINISH) {
      *reason = ev.finish_reason;
    } else {
      CHECK(n[ev.index] < PROMPT + GENERATED);
      tokens[ev.index][n[ev.index]++] = ev.token;
    }
  }
  return status;
}

/* What stream `i` would have given if it had been alone. */
static void check_read(size_t i) {
  static int32_t tokens[SLOTS][PROMPT + GENERATED];
  size_t lens[SLOTS] = {PROMPT, PROMPT, PROMPT}, j, n, each = n_samples(i);
  int32_t *prompts = malloc(SLOTS * sizeof prompt), reason = 0;
  const int32_t *want;
  llama_generate_options o = echoed();
  llama_result_t *r = NULL;
  CHECK(read_all(i, tokens, &reason) == LLAMA_DONE && reason == LLAMA_FINISH_LENGTH);
  for (j = 0; j < SLOTS; j++) memcpy(prompts + j * PROMPT, prompt, sizeof prompt);
  o.seed = i + 1;
  o.num_return_sequences = n_samples(i);
  EXPECT(LLAMA_OK, llama_generate(l, prompts, lens, n_prompts(i), &o, &r, err));
  CHECK(llama_result_count(r) == n_prompts(i) * each);
  for (j = 0; j < n_prompts(i) * each; j++) {
    CHECK(llama_result_tokens(r, j, &want, &n) == LLAMA_OK && n == PROMPT + GENERATED);
    CHECK(memcmp(want, tokens[j], sizeof tokens[j]) == 0);
  }
  llama_result_free(r);
  free(prompts);
}

static void until_nothing_runs(void) {
  double start = now_ms();
  llama_timings t = timings();
  while (t.running + t.waiting + t.parked > 0 || t.pages_used > 0) {
    if (now_ms() - start > 300000) {
      CHECK(!"all slots and pages are free");
      return;
    }
    sleep_ms(1);
    t = timings();
  }
}

/* In an order that jumps from end to end, each by whichever thread comes. */
static void *free_some(void *unused) {
  size_t i;
  (void)unused;
  while ((i = atomic_fetch_add(&next_to_free, 1)) < n_streams) {
    size_t at = i % 2 == 0 ? i / 2 : n_streams - 1 - i / 2;
    llama_stream_free(streams[at]);
    llama_stream_free(streams[at]); /* again: nothing */
  }
  return NULL;
}

static void *free_the_handle(void *unused) {
  (void)unused;
  llama_free(l);
  return NULL;
}

static void on_threads(void *(*body)(void *), pthread_t *threads) {
  size_t i;
  atomic_store(&next_to_free, 0);
  for (i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, body, NULL) == 0);
}

static void join(pthread_t *threads) {
  size_t i;
  for (i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS], other;
  size_t i;
  /* Valgrind takes minutes for what takes a second. It sees memory that nothing has been written
   * to, so it gets what copies pages out and back. */
  const int valgrind = getenv("LLAMABI_TEST_THREADS") != NULL;
  if (argc < 2) return 2;
  if (valgrind) n_streams = 2 * SLOTS + 1;
  fill_prompt(prompt, PROMPT);

  /* Others finish, again and again, and most of the streams have given their slots up. */
  l = open_with(argv[1], 1, UINT32_MAX, 1 << 30);
  open_all();
  for (i = 0; i < 3; i++) be_a_victim(NULL);
  CHECK(timings().parked > n_streams - 2 * SLOTS);
  /* Of each kind one, the last one first; then the rest is freed where it is. */
  check_read(n_streams - 1);
  check_read(1);
  check_read(2);
  on_threads(free_some, threads);
  join(threads);
  until_nothing_runs();

  /* Freed while they begin, give their slots up and come back, with others waiting. */
  open_all();
  on_threads(free_some, threads);
  be_a_victim(NULL);
  join(threads);
  until_nothing_runs();
  open_all();
  CHECK(pthread_create(&other, NULL, be_a_victim, NULL) == 0);
  on_threads(free_some, threads);
  join(threads);
  pthread_join(other, NULL);
  until_nothing_runs();
  be_a_victim(NULL);

  /* The handle goes at the same time, then they do. */
  open_all();
  be_a_victim(NULL);
  CHECK(pthread_create(&other, NULL, free_the_handle, NULL) == 0);
  on_threads(free_some, threads);
  join(threads);
  pthread_join(other, NULL);
  if (valgrind) return summary("unread");

  /* No memory to keep what they have: those that make room end as unread, and say so. */
  l = open_with(argv[1], 1, UINT32_MAX, 1);
  open_all();
  be_a_victim(NULL);
  CHECK(timings().parked == 0);
  {
    static int32_t tokens[SLOTS][PROMPT + GENERATED];
    int32_t reason = 0;
    CHECK(read_all(0, tokens, &reason) == LLAMA_DONE && reason == LLAMA_FINISH_UNREAD);
    CHECK(memcmp(tokens[0], prompt, BEHIND * sizeof *prompt) == 0);
  }
  on_threads(free_some, threads);
  join(threads);
  until_nothing_runs();
  llama_free(l);

  /* No patience: all end, though nobody frees or reads them. */
  l = open_with(argv[1], 1, 20, 1 << 30);
  open_all();
  until_nothing_runs();
  be_a_victim(NULL);
  llama_free(l);
  on_threads(free_some, threads);
  join(threads);
  return summary("unread");
}
