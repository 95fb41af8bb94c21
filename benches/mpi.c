/* What ranks in several processes cost, or gain, beside one process with as many threads:
 *
 *   mpicc -O2 benches/mpi.c -Iinclude -Ltarget/release -lllamabi -o build/bench-mpi
 *   mpirun --bind-to none -n 2 build/bench-mpi DIR [ROUNDS]
 *
 * Rank 0 has both handles and runs them in turns. Prints medians of prefill of 512 tokens and of
 * decode, in tokens/s, and the memory of a rank over that of the whole.
 */
#include <llamabi_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 512, GENERATED = 48, MOST = 99 };

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
  fprintf(stderr, "bench-mpi: %s\n", err->message);
  exit(1);
}

/* Tokens/s of the prompt and of what follows. */
static void run(llama_t *l, int round, double *prefill, double *decode) {
  static int32_t prompt[PROMPT];
  size_t len = PROMPT;
  int i;
  llama_generate_options g;
  llama_result_t *r;
  llama_request_stats stats;
  llama_error err;
  err.struct_size = sizeof err;
  for (i = 0; i < PROMPT; i++)
    prompt[i] = 3 + (i * 7 + (round + 1) * 131) % 900; /* new to the cache */
  llama_generate_options_init(&g, sizeof g);
  g.temperature = 0;
  g.max_gen_len = GENERATED;
  g.flags = LLAMA_GEN_IGNORE_EOS;
  or_die(llama_generate(l, prompt, &len, 1, &g, &r, &err), &err);
  stats.struct_size = sizeof stats;
  llama_result_stats(r, 0, &stats);
  *prefill = PROMPT * 1e3 / stats.first_token_ms;
  *decode = (GENERATED - 1) * 1e3 / (stats.total_ms - stats.first_token_ms);
  llama_result_free(r);
}

int main(int argc, char **argv) {
  llamabi_mpi mpi;
  llama_build_options o;
  llama_error err;
  llama_t *ranks, *one;
  llama_rank rank;
  llama_info info;
  double figures[4][MOST], medians[4];
  int rounds = argc > 2 ? atoi(argv[2]) : 9, i, threads;

  if (argc < 2 || rounds < 1 || rounds > MOST) return 2;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &threads);
  if (llamabi_mpi_init(&mpi, MPI_COMM_WORLD) != MPI_SUCCESS) return 1;
  err.struct_size = sizeof err;
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  o.device = LLAMA_DEVICE_CPU;
  o.max_seq_len = PROMPT + 64;
  o.max_batch_size = 1;
  o.comm = &mpi.comm;
  o.n_threads = 1;
  if (mpi.comm.rank > 0)
    or_die(llama_worker_run(argv[1], &o, &err), &err);
  else {
    or_die(llama_build(argv[1], NULL, &o, &ranks, &err), &err);
    o.comm = NULL;
    o.n_threads = mpi.comm.size;
    or_die(llama_build(argv[1], NULL, &o, &one, &err), &err);
    for (i = -1; i < rounds; i++) { /* the first one warms up */
      run(ranks, i, &figures[0][i < 0 ? 0 : i], &figures[1][i < 0 ? 0 : i]);
      run(one, i, &figures[2][i < 0 ? 0 : i], &figures[3][i < 0 ? 0 : i]);
    }
    for (i = 0; i < 4; i++) medians[i] = median(figures[i], rounds);
    info.struct_size = sizeof info;
    rank.struct_size = sizeof rank;
    or_die(llama_get_info(ranks, &info, &err), &err);
    or_die(llama_get_rank(ranks, 0, &rank, &err), &err);
    printf("%u processes of 1 thread: prefill %.1f, decode %.2f tokens/s; 1 process of %u threads: "
           "%.1f, %.2f; ratios %.2f, %.2f; weights of rank 0 %.3f of all; exchanges %.1f s\n",
        mpi.comm.size, medians[0], medians[1], mpi.comm.size, medians[2], medians[3],
        medians[0] / medians[2], medians[1] / medians[3],
        (double)rank.weight_bytes / (double)info.weight_bytes, rank.exchange_ms / 1e3);
    llama_free(ranks);
    llama_free(one);
  }
  llamabi_mpi_free(&mpi);
  MPI_Finalize();
  return 0;
}
