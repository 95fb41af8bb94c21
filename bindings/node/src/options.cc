// Objects of options as the structs of the C API. A name that is not known is an error: a misspelt
// option must not go unnoticed.
#include <cmath>
#include <initializer_list>

#include "convert.h"

namespace addon {

// Calls f(name, value) for each property that is not undefined. f returns false for a name it does
// not know.
template <class F> static void each_option(napi_env env, napi_value options, F f) {
  napi_valuetype type;
  check(env, napi_typeof(env, options, &type));
  if (type != napi_object) throw_type_error(env, "options must be an object");
  napi_value names;
  check(env, napi_get_property_names(env, options, &names));
  each_element(env, names, "options", "an object", [&](napi_value key, uint32_t) {
    const std::string name = to_text(env, key, "option");
    napi_value value;
    check(env, napi_get_property(env, options, key, &value));
    check(env, napi_typeof(env, value, &type));
    if (type == napi_undefined) return;
    if (!f(name, value)) throw_type_error(env, "unknown option " + name);
  });
}

struct Name {
  const char *name;
  int32_t number;
};

static int32_t to_number(
    napi_env env, napi_value value, const char *what, std::initializer_list<Name> names) {
  const std::string got = to_text(env, value, what);
  std::string known;
  for (const Name &n : names) {
    if (got == n.name) return n.number;
    known += std::string(known.empty() ? "" : ", ") + n.name;
  }
  throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
      std::string(what) + " is \"" + got + "\", must be one of " + known);
}

static int32_t to_dtype(napi_env env, napi_value value, const char *what) {
  // clang-format off: Dtypes of llamabi.h
  return to_number(env, value, what, {
      {"auto", LLAMA_DTYPE_AUTO},
      {"f32", LLAMA_DTYPE_F32},
      {"f16", LLAMA_DTYPE_F16},
      {"bf16", LLAMA_DTYPE_BF16},
      {"int8", LLAMA_DTYPE_INT8},
      {"int4", LLAMA_DTYPE_INT4},
      {"nf4", LLAMA_DTYPE_NF4},
      {"fp8", LLAMA_DTYPE_FP8},
  });
  // clang-format on: End of dtypes
}

// true, false or 'never'
static int32_t to_early(napi_env env, napi_value value) {
  bool early = false;
  if (napi_get_value_bool(env, value, &early) == napi_ok)
    return early ? LLAMA_EARLY_TRUE : LLAMA_EARLY_FALSE;
  napi_valuetype type;
  check(env, napi_typeof(env, value, &type));
  if (type != napi_string) throw_type_error(env, "earlyStopping must be true, false or \"never\"");
  const std::string got = to_text(env, value, "earlyStopping");
  if (got == "never") return LLAMA_EARLY_NEVER;
  throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
      "earlyStopping is \"" + got + "\", must be true, false or \"never\"");
}

// Whole ones: of Date.now() / 1000 the fraction is left out.
static int64_t to_seconds(napi_env env, napi_value value, const char *name) {
  const double d = to_double(env, value, name);
  if (!(std::abs(d) <= 9007199254740991.0)) {
    throw_llama(env, LLAMA_E_INVALID_ARGUMENT,
        std::string(name) + " is " + to_said(env, value) +
            ", must be a number of seconds between -2^53 + 1 and 2^53 - 1");
  }
  return static_cast<int64_t>(std::floor(d));
}

std::vector<Segment> to_segments(napi_env env, napi_value value) {
  std::vector<Segment> segments;
  each_element(env, value, "segments", "an array", [&](napi_value element, uint32_t index) {
    const std::string i = at("segments", index);
    napi_valuetype type;
    check(env, napi_typeof(env, element, &type));
    if (type == napi_string) {
      segments.push_back({to_text(env, element, i), LLAMA_SEGMENT_COMPRESS});
      return;
    }
    if (type != napi_object)
      throw_type_error(env, i + " must be a string or an object with text and kind");
    napi_value text, kind;
    check(env, napi_get_named_property(env, element, "text", &text));
    check(env, napi_get_named_property(env, element, "kind", &kind));
    segments.push_back({to_text(env, text, i + ".text"),
        to_number(env, kind, (i + ".kind").c_str(),
            {{"keep", LLAMA_SEGMENT_KEEP}, {"compress", LLAMA_SEGMENT_COMPRESS},
                {"question", LLAMA_SEGMENT_QUESTION}})});
  });
  return segments;
}

