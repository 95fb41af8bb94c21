/* Messages, and options with every field, valid and invalid. tests/abi/random_caller.rs compares
 * the names of the fields with the header. Numbers with a range are set by ../abi/ranges.def. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "arguments.h"
#include "heads.h"

#include <math.h>

/* ---- options of a generation ---- */

static int32_t on_event(void *user_data, const llama_event *ev);
static int32_t on_logits(void *user_data, const llama_logits *row);
static int32_t on_stop(
    void *user_data, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt);

/* Some of 0 to `most`, mostly few. */
static size_t how_many(unsigned most) { return one_in(20) ? below(most + 1) : below(4); }

static int32_t a_token(void) { return (int32_t)(3 + below(250)); }

/* The lists of tokens. */
static void some_lists(llama_generate_options *o, int *valid) {
  size_t i, total = 0;
  if (one_in(6)) {
    llama_bias *biases;
    o->n_logit_bias = how_many(4000);
    o->logit_bias = biases = edge(o->n_logit_bias * sizeof *biases);
    for (i = 0; i < o->n_logit_bias; i++) {
      biases[i].token = a_token();
      biases[i].bias = one_in(9) ? -INFINITY : (float)below(9) * 1e37f - 3e37f;
    }
  }
  if (one_in(6)) {
    o->n_stop_tokens = how_many(4000);
    o->stop_tokens = some_tokens(o->n_stop_tokens, valid);
  }
  if (one_in(6)) {
    size_t *lens;
    o->n_bad_words = how_many(2000);
    o->bad_word_lens = lens = edge(o->n_bad_words * sizeof *lens);
    for (i = 0; i < o->n_bad_words; i++) total += lens[i] = 1 + below(3);
    o->bad_words = some_tokens(total, valid);
  }
  if (one_in(6)) {
    o->n_predicted = how_many(4000);
    o->predicted = some_tokens(o->n_predicted, valid);
  }
  if (!one_in(40)) return;
  *valid = 0;
  /* longer than they may be, or with something in them that may not be */
  switch (below(7)) {
  case 0:
    o->n_logit_bias = SIZE_MAX >> below(40);
    break;
  case 1:
    o->n_stop_tokens = SIZE_MAX >> below(40);
    break;
  case 2:
    o->n_bad_words = SIZE_MAX >> below(40);
    break;
  case 3:
    if (o->n_bad_words > 0) ((size_t *)(uintptr_t)o->bad_word_lens)[0] = SIZE_MAX - below(9);
    break;
  case 4:
    if (o->n_bad_words > 0) ((size_t *)(uintptr_t)o->bad_word_lens)[0] = 0;
    break;
  case 5:
    o->n_predicted = SIZE_MAX >> below(40);
    break;
  default:
    if (o->n_logit_bias > 0)
      ((llama_bias *)(uintptr_t)o->logit_bias)[0].bias = one_in(2) ? INFINITY : NAN;
  }
}

/* Phrases that a search must write. */
static void some_phrases(llama_generate_options *o, int *valid) {
  size_t *words, *groups, i, n_words = 0, n_tokens = 0;
  o->n_force_groups = below(4);
  o->force_group_lens = groups = edge(o->n_force_groups * sizeof *groups);
  for (i = 0; i < o->n_force_groups; i++) n_words += groups[i] = one_in(20) ? 0 : 1 + below(2);
  o->force_word_lens = words = edge(n_words * sizeof *words);
  for (i = 0; i < n_words; i++) n_tokens += words[i] = one_in(20) ? 0 : 1 + below(3);
  o->force_words = some_tokens(n_tokens, valid);
  if (!one_in(20)) return;
  switch (below(3)) {
  case 0:
    o->n_force_groups = SIZE_MAX >> below(40);
    break;
  case 1:
    if (o->n_force_groups > 0) groups[0] = SIZE_MAX - below(9);
    break;
  default:
    if (n_words > 0) words[0] = SIZE_MAX >> below(40);
  }
}

static float some_float(float least, float most) {
  float x = (float)below(most > 1 ? 31 : 11) / 10;
  if (one_in(9)) return one_in(2) ? least : most;
  if (least < 0 && one_in(2)) x = -x;
  return x < least ? least : x > most ? most : x;
}

static uint32_t some_integer(uint32_t least, uint32_t most) {
  uint32_t n = below(most - least < 4 ? most - least + 1 : 5);
  return one_in(9) ? most - n : least + n;
}

