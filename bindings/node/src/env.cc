#include "env.h"

#include "convert.h"

namespace addon {

std::shared_ptr<Env> Env::open(napi_env env, napi_value error_class) {
  auto self = std::make_shared<Env>();
  self->env_ = env;
  check(env, napi_create_reference(env, error_class, 1, &self->error_class_));
  check(env, napi_create_threadsafe_function(env, nullptr, nullptr, string(env, "llamabi"), 1, 1,
                 nullptr, nullptr, self.get(), on_ready, &self->wake_));
  check(env, napi_unref_threadsafe_function(env, self->wake_));
  // Hooks run last in, first out: this one before the threadsafe function's own.
  check(env, napi_add_env_cleanup_hook(env, on_exit, self.get()));
  auto *owner = new std::shared_ptr<Env>(self);
  check(env,
      napi_set_instance_data(
          env, owner,
          [](napi_env, void *data, void *) { delete static_cast<std::shared_ptr<Env> *>(data); },
          nullptr));
  return self;
}

std::shared_ptr<Env> Env::of(napi_env env) {
  void *data = nullptr;
  check(env, napi_get_instance_data(env, &data));
  return *static_cast<std::shared_ptr<Env> *>(data);
}

void Env::post(const std::shared_ptr<Task> &task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || task->posted) return;
  ready_.push_back(task);
  task->posted = true;
  if (waking_) return;
  waking_ = napi_call_threadsafe_function(wake_, nullptr, napi_tsfn_nonblocking) == napi_ok;
}

void Env::on_ready(napi_env env, napi_value, void *context, void *) {
  if (env == nullptr) return; // the environment is going
  auto self = static_cast<Env *>(context)->shared_from_this();
  std::deque<std::shared_ptr<Task>> ready;
  {
    std::lock_guard<std::mutex> lock(self->mutex_);
    ready.swap(self->ready_);
    self->waking_ = false;
    for (auto &task : ready) task->posted = false;
  }
  for (auto &task : ready) {
    try {
      Scope scope(env);
      task->on_loop(env);
    } catch (const Pending &) {
      uncaught(env);
    }
  }
}

// The environment ends with calls running: process end, or a worker's terminate().
void Env::on_exit(void *data) {
  auto self = static_cast<Env *>(data)->shared_from_this();
  {
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->closed_ = true;
    self->ready_.clear();
  }
  for (auto &call : self->calls_) call->stop();
  for (auto &call : self->calls_) call->thread.join();
  self->calls_.clear();
  napi_release_threadsafe_function(self->wake_, napi_tsfn_abort);
  napi_delete_reference(self->env_, self->error_class_);
}

void Env::start(const std::shared_ptr<Call> &call) {
  calls_.insert(call);
  try {
    call->thread = std::thread([call] { call->run(); });
  } catch (...) {
    calls_.erase(call);
    throw;
  }
}

void Env::finish(const std::shared_ptr<Call> &call) {
  if (calls_.erase(call) > 0) call->thread.join();
}

void Env::hold() {
  if (held_++ == 0) napi_ref_threadsafe_function(env_, wake_);
}

void Env::let_go() {
  if (--held_ == 0) napi_unref_threadsafe_function(env_, wake_);
}

napi_value Env::error(int32_t status, const std::string &message) {
  napi_value error_class, error;
  check(env_, napi_get_reference_value(env_, error_class_, &error_class));
  napi_value args[] = {number(env_, status), string(env_, message)};
  check(env_, napi_new_instance(env_, error_class, 2, args, &error));
  return error;
}

} // namespace addon
