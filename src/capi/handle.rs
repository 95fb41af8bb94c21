//! `llama_build`, `llama_free`, versions and defaults.
#![allow(unsafe_code)]

use super::building::{build_options, default_build_options, given, report};
use super::callback::InCallback;
use super::failure::{Outcome, status_text};
use super::object::{Handle, LogSink};
use super::ranks::{HostComm, leave};
use super::types::*;
use super::{args, building, layout, table};
use crate::Llama;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

// Section: First things

/// Returns the version of the library that was loaded, in the form of `LLAMABI_VERSION`. The text
/// is never freed. Any thread may call this.
#[unsafe(no_mangle)]
pub extern "C" fn llama_version() -> *const c_char {
    guard!(else ptr::null(), { concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast() })
}

/// Returns the `LLAMABI_ABI_VERSION` of the library that was loaded. Any thread may call this.
#[unsafe(no_mangle)]
pub extern "C" fn llama_abi_version() -> u32 {
    guard!(else LLAMABI_ABI_VERSION, { LLAMABI_ABI_VERSION })
}

/// Describes a status in a few words. The text is never NULL and never freed. Any thread may call
/// this.
#[unsafe(no_mangle)]
pub extern "C" fn llama_status_string(s: llama_status) -> *const c_char {
    guard!(else ptr::null(), { status_text(s).as_ptr() })
}

// Section: Models

/// Fill `o` with defaults. Pass `sizeof(llama_build_options)` and `LLAMABI_ABI_VERSION`. Both are
/// kept in `o`, so that `llama_build` knows which header the caller was compiled with.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_build_options_init(
    o: *mut llama_build_options,
    struct_size: usize,
    abi_version: u32,
) {
    guard!(else (), {
        let defaults = llama_build_options {
            struct_size: struct_size as u32,
            abi_version,
            ..default_build_options()
        };
        // SAFETY: by contract `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// Load a model.
///
/// `ckpt_dir` holds Meta's form (`params.json`, `consolidated.NN.pth`) or Hugging Face's
/// (`config.json`, `*.safetensors` or `pytorch_model.bin`), or is a GGUF file (the first of a split
/// set), or a directory with one. `tokenizer_path` may be NULL, which means the model's own
/// (`tokenizer.model`, `tokenizer.json`, `tekken.json`, or the GGUF file's). `o` may be NULL, which
/// means defaults. On success `*out` is the handle; free it with `llama_free`. Otherwise `*out` is
/// NULL and nothing is left behind. Any thread may call this, but not from inside a callback.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, `_IO` (a path is missing or unreadable),
/// `_FORMAT` (a file is of the wrong kind), `_UNSUPPORTED`, `_NO_MEMORY`, `_DEVICE`,
/// `_DEVICE_MEMORY`. Returns `LLAMA_CANCELLED` if `o->cancel` or `o->progress` stopped it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_build(
    ckpt_dir: *const c_char,
    tokenizer_path: *const c_char,
    o: *const llama_build_options,
    out: *mut *mut llama_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, clears out, |scope| {
        // SAFETY: by contract `out` is NULL or writable.
        unsafe { args::out("out", out) }?;
        InCallback::refuse("llama_build")?;
        let given = match o.is_null() {
            true => default_build_options(),
            // SAFETY: by contract `o` has struct_size readable bytes.
            false => unsafe { given(o) }?,
        };
        // SAFETY: by contract `comm` is NULL or has struct_size readable bytes.
        let mut comm = unsafe { HostComm::read(given.comm) }?;
        // SAFETY: by contract the strings and arrays of the options are what they say, and so are
        // the paths.
        let read = unsafe {
            build_options(&given).and_then(|options| {
                let tokenizer = building::path_or_null("tokenizer_path", tokenizer_path)?;
                Ok((options, building::ckpt_dir(ckpt_dir)?, tokenizer))
            })
        };
        let read = read.inspect_err(|failure| {
            if let Some(comm) = comm.take() {
                leave(comm, failure, &given);
            }
        });
        let ((log, options), ckpt_dir, tokenizer_path) = read?;
        let mut progress = |fraction: f32| report(&given, &log, scope, fraction);
        let built = match comm {
            None => Llama::build(ckpt_dir, tokenizer_path, &options, &mut progress),
            Some(comm) => {
                let comm = Box::new(comm);
                Llama::build_among(comm, ckpt_dir, tokenizer_path, &options, &mut progress)
            }
        };
        log.deliver();
        if let Err(forked) = scope.check_process() {
            std::mem::forget(built);
            return Err(forked);
        }
        let handle = insert(built?, log)?;
        // SAFETY: as above.
        unsafe { args::out("out", out)?.set(handle) };
        Ok(LLAMA_OK)
    })
}

/// Makes a handle for a model that was built in Rust, for example on a device of the host's. The
/// handle is passed to C code and freed with [`llama_free`]. Returns NULL if there is no memory for
/// it.
pub fn into_handle(llama: Llama) -> *mut llama_t {
    let log = LogSink {
        log: Arc::default(),
        function: None,
        user_data: ptr::null_mut(),
    };
    insert(llama, log).unwrap_or(ptr::null_mut())
}

fn insert(llama: Llama, log: LogSink) -> Outcome<*mut llama_t> {
    let handle = Handle {
        llama,
        log,
        freed: AtomicBool::new(false),
    };
    Ok(ptr::without_provenance_mut(table::insert(handle)?))
}

fn free(l: *mut llama_t) {
    let Some(handle) = table::remove::<Handle>(l.addr()) else {
        return;
    };
    handle.llama.shutdown();
    handle.deliver_log();
    handle.freed.store(true, Ordering::Release);
    // Calls that still run hold the handle too. The last one to end drops the model.
}

/// Free a handle. Calls that run on it are cancelled: they return `LLAMA_CANCELLED` with what they
/// have, and the last of them drops the weights. Results and streams stay valid; streams end as
/// cancelled. The bytes that `llama_token_bytes` gave do not stay valid.
///
/// NULL, a handle that was freed already, a handle from before a fork, and a pointer that is not
/// this library's are ignored and not read. Any thread may call this. It also works from inside a
/// callback; the call that the callback belongs to then ends as cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_free(l: *mut llama_t) {
    guard!(else (), { free(l) })
}

/// Does the same as `llama_free`, under a name that no other library has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_destroy(l: *mut llama_t) {
    guard!(else (), { free(l) })
}