// A directory, or an object that has it and a scale.
void BuildOptions::adapter(napi_env env, napi_value value) {
  const std::string name = at("adapters", adapters.size());
  napi_valuetype type;
  check(env, napi_typeof(env, value, &type));
  if (type != napi_object) {
    adapters.push_back(to_c_text(env, value, name));
    adapter_scales.push_back(1);
    return;
  }
  napi_value dir;
  check(env, napi_get_named_property(env, value, "dir", &dir));
  adapters.push_back(to_c_text(env, dir, name + ".dir"));
  adapter_scales.push_back(1);
  each_option(env, value, [&](const std::string &key, napi_value v) {
    if (key == "scale") adapter_scales.back() = to_float(env, v, (name + ".scale").c_str());
    return key == "scale" || key == "dir";
  });
}

BuildOptions::BuildOptions(napi_env env, napi_value options) {
  llama_build_options_init(&c, sizeof c, LLAMABI_ABI_VERSION);
  bool has_ckpt_dir = false;
  each_option(env, options, [&](const std::string &name, napi_value v) {
    if (name == "ckptDir") {
      ckpt_dir = to_c_text(env, v, "ckptDir");
      has_ckpt_dir = true;
    } else if (name == "tokenizerPath") {
      tokenizer_path = to_c_text(env, v, "tokenizerPath");
      has_tokenizer_path = true;
    } else if (name == "maxSeqLen")
      c.max_seq_len = to_uint(env, v, "maxSeqLen", 1);
    else if (name == "maxBatchSize")
      c.max_batch_size = to_uint(env, v, "maxBatchSize", 1);
    else if (name == "modelParallelSize")
      c.model_parallel_size = to_int(env, v, "modelParallelSize");
    else if (name == "device")
      c.device = to_number(env, v, "device",
          {{"auto", LLAMA_DEVICE_AUTO}, {"cpu", LLAMA_DEVICE_CPU}, {"cuda", LLAMA_DEVICE_CUDA}});
    else if (name == "deviceIndex")
      c.device_index = to_int(env, v, "deviceIndex");
    else if (name == "nThreads")
      c.n_threads = to_uint(env, v, "nThreads");
    else if (name == "weightsDtype")
      c.weights_dtype = to_dtype(env, v, "weightsDtype");
    else if (name == "kvDtype")
      c.kv_dtype = to_dtype(env, v, "kvDtype");
    else if (name == "seed")
      c.seed = to_uint64(env, v, "seed");
    else if (name == "gpuMemoryBytes")
      c.gpu_memory_bytes = to_uint64(env, v, "gpuMemoryBytes");
    else if (name == "maxWaiting")
      c.max_waiting = to_uint(env, v, "maxWaiting");
    else if (name == "maxStallMs")
      c.max_stall_ms = to_uint(env, v, "maxStallMs");
    else if (name == "maxStepMs")
      c.max_step_ms = to_uint(env, v, "maxStepMs");
    else if (name == "maxUnreadMs")
      c.max_unread_ms = to_double(env, v, "maxUnreadMs") == HUGE_VAL
                            ? UINT32_MAX
                            : to_uint(env, v, "maxUnreadMs");
    else if (name == "precision")
      c.precision = to_number(env, v, "precision",
          {{"auto", LLAMA_PRECISION_AUTO}, {"full", LLAMA_PRECISION_FULL},
              {"fast", LLAMA_PRECISION_FAST}});
    else if (name == "stallMemoryBytes")
      c.stall_memory_bytes = to_uint64(env, v, "stallMemoryBytes");
    else if (name == "chatTemplate") {
      chat_template = to_c_text(env, v, "chatTemplate");
      c.chat_template = chat_template.c_str();
    } else if (name == "chatNow")
      c.chat_now = to_seconds(env, v, "chatNow");
    else if (name == "adapters") {
      each_element(env, v, "adapters", "an array of directories",
          [&](napi_value element, uint32_t) { adapter(env, element); });
    } else if (name == "devices") {
      each_element(env, v, "devices", "an array of numbers", [&](napi_value element, uint32_t i) {
        devices.push_back(to_int(env, element, at("devices", i).c_str()));
      });
    } else if (name == "draftDir") {
      draft_dir = to_c_text(env, v, "draftDir");
      c.draft_dir = draft_dir.c_str();
    } else if (name == "medusaDir") {
      medusa_dir = to_c_text(env, v, "medusaDir");
      c.medusa_dir = medusa_dir.c_str();
    } else if (name == "draftWeightsDtype")
      c.draft_weights_dtype = to_dtype(env, v, "draftWeightsDtype");
    else if (name == "draftKvDtype")
      c.draft_kv_dtype = to_dtype(env, v, "draftKvDtype");
    else if (name == "rankTimeoutMs")
      c.rank_timeout_ms = to_uint(env, v, "rankTimeoutMs");
    else if (name == "logLevel")
      c.log_level = to_number(env, v, "logLevel",
          {{"none", 0}, {"error", LLAMA_LOG_ERROR}, {"warn", LLAMA_LOG_WARN},
              {"info", LLAMA_LOG_INFO}, {"debug", LLAMA_LOG_DEBUG}});
    else
      return false;
    return true;
  });
  if (!has_ckpt_dir) throw_type_error(env, "ckptDir is missing");
  for (const std::string &dir : adapters) adapter_pointers.push_back(dir.c_str());
  c.adapters = adapter_pointers.data();
  c.adapter_scales = adapter_scales.data();
  c.n_adapters = adapters.size();
  c.devices = devices.data();
  c.n_devices = static_cast<uint32_t>(devices.size());
}

