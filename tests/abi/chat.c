/* Chats of messages as JSON: templates of the build and of the call, tools, variables, flags, what
   is refused, and that without a template Meta's Llama 2 format stays. */
#include "abi.h"

#define INVALID LLAMA_E_INVALID_ARGUMENT

static const char *dir;
static const char user[] = "[{\"role\":\"user\",\"content\":\"Once\"}]";
static const char template[] =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools\n{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

static llama_t *open_with(const char *text, int64_t now) {
  llama_build_options o;
  llama_t *l = NULL;
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  o.max_seq_len = 256;
  o.max_batch_size = 2;
  o.device = LLAMA_DEVICE_CPU;
  o.chat_template = text;
  o.chat_now = now;
  EXPECT(LLAMA_OK, llama_build(dir, NULL, &o, &l, err));
  return l;
}

static void renders(
    llama_t *l, const char *messages, const llama_chat_options *c, const char *expected) {
  char text[512];
  size_t n = 0, needed = 0;
  EXPECT(LLAMA_OK, llama_render_chat(l, messages, SIZE_MAX, c, NULL, 0, &needed, err));
  EXPECT(LLAMA_OK, llama_render_chat(l, messages, strlen(messages), c, text, sizeof text, &n, err));
  CHECK(n == needed && n == strlen(expected) && strcmp(text, expected) == 0);
  if (strcmp(text, expected) != 0) fprintf(stderr, "%s\ninstead of\n%s\n", text, expected);
  text[0] = 'x';
  if (needed > 1) {
    EXPECT(INVALID, llama_render_chat(l, messages, SIZE_MAX, c, text, needed - 1, &n, err));
    CHECK(n == needed && text[0] == 'x');
  }
}

static void templates(void) {
  llama_t *l = open_with(template, 0);
  llama_chat_options c;
  llama_chat_options_init(&c, sizeof c);
  CHECK(c.struct_size == sizeof c && c.flags == 0 && c.tools == NULL && c.tools_len == SIZE_MAX);
  renders(l, user, NULL, "<s>user: Once\nassistant:");
  renders(l, user, &c, "<s>user: Once\nassistant:");
  c.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
  c.variables = "{\"extra\":[1,\"x\"]}";
  renders(l, user, &c, "<s>user: Once\n1 tools\n[1, 'x']assistant:");
  c.flags = LLAMA_CHAT_NO_GENERATION_PROMPT;
  renders(l, user, &c, "<s>user: Once\n1 tools\n[1, 'x']");
  c.flags = LLAMA_CHAT_CONTINUE_FINAL;
  renders(l, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]",
      &c, "<s>user: a\nassistant: b");
  c.flags = 0;
  c.chat_template = "{{ messages | length }}xyz";
  c.chat_template_len = 23;
  renders(l, user, &c, "1");
  /* contents in a list, and arguments of calls as objects */
  llama_chat_options_init(&c, sizeof c);
  c.chat_template = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments.a }}";
  renders(l,
      "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],"
      "\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":7}\"}}]}]",
      &c, "x7");
  llama_free(l);
  l = open_with("{{ strftime_now('%Y') }}", 1000000000);
  renders(l, user, NULL, "2001");
  llama_free(l);
}

static void answers(void) {
  llama_t *l = open_with(template, 0);
  const char *two[2] = {user, user};
  llama_generate_options o = generate_defaults();
  llama_result_t *r = NULL;
  llama_stream_t *s = NULL;
  llama_event ev;
  int32_t tokens[256], dialog[256];
  size_t n = 0, m = 0;
  const char *text, *again;
  const llama_message message = {"user", "Once", SIZE_MAX, SIZE_MAX};
  const size_t one = 1;
  char streamed[512] = "";
  o.temperature = 0;
  o.max_gen_len = 8;
  EXPECT(LLAMA_OK, llama_chat(l, two, NULL, 2, NULL, &o, &r, err));
  CHECK(llama_result_count(r) == 2);
  CHECK(llama_result_text(r, 0, &text, &n) == LLAMA_OK);
  CHECK(llama_result_text(r, 1, &again, &m) == LLAMA_OK && n == m && memcmp(text, again, n) == 0);
  EXPECT(LLAMA_OK, llama_stream_open_messages(l, two, NULL, 1, NULL, &o, &s, err));
  ev.struct_size = sizeof ev;
  while (llama_stream_next(s, &ev, -1, NULL) == LLAMA_OK) strcat(streamed, ev.text);
  CHECK(strcmp(streamed, text) == 0);
  llama_stream_free(s);
  llama_result_free(r);
  /* messages as structs go through the template too, with any role that it takes */
  EXPECT(LLAMA_OK, llama_encode_chat(l, user, SIZE_MAX, NULL, tokens, 256, &n, err));
  EXPECT(LLAMA_OK, llama_encode_dialog(l, &message, 1, dialog, 256, &m, err));
  CHECK(n == m && n > 4 && memcmp(tokens, dialog, n * sizeof *tokens) == 0);
  EXPECT(LLAMA_OK, llama_chat_completion(l, &message, &one, 1, &o, &r, err));
  CHECK(llama_result_text(r, 0, &again, &m) == LLAMA_OK && strcmp(again, streamed) == 0);
  llama_result_free(r);
  llama_free(l);
}

