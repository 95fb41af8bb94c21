/* Command line options that the example programs share: one name, one value, nothing guessed. */
#include <llamabi.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMON_USAGE                                                                               \
  "  --ckpt_dir DIR            Meta's form (params.json, consolidated.*.pth), Hugging Face's\n"    \
  "                            (config.json, *.safetensors), or a .gguf file\n"                    \
  "  --tokenizer_path FILE     default: the checkpoint's own\n"                                    \
  "  --temperature T           0: always the most likely token (0.6)\n"                            \
  "  --top_p P                 nucleus; 1: off (0.9)\n"                                            \
  "  --top_k K                 keep the K most likely tokens; 0: off (0)\n"                        \
  "  --min_p P                 keep tokens at least P times as likely as the best; 0: off (0)\n"   \
  "  --repetition_penalty R    1: off (1)\n"                                                       \
  "  --seed N                  same seed, same text; 0: the model's own sequence (0)\n"            \
  "  --max_gen_len N           most tokens to generate (as many as there is room for)\n"           \
  "  --ranks NODES             NUMA nodes, as 0,1 (with --device cuda: GPUs): a rank with its\n"   \
  "                            share of the model on each\n"                                       \
  "  --threads N               of each rank; 0: as many as this process may use (0)\n"             \
  "  --device D                auto, cpu or cuda (auto)\n"                                         \
  "  --weights_dtype T         auto, f32, f16, bf16, int8, int4, nf4 or fp8 (auto: as stored)\n"   \
  "  --kv_dtype T              of the KV cache: auto, f32, f16, bf16, int8 or fp8\n"               \
  "  --draft_dir DIR           a smaller checkpoint with the same tokens, which guesses at them\n" \
  "  --medusa_dir DIR          Medusa heads of the checkpoint, which guess at tokens\n"            \
  "  --precision P             of the CPU's products: auto, full or fast (auto)\n"                 \
  "  --verbose 1               what was loaded and chosen; 2: every request\n"

struct options {
  const char *program;
  const char *usage;
  const char *ckpt_dir;
  const char *tokenizer_path;
  llama_build_options build;
  llama_generate_options generate;
};

static void on_log(void *user_data, int32_t level, const char *msg, size_t len) {
  (void)user_data;
  (void)level;
  fprintf(stderr, "%.*s\n", (int)len, msg);
}

static void options_init(struct options *o, const char *program, const char *usage) {
  o->program = program;
  o->usage = usage;
  o->ckpt_dir = o->tokenizer_path = NULL;
  llama_build_options_init(&o->build, sizeof o->build, LLAMABI_ABI_VERSION);
  llama_generate_options_init(&o->generate, sizeof o->generate);
  o->build.max_batch_size = 1;
}

static void fail(
    const struct options *o, const char *name, const char *value, const char *expected) {
  fprintf(stderr, "%s: --%s is \"%s\", must be %s (--help lists the options)\n", o->program, name,
      value, expected);
  exit(2);
}

static unsigned long long number(
    const struct options *o, const char *name, const char *value, unsigned long long max) {
  char *end;
  unsigned long long n;
  errno = 0;
  n = strtoull(value, &end, 10);
  if (end == value || *end != 0 || errno != 0 || n > max || strchr(value, '-') != NULL)
    fail(o, name, value, "a whole number in range");
  return n;
}

static float real(const struct options *o, const char *name, const char *value) {
  char *end;
  double x = strtod(value, &end);
  if (end == value || *end != 0) fail(o, name, value, "a number");
  return (float)x;
}

/* The place of `value` in a list that is numbered from 0 like the header's constants. */
static int32_t choice(
    const struct options *o, const char *name, const char *value, const char *const *list) {
  int32_t i;
  char expected[128] = "one of";
  for (i = 0; list[i] != NULL; i++) {
    if (strcmp(value, list[i]) == 0) return i;
    strcat(strcat(expected, " "), list[i]);
  }
  fail(o, name, value, expected);
  return 0;
}

/* Numbers with commas between them. */
static void read_ranks(struct options *o, const char *name, const char *value) {
  static int32_t nodes[64];
  const char *at = value;
  char *end;
  o->build.devices = nodes;
  o->build.n_devices = 0;
  do {
    long node = strtol(at, &end, 10);
    if (end == at || node < 0 || node > INT32_MAX || o->build.n_devices == 64)
      fail(o, name, value, "1 to 64 numbers with commas between them");
    nodes[o->build.n_devices++] = (int32_t)node;
    at = end + 1;
  } while (*end == ',');
  if (*end != '\0') fail(o, name, value, "1 to 64 numbers with commas between them");
}

