// Part of llamabi.hpp: the handle, and every call on it.
#ifndef LLAMABI_MODEL_HPP
#define LLAMABI_MODEL_HPP

#include <llamabi.h>

#include "arguments.hpp"
#include "call.hpp"
#include "callbacks.hpp"
#include "cancel.hpp"
#include "error.hpp"
#include "grammar.hpp"
#include "options.hpp"
#include "stream.hpp"
#include "values.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamabi {

/// A loaded model. Move-only; on a closed or moved-from one every call throws, and says so.
class Model {
public:
  /// Loads a checkpoint, see `llama_build`.
  explicit Model(const std::string &ckpt_dir, const Options &options = {}) {
    const detail::BuildArguments arguments(options);
    handle_.get_deleter().log = arguments.log();
    const char *tokenizer = options.tokenizer_path.empty()
                                ? nullptr
                                : detail::c_string(options.tokenizer_path, "tokenizer_path");
    detail::Call call;
    llama_t *out = nullptr;
    const llama_status status = llama_build(
        detail::c_string(ckpt_dir, "ckpt_dir"), tokenizer, arguments.get(), &out, call.err());
    handle_.reset(out);
    if (call.finish(status) == LLAMA_CANCELLED)
      throw error(LLAMA_CANCELLED, "loading " + ckpt_dir + " was cancelled");
  }

  /// Cancels what has begun and unloads; again does nothing. Calls and streams that have begun end
  /// as cancelled.
  void close() {
    if (!handle_) return;
    detail::Call call;
    if (handle_.get_deleter().life->close()) llama_destroy(handle_.get());
    call.finish(LLAMA_OK);
  }

  /// Loads a LoRA adapter for calls to choose (`GenerateOptions::adapter`), and gives its id; see
  /// `llama_adapter_add`.
  std::uint32_t add_adapter(const std::string &dir, float scale = 1) const {
    std::uint32_t id = 0;
    detail::Call call;
    call.finish_whole(
        llama_adapter_add(live(), detail::c_string(dir, "dir"), scale, &id, call.err()));
    return id;
  }
  /// No new call may name the adapter; see `llama_adapter_drop`.
  void drop_adapter(std::uint32_t id) const {
    detail::Call call;
    call.finish_whole(llama_adapter_drop(live(), id, call.err()));
  }

  /// Continue tokens; see `llama_generate`.
  Completion generate(Tokens prompt, const GenerateOptions &options = {}) const {
    const std::size_t len = prompt.size();
    return std::move(run_tokens(prompt.data(), &len, 1, single(options)).at(0));
  }
  template <class T, detail::IfToken<T> = 0>
  Completion generate(std::initializer_list<T> prompt, const GenerateOptions &options = {}) const {
    return generate(Tokens(prompt), options);
  }
  std::vector<Completion> generate(
      const std::vector<std::vector<Token>> &prompts, const GenerateOptions &options = {}) const {
    const detail::TokenPrompts p(prompts);
    return run_tokens(p.tokens.data(), p.lens.data(), p.lens.size(), options);
  }

  /// Continue texts; see `llama_text_completion`.
  Completion text_completion(std::string_view prompt, const GenerateOptions &options = {}) const {
    return std::move(run_texts(detail::Texts(prompt), single(options)).at(0));
  }
  template <class T, detail::IfText<T> = 0> std::vector<Completion> text_completion(
      const std::vector<T> &prompts, const GenerateOptions &options = {}) const {
    return run_texts(detail::Texts(prompts), options);
  }
  std::vector<Completion> text_completion(
      std::initializer_list<detail::Text> prompts, const GenerateOptions &options = {}) const {
    return run_texts(detail::Texts(prompts), options);
  }

  /// Answer dialogs; see `llama_chat_completion`.
  Completion chat_completion(const Dialog &dialog, const GenerateOptions &options = {}) const {
    return std::move(run_dialogs({&dialog, 1}, single(options)).at(0));
  }
  Completion chat_completion(
      std::initializer_list<Message> dialog, const GenerateOptions &options = {}) const {
    return chat_completion(Dialog(dialog), options);
  }
  std::vector<Completion> chat_completion(
      const std::vector<Dialog> &dialogs, const GenerateOptions &options = {}) const {
    return run_dialogs({dialogs.data(), dialogs.size()}, options);
  }

