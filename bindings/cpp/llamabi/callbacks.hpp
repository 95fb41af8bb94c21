// Part of llamabi.hpp: functions of C that the library calls, and what they get as their data.
#ifndef LLAMABI_CALLBACKS_HPP
#define LLAMABI_CALLBACKS_HPP

#include <llamabi.h>

#include "call.hpp"
#include "options.hpp"
#include "values.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace llamabi::detail {

using Log = std::function<void(std::int32_t, std::string_view)>;

/// Frees a model, and only then lets go of what its log lines are given to.
struct Destroy {
  std::shared_ptr<const Log> log;
  std::shared_ptr<Life> life = std::make_shared<Life>();
  void operator()(llama_t *model) const noexcept { llama_destroy(model); }
};

inline void on_log(void *user_data, std::int32_t level, const char *msg, std::size_t len) noexcept {
  const auto hear = [&] {
    (*static_cast<const Log *>(user_data))(level, std::string_view(msg, len));
    return true;
  };
  if (Call *call = Call::current()) {
    call->guard(hear);
  } else { // from a destructor, where an exception has nowhere to go
    Call nobody;
    nobody.guard(hear);
  }
}

inline std::int32_t on_progress(void *user_data, float fraction) noexcept {
  const auto *o = static_cast<const Options *>(user_data);
  return Call::current()->guard([&] { return o->progress(fraction); });
}

/// What the callbacks of a call get as their data. An exception of one stops the call, or ends the
/// sequence and is thrown by the function that is under way.
class Callbacks {
public:
  /// `kept`: for longer than the options.
  Callbacks(const GenerateOptions &o, bool kept) : options_(kept ? &own_ : &o) {
    if (!kept) return;
    own_.on_logits = o.on_logits;
    own_.on_stop = o.on_stop;
  }
  Callbacks(const Callbacks &) = delete;
  Callbacks &operator=(const Callbacks &) = delete;

  static std::int32_t on_event(void *user_data, const llama_event *ev) noexcept {
    auto *self = static_cast<Callbacks *>(user_data);
    return Call::current()->guard([&] {
      if (!self->options_->on_event) return true;
      self->event_.assign(*ev);
      return self->options_->on_event(self->event_);
    });
  }

  static std::int32_t on_logits(void *user_data, const llama_logits *row) noexcept {
    const auto *self = static_cast<const Callbacks *>(user_data);
    return Call::current()->guard([&] { return self->options_->on_logits(*row); });
  }

  static std::int32_t on_stop(void *user_data, std::uint32_t index, const Token *tokens,
      std::size_t n, std::size_t n_prompt) noexcept {
    const auto *self = static_cast<const Callbacks *>(user_data);
    return !Call::current()->guard(
        [&] { return !self->options_->on_stop(index, Tokens(tokens, n), n_prompt); });
  }

private:
  GenerateOptions own_;
  const GenerateOptions *options_;
  Event event_;
};

} // namespace llamabi::detail

#endif // LLAMABI_CALLBACKS_HPP