ChatOptions::ChatOptions(napi_env env, napi_value options) {
  llama_chat_options_init(&c, sizeof c);
  const auto text = [&](napi_value v, const char *name, std::string &kept, const char *&p,
                        size_t &len) {
    kept = to_text(env, v, name);
    p = kept.data();
    len = kept.size();
  };
  const auto flag = [&](napi_value v, const char *name, uint32_t bit) {
    if (to_bool(env, v, name)) c.flags |= bit;
  };
  each_option(env, options, [&](const std::string &name, napi_value v) {
    if (name == "tools")
      text(v, "tools", tools, c.tools, c.tools_len);
    else if (name == "variables")
      text(v, "variables", variables, c.variables, c.variables_len);
    else if (name == "chatTemplate")
      text(v, "chatTemplate", chat_template, c.chat_template, c.chat_template_len);
    else if (name == "noGenerationPrompt")
      flag(v, "noGenerationPrompt", LLAMA_CHAT_NO_GENERATION_PROMPT);
    else if (name == "continueFinal")
      flag(v, "continueFinal", LLAMA_CHAT_CONTINUE_FINAL);
    else if (name == "parseSpecial")
      flag(v, "parseSpecial", LLAMA_CHAT_PARSE_SPECIAL);
    else
      return false;
    return true;
  });
}

CompressOptions::CompressOptions(napi_env env, napi_value options) {
  llama_compress_options_init(&c, sizeof c);
  each_option(env, options, [&](const std::string &name, napi_value v) {
    if (name == "targetTokens")
      c.target_tokens = to_uint(env, v, "targetTokens");
    else if (name == "rate")
      c.rate = to_float(env, v, "rate");
    else if (name == "window")
      c.window = to_uint(env, v, "window");
    else if (name == "coarse")
      c.coarse = to_float(env, v, "coarse");
    else if (name == "keepNewlines")
      c.flags |= to_bool(env, v, "keepNewlines") ? LLAMA_COMPRESS_KEEP_NEWLINES : 0;
    else if (name == "keepDigits")
      c.flags |= to_bool(env, v, "keepDigits") ? LLAMA_COMPRESS_KEEP_DIGITS : 0;
    else
      return false;
    return true;
  });
}

