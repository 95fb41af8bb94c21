/* Two copies of the library in one process: what one gives out means nothing to the other.
 * `copies MODEL_DIR` with the library's path in LLAMABI_SO. */
#include "abi.h"

#include <dlfcn.h>

#define OBJECTS 200

typedef struct {
  llama_status (*build)(
      const char *, const char *, const llama_build_options *, llama_t **, llama_error *);
  void (*destroy)(llama_t *);
  llama_status (*get_info)(const llama_t *, llama_info *, llama_error *);
  llama_status (*generate)(llama_t *, const int32_t *, const size_t *, size_t,
      const llama_generate_options *, llama_result_t **, llama_error *);
  size_t (*result_count)(const llama_result_t *);
  void (*result_free)(llama_result_t *);
  llama_cancel_t *(*cancel_new)(void);
  void (*cancel_trigger)(llama_cancel_t *);
  void (*cancel_free)(llama_cancel_t *);
  llama_t *l;
  llama_result_t *results[OBJECTS];
  llama_cancel_t *flags[OBJECTS];
} copy;

/* dlopen knows a file by its inode, so each copy is a file of its own. */
static void *load(const char *path, const char *dir) {
  char name[4096], command[3 * 4096];
  void *library;
  int fd;
  snprintf(name, sizeof name, "%s/libllamabi-XXXXXX", dir);
  fd = mkstemp(name);
  CHECK(fd >= 0 && close(fd) == 0);
  snprintf(command, sizeof command, "cp '%s' '%s'", path, name);
  CHECK(system(command) == 0);
  library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  unlink(name);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return library;
}

static void open_copy(copy *a, const char *path, const char *dir, const char *model) {
  llama_build_options o = build_defaults();
  llama_generate_options g = generate_defaults();
  static const int32_t prompt[] = {1, 5, 6};
  static const size_t len = 3;
  void *symbol, *library = load(path, dir);
  int i;
#define SYMBOL(name)                                                                               \
  symbol = dlsym(library, "llama_" #name);                                                         \
  CHECK(symbol != NULL);                                                                           \
  memcpy(&a->name, &symbol, sizeof symbol)
  SYMBOL(build);
  SYMBOL(destroy);
  SYMBOL(get_info);
  SYMBOL(generate);
  SYMBOL(result_count);
  SYMBOL(result_free);
  SYMBOL(cancel_new);
  SYMBOL(cancel_trigger);
  SYMBOL(cancel_free);
  o.device = LLAMA_DEVICE_CPU;
  o.n_threads = 1;
  g.max_gen_len = 1;
  EXPECT(LLAMA_OK, a->build(model, NULL, &o, &a->l, err));
  for (i = 0; i < OBJECTS; i++) {
    EXPECT(LLAMA_OK, a->generate(a->l, prompt, &len, 1, &g, &a->results[i], err));
    a->flags[i] = a->cancel_new();
    CHECK(a->flags[i] != NULL);
  }
}

/* Everything of `a`, given to `b`. */
static void misuse(const copy *a, const copy *b) {
  llama_generate_options g = generate_defaults();
  llama_result_t *r = NULL;
  llama_info info;
  static const int32_t prompt[] = {1, 5, 6};
  static const size_t len = 3;
  int i;
  info.struct_size = sizeof info;
  EXPECT(LLAMA_E_INVALID_ARGUMENT, b->get_info(a->l, &info, err));
  b->destroy(a->l);
  for (i = 0; i < OBJECTS; i++) {
    CHECK(b->result_count(a->results[i]) == 0);
    b->result_free(a->results[i]);
    g.cancel = a->flags[i];
    EXPECT(LLAMA_E_INVALID_ARGUMENT, b->generate(b->l, prompt, &len, 1, &g, &r, err));
    b->cancel_trigger(a->flags[i]);
    b->cancel_free(a->flags[i]);
  }
}

static void still_whole(const copy *a) {
  llama_generate_options g = generate_defaults();
  static const int32_t prompt[] = {1, 5, 6};
  static const size_t len = 3;
  llama_info info;
  int i;
  info.struct_size = sizeof info;
  g.max_gen_len = 1;
  EXPECT(LLAMA_OK, a->get_info(a->l, &info, err));
  for (i = 0; i < OBJECTS; i++) {
    llama_result_t *r = NULL;
    CHECK(a->result_count(a->results[i]) == 1);
    /* neither freed nor triggered */
    g.cancel = a->flags[i];
    EXPECT(LLAMA_OK, a->generate(a->l, prompt, &len, 1, &g, &r, err));
    a->result_free(r);
    a->result_free(a->results[i]);
    a->cancel_free(a->flags[i]);
  }
  a->destroy(a->l);
}

int main(int argc, char **argv) {
  static copy a, b;
  const char *path = getenv("LLAMABI_SO"), *dir = getenv("TMPDIR");
  if (argc < 2 || path == NULL) return 2;
  if (dir == NULL) dir = "/tmp";
  open_copy(&a, path, dir, argv[1]);
  open_copy(&b, path, dir, argv[1]);
  CHECK(a.build != b.build);
  misuse(&a, &b);
  misuse(&b, &a);
  still_whole(&a);
  still_whole(&b);
  return summary("copies");
}
