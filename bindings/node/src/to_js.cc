#include <cstring>
#include <iterator>

#include "convert.h"

namespace addon {

napi_value number(napi_env env, double value) {
  napi_value v;
  check(env, napi_create_double(env, value, &v));
  return v;
}

napi_value boolean(napi_env env, bool value) {
  napi_value v;
  check(env, napi_get_boolean(env, value, &v));
  return v;
}

napi_value string(napi_env env, const char *text, size_t len) {
  napi_value v;
  check(env, napi_create_string_utf8(env, text, len, &v));
  return v;
}

napi_value string(napi_env env, const std::string &text) {
  return string(env, text.data(), text.size());
}

napi_value undefined(napi_env env) {
  napi_value v;
  check(env, napi_get_undefined(env, &v));
  return v;
}

static napi_value object(napi_env env) {
  napi_value v;
  check(env, napi_create_object(env, &v));
  return v;
}

static napi_value array(napi_env env, size_t n) {
  napi_value v;
  check(env, napi_create_array_with_length(env, n, &v));
  return v;
}

napi_value null(napi_env env) {
  napi_value v;
  check(env, napi_get_null(env, &v));
  return v;
}

void set(napi_env env, napi_value object, const char *name, napi_value value) {
  check(env, napi_set_named_property(env, object, name, value));
}

static napi_value copy(napi_env env, napi_typedarray_type type, const void *data, size_t n) {
  static_assert(
      sizeof(int32_t) == 4 && sizeof(float) == 4, "both arrays have elements of four bytes");
  void *bytes = nullptr;
  napi_value buffer, view;
  check(env, napi_create_arraybuffer(env, n * 4, &bytes, &buffer));
  if (n > 0) std::memcpy(bytes, data, n * 4);
  check(env, napi_create_typedarray(env, type, n, buffer, 0, &view));
  return view;
}

napi_value tokens_to_js(napi_env env, const int32_t *tokens, size_t n) {
  return copy(env, napi_int32_array, tokens, n);
}

static napi_value alternatives(napi_env env, const llama_alternative *top, size_t n) {
  napi_value list = array(env, n);
  for (size_t i = 0; i < n; i++) {
    Scope scope(env);
    napi_value one = object(env);
    set(env, one, "token", number(env, top[i].token));
    set(env, one, "logprob", number(env, top[i].logprob));
    check(env, napi_set_element(env, list, static_cast<uint32_t>(i), one));
  }
  return list;
}

static napi_value finish_reason(napi_env env, int32_t reason) {
  switch (reason) {
  case LLAMA_FINISH_STOP:
    return string(env, "stop");
  case LLAMA_FINISH_LENGTH:
    return string(env, "length");
  case LLAMA_FINISH_CANCELLED:
    return string(env, "cancelled");
  case LLAMA_FINISH_STOP_STRING:
    return string(env, "stop_string");
  case LLAMA_FINISH_UNSAFE:
    return string(env, "unsafe");
  case LLAMA_FINISH_TIME:
    return string(env, "time");
  case LLAMA_FINISH_CALLER:
    return string(env, "caller");
  case LLAMA_FINISH_UNREAD:
    return string(env, "unread");
  case LLAMA_FINISH_NOT_FINITE:
    return string(env, "not_finite");
  }
  return string(env, std::to_string(reason)); // of a newer library
}

napi_value to_js(napi_env env, const llama_request_stats &s) {
  napi_value v = object(env);
  set(env, v, "promptTokens", number(env, s.prompt_tokens));
  set(env, v, "cachedTokens", number(env, s.cached_tokens));
  set(env, v, "generatedTokens", number(env, s.generated_tokens));
  set(env, v, "queueMs", number(env, s.queue_ms));
  set(env, v, "firstTokenMs", number(env, s.first_token_ms));
  set(env, v, "totalMs", number(env, s.total_ms));
  set(env, v, "draftedTokens", number(env, s.drafted_tokens));
  set(env, v, "acceptedTokens", number(env, s.accepted_tokens));
  return v;
}

namespace {
napi_value draft(napi_env env, int32_t outcome) {
  switch (outcome) {
  case LLAMA_DRAFT_ACCEPTED:
    return string(env, "accepted");
  case LLAMA_DRAFT_REJECTED:
    return string(env, "rejected");
  default:
    return null(env);
  }
}
} // namespace

Event::Event(const llama_event &ev)
    : kind(ev.kind), token(ev.token), finish_reason(ev.finish_reason), index(ev.index),
      beam(ev.beam), parent(ev.parent), logprob(ev.logprob), sum_logprob(ev.sum_logprob),
      score(ev.score), draft(ev.draft), step(ev.step), text(ev.text, ev.text_len),
      top(ev.top, ev.top + ev.n_top) {
  stats.struct_size = sizeof stats;
}

napi_value to_js(napi_env env, const Event &event) {
  napi_value v = object(env);
  const bool finish = event.kind == LLAMA_EVENT_FINISH, beam = event.kind == LLAMA_EVENT_BEAM;
  set(env, v, "type", string(env, finish ? "finish" : beam ? "beam" : "token"));
  set(env, v, "index", number(env, event.index));
  if (finish || beam) {
    set(env, v, "sumLogprob", number(env, event.sum_logprob));
    set(env, v, "score", number(env, event.score));
    const bool ended = event.finish_reason != 0;
    set(env, v, "finishReason", ended ? finish_reason(env, event.finish_reason) : null(env));
  }
  if (beam) {
    set(env, v, "beam", number(env, event.beam));
    set(env, v, "parent", number(env, event.parent));
    set(env, v, "step", number(env, event.step));
    set(env, v, "token", number(env, event.token));
    return v;
  }
  set(env, v, "text", string(env, event.text));
  if (finish) {
    set(env, v, "stats", to_js(env, event.stats));
  } else {
    set(env, v, "token", number(env, event.token));
    set(env, v, "logprob", number(env, event.logprob));
    set(env, v, "top", alternatives(env, event.top.data(), event.top.size()));
    set(env, v, "draft", draft(env, event.draft));
  }
  return v;
}

napi_value to_js(napi_env env, const std::vector<Event> &events) {
  napi_value list = array(env, events.size());
  for (size_t i = 0; i < events.size(); i++) {
    check(env, napi_set_element(env, list, static_cast<uint32_t>(i), to_js(env, events[i])));
  }
  return list;
}

static const char *device_name(int32_t device) {
  return device == LLAMA_DEVICE_CUDA ? "cuda" : "cpu";
}

static const char *dtype_name(int32_t dtype) {
  // clang-format off: Dtypes of llamabi.h
  static const char *const names[] = {
      "auto",
      "f32",
      "f16",
      "bf16",
      "int8",
      "int4",
      "nf4",
      "fp8",
      "k4",
      "k8",
      "k5",
      "k6",
      "iq4",
      "uint4",
  };
  // clang-format on: End of dtypes
  return dtype >= 0 && dtype < static_cast<int32_t>(std::size(names)) ? names[dtype] : "unknown";
}

napi_value to_js(napi_env env, const llama_info &i) {
  napi_value v = object(env);
  set(env, v, "vocabSize", number(env, i.vocab_size));
  set(env, v, "dim", number(env, i.dim));
  set(env, v, "nLayers", number(env, i.n_layers));
  set(env, v, "nHeads", number(env, i.n_heads));
  set(env, v, "nKvHeads", number(env, i.n_kv_heads));
  set(env, v, "headDim", number(env, i.head_dim));
  set(env, v, "ffnDim", number(env, i.ffn_dim));
  set(env, v, "maxSeqLen", number(env, i.max_seq_len));
  set(env, v, "maxBatchSize", number(env, i.max_batch_size));
  set(env, v, "bosId", number(env, i.bos_id));
  set(env, v, "eosId", number(env, i.eos_id));
  set(env, v, "padId", number(env, i.pad_id));
  set(env, v, "device", string(env, device_name(i.device)));
  set(env, v, "deviceName", string(env, i.device_name));
  set(env, v, "weightsDtype", string(env, dtype_name(i.weights_dtype)));
  set(env, v, "kvDtype", string(env, dtype_name(i.kv_dtype)));
  set(env, v, "weightBytes", number(env, static_cast<double>(i.weight_bytes)));
  set(env, v, "kvBytes", number(env, static_cast<double>(i.kv_bytes)));
  set(env, v, "gpuKernels", boolean(env, i.gpu_kernels != 0));
  napi_value ids;
  check(env, napi_create_array(env, &ids));
  for (uint32_t n = 0; n < i.n_eos && n < std::size(i.eos_ids); ++n)
    check(env, napi_set_element(env, ids, n, number(env, i.eos_ids[n])));
  set(env, v, "eosIds", ids);
  static const char *const formats[] = {"none", "llama2", "llama3", "template"};
  set(env, v, "chatFormat", string(env, i.chat_format < 4 ? formats[i.chat_format] : "unknown"));
  set(env, v, "modelType", string(env, i.model_type));
  set(env, v, "storedFormat", string(env, i.stored_format));
  set(env, v, "modelParallelSize", number(env, i.model_parallel_size));
  set(env, v, "hasDraft", boolean(env, i.has_draft != 0));
  set(env, v, "medusaHeads", number(env, i.medusa_heads));
  return v;
}

napi_value to_js(napi_env env, const llama_timings &t) {
  napi_value v = object(env);
  set(env, v, "running", number(env, t.running));
  set(env, v, "waiting", number(env, t.waiting));
  set(env, v, "parked", number(env, t.parked));
  set(env, v, "loadMs", number(env, t.load_ms));
  set(env, v, "prefillMs", number(env, t.prefill_ms));
  set(env, v, "decodeMs", number(env, t.decode_ms));
  set(env, v, "promptTokens", number(env, static_cast<double>(t.prompt_tokens)));
  set(env, v, "cachedTokens", number(env, static_cast<double>(t.cached_tokens)));
  set(env, v, "generatedTokens", number(env, static_cast<double>(t.generated_tokens)));
  set(env, v, "steps", number(env, static_cast<double>(t.steps)));
  set(env, v, "pagesUsed", number(env, static_cast<double>(t.pages_used)));
  set(env, v, "pagesTotal", number(env, static_cast<double>(t.pages_total)));
  set(env, v, "masks", number(env, static_cast<double>(t.masks)));
  set(env, v, "maskMs", number(env, t.mask_ms));
  set(env, v, "maskWaitMs", number(env, t.mask_wait_ms));
  set(env, v, "draftedTokens", number(env, static_cast<double>(t.drafted_tokens)));
  set(env, v, "acceptedTokens", number(env, static_cast<double>(t.accepted_tokens)));
  return v;
}

napi_value to_js(napi_env env, const llama_rank &r) {
  napi_value v = object(env);
  set(env, v, "rank", number(env, r.rank));
  set(env, v, "device", string(env, device_name(r.device)));
  set(env, v, "pid", number(env, r.pid));
  set(env, v, "weightBytes", number(env, static_cast<double>(r.weight_bytes)));
  set(env, v, "kvBytes", number(env, static_cast<double>(r.kv_bytes)));
  set(env, v, "exchangeMs", number(env, r.exchange_ms));
  set(env, v, "silentMs", number(env, r.silent_ms));
  set(env, v, "host", string(env, r.host));
  set(env, v, "deviceName", string(env, r.device_name));
  return v;
}

static napi_value top_of(napi_env env, const llama_result_t *result, size_t i, size_t n_tokens) {
  napi_value list = array(env, n_tokens);
  for (size_t position = 0; position < n_tokens; position++) {
    Scope scope(env);
    const llama_alternative *top = nullptr;
    size_t n = 0;
    llama_result_top_logprobs(result, i, position, &top, &n);
    check(env,
        napi_set_element(env, list, static_cast<uint32_t>(position), alternatives(env, top, n)));
  }
  return list;
}

napi_value to_js(napi_env env, const llama_result_t *result, const llama_generate_options &asked) {
  const size_t count = llama_result_count(result);
  napi_value list = array(env, count);
  for (size_t i = 0; i < count; i++) {
    napi_value v = object(env);
    const int32_t *tokens = nullptr;
    const float *logprobs = nullptr;
    const char *text = nullptr;
    size_t n_tokens = 0, n_logprobs = 0, text_len = 0;
    llama_request_stats stats{};
    stats.struct_size = sizeof stats;
    // The result is live and i below its count, so these cannot fail.
    llama_result_tokens(result, i, &tokens, &n_tokens);
    llama_result_logprobs(result, i, &logprobs, &n_logprobs);
    llama_result_text(result, i, &text, &text_len);
    llama_result_stats(result, i, &stats);
    float sum_logprob = 0, score = 0;
    llama_result_score(result, i, &sum_logprob, &score);
    set(env, v, "text", string(env, text, text_len));
    set(env, v, "tokens", tokens_to_js(env, tokens, n_tokens));
    const bool has_logprobs = (asked.flags & LLAMA_GEN_LOGPROBS) != 0;
    set(env, v, "logprobs",
        has_logprobs ? copy(env, napi_float32_array, logprobs, n_logprobs) : null(env));
    set(env, v, "top", asked.top_logprobs > 0 ? top_of(env, result, i, n_tokens) : null(env));
    set(env, v, "finishReason", finish_reason(env, llama_result_finish_reason(result, i)));
    set(env, v, "sumLogprob", number(env, sum_logprob));
    set(env, v, "score", number(env, score));
    set(env, v, "stats", to_js(env, stats));
    check(env, napi_set_element(env, list, static_cast<uint32_t>(i), v));
  }
  return list;
}

} // namespace addon