  /// Answer messages, a JSON array in OpenAI's shape, by the chat template; see `llama_chat`.
  Completion chat(std::string_view messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    return std::move(run_messages(detail::Texts(messages), chat, single(options)).at(0));
  }
  template <class T, detail::IfText<T> = 0>
  std::vector<Completion> chat(const std::vector<T> &messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    return run_messages(detail::Texts(messages), chat, options);
  }
  std::vector<Completion> chat(std::initializer_list<detail::Text> messages,
      const ChatOptions &chat = {}, const GenerateOptions &options = {}) const {
    return run_messages(detail::Texts(messages), chat, options);
  }
  /// The same as events; see `llama_stream_open_messages`.
  Stream stream_chat(std::string_view messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    return stream_messages(detail::Texts(messages), chat, options);
  }
  template <class T, detail::IfText<T> = 0> Stream stream_chat(const std::vector<T> &messages,
      const ChatOptions &chat = {}, const GenerateOptions &options = {}) const {
    return stream_messages(detail::Texts(messages), chat, options);
  }
  Stream stream_chat(std::initializer_list<detail::Text> messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    return stream_messages(detail::Texts(messages), chat, options);
  }
  /// The text that the template makes of messages; see `llama_render_chat`.
  std::string render_chat(std::string_view messages, const ChatOptions &chat = {}) const {
    const llama_chat_options c = detail::chat_options(chat);
    return detail::filled<std::string>(
        messages.size() + 1024, [&](char *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_render_chat(
              live(), detail::data(messages), messages.size(), &c, buf, cap, n, err);
        });
  }
  /// The tokens of that text; see `llama_encode_chat`.
  std::vector<Token> encode_chat(std::string_view messages, const ChatOptions &chat = {}) const {
    const llama_chat_options c = detail::chat_options(chat);
    return detail::filled<std::vector<Token>>(
        messages.size() + 256, [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_chat(
              live(), detail::data(messages), messages.size(), &c, buf, cap, n, err);
        });
  }

  /// Shortens a prompt: what is left of each segment; see `llama_compress`.
  std::vector<Completion> compress(
      const std::vector<Segment> &segments, const CompressOptions &options = {}) const {
    std::vector<llama_segment> borrowed;
    for (const Segment &s : segments) borrowed.push_back({s.text.data(), s.text.size(), s.kind, 0});
    llama_compress_options o;
    llama_compress_options_init(&o, sizeof o);
    o.target_tokens = options.target_tokens;
    o.rate = options.rate;
    o.window = options.window;
    o.coarse = options.coarse;
    o.flags = options.flags;
    if (options.cancel) o.cancel = options.cancel->get();
    detail::Call call;
    llama_result_t *out = nullptr;
    const llama_status status =
        llama_compress(live(), borrowed.data(), borrowed.size(), &o, &out, call.err());
    const detail::Result result(out);
    if (call.finish(status) == LLAMA_CANCELLED && !result)
      return detail::never_begun(segments.size());
    return detail::completions(out, false);
  }

  /// Start a call on tokens and pull its events; see `llama_stream_open`.
  Stream stream(Tokens prompt, const GenerateOptions &options = {}) const {
    const std::size_t len = prompt.size();
    return stream_tokens(prompt.data(), &len, 1, options);
  }
  template <class T, detail::IfToken<T> = 0>
  Stream stream(std::initializer_list<T> prompt, const GenerateOptions &options = {}) const {
    return stream(Tokens(prompt), options);
  }
  Stream stream(
      const std::vector<std::vector<Token>> &prompts, const GenerateOptions &options = {}) const {
    const detail::TokenPrompts p(prompts);
    return stream_tokens(p.tokens.data(), p.lens.data(), p.lens.size(), options);
  }
  /// The same on texts; see `llama_stream_open_text`.
  Stream stream(std::string_view prompt, const GenerateOptions &options = {}) const {
    return stream_texts(detail::Texts(prompt), options);
  }
  template <class T, detail::IfText<T> = 0>
  Stream stream(const std::vector<T> &prompts, const GenerateOptions &options = {}) const {
    return stream_texts(detail::Texts(prompts), options);
  }
  Stream stream(
      std::initializer_list<detail::Text> prompts, const GenerateOptions &options = {}) const {
    return stream_texts(detail::Texts(prompts), options);
  }
  /// The same on dialogs; see `llama_stream_open_chat`.
  Stream stream(const Dialog &dialog, const GenerateOptions &options = {}) const {
    return stream_dialogs({&dialog, 1}, options);
  }
  Stream stream(std::initializer_list<Message> dialog, const GenerateOptions &options = {}) const {
    return stream(Dialog(dialog), options);
  }
  Stream stream(const std::vector<Dialog> &dialogs, const GenerateOptions &options = {}) const {
    return stream_dialogs({dialogs.data(), dialogs.size()}, options);
  }

