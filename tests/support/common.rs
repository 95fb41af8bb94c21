//! The C API as tests want it: owned handles, vectors, and errors as `(status, sentence)`. (U)
//!
//! Every call goes through the exported functions, never through the crate's Rust types, so that
//! what these tests prove holds for C callers. What is `unsafe` here is what it is for C callers
//! too: the pointers and lengths passed are those of live slices, strings and structs of the
//! caller.

#![allow(unsafe_code)]
#![allow(dead_code)] // each test binary uses its part

use llamabi::Llama;
use llamabi::capi::*;
use std::ffi::{CString, c_void};
use std::mem::{size_of, zeroed};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

pub type Failure = (i32, String);

/// `tests/data/reference`: outputs of Meta's and Hugging Face's implementations. In the tree that
/// cargo runs tests of; elsewhere (tests/gpu/day.sh) the variable says where it is.
pub fn reference(path: &str) -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
        .join("tests/data/reference")
        .join(path)
}

pub fn json(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub fn tokens(value: &serde_json::Value) -> Vec<i32> {
    serde_json::from_value(value.clone()).unwrap()
}

pub fn floats(value: &serde_json::Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn error() -> llama_error {
    // SAFETY: numbers and pointers of C: zeros are a value of each.
    let mut error: llama_error = unsafe { zeroed() };
    error.struct_size = size_of::<llama_error>() as u32;
    error
}

fn sentence(error: &llama_error) -> String {
    let bytes: Vec<u8> = error
        .message
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    String::from_utf8(bytes).expect("messages are UTF-8")
}

/// Options with their defaults filled in by the library.
pub fn build_options() -> llama_build_options {
    // SAFETY: numbers and pointers of C: zeros are a value of each.
    let mut options: llama_build_options = unsafe { zeroed() };
    // SAFETY: pointers and lengths are those of values that outlive the call.
    unsafe {
        llama_build_options_init(&mut options, size_of_val(&options), LLAMABI_ABI_VERSION);
    }
    options
}

/// Options with their defaults filled in by the library.
pub fn generate_options() -> llama_generate_options {
    // SAFETY: numbers and pointers of C: zeros are a value of each.
    let mut options: llama_generate_options = unsafe { zeroed() };
    // SAFETY: pointers and lengths are those of values that outlive the call.
    unsafe { llama_generate_options_init(&mut options, size_of_val(&options)) };
    options
}

/// Greedy, with log probabilities.
pub fn greedy(max_gen_len: u32) -> llama_generate_options {
    let mut options = generate_options();
    options.temperature = 0.0;
    options.max_gen_len = max_gen_len;
    options.flags = LLAMA_GEN_LOGPROBS;
    options
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    pub tokens: Vec<i32>,
    pub logprobs: Vec<f32>,
    pub text: String,
    pub top: Vec<Vec<(i32, f32)>>,
    pub finish: i32,
    pub cached_tokens: u32,
    pub sum_logprob: f32,
    pub score: f32,
}

/// A handle; freed when dropped.
pub struct Model(*mut llama_t);

// SAFETY: the contract lets every function be called from any thread.
unsafe impl Send for Model {}
// SAFETY: as for Send.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: a handle of llama_build, freed once.
        unsafe { llama_free(self.0) };
    }
}

impl From<Llama> for Model {
    fn from(llama: Llama) -> Model {
        Model(into_handle(llama))
    }
}

impl Model {
    pub fn open(
        dir: &Path,
        tokenizer: Option<&Path>,
        options: &llama_build_options,
    ) -> Result<Model, Failure> {
        let c_path = |p: &Path| CString::new(p.to_str().unwrap()).unwrap();
        let dir = c_path(dir);
        let tokenizer = tokenizer.map(c_path);
        let mut handle = null_mut();
        let mut error = error();
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let status = unsafe {
            llama_build(
                dir.as_ptr(),
                tokenizer.as_ref().map_or(null(), |t| t.as_ptr()),
                options,
                &mut handle,
                &mut error,
            )
        };
        assert_eq!(error.status, status);
        if status != LLAMA_OK {
            assert!(handle.is_null());
            return Err((status, sentence(&error)));
        }
        Ok(Model(handle))
    }

