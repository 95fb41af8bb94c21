/* pthread_cancel of a thread that is inside a call takes effect after the call: glibc cancels by
 * unwinding the stack, and the library's frames are not to be unwound. */
#include "abi.h"

static const char *dir;
static llama_t *l;
static volatile int returned;

static void *cancelled_in_calls(void *unused) {
  int32_t prompt[4];
  const size_t len = 4;
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  llama_stream_t *s = NULL;
  llama_event ev;
  (void)unused;
  fill_prompt(prompt, len);
  ev.struct_size = sizeof ev;
  o.max_gen_len = 4;
  pthread_cancel(pthread_self()); /* acted upon at the next cancellation point */
  l = open_model(dir, 64, 2);
  EXPECT(LLAMA_OK, llama_generate(l, prompt, &len, 1, &o, &r, err));
  llama_result_free(r);
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  CHECK(llama_stream_fd(s) >= 0);
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  llama_stream_free(s);
  llama_free(l);
  returned = 1;
  pthread_testcancel();
  returned = 2;
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t thread;
  void *result = NULL;
  if (argc < 2) return 2;
  dir = argv[1];
  CHECK(pthread_create(&thread, NULL, cancelled_in_calls, NULL) == 0);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(returned == 1 && result == PTHREAD_CANCELED);
  return summary("pcancel");
}