  /// Tokens of a text; see `llama_encode_text`.
  std::vector<Token> encode(std::string_view text, bool bos = false, bool eos = false) const {
    return encode_up_to(SIZE_MAX, nullptr, text, bos, eos, false);
  }
  /// Tokens of a text, `max_tokens` at most (else LLAMA_E_TOO_LONG), unless `cancel` is triggered
  /// (LLAMA_CANCELLED); see `llama_encode_text_bounded`.
  std::vector<Token> encode(std::string_view text, bool bos, bool eos, std::size_t max_tokens,
      const std::optional<Cancel> &cancel = {}) const {
    return encode_up_to(max_tokens, cancel ? cancel->get() : nullptr, text, bos, eos, false);
  }
  /// The same two with `LLAMA_ENC_SPECIAL`: for texts that may spell special tokens.
  std::vector<Token> encode_special(std::string_view text, bool bos = false, bool eos = false,
      std::size_t max_tokens = SIZE_MAX, const std::optional<Cancel> &cancel = {}) const {
    return encode_up_to(max_tokens, cancel ? cancel->get() : nullptr, text, bos, eos, true);
  }
  /// Tokens of a dialog; see `llama_encode_dialog`.
  std::vector<Token> encode(const Dialog &dialog) const {
    const std::vector<llama_message> m = detail::Dialogs(&dialog, 1).messages;
    return detail::filled<std::vector<Token>>(
        256, [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_dialog(live(), m.data(), m.size(), buf, cap, n, err);
        });
  }
  /// Text of tokens; see `llama_decode_tokens`.
  std::string decode(Tokens tokens) const {
    return detail::filled<std::string>(
        8 * tokens.size() + 8, [&](char *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_decode_tokens(live(), tokens.data(), tokens.size(), buf, cap, n, err);
        });
  }
  template <class T, detail::IfToken<T> = 0>
  std::string decode(std::initializer_list<T> tokens) const {
    return decode(Tokens(tokens));
  }
  /// What a token contributes in the middle of a text, perhaps part of a code point.
  std::string token_bytes(Token token) const {
    const char *p = nullptr;
    std::size_t n = 0;
    detail::Call call;
    const Loan loan(*this);
    call.finish_whole(llama_token_bytes(live(), token, &p, &n, call.err()));
    return {p, n};
  }

  Info info() const {
    Info info{};
    info.struct_size = sizeof info;
    detail::Call call;
    call.finish_whole(llama_get_info(live(), &info, call.err()));
    return info;
  }
  Timings timings() const {
    Timings timings{};
    timings.struct_size = sizeof timings;
    detail::Call call;
    call.finish_whole(llama_get_timings(live(), &timings, call.err()));
    return timings;
  }

  /// What is known of a rank; see `llama_get_rank`.
  Rank rank(std::uint32_t number) const {
    Rank rank{};
    rank.struct_size = sizeof rank;
    detail::Call call;
    call.finish_whole(llama_get_rank(live(), number, &rank, call.err()));
    return rank;
  }
  /// Throws what has made the model unusable, if anything has; see `llama_health`.
  void check_health() const {
    detail::Call call;
    call.finish_whole(llama_health(live(), call.err()));
  }

  /// For llamabi.h itself.
  llama_t *get() const noexcept { return handle_.get(); }

private:
  friend class Grammar;

  /// The handle, for the innermost call of this thread, which begins with that: one that is closed
  /// from then on ends it as cancelled.
  llama_t *live() const {
    if (!handle_) throw error(LLAMA_E_INVALID_ARGUMENT, "the model was moved from");
    detail::Call::current()->begin(handle_.get_deleter().life);
    return handle_.get();
  }

  /// For a call that reads what is the handle's: a `close` leaves the handle to the last of them.
  /// Before `live`: a `close` that this comes too late for has to be seen there.
  class Loan {
  public:
    explicit Loan(const Model &model) noexcept
        : handle_(model.handle_.get()), life_(model.handle_.get_deleter().life) {
      if (handle_ != nullptr) life_->borrow();
    }
    ~Loan() {
      if (handle_ != nullptr && life_->give_back()) llama_destroy(handle_);
    }
    Loan(const Loan &) = delete;
    Loan &operator=(const Loan &) = delete;

