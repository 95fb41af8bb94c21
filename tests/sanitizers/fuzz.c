/* Random calls of the whole C API: `fuzz MODEL_DIR OTHER_MODEL_DIR ADAPTER_DIR [--calls N]
 * [--seed S] [--threads N]`. The adapter is one of the first model's.
 *
 * Threads share handles, streams, results, grammars, adapters and cancel flags, give each function
 * valid and invalid arguments, free what others use, inside callbacks too, and fork. Buffers end at
 * a guard page. The calls of a thread depend on the seed alone, those of one thread can be replayed
 * exactly.
 *
 * What is checked: statuses (a call with valid arguments on the lasting handle succeeds; none says
 * that the library has a bug), llama_error, what results and events point to, and whatever the
 * sanitizer that this is built with has to say. LLAMABI_PLANTED is `race` or `overflow`: a mistake
 * in the library's own build for it to find. */
#include "calls.h"

static long calls_wanted = 20000;
/* With as many calls as this, none may be left out. */
enum { CALLS_FOR_ALL = 20000 };
static pthread_barrier_t all_there;

#ifdef PLANTED
extern void llamabi_planted_race(void);
extern int llamabi_planted_overflow(size_t n);

static void planted(const char *what) {
  const struct timespec pause = {0, 1000000};
  int i;
  if (what == NULL) return;
  /* Threads must take turns in it, with no lock in between, however busy the machine is: a race
   * with what another thread did long ago is not reported, because its stack is not known. */
  if (strcmp(what, "race") == 0)
    for (i = 0; i < 300000; i++) {
      llamabi_planted_race();
      if (i % 3000 == 0) nanosleep(&pause, NULL);
    }
  if (strcmp(what, "overflow") == 0) llamabi_planted_overflow(100);
}
#else
static void planted(const char *what) { (void)what; }
#endif

/* The first export that nobody has called, or N_EXPORTS. */
static unsigned never_called(void) {
  unsigned i = 0;
  while (i < N_EXPORTS && atomic_load(&calls_of[i]) > 0) i++;
  return i;
}

/* The number of calls decides, and not the time. But `llama_worker_run` is drawn about four times
 * in 20,000 calls, so one run in fifty would leave it out: such a run goes on. */
static int goes_on(void) {
  long made = atomic_load(&calls_made);
  if (atomic_load(&failed)) return 0;
  if (made < calls_wanted) return 1;
  return calls_wanted >= CALLS_FOR_ALL && made < 10 * calls_wanted && never_called() < N_EXPORTS;
}

static void *work(void *argument) {
  self = argument;
  pthread_barrier_wait(&all_there);
  planted(getenv("LLAMABI_PLANTED"));
  while (goes_on()) any_call();
  return NULL;
}

int main(int argc, char **argv) {
  static worker workers[64];
  llama_build_options o;
  llama_error err;
  llama_info info;
  unsigned i;
  for (i = 1; i < (unsigned)argc; i++) {
    if (i + 1 < (unsigned)argc && strcmp(argv[i], "--calls") == 0)
      calls_wanted = atol(argv[++i]);
    else if (i + 1 < (unsigned)argc && strcmp(argv[i], "--seed") == 0)
      seed = strtoull(argv[++i], NULL, 0);
    else if (i + 1 < (unsigned)argc && strcmp(argv[i], "--threads") == 0)
      n_threads = (unsigned)atoi(argv[++i]);
    else
      *(dir == NULL ? &dir : other_dir == NULL ? &other_dir : &adapter_dir) = argv[i];
  }
  if (adapter_dir == NULL || n_threads < 1 || n_threads > 64) return 2;
  signal(SIGUSR1, on_signal);
  err.struct_size = sizeof err;
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  o.device = LLAMA_DEVICE_CPU;
  o.max_seq_len = 64;
  o.max_batch_size = 3;
  o.n_threads = 2;
  o.draft_dir = dir;
  info.struct_size = sizeof info;
  if (llama_build(dir, NULL, &o, &lasting, &err) != LLAMA_OK ||
      llama_get_info(lasting, &info, &err) != LLAMA_OK) {
    fprintf(stderr, "fuzz: %s\n", err.message);
    return 1;
  }
  llama_free(lasting);
  o.medusa_dir = write_heads(&info);
  if (o.medusa_dir == NULL || llama_build(dir, NULL, &o, &lasting, &err) != LLAMA_OK) {
    fprintf(stderr, "fuzz: %s: %s\n", heads_dir, err.message);
    return 1;
  }
  for (i = 0; i < READ_STREAMS; i++) pthread_mutex_init(&reading[i], NULL);
  for (i = 0; i < n_threads; i++) {
    workers[i].number = i;
    workers[i].random = seed * 1000003 + i;
    workers[i].process = getpid();
    make_areas(&workers[i]);
  }
  threads[0] = pthread_self();
  pthread_barrier_init(&all_there, NULL, n_threads);
  for (i = 1; i < n_threads; i++)
    if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) return 1;
  work(&workers[0]);
  for (i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
  for (i = 0; i < SLOTS; i++) {
    llama_stream_free(atomic_load(&streams[i]));
    llama_result_free(atomic_load(&results[i]));
    llama_cancel_free(atomic_load(&flags[i]));
    llama_grammar_free(atomic_load(&grammars[i]));
    llama_free(atomic_load(&handles[i]));
  }
  llama_free(lasting);
  remove_heads();
  i = never_called();
  if (!atomic_load(&failed) && i < N_EXPORTS && calls_wanted >= CALLS_FOR_ALL)
    fail("never called", (long)i, export_names[i]);
  if (atomic_load(&failed)) return 1;
  printf("fuzz: %ld calls on %u threads, seed %llu: passed\n", atomic_load(&calls_made), n_threads,
      seed);
  return 0;
}
