//! What a caller says about a handle that is to be built: options and paths.
#![allow(unsafe_code)]

use super::callback::InCallback;
use super::failure::{Failure, Outcome};
use super::guard::Scope;
use super::object::LogSink;
use super::types::*;
use super::{args, cancel, layout};
use crate::backend::gpu::device::GroupId;
use crate::llama::{BuildOptions, Device};
use crate::log::{Level, Log};
use crate::ranks::board::MAX_RANKS;
use crate::{Dtype, Precision};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

/// The most threads that `n_threads` may ask for. A greater number is a mistake of the caller.
const MAX_THREADS: u32 = 1024;

/// The most adapters that can be merged.
const MAX_ADAPTERS: usize = 256;

pub(super) fn default_build_options() -> llama_build_options {
    let defaults = BuildOptions::default();
    llama_build_options {
        struct_size: size_of::<llama_build_options>() as u32,
        abi_version: LLAMABI_ABI_VERSION,
        max_seq_len: defaults.max_seq_len as u32,
        max_batch_size: defaults.max_batch_size as u32,
        model_parallel_size: 0,
        device: LLAMA_DEVICE_AUTO,
        device_index: 0,
        n_threads: 0,
        weights_dtype: LLAMA_DTYPE_AUTO,
        kv_dtype: LLAMA_DTYPE_AUTO,
        seed: defaults.seed,
        cancel: ptr::null_mut(),
        progress: None,
        progress_user_data: ptr::null_mut(),
        log: None,
        log_user_data: ptr::null_mut(),
        log_level: LLAMA_LOG_INFO,
        reserved0: 0,
        gpu_memory_bytes: defaults.gpu_memory_bytes,
        max_waiting: 0,
        max_stall_ms: 0,
        max_unread_ms: 0,
        precision: LLAMA_PRECISION_AUTO,
        stall_memory_bytes: 0,
        chat_template: ptr::null(),
        chat_now: 0,
        adapters: ptr::null(),
        adapter_scales: ptr::null(),
        n_adapters: 0,
        devices: ptr::null(),
        n_devices: 0,
        rank_timeout_ms: 0,
        comm: ptr::null(),
        draft_dir: ptr::null(),
        draft_weights_dtype: LLAMA_DTYPE_AUTO,
        draft_kv_dtype: LLAMA_DTYPE_AUTO,
        medusa_dir: ptr::null(),
        max_step_ms: 0,
        reserved1: 0,
        nccl_unique_id: ptr::null(),
    }
}

/// Reads the caller's options over the defaults.
///
/// # Safety
/// `o` is NULL or has `struct_size` readable bytes.
pub(super) unsafe fn given(o: *const llama_build_options) -> Outcome<llama_build_options> {
    // SAFETY: by this function's contract.
    let given = unsafe { layout::read("o", o, default_build_options()) }?;
    if given.abi_version != LLAMABI_ABI_VERSION {
        return Err(Failure::new(
            LLAMA_E_ABI,
            format!(
                "abi_version is {}, this library's is {LLAMABI_ABI_VERSION}",
                given.abi_version
            ),
        ));
    }
    Ok(given)
}