// [[token, bias], ...]
static void to_biases(napi_env env, napi_value value, std::vector<llama_bias> &out) {
  const char *const what = "an array of [token, bias]";
  each_element(env, value, "logitBias", what, [&](napi_value element, uint32_t i) {
    if (length(env, element, "logitBias", what) != 2)
      throw_type_error(env, std::string("logitBias must be ") + what);
    napi_value token, bias;
    check(env, napi_get_element(env, element, 0, &token));
    check(env, napi_get_element(env, element, 1, &bias));
    const std::string name = at("logitBias", i);
    out.push_back(
        {to_int(env, token, at(name, 0).c_str()), to_float(env, bias, at(name, 1).c_str())});
  });
}

// The options that are one number each. False: the name is none of theirs.
static bool set_number(
    napi_env env, const std::string &name, napi_value v, llama_generate_options &c) {
  // Numbers of llamabi.h (`make header`).
  if (name == "maxGenLen") {
    c.max_gen_len = to_uint(env, v, "maxGenLen");
    return true;
  }
  if (name == "temperature") {
    c.temperature = to_float(env, v, "temperature");
    return true;
  }
  if (name == "topP") {
    c.top_p = to_float(env, v, "topP");
    return true;
  }
  if (name == "topK") {
    c.top_k = to_int(env, v, "topK");
    return true;
  }
  if (name == "minP") {
    c.min_p = to_float(env, v, "minP");
    return true;
  }
  if (name == "repetitionPenalty") {
    c.repetition_penalty = to_float(env, v, "repetitionPenalty");
    return true;
  }
  if (name == "seed") {
    c.seed = to_uint64(env, v, "seed");
    return true;
  }
  if (name == "topLogprobs") {
    c.top_logprobs = to_uint(env, v, "topLogprobs");
    return true;
  }
  if (name == "cacheSalt") {
    c.cache_salt = to_uint64(env, v, "cacheSalt");
    return true;
  }
  if (name == "numReturnSequences") {
    c.num_return_sequences = to_uint(env, v, "numReturnSequences");
    return true;
  }
  if (name == "numBeams") {
    c.num_beams = to_uint(env, v, "numBeams");
    return true;
  }
  if (name == "minGenLen") {
    c.min_gen_len = to_uint(env, v, "minGenLen");
    return true;
  }
  if (name == "noRepeatNgramSize") {
    c.no_repeat_ngram_size = to_uint(env, v, "noRepeatNgramSize");
    return true;
  }
  if (name == "presencePenalty") {
    c.presence_penalty = to_float(env, v, "presencePenalty");
    return true;
  }
  if (name == "frequencyPenalty") {
    c.frequency_penalty = to_float(env, v, "frequencyPenalty");
    return true;
  }
  if (name == "typicalP") {
    c.typical_p = to_float(env, v, "typicalP");
    return true;
  }
  if (name == "epsilonCutoff") {
    c.epsilon_cutoff = to_float(env, v, "epsilonCutoff");
    return true;
  }
  if (name == "etaCutoff") {
    c.eta_cutoff = to_float(env, v, "etaCutoff");
    return true;
  }
  if (name == "maxTimeMs") {
    c.max_time_ms = to_uint(env, v, "maxTimeMs");
    return true;
  }
  if (name == "adapter") {
    c.adapter = to_uint(env, v, "adapter");
    return true;
  }
  if (name == "lengthPenalty") {
    c.length_penalty = to_float(env, v, "lengthPenalty");
    return true;
  }
  if (name == "draftLen") {
    c.draft_len = to_uint(env, v, "draftLen");
    return true;
  }
  if (name == "contrastBeta") {
    c.contrast_beta = to_float(env, v, "contrastBeta");
    return true;
  }
  if (name == "contrastAlpha") {
    c.contrast_alpha = to_float(env, v, "contrastAlpha");
    return true;
  }
  // End of numbers.
  return false;
}

