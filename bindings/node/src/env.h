// What one Node environment (the main thread, or a worker) owns: the way back onto its thread, and
// the calls that run for it. Nothing here is static, so any number of environments live together.
#pragma once
#include <node_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace addon {

class Env;

// Something that other threads have news of for the environment's thread.
struct Task : std::enable_shared_from_this<Task> {
  virtual ~Task() = default;
  // On the environment's thread, some time after one or more `Env::post`.
  virtual void on_loop(napi_env env) = 0;

private:
  friend class Env;
  bool posted = false; // guarded by Env::mutex
};

// A task with a thread of its own, neither the event loop's nor one of libuv's pool: those are
// four, and a generation that takes minutes would starve file system and DNS.
struct Call : Task {
  explicit Call(std::shared_ptr<Env> env) : env(std::move(env)) {}
  // The thread. Must end with `finish`.
  virtual void run() noexcept = 0;
  // Any thread: end soon. `run` then waits for nothing of the environment's any more.
  virtual void stop() = 0;
  const std::shared_ptr<Env> env;

private:
  friend class Env;
  std::thread thread;
};

class Env : public std::enable_shared_from_this<Env> {
public:
  // Null with an exception pending if that fails. `error_class` is called with (status, message).
  static std::shared_ptr<Env> open(napi_env env, napi_value error_class);
  static std::shared_ptr<Env> of(napi_env env);

  // Any thread. Nothing happens once the environment is on its way out.
  void post(const std::shared_ptr<Task> &task);

  // The environment's thread.
  void start(const std::shared_ptr<Call> &call);  // throws std::system_error
  void finish(const std::shared_ptr<Call> &call); // the call's `run` has ended or is about to
  void hold();                                    // somebody awaits something: keep the loop alive
  void let_go();
  napi_value error(int32_t status, const std::string &message);
  napi_env raw() const { return env_; }

private:
  static void on_ready(napi_env env, napi_value, void *context, void *);
  static void on_exit(void *self);

  napi_env env_ = nullptr;
  napi_ref error_class_ = nullptr;
  napi_threadsafe_function wake_ = nullptr;
  size_t held_ = 0;
  std::set<std::shared_ptr<Call>> calls_;

  std::mutex mutex_;
  std::deque<std::shared_ptr<Task>> ready_; // each task at most once
  bool waking_ = false;                     // so at most one message is in `wake_`'s queue
  bool closed_ = false;                     // `wake_` must not be touched any more
};

} // namespace addon
