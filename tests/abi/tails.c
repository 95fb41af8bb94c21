/* Callers with older (shorter) and newer (longer) structs; nothing beyond struct_size is touched.
 */
#include "abi.h"

static union {
  unsigned char bytes[8192];
  llama_error error;
  llama_build_options build;
  llama_generate_options generate;
  llama_event event;
  llama_info info;
  llama_timings timings;
  llama_rank rank;
  llama_request_stats stats;
} box;

static void clear(uint32_t struct_size) {
  memset(&box, 0xAA, sizeof box);
  memcpy(&box, &struct_size, 4);
}

static int untouched_from(size_t at) {
  while (at < sizeof box && box.bytes[at] == 0xAA) at++;
  return at == sizeof box;
}

static int zero_between(size_t from, size_t to) {
  while (from < to && box.bytes[from] == 0) from++;
  return from >= to;
}

static void errors(void) {
  uint32_t size;
  llama_t *l;
  for (size = 0; size <= 1100; size++) {
    clear(size);
    CHECK(llama_build(NULL, NULL, NULL, &l, &box.error) == LLAMA_E_INVALID_ARGUMENT);
    CHECK(untouched_from(size < 9 ? 4 : size));
    if (size >= 9) {
      CHECK(box.error.struct_size == size && box.error.status == LLAMA_E_INVALID_ARGUMENT);
      CHECK(memchr(box.error.message, 0, size - 8) != NULL);
      CHECK(strncmp(box.error.message, "ckpt_dir is NULL", strlen(box.error.message)) == 0);
    }
  }
  for (size = 4097; size > 4000; size = size == 4097 ? UINT32_MAX : 0) {
    clear(size);
    l = FOREIGN;
    CHECK(llama_build(NULL, NULL, NULL, &l, &box.error) == LLAMA_E_ABI);
    CHECK(untouched_from(4));
  }
  /* cut between code points: the path is quoted in the message */
  for (size = 9; size < 40; size++) {
    size_t n;
    clear(size);
    CHECK(llama_build("/\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80/", NULL, NULL, &l, &box.error) ==
          LLAMA_E_IO);
    n = strlen(box.error.message);
    if (n == 2 || n == 4 || n == 5 || n == 7 || n == 8 || n == 9) CHECK(!"half a code point");
    CHECK(untouched_from(size));
  }
}

static void options(void) {
  uint32_t size;
  llama_t *l;
  for (size = 0; size <= 4200; size += size < 200 ? 1 : 97) {
    memset(&box, 0xAA, sizeof box);
    llama_build_options_init(&box.build, size, 7);
    if (size > 4096) {
      CHECK(untouched_from(0));
      continue;
    }
    CHECK(untouched_from(size));
    CHECK(zero_between(sizeof box.build, size));
    if (size >= 8) CHECK(box.build.struct_size == size && box.build.abi_version == 7);
    if (size >= 12) CHECK(box.build.max_seq_len == 512);
    if (size >= 48) CHECK(box.build.seed == 1 && box.build.max_batch_size == 8);
    EXPECT(LLAMA_E_ABI, llama_build("/nonexistent", NULL, &box.build, &l, err));

    memset(&box, 0xAA, sizeof box);
    llama_build_options_init(&box.build, size, LLAMABI_ABI_VERSION);
    EXPECT(size < 8 ? LLAMA_E_ABI : LLAMA_E_IO,
        llama_build("/nonexistent", NULL, &box.build, &l, err));
    if (size > sizeof box.build) {
      box.bytes[size - 1] = 1;
      EXPECT(LLAMA_E_ABI, llama_build("/nonexistent", NULL, &box.build, &l, err));
    }

    memset(&box, 0xAA, sizeof box);
    llama_generate_options_init(&box.generate, size);
    CHECK(untouched_from(size));
    CHECK(zero_between(sizeof box.generate, size));
    if (size >= 24) {
      CHECK(box.generate.struct_size == size && box.generate.flags == 0);
      CHECK(box.generate.max_gen_len == LLAMABI_MAX_GEN_LEN_DEFAULT);
      CHECK(box.generate.temperature == 0.6f && box.generate.top_p == 0.9f);
    }
    if (size >= 88) {
      CHECK(box.generate.top_k == 0 && box.generate.min_p == 0 && box.generate.seed == 0);
      CHECK(box.generate.repetition_penalty == 1 && box.generate.stop == NULL);
      CHECK(box.generate.n_stop == 0 && box.generate.cancel == NULL);
      CHECK(box.generate.on_event == NULL && box.generate.top_logprobs == 0);
    }
    if (size >= 96) CHECK(box.generate.cache_salt == 0);
    if (size >= 100) CHECK(box.generate.num_return_sequences == 0);
    if (size >= 112) CHECK(box.generate.grammar == NULL);
    if (size >= 216) CHECK(box.generate.on_logits == NULL);
    if (size >= 224) CHECK(box.generate.on_stop == NULL);
  }
}

