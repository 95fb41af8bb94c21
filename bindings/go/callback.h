/* How C calls Go: with a cgo.Handle, an integer, which must never lie in a Go variable of
 * pointer type. */
#include <llamabi.h>

/* llama_build with Go's callbacks. A handle of 0: none. */
llama_status llamabi_go_build(const char *ckpt_dir, const char *tokenizer_path,
    const llama_build_options *o, uintptr_t progress, uintptr_t log, llama_t **out,
    llama_error *err);

/* The callbacks of a call. Their user_data points to a handle, in memory of C. */
extern const llama_logits_fn llamabi_go_on_logits;
extern const llama_stop_fn llamabi_go_on_stop;
