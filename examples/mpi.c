/* One model on several machines: every rank runs this program; rank 0 writes the text.
 *
 *   mpicc -std=c99 examples/mpi.c -I/usr/local/include -L/usr/local/lib -lllamabi -o mpi
 *   mpirun -n 2 --hosts a,b ./mpi --ckpt_dir DIR --prompt "Once upon a time"
 *
 * The checkpoint lies on every machine, at the same path. A service that must outlive the death of
 * another rank is started with `mpirun --with-ft ulfm` (Open MPI 5).
 */
#include "options.h"

#include <llamabi_mpi.h>
#include <unistd.h>

static const char usage[] =
    "usage: mpirun -n RANKS mpi --ckpt_dir DIR --prompt TEXT [option value]...\n"
    "\n"
    "  --prompt TEXT             what to continue\n"
    "  --max_seq_len N           room for prompt and answer, in tokens (512)\n"
    "  --rank_timeout_ms N       how long a rank may be silent (60000)\n" COMMON_USAGE;

static const char *prompt;

static int own_option(struct options *o, const char *name, const char *value) {
  if (strcmp(name, "prompt") == 0)
    prompt = value;
  else if (strcmp(name, "rank_timeout_ms") == 0)
    o->build.rank_timeout_ms = (uint32_t)number(o, name, value, UINT32_MAX);
  else
    return 0;
  return 1;
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data;
  fwrite(ev->text, 1, ev->text_len, stdout);
  return fflush(stdout) == 0; /* 0 stops: nobody reads any more */
}

/* What rank 0 does. */
static llama_status generate(struct options *o, llama_error *err) {
  llama_t *model;
  llama_result_t *result = NULL;
  llama_status status = llama_build(o->ckpt_dir, o->tokenizer_path, &o->build, &model, err);
  if (status != LLAMA_OK) return status;
  o->generate.flags = LLAMA_GEN_ECHO;
  o->generate.on_event = on_event;
  status = llama_text_completion(model, &prompt, NULL, 1, &o->generate, &result, err);
  printf("\n");
  llama_result_free(result);
  llama_free(model); /* ends the other ranks, too */
  return status;
}

int main(int argc, char **argv) {
  struct options o;
  llamabi_mpi mpi;
  llama_error err;
  llama_status status;
  int threads;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &threads) != MPI_SUCCESS) return 1;
  options_init(&o, "mpi", usage);
  read_options(&o, argc, argv, own_option);
  if (prompt == NULL) {
    fprintf(stderr, "mpi: --prompt is needed\n\n%s", usage);
    return 2;
  }
  if (llamabi_mpi_init(&mpi, MPI_COMM_WORLD) != MPI_SUCCESS) {
    fprintf(stderr, "mpi: MPI has no MPI_THREAD_SERIALIZED\n");
    return 1;
  }
  o.build.comm = &mpi.comm;
  err.struct_size = sizeof err;
  status = mpi.comm.rank == 0 ? generate(&o, &err) : llama_worker_run(o.ckpt_dir, &o.build, &err);
  if (status < 0) {
    fprintf(stderr, "mpi: rank %u: %s\n", mpi.comm.rank, err.message);
    fflush(NULL);
    _exit(1); /* MPI_Finalize might wait for a rank that is gone */
  }
  llamabi_mpi_free(&mpi);
  MPI_Finalize();
  return 0;
}
