//! `llama_adapter_add`, `llama_adapter_drop`.
#![allow(unsafe_code)]

use super::callback::InCallback;
use super::types::*;
use super::{args, building};
use std::ffi::c_char;

// Section: Adapters

/// Load a LoRA adapter from a directory as peft writes it, so that calls can choose it. `*id` is
/// the number for `llama_generate_options.adapter`; ids begin at 1 and are never given again.
/// `scale` is the adapter's weight. Calls that run on the handle continue. The adapter is kept in
/// memory beside the weights (16 bits a number; 32 if the weights are float32), so that rows of
/// different adapters share steps. On a GPU, it and the buffers that all adapters share, which the
/// first one brings, count towards `gpu_memory_bytes`.
///
/// On several ranks each has its part of the adapter. A rank in another process loads it from the
/// same path there, beside the steps that it computes. If one refuses, no rank keeps anything, and
/// its sentence is the message, with its number and machine before it.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_IO`, `_FORMAT`, `_NO_MEMORY`, `_DEVICE_MEMORY`,
/// `_DEVICE`; with `_UNSUPPORTED` on several GPUs of one process that exchange by NCCL, and for
/// what only merging can do (`modules_to_save`, a rank of the adapter over 256); and with `_PEER`
/// if a rank in another process is gone or finds another adapter there, and `LLAMA_CANCELLED` if
/// the handle is freed meanwhile. Any thread may call this, but not from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_adapter_add(
    l: *mut llama_t,
    dir: *const c_char,
    scale: f32,
    id: *mut u32,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        InCallback::refuse("llama_adapter_add")?;
        let handle = scope.handle(l)?;
        // SAFETY: by contract the path is NULL or NUL-terminated, and `id` is NULL or writable.
        let (dir, id) = unsafe { (building::path("dir", dir)?, args::out("id", id)?) };
        id.set(handle.llama.add_adapter(dir, scale)?);
        Ok(LLAMA_OK)
    })
}

/// Drop an adapter: no new call may name it. Its memory is freed when the last call that runs with
/// it has ended, on ranks in other processes within a second after that.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, but not from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_adapter_drop(
    l: *mut llama_t,
    id: u32,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        InCallback::refuse("llama_adapter_drop")?;
        scope.handle(l)?.llama.drop_adapter(id)?;
        Ok(LLAMA_OK)
    })
}
