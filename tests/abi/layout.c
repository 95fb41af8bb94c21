/* Size and order of every public struct, types of fields, and every constant: what is here may only
 * grow, because any other change is one of the binary interface. C11; LP64. */
#include <llamabi.h>

#define FIELD(type, field, offset, size)                                                           \
  _Static_assert(offsetof(type, field) == (offset), #type "." #field);                             \
  _Static_assert(sizeof(((type *)0)->field) == (size), #type "." #field)

#define SIZE(type, size)    _Static_assert(sizeof(type) == (size), #type)
#define IS(constant, value) _Static_assert((constant) == (value), #constant)

#define TYPE(type, field, expected)                                                                \
  _Static_assert(_Generic(((type *)0)->field, expected: 1, default: 0), #type "." #field)

/* Fields of llamabi.h, appended by `make header` (tests/generated/structs.rs) */
FIELD(llama_error, struct_size, 0, 4);
FIELD(llama_error, status, 4, 4);
FIELD(llama_error, message, 8, 1016);
SIZE(llama_error, 1024);

FIELD(llama_build_options, struct_size, 0, 4);
FIELD(llama_build_options, abi_version, 4, 4);
FIELD(llama_build_options, max_seq_len, 8, 4);
FIELD(llama_build_options, max_batch_size, 12, 4);
FIELD(llama_build_options, model_parallel_size, 16, 4);
FIELD(llama_build_options, device, 20, 4);
FIELD(llama_build_options, device_index, 24, 4);
FIELD(llama_build_options, n_threads, 28, 4);
FIELD(llama_build_options, weights_dtype, 32, 4);
FIELD(llama_build_options, kv_dtype, 36, 4);
FIELD(llama_build_options, seed, 40, 8);
FIELD(llama_build_options, cancel, 48, 8);
FIELD(llama_build_options, progress, 56, 8);
FIELD(llama_build_options, progress_user_data, 64, 8);
FIELD(llama_build_options, log, 72, 8);
FIELD(llama_build_options, log_user_data, 80, 8);
FIELD(llama_build_options, log_level, 88, 4);
FIELD(llama_build_options, reserved0, 92, 4);
FIELD(llama_build_options, gpu_memory_bytes, 96, 8);
FIELD(llama_build_options, max_waiting, 104, 4);
FIELD(llama_build_options, max_stall_ms, 108, 4);
FIELD(llama_build_options, max_unread_ms, 112, 4);
FIELD(llama_build_options, precision, 116, 4);
FIELD(llama_build_options, stall_memory_bytes, 120, 8);
FIELD(llama_build_options, chat_template, 128, 8);
FIELD(llama_build_options, chat_now, 136, 8);
FIELD(llama_build_options, adapters, 144, 8);
FIELD(llama_build_options, adapter_scales, 152, 8);
FIELD(llama_build_options, n_adapters, 160, 8);
FIELD(llama_build_options, devices, 168, 8);
FIELD(llama_build_options, n_devices, 176, 4);
FIELD(llama_build_options, rank_timeout_ms, 180, 4);
FIELD(llama_build_options, comm, 184, 8);
FIELD(llama_build_options, draft_dir, 192, 8);
FIELD(llama_build_options, draft_weights_dtype, 200, 4);
FIELD(llama_build_options, draft_kv_dtype, 204, 4);
FIELD(llama_build_options, medusa_dir, 208, 8);
FIELD(llama_build_options, max_step_ms, 216, 4);
FIELD(llama_build_options, reserved1, 220, 4);
FIELD(llama_build_options, nccl_unique_id, 224, 8);
SIZE(llama_build_options, 232);

FIELD(llama_alternative, token, 0, 4);
FIELD(llama_alternative, logprob, 4, 4);
SIZE(llama_alternative, 8);

FIELD(llama_event, struct_size, 0, 4);
FIELD(llama_event, kind, 4, 4);
FIELD(llama_event, index, 8, 4);
FIELD(llama_event, token, 12, 4);
FIELD(llama_event, logprob, 16, 4);
FIELD(llama_event, finish_reason, 20, 4);
FIELD(llama_event, text, 24, 8);
FIELD(llama_event, text_len, 32, 8);
FIELD(llama_event, top, 40, 8);
FIELD(llama_event, n_top, 48, 8);
FIELD(llama_event, beam, 56, 4);
FIELD(llama_event, parent, 60, 4);
FIELD(llama_event, sum_logprob, 64, 4);
FIELD(llama_event, score, 68, 4);
FIELD(llama_event, draft, 72, 4);
FIELD(llama_event, step, 76, 4);
SIZE(llama_event, 80);

FIELD(llama_bias, token, 0, 4);
FIELD(llama_bias, bias, 4, 4);
SIZE(llama_bias, 8);

FIELD(llama_logits, struct_size, 0, 4);
FIELD(llama_logits, index, 4, 4);
FIELD(llama_logits, tokens, 8, 8);
FIELD(llama_logits, n_tokens, 16, 8);
FIELD(llama_logits, n_prompt, 24, 8);
FIELD(llama_logits, logits, 32, 8);
FIELD(llama_logits, n_logits, 40, 8);
SIZE(llama_logits, 48);

FIELD(llama_generate_options, struct_size, 0, 4);
FIELD(llama_generate_options, flags, 4, 4);
FIELD(llama_generate_options, max_gen_len, 8, 4);
FIELD(llama_generate_options, temperature, 12, 4);
FIELD(llama_generate_options, top_p, 16, 4);
FIELD(llama_generate_options, top_k, 20, 4);
FIELD(llama_generate_options, min_p, 24, 4);
FIELD(llama_generate_options, repetition_penalty, 28, 4);
FIELD(llama_generate_options, seed, 32, 8);
FIELD(llama_generate_options, stop, 40, 8);
FIELD(llama_generate_options, n_stop, 48, 8);
FIELD(llama_generate_options, cancel, 56, 8);
FIELD(llama_generate_options, on_event, 64, 8);
FIELD(llama_generate_options, user_data, 72, 8);
FIELD(llama_generate_options, top_logprobs, 80, 4);
FIELD(llama_generate_options, reserved1, 84, 4);
FIELD(llama_generate_options, cache_salt, 88, 8);
FIELD(llama_generate_options, num_return_sequences, 96, 4);
FIELD(llama_generate_options, num_beams, 100, 4);
FIELD(llama_generate_options, grammar, 104, 8);
FIELD(llama_generate_options, min_gen_len, 112, 4);
FIELD(llama_generate_options, no_repeat_ngram_size, 116, 4);
FIELD(llama_generate_options, presence_penalty, 120, 4);
FIELD(llama_generate_options, frequency_penalty, 124, 4);
FIELD(llama_generate_options, typical_p, 128, 4);
FIELD(llama_generate_options, epsilon_cutoff, 132, 4);
FIELD(llama_generate_options, eta_cutoff, 136, 4);
FIELD(llama_generate_options, max_time_ms, 140, 4);
FIELD(llama_generate_options, logit_bias, 144, 8);
FIELD(llama_generate_options, n_logit_bias, 152, 8);
FIELD(llama_generate_options, stop_tokens, 160, 8);
FIELD(llama_generate_options, n_stop_tokens, 168, 8);
FIELD(llama_generate_options, bad_words, 176, 8);
FIELD(llama_generate_options, bad_word_lens, 184, 8);
FIELD(llama_generate_options, n_bad_words, 192, 8);
FIELD(llama_generate_options, adapter, 200, 4);
FIELD(llama_generate_options, reserved_adapter, 204, 4);
FIELD(llama_generate_options, length_penalty, 208, 4);
FIELD(llama_generate_options, early_stopping, 212, 4);
FIELD(llama_generate_options, on_logits, 216, 8);
FIELD(llama_generate_options, on_stop, 224, 8);
FIELD(llama_generate_options, speculation, 232, 4);
FIELD(llama_generate_options, draft_len, 236, 4);
FIELD(llama_generate_options, predicted, 240, 8);
FIELD(llama_generate_options, n_predicted, 248, 8);
FIELD(llama_generate_options, force_words, 256, 8);
FIELD(llama_generate_options, force_word_lens, 264, 8);
FIELD(llama_generate_options, force_group_lens, 272, 8);
FIELD(llama_generate_options, n_force_groups, 280, 8);
FIELD(llama_generate_options, contrast_beta, 288, 4);
FIELD(llama_generate_options, contrast_alpha, 292, 4);
SIZE(llama_generate_options, 296);

FIELD(llama_request_stats, struct_size, 0, 4);
FIELD(llama_request_stats, prompt_tokens, 4, 4);
FIELD(llama_request_stats, cached_tokens, 8, 4);
FIELD(llama_request_stats, generated_tokens, 12, 4);
FIELD(llama_request_stats, queue_ms, 16, 8);
FIELD(llama_request_stats, first_token_ms, 24, 8);
FIELD(llama_request_stats, total_ms, 32, 8);
FIELD(llama_request_stats, drafted_tokens, 40, 4);
FIELD(llama_request_stats, accepted_tokens, 44, 4);
SIZE(llama_request_stats, 48);

FIELD(llama_message, role, 0, 8);
FIELD(llama_message, content, 8, 8);
FIELD(llama_message, role_len, 16, 8);
FIELD(llama_message, content_len, 24, 8);
SIZE(llama_message, 32);

FIELD(llama_chat_options, struct_size, 0, 4);
FIELD(llama_chat_options, flags, 4, 4);
FIELD(llama_chat_options, tools, 8, 8);
FIELD(llama_chat_options, tools_len, 16, 8);
FIELD(llama_chat_options, variables, 24, 8);
FIELD(llama_chat_options, variables_len, 32, 8);
FIELD(llama_chat_options, chat_template, 40, 8);
FIELD(llama_chat_options, chat_template_len, 48, 8);
SIZE(llama_chat_options, 56);

FIELD(llama_compress_options, struct_size, 0, 4);
FIELD(llama_compress_options, flags, 4, 4);
FIELD(llama_compress_options, target_tokens, 8, 4);
FIELD(llama_compress_options, rate, 12, 4);
FIELD(llama_compress_options, window, 16, 4);
FIELD(llama_compress_options, coarse, 20, 4);
FIELD(llama_compress_options, cancel, 24, 8);
SIZE(llama_compress_options, 32);

FIELD(llama_segment, text, 0, 8);
FIELD(llama_segment, len, 8, 8);
FIELD(llama_segment, kind, 16, 4);
FIELD(llama_segment, reserved0, 20, 4);
SIZE(llama_segment, 24);

FIELD(llama_wait, go_on, 0, 8);
FIELD(llama_wait, context, 8, 8);
SIZE(llama_wait, 16);

FIELD(llama_comm, struct_size, 0, 4);
FIELD(llama_comm, rank, 4, 4);
FIELD(llama_comm, size, 8, 4);
FIELD(llama_comm, reserved0, 12, 4);
FIELD(llama_comm, user_data, 16, 8);
FIELD(llama_comm, send, 24, 8);
FIELD(llama_comm, receive, 32, 8);
FIELD(llama_comm, all_gather, 40, 8);
FIELD(llama_comm, all_to_all, 48, 8);
SIZE(llama_comm, 56);

FIELD(llama_rank, struct_size, 0, 4);
FIELD(llama_rank, rank, 4, 4);
FIELD(llama_rank, device, 8, 4);
FIELD(llama_rank, pid, 12, 4);
FIELD(llama_rank, weight_bytes, 16, 8);
FIELD(llama_rank, kv_bytes, 24, 8);
FIELD(llama_rank, exchange_ms, 32, 8);
FIELD(llama_rank, silent_ms, 40, 8);
FIELD(llama_rank, host, 48, 64);
FIELD(llama_rank, device_name, 112, 128);
SIZE(llama_rank, 240);

FIELD(llama_info, struct_size, 0, 4);
FIELD(llama_info, vocab_size, 4, 4);
FIELD(llama_info, dim, 8, 4);
FIELD(llama_info, n_layers, 12, 4);
FIELD(llama_info, n_heads, 16, 4);
FIELD(llama_info, n_kv_heads, 20, 4);
FIELD(llama_info, head_dim, 24, 4);
FIELD(llama_info, ffn_dim, 28, 4);
FIELD(llama_info, max_seq_len, 32, 4);
FIELD(llama_info, max_batch_size, 36, 4);
FIELD(llama_info, bos_id, 40, 4);
FIELD(llama_info, eos_id, 44, 4);
FIELD(llama_info, pad_id, 48, 4);
FIELD(llama_info, device, 52, 4);
FIELD(llama_info, weights_dtype, 56, 4);
FIELD(llama_info, kv_dtype, 60, 4);
FIELD(llama_info, weight_bytes, 64, 8);
FIELD(llama_info, kv_bytes, 72, 8);
FIELD(llama_info, device_name, 80, 128);
FIELD(llama_info, gpu_kernels, 208, 4);
FIELD(llama_info, reserved0, 212, 4);
FIELD(llama_info, eos_ids, 216, 64);
FIELD(llama_info, n_eos, 280, 4);
FIELD(llama_info, chat_format, 284, 4);
FIELD(llama_info, model_type, 288, 32);
FIELD(llama_info, stored_format, 320, 32);
FIELD(llama_info, model_parallel_size, 352, 4);
FIELD(llama_info, has_draft, 356, 4);
FIELD(llama_info, medusa_heads, 360, 4);
FIELD(llama_info, reserved1, 364, 4);
SIZE(llama_info, 368);

FIELD(llama_timings, struct_size, 0, 4);
FIELD(llama_timings, running, 4, 4);
FIELD(llama_timings, waiting, 8, 4);
FIELD(llama_timings, parked, 12, 4);
FIELD(llama_timings, load_ms, 16, 8);
FIELD(llama_timings, prefill_ms, 24, 8);
FIELD(llama_timings, decode_ms, 32, 8);
FIELD(llama_timings, prompt_tokens, 40, 8);
FIELD(llama_timings, cached_tokens, 48, 8);
FIELD(llama_timings, generated_tokens, 56, 8);
FIELD(llama_timings, steps, 64, 8);
FIELD(llama_timings, pages_used, 72, 8);
FIELD(llama_timings, pages_total, 80, 8);
FIELD(llama_timings, masks, 88, 8);
FIELD(llama_timings, mask_ms, 96, 8);
FIELD(llama_timings, mask_wait_ms, 104, 8);
FIELD(llama_timings, drafted_tokens, 112, 8);
FIELD(llama_timings, accepted_tokens, 120, 8);
SIZE(llama_timings, 128);

/* End of fields */

SIZE(llama_status, 4);
TYPE(llama_build_options, seed, uint64_t);
TYPE(llama_build_options, device_index, int32_t);
TYPE(llama_build_options, n_threads, uint32_t);
TYPE(llama_build_options, cancel, llama_cancel_t *);
TYPE(llama_build_options, progress, llama_progress_fn);
TYPE(llama_build_options, log, llama_log_fn);
TYPE(llama_generate_options, temperature, float);
TYPE(llama_generate_options, top_k, int32_t);
TYPE(llama_generate_options, stop, const char *const *);
TYPE(llama_generate_options, n_stop, size_t);
TYPE(llama_generate_options, on_event, llama_event_fn);
TYPE(llama_generate_options, on_logits, llama_logits_fn);
TYPE(llama_generate_options, on_stop, llama_stop_fn);
TYPE(llama_logits, logits, float *);
TYPE(llama_generate_options, cache_salt, uint64_t);
TYPE(llama_event, text, const char *);
TYPE(llama_event, top, const llama_alternative *);
TYPE(llama_timings, load_ms, double);

IS(LLAMABI_ABI_VERSION, 0);
IS(LLAMA_OK, 0);
IS(LLAMA_DONE, 1);
IS(LLAMA_CANCELLED, 2);
IS(LLAMA_TIMEOUT, 3);
IS(LLAMA_E_INVALID_ARGUMENT, -1);
IS(LLAMA_E_ABI, -2);
IS(LLAMA_E_IO, -3);
IS(LLAMA_E_FORMAT, -4);
IS(LLAMA_E_UNSUPPORTED, -5);
IS(LLAMA_E_NO_MEMORY, -6);
IS(LLAMA_E_DEVICE, -7);
IS(LLAMA_E_DEVICE_MEMORY, -8);
IS(LLAMA_E_TOO_LONG, -9);
IS(LLAMA_E_BATCH, -10);
IS(LLAMA_E_UTF8, -11);
IS(LLAMA_E_BUSY, -12);
IS(LLAMA_E_POISONED, -13);
IS(LLAMA_E_PEER, -14);
IS(LLAMA_E_INTERNAL, -99);
IS(LLAMA_DEVICE_AUTO, 0);
IS(LLAMA_DEVICE_CPU, 1);
IS(LLAMA_DEVICE_CUDA, 2);
/* tests/generated/dtypes.rs compares LLAMA_DTYPE_* with what the library takes. */
IS(LLAMA_LOG_ERROR, 1);
IS(LLAMA_LOG_WARN, 2);
IS(LLAMA_LOG_INFO, 3);
IS(LLAMA_LOG_DEBUG, 4);
IS(LLAMA_GEN_ECHO, 1);
IS(LLAMA_GEN_LOGPROBS, 2);
IS(LLAMA_GEN_NO_WAIT, 4);
IS(LLAMA_GEN_IGNORE_EOS, 8);
IS(LLAMA_GEN_BEAM_EVENTS, 16);
IS(LLAMA_GEN_SPECIAL, 32);
IS(LLAMA_ENC_BOS, 1);
IS(LLAMA_ENC_EOS, 2);
IS(LLAMA_ENC_SPECIAL, 4);
IS(LLAMA_CHAT_NONE, 0);
IS(LLAMA_CHAT_LLAMA2, 1);
IS(LLAMA_CHAT_LLAMA3, 2);
IS(LLAMA_CHAT_TEMPLATE, 3);
IS(LLAMA_CHAT_NO_GENERATION_PROMPT, 1);
IS(LLAMA_CHAT_CONTINUE_FINAL, 2);
IS(LLAMA_CHAT_PARSE_SPECIAL, 4);
IS(LLAMA_EVENT_TOKEN, 1);
IS(LLAMA_EVENT_FINISH, 2);
IS(LLAMA_EVENT_BEAM, 3);
IS(LLAMA_EARLY_FALSE, 0);
IS(LLAMA_EARLY_TRUE, 1);
IS(LLAMA_EARLY_NEVER, 2);
IS(LLAMA_FINISH_STOP, 1);
IS(LLAMA_FINISH_LENGTH, 2);
IS(LLAMA_FINISH_CANCELLED, 3);
IS(LLAMA_FINISH_STOP_STRING, 4);
IS(LLAMA_FINISH_UNSAFE, 5);
IS(LLAMA_FINISH_TIME, 6);
IS(LLAMA_FINISH_CALLER, 7);
IS(LLAMA_FINISH_UNREAD, 8);
IS(LLAMA_FINISH_NOT_FINITE, 9);
IS(LLAMABI_MAX_GEN_LEN_DEFAULT, 0xFFFFFFFFu);

/* Every function with its type. */
typedef llama_status (*generate_fn)(llama_t *, const int32_t *, const size_t *, size_t,
    const llama_generate_options *, llama_result_t **, llama_error *);
void (*const f_build_init)(llama_build_options *, size_t, uint32_t) = llama_build_options_init;
void (*const f_generate_init)(llama_generate_options *, size_t) = llama_generate_options_init;
const char *(*const f_version)(void) = llama_version;
uint32_t (*const f_abi_version)(void) = llama_abi_version;
const char *(*const f_status_string)(llama_status) = llama_status_string;
llama_status (*const f_build)(const char *, const char *, const llama_build_options *, llama_t **,
    llama_error *) = llama_build;
void (*const f_free)(llama_t *) = llama_free;
void (*const f_destroy)(llama_t *) = llama_destroy;
const generate_fn f_generate = llama_generate;
llama_status (*const f_text)(llama_t *, const char *const *, const size_t *, size_t,
    const llama_generate_options *, llama_result_t **, llama_error *) = llama_text_completion;
llama_status (*const f_chat)(llama_t *, const llama_message *, const size_t *, size_t,
    const llama_generate_options *, llama_result_t **, llama_error *) = llama_chat_completion;
llama_status (*const f_open)(llama_t *, const int32_t *, const size_t *, size_t,
    const llama_generate_options *, llama_stream_t **, llama_error *) = llama_stream_open;
llama_status (*const f_open_text)(llama_t *, const char *const *, const size_t *, size_t,
    const llama_generate_options *, llama_stream_t **, llama_error *) = llama_stream_open_text;
llama_status (*const f_open_chat)(llama_t *, const llama_message *, const size_t *, size_t,
    const llama_generate_options *, llama_stream_t **, llama_error *) = llama_stream_open_chat;
llama_status (*const f_stream_stop)(llama_stream_t *, size_t) = llama_stream_stop;
llama_status (*const f_stream_stats)(
    const llama_stream_t *, size_t, llama_request_stats *) = llama_stream_stats;
llama_status (*const f_next)(
    llama_stream_t *, llama_event *, int32_t, llama_error *) = llama_stream_next;
int (*const f_fd)(const llama_stream_t *) = llama_stream_fd;
void (*const f_stream_free)(llama_stream_t *) = llama_stream_free;
size_t (*const f_count)(const llama_result_t *) = llama_result_count;
llama_status (*const f_tokens)(
    const llama_result_t *, size_t, const int32_t **, size_t *) = llama_result_tokens;
llama_status (*const f_logprobs)(
    const llama_result_t *, size_t, const float **, size_t *) = llama_result_logprobs;
llama_status (*const f_result_text)(
    const llama_result_t *, size_t, const char **, size_t *) = llama_result_text;
llama_status (*const f_top)(const llama_result_t *, size_t, size_t, const llama_alternative **,
    size_t *) = llama_result_top_logprobs;
int32_t (*const f_finish)(const llama_result_t *, size_t) = llama_result_finish_reason;
void (*const f_result_free)(llama_result_t *) = llama_result_free;
llama_cancel_t *(*const f_cancel_new)(void) = llama_cancel_new;
void (*const f_cancel_trigger)(llama_cancel_t *) = llama_cancel_trigger;
void (*const f_cancel_free)(llama_cancel_t *) = llama_cancel_free;
llama_status (*const f_encode)(const llama_t *, const char *, size_t, uint32_t, int32_t *, size_t,
    size_t *, llama_error *) = llama_encode_text;
llama_status (*const f_bounded)(const llama_t *, const char *, size_t, uint32_t, size_t,
    const llama_cancel_t *, int32_t *, size_t, size_t *, llama_error *) = llama_encode_text_bounded;
llama_status (*const f_decode)(const llama_t *, const int32_t *, size_t, char *, size_t, size_t *,
    llama_error *) = llama_decode_tokens;
llama_status (*const f_bytes)(
    const llama_t *, int32_t, const char **, size_t *, llama_error *) = llama_token_bytes;
llama_status (*const f_dialog)(const llama_t *, const llama_message *, size_t, int32_t *, size_t,
    size_t *, llama_error *) = llama_encode_dialog;
void (*const f_chat_init)(llama_chat_options *, size_t) = llama_chat_options_init;
llama_status (*const f_messages)(llama_t *, const char *const *, const size_t *, size_t,
    const llama_chat_options *, const llama_generate_options *, llama_result_t **,
    llama_error *) = llama_chat;
llama_status (*const f_open_messages)(llama_t *, const char *const *, const size_t *, size_t,
    const llama_chat_options *, const llama_generate_options *, llama_stream_t **,
    llama_error *) = llama_stream_open_messages;
llama_status (*const f_render)(const llama_t *, const char *, size_t, const llama_chat_options *,
    char *, size_t, size_t *, llama_error *) = llama_render_chat;
llama_status (*const f_encode_chat)(const llama_t *, const char *, size_t,
    const llama_chat_options *, int32_t *, size_t, size_t *, llama_error *) = llama_encode_chat;
llama_status (*const f_adapter_add)(
    llama_t *, const char *, float, uint32_t *, llama_error *) = llama_adapter_add;
llama_status (*const f_adapter_drop)(llama_t *, uint32_t, llama_error *) = llama_adapter_drop;
llama_status (*const f_worker_run)(
    const char *, const llama_build_options *, llama_error *) = llama_worker_run;
llama_status (*const f_rank)(
    const llama_t *, uint32_t, llama_rank *, llama_error *) = llama_get_rank;
llama_status (*const f_health)(const llama_t *, llama_error *) = llama_health;
llama_status (*const f_info)(const llama_t *, llama_info *, llama_error *) = llama_get_info;
llama_status (*const f_timings)(
    const llama_t *, llama_timings *, llama_error *) = llama_get_timings;
llama_status (*const f_stats)(
    const llama_result_t *, size_t, llama_request_stats *) = llama_result_stats;
llama_status (*const f_score)(
    const llama_result_t *, size_t, float *, float *) = llama_result_score;

void (*const f_compress_init)(llama_compress_options *, size_t) = llama_compress_options_init;
llama_status (*const f_compress)(llama_t *, const llama_segment *, size_t,
    const llama_compress_options *, llama_result_t **, llama_error *) = llama_compress;

int main(void) { return 0; }