/* What chooses the tokens. */
static void some_strategy(llama_generate_options *o, int *valid) {
  o->temperature = one_in(2) ? 0 : 0.8f;
#define FLOAT(field, least, most)                                                                  \
  if (one_in(6)) o->field = some_float(least, most);
#define INTEGER(field, least, most)                                                                \
  if (one_in(3)) o->field = some_integer(least, most);
#include "../abi/ranges.def"
  if (one_in(6)) o->min_gen_len = below(o->max_gen_len < 8 ? o->max_gen_len + 1 : 8);
  if (one_in(3)) o->speculation = (int32_t)below(5);
  if (one_in(6)) {
    o->contrast_beta = 0.5f;
    *valid = 0; /* what bans leave may not be likely enough */
  }
  if (!one_in(20)) return;
  *valid = 0;
  switch (below(6)) {
  case 0:
    o->speculation = 5 + (int32_t)below(3);
    break;
  case 1:
    o->contrast_beta = one_in(2) ? -1 : NAN;
    break;
  case 2:
    o->min_gen_len = UINT32_MAX - below(2);
    break;
  default:
#define OUTSIDE(field, value)                                                                      \
  if (one_in(20)) o->field = value;
#include "../abi/ranges.def"
    break;
  }
}

/* Options in as many bytes as they say. */
static llama_generate_options *some_options(int *valid, int may_listen) {
  llama_generate_options o;
  size_t size = sizeof o;
  char *at;
  if (one_in(6)) return NULL;
  CALL(generate_options_init)(&o, sizeof o);
  o.max_gen_len = below(8);
  if (one_in(40)) o.max_gen_len = LLAMABI_MAX_GEN_LEN_DEFAULT;
  o.flags = below(16) & (one_in(3) ? 15u : ~(unsigned)LLAMA_GEN_NO_WAIT);
  if (one_in(4)) o.flags |= LLAMA_GEN_SPECIAL;
  o.seed = one_in(2) ? 0 : draw();
  o.top_logprobs = one_in(3) ? below(6) : 0;
  o.cache_salt = below(3);
  if (one_in(4)) o.num_return_sequences = below(4);
  if (one_in(8)) o.max_time_ms = below(4);
  some_strategy(&o, valid);
  some_lists(&o, valid);
  if (one_in(4)) {
    static const char *const stops[] = {"th", "e ", "\xc3\xa9"};
    o.n_stop = 1 + below(3);
    o.stop = memcpy(edge(o.n_stop * sizeof *stops), stops, o.n_stop * sizeof *stops);
  }
  if (one_in(3)) {
    o.cancel = some(flags);
    *valid = 0;
  }
  if (one_in(6)) {
    o.grammar = some(grammars);
    *valid = 0;
  }
  if (one_in(4)) {
    o.adapter = one_in(9) ? (uint32_t)draw() : atomic_load(&adapters[below(SLOTS)]);
    *valid = 0;
  }
  if (one_in(5)) { /* perhaps more than there are slots, or fewer than results */
    o.num_beams = 1 + below(4);
    o.num_return_sequences = below(4);
    o.length_penalty = (float)below(5) - 1.5f;
    o.early_stopping = (int32_t)below(3);
    if (one_in(2)) o.flags |= LLAMA_GEN_BEAM_EVENTS;
    if (one_in(2)) some_phrases(&o, valid);
    *valid = 0;
  }
  /* a stream has them called by whoever reads it, which few are */
  if (one_in(may_listen ? 6 : 20)) {
    o.on_logits = on_logits;
    *valid = 0;
  }
  if (one_in(6)) {
    o.on_stop = on_stop;
    *valid = 0;
  }
  o.user_data = self;
  if (may_listen && one_in(2)) o.on_event = on_event;
  switch (below(60)) {
  case 0:
    o.flags = (uint32_t)draw();
    *valid = 0;
    break;
  case 1:
    o.n_stop = SIZE_MAX >> below(40);
    *valid = 0;
    break;
  case 2:
    o.reserved1 = 1;
    *valid = 0;
    break;
  case 3:
    o.top_logprobs = UINT32_MAX;
    *valid = 0;
    break;
  case 4:
    o.num_return_sequences = 4 + (uint32_t)draw() / 2;
    *valid = 0;
    break;
  case 5:
    o.on_event = on_event;
    *valid = *valid && may_listen;
    break;
  case 6:
    size = 8 + 8 * below(40);
    *valid = 0;
    break; /* older and newer headers, and nonsense */
  default:
    break;
  }
  at = edge(size);
  memset(at, 0, size);
  memcpy(at, &o, size < sizeof o ? size : sizeof o);
  memcpy(at, &(uint32_t){(uint32_t)size}, 4);
  return (llama_generate_options *)(void *)at;
}

