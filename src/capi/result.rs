//! `llama_result_*`: what a call has generated.
#![allow(unsafe_code)]

use super::args::{self, with_nul};
use super::failure::{Failure, Outcome};
use super::layout;
use super::table::{self, Kind};
use super::types::*;
use crate::engine::{Alternative, RequestStats};
use crate::llama::{Completion, Sequence};
use crate::reserve;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

/// The object behind `llama_result_t`. It never changes, so its pointers are good while it lives.
pub(super) struct ResultData {
    sequences: Vec<Sequence>,
    /// Each sequence's text, followed by a NUL.
    texts: Vec<Vec<u8>>,
}

impl Kind for ResultData {
    const NAME: &'static str = "llama_result_t";
}

impl ResultData {
    pub fn new(completion: Completion) -> Outcome<Self> {
        let mut sequences = completion.sequences;
        let mut texts = reserve::room("the texts of a result", sequences.len())?;
        for s in &mut sequences {
            reserve::string("the texts of a result", &mut s.text, 1)?;
            texts.push(with_nul(std::mem::take(&mut s.text)));
        }
        Ok(ResultData { sequences, texts })
    }

    fn sequence(&self, i: usize) -> Outcome<&Sequence> {
        self.sequences.get(i).ok_or_else(|| {
            Failure::invalid(format!(
                "i is {i}, the result has {} sequences",
                self.sequences.len()
            ))
        })
    }
}

/// Returns NULL for an empty slice, because the pointer of an empty Vec means nothing to C.
pub(super) fn pointer<T>(values: &[T]) -> *const T {
    if values.is_empty() {
        ptr::null()
    } else {
        values.as_ptr()
    }
}

/// C reads the engine's own array.
pub(super) fn alternatives(values: &[Alternative]) -> *const llama_alternative {
    const {
        assert!(size_of::<Alternative>() == size_of::<llama_alternative>());
        assert!(align_of::<Alternative>() == align_of::<llama_alternative>());
        assert!(std::mem::offset_of!(Alternative, token) == 0);
        assert!(std::mem::offset_of!(llama_alternative, token) == 0);
    }
    pointer(values).cast()
}

fn get(r: *const llama_result_t) -> Outcome<Arc<ResultData>> {
    table::get("r", r.addr())
}

// Section: Results

/// Number of sequences of the result, which are in the order of the prompts. 0 if `r` is not a live
/// result.
///
/// Any number of threads may call `llama_result_*` functions at a time. The pointers that these
/// give belong to the result and are valid until `llama_result_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_count(r: *const llama_result_t) -> usize {
    guard!(else 0, { get(r).map_or(0, |r| r.sequences.len()) })
}

/// Get the tokens of sequence `i`: those of the prompt if it is echoed, then the generated tokens
/// without the EOS. `*p` is NULL if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_tokens(
    r: *const llama_result_t,
    i: usize,
    p: *mut *const i32,
    n: *mut usize,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract both are NULL or writable.
        let (p, n) = unsafe { (args::out("p", p)?, args::out("n", n)?) };
        let result = get(r)?;
        let tokens = &result.sequence(i)?.tokens;
        p.set(pointer(tokens));
        n.set(tokens.len());
        Ok(LLAMA_OK)
    })
}

/// Get the log probabilities of sequence `i`, one for each token, if `LLAMA_GEN_LOGPROBS` was
/// given; otherwise there are none. `llama_alternative` says which values they can have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_logprobs(
    r: *const llama_result_t,
    i: usize,
    p: *mut *const f32,
    n: *mut usize,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract both are NULL or writable.
        let (p, n) = unsafe { (args::out("p", p)?, args::out("n", n)?) };
        let result = get(r)?;
        let logprobs = &result.sequence(i)?.logprobs;
        p.set(pointer(logprobs));
        n.set(logprobs.len());
        Ok(LLAMA_OK)
    })
}

