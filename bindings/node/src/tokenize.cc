// Text to tokens and back, on a thread of its own, for texts that would hold up the event loop.
#include <algorithm>
#include <new>

#include "calls.h"

namespace addon {

Tokenize::Tokenize(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
    const std::string &kind, napi_value input, uint32_t flags, size_t max_tokens, napi_value chat)
    : ModelCall(std::move(owner), std::move(handle)), chat_(env, chat), flags_(flags),
      max_tokens_(max_tokens) {
  kind_ = kind == "text"       ? kText
          : kind == "dialog"   ? kDialog
          : kind == "messages" ? kMessages
          : kind == "render"   ? kRender
                               : kTokens;
  if (kind_ == kText)
    text_ = to_text(env, input, "text");
  else if (kind_ == kMessages || kind_ == kRender)
    text_ = to_text(env, input, "messages");
  else if (kind_ == kDialog)
    to_messages(env, input, "messages", messages_);
  else
    to_tokens(env, input, "tokens", tokens_);
  err_.struct_size = sizeof err_;
  cancel_ = new_cancel(env);
}

Tokenize::~Tokenize() { llama_cancel_free(cancel_); }

void Tokenize::stop() { llama_cancel_trigger(cancel_); }

// Calls `f` with a buffer of the size that most inputs need, and again where C says that it needs
// more.
template <class T, class F> void Tokenize::fill(std::vector<T> &out, size_t size, F f) {
  size_t n = 0;
  out.resize(size);
  while ((status_ = f(out.data(), out.size(), &n)) == LLAMA_E_INVALID_ARGUMENT && n > out.size())
    out.resize(n);
  out.resize(status_ == LLAMA_OK ? n : 0);
}

void Tokenize::run() noexcept {
  llama_t *l = handle_->llama;
  try {
    if (kind_ == kText) {
      fill(tokens_, std::min(text_.size() + 3, max_tokens_),
          [&](int32_t *buf, size_t cap, size_t *n) {
            return llama_encode_text_bounded(
                l, text_.data(), text_.size(), flags_, max_tokens_, cancel_, buf, cap, n, &err_);
          });
    } else if (kind_ == kDialog) {
      size_t size = 16;
      for (const Message &m : messages_) size += m.content.size() + 32;
      const auto borrowed = borrow(messages_);
      fill(tokens_, size, [&](int32_t *buf, size_t cap, size_t *n) {
        return llama_encode_dialog(l, borrowed.data(), borrowed.size(), buf, cap, n, &err_);
      });
    } else if (kind_ == kMessages) {
      fill(tokens_, text_.size() + 256, [&](int32_t *buf, size_t cap, size_t *n) {
        return llama_encode_chat(l, text_.data(), text_.size(), &chat_.c, buf, cap, n, &err_);
      });
    } else {
      std::vector<char> text;
      const size_t size = kind_ == kRender ? text_.size() + 1024 : 8 * tokens_.size() + 1;
      fill(text, size, [&](char *buf, size_t cap, size_t *n) {
        if (kind_ == kRender)
          return llama_render_chat(l, text_.data(), text_.size(), &chat_.c, buf, cap, n, &err_);
        return llama_decode_tokens(l, tokens_.data(), tokens_.size(), buf, cap, n, &err_);
      });
      text_.assign(text.data(), text.size());
    }
  } catch (const std::bad_alloc &) {
    out_of_memory(status_, err_);
  }
  finished();
}

void Tokenize::on_loop(napi_env env) {
  this->env->finish(self());
  settle(env, [&] {
    if (status_ != LLAMA_OK) throw_llama(env, status_, err_.message); // LLAMA_CANCELLED, too
    return kind_ == kTokens || kind_ == kRender ? string(env, text_)
                                                : tokens_to_js(env, tokens_.data(), tokens_.size());
  });
}

} // namespace addon
