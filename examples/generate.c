/* Continue a prompt and print the text as it comes.
 *
 *   make examples
 *   build/generate --ckpt_dir DIR --prompt "Once upon a time"
 */
#include <llamabi.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: generate --ckpt_dir DIR --prompt TEXT [option value]...\n"
    "\n"
    "  --ckpt_dir DIR            Meta's form (params.json, consolidated.*.pth) or Hugging Face's\n"
    "                            (config.json, *.safetensors)\n"
    "  --tokenizer_path FILE     default: DIR/tokenizer.model\n"
    "  --prompt TEXT             what to continue\n"
    "  --temperature T           0: always the most likely token (0.6)\n"
    "  --top_p P                 nucleus; 1: off (0.9)\n"
    "  --top_k K                 keep the K most likely tokens; 0: off (0)\n"
    "  --min_p P                 keep tokens at least P times as likely as the best; 0: off (0)\n"
    "  --repetition_penalty R    1: off (1)\n"
    "  --seed N                  same seed, same text; 0: the model's own sequence (0)\n"
    "  --max_gen_len N           most tokens to generate (as many as there is room for)\n"
    "  --max_seq_len N           room for prompt and answer, in tokens (512)\n"
    "  --stop TEXT               stop before this text; may be given again\n"
    "  --threads N               0: as many as this process may use (0)\n"
    "  --device D                auto, cpu or cuda (auto)\n"
    "  --weights_dtype T         auto, f32, f16 or bf16 (auto: as stored)\n"
    "  --kv_dtype T              the same, of the KV cache\n"
    "  --verbose 1               what was loaded and chosen\n"
    "\n"
    "Ctrl-C stops the generation; what there is by then stays.\n";

static llama_cancel_t *cancel;

static void on_interrupt(int number) {
  llama_cancel_trigger(cancel); /* may be called from a signal handler */
  signal(number, SIG_DFL);      /* the second one kills */
}

static void on_log(void *user_data, int32_t level, const char *msg, size_t len) {
  (void)user_data;
  (void)level;
  fprintf(stderr, "%.*s\n", (int)len, msg);
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data;
  fwrite(ev->text, 1, ev->text_len, stdout);
  return fflush(stdout) == 0; /* 0 stops: nobody reads any more */
}

static void fail(const char *name, const char *value, const char *expected) {
  fprintf(stderr, "generate: --%s is \"%s\", must be %s (--help lists the options)\n", name, value,
          expected);
  exit(2);
}

static unsigned long long number(const char *name, const char *value, unsigned long long max) {
  char *end;
  unsigned long long n;
  errno = 0;
  n = strtoull(value, &end, 10);
  if (end == value || *end != 0 || errno != 0 || n > max || strchr(value, '-') != NULL)
    fail(name, value, "a whole number in range");
  return n;
}

static float real(const char *name, const char *value) {
  char *end;
  double x = strtod(value, &end);
  if (end == value || *end != 0) fail(name, value, "a number");
  return (float)x;
}

/* The place of `value` in a list that is numbered from 0 like the header's constants. */
static int32_t choice(const char *name, const char *value, const char *const *list) {
  int32_t i;
  for (i = 0; list[i] != NULL; i++)
    if (strcmp(value, list[i]) == 0) return i;
  fail(name, value, "one of those --help lists");
  return 0;
}

