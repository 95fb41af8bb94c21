//! `llama_compress`: prompts with fewer tokens.
#![allow(unsafe_code)]

use super::callback::InCallback;
use super::failure::{Failure, Outcome};
use super::result::ResultData;
use super::types::*;
use super::{args, cancel, layout, table};
use crate::engine::request::MAX_SEQUENCES;
use crate::llama::{CompressOptions, Segment, SegmentKind};
use crate::reserve;
use std::ptr;

const KNOWN_FLAGS: u32 = LLAMA_COMPRESS_KEEP_NEWLINES | LLAMA_COMPRESS_KEEP_DIGITS;

fn default_options() -> llama_compress_options {
    let defaults = CompressOptions::default();
    llama_compress_options {
        struct_size: size_of::<llama_compress_options>() as u32,
        flags: 0,
        target_tokens: 0,
        rate: defaults.rate,
        window: defaults.window as u32,
        coarse: defaults.coarse,
        cancel: ptr::null_mut(),
    }
}

/// Reads a caller's options. NULL means defaults.
///
/// # Safety
/// `o` is NULL or as the header demands.
unsafe fn options(o: *const llama_compress_options) -> Outcome<CompressOptions> {
    let mut given = default_options();
    if !o.is_null() {
        // SAFETY: by this function's contract.
        given = unsafe { layout::read("o", o, given) }?;
    }
    if given.flags & !KNOWN_FLAGS != 0 {
        return Err(Failure::invalid(format!(
            "flags is {:#x}, known LLAMA_COMPRESS_* bits are {KNOWN_FLAGS:#x}",
            given.flags
        )));
    }
    Ok(CompressOptions {
        target_tokens: given.target_tokens as usize,
        rate: given.rate,
        window: given.window as usize,
        coarse: given.coarse,
        keep_newlines: given.flags & LLAMA_COMPRESS_KEEP_NEWLINES != 0,
        keep_digits: given.flags & LLAMA_COMPRESS_KEEP_DIGITS != 0,
        cancel: cancel::flag(given.cancel)?,
    })
}

/// Reads a caller's segments.
///
/// # Safety
/// `segments` has `n` elements that are as the header demands and stay unchanged for `'a`.
unsafe fn read_segments<'a>(segments: *const llama_segment, n: usize) -> Outcome<Vec<Segment<'a>>> {
    // The number is checked before an array of that length is read.
    if !(1..=MAX_SEQUENCES).contains(&n) {
        return Err(Failure::new(
            LLAMA_E_BATCH,
            format!("n, the number of segments, is {n}, must be 1 to {MAX_SEQUENCES}"),
        ));
    }
    // SAFETY: by this function's contract.
    let given = unsafe { args::slice("segments", segments, n) }?;
    let mut read = reserve::room("the segments", n)?;
    for (i, s) in given.iter().enumerate() {
        if s.reserved0 != 0 {
            return Err(Failure::new(
                LLAMA_E_ABI,
                format!("segments[{i}].reserved0 is {}, must be 0", s.reserved0),
            ));
        }
        let kind = match s.kind {
            LLAMA_SEGMENT_KEEP => SegmentKind::Keep,
            LLAMA_SEGMENT_COMPRESS => SegmentKind::Compress,
            LLAMA_SEGMENT_QUESTION => SegmentKind::Question,
            kind => {
                return Err(Failure::invalid(format!(
                    "segments[{i}].kind is {kind}, must be one of LLAMA_SEGMENT_*"
                )));
            }
        };
        let name = format_args!("segments[{i}].text");
        // SAFETY: as above.
        let text = unsafe { args::text(name, s.text, s.len) }?;
        read.push(Segment { text, kind });
    }
    Ok(read)
}

// Section: Compression

/// Fill `o` with defaults. Pass `sizeof(llama_compress_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_compress_options_init(
    o: *mut llama_compress_options,
    struct_size: usize,
) {
    guard!(else (), {
        let defaults = llama_compress_options {
            struct_size: struct_size as u32,
            ..default_options()
        };
        // SAFETY: by contract `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// Shorten a prompt: of the segments of kind `LLAMA_SEGMENT_COMPRESS`, the tokens go that the model
/// expects most, as in LLMLingua (<https://arxiv.org/abs/2310.05736>).
///
/// All segments together then have exactly as many tokens as `o` asks for; or more if those that
/// stay have more, and then the others are empty; or fewer if there are no more. `o` may be NULL,
/// which means defaults. `*out` is a result with a sequence for each segment, in order; free it
/// with `llama_result_free`. Its tokens are what is left. Its text is the segment's own text if all
/// is left; otherwise it is the text of these tokens without a space at its beginning and without
/// characters of which only a part is left. Encoding the text again may give another number of
/// tokens. Its log probabilities are those by which the tokens stayed, or 0 where nothing was to be
/// decided. In `llama_result_stats`, `prompt_tokens` says how many tokens the segment had, and
/// `generated_tokens` how many are left.
///
/// If several segments are shortened that have more than `coarse` times the tokens that may be
/// left, a first pass ranks them: with segments of kind `LLAMA_SEGMENT_QUESTION` by the mean log
/// probability of these segments' tokens behind the one segment, otherwise by the negative mean log
/// probability of its own tokens. `llama_result_score` has this number, otherwise 0. The best go on
/// to the second pass. One is cut at its end, and the others become empty. So segments may be
/// passages that were retrieved, in any number.
///
/// The second pass goes through the segments in their order, `window` tokens at a time. A token is
/// judged by its probability after the segments and tokens that stay in front of it. If that is
/// longer than max_seq_len, the beginning is left out. The context is computed again for each
/// window, so a small window costs more.
///
/// Texts may be longer than max_seq_len. Scores are computed in batches with whatever runs and do
/// not depend on it. Everything that is given is borrowed for the call. Any number of threads may
/// call this at a time. Do not call this from inside a callback.
///
/// Returns `LLAMA_CANCELLED`, with empty sequences in `*out`, if `o->cancel` or `llama_free`
/// stopped it. Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, `_BATCH` (0 segments or more than
/// 65,536), `_UTF8`, `_BUSY` (if as many calls wait as `max_waiting` allows; or if this thread was
/// held up so often that scores ended as unread), `_UNSUPPORTED` (a tokenizer with neither BOS nor
/// EOS, or logits that are not finite), `_NO_MEMORY`, `_DEVICE`, `_POISONED`, `_INTERNAL`. `*out`
/// is not written then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_compress(
    l: *mut llama_t,
    segments: *const llama_segment,
    n: usize,
    o: *const llama_compress_options,
    out: *mut *mut llama_result_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        InCallback::refuse("llama_compress")?;
        let handle = scope.handle(l)?.clone();
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        let (options, out, segments) = unsafe {
            (
                options(o)?,
                args::out("out", out)?,
                read_segments(segments, n)?,
            )
        };
        let completion = handle.llama.compress(&segments, &options)?;
        scope.check_process()?;
        let status = match completion.cancelled {
            true => LLAMA_CANCELLED,
            false => LLAMA_OK,
        };
        let id = table::insert(ResultData::new(completion)?)?;
        out.set(ptr::without_provenance_mut(id));
        Ok(status)
    })
}
