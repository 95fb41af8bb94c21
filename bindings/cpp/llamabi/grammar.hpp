// Part of llamabi.hpp: the languages that generated text can be kept in. model.hpp has the
// constructor, which needs a whole Model.
#ifndef LLAMABI_GRAMMAR_HPP
#define LLAMABI_GRAMMAR_HPP

#include <llamabi.h>

#include "call.hpp"
#include "values.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llamabi {

class Model;

namespace detail {

template <class Strings> std::string json_array(const Strings &texts) {
  std::string json = "[";
  for (const std::string_view text : texts) {
    json += json.size() == 1 ? "\"" : ",\"";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < ' ' || c == '"' || c == '\\') {
        constexpr const char *hex = "0123456789abcdef";
        json += {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
      } else {
        json += c;
      }
    }
    json += '"';
  }
  return json += ']';
}

} // namespace detail

/// A language that generated text is kept in; see `llama_grammar_new`. For the model that it was
/// made for, and any number of its calls at a time.
class Grammar {
public:
  /// The JSON values of a JSON Schema, which is a text.
  static Grammar json_schema(const Model &model, std::string_view schema) {
    return Grammar(model, LLAMA_GRAMMAR_JSON_SCHEMA, schema);
  }
  /// Any JSON object.
  static Grammar json(const Model &model) { return Grammar(model, LLAMA_GRAMMAR_JSON, {}); }
  /// The texts that a regular expression matches as a whole.
  static Grammar regex(const Model &model, std::string_view expression) {
    return Grammar(model, LLAMA_GRAMMAR_REGEX, expression);
  }
  /// A grammar in llguidance's dialect of Lark.
  static Grammar lark(const Model &model, std::string_view grammar) {
    return Grammar(model, LLAMA_GRAMMAR_LARK, grammar);
  }
  /// One of these texts, which are distinct and none empty.
  template <class T, detail::IfText<T> = 0>
  static Grammar choice(const Model &model, const std::vector<T> &texts) {
    return Grammar(model, LLAMA_GRAMMAR_CHOICE, detail::json_array(texts));
  }
  static Grammar choice(const Model &model, std::initializer_list<detail::Text> texts) {
    return Grammar(model, LLAMA_GRAMMAR_CHOICE, detail::json_array(texts));
  }
  /// The same, of the texts of a JSON array.
  static Grammar choice(const Model &model, std::string_view array) {
    return Grammar(model, LLAMA_GRAMMAR_CHOICE, array);
  }

  /// Which tokens may follow: bit `t % 32` of word `t / 32`; see `llama_grammar_mask`.
  std::vector<std::uint32_t> mask(const std::vector<Token> &tokens = {}) const {
    return detail::filled<std::vector<std::uint32_t>>(
        4096, [&](std::uint32_t *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_grammar_mask(get(), tokens.data(), tokens.size(), buf, cap, n, err);
        });
  }

  llama_grammar_t *get() const noexcept { return grammar_.get(); }

private:
  Grammar(const Model &model, std::int32_t kind, std::string_view source);
  std::shared_ptr<llama_grammar_t> grammar_;
};

} // namespace llamabi

#endif // LLAMABI_GRAMMAR_HPP
