/* A random call: of each function of the C API, with arguments of options.h, and what is checked of
 * its answer. */
#ifndef CALLS_H
#define CALLS_H

#include "callbacks.h"

/* Who makes them. */
static unsigned n_threads = 4;
static pthread_t threads[64];

static void keep_result(llama_result_t *r) {
  size_t i, j, n, count;
  if (r == NULL) return;
  count = CALL(result_count)(r);
  for (i = 0; i <= count; i++) {
    const int32_t *tokens;
    const float *logprobs;
    const char *text;
    const llama_alternative *top;
    llama_status expected = i < count ? LLAMA_OK : INVALID;
    if (CALL(result_tokens)(r, i, &tokens, &n) != expected) fail("result_tokens", (long)i, "");
    if (expected != LLAMA_OK) break;
    read_all(tokens, n * sizeof *tokens);
    for (j = 0; j < n; j++) {
      size_t k;
      CHECK(CALL(result_top_logprobs)(r, i, j, &top, &k) == LLAMA_OK);
      read_all(top, k * sizeof *top);
    }
    CHECK(CALL(result_logprobs)(r, i, &logprobs, &n) == LLAMA_OK);
    read_all(logprobs, n * sizeof *logprobs);
    CHECK(CALL(result_text)(r, i, &text, &n) == LLAMA_OK && text[n] == 0);
    read_all(text, n);
    CHECK(CALL(result_finish_reason)(r, i) >= LLAMA_FINISH_STOP);
  }
  r = atomic_exchange(&results[below(SLOTS)], r);
  if (r != NULL) CALL(result_free)(r);
}

static void keep_stream(llama_stream_t *s) {
  unsigned i = below(SLOTS);
  if (self->depth > 0) i = READ_STREAMS + i % READ_STREAMS; /* see free_stream */
  if (i < READ_STREAMS) pthread_mutex_lock(&reading[i]);
  s = atomic_exchange(&streams[i], s);
  if (s != NULL) CALL(stream_free)(s);
  if (i < READ_STREAMS) pthread_mutex_unlock(&reading[i]);
}

/* Not those that are read inside a callback, which holds a slot that the reader may wait for. */
static void free_stream(void) {
  unsigned i = below(SLOTS);
  if (i < READ_STREAMS && (self->depth > 0 || pthread_mutex_trylock(&reading[i]) != 0)) return;
  CALL(stream_free)(take(streams, i));
  if (i < READ_STREAMS) pthread_mutex_unlock(&reading[i]);
}

static void next_event(void) {
  static const int32_t timeouts[] = {0, 1, 3, -1, -7};
  unsigned i = below(SLOTS), n;
  llama_error *e = an_error();
  llama_event *ev = edge(sizeof *ev);
  if (self->depth > 0) i = READ_STREAMS;
  ev->struct_size = one_in(20) ? 16 + below(100) : sizeof *ev;
  if (ev->struct_size > sizeof *ev) ev->struct_size = sizeof *ev;
  if (i >= READ_STREAMS) {
    /* not one that somebody reads: that is what the header asks of callers */
    void *s = one_in(4) ? self->stale[below(8)] : atomic_load(&streams[i]);
    llama_status status = CALL(stream_next)(s, ev, timeouts[below(5)], e);
    check("stream_next", status, e, 0);
    return;
  }
  if (pthread_mutex_trylock(&reading[i]) != 0) return;
  for (n = below(12); n > 0; n--) {
    llama_status status = CALL(stream_next)(atomic_load(&streams[i]), ev, timeouts[below(4)], e);
    check("stream_next", status, e, 0);
    if (status != LLAMA_OK) break;
    if (ev->struct_size < sizeof *ev) continue;
    CHECK(ev->text[ev->text_len] == 0);
    read_all(ev->text, ev->text_len);
    read_all(ev->top, ev->n_top * sizeof *ev->top);
  }
  pthread_mutex_unlock(&reading[i]);
}

