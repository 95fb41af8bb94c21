// A model, and the three things that take long: opening it, generating, closing it.
#pragma once
#include <atomic>
#include <condition_variable>

#include "convert.h"
#include "env.h"

namespace addon {

// Log lines on their way from whichever thread to a JavaScript function. The function is held
// weakly once the model is open: the model holds it, and it may well hold the model.
struct Log final : Task {
  Log(napi_env env, std::shared_ptr<Env> owner, napi_value function);
  void opened(napi_env env);
  void forget(napi_env env);
  void on_loop(napi_env env) override;
  static void line(void *self, int32_t level, const char *message, size_t len);

private:
  static constexpr size_t kMostLines = 4096; // that wait; the event loop may be busy for long
  const std::shared_ptr<Env> owner_;
  napi_ref function_ = nullptr;
  std::mutex mutex_;
  std::deque<std::pair<int32_t, std::string>> lines_;
  size_t dropped_ = 0;
};

struct ModelCall;

// Shared by the JavaScript object and the calls that run.
struct Handle {
  ~Handle() { llama_destroy(llama); }
  // Around a call: on the environment's thread before it starts, and on its own when it ends.
  void enter(ModelCall *call);
  void leave(ModelCall *call);
  // Ends all calls that have entered; then, on another thread, waits until they have left.
  void stop();
  void wait();
  // The same of adapters that are being added, which only llama_destroy can end.
  void begin_adding();
  void end_adding();
  void wait_for_adapters();

  // Any thread: a grammar of this model, compiled unless it is one of the last 64. Null where that
  // fails.
  std::shared_ptr<llama_grammar_t> grammar(
      int32_t kind, const std::string &source, llama_status &status, llama_error &err);

  // Stays as it is after `llama_destroy`: the library knows a handle that is gone, and says so.
  llama_t *llama = nullptr;
  std::shared_ptr<Log> log;      // outlives the calls of the handle
  std::atomic<int64_t> bytes{0}; // that the garbage collector was told of
  bool closing = false;          // the environment's thread alone

private:
  std::mutex mutex_;
  std::condition_variable left_;
  std::set<ModelCall *> inside_;
  size_t adding_ = 0;

  struct Compiled {
    const int32_t kind;
    const std::string source;
    std::mutex compiling; // guards what follows
    bool done = false;
    std::shared_ptr<llama_grammar_t> grammar;
    llama_status status = LLAMA_OK;
    llama_error err{};
    Compiled(int32_t kind, std::string source) : kind(kind), source(std::move(source)) {}
  };
  static constexpr size_t kMostGrammars = 64;
  std::mutex finding_;                             // never held while one is compiled
  std::deque<std::shared_ptr<Compiled>> grammars_; // the last used in front
};

// A call that somebody awaits.
struct Awaited : Call {
  using Call::Call;
  // Once, or, for a stream, again whenever the last one has settled.
  napi_value promise(napi_env env);
  // On the environment's thread, before the call's own starts. `finished` undoes it.
  virtual void enter() {}
  virtual void leave() {}

protected:
  // Settles the promise, if there is one, with what `make` returns or throws.
  template <class F> void settle(napi_env env, F make);
  // The last thing that `run` does.
  void finished();
  std::shared_ptr<Awaited> self() { return std::static_pointer_cast<Awaited>(shared_from_this()); }

