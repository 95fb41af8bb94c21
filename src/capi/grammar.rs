//! `llama_grammar_*`: languages that generated text is kept in.
#![allow(unsafe_code)]

use super::args;
use super::failure::{Failure, Outcome};
use super::table::{self, Kind};
use super::types::*;
use crate::grammar::{Grammar, MAX_SOURCE, Source};
use crate::reserve;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

impl Kind for Grammar {
    const NAME: &'static str = "llama_grammar_t";
}

/// The grammar that options name; NULL is none.
pub(super) fn grammar(g: *const llama_grammar_t) -> Outcome<Option<Arc<Grammar>>> {
    match g.is_null() {
        true => Ok(None),
        false => table::get::<Grammar>("grammar", g.addr()).map(Some),
    }
}

// Section: Grammars

/// Compile a grammar for a handle's tokenizer.
///
/// `kind` is a `LLAMA_GRAMMAR_*`; `source` is UTF-8 of `len` bytes, at most 1 MiB; SIZE_MAX:
/// NUL-terminated. NULL for `LLAMA_GRAMMAR_JSON`. `*out` is the grammar, immutable, for any number
/// of calls on this handle at a time; free it with `llama_grammar_free`. A grammar may outlive its
/// handle, and then fits none. Calls keep what they were given: it may be freed while they run.
///
/// The first grammar of a handle takes up to a second for a large vocabulary, later ones
/// milliseconds. The work is done on a thread of the library's with a stack of its own. Any thread,
/// also from inside a callback.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, with the parser's sentence where it refuses the source or
/// where that is too complex; `_UTF8`, `_NO_MEMORY`, `_UNSUPPORTED`; `*out` is not written then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_grammar_new(
    l: *const llama_t,
    kind: i32,
    source: *const c_char,
    len: usize,
    out: *mut *mut llama_grammar_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: the contract is that it is NULL or writable.
        let out = unsafe { args::place("out", out) }?;
        let source = match kind {
            LLAMA_GRAMMAR_JSON if source.is_null() => Source::Json,
            LLAMA_GRAMMAR_JSON => {
                return Err(Failure::invalid(
                    "source is given, LLAMA_GRAMMAR_JSON has none: it must be NULL",
                ));
            }
            LLAMA_GRAMMAR_JSON_SCHEMA
            | LLAMA_GRAMMAR_REGEX
            | LLAMA_GRAMMAR_LARK
            | LLAMA_GRAMMAR_CHOICE => {
                if len != usize::MAX && len > MAX_SOURCE {
                    return Err(Failure::invalid(format!(
                        "len is {len}, must be at most {MAX_SOURCE}"
                    )));
                }
                // SAFETY: the contract is `len` readable bytes, or NUL-terminated.
                let text = unsafe { args::text("source", source, len) }?;
                match kind {
                    LLAMA_GRAMMAR_JSON_SCHEMA => Source::JsonSchema(text),
                    LLAMA_GRAMMAR_REGEX => Source::Regex(text),
                    LLAMA_GRAMMAR_LARK => Source::Lark(text),
                    _ => Source::Choice(text),
                }
            }
            kind => {
                return Err(Failure::invalid(format!(
                    "kind is {kind}, must be one of LLAMA_GRAMMAR_*"
                )));
            }
        };
        let grammar = handle.llama.grammar(source)?;
        out.set(ptr::without_provenance_mut(table::insert(grammar)?));
        Ok(LLAMA_OK)
    })
}

/// Free a grammar. NULL, a stale pointer or one of another library's does nothing. Calls and streams
/// that were given it go on with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_grammar_free(g: *mut llama_grammar_t) {
    guard!(else (), { drop(table::remove::<Grammar>(g.addr())) })
}

/// Which tokens may follow `n` generated tokens: bit `t % 32` of `mask[t / 32]` for id `t`. A token
/// that ends a sequence may follow where the text is of the language.
///
/// `mask` has room for `words` words, `*needed` is how many there are: one for every 32 ids of the
/// model's vocabulary. Where they do not fit, `LLAMA_E_INVALID_ARGUMENT` is returned with the number
/// needed in `*needed` and `mask` untouched; `mask` NULL with 0 `words` asks for it and succeeds.
/// A token that the grammar does not allow where it stands is `LLAMA_E_INVALID_ARGUMENT` too, and so
/// is a text that is too complex for the parser. Any thread, also from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_grammar_mask(
    g: *const llama_grammar_t,
    tokens: *const i32,
    n: usize,
    mask: *mut u32,
    words: usize,
    needed: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |_scope| {
        let grammar = table::get::<Grammar>("g", g.addr())?;
        // SAFETY: the contract is that they are NULL or writable, `mask` for `words` words.
        let out = unsafe { args::buffer("mask", mask, words, "needed", needed) }?;
        // SAFETY: the contract is that `tokens` has `n` elements.
        let tokens = unsafe { args::slice("tokens", tokens, n) }?;
        let mut found = reserve::filled("a grammar's mask", grammar.mask_words(), 0)?;
        grammar.mask(tokens, &mut found)?;
        out.fill(&found, None)?;
        Ok(LLAMA_OK)
    })
}
