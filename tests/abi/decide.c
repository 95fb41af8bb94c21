/* Callbacks that decide: on_stop, on_logits and llama_stream_stop; what they may do inside. */
#include "abi.h"

#include <math.h>
#include <poll.h>

#define INVALID LLAMA_E_INVALID_ARGUMENT
enum { LEN = 8, MOST = 24, SEQUENCES = 3 };

static const char *dir;
static llama_t *l;
static llama_info info;
static int32_t prompt[SEQUENCES * LEN];
static const size_t lens[SEQUENCES] = {LEN, LEN, LEN};
static pthread_t caller;

typedef struct {
  int last;      /* on_stop: the token after which a sequence ends; 0: none */
  int32_t token; /* on_logits: what it does to this token */
  float add;     /* minus infinity bans it */
  int end;       /* on_logits: at this call it returns 0; 0: never */
  int act, acts; /* what it does inside, and how often it did */
  int stops, rows, events, asked_after_stop;
  int stopped[SEQUENCES];
  llama_stream_t *stream;
  llama_cancel_t *cancel;
} state;

static void inside(state *st) {
  llama_result_t *r = FOREIGN;
  llama_stream_t *s = FOREIGN;
  llama_event ev;
  char text[64];
  size_t n;
  ev.struct_size = sizeof ev;
  CHECK(pthread_equal(pthread_self(), caller));
  if (st->act == 0 || st->acts++ != 2) return;
  switch (st->act) {
  case 1: /* what is allowed, and what is not */
    EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
    EXPECT(LLAMA_OK, llama_decode_tokens(l, prompt, LEN, text, sizeof text, &n, err));
    EXPECT(INVALID, llama_generate(l, prompt, lens, 1, NULL, &r, err));
    EXPECT(INVALID, llama_stream_open(l, prompt, lens, 1, NULL, &s, err));
    EXPECT(INVALID, llama_stream_next(st->stream, &ev, 0, err));
    CHECK(r == FOREIGN && s == FOREIGN);
    if (st->stream != NULL) {
      CHECK(llama_stream_fd(st->stream) >= 0);
      CHECK(llama_stream_stop(st->stream, 1) == LLAMA_OK);
      st->stopped[1] = 1;
    }
    break;
  case 2:
    llama_cancel_trigger(st->cancel);
    break;
  case 3:
    llama_stream_free(st->stream);
    break;
  default:
    llama_free(l);
    break;
  }
}

static int32_t on_stop(
    void *user_data, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  state *st = user_data;
  CHECK(index < SEQUENCES && n_prompt == LEN && n > n_prompt);
  CHECK(memcmp(tokens, prompt + index * LEN, LEN * sizeof *tokens) == 0);
  st->stops++;
  if (st->stopped[index]) st->asked_after_stop++;
  inside(st);
  if (st->last == 0 || n - n_prompt != (size_t)st->last) return 0;
  st->stopped[index] = 1;
  return -7;
}

static int32_t on_logits(void *user_data, const llama_logits *row) {
  state *st = user_data;
  CHECK(row->struct_size == sizeof *row && row->index < SEQUENCES);
  CHECK(row->n_prompt == LEN && row->n_tokens >= LEN && row->n_logits == info.vocab_size);
  CHECK(memcmp(row->tokens, prompt + row->index * LEN, LEN * sizeof *row->tokens) == 0);
  st->rows++;
  inside(st);
  if (st->add == -INFINITY)
    row->logits[st->token] = st->rows % 2 ? -INFINITY : (float)NAN;
  else if (st->add != 0)
    row->logits[st->token] += st->add;
  return st->rows != st->end;
}

static int32_t on_event(void *user_data, const llama_event *ev) {
  state *st = user_data;
  (void)ev;
  st->events++;
  return 1;
}

static llama_generate_options options(state *st) {
  llama_generate_options o = generate_defaults();
  memset(st, 0, sizeof *st);
  o.flags = LLAMA_GEN_IGNORE_EOS | LLAMA_GEN_LOGPROBS;
  o.max_gen_len = MOST;
  o.top_logprobs = 2;
  o.seed = 5;
  o.user_data = st;
  return o;
}

static llama_result_t *generate(const llama_generate_options *o, size_t n) {
  llama_result_t *r = NULL;
  EXPECT(LLAMA_OK, llama_generate(l, prompt, lens, n, o, &r, err));
  return r;
}