/* Prompts for one of the seven functions that take them. */
static void run_prompts(void) {
  int valid = 1;
  size_t few = one_in(30) ? below(6) : 1 + below(3), i, total = 0;
  size_t n = one_in(99) ? SIZE_MAX - below(9) : few; /* too many to be looked at */
  size_t *lens = edge(few * sizeof *lens);
  llama_t *l = a_handle(&valid);
  unsigned which = below(6), kind = which % 3;
  llama_generate_options *o = some_options(&valid, which < 3);
  llama_result_t *r = NULL, **out = one_in(30) ? NULL : &r;
  llama_stream_t *s = NULL;
  const int32_t *tokens = NULL;
  const char **texts = NULL;
  const llama_message *messages = NULL;
  llama_error *e = an_error();
  llama_status status;
  if (n != few || n == 0 || out == NULL || self->depth > 0) valid = 0;
  if (n > 3) valid = 0; /* more than max_batch_size */
  for (i = 0; i < few; i++) {
    lens[i] = kind == 2 ? 1 + 2 * below(2) : 1 + below(8);
    if (one_in(60)) lens[i] = 0, valid = 0;
    total += lens[i];
  }
  if (few > 0 && one_in(80)) {
    lens[few - 1] = SIZE_MAX - below(9);
    valid = 0;
    total = 0;
  }
  if (kind == 0) tokens = some_tokens(total, &valid);
  if (kind == 1) {
    const char *p[5];
    for (i = 0; i < few; i++) p[i] = a_text(&lens[i], &valid, 7);
    texts = edge(few * sizeof *texts);
    memcpy(texts, p, few * sizeof *p);
  }
  if (kind == 2) messages = some_messages(total > 8 ? 8 : total, &valid);
  if (kind == 2 && total > 8) return;
  if (n != few) tokens = NULL, texts = NULL, messages = NULL;
  switch (which) {
  case 0:
    status = CALL(generate)(l, tokens, lens, n, o, out, e);
    break;
  case 1:
    status = CALL(text_completion)(l, texts, lens, n, o, out, e);
    break;
  case 2:
    status = CALL(chat_completion)(l, messages, lens, n, o, out, e);
    break;
  case 3:
    status = CALL(stream_open)(l, tokens, lens, n, o, &s, e);
    break;
  case 4:
    status = CALL(stream_open_text)(l, texts, lens, n, o, &s, e);
    break;
  default:
    status = CALL(stream_open_chat)(l, messages, lens, n, o, &s, e);
    break;
  }
  check(export_names[which < 1   ? EXPORT_generate
                     : which < 3 ? EXPORT_text_completion
                                 : EXPORT_stream_open],
      status, e, valid);
  after_call();
  if (s != NULL) keep_stream(s);
  keep_result(r);
}

/* Messages, templates and variables, most of them well formed. */
static void use_chat(void) {
  static const char *const dialogs[] = {"[{\"role\":\"user\",\"content\":\"Once\"}]", "[", "{}",
      "[]", "[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]",
      "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\"}]"};
  int valid = 1;
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  llama_chat_options *c = some_chat_options();
  const char **texts = edge(sizeof *texts);
  size_t n = 0, cap = below(200);
  llama_result_t *r = NULL;
  llama_stream_t *s = NULL;
  texts[0] = dialogs[below(6)];
  switch (below(4)) {
  case 0:
    check("render_chat",
        CALL(render_chat)(l, texts[0], SIZE_MAX, c, edge(cap), cap, one_in(40) ? NULL : &n, e), e,
        0);
    break;
  case 1:
    check("encode_chat", CALL(encode_chat)(l, texts[0], SIZE_MAX, c, edge(cap * 4), cap, &n, e), e,
        0);
    break;
  case 2:
    check("chat", CALL(chat)(l, texts, NULL, 1, c, some_options(&valid, 1), &r, e), e, 0);
    break;
  default:
    check("stream_open_messages",
        CALL(stream_open_messages)(l, texts, NULL, 1, c, some_options(&valid, 0), &s, e), e, 0);
  }
  after_call();
  if (s != NULL) keep_stream(s);
  keep_result(r);
}

static void use_compression(void) {
  int valid = 1;
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  llama_compress_options *p = some_compress_options();
  llama_segment *s;
  size_t n = below(4), i;
  llama_result_t *r = NULL;
  s = edge(n * sizeof *s);
  for (i = 0; i < n; i++) {
    s[i].text = a_text(&s[i].len, &valid, 9);
    s[i].kind = one_in(40) ? (int32_t)draw() : (int32_t)below(3);
    s[i].reserved0 = one_in(80);
  }
  check("compress", CALL(compress)(l, s, n, p, one_in(40) ? NULL : &r, e), e, 0);
  after_call();
  keep_result(r);
}

