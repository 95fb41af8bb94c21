/* dlopen and dlclose, over and over: `dl MODEL_DIR` with the library's path in LLAMABI_SO. */
#include "abi.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
  const char *path = getenv("LLAMABI_SO");
  int i;
  for (i = 0; i < 50; i++) {
    /* dlsym gives an object pointer; memcpy is how ISO C takes a function from it. */
    const char *(*version)(void);
    llama_status (*build)(
        const char *, const char *, const llama_build_options *, llama_t **, llama_error *);
    void (*destroy)(llama_t *);
    llama_cancel_t *(*cancel_new)(void);
    void (*cancel_free)(llama_cancel_t *);
    llama_t *l = NULL;
    void *symbol, *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
#define SYMBOL(variable, name)                                                                     \
  symbol = dlsym(library, name);                                                                   \
  CHECK(symbol != NULL);                                                                           \
  memcpy(&variable, &symbol, sizeof symbol)
    SYMBOL(version, "llama_version");
    SYMBOL(build, "llama_build");
    SYMBOL(destroy, "llama_destroy");
    SYMBOL(cancel_new, "llama_cancel_new");
    SYMBOL(cancel_free, "llama_cancel_free");
    CHECK(strcmp(version(), LLAMABI_VERSION) == 0);
    CHECK(build("/nonexistent", NULL, NULL, &l, NULL) == LLAMA_E_IO);
    cancel_free(cancel_new());
    if (argc > 1 && i % 5 == 0) {
      CHECK(build(argv[1], NULL, NULL, &l, NULL) == LLAMA_OK);
      destroy(l);
    }
    CHECK(dlclose(library) == 0);
  }
  return summary("dl");
}
