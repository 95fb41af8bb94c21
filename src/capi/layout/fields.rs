//! The fields of every struct that is read or written by its `struct_size`, in order.
#![allow(unsafe_code)]

use super::Layout;
use crate::capi::types::*;

macro_rules! layout {
    ($name:ident: $($field:ident),* $(; $($reserved:ident),*)?) => {
        // SAFETY: `types` declares the struct #[repr(C)] with plain numbers and pointers. A test
        // compares the list of fields with the header, which is made of `types`; and in a build
        // for tests, the assertions below fail if a field is missing or in another place.
        unsafe impl Layout for $name {
            const NAME: &'static str = stringify!($name);
            const ENDS: &'static [usize] = &[
                $(std::mem::offset_of!($name, $field) + field_size(|s: &$name| &s.$field)),*
            ];
            fn reserved(&mut self) -> Vec<(&'static str, &mut u32)> {
                vec![$($((stringify!($reserved), &mut self.$reserved)),*)?]
            }
        }
        // In a build for tests only, because `make header` builds the library before it writes the
        // lists. So that this is possible for a new struct, begin its list: struct_size will do.
        #[cfg(test)]
        const _: () = {
            const _: fn(&$name) = |s| { let $name { $($field: _),* } = s; };
            assert!(std::mem::offset_of!($name, struct_size) == 0);
            let ends = <$name as Layout>::ENDS;
            let mut at = 1;
            while at < ends.len() {
                assert!(ends[at - 1] < ends[at]);
                at += 1;
            }
            assert!(ends[0] == 4 && ends[at - 1] == size_of::<$name>());
        };
    };
}

const fn field_size<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

// Fields of llamabi.h, written by `make header` (tests/generated/structs.rs)
layout! { llama_build_options:
    struct_size, abi_version, max_seq_len, max_batch_size, model_parallel_size, device,
    device_index, n_threads, weights_dtype, kv_dtype, seed, cancel, progress, progress_user_data,
    log, log_user_data, log_level, reserved0, gpu_memory_bytes, max_waiting, max_stall_ms,
    max_unread_ms, precision, stall_memory_bytes, chat_template, chat_now, adapters, adapter_scales,
    n_adapters, devices, n_devices, rank_timeout_ms, comm, draft_dir, draft_weights_dtype,
    draft_kv_dtype, medusa_dir, max_step_ms, reserved1, nccl_unique_id
    ; reserved0, reserved1
}
layout! { llama_event:
    struct_size, kind, index, token, logprob, finish_reason, text, text_len, top, n_top, beam,
    parent, sum_logprob, score, draft, step
}
layout! { llama_generate_options:
    struct_size, flags, max_gen_len, temperature, top_p, top_k, min_p, repetition_penalty, seed,
    stop, n_stop, cancel, on_event, user_data, top_logprobs, reserved1, cache_salt,
    num_return_sequences, num_beams, grammar, min_gen_len, no_repeat_ngram_size, presence_penalty,
    frequency_penalty, typical_p, epsilon_cutoff, eta_cutoff, max_time_ms, logit_bias, n_logit_bias,
    stop_tokens, n_stop_tokens, bad_words, bad_word_lens, n_bad_words, adapter, reserved_adapter,
    length_penalty, early_stopping, on_logits, on_stop, speculation, draft_len, predicted,
    n_predicted, force_words, force_word_lens, force_group_lens, n_force_groups, contrast_beta,
    contrast_alpha
    ; reserved1, reserved_adapter
}
layout! { llama_request_stats:
    struct_size, prompt_tokens, cached_tokens, generated_tokens, queue_ms, first_token_ms, total_ms,
    drafted_tokens, accepted_tokens
}
layout! { llama_chat_options:
    struct_size, flags, tools, tools_len, variables, variables_len, chat_template, chat_template_len
}
layout! { llama_compress_options:
    struct_size, flags, target_tokens, rate, window, coarse, cancel
}
layout! { llama_comm:
    struct_size, rank, size, reserved0, user_data, send, receive, all_gather, all_to_all
    ; reserved0
}
layout! { llama_rank:
    struct_size, rank, device, pid, weight_bytes, kv_bytes, exchange_ms, silent_ms, host,
    device_name
}
layout! { llama_info:
    struct_size, vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, max_seq_len,
    max_batch_size, bos_id, eos_id, pad_id, device, weights_dtype, kv_dtype, weight_bytes, kv_bytes,
    device_name, gpu_kernels, reserved0, eos_ids, n_eos, chat_format, model_type, stored_format,
    model_parallel_size, has_draft, medusa_heads, reserved1
    ; reserved0, reserved1
}
layout! { llama_timings:
    struct_size, running, waiting, parked, load_ms, prefill_ms, decode_ms, prompt_tokens,
    cached_tokens, generated_tokens, steps, pages_used, pages_total, masks, mask_ms, mask_wait_ms,
    drafted_tokens, accepted_tokens
}
// End of fields
