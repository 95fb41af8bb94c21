/* What a draft model is worth with real weights, on the CPU:
 *
 *   cc -O2 benches/draft.c -Iinclude -Ltarget/release -lllamabi -Wl,-rpath,$PWD/target/release \
 *     -o build/bench-draft
 *   build/bench-draft MODEL DRAFT [DRAFT_DTYPE [ROUNDS]]      dtypes by their numbers; 0: as stored
 *
 * Texts are generated with and without it in turns, greedy and at temperature 1, and must be the
 * same. Prints medians of tokens/s, and how many guesses were right.
 */
#include <llamabi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GENERATED = 160, MOST = 99 };

static const char *const prompts[] = {
    "The history of bread begins in",
    "A letter to a friend about the sea:\n\nDear Anna,\n",
    "def quicksort(values):\n",
    "The three most important inventions are",
};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *of, int n) {
  qsort(of, (size_t)n, sizeof *of, compare);
  return of[n / 2];
}

static void or_die(llama_status status, const llama_error *err) {
  if (status == LLAMA_OK) return;
  fprintf(stderr, "bench-draft: %s\n", err->message);
  exit(1);
}

/* Tokens/s of one text at a time behind its first token; the texts go to `all`. */
static double run(llama_t *l, int32_t speculation, float temperature, char *all, unsigned *drafted,
    unsigned *right) {
  double ms = 0, tokens = 0;
  int i;
  *all = 0;
  *drafted = *right = 0;
  for (i = 0; i < PROMPTS; i++) {
    size_t len = strlen(prompts[i]), n;
    llama_generate_options g;
    llama_request_stats stats;
    llama_result_t *r;
    llama_error err;
    const char *text;
    err.struct_size = sizeof err;
    stats.struct_size = sizeof stats;
    llama_generate_options_init(&g, sizeof g);
    g.max_gen_len = GENERATED;
    g.temperature = temperature;
    g.seed = 7;
    g.flags = LLAMA_GEN_IGNORE_EOS;
    g.speculation = speculation;
    or_die(llama_text_completion(l, &prompts[i], &len, 1, &g, &r, &err), &err);
    llama_result_stats(r, 0, &stats);
    ms += stats.total_ms - stats.first_token_ms;
    tokens += stats.generated_tokens - 1;
    *drafted += stats.drafted_tokens;
    *right += stats.accepted_tokens;
    or_die(llama_result_text(r, 0, &text, &n), &err);
    strncat(all, text, n);
    llama_result_free(r);
  }
  return tokens * 1e3 / ms;
}

int main(int argc, char **argv) {
  static char texts[2][PROMPTS * GENERATED * 64];
  const float temperatures[] = {0, 1};
  int rounds = argc > 4 ? atoi(argv[4]) : 5, i, t;
  llama_build_options o;
  llama_error err;
  llama_t *l;
  if (argc < 3 || rounds < 1 || rounds > MOST) return 2;
  err.struct_size = sizeof err;
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  o.device = LLAMA_DEVICE_CPU;
  o.max_batch_size = 1;
  o.draft_dir = argv[2];
  if (argc > 3) o.draft_weights_dtype = atoi(argv[3]);
  or_die(llama_build(argv[1], NULL, &o, &l, &err), &err);
  for (t = 0; t < 2; t++) {
    double rates[2][MOST];
    unsigned drafted = 0, right = 0, none;
    for (i = -1; i < rounds; i++) { /* the first one warms up */
      int at = i < 0 ? 0 : i;
      rates[0][at] = run(l, LLAMA_SPEC_OFF, temperatures[t], texts[0], &none, &none);
      rates[1][at] = run(l, LLAMA_SPEC_DRAFT, temperatures[t], texts[1], &drafted, &right);
      if (strcmp(texts[0], texts[1]) != 0) {
        fprintf(stderr, "bench-draft: other texts with the draft model\n");
        return 1;
      }
    }
    printf("temperature %g: %.1f tokens/s without, %.1f with: %.2f x; %u of %u guesses right\n",
        (double)temperatures[t], median(rates[0], rounds), median(rates[1], rounds),
        rates[1][rounds / 2] / rates[0][rounds / 2], right, drafted);
  }
  llama_free(l);
  return 0;
}