static void use_tokenizer(void) {
  int valid = 1;
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  size_t len, n = 0, cap = below(40);
  unsigned flags_ = one_in(20) ? (unsigned)draw() : below(4);
  const char *p, *text;
  llama_status status;
  switch (below(4)) {
  case 0:
    text = a_text(&len, &valid, one_in(50) ? 900 : 12);
    if (one_in(2)) {
      status =
          CALL(encode_text)(l, text, len, flags_, edge(cap * 4), cap, one_in(40) ? NULL : &n, e);
      check("encode_text", status, e, 0);
    } else {
      status = CALL(encode_text_bounded)(l, text, len, flags_, one_in(2) ? SIZE_MAX : below(9),
          one_in(2) ? some(flags) : NULL, edge(cap * 4), cap, one_in(40) ? NULL : &n, e);
      check("encode_text_bounded", status, e, 0);
    }
    break;
  case 1: {
    int32_t *t = some_tokens(cap, &valid);
    size_t room = below(200);
    status = CALL(decode_tokens)(l, t, cap, edge(room), room, &n, e);
    check("decode_tokens", status, e, 0);
    break;
  }
  case 2:
    status = CALL(token_bytes)(l, (int32_t)below(300) - (one_in(20) ? 300 : 0), &p, &n, e);
    check("token_bytes", status, e, 0);
    if (status == LLAMA_OK && l == lasting) read_all(p, n + 1);
    break;
  default: {
    size_t k = below(4);
    llama_message *m = some_messages(k, &valid);
    status = CALL(encode_dialog)(l, m, k, edge(cap * 4), cap, &n, e);
    check("encode_dialog", status, e, 0);
  }
  }
}

static void ask(void) {
  int valid = 1;
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  llama_request_stats *st = edge(sizeof *st);
  size_t i = below(4);
  llama_status status;
  if (l != lasting) valid = 0;
  st->struct_size = sizeof *st;
  switch (below(8)) {
  case 0: {
    llama_info *info = edge(sizeof *info);
    info->struct_size = sizeof *info;
    status = CALL(get_info)(l, info, e);
    check("get_info", status, e, valid && !child());
    break;
  }
  case 1: {
    llama_timings *t = edge(sizeof *t);
    llama_rank *r = edge(sizeof *r);
    t->struct_size = sizeof *t;
    r->struct_size = sizeof *r;
    status = CALL(get_timings)(l, t, e);
    check("get_timings", status, e, valid && !child());
    check("health", CALL(health)(l, e), e, valid && !child());
    status = CALL(get_rank)(l, one_in(9) ? (uint32_t)draw() : 0, r, e);
    check("get_rank", status, e, 0);
    break;
  }
  case 2:
    check("stream_stats", CALL(stream_stats)(some(streams), i, st), NULL, 0);
    if (one_in(3)) check("stream_stop", CALL(stream_stop)(some(streams), i), NULL, 0);
    break;
  case 3:
    CALL(stream_fd)(some(streams));
    break;
  case 4:
    check("result_stats", CALL(result_stats)(some(results), i, st), NULL, 0);
    break;
  case 5: {
    const char *p;
    size_t n;
    float sum, score;
    check("result_score", CALL(result_score)(some(results), i, &sum, &score), NULL, 0);
    check("result_text", CALL(result_text)(some(results), i, &p, &n), NULL, 0);
    break;
  }
  case 6:
    CHECK(CALL(status_string)((int32_t)below(40) - 20) != NULL);
    break;
  default:
    CHECK(strcmp(CALL(version)(), LLAMABI_VERSION) == 0 &&
          CALL(abi_version)() == LLAMABI_ABI_VERSION);
    CALL(result_count)(some(results));
    CALL(result_finish_reason)(some(results), i);
  }
}

static void use_flags(void) {
  unsigned i = below(SLOTS);
  switch (below(4)) {
  case 0: {
    void *flag = CALL(cancel_new)();
    flag = atomic_exchange(&flags[i], flag);
    if (flag != NULL) CALL(cancel_free)(flag);
    break;
  }
  case 1:
    CALL(cancel_trigger)(some(flags));
    break;
  case 2:
    CALL(cancel_free)(take(flags, i));
    break;
  default:
    if (!child()) pthread_kill(threads[below(n_threads)], SIGUSR1);
  }
}

