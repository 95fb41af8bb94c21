#include "calls.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace addon {

// --- log ---

Log::Log(napi_env env, std::shared_ptr<Env> owner, napi_value function) : owner_(std::move(owner)) {
  check(env, napi_create_reference(env, function, 1, &function_));
}

void Log::opened(napi_env env) { check(env, napi_reference_unref(env, function_, nullptr)); }

void Log::forget(napi_env env) {
  if (function_ != nullptr) napi_delete_reference(env, function_);
  function_ = nullptr;
}

void Log::line(void *data, int32_t level, const char *message, size_t len) {
  auto *self = static_cast<Log *>(data);
  try {
    std::lock_guard<std::mutex> lock(self->mutex_);
    if (self->lines_.size() == kMostLines)
      self->dropped_++;
    else
      self->lines_.emplace_back(level, std::string(message, len));
  } catch (const std::bad_alloc &) {
    return; // a log line is the least that is lost now
  }
  self->owner_->post(self->shared_from_this());
}

void Log::on_loop(napi_env env) {
  std::deque<std::pair<int32_t, std::string>> lines;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lines.swap(lines_);
    if (dropped_ > 0)
      lines.emplace_back(LLAMA_LOG_WARN, std::to_string(dropped_) + " log lines were dropped here");
    dropped_ = 0;
  }
  static const char *const levels[] = {"none", "error", "warn", "info", "debug"};
  for (const auto &[level, message] : lines) {
    napi_value function = nullptr;
    if (function_ == nullptr) return;
    check(env, napi_get_reference_value(env, function_, &function));
    if (function == nullptr) return;
    napi_value args[] = {
        string(env, levels[level >= 0 && level < 5 ? level : 4]), string(env, message)};
    check(env, napi_call_function(env, undefined(env), function, 2, args, nullptr));
  }
}

// --- handle ---

napi_value wrap(napi_env env, std::shared_ptr<Handle> handle) {
  napi_value value;
  auto *owner = new std::shared_ptr<Handle>(std::move(handle));
  const auto finalize = [](napi_env env, void *data, void *) {
    auto *owner = static_cast<std::shared_ptr<Handle> *>(data);
    if ((*owner)->log) (*owner)->log->forget(env);
    forget_bytes(env, **owner);
    delete owner;
  };
  check(env, napi_create_external(env, owner, finalize, nullptr, &value));
  return value;
}

std::shared_ptr<Handle> handle_of(napi_env env, napi_value value) {
  void *data = nullptr;
  check(env, napi_get_value_external(env, value, &data));
  return *static_cast<std::shared_ptr<Handle> *>(data);
}

void Handle::enter(Generation *call) {
  std::lock_guard<std::mutex> lock(mutex_);
  inside_.insert(call);
}

void Handle::leave(Generation *call) {
  std::lock_guard<std::mutex> lock(mutex_);
  inside_.erase(call);
  left_.notify_all();
}

void Handle::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Generation *call : inside_) call->stop();
}

void Handle::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, [&] { return inside_.empty(); });
}

void forget_bytes(napi_env env, Handle &handle) {
  int64_t now;
  napi_adjust_external_memory(env, -handle.bytes.exchange(0), &now);
}

// --- what all calls share ---

napi_value Awaited::promise(napi_env env) {
  napi_value promise;
  check(env, napi_create_promise(env, &deferred_, &promise));
  this->env->hold();
  return promise;
}

void Awaited::finished() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
  }
  env->post(shared_from_this());
}

void out_of_memory(llama_status &status, llama_error &err) {
  status = LLAMA_E_NO_MEMORY;
  std::strcpy(err.message, "no memory for the arguments or the events of a call");
}

llama_cancel_t *new_cancel(napi_env env) {
  llama_cancel_t *cancel = llama_cancel_new();
  if (cancel == nullptr) throw_llama(env, LLAMA_E_NO_MEMORY, "a million calls run already");
  return cancel;
}

void Thrown::keep(napi_env env) {
  napi_value thrown, box;
  check(env, napi_get_and_clear_last_exception(env, &thrown));
  check(env, napi_create_array(env, &box));
  check(env, napi_set_element(env, box, 0, thrown));
  check(env, napi_create_reference(env, box, 1, &boxed_));
}

void Thrown::rethrow(napi_env env) {
  napi_value box, thrown;
  const napi_ref boxed = std::exchange(boxed_, nullptr);
  check(env, napi_get_reference_value(env, boxed, &box));
  check(env, napi_get_element(env, box, 0, &thrown));
  napi_delete_reference(env, boxed);
  napi_throw(env, thrown);
  throw Pending{};
}

// --- open ---

