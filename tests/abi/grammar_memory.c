/* Calls with grammars in a process whose memory comes to its end: LLAMA_E_NO_MEMORY, never its own
 * end, though the parser cannot be told that there is none. */
#include "address_space.h"

#include <malloc.h>

enum { LONG = 900 };
static llama_t *l;
static llama_grammar_t *g;

static llama_generate_options in_language(uint32_t n) {
  llama_generate_options o = generate_defaults();
  o.grammar = g;
  o.temperature = 1;
  o.seed = 5;
  o.max_gen_len = o.min_gen_len = n;
  return o;
}

static llama_status generate(llama_generate_options o) {
  int32_t prompt[4];
  size_t len = 4;
  llama_result_t *r = NULL;
  llama_error err;
  llama_status status;
  err.struct_size = sizeof err;
  fill_prompt(prompt, len);
  status = llama_generate(l, prompt, &len, 1, &o, &r, &err);
  if (status == LLAMA_E_NO_MEMORY) CHECK(strstr(err.message, "a text in a grammar") != NULL);
  llama_result_free(r);
  return status;
}

/* Copies its places, for beams, on the engine's thread. */
static llama_status search(uint32_t n) {
  llama_generate_options o = in_language(n);
  o.temperature = 0;
  o.num_beams = 2;
  return generate(o);
}

static int32_t unchanged(void *user_data, const llama_logits *row) {
  (void)user_data, (void)row;
  return 1;
}

/* The limit comes while a text is in the middle: the sequence waits for the reader, who answers a
 * question at each token, so nobody needs memory when it is gone. */
static void limited_on_the_way(size_t bytes) {
  llama_generate_options o = in_language(LONG);
  llama_stream_t *s = NULL;
  llama_event ev;
  llama_error err;
  llama_status status = LLAMA_OK;
  int32_t prompt[4];
  size_t len = 4, i;
  err.struct_size = sizeof err;
  ev.struct_size = sizeof ev;
  o.on_logits = unchanged;
  fill_prompt(prompt, len);
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  for (i = 0; i < 20; i++) EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  sleep_ms(200); /* the next question is there, and the last look at the memory is long ago */
  allow(bytes);
  for (i = 0; i < LONG && status == LLAMA_OK; i++) status = llama_stream_next(s, &ev, -1, &err);
  allow(0);
  CHECK(status == LLAMA_E_NO_MEMORY);
  llama_stream_free(s);
}

int main(int argc, char **argv) {
  static const size_t enough = 300;
  static const size_t rooms[] = {1, 4, 16, 48};
  llama_build_options b = build_defaults();
  size_t i;
  if (argc < 2) return 2;
  /* All threads take from one heap: one of its own would have 64 MiB, which no limit takes back. */
  CHECK(mallopt(M_ARENA_MAX, 1) == 1);
  b.device = LLAMA_DEVICE_CPU;
  b.n_threads = 1;
  b.max_seq_len = 1024;
  b.max_batch_size = 2;
  EXPECT(LLAMA_OK, llama_build(argv[1], NULL, &b, &l, err));
  /* Its lexer finds new states as long as the text goes on. */
  EXPECT(LLAMA_OK,
      llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, "(.*[aeiou].{30}[xyz].*){3}", SIZE_MAX, &g, err));
  /* The thread of masks, and what a call takes without a limit. */
  CHECK(generate(in_language(4)) == LLAMA_OK);
  CHECK(search(4) == LLAMA_OK);
  for (i = 0; i < sizeof rooms / sizeof *rooms; i++) {
    allow(rooms[i] * MIB);
    CHECK(generate(in_language(LONG)) == LLAMA_E_NO_MEMORY);
    CHECK(search(LONG) == LLAMA_E_NO_MEMORY);
    allow(0);
    limited_on_the_way(rooms[i] * MIB);
    /* and the handle goes on */
    CHECK(generate(in_language(8)) == LLAMA_OK);
  }
  allow(enough * MIB);
  CHECK(generate(in_language(LONG)) == LLAMA_OK);
  allow(0);
  CHECK(search(8) == LLAMA_OK);
  llama_grammar_free(g);
  llama_free(l);
  return summary("grammar_memory");
}
