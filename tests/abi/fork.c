/* A child after fork: the parent's objects are refused at once, its own work. */
#include "abi.h"

#include <signal.h>
#include <sys/wait.h>

static llama_t *l;
static llama_result_t *r;
static llama_stream_t *s;
static llama_cancel_t *c;
static int32_t prompt[4];
static const size_t len = 4;
static volatile int stop;

static void parents_objects(void) {
  llama_result_t *r2 = FOREIGN;
  llama_stream_t *s2 = FOREIGN;
  llama_info info;
  llama_event ev;
  int32_t buf[8];
  size_t n;
  info.struct_size = sizeof info;
  ev.struct_size = sizeof ev;
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_generate(l, prompt, &len, 1, NULL, &r2, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_stream_open(l, prompt, &len, 1, NULL, &s2, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_stream_next(s, &ev, -1, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_encode_text(l, "a", 1, 0, buf, 8, &n, err));
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_get_info(l, &info, err));
  CHECK(llama_result_count(r) == 0);
  CHECK(llama_stream_fd(s) == -1);
  CHECK(r2 == FOREIGN && s2 == FOREIGN);
  llama_cancel_trigger(c);
  llama_stream_free(s);
  llama_result_free(r);
  llama_cancel_free(c);
  llama_free(l);
}

static int child(const char *dir) {
  llama_t *own;
  llama_result_t *result = NULL;
  alarm(300); /* rather than hang */
  checks_failed = 0;
  parents_objects();
  own = open_model(dir, 64, 2);
  CHECK(own != l);
  EXPECT(LLAMA_OK, llama_generate(own, prompt, &len, 1, NULL, &result, err));
  CHECK(llama_result_count(result) == 1);
  parents_objects();
  llama_result_free(result);
  llama_free(own);
  llama_cancel_free(llama_cancel_new());
  return checks_failed != 0;
}

/* Holds the table's lock as much of the time as it can. */
static void *busy(void *unused) {
  (void)unused;
  while (!stop) llama_cancel_free(llama_cancel_new());
  return NULL;
}

int main(int argc, char **argv) {
  llama_generate_options o = generate_defaults();
  llama_event ev;
  pthread_t threads[2];
  int i;
  if (argc < 2) return 2;
  fill_prompt(prompt, len);
  l = open_model(argv[1], 4096, 2);
  c = llama_cancel_new();
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, NULL, &r, err));
  o.flags = LLAMA_GEN_IGNORE_EOS;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  for (i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, busy, NULL) == 0);
  for (i = 0; i < 8; i++) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) _exit(child(argv[1]));
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = 1;
  for (i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  /* the parent's are as they were */
  ev.struct_size = sizeof ev;
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  CHECK(llama_result_count(r) == 1);
  llama_stream_free(s);
  llama_result_free(r);
  llama_cancel_free(c);
  llama_free(l);
  return summary("fork");
}
