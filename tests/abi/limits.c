/* Limits of the process are named where they bind, and a thread that cannot be started is
 * LLAMA_E_NO_MEMORY: the device has done nothing. */
#include "abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/resource.h>

static int threads_left = -1; /* -1: any number */

/* The library's threads are started here, as the program comes first in the search for symbols. */

int pthread_create(
    pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  void *symbol = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&real, &symbol, sizeof real);
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) threads_left--;
  return real(thread, attr, start, arg);
}

/* Builds with these options under a limit of so many bytes more than are in use now. */
static llama_status build_under(int resource, size_t field, size_t more, const char *dir,
    const llama_build_options *o, llama_error *err) {
  struct rlimit before, limit;
  llama_t *l = NULL;
  llama_status status;
  FILE *f = fopen("/proc/self/statm", "r");
  size_t pages[6] = {0}, i;
  CHECK(f != NULL);
  for (i = 0; i < 6; i++) CHECK(fscanf(f, "%zu", &pages[i]) == 1);
  fclose(f);
  CHECK(getrlimit(resource, &before) == 0);
  limit = before;
  limit.rlim_cur = pages[field] * (size_t)sysconf(_SC_PAGESIZE) + more;
  CHECK(setrlimit(resource, &limit) == 0);
  memset(err, 0, sizeof *err);
  err->struct_size = sizeof *err;
  status = llama_build(dir, NULL, o, &l, err);
  CHECK(setrlimit(resource, &before) == 0);
  llama_free(l);
  return status;
}

#define SAYS(words)                                                                                \
  do {                                                                                             \
    CHECK(strstr(err.message, words) != NULL);                                                     \
    if (strstr(err.message, words) == NULL) fprintf(stderr, "%s\n", err.message);                  \
  } while (0)

int main(int argc, char **argv) {
  llama_build_options o = build_defaults();
  llama_error err;
  llama_t *l = NULL;
  const char *dir = argv[1];
  const size_t MIB = 1 << 20, AS = 0, DATA = 5;
  char value[64];
  struct rlimit limit;
  int n;
  if (argc < 2) return 2;
  o.device = LLAMA_DEVICE_CPU;
  o.n_threads = 1;

  /* what is planned: the KV pool does not fit */
  o.max_seq_len = 1 << 20;
  CHECK(build_under(RLIMIT_AS, AS, 64 * MIB, dir, &o, &err) == LLAMA_E_NO_MEMORY);
  SAYS("RLIMIT_AS is ");
  SAYS(" bytes are available: ");
  CHECK(build_under(RLIMIT_DATA, DATA, 64 * MIB, dir, &o, &err) == LLAMA_E_NO_MEMORY);
  SAYS("RLIMIT_DATA is ");
  SAYS(" bytes are available: ");

  /* what is refused: the checkpoint's own files */
  o.max_seq_len = 64;
  o.max_batch_size = 1;
  CHECK(build_under(RLIMIT_DATA, DATA, MIB / 4, dir, &o, &err) == LLAMA_E_NO_MEMORY);
  SAYS("RLIMIT_DATA is ");

  /* threads: none of their stacks fits */
  o.n_threads = 64;
  CHECK(build_under(RLIMIT_AS, AS, 40 * MIB, dir, &o, &err) == LLAMA_E_NO_MEMORY);
  SAYS("RLIMIT_AS is ");

  /* threads: the system starts no more of them, one by one */
  o.n_threads = 4;
  CHECK(getrlimit(RLIMIT_NPROC, &limit) == 0);
  if (limit.rlim_cur == RLIM_INFINITY) limit.rlim_cur = 100000;
  CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
  snprintf(value, sizeof value, "RLIMIT_NPROC is %llu", (unsigned long long)limit.rlim_cur);
  for (n = 0; n < 4; n++) {
    threads_left = n;
    err.struct_size = sizeof err;
    CHECK(llama_build(dir, NULL, &o, &l, &err) == LLAMA_E_NO_MEMORY && l == NULL);
    SAYS("cannot be started: Resource temporarily unavailable");
    SAYS(value);
    SAYS(n < 3 ? "thread " : "the engine thread ");
  }
  threads_left = 4;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  llama_free(l);
  return summary("limits");
}
