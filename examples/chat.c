/* A chat in the terminal, in the format that the model's chat template makes. Each turn sends the
 * whole conversation; what its earlier prompts computed is found in the prefix cache.
 *
 *   make chat (fetches a model), or
 *   make examples
 *   build/chat --ckpt_dir DIR|FILE.gguf [--system TEXT]
 *
 * /reset forgets the conversation, /quit or the end of the input ends, Ctrl-C stops an answer.
 */
#include "options.h"

#include <signal.h>

static const char usage[] =
    "usage: chat --ckpt_dir DIR|FILE.gguf [option value]...\n"
    "\n"
    "  --system TEXT             what the model should know or be\n"
    "  --max_seq_len N           room for the conversation, in tokens (2048)\n" COMMON_USAGE "\n"
    "/reset forgets the conversation, /quit or the end of the input ends, Ctrl-C stops an answer.\n";

static const char *system_text;

/* The flag of the answer that is being generated. A signal handler may trigger it at any time, also
   after it was freed: a freed flag is ignored. */
static llama_cancel_t *volatile cancel;

static void on_interrupt(int number) {
  signal(number, on_interrupt);
  llama_cancel_trigger(cancel);
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data;
  fwrite(ev->text, 1, ev->text_len, stdout);
  return fflush(stdout) == 0; /* 0 stops: nobody reads any more */
}

static int own_option(struct options *o, const char *name, const char *value) {
  (void)o;
  if (strcmp(name, "system") != 0) return 0;
  system_text = value;
  return 1;
}

/* The conversation: msgs[0] may be the system's; the contents are ours to free. */
static llama_message *msgs;
static size_t n_msgs, capacity;

static void *need(void *p) {
  if (p == NULL) {
    fprintf(stderr, "chat: out of memory\n");
    exit(1);
  }
  return p;
}

static void add(const char *role, const char *content, size_t len) {
  char *copy = need(malloc(len + 1));
  memcpy(copy, content, len);
  copy[len] = 0;
  if (n_msgs == capacity) {
    capacity = capacity == 0 ? 16 : 2 * capacity;
    msgs = need(realloc(msgs, capacity * sizeof *msgs));
  }
  msgs[n_msgs].role = role;
  msgs[n_msgs].content = copy;
  msgs[n_msgs].role_len = SIZE_MAX;
  msgs[n_msgs].content_len = len;
  n_msgs++;
}

static void forget(size_t from, size_t n) {
  size_t i;
  for (i = from; i < from + n; i++) free((char *)msgs[i].content);
  memmove(msgs + from, msgs + from + n, (n_msgs - from - n) * sizeof *msgs);
  n_msgs -= n;
}

/* A line of any length, without its line feed; NULL at the end of the input. */
static char *read_line(void) {
  static char *line;
  static size_t size;
  size_t len = 0;
  for (;;) {
    if (size - len < 2) {
      size = size == 0 ? 256 : 2 * size;
      line = need(realloc(line, size));
    }
    if (fgets(line + len, (int)(size - len > 4096 ? 4096 : size - len), stdin) == NULL)
      return len == 0 ? NULL : line;
    len += strlen(line + len);
    if (len > 0 && line[len - 1] == '\n') {
      line[len - 1] = 0;
      return line;
    }
  }
}

/* The tokens of the conversation without its oldest `dropped` messages; the system's stays. */
static llama_status count(
    const llama_t *model, size_t first, size_t dropped, size_t *n, llama_error *err) {
  const llama_message covered = msgs[dropped];
  llama_status status;
  if (first > 0) msgs[dropped] = msgs[0];
  status = llama_encode_dialog(model, msgs + dropped, n_msgs - dropped, NULL, 0, n, err);
  msgs[dropped] = covered;
  return status;
}

/* Drop the oldest exchanges until the conversation leaves room for an answer. A message that has no
   room by itself drops nothing: it is refused, and the conversation goes on without it. */
static int make_room(const llama_t *model, size_t first, uint32_t max_seq_len) {
  size_t dropped = 0, n;
  llama_error err;
  err.struct_size = sizeof err;
  while (count(model, first, dropped, &n, &err) == LLAMA_OK && n + max_seq_len / 4 > max_seq_len) {
    if (n_msgs < dropped + first + 3) {
      if (n < max_seq_len) break; /* a long question; the answer will be short */
      printf("[that is %lu tokens, the model has room for %lu]\n", (unsigned long)n,
          (unsigned long)max_seq_len);
      return 0;
    }
    dropped += 2;
  }
  forget(first, dropped);
  if (dropped > 0)
    printf("[the conversation no longer fits, its oldest %lu messages are forgotten]\n",
        (unsigned long)dropped);
  return 1;
}

int main(int argc, char **argv) {
  struct options o;
  llama_error err;
  llama_t *model;
  size_t first;
  char *line;
  int failed = 0;

  err.struct_size = sizeof err;
  options_init(&o, "chat", usage);
  o.build.max_seq_len = 2048;
  read_options(&o, argc, argv, own_option);
  if (llama_build(o.ckpt_dir, o.tokenizer_path, &o.build, &model, &err) != LLAMA_OK) {
    fprintf(stderr, "chat: %s\n", err.message);
    return 1;
  }
  if (system_text != NULL) add("system", system_text, strlen(system_text));
  first = n_msgs;
  o.generate.on_event = on_event;

  for (;;) {
    llama_result_t *result;
    llama_status status;
    const char *text;
    const int32_t *tokens;
    size_t len, n_tokens;
    int32_t reason;
    int limited;

    printf("> ");
    fflush(stdout);
    signal(SIGINT, SIG_DFL);
    line = read_line();
    if (line == NULL || strcmp(line, "/quit") == 0) break;
    if (strcmp(line, "/reset") == 0) {
      forget(first, n_msgs - first);
      printf("[forgotten]\n");
      continue;
    }
    if (line[strspn(line, " \t\r")] == 0) continue;
    add("user", line, strlen(line));
    if (!make_room(model, first, o.build.max_seq_len)) {
      forget(n_msgs - 1, 1);
      continue;
    }

    o.generate.cancel = cancel = llama_cancel_new();
    signal(SIGINT, on_interrupt);
    status = llama_chat_completion(model, msgs, &n_msgs, 1, &o.generate, &result, &err);
    llama_cancel_free(o.generate.cancel);
    if (status != LLAMA_OK && status != LLAMA_CANCELLED) {
      fprintf(stderr, "chat: %s\n", err.message);
      forget(n_msgs - 1, 1);
      if (status == LLAMA_E_INVALID_ARGUMENT || status == LLAMA_E_UTF8 ||
          status == LLAMA_E_TOO_LONG)
        continue; /* the message was at fault */
      failed = 1;
      break;
    }
    reason = llama_result_finish_reason(result, 0);
    llama_result_text(result, 0, &text, &len);
    llama_result_tokens(result, 0, &tokens, &n_tokens);
    limited = o.generate.max_gen_len > 0 && n_tokens >= o.generate.max_gen_len;
    printf("%s\n", reason == LLAMA_FINISH_CANCELLED ? " [stopped]"
                   : reason != LLAMA_FINISH_LENGTH  ? ""
                   : limited                        ? " [--max_gen_len]"
                                                    : " [no more room]");
    if (reason == LLAMA_FINISH_UNSAFE)
      forget(n_msgs - 1, 1);
    else
      add("assistant", text, len);
    llama_result_free(result);
  }
  printf("\n");
  forget(0, n_msgs);
  free(msgs);
  llama_free(model);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    perror("chat: standard output");
    failed = 1;
  }
  return failed;
}