    /// Its id.
    pub fn add_adapter(&self, dir: &Path, scale: f32) -> Result<u32, Failure> {
        let dir = CString::new(dir.to_str().unwrap()).unwrap();
        let (mut id, mut error) = (0, error());
        // SAFETY: pointers are those of values that outlive the call.
        let status = unsafe { llama_adapter_add(self.0, dir.as_ptr(), scale, &mut id, &mut error) };
        assert_eq!(error.status, status);
        if status == LLAMA_OK {
            Ok(id)
        } else {
            Err((status, sentence(&error)))
        }
    }

    pub fn drop_adapter(&self, id: u32) -> Result<(), Failure> {
        let mut error = error();
        // SAFETY: as above.
        let status = unsafe { llama_adapter_drop(self.0, id, &mut error) };
        assert_eq!(error.status, status);
        if status == LLAMA_OK {
            Ok(())
        } else {
            Err((status, sentence(&error)))
        }
    }

    pub fn raw(&self) -> *mut llama_t {
        self.0
    }

    pub fn info(&self) -> llama_info {
        // SAFETY: numbers and pointers of C: zeros are a value of each.
        let mut info: llama_info = unsafe { zeroed() };
        info.struct_size = size_of::<llama_info>() as u32;
        // SAFETY: pointers and lengths are those of values that outlive the call.
        assert_eq!(
            unsafe { llama_get_info(self.0, &mut info, null_mut()) },
            LLAMA_OK
        );
        info
    }

    pub fn timings(&self) -> llama_timings {
        // SAFETY: numbers and pointers of C: zeros are a value of each.
        let mut timings: llama_timings = unsafe { zeroed() };
        timings.struct_size = size_of::<llama_timings>() as u32;
        // SAFETY: pointers and lengths are those of values that outlive the call.
        assert_eq!(
            unsafe { llama_get_timings(self.0, &mut timings, null_mut()) },
            LLAMA_OK
        );
        timings
    }

    pub fn generate(
        &self,
        prompts: &[Vec<i32>],
        options: &llama_generate_options,
    ) -> Result<Vec<Sequence>, Failure> {
        let flat: Vec<i32> = prompts.concat();
        let lens: Vec<usize> = prompts.iter().map(Vec::len).collect();
        // SAFETY: pointers and lengths are those of values that outlive the call.
        self.call(|out, error| unsafe {
            llama_generate(
                self.0,
                flat.as_ptr(),
                lens.as_ptr(),
                lens.len(),
                options,
                out,
                error,
            )
        })
    }

    /// One prompt, one sequence.
    pub fn one(&self, prompt: &[i32], options: &llama_generate_options) -> Sequence {
        self.generate(&[prompt.to_vec()], options)
            .unwrap()
            .remove(0)
    }

    pub fn text_completion(
        &self,
        prompts: &[&str],
        options: &llama_generate_options,
    ) -> Result<Vec<Sequence>, Failure> {
        let pointers: Vec<_> = prompts.iter().map(|p| p.as_ptr().cast()).collect();
        let lens: Vec<usize> = prompts.iter().map(|p| p.len()).collect();
        // SAFETY: pointers and lengths are those of values that outlive the call.
        self.call(|out, error| unsafe {
            llama_text_completion(
                self.0,
                pointers.as_ptr(),
                lens.as_ptr(),
                lens.len(),
                options,
                out,
                error,
            )
        })
    }

    pub fn chat_completion(
        &self,
        dialogs: &[Vec<(&str, &str)>],
        options: &llama_generate_options,
    ) -> Result<Vec<Sequence>, Failure> {
        let messages: Vec<llama_message> = dialogs.iter().flatten().map(message).collect();
        let lens: Vec<usize> = dialogs.iter().map(Vec::len).collect();
        // SAFETY: pointers and lengths are those of values that outlive the call.
        self.call(|out, error| unsafe {
            llama_chat_completion(
                self.0,
                messages.as_ptr(),
                lens.as_ptr(),
                lens.len(),
                options,
                out,
                error,
            )
        })
    }

