/* A child after fork: the parent's objects are refused at once, its own work. */
#include "abi.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

static llama_t *l;
static llama_result_t *r;
static llama_stream_t *s;
static llama_cancel_t *c;
static llama_grammar_t *g;
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

/* With a grammar: that has locks of the process beside those of its handle. */
static void in_a_language(llama_t *own) {
  llama_generate_options o = generate_defaults();
  llama_grammar_t *mine = NULL;
  llama_result_t *result = NULL;
  o.max_gen_len = 8;
  EXPECT(LLAMA_OK, llama_grammar_new(own, LLAMA_GRAMMAR_REGEX, "[a-z]{9}", SIZE_MAX, &mine, err));
  o.grammar = mine;
  EXPECT(LLAMA_OK, llama_generate(own, prompt, &len, 1, &o, &result, err));
  llama_result_free(result);
  llama_grammar_free(mine);
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
  in_a_language(own);
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

/* The same for the lock that everything with a grammar takes. */
static void *busy_with_grammars(void *unused) {
  uint32_t mask[1024];
  size_t n;
  (void)unused;
  while (!stop) EXPECT(LLAMA_OK, llama_grammar_mask(g, NULL, 0, mask, 1024, &n, err));
  return NULL;
}

static int32_t never_asked(void *user_data, const llama_logits *row) {
  (void)user_data, (void)row;
  return 1;
}

/* A call that follows the grammar until it is freed. While there is one, the panic hook stays as it
 * is; the lock of the standard library's around that hook is not what is asked about. */
static llama_stream_t *hold_grammar(void) {
  llama_generate_options o = generate_defaults();
  llama_stream_t *held = NULL;
  struct pollfd question = {-1, POLLIN, 0};
  EXPECT(LLAMA_OK, llama_grammar_new(l, LLAMA_GRAMMAR_REGEX, "[a-z]+", SIZE_MAX, &g, err));
  o.grammar = g;
  o.on_logits = never_asked;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &held, err));
  question.fd = llama_stream_fd(held);
  CHECK(poll(&question, 1, 60000) == 1);
  return held;
}

int main(int argc, char **argv) {
  llama_generate_options o = generate_defaults();
  llama_event ev;
  llama_stream_t *held;
  pthread_t threads[4];
  int i;
  if (argc < 2) return 2;
  fill_prompt(prompt, len);
  l = open_model(argv[1], 4096, 2);
  c = llama_cancel_new();
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, NULL, &r, err));
  o.flags = LLAMA_GEN_IGNORE_EOS;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  held = hold_grammar();
  for (i = 0; i < 4; i++) {
    void *(*work)(void *) = i < 2 ? busy : busy_with_grammars;
    CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
  }
  for (i = 0; i < 8; i++) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) _exit(child(argv[1]));
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = 1;
  for (i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  /* the parent's are as they were */
  ev.struct_size = sizeof ev;
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  CHECK(llama_result_count(r) == 1);
  llama_stream_free(held);
  llama_grammar_free(g);
  llama_stream_free(s);
  llama_result_free(r);
  llama_cancel_free(c);
  llama_free(l);
  return summary("fork");
}