Open::Open(napi_env env, std::shared_ptr<Env> owner, napi_value options, napi_value on_progress,
    napi_value on_log)
    : Awaited(owner), options_(env, options), handle_(std::make_shared<Handle>()) {
  const auto is_function = [&](napi_value value, const char *name) {
    napi_valuetype type;
    check(env, napi_typeof(env, value, &type));
    if (type != napi_undefined && type != napi_function)
      throw_type_error(env, std::string(name) + " must be a function");
    return type == napi_function;
  };
  const bool logs = is_function(on_log, "onLog"),
             progresses = is_function(on_progress, "onProgress");
  err_.struct_size = sizeof err_;
  options_.c.progress = progress;
  options_.c.progress_user_data = this;
  if (progresses) check(env, napi_create_reference(env, on_progress, 1, &on_progress_));
  if (logs) {
    handle_->log = std::make_shared<Log>(env, owner, on_log);
    options_.c.log = Log::line;
    options_.c.log_user_data = handle_->log.get();
  }
  options_.c.cancel = new_cancel(env);
}

Open::~Open() { llama_cancel_free(options_.c.cancel); }

void Open::run() noexcept {
  status_ = llama_build(options_.ckpt_dir.c_str(),
      options_.has_tokenizer_path ? options_.tokenizer_path.c_str() : nullptr, &options_.c,
      &handle_->llama, &err_);
  finished();
}

void Open::stop() {
  stopped_ = true;
  llama_cancel_trigger(options_.c.cancel);
}

int32_t Open::progress(void *data, float fraction) {
  auto *self = static_cast<Open *>(data);
  self->fraction_ = fraction;
  self->env->post(self->shared_from_this());
  return 1;
}

// Tells JavaScript of the newest fraction. What it throws ends the loading and becomes its error.
void Open::report(napi_env env) {
  const float fraction = fraction_;
  if (on_progress_ == nullptr || thrown_.any() || fraction == reported_) return;
  reported_ = fraction;
  napi_value function, answer;
  check(env, napi_get_reference_value(env, on_progress_, &function));
  napi_value args[] = {number(env, fraction)};
  if (napi_call_function(env, undefined(env), function, 1, args, &answer) == napi_ok) {
    bool more = true;
    if (napi_get_value_bool(env, answer, &more) == napi_ok && !more) stop();
    return;
  }
  stop();
  thrown_.keep(env);
}

void Open::on_loop(napi_env env) {
  bool done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done = finished_;
  }
  report(env);
  if (!done) return;
  this->env->finish(self());
  settle(env, [&]() -> napi_value {
    if (on_progress_ != nullptr) napi_delete_reference(env, on_progress_);
    on_progress_ = nullptr;
    if (thrown_.any()) thrown_.rethrow(env);
    if (stopped_ && status_ == LLAMA_OK) {
      status_ = LLAMA_CANCELLED;
      std::strcpy(err_.message, "stopped when the model had just been loaded");
    }
    if (status_ != LLAMA_OK) {
      if (handle_->log) {
        handle_->log->on_loop(env);
        handle_->log->forget(env);
      }
      throw_llama(env, status_, err_.message);
    }
    if (handle_->log) handle_->log->opened(env);
    llama_info info;
    info.struct_size = sizeof info;
    int64_t now;
    if (llama_get_info(handle_->llama, &info, nullptr) == LLAMA_OK) {
      handle_->bytes = static_cast<int64_t>(info.weight_bytes + info.kv_bytes);
      napi_adjust_external_memory(env, handle_->bytes, &now);
    }
    return wrap(env, handle_);
  });
}

// --- close ---

Close::Close(std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle)
    : Awaited(std::move(owner)), handle_(std::move(handle)) {}

void Close::run() noexcept {
  llama_destroy(handle_->llama);
  handle_->stop(); // a stream whose reader has fallen behind waits for it, not for the library
  handle_->wait();
  finished();
}

void Close::on_loop(napi_env env) {
  this->env->finish(self());
  forget_bytes(env, *handle_);
  settle(env, [&] { return undefined(env); });
}

// --- grammars ---

std::shared_ptr<llama_grammar_t> Handle::grammar(
    int32_t kind, const std::string &source, llama_status &status, llama_error &err) {
  std::lock_guard<std::mutex> lock(compiling_);
  const auto is_it = [&](const Compiled &c) { return c.kind == kind && c.source == source; };
  const auto found = std::find_if(grammars_.begin(), grammars_.end(), is_it);
  status = LLAMA_OK;
  if (found != grammars_.end()) {
    Compiled compiled = std::move(*found);
    grammars_.erase(found);
    grammars_.push_front(std::move(compiled));
    return grammars_.front().grammar;
  }
  const bool none = kind == LLAMA_GRAMMAR_JSON;
  llama_grammar_t *made = nullptr;
  status =
      llama_grammar_new(llama, kind, none ? nullptr : source.data(), source.size(), &made, &err);
  if (status != LLAMA_OK) return nullptr;
  std::shared_ptr<llama_grammar_t> grammar(made, llama_grammar_free);
  grammars_.push_front({kind, source, grammar});
  if (grammars_.size() > kMostGrammars) grammars_.pop_back();
  return grammar;
}

