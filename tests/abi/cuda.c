/* One handle on the given device, as a host sees it: `cuda MODEL_DIR DEVICE [option=value]...`. It
   prints a line for each thing that happens; tests/abi/cuda.rs reads these lines. If a stand-in
   driver is in the library path, it says whether it was opened, and reports misuses. */
#include "abi.h"

#include <dlfcn.h>

static void log_line(void *user_data, int32_t level, const char *msg, size_t len) {
  (void)user_data;
  (void)len;
  printf("log %d: %s\n", (int)level, msg);
}

static void *driver(void) { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }

static void generate(llama_t *l) {
  static const size_t n_tokens[] = {3, 11, 7};
  int32_t tokens[21];
  llama_generate_options o = generate_defaults();
  llama_result_t *result = NULL;
  llama_error err;
  llama_status status;
  size_t i, j;
  err.struct_size = sizeof err;
  for (i = 0; i < 21; i++)
    tokens[i] = (int32_t)(i == 0 || i == 3 || i == 14 ? 1 : 3 + i * i * 37 % 500);
  o.temperature = 0;
  o.max_gen_len = 12;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  status = llama_generate(l, tokens, n_tokens, 3, &o, &result, &err);
  printf("generate: %d %s\n", (int)status, err.message);
  for (i = 0; status == LLAMA_OK && i < 3; i++) {
    size_t n = 0;
    const int32_t *got = NULL;
    if (llama_result_tokens(result, i, &got, &n) != LLAMA_OK) n = 0;
    printf("tokens:");
    for (j = 0; j < n; j++) printf(" %d", (int)got[j]);
    printf("\n");
  }
  llama_result_free(result);
}

int main(int argc, char **argv) {
  llama_build_options o = build_defaults();
  llama_error err;
  llama_info info;
  llama_t *l = NULL;
  llama_status status;
  const char *late = NULL;
  int i;
  void *handle;
  if (argc < 3) return 2;
  o.device = atoi(argv[2]);
  o.max_seq_len = 64;
  o.max_batch_size = 4;
  o.n_threads = 1;
  o.log = log_line;
  for (i = 3; i < argc; i++) {
    const char *value = strchr(argv[i], '=');
    if (value == NULL) return 2;
    value++;
    if (strncmp(argv[i], "index=", 6) == 0)
      o.device_index = atoi(value);
    else if (strncmp(argv[i], "weights=", 8) == 0)
      o.weights_dtype = atoi(value);
    else if (strncmp(argv[i], "memory=", 7) == 0)
      o.gpu_memory_bytes = strtoull(value, NULL, 10);
    else if (strncmp(argv[i], "late=", 5) == 0)
      late = value;
    else
      return 2;
  }
  err.struct_size = sizeof err;
  status = llama_build(argv[1], NULL, &o, &l, &err);
  printf("build: %d %s\n", (int)status, err.message);
  if (status == LLAMA_OK) {
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    llama_get_info(l, &info, &err);
    printf("device: %d %s\n", (int)info.device, info.device_name);
    generate(l);
    if (late != NULL) {
      /* The device breaks, and another handle still works. */
      void (*set)(const char *);
      llama_build_options cpu = build_defaults();
      *(void **)&set = dlsym(driver(), "emu_cuda_set");
      set(late);
      generate(l);
      generate(l);
      cpu.device = LLAMA_DEVICE_CPU;
      cpu.n_threads = 1;
      cpu.max_seq_len = 64;
      cpu.max_batch_size = 4;
      llama_free(l);
      if (llama_build(argv[1], NULL, &cpu, &l, &err) != LLAMA_OK) return 1;
      generate(l);
    }
    llama_free(l);
  }
  handle = driver();
  if (handle == NULL) {
    printf("driver: not opened\n");
  } else {
    unsigned (*report)(char *, size_t);
    char text[1024] = "";
    unsigned left;
    *(void **)&report = dlsym(handle, "emu_cuda_report");
    left = report == NULL ? 0 : report(text, sizeof text);
    printf("driver: %u %s\n", left, text);
  }
  return 0;
}
