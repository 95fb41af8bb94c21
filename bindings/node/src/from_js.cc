// Values of JavaScript as C++ has them: texts, numbers, tokens and dialogs.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "convert.h"
#include "env.h"

namespace addon {

void check(napi_env env, napi_status status) {
  if (status == napi_ok) return;
  bool pending = false;
  if (status != napi_pending_exception && napi_is_exception_pending(env, &pending) == napi_ok &&
      !pending) {
    const napi_extended_error_info *info = nullptr;
    napi_get_last_error_info(env, &info);
    napi_throw_error(env, nullptr,
        info != nullptr && info->error_message ? info->error_message : "Node-API failed");
  }
  throw Pending{};
}

void uncaught(napi_env env) {
  napi_value thrown;
  bool pending = false;
  if (napi_is_exception_pending(env, &pending) == napi_ok && pending &&
      napi_get_and_clear_last_exception(env, &thrown) == napi_ok) {
    napi_fatal_exception(env, thrown);
  }
}

void throw_type_error(napi_env env, const std::string &message) {
  napi_throw_type_error(env, nullptr, message.c_str());
  throw Pending{};
}

void throw_llama(napi_env env, int32_t status, const std::string &message) {
  napi_throw(env, Env::of(env)->error(status, message));
  throw Pending{};
}

void check(napi_env env, llama_status status, const llama_error &err) {
  if (status < 0) throw_llama(env, status, err.message);
}

std::string at(const std::string &name, size_t index) {
  return name + "[" + std::to_string(index) + "]";
}

// Half of a pair, which no UTF-8 has. Node-API makes U+FFFD of it; the library would continue
// another text.
static void refuse_lone_surrogates(napi_env env, napi_value value, const std::string &name) {
  size_t len;
  check(env, napi_get_value_string_utf16(env, value, nullptr, 0, &len));
  std::u16string text(len, 0);
  check(env, napi_get_value_string_utf16(env, value, text.data(), len + 1, &len));
  const auto within = [&](size_t i, char16_t first) {
    return i < len && text[i] >= first && text[i] < first + 0x400;
  };
  for (size_t i = 0; i < len; i++) {
    if (within(i, 0xD800) && within(i + 1, 0xDC00))
      i++;
    else if (within(i, 0xD800) || within(i, 0xDC00)) {
      char sentence[100];
      std::snprintf(sentence, sizeof sentence, " has a lone surrogate, U+%04X, at index %zu",
          unsigned{text[i]}, i);
      throw_llama(env, LLAMA_E_UTF8, name + sentence);
    }
  }
}

std::string to_text(napi_env env, napi_value value, const std::string &name) {
  size_t len;
  if (napi_get_value_string_utf8(env, value, nullptr, 0, &len) != napi_ok) {
    throw_type_error(env, name + " must be a string");
  }
  std::string text(len, 0);
  check(env, napi_get_value_string_utf8(env, value, text.data(), len + 1, &len));
  if (text.find("\xEF\xBF\xBD") != std::string::npos) refuse_lone_surrogates(env, value, name);
  return text;
}

std::string to_c_text(napi_env env, napi_value value, const std::string &name) {
  std::string text = to_text(env, value, name);
  if (std::strlen(text.c_str()) != text.size()) {
    throw_llama(env, LLAMA_E_INVALID_ARGUMENT, name + " contains a NUL character");
  }
  return text;
}

bool to_bool(napi_env env, napi_value value, const char *name) {
  bool truth;
  if (napi_get_value_bool(env, value, &truth) != napi_ok) {
    throw_type_error(env, std::string(name) + " must be a boolean");
  }
  return truth;
}

double to_double(napi_env env, napi_value value, const char *name) {
  double d;
  if (napi_get_value_double(env, value, &d) != napi_ok) {
    throw_type_error(env, std::string(name) + " must be a number");
  }
  return d;
}

std::string to_said(napi_env env, napi_value value) {
  napi_value said;
  check(env, napi_coerce_to_string(env, value, &said));
  return to_text(env, said, "a number");
}

template <class T> static T to_integer(napi_env env, napi_value value, const char *name,
    double least = std::numeric_limits<T>::min()) {
  const double d = to_double(env, value, name);
  const double most = std::numeric_limits<T>::max();
  if (!(d >= least && d <= most && d == std::floor(d))) {
    char limits[100];
    std::snprintf(limits, sizeof limits, ", must be an integer between %.0f and %.0f", least, most);
    throw_llama(env, LLAMA_E_INVALID_ARGUMENT, name + (" is " + to_said(env, value)) + limits);
  }
  return static_cast<T>(d);
}

int32_t to_int(napi_env env, napi_value value, const char *name) {
  return to_integer<int32_t>(env, value, name);
}

uint32_t to_uint(napi_env env, napi_value value, const char *name, uint32_t least) {
  return to_integer<uint32_t>(env, value, name, least);
}

uint64_t to_uint64(napi_env env, napi_value value, const char *name) {
  uint64_t big = 0;
  bool lossless = false;
  if (napi_get_value_bigint_uint64(env, value, &big, &lossless) == napi_ok) {
    if (!lossless) {
      throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
          std::string(name) + " is " + to_said(env, value) + ", must be between 0 and 2^64 - 1");
    }
    return big;
  }
  const double d = to_double(env, value, name);
  if (!(d >= 0 && d <= 9007199254740991.0 && d == std::floor(d))) {
    throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
        name + (" is " + to_said(env, value)) +
            ", must be an integer between 0 and 2^53 - 1, or a bigint");
  }
  return static_cast<uint64_t>(d);
}