/* Sequence `i` of `got` is the first `n` tokens of sequence `j` of `whole`, to the bit. */
static void same(
    const llama_result_t *got, size_t i, const llama_result_t *whole, size_t j, size_t n) {
  const int32_t *tokens, *all;
  const float *logprobs, *all_logprobs;
  const llama_alternative *top, *all_top;
  const char *text, *all_text;
  size_t m, k, len, all_len, at;
  CHECK(llama_result_tokens(got, i, &tokens, &m) == LLAMA_OK && m == n);
  CHECK(llama_result_tokens(whole, j, &all, &k) == LLAMA_OK && k >= n);
  CHECK(memcmp(tokens, all, n * sizeof *tokens) == 0);
  CHECK(llama_result_logprobs(got, i, &logprobs, &m) == LLAMA_OK && m == n);
  CHECK(llama_result_logprobs(whole, j, &all_logprobs, &m) == LLAMA_OK);
  CHECK(memcmp(logprobs, all_logprobs, n * sizeof *logprobs) == 0);
  for (at = 0; at < n; at++) {
    CHECK(llama_result_top_logprobs(got, i, at, &top, &m) == LLAMA_OK && m == 2);
    CHECK(llama_result_top_logprobs(whole, j, at, &all_top, &m) == LLAMA_OK && m == 2);
    CHECK(memcmp(top, all_top, 2 * sizeof *top) == 0);
  }
  CHECK(llama_result_text(got, i, &text, &len) == LLAMA_OK);
  CHECK(llama_result_text(whole, j, &all_text, &all_len) == LLAMA_OK);
  CHECK(n < k || (len == all_len && memcmp(text, all_text, len) == 0));
}

static void stopping(void) {
  state st;
  llama_generate_options o = options(&st);
  llama_result_t *whole = generate(&o, SEQUENCES), *r;
  llama_request_stats figures;
  size_t i;
  figures.struct_size = sizeof figures;
  for (int last = 1; last <= MOST + 1; last += last < 4 ? 1 : 7) {
    o = options(&st);
    o.on_stop = on_stop;
    o.on_event = on_event;
    st.last = last;
    r = generate(&o, SEQUENCES);
    for (i = 0; i < SEQUENCES; i++) {
      int n = last < MOST ? last : MOST;
      same(r, i, whole, i, (size_t)n);
      CHECK(llama_result_finish_reason(r, i) ==
            (last <= MOST ? LLAMA_FINISH_CALLER : LLAMA_FINISH_LENGTH));
      CHECK(llama_result_stats(r, i, &figures) == LLAMA_OK);
      CHECK(figures.generated_tokens == (uint32_t)n && figures.first_token_ms > 0);
    }
    CHECK(st.stops == SEQUENCES * (last < MOST ? last : MOST) && st.asked_after_stop == 0);
    CHECK(st.events == st.stops + SEQUENCES);
    llama_result_free(r);
    /* alone, and the text is what the tokens say */
    memset(st.stopped, 0, sizeof st.stopped);
    r = generate(&o, 1);
    same(r, 0, whole, 0, (size_t)(last < MOST ? last : MOST));
    {
      const int32_t *tokens;
      const char *text;
      char decoded[1024];
      size_t n, len, decoded_len;
      CHECK(llama_result_tokens(r, 0, &tokens, &n) == LLAMA_OK);
      CHECK(llama_result_text(r, 0, &text, &len) == LLAMA_OK);
      EXPECT(
          LLAMA_OK, llama_decode_tokens(l, tokens, n, decoded, sizeof decoded, &decoded_len, err));
      CHECK(len == decoded_len && memcmp(text, decoded, len) == 0);
    }
    llama_result_free(r);
  }
  llama_result_free(whole);
}