int main(int argc, char **argv) {
  static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
  static const char *const dtypes[] = {"auto", "f32", "f16", "bf16", NULL};
  const char *ckpt_dir = NULL, *tokenizer_path = NULL, *prompt = NULL, *stop[16];
  llama_build_options build;
  llama_generate_options options;
  llama_error err;
  llama_t *model;
  llama_result_t *result;
  llama_request_stats stats;
  llama_status status;
  int i;

  err.struct_size = sizeof err;
  llama_build_options_init(&build, sizeof build, LLAMABI_ABI_VERSION);
  llama_generate_options_init(&options, sizeof options);
  options.stop = stop;

  for (i = 1; i < argc; i += 2) {
    const char *name = argv[i], *value;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
      fputs(usage, stdout);
      return 0;
    }
    if (strncmp(name, "--", 2) != 0 || i + 1 == argc) {
      fprintf(stderr, "generate: %s %s\n\n%s", name,
              i + 1 == argc ? "has no value" : "is not an option", usage);
      return 2;
    }
    name += 2;
    value = argv[i + 1];
    if (strcmp(name, "ckpt_dir") == 0) ckpt_dir = value;
    else if (strcmp(name, "tokenizer_path") == 0) tokenizer_path = value;
    else if (strcmp(name, "prompt") == 0) prompt = value;
    else if (strcmp(name, "temperature") == 0) options.temperature = real(name, value);
    else if (strcmp(name, "top_p") == 0) options.top_p = real(name, value);
    else if (strcmp(name, "top_k") == 0) options.top_k = (int32_t)number(name, value, INT32_MAX);
    else if (strcmp(name, "min_p") == 0) options.min_p = real(name, value);
    else if (strcmp(name, "repetition_penalty") == 0) options.repetition_penalty = real(name, value);
    else if (strcmp(name, "seed") == 0) options.seed = number(name, value, UINT64_MAX);
    else if (strcmp(name, "max_gen_len") == 0)
      options.max_gen_len = (uint32_t)number(name, value, UINT32_MAX);
    else if (strcmp(name, "max_seq_len") == 0)
      build.max_seq_len = (uint32_t)number(name, value, UINT32_MAX);
    else if (strcmp(name, "threads") == 0) build.n_threads = (uint32_t)number(name, value, UINT32_MAX);
    else if (strcmp(name, "device") == 0) build.device = choice(name, value, devices);
    else if (strcmp(name, "weights_dtype") == 0) build.weights_dtype = choice(name, value, dtypes);
    else if (strcmp(name, "kv_dtype") == 0) build.kv_dtype = choice(name, value, dtypes);
    else if (strcmp(name, "verbose") == 0) {
      if (number(name, value, 1) == 1) build.log = on_log;
    } else if (strcmp(name, "stop") == 0) {
      if (options.n_stop == sizeof stop / sizeof *stop) fail(name, value, "given at most 16 times");
      stop[options.n_stop++] = value;
    } else {
      fprintf(stderr, "generate: there is no option --%s\n\n%s", name, usage);
      return 2;
    }
  }
  if (ckpt_dir == NULL || prompt == NULL) {
    fprintf(stderr, "generate: --ckpt_dir and --prompt are needed\n\n%s", usage);
    return 2;
  }

  cancel = llama_cancel_new();
  signal(SIGINT, on_interrupt);
  build.cancel = cancel;
  build.max_batch_size = 1;
  status = llama_build(ckpt_dir, tokenizer_path, &build, &model, &err);
  if (status != LLAMA_OK) {
    fprintf(stderr, "generate: %s\n", err.message);
    return 1;
  }

  /* With the prompt echoed, prompt and answer are one text: an answer alone has lost its first space. */
  options.flags = LLAMA_GEN_ECHO;
  options.cancel = cancel;
  options.on_event = on_event;
  status = llama_text_completion(model, &prompt, NULL, 1, &options, &result, &err);
  if (status != LLAMA_OK && status != LLAMA_CANCELLED) {
    fprintf(stderr, "generate: %s\n", err.message);
    llama_free(model);
    return 1;
  }

  stats.struct_size = sizeof stats;
  llama_result_stats(result, 0, &stats);
  printf("\n\n%u prompt tokens, %u generated tokens%s, first token after %.1f ms", stats.prompt_tokens,
         stats.generated_tokens, status == LLAMA_CANCELLED ? " (stopped)" : "",
         stats.first_token_ms);
  if (stats.generated_tokens > 1 && stats.total_ms > stats.first_token_ms)
    printf(", then %.1f tokens/s",
           (stats.generated_tokens - 1) * 1e3 / (stats.total_ms - stats.first_token_ms));
  printf("\n");

  llama_result_free(result);
  llama_free(model);
  llama_cancel_free(cancel);
  return 0;
}
