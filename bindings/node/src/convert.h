// Between JavaScript values and the C API's. Every function here throws `Pending` where Node-API
// reports a failure; by then a JavaScript exception is pending, or the environment is ending.
#pragma once
#include <llamabi.h>
#include <node_api.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace addon {

struct Pending {};

void check(napi_env env, napi_status status);
[[noreturn]] void throw_type_error(napi_env env, const std::string &message);
[[noreturn]] void throw_llama(napi_env env, int32_t status, const std::string &message);
// Throws if `status` is a failure.
void check(napi_env env, llama_status status, const llama_error &err);

// What a callback of the user's threw that has no call to come out of. Without an exception
// JavaScript may no longer run here.
void uncaught(napi_env env);

// A handle scope that also ends where an exception passes.
class Scope {
public:
  explicit Scope(napi_env env) : env_(env) { check(env, napi_open_handle_scope(env, &scope_)); }
  ~Scope() { napi_close_handle_scope(env_, scope_); }
  Scope(const Scope &) = delete;

private:
  napi_env env_;
  napi_handle_scope scope_ = nullptr;
};

napi_value number(napi_env env, double value);
napi_value boolean(napi_env env, bool value);
napi_value string(napi_env env, const std::string &text);
napi_value string(napi_env env, const char *text, size_t len);
napi_value undefined(napi_env env);
napi_value null(napi_env env);
void set(napi_env env, napi_value object, const char *name, napi_value value);

// How sentences name an element: "stop[2]".
std::string at(const std::string &name, size_t index);

// A string that is text: half of a surrogate pair is LLAMA_E_UTF8, with `name` and its index.
std::string to_text(napi_env env, napi_value value, const std::string &name);
// As `to_text`, for what goes to C as a NUL-terminated string.
std::string to_c_text(napi_env env, napi_value value, const std::string &name);
// What String(value) gives.
std::string to_said(napi_env env, napi_value value);
bool to_bool(napi_env env, napi_value value, const char *name);
int32_t to_int(napi_env env, napi_value value, const char *name);
uint32_t to_uint(napi_env env, napi_value value, const char *name, uint32_t least = 0);
uint64_t to_uint64(napi_env env, napi_value value, const char *name);
double to_double(napi_env env, napi_value value, const char *name);
float to_float(napi_env env, napi_value value, const char *name);
// The length of an array, which `name` is, or a TypeError says `what` it must be.
uint32_t length(napi_env env, napi_value value, const char *name, const char *what = "an array");
// Calls f(element, index) for each element of such an array. One after the other, for an array may
// have a length of four billion and no elements: its first one is refused before there is memory
// for all.
template <class F>
void each_element(napi_env env, napi_value value, const char *name, const char *what, F f) {
  const uint32_t n = length(env, value, name, what);
  for (uint32_t i = 0; i < n; i++) {
    Scope scope(env);
    napi_value element;
    check(env, napi_get_element(env, value, i, &element));
    f(element, i);
  }
}
// Appends an Int32Array's or array's elements; returns how many.
size_t to_tokens(
    napi_env env, napi_value value, const std::string &name, std::vector<int32_t> &out);

struct Message {
  std::string role, content;
};
// Appends the messages of the dialog `name`; returns how many.
size_t to_messages(
    napi_env env, napi_value value, const std::string &name, std::vector<Message> &out);
struct Segment {
  std::string text;
  int32_t kind;
};
std::vector<Segment> to_segments(napi_env env, napi_value value);
// Borrows from `messages`.
std::vector<llama_message> borrow(const std::vector<Message> &messages);

// Options that live as long as a call: what the C struct borrows is kept here. Neither is copied
// or moved once filled.
struct BuildOptions {
  std::string ckpt_dir, tokenizer_path, chat_template, draft_dir, medusa_dir;
  bool has_tokenizer_path = false;
  std::vector<std::string> adapters;
  std::vector<const char *> adapter_pointers;
  std::vector<float> adapter_scales;
  std::vector<int32_t> devices;
  llama_build_options c;
  BuildOptions(napi_env env, napi_value options);
  BuildOptions(const BuildOptions &) = delete;

private:
  void adapter(napi_env env, napi_value value);
};
// What surrounds the messages of a chat; texts of JSON.
struct ChatOptions {
  std::string tools, variables, chat_template;
  llama_chat_options c;
  ChatOptions(napi_env env, napi_value options);
  ChatOptions(const ChatOptions &) = delete;
};
// How much of a prompt is left.
struct CompressOptions {
  llama_compress_options c;
  CompressOptions(napi_env env, napi_value options);
  CompressOptions(const CompressOptions &) = delete;
};
struct GenerateOptions {
  std::vector<std::string> stop;
  int32_t grammar_kind = 0; // LLAMA_GRAMMAR_*; 0: none
  std::string grammar_source;
  std::vector<const char *> stop_pointers;
  std::vector<llama_bias> logit_bias;
  std::vector<int32_t> stop_tokens, bad_words, predicted;
  std::vector<size_t> bad_word_lens;
  std::vector<int32_t> force_words;
  std::vector<size_t> force_word_lens, force_group_lens;
  llama_generate_options c;
  GenerateOptions(napi_env env, napi_value options);
  GenerateOptions(const GenerateOptions &) = delete;
};

struct Event {
  int32_t kind, token, finish_reason;
  uint32_t index, beam, parent;
  float logprob, sum_logprob, score;
  int32_t draft;
  uint32_t step;
  std::string text;
  std::vector<llama_alternative> top;
  llama_request_stats stats{}; // of a FINISH
  explicit Event(const llama_event &ev);
};
napi_value to_js(napi_env env, const Event &event);
napi_value to_js(napi_env env, const std::vector<Event> &events);
napi_value to_js(napi_env env, const llama_request_stats &stats);
napi_value to_js(napi_env env, const llama_info &info);
napi_value to_js(napi_env env, const llama_timings &timings);
napi_value to_js(napi_env env, const llama_rank &rank);
napi_value tokens_to_js(napi_env env, const int32_t *tokens, size_t n);
// All sequences of a result; `logprobs` and `top` are null where they were not asked for.
napi_value to_js(napi_env env, const llama_result_t *result, const llama_generate_options &asked);

} // namespace addon
