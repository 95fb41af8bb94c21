// Part of llamabi.hpp: what every call of the C API needs. A failure becomes an exception, and an
// exception of a callback waits until the library has returned: nothing may unwind through it.
#ifndef LLAMABI_CALL_HPP
#define LLAMABI_CALL_HPP

#include <llamabi.h>

#include "error.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace llamabi::detail {

/// Whether a model is closed, which it may be beside other calls, and how many of these read memory
/// that is the handle's.
class Life {
public:
  bool closed() const noexcept { return (state_ & closed_) != 0; }
  void borrow() noexcept { ++state_; }
  /// Both: whether the handle is to be destroyed, now that nobody reads.
  bool close() noexcept { return state_.fetch_or(closed_) == 0; }
  bool give_back() noexcept { return --state_ == closed_; }

private:
  static constexpr std::uint32_t closed_ = 1U << 31;
  std::atomic<std::uint32_t> state_{0}; // closed_, and the number of readers
};

/// One call into the library: where its error goes, and what a callback of it threw.
class Call {
public:
  Call() : outer_(std::exchange(current(), this)) { error_.struct_size = sizeof error_; }
  ~Call() { current() = outer_; }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  /// The innermost one on this thread. Log lines come on any thread that is inside a call.
  static Call *&current() noexcept {
    thread_local Call *call = nullptr;
    return call;
  }

  llama_error *err() noexcept { return &error_; }

  /// The call goes to a model, and begins now unless it has.
  void begin(const std::shared_ptr<const Life> &life) {
    if (model_) return;
    if (life->closed()) throw error(LLAMA_E_INVALID_ARGUMENT, "the model is closed");
    model_ = life;
  }

  /// Runs a callback; false once one has thrown: nothing may unwind into the library.
  template <class F> bool guard(F &&callback) noexcept {
    if (thrown_) return false;
    try {
      return callback();
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
  }

  /// Rethrows what a callback threw, then throws if `status` is a failure.
  llama_status finish(llama_status status) {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    // `close` may come between the call's beginning and the library, which then knows no such
    // handle.
    if (status == LLAMA_E_INVALID_ARGUMENT && overtaken()) return LLAMA_CANCELLED;
    if (status < 0) throw error(status, error_.message);
    return status;
  }

  /// The same where a cancelled call has nothing to return.
  void finish_whole(llama_status status) {
    if (finish(status) == LLAMA_OK) return;
    throw error(
        LLAMA_CANCELLED, overtaken() ? "the model was closed meanwhile" : "the call was cancelled");
  }

private:
  bool overtaken() const noexcept { return model_ && model_->closed(); }

  Call *outer_;
  std::shared_ptr<const Life> model_; // a callback may destroy the model itself
  llama_error error_{};
  std::exception_ptr thrown_;
};

template <auto free> struct Free {
  template <class T> void operator()(T *object) const noexcept { free(object); }
};

using Result = std::unique_ptr<llama_result_t, Free<llama_result_free>>;

inline void check(llama_status status) {
  if (status < 0) throw error(status, llama_status_string(status));
}

/// Text that C takes as NUL-terminated; a NUL inside would silently cut it.
inline const char *c_string(const std::string &text, const char *name) {
  if (text.find('\0') != std::string::npos)
    throw error(LLAMA_E_INVALID_ARGUMENT, std::string(name) + " contains a NUL byte");
  return text.c_str();
}

inline const char *data(std::string_view text) noexcept {
  return text.data() != nullptr ? text.data() : "";
}

/// Fills a buffer that is grown once if `guess` elements are too few.
template <class Buffer, class F> Buffer filled(std::size_t guess, F &&call) {
  Buffer buffer(guess, typename Buffer::value_type());
  std::size_t n = 0;
  Call c;
  llama_status status = call(buffer.data(), buffer.size(), &n, c.err());
  if (status == LLAMA_E_INVALID_ARGUMENT && n > buffer.size()) {
    buffer.resize(n);
    status = call(buffer.data(), buffer.size(), &n, c.err());
  }
  c.finish_whole(status);
  buffer.resize(n);
  return buffer;
}

} // namespace llamabi::detail

#endif // LLAMABI_CALL_HPP
