// A generation, awaited as a whole or pulled as a stream. Its thread is inside the library; what it
// has for JavaScript, and what it asks of it, goes over the event loop.
#include "calls.h"

#include <algorithm>
#include <new>
#include <utility>

namespace addon {

Generation::Generation(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
    const std::string &kind, napi_value input, napi_value options, bool streaming, napi_value chat,
    napi_value should_stop)
    : ModelCall(std::move(owner), std::move(handle)), streaming(streaming), options_(env, options),
      chat_(env, chat) {
  kind_ = kind == "tokens"     ? kTokens
          : kind == "text"     ? kText
          : kind == "messages" ? kMessages
                               : kDialog;
  each_element(env, input, "input", "an array", [&](napi_value element, uint32_t i) {
    const std::string name = at(kind_ == kDialog ? "dialogs" : "prompts", i);
    if (kind_ == kTokens)
      lens_.push_back(to_tokens(env, element, name, tokens_));
    else if (kind_ == kDialog)
      lens_.push_back(to_messages(env, element, name, messages_));
    else {
      texts_.push_back(to_text(env, element, name));
      lens_.push_back(texts_.back().size());
    }
  });
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

// What the function throws, as an answer that is no boolean does, stops the call and becomes its
// error.
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
  napi_value function = nullptr, answer = nullptr;
  bool stops = false;
  check(env, napi_get_reference_value(env, should_stop_, &function));
  if (function != nullptr) { // else the stream is gone, too
    napi_value args[] = {tokens_to_js(env, tokens.data(), tokens.size()), number(env, index),
        number(env, static_cast<double>(n_prompt))};
    try {
      check(env, napi_call_function(env, undefined(env), function, 3, args, &answer));
      stops = to_bool(env, answer, "what shouldStop returns");
    } catch (const Pending &) {
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
  const size_t sequences = lens_.size() * std::max(options_.c.num_return_sequences, 1U);
  llama_status status = index < sequences ? LLAMA_OK : LLAMA_E_INVALID_ARGUMENT;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status == LLAMA_OK && !finished_ && stream_ == nullptr)
      to_stop_.push_back(index);
    else if (status == LLAMA_OK && !finished_)
      status = llama_stream_stop(stream_, index);
  }
  if (status == LLAMA_E_INVALID_ARGUMENT)
    throw_llama(env, status,
        "index is " + std::to_string(index) + ", the call has " + std::to_string(sequences) +
            (sequences == 1 ? " sequence" : " sequences"));
  if (status != LLAMA_OK) throw_llama(env, status, llama_status_string(status));
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
