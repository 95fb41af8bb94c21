/* Quantising while loading, with less memory than it takes: LLAMA_E_NO_MEMORY, never the end of the
   process. */
#include "abi.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const size_t MIB = 1 << 20;
static char header[4096];
static size_t header_len, data_len;

static void tensor(const char *name, size_t rows, size_t cols) {
  size_t len = 4 * rows * (cols == 0 ? 1 : cols);
  char shape[64];
  snprintf(shape, sizeof shape, cols == 0 ? "%zu" : "%zu,%zu", rows, cols);
  header_len += (size_t)snprintf(header + header_len, sizeof header - header_len,
      "%c\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
      header_len == 0 ? '{' : ',', name, shape, data_len, data_len + len);
  data_len += len;
}

/* One layer of zeros, whose slabs are as large as slabs get. The file has holes, so it takes no
   room. */
static void write_checkpoint(const char *dir) {
  const size_t dim = 1024, ffn = 2816, vocab = 512;
  char path[4096], name[64];
  const char *square[] = {"q", "k", "v", "o"};
  unsigned char len[8];
  size_t i;
  FILE *f;
  CHECK(mkdir(dir, 0755) == 0);
  snprintf(path, sizeof path, "%s/config.json", dir);
  f = fopen(path, "w");
  CHECK(f != NULL);
  fprintf(f,
      "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%zu,"
      "\"intermediate_size\":%zu,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,\"vocab_size\":%zu,\"hidden_act\":\"silu\","
      "\"tie_word_embeddings\":false,\"max_position_embeddings\":512}",
      dim, ffn, vocab);
  CHECK(fclose(f) == 0);
  tensor("model.embed_tokens", vocab, dim);
  for (i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "model.layers.0.self_attn.%s_proj", square[i]);
    tensor(name, dim, dim);
  }
  tensor("model.layers.0.mlp.gate_proj", ffn, dim);
  tensor("model.layers.0.mlp.up_proj", ffn, dim);
  tensor("model.layers.0.mlp.down_proj", dim, ffn);
  tensor("model.layers.0.input_layernorm", dim, 0);
  tensor("model.layers.0.post_attention_layernorm", dim, 0);
  tensor("model.norm", dim, 0);
  tensor("lm_head", vocab, dim);
  header[header_len++] = '}';
  for (i = 0; i < 8; i++) len[i] = (unsigned char)(header_len >> 8 * i);
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  f = fopen(path, "w");
  CHECK(f != NULL && fwrite(len, 1, 8, f) == 8 && fwrite(header, 1, header_len, f) == header_len);
  CHECK(fflush(f) == 0 && ftruncate(fileno(f), (off_t)(8 + header_len + data_len)) == 0);
  CHECK(fclose(f) == 0);
}

/* Its exit status, or 128 and the signal that ended it. */
static int build(const char *dir, const char *tokenizer, int32_t dtype, size_t extra) {
  int status = 0;
  pid_t child;
  fflush(NULL);
  child = fork();
  if (child == 0) {
    struct rlimit limit;
    size_t pages = 0;
    llama_error err;
    llama_t *l = NULL;
    llama_build_options o = build_defaults();
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%zu", &pages) != 1) _exit(3);
    fclose(f);
    err.struct_size = sizeof err;
    o.device = LLAMA_DEVICE_CPU;
    o.n_threads = 1;
    o.max_seq_len = 64;
    o.max_batch_size = 1;
    o.weights_dtype = dtype;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + extra;
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    switch (llama_build(dir, tokenizer, &o, &l, &err)) {
    case LLAMA_OK:
      llama_free(l);
      _exit(0);
    case LLAMA_E_DEVICE: /* no thread */
    case LLAMA_E_NO_MEMORY:
      _exit(1);
    default:
      fprintf(stderr, "%s\n", err.message);
      _exit(2);
    }
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
  char dir[] = "/tmp/llamabi-quantise-XXXXXX", checkpoint[64], path[128], tokenizer[4096];
  int32_t dtype;
  CHECK(mkdtemp(dir) != NULL);
  snprintf(checkpoint, sizeof checkpoint, "%s/it", dir);
  snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.model", argc > 1 ? argv[1] : "");
  write_checkpoint(checkpoint);
  for (dtype = LLAMA_DTYPE_INT8; dtype <= LLAMA_DTYPE_NF4; dtype++) {
    size_t extra;
    int refused = 0, built = 0;
    for (extra = 8 * MIB; extra <= 40 * MIB; extra += MIB) {
      int got = build(checkpoint, tokenizer, dtype, extra);
      if (got > 1) fprintf(stderr, "weights_dtype %d with %zu KiB: %d\n", dtype, extra >> 10, got);
      CHECK(got == 0 || got == 1);
      refused += got == 1;
      built += got == 0;
    }
    CHECK(refused > 3 && built > 3);
  }
  snprintf(path, sizeof path, "%s/config.json", checkpoint);
  remove(path);
  snprintf(path, sizeof path, "%s/model.safetensors", checkpoint);
  remove(path);
  remove(checkpoint);
  remove(dir);
  return summary("quantise");
}