GenerateOptions::GenerateOptions(napi_env env, napi_value options) {
  llama_generate_options_init(&c, sizeof c);
  const auto flag = [&](napi_value v, const char *name, uint32_t bit) {
    if (to_bool(env, v, name)) c.flags |= bit;
  };
  const char *const phrases = "an array of groups, arrays of arrays of tokens";
  each_option(env, options, [&](const std::string &name, napi_value v) {
    if (set_number(env, name, v, c)) return true;
    if (name == "earlyStopping")
      c.early_stopping = to_early(env, v);
    else if (name == "forceWords")
      each_element(env, v, "forceWords", phrases, [&](napi_value group, uint32_t i) {
        const size_t before = force_word_lens.size();
        each_element(env, group, "forceWords", phrases, [&](napi_value word, uint32_t j) {
          const std::string name = at(at("forceWords", i), j);
          force_word_lens.push_back(to_tokens(env, word, name, force_words));
        });
        force_group_lens.push_back(force_word_lens.size() - before);
      });
    else if (name == "beamEvents")
      flag(v, "beamEvents", LLAMA_GEN_BEAM_EVENTS);
    else if (name == "logitBias")
      to_biases(env, v, logit_bias);
    else if (name == "stopTokens")
      to_tokens(env, v, "stopTokens", stop_tokens);
    else if (name == "badWords")
      each_element(
          env, v, "badWords", "an array of arrays of tokens", [&](napi_value word, uint32_t i) {
            bad_word_lens.push_back(to_tokens(env, word, at("badWords", i), bad_words));
          });
    else if (name == "speculation")
      c.speculation = to_number(env, v, "speculation",
          {{"off", LLAMA_SPEC_OFF}, {"auto", LLAMA_SPEC_AUTO}, {"ngram", LLAMA_SPEC_NGRAM},
              {"draft", LLAMA_SPEC_DRAFT}, {"medusa", LLAMA_SPEC_MEDUSA}});
    else if (name == "predicted")
      to_tokens(env, v, "predicted", predicted);
    else if (name == "echo")
      flag(v, "echo", LLAMA_GEN_ECHO);
    else if (name == "logprobs")
      flag(v, "logprobs", LLAMA_GEN_LOGPROBS);
    else if (name == "noWait")
      flag(v, "noWait", LLAMA_GEN_NO_WAIT);
    else if (name == "ignoreEos")
      flag(v, "ignoreEos", LLAMA_GEN_IGNORE_EOS);
    else if (name == "special")
      flag(v, "special", LLAMA_GEN_SPECIAL);
    else if (name == "stop") {
      napi_valuetype type;
      check(env, napi_typeof(env, v, &type));
      if (type == napi_string)
        stop.push_back(to_c_text(env, v, "stop"));
      else
        each_element(
            env, v, "stop", "a text or an array of texts", [&](napi_value element, uint32_t i) {
              stop.push_back(to_c_text(env, element, at("stop", i)));
            });
    } else if (name == "grammar") { // [kind, source], of index.js
      napi_value kind, source;
      check(env, napi_get_element(env, v, 0, &kind));
      check(env, napi_get_element(env, v, 1, &source));
      grammar_kind = to_int(env, kind, "grammar");
      grammar_source = to_text(env, source, "grammar");
    } else
      return false;
    return true;
  });
  for (const std::string &text : stop) stop_pointers.push_back(text.c_str());
  c.stop = stop_pointers.data();
  c.n_stop = stop_pointers.size();
  c.logit_bias = logit_bias.data();
  c.n_logit_bias = logit_bias.size();
  c.stop_tokens = stop_tokens.data();
  c.n_stop_tokens = stop_tokens.size();
  c.predicted = predicted.data();
  c.n_predicted = predicted.size();
  c.bad_words = bad_words.data();
  c.bad_word_lens = bad_word_lens.data();
  c.n_bad_words = bad_word_lens.size();
  c.force_words = force_words.data();
  c.force_word_lens = force_word_lens.data();
  c.force_group_lens = force_group_lens.data();
  c.n_force_groups = force_group_lens.size();
}

} // namespace addon