/* Compile, ask and free, on any handle and for any. */
static void use_grammars(void) {
  static const struct {
    int32_t kind;
    const char *source;
  } sources[] = {{LLAMA_GRAMMAR_JSON, NULL}, {LLAMA_GRAMMAR_REGEX, "(a|b)*c"},
      {LLAMA_GRAMMAR_REGEX, "[a-z ]{2,40}"}, {LLAMA_GRAMMAR_REGEX, "("},
      {LLAMA_GRAMMAR_CHOICE, "[\"a\",\"the\",\"upon a\"]"}, {LLAMA_GRAMMAR_CHOICE, "[1]"},
      {LLAMA_GRAMMAR_LARK, "start: \"a\" | \"a\" start"}, {LLAMA_GRAMMAR_LARK, "start: start"},
      {LLAMA_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"},
      {LLAMA_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}"}, {LLAMA_GRAMMAR_JSON_SCHEMA, "{\"type\":7}"}};
  int valid = 1;
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  llama_grammar_t *g = NULL;
  llama_status status;
  size_t which = below(11), len, words = below(20), needed, n;
  int32_t kind = sources[which].kind;
  const char *source = sources[which].source;
  switch (below(3)) {
  case 0:
    len = source == NULL || one_in(2) ? SIZE_MAX : strlen(source);
    if (one_in(20)) kind = (int32_t)draw();
    if (one_in(20)) source = a_text(&len, &valid, 9);
    status = CALL(grammar_new)(l, kind, source, len, one_in(40) ? NULL : &g, e);
    check("grammar_new", status, e, 0);
    CHECK(status == LLAMA_OK || g == NULL);
    g = atomic_exchange(&grammars[below(SLOTS)], g);
    if (g != NULL) CALL(grammar_free)(g);
    break;
  case 1:
    n = below(4);
    status = CALL(grammar_mask)(some(grammars), some_tokens(n, &valid), n, edge(words * 4), words,
        one_in(40) ? NULL : &needed, e);
    check("grammar_mask", status, e, 0);
    break;
  default:
    CALL(grammar_free)(one_in(3) ? take(grammars, below(SLOTS)) : some(grammars));
  }
}

/* Add and drop, whatever runs with them. */
static void use_adapters(void) {
  int valid = 1;
  unsigned slot = below(SLOTS);
  llama_t *l = a_handle(&valid);
  llama_error *e = an_error();
  uint32_t id = 0;
  llama_status status;
  if (one_in(3)) {
    const char *from = one_in(9) ? "/nonexistent" : one_in(9) ? dir : adapter_dir;
    float scale = one_in(20) ? NAN : one_in(20) ? 3e38f : 0.5f;
    status = CALL(adapter_add)(l, from, scale, one_in(40) ? NULL : &id, e);
    check("adapter_add", status, e, 0);
    CHECK((status == LLAMA_OK) == (id != 0));
    if (status != LLAMA_OK || l != lasting) return;
  }
  /* what others may choose just then; and so the number of those there are is bounded */
  id = atomic_exchange(&adapters[slot], id);
  if (one_in(9)) id = (uint32_t)draw();
  status = CALL(adapter_drop)(id == 0 ? l : lasting, id, e);
  check("adapter_drop", status, e, 0);
}

static void build(unsigned slot) {
  llama_build_options *b = some_build_options();
  llama_error *e = an_error();
  llama_t *l = NULL;
  llama_status status;
  const char *from = one_in(9) ? "/nonexistent" : one_in(2) ? dir : other_dir;
  if (one_in(5)) {
    const char *dirs[] = {"/nonexistent", dir, other_dir, NULL};
    b->comm = some_comm();
    status = CALL(worker_run)(dirs[below(4)], one_in(20) ? NULL : b, e);
    if (!child()) check("with ranks", status, e, 0);
    after_call();
    return;
  }
  status = CALL(build)(from, NULL, b, &l, e);
  /* a child may build its own, unless it was forked in here */
  if (!child() || self->forked_inside) check(b->comm ? "with ranks" : "build", status, e, 0);
  after_call();
  CHECK((status == LLAMA_OK) == (l != NULL));
  if (l == NULL) return;
  l = atomic_exchange(&handles[slot], l);
  if (l != NULL) CALL(destroy)(l);
}

static void any_call(void) {
  unsigned slot = below(SLOTS);
  switch (below(23)) {
  case 22:
    use_compression();
    break;
  case 20:
    use_grammars();
    break;
  case 21:
    if (one_in(3)) use_adapters();
    break;
  case 0:
  case 1:
  case 2:
  case 3:
    run_prompts();
    break;
  case 4:
  case 5:
  case 6:
  case 7:
    next_event();
    break;
  case 8:
  case 9:
    use_tokenizer();
    break;
  case 10:
    use_chat();
    break;
  case 11:
  case 12:
  case 13:
    ask();
    break;
  case 14:
  case 15:
    use_flags();
    break;
  case 16:
    free_stream();
    break;
  case 17:
    CALL(result_free)(one_in(2) ? take(results, slot) : NULL);
    break;
  case 18:
    if (one_in(20)) {
      if (self->depth == 0) build(slot);
    } else if (one_in(12)) {
      void *taken = take(handles, slot);
      if (one_in(2))
        CALL(free)(taken);
      else
        CALL(destroy)(taken);
    } else {
      void *stale = some(handles);
      if (stale != NULL && one_in(40) && stale != lasting) CALL(free)(stale);
    }
    break;
  default:
    if (one_in(400) && !child()) have_a_child();
  }
}

#endif