static void changing(void) {
  state st;
  llama_generate_options o = options(&st);
  llama_result_t *whole = generate(&o, SEQUENCES), *r, *biased;
  const int32_t *tokens;
  llama_bias bias[1];
  size_t n, i;
  o = options(&st);
  o.on_logits = on_logits;
  r = generate(&o, SEQUENCES);
  for (i = 0; i < SEQUENCES; i++) same(r, i, whole, i, MOST);
  CHECK(st.rows == SEQUENCES * MOST);
  llama_result_free(r);
  CHECK(llama_result_tokens(whole, 0, &tokens, &n) == LLAMA_OK && n == MOST);
  for (i = 0; i < 2; i++) {
    bias[0].token = tokens[5];
    bias[0].bias = i ? 3.5f : -INFINITY;
    o = options(&st);
    o.logit_bias = bias;
    o.n_logit_bias = 1;
    biased = generate(&o, SEQUENCES);
    o = options(&st);
    o.on_logits = on_logits;
    st.token = bias[0].token;
    st.add = bias[0].bias;
    r = generate(&o, SEQUENCES);
    for (n = 0; n < SEQUENCES; n++) same(r, n, biased, n, MOST);
    llama_result_free(r);
    llama_result_free(biased);
  }
  /* both at once, and 0 stops the call */
  o = options(&st);
  o.on_logits = on_logits;
  o.on_stop = on_stop;
  st.last = 3;
  r = generate(&o, SEQUENCES);
  for (i = 0; i < SEQUENCES; i++) same(r, i, whole, i, 3);
  CHECK(st.stops == 3 * SEQUENCES);
  llama_result_free(r);
  o = options(&st);
  o.on_logits = on_logits;
  st.end = 10;
  EXPECT(LLAMA_CANCELLED, llama_generate(l, prompt, lens, SEQUENCES, &o, &r, err));
  CHECK(st.rows == 10);
  for (i = 0; i < SEQUENCES; i++) {
    CHECK(llama_result_finish_reason(r, i) == LLAMA_FINISH_CANCELLED);
    CHECK(llama_result_tokens(r, i, &tokens, &n) == LLAMA_OK && n < 10);
    same(r, i, whole, i, n);
  }
  llama_result_free(r);
  llama_result_free(whole);
}

/* The end of a stream, and how many tokens of each sequence came; `n[i]` is -1 until it ends. */
static llama_status drain(llama_stream_t *s, int *n, int32_t *reasons) {
  llama_event ev;
  llama_status status;
  int tokens[SEQUENCES] = {0}, i;
  for (i = 0; i < SEQUENCES; i++) n[i] = -1;
  ev.struct_size = sizeof ev;
  while ((status = llama_stream_next(s, &ev, -1, NULL)) == LLAMA_OK) {
    CHECK(n[ev.index] == -1);
    if (ev.kind == LLAMA_EVENT_TOKEN) {
      tokens[ev.index]++;
    } else {
      n[ev.index] = tokens[ev.index];
      reasons[ev.index] = ev.finish_reason;
    }
  }
  return status;
}

static void streaming(void) {
  state st;
  llama_generate_options o = options(&st);
  llama_stream_t *s = NULL;
  llama_event ev;
  int n[SEQUENCES], way, i, polls;
  int32_t reasons[SEQUENCES];
  llama_status status;
  ev.struct_size = sizeof ev;
  for (way = 0; way < 2; way++) {
    o = options(&st);
    if (way) o.on_logits = on_logits;
    o.on_stop = on_stop;
    st.last = 4;
    EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, SEQUENCES, &o, &s, err));
    CHECK(st.stops == 0 && st.rows == 0);
    CHECK(drain(s, n, reasons) == LLAMA_DONE);
    for (i = 0; i < SEQUENCES; i++) CHECK(n[i] == 4 && reasons[i] == LLAMA_FINISH_CALLER);
    CHECK(st.stops == 4 * SEQUENCES && (st.rows > 0) == way);
    llama_stream_free(s);
  }
  /* polled: a question makes the descriptor readable, and the poll that answers it may give no
   * event */
  o = options(&st);
  o.on_logits = on_logits;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, 1, &o, &s, err));
  polls = 0;
  do {
    struct pollfd p = {llama_stream_fd(s), POLLIN, 0};
    CHECK(poll(&p, 1, 60000) == 1);
    status = llama_stream_next(s, &ev, 0, NULL);
    CHECK(++polls < 100000);
  } while (status == LLAMA_OK || status == LLAMA_TIMEOUT);
  CHECK(status == LLAMA_DONE && st.rows == MOST);
  llama_stream_free(s);
  /* a timeout passes while nobody answers: the question is another stream's */
  o = options(&st);
  o.on_logits = on_logits;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, 1, &o, &s, err));
  llama_result_free(generate(&(llama_generate_options){.struct_size = sizeof o,
                                 .max_gen_len = 30,
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .flags = LLAMA_GEN_IGNORE_EOS},
      1));
  CHECK(st.rows == 0);
  llama_stream_free(s);
  CHECK(st.rows == 0);
  /* llama_stream_stop: before anything, in the middle, at the end, twice, and of none */
  o = options(&st);
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, SEQUENCES, &o, &s, err));
  CHECK(llama_stream_stop(s, 2) == LLAMA_OK && llama_stream_stop(s, 2) == LLAMA_OK);
  CHECK(llama_stream_stop(s, SEQUENCES) == INVALID && llama_stream_stop(s, SIZE_MAX) == INVALID);
  CHECK(drain(s, n, reasons) == LLAMA_DONE);
  CHECK(n[0] == MOST && n[1] == MOST && n[2] == 0);
  CHECK(reasons[0] == LLAMA_FINISH_LENGTH && reasons[2] == LLAMA_FINISH_CALLER);
  CHECK(llama_stream_stop(s, 0) == LLAMA_OK);
  llama_stream_free(s);
  CHECK(llama_stream_stop(s, 0) == INVALID && llama_stream_stop(NULL, 0) == INVALID);
  CHECK(llama_stream_stop(FOREIGN, 0) == INVALID);
}

