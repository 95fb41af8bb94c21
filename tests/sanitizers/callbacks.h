/* What the library calls: it reads all that it is given, makes calls of its own, and forks. */
#ifndef CALLBACKS_H
#define CALLBACKS_H

#include "options.h"

static void any_call(void);

/* What a child does before it ends: nothing hangs, nothing crashes. */
static void be_a_child(void) {
  int i;
  alarm(600);
  for (i = 0; i < 8; i++) any_call();
}

static void have_a_child(void) {
  pid_t pid;
  int how = 0;
  fflush(stderr);
  pid = fork();
  if (pid < 0) return;
  if (pid == 0) {
    self->forked_inside = self->depth > 0;
    be_a_child();
    if (self->forked_inside) return; /* to see the call under way refused, see `after_call` */
    _exit(atomic_load(&failed));
  }
  while (waitpid(pid, &how, 0) < 0) {
  }
  if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) fail("a child ended with", how, "");
}

/* A child ends where the call that it was forked in has ended. */
static void after_call(void) {
  if (self->forked_inside && self->depth == 0) _exit(atomic_load(&failed));
}

static int read_all(const void *p, size_t n) {
  const volatile char *bytes = p;
  int sum = 0;
  size_t i;
  for (i = 0; i < n; i++) sum += bytes[i];
  return sum;
}

static int in_callback(void) {
  int go_on = !one_in(50);
  self->depth++;
  if (self->depth == 1 && one_in(4)) {
    any_call();
    if (one_in(300) && !child()) have_a_child();
  }
  self->depth--;
  return go_on;
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data;
  CHECK(ev->text[ev->text_len] == 0);
  read_all(ev->text, ev->text_len);
  read_all(ev->top, ev->n_top * sizeof *ev->top);
  return in_callback();
}

static int32_t on_logits(void *user_data, const llama_logits *row) {
  (void)user_data;
  CHECK(row->struct_size == sizeof *row && row->n_prompt <= row->n_tokens && row->n_logits > 0);
  read_all(row->tokens, row->n_tokens * sizeof *row->tokens);
  if (one_in(2)) row->logits[below((unsigned)row->n_logits)] = one_in(4) ? NAN : 1e30f;
  if (one_in(9)) memset(row->logits, 0xff, row->n_logits * sizeof *row->logits); /* all NaN */
  return in_callback();
}

static int32_t on_stop(
    void *user_data, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  (void)user_data, (void)index;
  CHECK(n_prompt <= n);
  read_all(tokens, n * sizeof *tokens);
  in_callback();
  return one_in(20);
}

static int32_t on_progress(void *user_data, float fraction) {
  (void)user_data, (void)fraction;
  return in_callback();
}

static void on_log(void *user_data, int32_t level, const char *msg, size_t len) {
  (void)user_data, (void)level;
  CHECK(msg[len] == 0);
  read_all(msg, len);
  in_callback();
}

static void on_signal(int number) {
  (void)number;
  llama_cancel_trigger(atomic_load(&flags[0]));
}

#endif