    pub fn encode_text(&self, text: &str, flags: u32) -> Vec<i32> {
        let (mut n, s) = (0, text.as_ptr().cast());
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let call = |buf, cap, n: &mut usize| unsafe {
            llama_encode_text(self.0, s, text.len(), flags, buf, cap, n, null_mut())
        };
        assert_eq!(call(null_mut(), 0, &mut n), LLAMA_OK);
        let mut tokens = vec![0; n];
        assert_eq!(call(tokens.as_mut_ptr(), n, &mut n), LLAMA_OK);
        assert_eq!(n, tokens.len());
        tokens
    }

    pub fn encode_dialog(&self, dialog: &[(&str, &str)]) -> Result<Vec<i32>, Failure> {
        let messages: Vec<llama_message> = dialog.iter().map(message).collect();
        let (mut n, mut error) = (0, error());
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let call = |buf, cap, n: &mut usize, error| unsafe {
            llama_encode_dialog(
                self.0,
                messages.as_ptr(),
                messages.len(),
                buf,
                cap,
                n,
                error,
            )
        };
        let status = call(null_mut(), 0, &mut n, &mut error);
        if status != LLAMA_OK {
            return Err((status, sentence(&error)));
        }
        let mut tokens = vec![0; n];
        assert_eq!(call(tokens.as_mut_ptr(), n, &mut n, &mut error), LLAMA_OK);
        Ok(tokens)
    }

    pub fn decode(&self, tokens: &[i32]) -> String {
        let mut n = 0;
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let call = |buf, cap, n: &mut usize| unsafe {
            llama_decode_tokens(
                self.0,
                tokens.as_ptr(),
                tokens.len(),
                buf,
                cap,
                n,
                null_mut(),
            )
        };
        assert_eq!(call(null_mut(), 0, &mut n), LLAMA_OK);
        // One more for a NUL, in case the library writes one.
        let mut text = vec![0u8; n + 1];
        assert_eq!(call(text.as_mut_ptr().cast(), n + 1, &mut n), LLAMA_OK);
        text.truncate(n);
        String::from_utf8(text).unwrap()
    }

    fn call(
        &self,
        f: impl FnOnce(*mut *mut llama_result_t, *mut llama_error) -> llama_status,
    ) -> Result<Vec<Sequence>, Failure> {
        let (mut out, mut error) = (null_mut(), error());
        let status = f(&mut out, &mut error);
        assert_eq!(error.status, status);
        if status != LLAMA_OK && status != LLAMA_CANCELLED {
            assert!(out.is_null());
            return Err((status, sentence(&error)));
        }
        // SAFETY: the call's result, freed once, below, after all is copied.
        let sequences = (0..unsafe { llama_result_count(out) })
            .map(|i| unsafe { sequence(out, i) })
            .collect();
        // SAFETY: as above.
        unsafe { llama_result_free(out) };
        Ok(sequences)
    }
}

fn message((role, content): &(&str, &str)) -> llama_message {
    llama_message {
        role: role.as_ptr().cast(),
        content: content.as_ptr().cast(),
        role_len: role.len(),
        content_len: content.len(),
    }
}

unsafe fn slice<'a, T>(p: *const T, n: usize) -> &'a [T] {
    if n == 0 {
        &[]
    } else {
        // SAFETY: the caller's `n` elements.
        unsafe { std::slice::from_raw_parts(p, n) }
    }
}