/// Converts options.
///
/// # Safety
/// Strings are NULL or NUL-terminated, arrays have as many elements as is said beside them, and
/// `nccl_unique_id` is NULL or has 128 readable bytes.
pub(super) unsafe fn build_options(o: &llama_build_options) -> Outcome<(LogSink, BuildOptions)> {
    // SAFETY: by this function's contract.
    let chat_template = unsafe { template(o.chat_template) }?;
    // SAFETY: by this function's contract.
    let (adapters, devices) = unsafe { (adapters(o)?, devices(o)?) };
    let device = match o.device {
        LLAMA_DEVICE_AUTO => Device::Auto,
        LLAMA_DEVICE_CPU => Device::Cpu,
        LLAMA_DEVICE_CUDA => Device::Cuda,
        n => return Err(unknown("device", n, "LLAMA_DEVICE_*")),
    };
    let precision = match o.precision {
        LLAMA_PRECISION_AUTO => Precision::Auto,
        LLAMA_PRECISION_FULL => Precision::Full,
        LLAMA_PRECISION_FAST => Precision::Fast,
        n => return Err(unknown("precision", n, "LLAMA_PRECISION_*")),
    };
    if o.n_threads > MAX_THREADS {
        return Err(Failure::invalid(format!(
            "n_threads is {}, must be at most {MAX_THREADS}",
            o.n_threads
        )));
    }
    let level = match o.log_level {
        0 => None,
        LLAMA_LOG_ERROR => Some(Level::Error),
        LLAMA_LOG_WARN => Some(Level::Warn),
        LLAMA_LOG_INFO => Some(Level::Info),
        LLAMA_LOG_DEBUG => Some(Level::Debug),
        n => return Err(unknown("log_level", n, "LLAMA_LOG_* or 0")),
    };
    let log = Arc::new(Log::new(level.filter(|_| o.log.is_some())));
    let defaults = BuildOptions::default();
    let or = |default: u32, given: u32| if given == 0 { default } else { given };
    let options = BuildOptions {
        max_seq_len: o.max_seq_len as usize,
        max_batch_size: o.max_batch_size as usize,
        model_parallel_size: not_negative("model_parallel_size", o.model_parallel_size)?,
        device,
        device_index: not_negative("device_index", o.device_index)?,
        devices,
        rank_timeout_ms: or(defaults.rank_timeout_ms, o.rank_timeout_ms),
        // SAFETY: by this function's contract it is NULL or has 128 readable bytes.
        group: (!o.nccl_unique_id.is_null())
            .then(|| unsafe { o.nccl_unique_id.cast::<GroupId>().read() }),
        gpu_memory_bytes: o.gpu_memory_bytes,
        n_threads: o.n_threads as usize,
        weights_dtype: dtype("weights_dtype", o.weights_dtype)?,
        kv_dtype: dtype("kv_dtype", o.kv_dtype)?,
        precision,
        seed: o.seed,
        prefill_chunk: None,
        max_step_ms: or(defaults.max_step_ms, o.max_step_ms),
        max_waiting: or(defaults.max_waiting, o.max_waiting),
        max_stall_ms: or(defaults.max_stall_ms, o.max_stall_ms),
        max_unread_ms: or(defaults.max_unread_ms, o.max_unread_ms),
        stall_memory_bytes: (o.stall_memory_bytes > 0).then_some(o.stall_memory_bytes),
        adapters,
        // SAFETY: by this function's contract the string is NULL or NUL-terminated.
        draft_dir: unsafe { path_or_null("draft_dir", o.draft_dir) }?.map(Path::to_owned),
        draft_weights_dtype: dtype("draft_weights_dtype", o.draft_weights_dtype)?,
        draft_kv_dtype: dtype("draft_kv_dtype", o.draft_kv_dtype)?,
        // SAFETY: as above.
        medusa_dir: unsafe { path_or_null("medusa_dir", o.medusa_dir) }?.map(Path::to_owned),
        chat_template,
        chat_now: (o.chat_now != 0).then_some(o.chat_now),
        cancel: cancel::flag(o.cancel)?,
        log: log.clone(),
    };
    Ok((
        LogSink {
            log,
            function: o.log,
            user_data: o.log_user_data,
        },
        options,
    ))
}

/// Copies `chat_template`.
///
/// # Safety
/// `p` is NULL or NUL-terminated.
unsafe fn template(p: *const c_char) -> Outcome<Option<String>> {
    if p.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { args::text("chat_template", p, usize::MAX) }?;
    let most = crate::chat::jinja::limits::MAX_TEMPLATE;
    if text.len() > most {
        return Err(Failure::invalid(format!(
            "chat_template has {} bytes, must have at most {most}",
            text.len()
        )));
    }
    Ok(Some(text.to_owned()))
}

/// Copies the paths in `adapters` and pairs them with their scales.
///
/// # Safety
/// Both arrays are NULL or have `n_adapters` elements. Each element of `adapters` is NULL or
/// NUL-terminated.
unsafe fn adapters(o: &llama_build_options) -> Outcome<Vec<(PathBuf, f32)>> {
    let n = o.n_adapters;
    if n > MAX_ADAPTERS {
        return Err(Failure::invalid(format!(
            "n_adapters is {n}, must be at most {MAX_ADAPTERS}"
        )));
    }
    // SAFETY: by this function's contract.
    let dirs = unsafe { args::slice("adapters", o.adapters, n) }?;
    let scales = match o.adapter_scales.is_null() {
        true => &[],
        // SAFETY: by this function's contract.
        false => unsafe { args::slice("adapter_scales", o.adapter_scales, n) }?,
    };
    let mut adapters = Vec::with_capacity(n);
    for (i, &dir) in dirs.iter().enumerate() {
        // SAFETY: by this function's contract.
        let dir = unsafe { path(&format!("adapters[{i}]"), dir) }?.to_owned();
        adapters.push((dir, scales.get(i).copied().unwrap_or(1.0)));
    }
    Ok(adapters)
}