float to_float(napi_env env, napi_value value, const char *name) {
  const double d = to_double(env, value, name);
  const bool fits = !std::isfinite(d) || std::abs(d) <= std::numeric_limits<float>::max();
  if (!fits) {
    throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
        name + (" is " + to_said(env, value)) + ", which is beyond a number of 32 bits");
  }
  return static_cast<float>(d);
}

uint32_t length(napi_env env, napi_value value, const char *name, const char *what) {
  bool is_array = false;
  check(env, napi_is_array(env, value, &is_array));
  if (!is_array) throw_type_error(env, std::string(name) + " must be " + what);
  uint32_t n;
  check(env, napi_get_array_length(env, value, &n));
  return n;
}

size_t to_tokens(
    napi_env env, napi_value value, const std::string &name, std::vector<int32_t> &out) {
  const char *const what = "an Int32Array or an array of numbers";
  bool typed = false;
  check(env, napi_is_typedarray(env, value, &typed));
  if (typed) {
    napi_typedarray_type type;
    size_t n;
    void *data;
    check(env, napi_get_typedarray_info(env, value, &type, &n, &data, nullptr, nullptr));
    if (type != napi_int32_array) throw_type_error(env, name + " must be " + what);
    const auto *tokens = static_cast<const int32_t *>(data);
    out.insert(out.end(), tokens, tokens + n);
    return n;
  }
  const size_t before = out.size();
  each_element(env, value, name.c_str(), what, [&](napi_value element, uint32_t i) {
    int32_t token = 0;
    double exact = 0;
    // The first takes any number for some integer. A name is made only of what is refused.
    if (napi_get_value_int32(env, element, &token) != napi_ok ||
        napi_get_value_double(env, element, &exact) != napi_ok || exact != token)
      token = to_int(env, element, at(name, i).c_str());
    out.push_back(token);
  });
  return out.size() - before;
}

size_t to_messages(
    napi_env env, napi_value value, const std::string &name, std::vector<Message> &out) {
  const size_t before = out.size();
  each_element(
      env, value, "a dialog", "an array of {role, content}", [&](napi_value element, uint32_t i) {
        napi_value role, content;
        napi_valuetype type;
        check(env, napi_typeof(env, element, &type));
        if (type != napi_object)
          throw_type_error(env, "a message must be an object with role and content");
        check(env, napi_get_named_property(env, element, "role", &role));
        check(env, napi_get_named_property(env, element, "content", &content));
        const std::string message = at(name, i) + ".";
        out.push_back(
            {to_text(env, role, message + "role"), to_text(env, content, message + "content")});
      });
  return out.size() - before;
}

std::vector<llama_message> borrow(const std::vector<Message> &messages) {
  std::vector<llama_message> borrowed;
  for (const Message &m : messages) {
    borrowed.push_back({m.role.data(), m.content.data(), m.role.size(), m.content.size()});
  }
  return borrowed;
}

} // namespace addon
