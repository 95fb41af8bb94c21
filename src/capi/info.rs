//! `llama_get_info`, `llama_get_timings`.
#![allow(unsafe_code)]

use super::layout;
use super::types::*;
use std::ffi::c_char;

// Section: Figures

/// Say what was loaded. Set `info->struct_size` first; no more than that is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_get_info(
    l: *const llama_t,
    info: *mut llama_info,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract `info` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("info", info) }?;
        let info = handle.llama.info();
        let tokenizer = handle.llama.tokenizer();
        let shape = &info.config.shape;
        let mut eos_ids = [0; 16];
        for (to, &from) in eos_ids.iter_mut().zip(&info.eos_ids) {
            *to = from;
        }
        out.write(&llama_info {
            struct_size: size_of::<llama_info>() as u32,
            vocab_size: number(shape.vocab_size),
            dim: number(shape.dim),
            n_layers: number(shape.n_layers),
            n_heads: number(shape.n_heads),
            n_kv_heads: number(shape.n_kv_heads),
            head_dim: number(shape.head_dim),
            ffn_dim: number(shape.ffn_dim),
            max_seq_len: number(info.max_seq_len),
            max_batch_size: number(info.max_batch_size),
            bos_id: tokenizer.bos_id(),
            eos_id: info.eos_ids.first().copied().unwrap_or(-1),
            pad_id: tokenizer.pad_id(),
            device: info.device as i32,
            weights_dtype: info.weights_dtype.number(),
            kv_dtype: info.kv_dtype.number(),
            weight_bytes: info.weight_bytes,
            kv_bytes: info.kv_bytes,
            device_name: c_text(&info.device_name),
            gpu_kernels: u32::from(info.gpu_kernels),
            reserved0: 0,
            eos_ids,
            n_eos: number(info.eos_ids.len()),
            chat_format: handle.llama.chat().format() as u32,
            model_type: c_text(info.config.family.model_type),
            stored_format: c_text(&info.stored_format),
            model_parallel_size: number(info.ranks.len()),
            has_draft: u32::from(info.has_draft),
            medusa_heads: number(info.medusa_heads),
            reserved1: 0,
        });
        Ok(LLAMA_OK)
    })
}

/// Copies as much of a text as there is room for, followed by a NUL.
pub(super) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut to = [0; N];
    let text = &text[..text.floor_char_boundary(N - 1)];
    for (to, &from) in to.iter_mut().zip(text.as_bytes()) {
        *to = from as c_char;
    }
    to
}

pub(super) fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Get the totals of the handle since it was built. Set `t->struct_size` first; no more than that
/// is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_get_timings(
    l: *const llama_t,
    t: *mut llama_timings,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract `t` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("t", t) }?;
        let timings = handle.llama.timings();
        out.write(&llama_timings {
            struct_size: size_of::<llama_timings>() as u32,
            running: timings.running,
            waiting: timings.waiting,
            parked: timings.parked,
            load_ms: handle.llama.info().load_ms,
            prefill_ms: timings.prefill_ms,
            decode_ms: timings.decode_ms,
            prompt_tokens: timings.prompt_tokens,
            cached_tokens: timings.cached_tokens,
            generated_tokens: timings.generated_tokens,
            steps: timings.steps,
            pages_used: timings.pages_used,
            pages_total: timings.pages_total,
            masks: timings.masks,
            mask_ms: timings.mask_ms,
            mask_wait_ms: timings.mask_wait_ms,
            drafted_tokens: timings.drafted_tokens,
            accepted_tokens: timings.accepted_tokens,
        });
        Ok(LLAMA_OK)
    })
}
