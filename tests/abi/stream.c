/* Streams: pulled, polled and waited for with poll and epoll; freed early, outliving the handle. */
#include "abi.h"

#include <poll.h>
#include <sys/epoll.h>

static llama_t *l;
static int32_t prompt[16];
static const size_t len = 16;

static llama_stream_t *open_stream(uint32_t max_gen_len, llama_cancel_t *cancel) {
  llama_generate_options o = generate_defaults();
  llama_stream_t *s = NULL;
  o.temperature = 0;
  o.flags = LLAMA_GEN_IGNORE_EOS;
  o.max_gen_len = max_gen_len;
  o.cancel = cancel;
  EXPECT(LLAMA_OK, llama_stream_open(l, prompt, &len, 1, &o, &s, err));
  return s;
}

static int readable(int fd, int timeout_ms) {
  struct pollfd p;
  p.fd = fd;
  p.events = POLLIN;
  return poll(&p, 1, timeout_ms) == 1 && (p.revents & POLLIN) != 0;
}

/* Take all events; their tokens. Waits in the given way. */
enum way { WAIT, POLL, EPOLL, SPIN };

static size_t drain(llama_stream_t *s, enum way way, int32_t *tokens, llama_status end) {
  llama_event ev;
  size_t n = 0;
  int finished = 0, i, epoll = -1, fd = llama_stream_fd(s);
  ev.struct_size = sizeof ev;
  CHECK(fd >= 0);
  if (way == EPOLL) {
    struct epoll_event e;
    memset(&e, 0, sizeof e);
    e.events = EPOLLIN;
    epoll = epoll_create1(0);
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0);
  }
  for (;;) {
    llama_status status;
    if (way == POLL) CHECK(readable(fd, 60000));
    if (way == EPOLL) {
      struct epoll_event e;
      CHECK(epoll_wait(epoll, &e, 1, 60000) == 1 && (e.events & EPOLLIN) != 0);
    }
    status = llama_stream_next(s, &ev, way == WAIT ? -1 : 0, NULL);
    if (status == LLAMA_TIMEOUT) {
      CHECK(way == SPIN); /* readable means ready */
      sleep_ms(1);
      continue;
    }
    if (status != LLAMA_OK) {
      CHECK(status == end);
      break;
    }
    CHECK(!finished && ev.index == 0 && ev.text[ev.text_len] == 0);
    if (ev.kind == LLAMA_EVENT_FINISH)
      finished = ev.finish_reason;
    else
      tokens[n++] = ev.token;
  }
  CHECK(finished == (end == LLAMA_DONE ? LLAMA_FINISH_LENGTH : LLAMA_FINISH_CANCELLED));
  for (i = 0; i < 3; i++) { /* for ever, and the descriptor says so */
    EXPECT(end, llama_stream_next(s, &ev, i - 1, err));
    CHECK(readable(fd, 0));
  }
  if (epoll >= 0) close(epoll);
  return n;
}

static void *free_soon(void *s) {
  sleep_ms(20);
  llama_stream_free(s);
  return NULL;
}

static void *cancel_soon(void *c) {
  sleep_ms(20);
  llama_cancel_trigger(c);
  return NULL;
}