static llama_message *some_messages(size_t n, int *valid) {
  static const char *const roles[] = {"user", "assistant", "system", "tool"};
  llama_message m[8], *at;
  size_t i;
  for (i = 0; i < n; i++) {
    m[i].role = roles[one_in(20) ? below(4) : i % 2];
    m[i].role_len = one_in(2) ? SIZE_MAX : strlen(m[i].role);
    m[i].content = a_text(&m[i].content_len, valid, 6);
  }
  *valid = 0; /* roles in turn are the library's to judge */
  at = edge(n * sizeof *at);
  return memcpy(at, m, n * sizeof *at);
}

/* ---- options of a model, and of a chat ---- */

static int32_t on_progress(void *user_data, float fraction);
static void on_log(void *user_data, int32_t level, const char *msg, size_t len);

/* ---- other ranks, which talk nonsense ---- */

static int32_t says_nothing(
    void *user_data, uint32_t to, const void *bytes, size_t n, const llama_wait *w) {
  (void)user_data, (void)to, (void)bytes, (void)n;
  return w->go_on(w->context) ? 0 : 0;
}

/* A message whose header is right, so that somebody looks at the rest, or is not. */
static int32_t says_anything(
    void *user_data, uint32_t from, void *bytes, size_t capacity, size_t *n, const llama_wait *w) {
  uint32_t *number = user_data, header[4] = {below(20), below(64), (*number)++, 0};
  unsigned char *body = (unsigned char *)bytes + sizeof header;
  size_t i;
  (void)from, (void)w;
  if (one_in(4)) header[below(4)] = (uint32_t)draw();
  *n = one_in(9) ? below(16) : sizeof header + header[1] % 4096;
  if (*n > capacity) *n = capacity;
  for (i = sizeof header; i < *n; i++, body++) *body = one_in(2) ? 0 : (unsigned char)draw();
  memcpy(bytes, header, *n < sizeof header ? *n : sizeof header);
  return 0;
}

static int32_t gathers_nothing(
    void *user_data, const void *mine, void *all, size_t n, const llama_wait *w) {
  (void)user_data, (void)mine, (void)all, (void)n, (void)w;
  return 0;
}

static const llama_comm *some_comm(void) {
  llama_comm *c = edge(sizeof *c);
  uint32_t *number = edge(sizeof *number);
  memset(c, 0, sizeof *c);
  *number = 0;
  c->struct_size = sizeof *c;
  c->size = one_in(9) ? (uint32_t)draw() : 2 + below(3);
  c->rank = below(4);
  c->user_data = number;
  c->send = says_nothing;
  c->receive = says_anything;
  c->all_gather = c->all_to_all = gathers_nothing;
  if (one_in(20)) c->receive = NULL;
  if (one_in(20)) c->reserved0 = 1;
  return c;
}