static void *stop_soon(void *s) {
  sleep_ms(10);
  CHECK(llama_stream_stop(s, 0) == LLAMA_OK);
  return NULL;
}

/* From another thread, while this one waits. */
static void stopped_from_elsewhere(void) {
  state st;
  llama_generate_options o = options(&st);
  llama_stream_t *s = NULL;
  pthread_t thread;
  int n[SEQUENCES];
  int32_t reasons[SEQUENCES];
  o.max_gen_len = LLAMABI_MAX_GEN_LEN_DEFAULT;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, 1, &o, &s, err));
  CHECK(pthread_create(&thread, NULL, stop_soon, s) == 0);
  CHECK(drain(s, n, reasons) == LLAMA_DONE);
  CHECK(reasons[0] == LLAMA_FINISH_CALLER || reasons[0] == LLAMA_FINISH_LENGTH);
  pthread_join(thread, NULL);
  llama_stream_free(s);
}

/* What callbacks do inside: of a call and of a stream, of each kind. */
static void meddling(void) {
  state st;
  int kind, streams, n[SEQUENCES];
  int32_t reasons[SEQUENCES];
  for (int act = 1; act <= 4; act++) {
    for (kind = 0; kind < 2; kind++) {
      for (streams = 0; streams < 2; streams++) {
        llama_generate_options o = options(&st);
        llama_result_t *r = NULL;
        llama_stream_t *s = NULL;
        llama_status status;
        if (act == 3 && !streams) continue;
        /* More than a stream's queue holds. Fewer tokens may all be there before the third of them
         * is asked about, and then there is nothing left to cancel. */
        if (act != 1) o.max_gen_len = LLAMABI_MAX_GEN_LEN_DEFAULT;
        if (act == 4) {
          llama_free(l);
          l = open_model(dir, 4096, SEQUENCES);
        }
        if (kind) o.on_logits = on_logits;
        if (!kind) o.on_stop = on_stop;
        st.act = act;
        o.cancel = st.cancel = llama_cancel_new();
        if (streams) {
          EXPECT(LLAMA_OK, llama_stream_open(l, prompt, lens, SEQUENCES, &o, &s, err));
          st.stream = s;
          status = drain(s, n, reasons);
          if (act == 1) CHECK(n[1] < MOST && reasons[1] == LLAMA_FINISH_CALLER);
          if (act == 3) CHECK(st.acts == 3); /* after that the library asks no more */
          llama_stream_free(s);
        } else {
          status = llama_generate(l, prompt, lens, SEQUENCES, &o, &r, NULL);
          llama_result_free(r);
        }
        CHECK(st.acts > 2);
        if (act == 1)
          CHECK(status == (streams ? LLAMA_DONE : LLAMA_OK));
        else
          CHECK(status == LLAMA_CANCELLED);
        llama_cancel_free(st.cancel);
      }
    }
  }
  l = open_model(dir, 4096, SEQUENCES);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  dir = argv[1];
  caller = pthread_self();
  l = open_model(dir, 4096, SEQUENCES);
  info.struct_size = sizeof info;
  EXPECT(LLAMA_OK, llama_get_info(l, &info, err));
  fill_prompt(prompt, SEQUENCES * LEN);
  stopping();
  changing();
  streaming();
  stopped_from_elsewhere();
  meddling();
  llama_free(l);
  return summary("decide");
}
