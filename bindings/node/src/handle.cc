// A model as JavaScript holds it, with the log lines and the grammars that are its own.
#include "calls.h"

#include <algorithm>
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
  while (!lines.empty()) {
    const auto [level, message] = std::move(lines.front());
    lines.pop_front();
    try {
      Scope scope(env);
      napi_value function = nullptr;
      if (function_ == nullptr) return;
      check(env, napi_get_reference_value(env, function_, &function));
      if (function == nullptr) return;
      napi_value args[] = {
          string(env, levels[level >= 0 && level < 5 ? level : 4]), string(env, message)};
      check(env, napi_call_function(env, undefined(env), function, 2, args, nullptr));
    } catch (const Pending &) {
      uncaught(env); // of this line alone: the process may go on, and hears those behind it
    }
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

void Handle::enter(ModelCall *call) {
  std::lock_guard<std::mutex> lock(mutex_);
  inside_.insert(call);
}

void Handle::leave(ModelCall *call) {
  std::lock_guard<std::mutex> lock(mutex_);
  inside_.erase(call);
  left_.notify_all();
}

void Handle::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (ModelCall *call : inside_) call->stop();
}

void Handle::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, [&] { return inside_.empty(); });
}

void Handle::begin_adding() {
  std::lock_guard<std::mutex> lock(mutex_);
  adding_++;
}

void Handle::end_adding() {
  std::lock_guard<std::mutex> lock(mutex_);
  adding_--;
  left_.notify_all();
}

void Handle::wait_for_adapters() {
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, [&] { return adding_ == 0; });
}

void forget_bytes(napi_env env, Handle &handle) {
  int64_t now;
  napi_adjust_external_memory(env, -handle.bytes.exchange(0), &now);
}

// --- grammars ---

// Some grammars take seconds. Only calls with the same one wait for it meanwhile.
std::shared_ptr<llama_grammar_t> Handle::grammar(
    int32_t kind, const std::string &source, llama_status &status, llama_error &err) {
  std::shared_ptr<Compiled> one;
  {
    std::lock_guard<std::mutex> lock(finding_);
    const auto is_it = [&](const auto &c) { return c->kind == kind && c->source == source; };
    const auto found = std::find_if(grammars_.begin(), grammars_.end(), is_it);
    if (found != grammars_.end()) {
      one = std::move(*found);
      grammars_.erase(found);
    } else {
      one = std::make_shared<Compiled>(kind, source);
    }
    grammars_.push_front(one);
    if (grammars_.size() > kMostGrammars) grammars_.pop_back();
  }
  std::lock_guard<std::mutex> lock(one->compiling);
  if (!one->done) {
    const bool none = kind == LLAMA_GRAMMAR_JSON;
    llama_grammar_t *made = nullptr;
    one->err.struct_size = sizeof one->err;
    one->status = llama_grammar_new(
        llama, kind, none ? nullptr : source.data(), source.size(), &made, &one->err);
    if (one->status == LLAMA_OK) {
      one->grammar.reset(made, llama_grammar_free);
    } else { // those that wait hear of it, later ones try again
      std::lock_guard<std::mutex> lock(finding_);
      grammars_.erase(std::remove(grammars_.begin(), grammars_.end(), one), grammars_.end());
    }
    one->done = true;
  }
  status = one->status;
  if (status != LLAMA_OK) err = one->err;
  return one->grammar;
}

} // namespace addon
