#include "callback.h"
#include "_cgo_export.h"

static int32_t on_progress(void *user_data, float fraction) {
  return llamabiGoProgress((uintptr_t)user_data, fraction);
}

static void on_log(void *user_data, int32_t level, const char *msg, size_t len) {
  llamabiGoLog((uintptr_t)user_data, level, (char *)msg, len);
}

static int32_t on_logits(void *user_data, const llama_logits *row) {
  return llamabiGoLogits(*(const uintptr_t *)user_data, (llama_logits *)row);
}

static int32_t on_stop(
    void *user_data, uint32_t index, const int32_t *tokens, size_t n, size_t n_prompt) {
  return llamabiGoStop(*(const uintptr_t *)user_data, index, (int32_t *)tokens, n, n_prompt);
}

const llama_logits_fn llamabi_go_on_logits = on_logits;
const llama_stop_fn llamabi_go_on_stop = on_stop;

llama_status llamabi_go_build(const char *ckpt_dir, const char *tokenizer_path,
    const llama_build_options *o, uintptr_t progress, uintptr_t log, llama_t **out,
    llama_error *err) {
  llama_build_options with_callbacks = *o;
  if (progress != 0) {
    with_callbacks.progress = on_progress;
    with_callbacks.progress_user_data = (void *)progress;
  }
  if (log != 0) {
    with_callbacks.log = on_log;
    with_callbacks.log_user_data = (void *)log;
  }
  return llama_build(ckpt_dir, tokenizer_path, &with_callbacks, out, err);
}