/// Get the text of sequence `i`: valid UTF-8, `*n` bytes and a NUL, never NULL. It equals the texts
/// of the sequence's events put together, and it is cut before a stop string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_text(
    r: *const llama_result_t,
    i: usize,
    p: *mut *const c_char,
    n: *mut usize,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract both are NULL or writable.
        let (p, n) = unsafe { (args::out("p", p)?, args::out("n", n)?) };
        let result = get(r)?;
        result.sequence(i)?;
        let text = &result.texts[i];
        p.set(text.as_ptr().cast());
        n.set(text.len() - 1);
        Ok(LLAMA_OK)
    })
}

/// Get the most likely tokens at token `position` of sequence `i`, best first, if `top_logprobs`
/// was not 0; otherwise there are none. The first token of an echoed prompt has none either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_top_logprobs(
    r: *const llama_result_t,
    i: usize,
    position: usize,
    p: *mut *const llama_alternative,
    n: *mut usize,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract both are NULL or writable.
        let (p, n) = unsafe { (args::out("p", p)?, args::out("n", n)?) };
        let result = get(r)?;
        let sequence = result.sequence(i)?;
        if position >= sequence.tokens.len() {
            return Err(Failure::invalid(format!(
                "position is {position}, sequence {i} has {} tokens",
                sequence.tokens.len()
            )));
        }
        let top = sequence.top.get(position).map_or(&[][..], |top| top);
        p.set(alternatives(top));
        n.set(top.len());
        Ok(LLAMA_OK)
    })
}

/// Say why sequence `i` ended, as `LLAMA_FINISH_*`. 0 if there is no such sequence or result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_finish_reason(r: *const llama_result_t, i: usize) -> i32 {
    guard!(else 0, {
        get(r).and_then(|r| Ok(r.sequence(i)?.finish as i32)).unwrap_or(0)
    })
}

/// Get the score of sequence `i`.
///
/// After a beam search, `*sum_logprob` is its sum of log probabilities, after penalties and biases
/// and with the token that ended it; `*score` is this sum divided by the length to the power of
/// `length_penalty`. Results are ranked by the score. Both are minus infinity for a result that the
/// search did not have.
///
/// Without beams, both are the sum of the log probabilities of the generated tokens, with the token
/// that ended the sequence, if `LLAMA_GEN_LOGPROBS` was given; otherwise they are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_score(
    r: *const llama_result_t,
    i: usize,
    sum_logprob: *mut f32,
    score: *mut f32,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract both are NULL or writable.
        let (sum, out) = unsafe {
            (
                args::out("sum_logprob", sum_logprob)?,
                args::out("score", score)?,
            )
        };
        let result = get(r)?;
        let sequence = result.sequence(i)?;
        sum.set(sequence.sum_logprob);
        out.set(sequence.score);
        Ok(LLAMA_OK)
    })
}

/// Converts a sequence's figures to C's struct.
pub(super) fn stats_view(stats: &RequestStats) -> llama_request_stats {
    llama_request_stats {
        struct_size: size_of::<llama_request_stats>() as u32,
        prompt_tokens: stats.prompt_tokens,
        cached_tokens: stats.cached_tokens,
        generated_tokens: stats.generated_tokens,
        queue_ms: stats.queue_ms,
        first_token_ms: stats.first_token_ms,
        total_ms: stats.total_ms,
        drafted_tokens: stats.drafted_tokens,
        accepted_tokens: stats.accepted_tokens,
    }
}

/// Get the figures of sequence `i`. Set `s->struct_size` first; no more than that is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_stats(
    r: *const llama_result_t,
    i: usize,
    s: *mut llama_request_stats,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        // SAFETY: by contract `s` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("s", s) }?;
        let result = get(r)?;
        out.write(&stats_view(&result.sequence(i)?.stats));
        Ok(LLAMA_OK)
    })
}

/// Free a result and everything that points into it. NULL, a stale pointer and a pointer of another
/// library are ignored. A result may outlive the handle from which it came.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_result_free(r: *mut llama_result_t) {
    guard!(else (), { drop(table::remove::<ResultData>(r.addr())) })
}