static void with_model(const char *dir) {
  llama_t *l = open_model(dir, 64, 2);
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL, *whole = NULL;
  llama_stream_t *s = NULL;
  int32_t tokens[4];
  size_t len = 4, size, n, n_whole;
  const int32_t *a, *b;
  fill_prompt(tokens, 4);

  /* An older caller's options mean the defaults for what it does not have. */
  o.max_gen_len = 5;
  o.temperature = 0;
  EXPECT(LLAMA_OK, llama_generate(l, tokens, &len, 1, &o, &whole, err));
  CHECK(llama_result_tokens(whole, 0, &b, &n_whole) == LLAMA_OK);
  for (size = 16; size <= 4096; size += size < 100 ? 4 : 499) {
    memset(&box, 0xAA, sizeof box);
    llama_generate_options_init(&box.generate, size);
    box.generate.max_gen_len = 5;
    box.generate.temperature = 0;
    EXPECT(LLAMA_OK, llama_generate(l, tokens, &len, 1, &box.generate, &r, err));
    CHECK(llama_result_tokens(r, 0, &a, &n) == LLAMA_OK);
    CHECK(n == n_whole && memcmp(a, b, n * sizeof *a) == 0);
    llama_result_free(r);
    if (size > sizeof box.generate) {
      box.bytes[size - 1] = 1;
      EXPECT(LLAMA_E_ABI, llama_generate(l, tokens, &len, 1, &box.generate, &r, err));
    }
  }

  for (size = 8; size <= 400; size++) {
    clear((uint32_t)size);
    EXPECT(LLAMA_OK, llama_get_info(l, &box.info, err));
    CHECK(untouched_from(size) && zero_between(sizeof box.info, size));
    CHECK(box.info.struct_size == size && box.info.vocab_size > 0);
    clear((uint32_t)size);
    EXPECT(LLAMA_OK, llama_get_timings(l, &box.timings, err));
    CHECK(untouched_from(size) && zero_between(sizeof box.timings, size));
    CHECK(box.timings.struct_size == size && box.timings.running == 0);
    clear((uint32_t)size);
    EXPECT(LLAMA_OK, llama_get_rank(l, 0, &box.rank, err));
    CHECK(untouched_from(size) && zero_between(sizeof box.rank, size));
    CHECK(box.rank.struct_size == size && box.rank.rank == 0);
    clear((uint32_t)size);
    CHECK(llama_result_stats(whole, 0, &box.stats) == LLAMA_OK);
    CHECK(untouched_from(size) && zero_between(sizeof box.stats, size));
    CHECK(box.stats.struct_size == size && box.stats.prompt_tokens == 4);
  }
  for (size = 0; size < 8; size++) {
    clear((uint32_t)size);
    EXPECT(LLAMA_E_ABI, llama_get_info(l, &box.info, err));
    EXPECT(LLAMA_E_ABI, llama_get_timings(l, &box.timings, err));
    EXPECT(LLAMA_E_ABI, llama_get_rank(l, 0, &box.rank, err));
    CHECK(llama_result_stats(whole, 0, &box.stats) == LLAMA_E_ABI);
    CHECK(untouched_from(4));
  }

  o.max_gen_len = 60;
  EXPECT(LLAMA_OK, llama_stream_open(l, tokens, &len, 1, &o, &s, err));
  for (size = 8;; size++) {
    llama_status status;
    clear((uint32_t)size);
    status = llama_stream_next(s, &box.event, -1, NULL);
    if (status == LLAMA_DONE) {
      CHECK(untouched_from(4));
      break;
    }
    CHECK(status == LLAMA_OK);
    CHECK(untouched_from(size) && zero_between(sizeof box.event, size));
    CHECK(box.event.struct_size == size);
    CHECK(box.event.kind == LLAMA_EVENT_TOKEN || box.event.kind == LLAMA_EVENT_FINISH);
  }
  llama_stream_free(s);
  llama_result_free(whole);
  llama_free(l);
}

int main(int argc, char **argv) {
  errors();
  options();
  if (argc > 1) with_model(argv[1]);
  return summary("tails");
}