/// Copies `devices`.
///
/// # Safety
/// The array is NULL or has `n_devices` elements.
unsafe fn devices(o: &llama_build_options) -> Outcome<Vec<usize>> {
    let n = o.n_devices as usize;
    if n > MAX_RANKS {
        return Err(Failure::invalid(format!(
            "n_devices is {n}, must be at most {MAX_RANKS}"
        )));
    }
    // SAFETY: by this function's contract.
    let given = unsafe { args::slice("devices", o.devices, n) }?;
    let device = |(i, &n): (usize, &i32)| not_negative(&format!("devices[{i}]"), n);
    given.iter().enumerate().map(device).collect()
}

fn not_negative(name: &str, n: i32) -> Outcome<usize> {
    usize::try_from(n).map_err(|_| Failure::invalid(format!("{name} is {n}, must be 0 or more")))
}

fn unknown(name: &str, n: i32, known: &str) -> Failure {
    Failure::invalid(format!("{name} is {n}, must be one of {known}"))
}

fn dtype(name: &str, n: i32) -> Outcome<Option<Dtype>> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.number() == n);
    match known {
        Some(dtype) if name.ends_with("kv_dtype") && !dtype.is_of_cache() => Err(Failure::new(
            LLAMA_E_UNSUPPORTED,
            format!("{name} is {dtype}: the cache is kept as f32, f16, bf16, int8 or fp8 only"),
        )),
        Some(dtype) => Ok(Some(dtype)),
        None if n == LLAMA_DTYPE_AUTO => Ok(None),
        None => Err(unknown(name, n, "LLAMA_DTYPE_*")),
    }
}

/// Returns the caller's path of a checkpoint.
///
/// # Safety
/// `p` is NULL, or NUL-terminated and stays so for `'a`.
pub(super) unsafe fn ckpt_dir<'a>(p: *const c_char) -> Outcome<&'a Path> {
    args::check_pointer("ckpt_dir", p)?;
    // SAFETY: the pointer is not NULL; else by this function's contract.
    Ok(unsafe { any_path(p) })
}

/// Returns a caller's path. An empty one would be the working directory's.
///
/// # Safety
/// `p` is NULL, or NUL-terminated and stays so for `'a`.
pub(super) unsafe fn path<'a>(name: &str, p: *const c_char) -> Outcome<&'a Path> {
    args::check_pointer(name, p)?;
    // SAFETY: the pointer is not NULL; else by this function's contract.
    let path = unsafe { any_path(p) };
    match path.as_os_str().is_empty() {
        true => Err(Failure::invalid(format!("{name} is \"\", must be a path"))),
        false => Ok(path),
    }
}

/// The same, where NULL means that there is none.
///
/// # Safety
/// As [`path`].
pub(super) unsafe fn path_or_null<'a>(name: &str, p: *const c_char) -> Outcome<Option<&'a Path>> {
    match p.is_null() {
        true => Ok(None),
        // SAFETY: by this function's contract.
        false => unsafe { path(name, p) }.map(Some),
    }
}

/// # Safety
/// `p` is NUL-terminated and stays so for `'a`.
unsafe fn any_path<'a>(p: *const c_char) -> &'a Path {
    // SAFETY: by this function's contract. A file name consists of bytes, which need not be UTF-8.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(p) }.to_bytes()))
}

/// Tells the host how far the loading is. Returns whether to go on.
pub(super) fn report(
    given: &llama_build_options,
    log: &LogSink,
    scope: &Scope,
    fraction: f32,
) -> bool {
    log.deliver();
    // The callback that takes log lines may have forked, too.
    if scope.check_process().is_err() {
        return false;
    }
    let Some(function) = given.progress else {
        return true;
    };
    let inside = InCallback::enter();
    // SAFETY: this calls the host's function with the host's data.
    let go_on = unsafe { function(given.progress_user_data, fraction) != 0 };
    drop(inside);
    go_on && scope.check_process().is_ok()
}
