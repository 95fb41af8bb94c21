/*
 * llamabi for C++17 and later: values, exceptions and ownership around llamabi.h. Header only; link
 * libllamabi. This is the header to include; how it is cut into the parts in llamabi/ may change.
 *
 *   llamabi::Model model("demo/meta");
 *   for (auto &ev : model.stream("Once upon a time")) std::cout << ev.text << std::flush;
 *
 * Numbers keep the names that llamabi.h documents: LLAMA_DTYPE_F32, LLAMA_FINISH_STOP,
 * LLAMA_E_BUSY.
 *
 * Failures are llamabi::error, with the library's status and sentence. Being cancelled is no
 * failure: what was generated until then is returned. An exception thrown in a callback stops the
 * call and comes out of it.
 *
 * Threads: const functions of Model, and Model::close, may be called from any thread, any number at
 * a time; calls on one model share batches. Inside a callback only Cancel::trigger, Stream::stop,
 * Model::close, Grammar, and of Model what computes nothing: encode, encode_special, encode_chat,
 * render_chat, decode, token_bytes, info, timings, rank and check_health.
 */
#ifndef LLAMABI_HPP
#define LLAMABI_HPP

#include <llamabi.h>

#include "llamabi/error.hpp"
#include "llamabi/call.hpp"
#include "llamabi/cancel.hpp"
#include "llamabi/values.hpp"
#include "llamabi/grammar.hpp"
#include "llamabi/options.hpp"
#include "llamabi/callbacks.hpp"
#include "llamabi/arguments.hpp"
#include "llamabi/stream.hpp"
#include "llamabi/model.hpp"

#endif // LLAMABI_HPP
