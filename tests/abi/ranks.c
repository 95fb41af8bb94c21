/* Ranks in processes of their own, which talk through sockets: the same bits as ranks of one
 * process; whichever rank dies, stops, never comes or fails, wherever it is, the others have an
 * error in time. */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MOST = 4, PIECE = 16384 };

/* Two sockets for each pair of ranks: for messages and for exchanges. */
static int ends[MOST][MOST][2];
static uint32_t size;

/* 0: not now; -1: the other end is gone. (`recv` says so with 0, and `send` never gives 0.) */
static ssize_t some(ssize_t n) {
  if (n > 0) return n;
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static int32_t pause_a_bit(const llama_wait *w) {
  if (!w->go_on(w->context)) return 1;
  usleep(100);
  return 0;
}

static int32_t put(int fd, const void *bytes, size_t n, const llama_wait *w) {
  for (;;) {
    ssize_t sent = some(send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL));
    if (sent != 0) return sent < 0 ? -2 : 0;
    if (pause_a_bit(w)) return 1;
  }
}

/* A message is its length, then pieces of it. */
static int32_t socket_send(
    void *user_data, uint32_t to, const void *bytes, size_t n, const llama_wait *w) {
  uint32_t rank = *(uint32_t *)user_data;
  int fd = ends[rank][to][0];
  size_t at;
  int32_t rc = put(fd, &n, sizeof n, w);
  for (at = 0; at < n && rc == 0; at += PIECE)
    rc = put(fd, (const char *)bytes + at, n - at < PIECE ? n - at : PIECE, w);
  return rc;
}

static int32_t get(int fd, void *bytes, size_t room, const llama_wait *w) {
  for (;;) {
    ssize_t got = some(recv(fd, bytes, room, MSG_DONTWAIT));
    if (got != 0) return got < 0 ? -1 : 0;
    if (w == NULL)
      usleep(50);
    else if (pause_a_bit(w))
      return 1;
  }
}

static int32_t socket_receive(
    void *user_data, uint32_t from, void *bytes, size_t cap, size_t *n, const llama_wait *w) {
  uint32_t rank = *(uint32_t *)user_data;
  int fd = ends[rank][from][0];
  size_t at;
  int32_t rc = get(fd, n, sizeof *n, w);
  if (rc == 0 && *n > cap) return -5;
  /* Whole, once it has begun. */
  for (at = 0; rc == 0 && at < *n; at += PIECE)
    rc = get(fd, (char *)bytes + at, *n - at < PIECE ? *n - at : PIECE, NULL);
  return rc;
}

/* Piece by piece, from and to all others at once, so that nobody waits for a full socket. */
static int32_t exchange(
    uint32_t rank, const char *to, size_t stride, char *from, size_t n, const llama_wait *w) {
  size_t sent[MOST] = {0}, got[MOST] = {0};
  memcpy(from + rank * n, to + rank * stride, n);
  sent[rank] = got[rank] = n;
  for (;;) {
    uint32_t r, done = 0, moved = 0;
    for (r = 0; r < size; r++) {
      if (sent[r] < n) {
        size_t piece = n - sent[r] < PIECE ? n - sent[r] : PIECE;
        ssize_t k = some(
            send(ends[rank][r][1], to + r * stride + sent[r], piece, MSG_DONTWAIT | MSG_NOSIGNAL));
        if (k < 0) return -3;
        sent[r] += (size_t)k;
        moved += k > 0;
      }
      if (got[r] < n) {
        ssize_t k = some(recv(ends[rank][r][1], from + r * n + got[r], n - got[r], MSG_DONTWAIT));
        if (k < 0) return -4;
        got[r] += (size_t)k;
        moved += k > 0;
      }
      done += sent[r] == n && got[r] == n;
    }
    if (done == size) return 0;
    if (moved == 0 && pause_a_bit(w)) return 1;
  }
}

static int32_t socket_gather(
    void *user_data, const void *mine, void *all, size_t n, const llama_wait *w) {
  return exchange(*(uint32_t *)user_data, mine, 0, all, n, w);
}

static int32_t socket_to_all(
    void *user_data, const void *to, void *from, size_t n, const llama_wait *w) {
  return exchange(*(uint32_t *)user_data, to, n, from, n, w);
}

static llama_comm comm_of(uint32_t *rank) {
  llama_comm c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c;
  c.rank = *rank;
  c.size = size;
  c.user_data = rank;
  c.send = socket_send;
  c.receive = socket_receive;
  c.all_gather = socket_gather;
  c.all_to_all = socket_to_all;
  return c;
}

