// Part of llamabi.hpp: the flag that stops calls, and with C++20 a std::stop_token in its place.
#ifndef LLAMABI_CANCEL_HPP
#define LLAMABI_CANCEL_HPP

#include <llamabi.h>

#include "call.hpp"
#include "error.hpp"

#include <memory>
#include <utility>

#if __cplusplus >= 202002L
#include <version>
#endif
#if defined(__cpp_lib_jthread)
#include <stop_token>
#endif

namespace llamabi {

/// A flag that stops the calls it is given to. Copies are the same flag; default-made ones are new.
class Cancel {
public:
  Cancel() : flag_(create(), llama_cancel_free) {}
#if defined(__cpp_lib_jthread)
  /// Triggered when a stop is requested, for as long as a copy lives.
  Cancel(const std::stop_token &token) { // NOLINT(google-explicit-constructor)
    auto linked = std::make_shared<Linked>(token);
    llama_cancel_t *flag = linked->flag.get();
    flag_ = std::shared_ptr<llama_cancel_t>(std::move(linked), flag);
  }
#endif
  /// From any thread, signal handler or callback; it stays triggered.
  void trigger() const noexcept { llama_cancel_trigger(flag_.get()); }
  llama_cancel_t *get() const noexcept { return flag_.get(); }

private:
  static llama_cancel_t *create() {
    detail::check_abi();
    llama_cancel_t *flag = llama_cancel_new();
    if (flag == nullptr) throw error(LLAMA_E_NO_MEMORY, "there are too many cancel flags");
    return flag;
  }
#if defined(__cpp_lib_jthread)
  struct Linked {
    struct Trigger {
      llama_cancel_t *flag;
      void operator()() const noexcept { llama_cancel_trigger(flag); }
    };
    std::unique_ptr<llama_cancel_t, detail::Free<llama_cancel_free>> flag{create()};
    std::stop_callback<Trigger> callback;
    explicit Linked(const std::stop_token &token) : callback(token, Trigger{flag.get()}) {}
  };
#endif
  std::shared_ptr<llama_cancel_t> flag_;
};

} // namespace llamabi

#endif // LLAMABI_CANCEL_HPP
