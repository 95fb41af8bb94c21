// The functions that index.js calls. Not for anyone else: it checks that handles are handles.
#include <new>
#include <system_error>

#include "calls.h"

namespace addon {

using Arguments = std::vector<napi_value>;

// Calls `f` with the arguments and turns what C++ throws into JavaScript's exceptions.
template <napi_value (*f)(napi_env, const Arguments &)>
static napi_value guarded(napi_env env, napi_callback_info info) {
  try {
    Arguments args(8);
    size_t n = args.size();
    check(env,
        napi_get_cb_info(env, info, &n, args.data(), nullptr, nullptr)); // missing ones: undefined
    return f(env, args);
  } catch (const Pending &) {
  } catch (const std::bad_alloc &) {
    napi_throw_error(env, "LLAMA_E_NO_MEMORY", "no memory for the arguments");
  } catch (const std::exception &e) {
    napi_throw_error(env, nullptr, e.what());
  }
  return nullptr;
}

static napi_value wrap(napi_env env, std::shared_ptr<Awaited> call) {
  napi_value value;
  auto *owner = new std::shared_ptr<Awaited>(std::move(call));
  const auto finalize = [](napi_env, void *data, void *) {
    auto *owner = static_cast<std::shared_ptr<Awaited> *>(data);
    // A stream that nobody can read any more.
    auto *generation = dynamic_cast<Generation *>(owner->get());
    if (generation != nullptr && generation->streaming) generation->stop();
    delete owner;
  };
  check(env, napi_create_external(env, owner, finalize, nullptr, &value));
  return value;
}

static std::shared_ptr<Awaited> call_of(napi_env env, napi_value value) {
  void *data = nullptr;
  check(env, napi_get_value_external(env, value, &data));
  return *static_cast<std::shared_ptr<Awaited> *>(data);
}

// `aborted`: whether the call is stopped before it begins. A short one could end before a stop that
// comes after.
static napi_value started(
    napi_env env, std::shared_ptr<Awaited> call, napi_value aborted = nullptr) {
  napi_value value = wrap(env, call);
  bool stop = false;
  if (aborted != nullptr && napi_get_value_bool(env, aborted, &stop) == napi_ok && stop)
    call->stop();
  call->enter();
  try {
    call->env->start(call);
  } catch (...) {
    call->leave();
    throw;
  }
  return value;
}

// open(options, onProgress, onLog, aborted) -> call, whose promise gives a handle
static napi_value open(napi_env env, const Arguments &a) {
  return started(env, std::make_shared<Open>(env, Env::of(env), a[0], a[1], a[2]), a[3]);
}

// close(handle) -> call
static napi_value close(napi_env env, const Arguments &a) {
  const auto handle = handle_of(env, a[0]);
  const napi_value call = started(env, std::make_shared<Close>(Env::of(env), handle));
  handle->closing = true;
  return call;
}

// generate(handle, kind, input, options, streaming, chat, shouldStop, aborted) -> call; its promise
// gives the sequences
static napi_value generate(napi_env env, const Arguments &a) {
  return started(env,
      std::make_shared<Generation>(env, Env::of(env), handle_of(env, a[0]),
          to_text(env, a[1], "kind"), a[2], a[3], to_bool(env, a[4], "streaming"), a[5], a[6]),
      a[7]);
}

// addAdapter(handle, dir, scale) -> call; its promise gives the id
static napi_value add_adapter(napi_env env, const Arguments &a) {
  return started(
      env, std::make_shared<AddAdapter>(env, Env::of(env), handle_of(env, a[0]), a[1], a[2]));
}

// compress(handle, segments, options, aborted) -> call; its promise gives the sequences
static napi_value compress(napi_env env, const Arguments &a) {
  return started(
      env, std::make_shared<Compress>(env, Env::of(env), handle_of(env, a[0]), a[1], a[2]), a[3]);
}

static uint32_t encode_flags(napi_env env, napi_value bos, napi_value eos, napi_value special) {
  return (to_bool(env, bos, "bos") ? LLAMA_ENC_BOS : 0u) |
         (to_bool(env, eos, "eos") ? LLAMA_ENC_EOS : 0u) |
         (to_bool(env, special, "special") ? LLAMA_ENC_SPECIAL : 0u);
}

// Of the tokens that a text may have; undefined: any number.
static size_t max_tokens(napi_env env, napi_value value) {
  napi_valuetype type;
  check(env, napi_typeof(env, value, &type));
  return type == napi_undefined ? SIZE_MAX : to_uint(env, value, "maxTokens");
}

// tokenize(handle, kind, input, bos, eos, special, maxTokens, chat) -> call; its promise gives
// tokens, of tokens and for `render` a text
static napi_value tokenize(napi_env env, const Arguments &a) {
  return started(env, std::make_shared<Tokenize>(env, Env::of(env), handle_of(env, a[0]),
                          to_text(env, a[1], "kind"), a[2], encode_flags(env, a[3], a[4], a[5]),
                          max_tokens(env, a[6]), a[7]));
}

// compile(handle, kind, source) -> call, after which generations find the grammar
static napi_value compile(napi_env env, const Arguments &a) {
  return started(env, std::make_shared<Compile>(Env::of(env), handle_of(env, a[0]),
                          to_int(env, a[1], "grammar"), to_text(env, a[2], "grammar")));
}

static napi_value promise(napi_env env, const Arguments &a) {
  return call_of(env, a[0])->promise(env);
}

static napi_value stop(napi_env env, const Arguments &a) {
  call_of(env, a[0])->stop();
  return nullptr;
}

// stopSequence(call, index)
static napi_value stop_sequence(napi_env env, const Arguments &a) {
  const auto call = std::static_pointer_cast<Generation>(call_of(env, a[0]));
  call->stop_sequence(env, to_uint(env, a[1], "index"));
  return nullptr;
}

static napi_value next(napi_env env, const Arguments &a) {
  return std::static_pointer_cast<Generation>(call_of(env, a[0]))->next(env);
}

static llama_error new_error() {
  llama_error err;
  err.struct_size = sizeof err;
  return err;
}

// Asks `f` for the size, then for the contents.
template <class T, class F> static std::vector<T> filled(napi_env env, F f) {
  llama_error err = new_error();
  size_t n = 0;
  check(env, f(nullptr, 0, &n, &err), err);
  std::vector<T> buffer(n + 1);
  check(env, f(buffer.data(), buffer.size(), &n, &err), err);
  buffer.resize(n);
  return buffer;
}

// encode(handle, text, bos, eos, special, maxTokens) -> Int32Array
static napi_value encode(napi_env env, const Arguments &a) {
  const auto handle = handle_of(env, a[0]);
  const std::string text = to_text(env, a[1], "text");
  const uint32_t flags = encode_flags(env, a[2], a[3], a[4]);
  const size_t most = max_tokens(env, a[5]);
  const auto tokens =
      filled<int32_t>(env, [&](int32_t *buf, size_t cap, size_t *n, llama_error *err) {
        return llama_encode_text_bounded(
            handle->llama, text.data(), text.size(), flags, most, nullptr, buf, cap, n, err);
      });
  return tokens_to_js(env, tokens.data(), tokens.size());
}

// encodeDialog(handle, messages) -> Int32Array
static napi_value encode_dialog(napi_env env, const Arguments &a) {
  const auto handle = handle_of(env, a[0]);
  std::vector<Message> messages;
  to_messages(env, a[1], "messages", messages);
  const auto borrowed = borrow(messages);
  const auto tokens = filled<int32_t>(env, [&](int32_t *buf, size_t cap, size_t *n,
                                               llama_error *err) {
    return llama_encode_dialog(handle->llama, borrowed.data(), borrowed.size(), buf, cap, n, err);
  });
  return tokens_to_js(env, tokens.data(), tokens.size());
}

// decode(handle, tokens) -> string
static napi_value decode(napi_env env, const Arguments &a) {
  const auto handle = handle_of(env, a[0]);
  std::vector<int32_t> tokens;
  to_tokens(env, a[1], "tokens", tokens);
  const auto text = filled<char>(env, [&](char *buf, size_t cap, size_t *n, llama_error *err) {
    return llama_decode_tokens(handle->llama, tokens.data(), tokens.size(), buf, cap, n, err);
  });
  return string(env, text.data(), text.size());
}

// grammarMask(handle, kind, source, tokens) -> Uint32Array's bytes, as a Buffer
static napi_value grammar_mask(napi_env env, const Arguments &a) {
  const auto handle = handle_of(env, a[0]);
  const std::string source = to_text(env, a[2], "grammar");
  std::vector<int32_t> tokens;
  to_tokens(env, a[3], "tokens", tokens);
  llama_error err = new_error();
  llama_status status;
  const auto grammar = handle->grammar(to_int(env, a[1], "grammar"), source, status, err);
  check(env, status, err);
  const auto words =
      filled<uint32_t>(env, [&](uint32_t *buf, size_t cap, size_t *n, llama_error *err) {
        return llama_grammar_mask(grammar.get(), tokens.data(), tokens.size(), buf, cap, n, err);
      });
  napi_value buffer;
  check(env,
      napi_create_buffer_copy(env, words.size() * sizeof words[0], words.data(), nullptr, &buffer));
  return buffer;
}

// tokenBytes(handle, token) -> Buffer
static napi_value token_bytes(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  const char *bytes = nullptr;
  size_t n = 0;
  check(env,
      llama_token_bytes(handle_of(env, a[0])->llama, to_int(env, a[1], "token"), &bytes, &n, &err),
      err);
  napi_value buffer;
  check(env, napi_create_buffer_copy(env, n, bytes, nullptr, &buffer));
  return buffer;
}

// dropAdapter(handle, id)
static napi_value drop_adapter(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  check(env, llama_adapter_drop(handle_of(env, a[0])->llama, to_uint(env, a[1], "id"), &err), err);
  return nullptr;
}

static napi_value info(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  llama_info info;
  info.struct_size = sizeof info;
  check(env, llama_get_info(handle_of(env, a[0])->llama, &info, &err), err);
  return to_js(env, info);
}

static napi_value timings(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  llama_timings timings;
  timings.struct_size = sizeof timings;
  check(env, llama_get_timings(handle_of(env, a[0])->llama, &timings, &err), err);
  return to_js(env, timings);
}

// rank(handle, number)
static napi_value rank(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  llama_rank rank;
  rank.struct_size = sizeof rank;
  check(env, llama_get_rank(handle_of(env, a[0])->llama, to_uint(env, a[1], "number"), &rank, &err),
      err);
  return to_js(env, rank);
}

// checkHealth(handle)
static napi_value check_health(napi_env env, const Arguments &a) {
  llama_error err = new_error();
  check(env, llama_health(handle_of(env, a[0])->llama, &err), err);
  return nullptr;
}

template <napi_value (*f)(napi_env, const Arguments &)>
static void define(napi_env env, napi_value exports, const char *name) {
  napi_value function;
  check(env, napi_create_function(env, name, NAPI_AUTO_LENGTH, guarded<f>, nullptr, &function));
  set(env, exports, name, function);
}

// start(LlamaError) -> the functions. Before it nothing of the library is used but its versions.
static napi_value start(napi_env env, const Arguments &a) {
  napi_value functions;
  check(env, napi_create_object(env, &functions));
  Env::open(env, a[0]);
  define<open>(env, functions, "open");
  define<close>(env, functions, "close");
  define<generate>(env, functions, "generate");
  define<compress>(env, functions, "compress");
  define<tokenize>(env, functions, "tokenize");
  define<compile>(env, functions, "compile");
  define<grammar_mask>(env, functions, "grammarMask");
  define<promise>(env, functions, "promise");
  define<stop>(env, functions, "stop");
  define<stop_sequence>(env, functions, "stopSequence");
  define<next>(env, functions, "next");
  define<encode>(env, functions, "encode");
  define<encode_dialog>(env, functions, "encodeDialog");
  define<decode>(env, functions, "decode");
  define<token_bytes>(env, functions, "tokenBytes");
  define<add_adapter>(env, functions, "addAdapter");
  define<drop_adapter>(env, functions, "dropAdapter");
  define<info>(env, functions, "info");
  define<timings>(env, functions, "timings");
  define<rank>(env, functions, "rank");
  define<check_health>(env, functions, "checkHealth");
  return functions;
}

static napi_value statuses(napi_env env) {
  napi_value names;
  check(env, napi_create_object(env, &names));
#define STATUS(name) set(env, names, #name, number(env, name))
  STATUS(LLAMA_OK);
  STATUS(LLAMA_DONE);
  STATUS(LLAMA_CANCELLED);
  STATUS(LLAMA_TIMEOUT);
  STATUS(LLAMA_E_INVALID_ARGUMENT);
  STATUS(LLAMA_E_ABI);
  STATUS(LLAMA_E_IO);
  STATUS(LLAMA_E_FORMAT);
  STATUS(LLAMA_E_UNSUPPORTED);
  STATUS(LLAMA_E_NO_MEMORY);
  STATUS(LLAMA_E_DEVICE);
  STATUS(LLAMA_E_DEVICE_MEMORY);
  STATUS(LLAMA_E_TOO_LONG);
  STATUS(LLAMA_E_BATCH);
  STATUS(LLAMA_E_UTF8);
  STATUS(LLAMA_E_BUSY);
  STATUS(LLAMA_E_POISONED);
  STATUS(LLAMA_E_PEER);
  STATUS(LLAMA_E_INTERNAL);
#undef STATUS
  return names;
}

} // namespace addon

NAPI_MODULE_INIT() {
  using namespace addon;
  try {
    set(env, exports, "version", string(env, llama_version()));
    set(env, exports, "abiVersion", number(env, llama_abi_version()));
    set(env, exports, "builtForAbiVersion", number(env, LLAMABI_ABI_VERSION));
    set(env, exports, "statuses", statuses(env));
    define<start>(env, exports, "start");
  } catch (const Pending &) {
    return nullptr;
  }
  return exports;
}