static void refusals(void) {
  llama_t *l = open_with("{{ raise_exception('no ' ~ messages[0].role) }}", 0), *plain;
  llama_chat_options c;
  llama_result_t *r = NULL;
  llama_stream_t *s = NULL;
  const char *texts[2] = {user, NULL};
  char text[64];
  int32_t tokens[64];
  size_t n = 77;
  llama_chat_options_init(&c, sizeof c);
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(NULL, user, SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(l, NULL, SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(l, "[", SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX / 2, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, NULL, NULL, 64, &n, err));
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, NULL, text, 64, NULL, err));
  EXPECT(LLAMA_E_UTF8, llama_render_chat(l, "\xff", SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(INVALID, llama_encode_chat(l, user, SIZE_MAX, NULL, tokens, 64, &n, err));
  EXPECT(INVALID, llama_encode_chat(NULL, user, SIZE_MAX, NULL, tokens, 64, &n, err));
  EXPECT(LLAMA_E_BATCH, llama_chat(l, NULL, NULL, 0, NULL, NULL, &r, err));
  EXPECT(LLAMA_E_BATCH, llama_chat(l, NULL, NULL, SIZE_MAX, NULL, NULL, &r, err));
  EXPECT(INVALID, llama_chat(l, texts, NULL, 1, NULL, NULL, NULL, err));
  EXPECT(INVALID, llama_chat(l, texts, NULL, 2, NULL, NULL, &r, err));
  EXPECT(INVALID, llama_chat(l, texts, NULL, 1, NULL, NULL, &r, err));
  EXPECT(INVALID, llama_chat(NULL, texts, NULL, 1, NULL, NULL, &r, err));
  EXPECT(INVALID, llama_stream_open_messages(l, texts, NULL, 1, NULL, NULL, NULL, err));
  EXPECT(INVALID, llama_stream_open_messages(l, texts, NULL, 1, NULL, NULL, &s, err));
  c.flags = 8;
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.flags = 0;
  c.struct_size = 4;
  EXPECT(LLAMA_E_ABI, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.struct_size = 5000;
  EXPECT(LLAMA_E_ABI, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.struct_size = 8; /* an older caller's: what follows is not read */
  c.chat_template = (const char *)1;
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  llama_chat_options_init(&c, sizeof c);
  c.tools = "{}";
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.tools = NULL;
  c.variables = "{\"messages\":1}";
  EXPECT(INVALID, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.variables = NULL;
  c.chat_template = "{% if %}";
  EXPECT(LLAMA_E_FORMAT, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.chat_template = "{% include 'x' %}";
  EXPECT(LLAMA_E_UNSUPPORTED, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  c.chat_template = "{{ 'a' | center(9000000000000) }}";
  EXPECT(LLAMA_E_FORMAT, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  CHECK(n == 77 && r == NULL && s == NULL);
  llama_free(l);

  /* a template that cannot be read fails the calls that need it, and no build */
  l = open_with("{% if %}", 0);
  EXPECT(LLAMA_E_FORMAT, llama_render_chat(l, user, SIZE_MAX, NULL, text, 64, &n, err));
  c.chat_template = "fine";
  EXPECT(LLAMA_OK, llama_render_chat(l, user, SIZE_MAX, &c, text, 64, &n, err));
  CHECK(strcmp(text, "fine") == 0);
  llama_free(l);

  /* without a template: Meta's format, which has no text of its own */
  plain = open_with(NULL, 0);
  EXPECT(LLAMA_E_UNSUPPORTED, llama_render_chat(plain, user, SIZE_MAX, NULL, text, 64, &n, err));
  EXPECT(LLAMA_OK, llama_encode_chat(plain, user, SIZE_MAX, NULL, tokens, 64, &n, err));
  EXPECT(INVALID, llama_encode_chat(plain, "[{\"role\":\"user\",\"content\":\"[INST]\"}]", SIZE_MAX,
                      NULL, tokens, 64, &n, err));
  EXPECT(INVALID, llama_encode_chat(plain, "[{\"role\":\"robot\",\"content\":\"a\"}]", SIZE_MAX,
                      NULL, tokens, 64, &n, err));
  llama_free(plain);
}

int main(int argc, char **argv) {
  (void)argc;
  dir = argv[1];
  templates();
  answers();
  refusals();
  return summary("chat");
}