Compile::Compile(
    std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle, int32_t kind, std::string source)
    : Awaited(std::move(owner)), handle_(std::move(handle)), kind_(kind),
      source_(std::move(source)) {
  err_.struct_size = sizeof err_;
}

void Compile::run() noexcept {
  try {
    handle_->grammar(kind_, source_, status_, err_);
  } catch (const std::bad_alloc &) {
    out_of_memory(status_, err_);
  }
  finished();
}

void Compile::on_loop(napi_env env) {
  this->env->finish(self());
  settle(env, [&] {
    check(env, status_, err_);
    return undefined(env);
  });
}

// --- adapters ---

AddAdapter::AddAdapter(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
    napi_value dir, napi_value scale)
    : Awaited(std::move(owner)), handle_(std::move(handle)), dir_(to_c_text(env, dir, "dir")),
      scale_(to_float(env, scale, "scale")) {
  err_.struct_size = sizeof err_;
}

void AddAdapter::run() noexcept {
  status_ = llama_adapter_add(handle_->llama, dir_.c_str(), scale_, &id_, &err_);
  finished();
}

void AddAdapter::on_loop(napi_env env) {
  this->env->finish(self());
  settle(env, [&] {
    check(env, status_, err_);
    return number(env, id_);
  });
}

// --- generate ---

Generation::Generation(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
    const std::string &kind, napi_value input, napi_value options, bool streaming, napi_value chat,
    napi_value should_stop)
    : Awaited(std::move(owner)), streaming(streaming), handle_(std::move(handle)),
      options_(env, options), chat_(env, chat) {
  kind_ = kind == "tokens"     ? kTokens
          : kind == "text"     ? kText
          : kind == "messages" ? kMessages
                               : kDialog;
  for (napi_value element : to_elements(env, input, "input")) {
    const std::string i = "[" + std::to_string(lens_.size()) + "]";
    if (kind_ == kTokens)
      lens_.push_back(to_tokens(env, element, tokens_));
    else if (kind_ == kDialog)
      lens_.push_back(to_messages(env, element, "dialogs" + i, messages_));
    else {
      texts_.push_back(to_text(env, element, "prompts" + i));
      lens_.push_back(texts_.back().size());
    }
  }
  napi_valuetype type;
  check(env, napi_typeof(env, should_stop, &type));
  if (type != napi_undefined) {
    if (type != napi_function) throw_type_error(env, "shouldStop must be a function");
    check(env, napi_create_reference(env, should_stop, streaming ? 0 : 1, &should_stop_));
    options_.c.on_stop = on_stop;
    options_.c.user_data = this;
  }
  err_.struct_size = sizeof err_;
  options_.c.cancel = new_cancel(env);
}

Generation::~Generation() {
  llama_result_free(result_);
  llama_cancel_free(options_.c.cancel);
}

void Generation::run() noexcept {
  // Of the functions for tokens, texts, dialogs and messages, the one for what was given.
  const auto call = [this](auto on_tokens, auto on_texts, auto on_dialogs, auto on_messages,
                        auto **out) {
    llama_t *l = handle_->llama;
    const size_t n = lens_.size();
    if (kind_ == kTokens)
      return on_tokens(l, tokens_.data(), lens_.data(), n, &options_.c, out, &err_);
    if (kind_ == kDialog)
      return on_dialogs(l, borrow(messages_).data(), lens_.data(), n, &options_.c, out, &err_);
    std::vector<const char *> prompts;
    for (const std::string &text : texts_) prompts.push_back(text.data());
    if (kind_ == kMessages)
      return on_messages(l, prompts.data(), lens_.data(), n, &chat_.c, &options_.c, out, &err_);
    return on_texts(l, prompts.data(), lens_.data(), n, &options_.c, out, &err_);
  };
  try {
    handle_->enter(this);
    std::shared_ptr<llama_grammar_t> grammar;
    if (options_.grammar_kind != 0) {
      grammar = handle_->grammar(options_.grammar_kind, options_.grammar_source, status_, err_);
      options_.c.grammar = grammar.get();
    }
    if (status_ != LLAMA_OK) {
      // The grammar's sentence is the call's.
    } else if (streaming) {
      llama_stream_t *opened = nullptr;
      status_ = call(llama_stream_open, llama_stream_open_text, llama_stream_open_chat,
          llama_stream_open_messages, &opened);
      const std::unique_ptr<llama_stream_t, decltype(&llama_stream_free)> stream(
          opened, llama_stream_free);
      if (status_ == LLAMA_OK) pull(stream.get());
      std::lock_guard<std::mutex> lock(mutex_);
      stream_ = nullptr;
    } else {
      status_ =
          call(llama_generate, llama_text_completion, llama_chat_completion, llama_chat, &result_);
    }
  } catch (const std::bad_alloc &) {
    out_of_memory(status_, err_);
  }
  handle_->leave(this);
  finished();
}

