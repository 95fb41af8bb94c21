#include "callback.h"
#include "_cgo_export.h"

static int32_t on_progress(void *user_data, float fraction) {
  return llamabiGoProgress((uintptr_t)user_data, fraction);
}

static void on_log(void *user_data, int32_t level, const char *msg, size_t len) {
  llamabiGoLog((uintptr_t)user_data, level, (char *)msg, len);
}

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