  std::mutex mutex_;
  bool finished_ = false; // guarded by mutex_
  napi_deferred deferred_ = nullptr;
  llama_status status_ = LLAMA_OK;
  llama_error err_{};
};

// A call on a model. To close the model stops it and waits for it, and only then is the handle
// destroyed: a call that has begun never finds it gone, however late its thread gets there.
struct ModelCall : Awaited {
  ModelCall(std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle)
      : Awaited(std::move(owner)), handle_(std::move(handle)) {}
  void enter() override { handle_->enter(this); }
  void leave() override { handle_->leave(this); }

protected:
  const std::shared_ptr<Handle> handle_;
};

void out_of_memory(llama_status &status, llama_error &err);
llama_cancel_t *new_cancel(napi_env env);

template <class F> void Awaited::settle(napi_env env, F make) {
  if (deferred_ == nullptr) return;
  const napi_deferred deferred = deferred_;
  deferred_ = nullptr;
  this->env->let_go();
  try {
    check(env, napi_resolve_deferred(env, deferred, make()));
  } catch (const Pending &) {
    napi_value thrown;
    if (napi_get_and_clear_last_exception(env, &thrown) == napi_ok)
      napi_reject_deferred(env, deferred, thrown);
  }
}

// What a function of JavaScript's threw, until the promise of its call is settled with it.
class Thrown {
public:
  bool any() const { return boxed_ != nullptr; }
  // Takes the exception that is pending.
  void keep(napi_env env);
  [[noreturn]] void rethrow(napi_env env);

private:
  napi_ref boxed_ = nullptr; // references are to objects, and anything can be thrown
};

struct Open final : Awaited {
  Open(napi_env env, std::shared_ptr<Env> owner, napi_value options, napi_value on_progress,
      napi_value on_log);
  ~Open() override;
  void run() noexcept override;
  void stop() override;
  void on_loop(napi_env env) override;

private:
  static int32_t progress(void *self, float fraction);
  void report(napi_env env);
  BuildOptions options_;
  std::shared_ptr<Handle> handle_;
  napi_ref on_progress_ = nullptr;
  Thrown thrown_;
  std::atomic<float> fraction_{-1};
  float reported_ = -1;
  bool stopped_ = false; // perhaps too late for the library to notice
};

struct Close final : Awaited {
  Close(std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle);
  void run() noexcept override;
  void stop() override {}
  void on_loop(napi_env env) override;

private:
  std::shared_ptr<Handle> handle_;
};

// Compiles a grammar, so that calls find it.
struct Compile final : ModelCall {
  Compile(
      std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle, int32_t kind, std::string source);
  void run() noexcept override;
  void stop() override {}
  void on_loop(napi_env env) override;

private:
  const int32_t kind_;
  const std::string source_;
};

// Loads an adapter; settles with its id. No ModelCall: of what it may wait for, ranks in other
// processes, llama_destroy alone lets go.
struct AddAdapter final : Awaited {
  AddAdapter(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
      napi_value dir, napi_value scale);
  void run() noexcept override;
  void stop() override {}
  void enter() override { handle_->begin_adding(); }
  void leave() override { handle_->end_adding(); }
  void on_loop(napi_env env) override;

private:
  const std::shared_ptr<Handle> handle_;
  std::string dir_;
  float scale_;
  uint32_t id_ = 0;
};

// Shortens a prompt; settles with what is left of each segment.
struct Compress final : ModelCall {
  Compress(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
      napi_value segments, napi_value options);
  ~Compress() override;
  void run() noexcept override;
  void stop() override;
  void on_loop(napi_env env) override;

private:
  std::vector<Segment> segments_;
  CompressOptions options_;
  llama_result_t *result_ = nullptr;
};

struct Generation final : ModelCall {
  // `kind` is "tokens", "text", "dialog" or "messages", `input` an array of these. `chat` is an
  // object, what surrounds messages. `should_stop` is a function or undefined; a stream holds it
  // weakly, for it may well hold the stream.
  Generation(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
      const std::string &kind, napi_value input, napi_value options, bool streaming,
      napi_value chat, napi_value should_stop);
  ~Generation() override;
  void run() noexcept override;
  void stop() override;
  void on_loop(napi_env env) override;
  // Settles with an array of events, or null at the end.
  napi_value next(napi_env env);
  // Ends a sequence of a stream behind what this thread has pulled of it.
  void stop_sequence(napi_env env, size_t index);
  const bool streaming;

private:
  static constexpr size_t kMostEvents = 64; // that wait for JavaScript; then the library pauses
  static int32_t on_stop(
      void *self, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt);
  bool ask(uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt);
  void answer(napi_env env);
  void pull(llama_stream_t *stream);
  void settle_next(napi_env env);

  std::vector<int32_t> tokens_;
  std::vector<std::string> texts_;
  std::vector<Message> messages_;
  std::vector<size_t> lens_;
  enum { kTokens, kText, kDialog, kMessages } kind_;
  GenerateOptions options_;
  ChatOptions chat_;
  llama_result_t *result_ = nullptr; // unless streaming
  napi_ref should_stop_ = nullptr;
  Thrown thrown_;

  std::condition_variable room_, answered_;
  std::vector<Event> events_; // this and what follows: guarded by mutex_
  bool wanted_ = false;       // a promise waits for events
  bool stopping_ = false;
  llama_stream_t *stream_ = nullptr; // while it is open
  std::vector<size_t> to_stop_;      // sequences, before it is
  struct Question {
    uint32_t index;
    std::vector<int32_t> tokens;
    size_t n_prompt;
    enum { kAsked, kGoOn, kStop } state;
  };
  Question *question_ = nullptr; // of the call's thread, which waits for its state
};

// Encodes a text or a dialog, decodes tokens, or renders a dialog, which is one call of the
// library. It can be stopped while it encodes a text, which may be of any length.
struct Tokenize final : ModelCall {
  // `kind` says what `input` is: "text", "dialog", "tokens", or messages as JSON ("messages", and
  // "render" for their text). `flags` are LLAMA_ENC_*, of a text; `chat` is what surrounds
  // messages.
  Tokenize(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
      const std::string &kind, napi_value input, uint32_t flags, size_t max_tokens,
      napi_value chat);
  ~Tokenize() override;
  void run() noexcept override;
  void stop() override;
  void on_loop(napi_env env) override;

private:
  template <class T, class F> void fill(std::vector<T> &out, size_t size, F f);

  std::string text_;
  std::vector<Message> messages_;
  std::vector<int32_t> tokens_;
  enum { kText, kDialog, kTokens, kMessages, kRender } kind_;
  ChatOptions chat_;
  uint32_t flags_;
  size_t max_tokens_;
  llama_cancel_t *cancel_ = nullptr;
};

// Native objects as JavaScript values; the value's end does not end a call, but a stream's does.
napi_value wrap(napi_env env, std::shared_ptr<Handle> handle);
std::shared_ptr<Handle> handle_of(napi_env env, napi_value value);
// The library has let go of the model's memory.
void forget_bytes(napi_env env, Handle &handle);

} // namespace addon
