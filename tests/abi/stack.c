/* Calls on a thread with little stack: a host's thread may have no more, and templates and messages
 * may be nested as deep as they want. */
#include "abi.h"

/* What docs/behaviour.md promises to need. */
enum { STACK = 128 << 10, DEEP = 190 };

static const char *model_dir;

/* A list of lists, as an expression of a template or as JSON. */
static void nested(char *to, const char *before, int levels, const char *after) {
  char *at = to;
  int i;
  at += sprintf(at, "%s", before);
  for (i = 0; i < levels; i++) *at++ = '[';
  *at++ = '1';
  for (i = 0; i < levels; i++) *at++ = ']';
  sprintf(at, "%s", after);
}

static void *calls(void *unused) {
  static char template[1024], messages[1024], text[4096];
  const size_t end = SIZE_MAX;
  llama_build_options b;
  llama_chat_options c;
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  llama_t *l = NULL;
  const char *prompt = "Once";
  size_t n;
  (void)unused;
  nested(template, "{% for m in messages %}{{ m.content }}{{ ", DEEP, " }}{% endfor %}");
  nested(messages, "[{\"role\": \"user\", \"content\": \"a\", \"own\": ", 120, "}]");
  llama_build_options_init(&b, sizeof b, LLAMABI_ABI_VERSION);
  b.device = LLAMA_DEVICE_CPU;
  b.chat_template = template;
  EXPECT(LLAMA_OK, llama_build(model_dir, NULL, &b, &l, err));
  if (l == NULL) return NULL;
  llama_chat_options_init(&c, sizeof c);
  EXPECT(LLAMA_OK, llama_render_chat(l, messages, end, &c, text, sizeof text, &n, err));
  CHECK(strncmp(text, "a[[[", 4) == 0 && n == 2 + 2 * DEEP);
  c.chat_template = template;
  c.chat_template_len = end;
  EXPECT(LLAMA_OK, llama_render_chat(l, messages, end, &c, text, sizeof text, &n, err));
  c.variables = "{\"a\": {\"b\": [[[[[[[[1]]]]]]]]}}";
  c.variables_len = end;
  EXPECT(LLAMA_OK, llama_render_chat(l, messages, end, &c, text, sizeof text, &n, err));
  /* Macros that call each other until that is refused. */
  c.chat_template = "{% macro f(x) %}{{ [(f(x + 1))] }}{% endmacro %}{{ f(0) }}";
  EXPECT(LLAMA_E_FORMAT, llama_render_chat(l, messages, end, &c, text, sizeof text, &n, err));
  o.max_gen_len = 4;
  EXPECT(LLAMA_OK, llama_text_completion(l, &prompt, NULL, 1, &o, &r, err));
  llama_result_free(r);
  llama_free(l);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_attr_t small;
  pthread_t thread;
  if (argc != 2) return 2;
  model_dir = argv[1];
  CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
  CHECK(pthread_create(&thread, &small, calls, NULL) == 0 && pthread_join(thread, NULL) == 0);
  pthread_attr_destroy(&small);
  return summary("stack");
}