unsafe fn sequence(result: *const llama_result_t, i: usize) -> Sequence {
    // SAFETY: the caller's result, which is not freed while slices of it are copied.
    unsafe {
        let (mut tokens, mut n_tokens) = (null(), 0);
        assert_eq!(
            llama_result_tokens(result, i, &mut tokens, &mut n_tokens),
            LLAMA_OK
        );
        let (mut logprobs, mut n_logprobs) = (null(), 0);
        assert_eq!(
            llama_result_logprobs(result, i, &mut logprobs, &mut n_logprobs),
            LLAMA_OK
        );
        let (mut text, mut n_text) = (null(), 0);
        assert_eq!(
            llama_result_text(result, i, &mut text, &mut n_text),
            LLAMA_OK
        );
        let top = (0..n_tokens)
            .map(|position| {
                let (mut p, mut n) = (null(), 0);
                assert_eq!(
                    llama_result_top_logprobs(result, i, position, &mut p, &mut n),
                    LLAMA_OK
                );
                slice(p, n).iter().map(|a| (a.token, a.logprob)).collect()
            })
            .collect();
        let mut stats: llama_request_stats = zeroed();
        stats.struct_size = size_of::<llama_request_stats>() as u32;
        assert_eq!(llama_result_stats(result, i, &mut stats), LLAMA_OK);
        let text = slice(text.cast::<u8>(), n_text);
        let (mut sum_logprob, mut score) = (0.0, 0.0);
        assert_eq!(
            llama_result_score(result, i, &mut sum_logprob, &mut score),
            LLAMA_OK
        );
        Sequence {
            tokens: slice(tokens, n_tokens).to_vec(),
            logprobs: slice(logprobs, n_logprobs).to_vec(),
            text: std::str::from_utf8(text)
                .expect("text is whole UTF-8")
                .to_owned(),
            top,
            finish: llama_result_finish_reason(result, i),
            cached_tokens: stats.cached_tokens,
            sum_logprob,
            score,
        }
    }
}

/// What a pull stream gave: joined text per sequence and all tokens, in order.
pub fn pull(
    model: &Model,
    prompts: &[Vec<i32>],
    options: &llama_generate_options,
) -> Vec<(Vec<i32>, String)> {
    let flat: Vec<i32> = prompts.concat();
    let lens: Vec<usize> = prompts.iter().map(Vec::len).collect();
    let mut stream = null_mut();
    // SAFETY: pointers and lengths are those of values that outlive the call.
    let status = unsafe {
        llama_stream_open(
            model.raw(),
            flat.as_ptr(),
            lens.as_ptr(),
            lens.len(),
            options,
            &mut stream,
            null_mut(),
        )
    };
    assert_eq!(status, LLAMA_OK);
    let samples = options.num_return_sequences.max(1) as usize;
    let mut out = vec![(Vec::new(), String::new()); prompts.len() * samples];
    loop {
        // SAFETY: numbers and pointers of C: zeros are a value of each.
        let mut event: llama_event = unsafe { zeroed() };
        event.struct_size = size_of::<llama_event>() as u32;
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let status = unsafe { llama_stream_next(stream, &mut event, -1, null_mut()) };
        if status == LLAMA_DONE {
            break;
        }
        assert_eq!(status, LLAMA_OK);
        let (tokens, text) = &mut out[event.index as usize];
        if event.kind == LLAMA_EVENT_TOKEN {
            tokens.push(event.token);
        }
        // SAFETY: an event's text lives until the next one is asked for.
        let bytes = unsafe { slice(event.text.cast::<u8>(), event.text_len) };
        text.push_str(std::str::from_utf8(bytes).expect("no half code points"));
    }
    // SAFETY: of llama_stream_open, freed once.
    unsafe { llama_stream_free(stream) };
    out
}

/// Keeps C strings alive for options that borrow them.
pub struct StopStrings(Vec<CString>, Vec<*const std::ffi::c_char>);

impl StopStrings {
    pub fn new(strings: &[&str]) -> Self {
        let owned: Vec<CString> = strings.iter().map(|s| CString::new(*s).unwrap()).collect();
        let pointers = owned.iter().map(|s| s.as_ptr()).collect();
        StopStrings(owned, pointers)
    }

    pub fn set(&self, options: &mut llama_generate_options) {
        options.stop = self.1.as_ptr();
        options.n_stop = self.1.len();
    }
}

pub const NO_USER_DATA: *mut c_void = null_mut();