/* Take over an option of COMMON_USAGE; 0 if it is none. */
static int common_option(struct options *o, const char *name, const char *value) {
  static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
  static const char *const dtypes[] = {
      "auto", "f32", "f16", "bf16", "int8", "int4", "nf4", "fp8", NULL};
  static const char *const precisions[] = {"auto", "full", "fast", NULL};
  if (strcmp(name, "ckpt_dir") == 0)
    o->ckpt_dir = value;
  else if (strcmp(name, "tokenizer_path") == 0)
    o->tokenizer_path = value;
  else if (strcmp(name, "temperature") == 0)
    o->generate.temperature = real(o, name, value);
  else if (strcmp(name, "top_p") == 0)
    o->generate.top_p = real(o, name, value);
  else if (strcmp(name, "top_k") == 0)
    o->generate.top_k = (int32_t)number(o, name, value, INT32_MAX);
  else if (strcmp(name, "min_p") == 0)
    o->generate.min_p = real(o, name, value);
  else if (strcmp(name, "repetition_penalty") == 0)
    o->generate.repetition_penalty = real(o, name, value);
  else if (strcmp(name, "seed") == 0)
    o->generate.seed = number(o, name, value, UINT64_MAX);
  else if (strcmp(name, "max_gen_len") == 0)
    o->generate.max_gen_len = (uint32_t)number(o, name, value, UINT32_MAX);
  else if (strcmp(name, "max_seq_len") == 0)
    o->build.max_seq_len = (uint32_t)number(o, name, value, UINT32_MAX);
  else if (strcmp(name, "ranks") == 0)
    read_ranks(o, name, value);
  else if (strcmp(name, "threads") == 0)
    o->build.n_threads = (uint32_t)number(o, name, value, UINT32_MAX);
  else if (strcmp(name, "device") == 0)
    o->build.device = choice(o, name, value, devices);
  else if (strcmp(name, "weights_dtype") == 0)
    o->build.weights_dtype = choice(o, name, value, dtypes);
  else if (strcmp(name, "kv_dtype") == 0)
    o->build.kv_dtype = choice(o, name, value, dtypes);
  else if (strcmp(name, "draft_dir") == 0) {
    o->build.draft_dir = value;
    o->generate.speculation = LLAMA_SPEC_AUTO;
  } else if (strcmp(name, "medusa_dir") == 0) {
    o->build.medusa_dir = value;
    o->generate.speculation = LLAMA_SPEC_AUTO;
  } else if (strcmp(name, "precision") == 0)
    o->build.precision = choice(o, name, value, precisions);
  else if (strcmp(name, "verbose") == 0) {
    unsigned long long level = number(o, name, value, 2);
    o->build.log = level > 0 ? on_log : NULL;
    o->build.log_level = level > 1 ? LLAMA_LOG_DEBUG : LLAMA_LOG_INFO;
  } else
    return 0;
  return 1;
}

/* Read the whole command line; `own` takes the options that are not common. */
static void read_options(struct options *o, int argc, char **argv,
    int (*own)(struct options *, const char *name, const char *value)) {
  int i;
  for (i = 1; i < argc; i += 2) {
    const char *name = argv[i];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
      fputs(o->usage, stdout);
      exit(0);
    }
    if (strncmp(name, "--", 2) != 0) {
      fprintf(stderr, "%s: \"%s\" is not an option\n\n%s", o->program, name, o->usage);
      exit(2);
    }
    if (i + 1 == argc) {
      fprintf(stderr, "%s: %s has no value, or is no option\n\n%s", o->program, name, o->usage);
      exit(2);
    }
    if (!common_option(o, name + 2, argv[i + 1]) && !own(o, name + 2, argv[i + 1])) {
      fprintf(stderr, "%s: there is no option %s\n\n%s", o->program, name, o->usage);
      exit(2);
    }
  }
  if (o->ckpt_dir == NULL) {
    fprintf(stderr, "%s: --ckpt_dir is needed\n\n%s", o->program, o->usage);
    exit(2);
  }
}