  private:
    llama_t *handle_;
    std::shared_ptr<detail::Life> life_;
  };

  /// Options of a call that has one result to give: others would be computed and lost.
  static const GenerateOptions &single(const GenerateOptions &options) {
    if (options.num_return_sequences > 1)
      throw error(LLAMA_E_INVALID_ARGUMENT,
          "num_return_sequences is " + std::to_string(options.num_return_sequences) +
              ", must be 1 for one prompt: a list of prompts, or a stream, gives all of them");
    return options;
  }
  /// A call with `n` prompts.
  template <class F>
  std::vector<Completion> run(std::size_t n, const GenerateOptions &options, F &&function) const {
    const bool logs = handle_.get_deleter().log != nullptr;
    detail::GenerateArguments arguments(options, false, logs);
    detail::Call call;
    llama_result_t *out = nullptr;
    const llama_status status = function(arguments.get(), &out, call.err());
    const detail::Result result(out);
    if (call.finish(status) == LLAMA_CANCELLED && !result)
      return detail::never_begun(n * (std::max)(options.num_return_sequences, 1U));
    return detail::completions(out, options.top_logprobs != 0);
  }
  std::vector<Completion> run_tokens(const Token *tokens, const std::size_t *lens, std::size_t n,
      const GenerateOptions &options) const {
    return run(n, options, [&](auto *o, auto *out, auto *err) {
      return llama_generate(live(), tokens, lens, n, o, out, err);
    });
  }
  std::vector<Completion> run_texts(const detail::Texts &p, const GenerateOptions &options) const {
    return run(p.lens.size(), options, [&](auto *o, auto *out, auto *err) {
      return llama_text_completion(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }
  std::vector<Completion> run_dialogs(
      const detail::Dialogs &p, const GenerateOptions &options) const {
    return run(p.lens.size(), options, [&](auto *o, auto *out, auto *err) {
      return llama_chat_completion(
          live(), p.messages.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }

  std::vector<Completion> run_messages(
      const detail::Texts &p, const ChatOptions &chat, const GenerateOptions &options) const {
    const llama_chat_options c = detail::chat_options(chat);
    return run(p.lens.size(), options, [&](auto *o, auto *out, auto *err) {
      return llama_chat(live(), p.prompts.data(), p.lens.data(), p.lens.size(), &c, o, out, err);
    });
  }

  template <class F> Stream open(const GenerateOptions &options, F &&function) const {
    return Stream(options, handle_.get_deleter().log, std::forward<F>(function));
  }
  Stream stream_tokens(const Token *tokens, const std::size_t *lens, std::size_t n,
      const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open(live(), tokens, lens, n, o, out, err);
    });
  }
  Stream stream_texts(const detail::Texts &p, const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_text(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }
  Stream stream_messages(
      const detail::Texts &p, const ChatOptions &chat, const GenerateOptions &options) const {
    const llama_chat_options c = detail::chat_options(chat);
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_messages(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), &c, o, out, err);
    });
  }
  Stream stream_dialogs(const detail::Dialogs &p, const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_chat(
          live(), p.messages.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }

  std::vector<Token> encode_up_to(std::size_t max_tokens, const llama_cancel_t *cancel,
      std::string_view text, bool bos, bool eos, bool special) const {
    const std::uint32_t flags = (bos ? LLAMA_ENC_BOS : 0U) | (eos ? LLAMA_ENC_EOS : 0U) |
                                (special ? LLAMA_ENC_SPECIAL : 0U);
    return detail::filled<std::vector<Token>>((std::min)(text.size() + 8, max_tokens),
        [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_text_bounded(
              live(), detail::data(text), text.size(), flags, max_tokens, cancel, buf, cap, n, err);
        });
  }

  std::unique_ptr<llama_t, detail::Destroy> handle_;
};

inline Grammar::Grammar(const Model &model, std::int32_t kind, std::string_view source) {
  const bool none = kind == LLAMA_GRAMMAR_JSON;
  const char *text = none ? nullptr : source.data() == nullptr ? "" : source.data();
  llama_grammar_t *grammar = nullptr;
  detail::Call call;
  call.finish_whole(
      llama_grammar_new(model.live(), kind, text, source.size(), &grammar, call.err()));
  grammar_.reset(grammar, llama_grammar_free);
}

} // namespace llamabi

#endif // LLAMABI_MODEL_HPP
