/* Continue a prompt and print the text as it comes.
 *
 *   make examples
 *   build/generate --ckpt_dir DIR --prompt "Once upon a time"
 */
#include "options.h"

#include <signal.h>

static const char usage[] =
    "usage: generate --ckpt_dir DIR --prompt TEXT [option value]...\n"
    "\n"
    "  --prompt TEXT             what to continue\n"
    "  --stop TEXT               stop before this text; may be given again\n"
    "  --max_seq_len N           room for prompt and answer, in tokens (512)\n" COMMON_USAGE "\n"
    "Ctrl-C stops the generation; what there is by then stays.\n";

static const char *prompt, *stop[16];
static llama_cancel_t *cancel;

static void on_interrupt(int number) {
  llama_cancel_trigger(cancel); /* may be called from a signal handler */
  signal(number, SIG_DFL);      /* the second one kills */
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  (void)user_data;
  fwrite(ev->text, 1, ev->text_len, stdout);
  return fflush(stdout) == 0; /* 0 stops: nobody reads any more */
}

static int own_option(struct options *o, const char *name, const char *value) {
  if (strcmp(name, "prompt") == 0)
    prompt = value;
  else if (strcmp(name, "stop") == 0) {
    if (o->generate.n_stop == sizeof stop / sizeof *stop)
      fail(o, name, value, "given at most 16 times");
    stop[o->generate.n_stop++] = value;
  } else
    return 0;
  return 1;
}

/* 0, or 1 after a sentence to standard error. */
static int run(struct options *o, llama_t *model) {
  llama_error err;
  llama_result_t *result;
  llama_request_stats stats;
  llama_status status;

  /* With the prompt echoed, prompt and answer are one text: an answer alone has lost its first
   * space. */
  o->generate.flags = LLAMA_GEN_ECHO;
  o->generate.cancel = cancel;
  o->generate.on_event = on_event;
  err.struct_size = sizeof err;
  status = llama_text_completion(model, &prompt, NULL, 1, &o->generate, &result, &err);
  if (status != LLAMA_OK && status != LLAMA_CANCELLED) {
    fprintf(stderr, "generate: %s\n", err.message);
    return 1;
  }

  stats.struct_size = sizeof stats;
  llama_result_stats(result, 0, &stats);
  llama_result_free(result);
  printf("\n\n%u prompt tokens, %u generated tokens%s, first token after %.1f ms",
      stats.prompt_tokens, stats.generated_tokens, status == LLAMA_CANCELLED ? " (stopped)" : "",
      stats.first_token_ms);
  if (stats.generated_tokens > 1 && stats.total_ms > stats.first_token_ms)
    printf(", then %.1f tokens/s",
        (stats.generated_tokens - 1) * 1e3 / (stats.total_ms - stats.first_token_ms));
  printf("\n");
  if (fflush(stdout) != 0 || ferror(stdout)) {
    perror("generate: standard output");
    return 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  struct options o;
  llama_error err;
  llama_t *model;
  int failed = 1;

  options_init(&o, "generate", usage);
  o.generate.stop = stop;
  read_options(&o, argc, argv, own_option);
  if (prompt == NULL) {
    fprintf(stderr, "generate: --prompt is needed\n\n%s", usage);
    return 2;
  }

  cancel = llama_cancel_new();
  signal(SIGINT, on_interrupt);
  o.build.cancel = cancel;
  err.struct_size = sizeof err;
  if (llama_build(o.ckpt_dir, o.tokenizer_path, &o.build, &model, &err) == LLAMA_OK)
    failed = run(&o, model);
  else
    fprintf(stderr, "generate: %s\n", err.message);
  llama_free(model); /* NULL where it was not built */
  llama_cancel_free(cancel);
  return failed;
}