void Generation::stop() {
  llama_cancel_trigger(options_.c.cancel);
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  room_.notify_all();
  answered_.notify_all();
}

int32_t Generation::on_stop(
    void *self, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  try {
    return static_cast<Generation *>(self)->ask(index, tokens, n, n_prompt);
  } catch (const std::bad_alloc &) {
    return 1; // there is no memory to ask
  }
}

// Has JavaScript asked, on its own thread, and waits for the answer, unless the call is to end.
bool Generation::ask(uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  Question question{index, {tokens, tokens + n}, n_prompt, Question::kAsked};
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_) return false;
  question_ = &question;
  env->post(shared_from_this());
  answered_.wait(lock, [&] { return question.state != Question::kAsked || stopping_; });
  question_ = nullptr;
  return question.state == Question::kStop;
}

// What the function throws stops the call and becomes its error.
void Generation::answer(napi_env env) {
  std::vector<int32_t> tokens;
  uint32_t index;
  size_t n_prompt;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (question_ == nullptr || question_->state != Question::kAsked) return;
    tokens = question_->tokens;
    index = question_->index;
    n_prompt = question_->n_prompt;
  }
  napi_value function = nullptr, answer;
  bool stops = false;
  check(env, napi_get_reference_value(env, should_stop_, &function));
  if (function != nullptr) { // else the stream is gone, too
    napi_value args[] = {tokens_to_js(env, tokens.data(), tokens.size()), number(env, index),
        number(env, static_cast<double>(n_prompt))};
    if (napi_call_function(env, undefined(env), function, 3, args, &answer) == napi_ok) {
      check(env, napi_coerce_to_bool(env, answer, &answer));
      check(env, napi_get_value_bool(env, answer, &stops));
    } else {
      thrown_.keep(env);
      stop();
    }
  }
  // JavaScript may have stopped the call: then nobody waits.
  std::lock_guard<std::mutex> lock(mutex_);
  if (question_ == nullptr) return;
  question_->state = stops ? Question::kStop : Question::kGoOn;
  answered_.notify_all();
}

void Generation::stop_sequence(napi_env env, size_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  if (stream_ == nullptr)
    to_stop_.push_back(index);
  else if (const llama_status status = llama_stream_stop(stream_, index); status != LLAMA_OK)
    throw_llama(env, status, "the call has no sequence " + std::to_string(index));
}

// Takes the stream's events until its end. Waits while JavaScript is behind, unless the call is to
// end: the library's own queue is bounded too, so what still comes then is little.
void Generation::pull(llama_stream_t *stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const size_t index : to_stop_) llama_stream_stop(stream, index);
    stream_ = stream;
  }
  llama_event ev;
  ev.struct_size = sizeof ev;
  while ((status_ = llama_stream_next(stream, &ev, -1, &err_)) == LLAMA_OK) {
    Event event(ev);
    // Cannot fail once the sequence's last event has been taken.
    if (ev.kind == LLAMA_EVENT_FINISH) llama_stream_stats(stream, ev.index, &event.stats);
    bool wake;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      room_.wait(lock, [&] { return events_.size() < kMostEvents || stopping_; });
      events_.push_back(std::move(event));
      wake = wanted_;
      wanted_ = false;
    }
    if (wake) env->post(shared_from_this());
  }
}

void Generation::on_loop(napi_env env) {
  bool done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done = finished_;
  }
  if (should_stop_ != nullptr) answer(env);
  if (done) this->env->finish(self());
  if (done && should_stop_ != nullptr)
    napi_delete_reference(env, std::exchange(should_stop_, nullptr));
  if (streaming)
    settle_next(env);
  else if (done) {
    settle(env, [&] {
      if (thrown_.any()) thrown_.rethrow(env);
      check(env, status_, err_);
      return to_js(env, result_, options_.c);
    });
  }
}

napi_value Generation::next(napi_env env) {
  if (deferred_ != nullptr) throw_type_error(env, "a stream has one reader");
  napi_value made = promise(env);
  settle_next(env);
  return made;
}

void Generation::settle_next(napi_env env) {
  if (deferred_ == nullptr) return;
  std::vector<Event> events;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    wanted_ = events_.empty() && !finished_;
    if (wanted_) return;
    events.swap(events_);
    room_.notify_all();
  }
  settle(env, [&]() -> napi_value {
    if (!events.empty()) return to_js(env, events);
    if (thrown_.any()) thrown_.rethrow(env);
    check(env, status_, err_);
    return null(env);
  });
}

} // namespace addon
