// What all calls share, and those that are one call of the library: to open, to close, to compile a
// grammar, to load an adapter. Others have files of their own.
#include "calls.h"

#include <cstring>
#include <new>
#include <utility>

namespace addon {

// --- what all calls share ---

napi_value Awaited::promise(napi_env env) {
  napi_value promise;
  check(env, napi_create_promise(env, &deferred_, &promise));
  this->env->hold();
  return promise;
}

void Awaited::finished() {
  leave();
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
  handle_->stop();
  handle_->wait();
  llama_destroy(handle_->llama);
  handle_->wait_for_adapters(); // they keep the weights until they are read
  finished();
}

void Close::on_loop(napi_env env) {
  this->env->finish(self());
  forget_bytes(env, *handle_);
  settle(env, [&] { return undefined(env); });
}

// --- grammars ---

Compile::Compile(
    std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle, int32_t kind, std::string source)
    : ModelCall(std::move(owner), std::move(handle)), kind_(kind), source_(std::move(source)) {
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
    if (handle_->closing) throw_llama(env, LLAMA_CANCELLED, "the model was closed meanwhile");
    check(env, status_, err_);
    return number(env, id_);
  });
}

} // namespace addon