static llama_build_options *some_build_options(void) {
  llama_build_options *b = edge(sizeof *b);
  CALL(build_options_init)(b, sizeof *b, LLAMABI_ABI_VERSION);
  b->device = LLAMA_DEVICE_CPU;
  b->max_seq_len = 16 + below(60);
  b->max_batch_size = 1 + below(3);
  b->n_threads = 1 + below(2);
  b->seed = draw();
  if (one_in(3)) b->weights_dtype = (int32_t)below(LLAMA_DTYPE_UINT4 + 2);
  if (one_in(3)) b->kv_dtype = (int32_t)below(LLAMA_DTYPE_UINT4 + 2);
  if (one_in(2)) b->progress = on_progress;
  if (one_in(2)) b->log = on_log;
  b->progress_user_data = b->log_user_data = self;
  b->log_level = (int32_t)below(5);
  b->cancel = one_in(4) ? some(flags) : NULL;
  if (one_in(2)) b->max_waiting = 1 + below(2);
  if (one_in(2)) b->max_stall_ms = 1 + below(3);
  if (one_in(2)) b->precision = (int32_t)below(3);
  if (one_in(4)) b->max_step_ms = one_in(9) ? UINT32_MAX : 1 + below(200);
  if (one_in(2)) b->max_unread_ms = one_in(9) ? UINT32_MAX : 1 + below(20);
  if (one_in(2)) b->stall_memory_bytes = 1 + below(50000);
  if (one_in(4)) b->chat_template = one_in(4) ? "{% if %}" : "{{ messages[0].content }}";
  if (one_in(4)) b->chat_now = (int64_t)draw();
  if (one_in(4)) {
    const char **adapters_ = edge(2 * sizeof *adapters_);
    float *scales = edge(2 * sizeof *scales);
    adapters_[0] = adapter_dir;
    adapters_[1] = one_in(9) ? "/nonexistent" : adapter_dir;
    scales[0] = 0.5f;
    scales[1] = one_in(9) ? NAN : -0.5f;
    b->adapters = adapters_;
    if (one_in(2)) b->adapter_scales = scales;
    b->n_adapters = one_in(20) ? SIZE_MAX : below(3);
  }
  if (one_in(6)) {
    int32_t *devices = edge(2 * sizeof *devices);
    devices[0] = 0;
    devices[1] = one_in(9) ? 99 : 0;
    b->devices = devices;
    b->n_devices = one_in(20) ? UINT32_MAX : below(3);
    if (one_in(2)) b->rank_timeout_ms = 1 + below(100000);
  }
  if (one_in(20)) b->comm = some_comm();
  if (one_in(9)) b->nccl_unique_id = edge(128);
  if (one_in(3)) {
    const char *dirs[] = {dir, other_dir, "/nonexistent"};
    b->draft_dir = dirs[one_in(9) ? 2 : below(2)];
    if (one_in(3)) b->draft_weights_dtype = (int32_t)below(LLAMA_DTYPE_UINT4 + 2);
    if (one_in(3)) b->draft_kv_dtype = (int32_t)below(LLAMA_DTYPE_UINT4 + 2);
  }
  if (one_in(4)) b->medusa_dir = one_in(9) ? dir : heads_dir;
  switch (below(24)) {
  case 0:
    b->device = 77;
    break;
  case 1:
    b->abi_version = 9;
    break;
  case 2:
    b->max_seq_len = 0;
    break;
  case 3:
    b->max_batch_size = UINT32_MAX;
    b->max_seq_len = UINT32_MAX;
    break;
  case 4:
    b->n_threads = 5000;
    break;
  case 5:
    b->reserved0 = 3;
    break;
  case 6:
    b->model_parallel_size = (int32_t)below(4) - 1;
    break;
  case 7:
    b->device_index = 1;
    break;
  case 8:
    b->gpu_memory_bytes = 1;
    break;
  default:
    break;
  }
  return b;
}

static llama_chat_options *some_chat_options(void) {
  static const char *const templates[] = {"{% for m in messages %}{{ m.content }}{% endfor %}",
      "{{ x | tojson(indent=2) }}{{ tools }}", "{% if %}", "{{ 'a' * 9 ** 9 }}", "",
      "{{ raise_exception('no') }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"};
  static const char *const values[] = {"[]", "{}", "{\"x\":[1,{\"y\":null}]}", "[1]", "{", "1"};
  llama_chat_options *c = edge(sizeof *c);
  CALL(chat_options_init)(c, sizeof *c);
  c->flags = one_in(30) ? (uint32_t)draw() : below(8);
  if (one_in(2)) c->chat_template = templates[below(7)];
  if (one_in(3)) c->tools = values[below(6)];
  if (one_in(3)) c->variables = values[below(6)];
  if (c->chat_template != NULL && one_in(2)) c->chat_template_len = strlen(c->chat_template);
  if (c->tools != NULL && one_in(2)) c->tools_len = below(1 + (unsigned)strlen(c->tools));
  if (c->variables != NULL && one_in(2)) c->variables_len = strlen(c->variables);
  if (one_in(60)) c->tools_len = SIZE_MAX - 1 - below(9);
  if (one_in(60)) c->struct_size = (uint32_t)below(sizeof *c + 1);
  return one_in(9) ? NULL : c;
}

/* How much of a prompt is left. */
static llama_compress_options *some_compress_options(void) {
  llama_compress_options *p = edge(sizeof *p);
  CALL(compress_options_init)(p, sizeof *p);
  p->flags = one_in(30) ? (uint32_t)draw() : below(4);
  if (one_in(2)) p->target_tokens = one_in(20) ? (uint32_t)draw() : below(30);
  if (one_in(3)) p->rate = one_in(9) ? NAN : (float)below(12) / 10.0f;
  if (one_in(2)) p->window = one_in(9) ? (uint32_t)draw() : below(9);
  if (one_in(3)) p->coarse = one_in(9) ? INFINITY : (float)below(9) / 2.0f;
  if (one_in(6)) p->cancel = some(flags);
  if (one_in(60)) p->struct_size = (uint32_t)below(sizeof *p + 1);
  return one_in(9) ? NULL : p;
}

#endif