/* Runs a scenario with `n` ranks, each a child of this process. */
static void run(uint32_t n, struct scenario which, const char *dir) {
  pid_t children[MOST];
  uint32_t i, j, k, left;
  double start = now_ms();
  size = n;
  for (i = 0; i < n; i++)
    for (j = 0; j < i; j++)
      for (k = 0; k < 2; k++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
        ends[i][j][k] = pair[0];
        ends[j][i][k] = pair[1];
      }
  fflush(NULL);
  for (i = 0; i < n; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      uint32_t a, b, rank = i;
      /* Another rank's death is seen by the end of its sockets: nobody else holds them. */
      for (a = 0; a < n; a++)
        for (b = 0; b < n; b++)
          if (a != rank && a != b) close(ends[a][b][0]), close(ends[a][b][1]);
      alarm(60); /* rather than hang */
      checks_done = checks_failed = 0;
      /* Ranks have environments of their own; how sums are added must not depend on it. */
      if (on_gpus() && rank == 1) setenv("LLAMABI_RANKS", "slices", 1);
      _exit(run_rank(comm_of(&rank), which, dir));
    }
  }
  for (i = 0; i < n; i++)
    for (j = 0; j < n; j++)
      if (i != j) close(ends[i][j][0]), close(ends[i][j][1]);
  for (left = n; left > 0;) {
    int status = 0;
    pid_t child = waitpid(-1, &status, WUNTRACED);
    for (i = 0; i < n && children[i] != child; i++) {
    }
    if (WIFSTOPPED(status)) { /* for longer than the others wait for it */
      sleep_ms(timeout_ms + 2500);
      kill(child, SIGKILL);
      continue;
    }
    left--;
    if (i == which.rank &&
        (strcmp(which.name, "kill") == 0 || strcmp(which.name, "stop") == 0 ||
            strcmp(which.name, "idle") == 0 || strcmp(which.name, "load") == 0)) {
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      continue;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      fprintf(stderr, "%s of %u ranks, rank %u at %u: rank %u ends with %x after %.0f ms\n",
          which.name, n, which.rank, which.at, i, (unsigned)status, now_ms() - start);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* Arguments that are refused, before anybody else is there. */
static void refused(const char *dir) {
  uint32_t rank = 0;
  llama_comm c, good = comm_of(&rank);
  llama_build_options o;
  llama_t *l = FOREIGN;
  int32_t nodes[2] = {0, 0};
  int i;
  good.size = 2;
  for (i = 0; i < 10; i++) {
    llama_status expected = LLAMA_E_INVALID_ARGUMENT;
    c = good;
    if (i == 0) c.size = 1;
    if (i == 1) c.size = 65;
    if (i == 2) c.rank = 2;
    if (i == 3) c.send = NULL;
    if (i == 4) c.receive = NULL;
    if (i == 5) c.all_gather = NULL;
    if (i == 6) c.all_to_all = NULL;
    if (i == 7) c.reserved0 = 1, expected = LLAMA_E_ABI;
    if (i == 8) c.struct_size = 7, expected = LLAMA_E_ABI;
    if (i == 9) c.struct_size = 24; /* an older caller without functions */
    o = rank_options(&c);
    EXPECT(expected, llama_build(dir, NULL, &o, &l, err));
    CHECK(l == NULL);
    EXPECT(expected, llama_worker_run(dir, &o, err));
  }
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_worker_run(dir, NULL, err));
  o = rank_options(NULL);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_worker_run(dir, &o, err));
  o.comm = (const llama_comm *)((const char *)&good + 1);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_worker_run(dir, &o, err));
  /* These are known before another rank is: it is told, if it is there, and here it is not. */
  ends[0][1][0] = ends[0][1][1] = -1;
  o = rank_options(&good);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_worker_run(dir, &o, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_build(NULL, NULL, &o, &l, err));
  o.devices = nodes;
  o.n_devices = 2;
  EXPECT(LLAMA_E_UNSUPPORTED, llama_build(dir, NULL, &o, &l, err));
  c = good;
  c.rank = 1;
  ends[1][0][0] = ends[1][0][1] = -1;
  rank = 1;
  o = rank_options(&c);
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_build(dir, NULL, &o, &l, err));
}

/* With the model to which the adapters belong. */
static void run_with_adapters(const char *dir) {
  static const struct scenario scenarios[] = {{"adapters", 0, 0}, {"load", 1, 0}, {"refuse", 0, 0}};
  char base[4096];
  uint32_t i;
  snprintf(base, sizeof base, "%s/../../../adapters/base", dir);
  for (i = 0; i < (on_gpus() ? 3 : 2); i++) run(2, scenarios[i], base);
}

/* GPUs are emulated, so a few scenarios have to do. */
static void run_on_gpus(const char *dir) {
  static const struct scenario scenarios[] = {{"same", 0, 0}, {"free", 0, 0}, {"other", 1, 0},
      {"idle", 1, 0}, {"kill", 1, 4}, {"kill", 1, 8}, {"stop", 1, 9}, {"kill", 0, 10}};
  uint32_t i;
  for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++) run(2, scenarios[i], dir);
  run(4, scenarios[0], dir);
  run_with_adapters(dir);
}

int main(int argc, char **argv) {
  static const char *const names[] = {"kill", "stop"};
  struct scenario s = {"same", 0, 0};
  uint32_t i, seed = 12345;
  (void)argc;
  scenario = s;
  if (on_gpus()) {
    run_on_gpus(argv[1]);
    return summary("ranks on GPUs");
  }
  refused(argv[1]);
  run(2, s, argv[1]);
  run(4, s, argv[1]);
  run_with_adapters(argv[1]);
  s.name = "free";
  run(2, s, argv[1]);
  s.name = "cancelled";
  run(2, s, argv[1]);
  s.name = "refused";
  run(2, s, argv[1]);
  s.name = "fork";
  run(2, s, argv[1]);
  s.rank = 1;
  run(2, s, argv[1]);
  s.name = "slow";
  run(4, s, argv[1]);
  s.name = "missing";
  run(2, s, argv[1]);
  s.name = "never";
  run(2, s, argv[1]);
  s.name = "other";
  run(2, s, argv[1]);
  s.name = "idle";
  run(2, s, argv[1]);
  s.name = "cancel";
  s.at = 4;
  run(2, s, argv[1]);
  /* At the first message, while loading, in the prompt, while generating, and wherever. */
  for (i = 0; i < 10; i++) {
    seed = seed * 1103515245 + 12345;
    s.name = names[i % 2];
    s.rank = i / 2 % 3 == 2 ? 0 : 1;
    s.at = i < 2 ? 1 : i < 4 ? 3 : i < 6 ? 7 : 7 + (seed >> 16) % 300;
    run(2, s, argv[1]);
  }
  return summary("ranks");
}
