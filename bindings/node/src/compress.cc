// Prompts that become shorter.
#include <new>

#include "calls.h"

namespace addon {

Compress::Compress(napi_env env, std::shared_ptr<Env> owner, std::shared_ptr<Handle> handle,
    napi_value segments, napi_value options)
    : ModelCall(std::move(owner), std::move(handle)), segments_(to_segments(env, segments)),
      options_(env, options) {
  err_.struct_size = sizeof err_;
  options_.c.cancel = new_cancel(env);
}

Compress::~Compress() {
  llama_result_free(result_);
  llama_cancel_free(options_.c.cancel);
}

void Compress::run() noexcept {
  try {
    std::vector<llama_segment> borrowed;
    for (const Segment &s : segments_)
      borrowed.push_back({s.text.data(), s.text.size(), s.kind, 0});
    status_ = llama_compress(
        handle_->llama, borrowed.data(), borrowed.size(), &options_.c, &result_, &err_);
  } catch (const std::bad_alloc &) {
    out_of_memory(status_, err_);
  }
  finished();
}

void Compress::stop() { llama_cancel_trigger(options_.c.cancel); }

void Compress::on_loop(napi_env env) {
  this->env->finish(self());
  settle(env, [&] {
    check(env, status_, err_);
    llama_generate_options asked;
    llama_generate_options_init(&asked, sizeof asked);
    asked.flags = LLAMA_GEN_LOGPROBS;
    return to_js(env, result_, asked);
  });
}

} // namespace addon
