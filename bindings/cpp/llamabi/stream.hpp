// Part of llamabi.hpp: a call whose events are pulled.
#ifndef LLAMABI_STREAM_HPP
#define LLAMABI_STREAM_HPP

#include <llamabi.h>

#include "arguments.hpp"
#include "call.hpp"
#include "callbacks.hpp"
#include "cancel.hpp"
#include "error.hpp"
#include "options.hpp"
#include "values.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace llamabi {

class Model;

/// Events of a call, pulled: `for (auto &ev : stream)`. Use it from one thread at a time. It may
/// outlive its model, and then ends as cancelled; destroying it cancels what still runs.
class Stream {
public:
  class iterator {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Event;
    using difference_type = std::ptrdiff_t;
    using pointer = Event *;
    using reference = Event &;
    iterator() = default;
    reference operator*() const noexcept { return stream_->event_; }
    pointer operator->() const noexcept { return &stream_->event_; }
    iterator &operator++() {
      if (stream_->next(stream_->event_) != LLAMA_OK) stream_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator &a, const iterator &b) noexcept {
      return a.stream_ == b.stream_;
    }
    friend bool operator!=(const iterator &a, const iterator &b) noexcept { return !(a == b); }

  private:
    friend class Stream;
    explicit iterator(Stream *stream) noexcept : stream_(stream) {}
    Stream *stream_ = nullptr;
  };

  /// Waits for the first event. The event is overwritten by the next one.
  iterator begin() { return ++iterator(this); }
  iterator end() noexcept { return {}; }

  /// Takes the next event. `LLAMA_OK`; `LLAMA_TIMEOUT`; for ever `LLAMA_DONE`, or
  /// `LLAMA_CANCELLED`, once the stream has ended. A negative timeout waits as long as it takes.
  llama_status next(Event &ev, std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) {
    if (unopened_) return status_;
    llama_event c{};
    c.struct_size = sizeof c;
    const auto ms = std::clamp<std::chrono::milliseconds::rep>(timeout.count(), -1, INT32_MAX);
    detail::Call call;
    status_ = llama_stream_next(stream_.get(), &c, static_cast<std::int32_t>(ms), call.err());
    if (status_ == LLAMA_OK) ev.assign(c);
    return call.finish(status_);
  }

  /// Figures of a sequence whose `LLAMA_EVENT_FINISH` has been taken, until `close`; any thread.
  Stats stats(std::size_t index = 0) const {
    Stats stats{};
    stats.struct_size = sizeof stats;
    if (const llama_status status = llama_stream_stats(stream_.get(), index, &stats); status < 0)
      throw error(status, "sequence " + std::to_string(index) +
                              " of the stream has not ended, or there is none, or it is closed");
    return stats;
  }
  /// What `next` returned last: after a loop, whether the stream is done or was cancelled.
  llama_status status() const noexcept { return status_; }
  /// Readable while `next` would not wait, for poll and epoll. Not to be read, written or closed.
  int fd() const noexcept { return llama_stream_fd(stream_.get()); }
  /// Ends a sequence behind the events that were taken of it, from any thread; see
  /// `llama_stream_stop`.
  void stop(std::size_t index) const {
    if (unopened_) return;
    const llama_status status = llama_stream_stop(stream_.get(), index);
    if (status == LLAMA_E_INVALID_ARGUMENT)
      throw error(
          status, "the stream has no sequence " + std::to_string(index) + ", or it is closed");
    detail::check(status);
  }
  /// Cancels what still runs; from any thread. A `next` that waits returns `LLAMA_CANCELLED`.
  void close() noexcept { llama_stream_free(stream_.get()); }
  llama_stream_t *get() const noexcept { return stream_.get(); }

private:
  friend class Model;
  template <class F>
  Stream(const GenerateOptions &o, std::shared_ptr<const detail::Log> log, F &&open)
      : log_(std::move(log)), cancel_(o.cancel) {
    detail::GenerateArguments arguments(o, true);
    detail::Call call;
    llama_stream_t *out = nullptr;
    status_ = open(arguments.get(), &out, call.err());
    stream_.reset(out);
    callbacks_ = arguments.take_callbacks();
    status_ = call.finish(status_);
    unopened_ = out == nullptr; // the model was closed meanwhile: cancelled
  }

  std::shared_ptr<const detail::Log> log_;
  std::optional<Cancel> cancel_;
  std::unique_ptr<detail::Callbacks> callbacks_;
  std::unique_ptr<llama_stream_t, detail::Free<llama_stream_free>> stream_;
  Event event_;
  llama_status status_ = LLAMA_OK;
  bool unopened_ = false;
};

} // namespace llamabi

#endif // LLAMABI_STREAM_HPP