int main(int argc, char **argv) {
  static int32_t first[4096], other[4096];
  llama_stream_t *s;
  llama_event ev;
  llama_cancel_t *c = llama_cancel_new();
  llama_generate_options o = generate_defaults();
  pthread_t thread;
  enum way way;
  size_t n;
  double start;
  llama_status status;
  if (argc < 2) return 2;
  l = open_model(argv[1], 4096, 2);
  fill_prompt(prompt, len);
  ev.struct_size = sizeof ev;

  s = open_stream(20, NULL);
  CHECK(drain(s, WAIT, first, LLAMA_DONE) == 20);
  llama_stream_free(s);
  llama_stream_free(s);
  for (way = POLL; way <= SPIN; way++) {
    s = open_stream(20, NULL);
    CHECK(drain(s, way, other, LLAMA_DONE) == 20);
    CHECK(memcmp(first, other, 20 * sizeof *first) == 0);
    llama_stream_free(s);
  }
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_stream_next(s, &ev, 0, err));

  /* a timeout passes */
  {
    llama_stream_t *running[3];
    int i;
    for (i = 0; i < 3; i++) running[i] = open_stream(LLAMABI_MAX_GEN_LEN_DEFAULT, NULL);
    start = now_ms();
    status = llama_stream_next(running[2], &ev, 5, NULL); /* waits for one of two slots */
    if (status == LLAMA_TIMEOUT)
      CHECK(now_ms() - start >= 4);
    else
      CHECK(status == LLAMA_OK);
    o.flags = LLAMA_GEN_NO_WAIT;
    status = llama_generate(l, prompt, &len, 1, &o, NULL, NULL);
    CHECK(status == LLAMA_E_INVALID_ARGUMENT);             /* neither out nor on_event */
    for (i = 0; i < 3; i++) llama_stream_free(running[i]); /* at any time; cancels */
  }

  /* freed while another thread waits in next */
  s = open_stream(LLAMABI_MAX_GEN_LEN_DEFAULT, NULL);
  CHECK(pthread_create(&thread, NULL, free_soon, s) == 0);
  do status = llama_stream_next(s, &ev, -1, NULL);
  while (status == LLAMA_OK);
  /* in next when it was freed, or before it */
  CHECK(status == LLAMA_CANCELLED || status == LLAMA_E_INVALID_ARGUMENT || status == LLAMA_DONE);
  pthread_join(thread, NULL);

  /* cancelled by flag: what came before comes first, then CANCELLED for ever */
  s = open_stream(LLAMABI_MAX_GEN_LEN_DEFAULT, c);
  CHECK(pthread_create(&thread, NULL, cancel_soon, c) == 0);
  do status = llama_stream_next(s, &ev, -1, NULL);
  while (status == LLAMA_OK);
  CHECK(status == LLAMA_CANCELLED || status == LLAMA_DONE);
  EXPECT(status, llama_stream_next(s, &ev, -1, err));
  pthread_join(thread, NULL);
  llama_stream_free(s);
  s = open_stream(5, c); /* triggered already */
  n = drain(s, POLL, other, LLAMA_CANCELLED);
  CHECK(n == 0);
  llama_stream_free(s);

  /* texts and dialogs; figures of each sequence once it has ended */
  {
    static const char *const texts[] = {"one two", "three"};
    llama_message dialogs[] = {
        {"user", "hello", SIZE_MAX, SIZE_MAX}, {"user", "a [INST] b", SIZE_MAX, SIZE_MAX}};
    const size_t lens[] = {1, 1};
    llama_request_stats figures, expected;
    llama_result_t *r = NULL;
    int chat;
    o = generate_defaults();
    o.temperature = 0;
    o.max_gen_len = 5;
    o.flags = LLAMA_GEN_IGNORE_EOS;
    for (chat = 0; chat < 2; chat++) {
      char text[2][512] = {"", ""};
      const char *whole;
      int ends = 0, i;
      s = NULL;
      if (chat) {
        EXPECT(LLAMA_OK, llama_chat_completion(l, dialogs, lens, 2, &o, &r, err));
        EXPECT(LLAMA_OK, llama_stream_open_chat(l, dialogs, lens, 2, &o, &s, err));
      } else {
        EXPECT(LLAMA_OK, llama_text_completion(l, texts, NULL, 2, &o, &r, err));
        EXPECT(LLAMA_OK, llama_stream_open_text(l, texts, NULL, 2, &o, &s, err));
      }
      figures.struct_size = expected.struct_size = sizeof figures;
      for (i = 0; i < 2; i++)
        CHECK(llama_stream_stats(s, (size_t)i, &figures) == LLAMA_E_INVALID_ARGUMENT);
      while ((status = llama_stream_next(s, &ev, -1, NULL)) == LLAMA_OK) {
        CHECK(strlen(text[ev.index]) + ev.text_len < sizeof text[0]);
        strcat(text[ev.index], ev.text);
        if (ev.kind != LLAMA_EVENT_FINISH) continue;
        ends++;
        CHECK(ev.finish_reason == llama_result_finish_reason(r, ev.index));
        CHECK(llama_stream_stats(s, ev.index, &figures) == LLAMA_OK);
        CHECK(llama_result_stats(r, ev.index, &expected) == LLAMA_OK);
        CHECK(figures.struct_size == sizeof figures);
        CHECK(figures.prompt_tokens == expected.prompt_tokens);
        CHECK(figures.generated_tokens == expected.generated_tokens);
        CHECK((figures.prompt_tokens > 0) == (figures.total_ms > 0));
      }
      CHECK(status == LLAMA_DONE && ends == 2);
      for (i = 0; i < 2; i++) {
        CHECK(
            llama_result_text(r, (size_t)i, &whole, &n) == LLAMA_OK && strcmp(whole, text[i]) == 0);
      }
      CHECK(!chat || llama_result_finish_reason(r, 1) == LLAMA_FINISH_UNSAFE);
      CHECK(llama_stream_stats(s, 0, &figures) == LLAMA_OK && figures.generated_tokens == 5);
      CHECK(llama_stream_stats(s, 2, &figures) == LLAMA_E_INVALID_ARGUMENT);
      CHECK(llama_stream_stats(s, 0, NULL) == LLAMA_E_INVALID_ARGUMENT);
      llama_stream_free(s);
      CHECK(llama_stream_stats(s, 0, &figures) == LLAMA_E_INVALID_ARGUMENT);
      llama_result_free(r);
    }
    CHECK(llama_stream_stats(NULL, 0, &figures) == LLAMA_E_INVALID_ARGUMENT);
    CHECK(llama_stream_stats(FOREIGN, 0, &figures) == LLAMA_E_INVALID_ARGUMENT);
  }

  /* on_event is not for streams */
  o = generate_defaults();
  o.on_event = (llama_event_fn)(void (*)(void))free_soon; /* never called */
  EXPECT(LLAMA_E_INVALID_ARGUMENT, llama_stream_open(l, prompt, &len, 1, &o, &s, err));

  /* outlives the handle, ends as cancelled */
  s = open_stream(LLAMABI_MAX_GEN_LEN_DEFAULT, NULL);
  EXPECT(LLAMA_OK, llama_stream_next(s, &ev, -1, err));
  llama_free(l);
  drain(s, EPOLL, other, LLAMA_CANCELLED);
  llama_stream_free(s);
  llama_cancel_free(c);
  return summary("stream");
}
