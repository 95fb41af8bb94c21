/*
 * llamabi over MPI: fills a llama_comm with the functions of whichever MPI this is compiled with
 * (MPI 3.0 or newer: Open MPI, MPICH and their relatives). The library itself links none.
 *
 *   MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
 *   llamabi_mpi mpi;
 *   if (llamabi_mpi_init(&mpi, MPI_COMM_WORLD) != MPI_SUCCESS) ...
 *   options.comm = &mpi.comm;
 *   if (mpi.comm.rank == 0) llama_build(dir, NULL, &options, &llama, &err); ... llama_free(llama);
 *   else llama_worker_run(dir, &options, &err);
 *   llamabi_mpi_free(&mpi);     after LLAMA_OK only; after a failure leave by _exit
 *   MPI_Finalize();
 *
 * After a failure, requests of MPI are still under way, and MPI_Finalize may wait for ever. Leave
 * by _exit then, and let whatever started the ranks start them again.
 *
 * mpirun of Open MPI kills all ranks when one dies, unless it is told --with-ft ulfm: then the
 * others have an error within milliseconds, which rank 0 turns into LLAMA_E_PEER. MPICH's mpiexec
 * kills the others whatever it is told.
 *
 * MPI_THREAD_SERIALIZED is enough if the host does not use MPI itself while a handle lives.
 * Otherwise it has to be MPI_THREAD_MULTIPLE.
 */
#ifndef LLAMABI_MPI_H
#define LLAMABI_MPI_H

#include <mpi.h>
#include <string.h>
#include <time.h>

#include "llamabi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What llama_comm.user_data points to. Keep it where it is while the handle lives. */
typedef struct llamabi_mpi {
  llama_comm comm;
  MPI_Comm mpi;
  MPI_Errhandler before; /* the handler of errors that `mpi` had */
} llamabi_mpi;

/* Waits for a request as long as it may. It spins for two milliseconds, which is longer than
 * another rank usually takes, and then looks every half millisecond. */
static inline int32_t llamabi_mpi_wait(
    MPI_Request *request, MPI_Status *status, const llama_wait *w) {
  const struct timespec nap = {0, 500000};
  double since = MPI_Wtime(), asked = since;
  for (;;) {
    int done = 0;
    int rc = MPI_Test(request, &done, status);
    if (rc != MPI_SUCCESS) return rc > 0 ? -rc : -1;
    if (done) return 0;
    double now = MPI_Wtime();
    if (now - asked > 0.0005) {
      asked = now;
      if (!w->go_on(w->context)) return 1;
    }
    if (now - since > 0.002) nanosleep(&nap, NULL);
  }
}

static inline int32_t llamabi_mpi_send(
    void *user_data, uint32_t to, const void *bytes, size_t n, const llama_wait *w) {
  llamabi_mpi *m = (llamabi_mpi *)user_data;
  MPI_Request request;
  int error = MPI_Isend(bytes, (int)n, MPI_BYTE, (int)to, 0, m->mpi, &request);
  if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
  return llamabi_mpi_wait(&request, MPI_STATUS_IGNORE, w);
}

static inline int32_t llamabi_mpi_receive(
    void *user_data, uint32_t from, void *bytes, size_t capacity, size_t *n, const llama_wait *w) {
  llamabi_mpi *m = (llamabi_mpi *)user_data;
  const struct timespec nap = {0, 500000};
  double since = MPI_Wtime(), asked = since;
  for (;;) {
    int found = 0, length = 0;
    MPI_Message message;
    MPI_Status status;
    int error = MPI_Improbe((int)from, 0, m->mpi, &found, &message, &status);
    if (error == MPI_SUCCESS && found) error = MPI_Get_count(&status, MPI_BYTE, &length);
    if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
    if (found) {
      *n = (size_t)length;
      if (*n > capacity) return -1;
      MPI_Request request;
      error = MPI_Imrecv(bytes, length, MPI_BYTE, &message, &request);
      if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
      /* The message has begun to come, so it is taken whole, even by somebody who only looks. A
       * rank that stops in the middle of it is an error. */
      since = MPI_Wtime();
      do {
        error = MPI_Test(&request, &found, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
        if (found) return 0;
      } while (MPI_Wtime() - since < 5);
      return -1;
    }
    double now = MPI_Wtime();
    if (now - asked > 0.0005 || now == since) {
      asked = now;
      if (!w->go_on(w->context)) return 1;
    }
    if (now - since > 0.002) nanosleep(&nap, NULL);
  }
}

static inline int32_t llamabi_mpi_all_gather(
    void *user_data, const void *mine, void *all, size_t n, const llama_wait *w) {
  llamabi_mpi *m = (llamabi_mpi *)user_data;
  MPI_Request request;
  int error = MPI_Iallgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, m->mpi, &request);
  if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
  return llamabi_mpi_wait(&request, MPI_STATUS_IGNORE, w);
}

static inline int32_t llamabi_mpi_all_to_all(
    void *user_data, const void *to, void *from, size_t n, const llama_wait *w) {
  llamabi_mpi *m = (llamabi_mpi *)user_data;
  MPI_Request request;
  int error = MPI_Ialltoall(to, (int)n, MPI_BYTE, from, (int)n, MPI_BYTE, m->mpi, &request);
  if (error != MPI_SUCCESS) return error > 0 ? -error : -1;
  return llamabi_mpi_wait(&request, MPI_STATUS_IGNORE, w);
}

/*
 * Fills m->comm. All ranks of `mpi` call it, before llama_build or llama_worker_run; it waits for
 * none of them. MPI has been initialised with MPI_THREAD_SERIALIZED or more.
 *
 * While a handle lives, `mpi` is llamabi's alone, and its errors are answers rather than the end of
 * the process: a program that sends something itself gives an MPI_Comm_dup of its communicator.
 * (A copy is not made here. MPI_Comm_dup waits without end for a rank that never comes. With
 * MPI_Comm_idup, Open MPI 5.0.11 calls the copy complete when a rank has died meanwhile, and
 * crashes at its first use.)
 *
 * Returns MPI_SUCCESS or MPI's error; MPI_ERR_OTHER where the threads are fewer.
 */
static inline int llamabi_mpi_init(llamabi_mpi *m, MPI_Comm mpi) {
  int rank, size, threads;
  memset(m, 0, sizeof *m);
  m->mpi = mpi;
  int error = MPI_Query_thread(&threads);
  if (error == MPI_SUCCESS && threads < MPI_THREAD_SERIALIZED) error = MPI_ERR_OTHER;
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(mpi, &rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(mpi, &size);
  if (error == MPI_SUCCESS) error = MPI_Comm_get_errhandler(mpi, &m->before);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
  if (error != MPI_SUCCESS) return error;
  m->comm.struct_size = sizeof m->comm;
  m->comm.rank = (uint32_t)rank;
  m->comm.size = (uint32_t)size;
  m->comm.user_data = m;
  m->comm.send = llamabi_mpi_send;
  m->comm.receive = llamabi_mpi_receive;
  m->comm.all_gather = llamabi_mpi_all_gather;
  m->comm.all_to_all = llamabi_mpi_all_to_all;
  return MPI_SUCCESS;
}

/* Gives the communicator back: after llama_free, or after llama_worker_run has returned LLAMA_OK.
 */
static inline int llamabi_mpi_free(llamabi_mpi *m) {
  int error = MPI_Comm_set_errhandler(m->mpi, m->before);
  return error == MPI_SUCCESS ? MPI_Errhandler_free(&m->before) : error;
}

#ifdef __cplusplus
}
#endif

#endif /* LLAMABI_MPI_H */
