/* tests/abi/ranks.h over MPI: `mpirun -n N ranks SCENARIO RANK AT MODEL_DIR`. Each rank's outcome
 * is a line on standard output, so that run.sh knows it whatever the launcher says. */
#include <llamabi_mpi.h>

#include "../abi/ranks.h"

int main(int argc, char **argv) {
  struct scenario s;
  llamabi_mpi mpi;
  int threads, failed;
  if (argc != 5) return 2;
  s.name = argv[1];
  s.rank = (uint32_t)atoi(argv[2]);
  s.at = (uint32_t)atoi(argv[3]);
  alarm(100); /* rather than hang */
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &threads) != MPI_SUCCESS) return 2;
  if (llamabi_mpi_init(&mpi, MPI_COMM_WORLD) != MPI_SUCCESS) return 2;
  failed = run_rank(mpi.comm, s, argv[4]);
  printf("rank %u: %s, %d checks\n", mpi.comm.rank, failed ? "FAILED" : "ok", checks_done);
  fflush(NULL);
  if (strcmp(s.name, "same") != 0 && strcmp(s.name, "free") != 0 &&
      strcmp(s.name, "adapters") != 0) {
    /* A launcher ends the others as soon as one is gone, and they shall come to their own end. */
    sleep(strcmp(s.name, "never") == 0 && mpi.comm.rank == s.rank ? 5 : 1);
    _exit(failed); /* requests are under way, for which MPI_Finalize might wait */
  }
  llamabi_mpi_free(&mpi);
  MPI_Finalize();
  return failed;
}
