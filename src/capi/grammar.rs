//! `llama_grammar_*`: languages to which generated text is restricted.
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

/// Returns the grammar that options name. NULL means that there is no grammar.
pub(super) fn grammar(g: *const llama_grammar_t) -> Outcome<Option<Arc<Grammar>>> {
    match g.is_null() {
        true => Ok(None),
        false => table::get::<Grammar>("grammar", g.addr()).map(Some),
    }
}

// Section: Grammars

/// Compile a grammar for a handle's tokenizer.
///
/// `kind` is a `LLAMA_GRAMMAR_*`. `source` is UTF-8 of `len` bytes, at most 1 MiB, or
/// NUL-terminated if `len` is SIZE_MAX; it is NULL for `LLAMA_GRAMMAR_JSON`. A schema has at most
/// 16,384 objects and arrays, and a Lark grammar 4,096 opening brackets and colons. `*out` is
/// the grammar. It never changes, and any number of calls on this handle may use it at a time. Free
/// it with `llama_grammar_free`; this may be done while calls run, because they keep what they were
/// given. A grammar may outlive its handle, and then no handle accepts it.
///
/// The first grammar of a handle takes up to a second for a large vocabulary, later ones take
/// milliseconds; those with thousands of properties or literals take seconds. A thread of the
/// library with a stack of its own does the work. Any thread may call this, also from inside a
/// callback.
///
/// All grammars of a handle and all texts that follow them have 1 GiB together, by the parser's
/// estimates. Beyond that a grammar, or a call with a text, that has more than 16 MiB of its own
/// fails with `LLAMA_E_NO_MEMORY`.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, and with the parser's sentence, if the parser refuses the
/// source or if the source is too complex. Fails with `_UTF8`, `_NO_MEMORY`, `_UNSUPPORTED`, too.
/// `*out` is not written then.
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
        // SAFETY: by contract the pointer is NULL or writable.
        let out = unsafe { args::out("out", out) }?;
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
                // SAFETY: by contract there are `len` readable bytes, or the text is
                // NUL-terminated.
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

/// Free a grammar. NULL, a stale pointer and a pointer of another library are ignored. Calls and
/// streams that were given the grammar keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_grammar_free(g: *mut llama_grammar_t) {
    guard!(else (), { drop(table::remove::<Grammar>(g.addr())) })
}

/// Say which tokens may follow `n` generated tokens: bit `t % 32` of `mask[t / 32]` is set if token
/// `t` may follow. A token that ends a sequence may follow if the text is of the language.
///
/// `mask` has room for `words` words, and `*needed` is the number of words: one for every 32 ids of
/// the model's vocabulary. If they do not fit, this returns `LLAMA_E_INVALID_ARGUMENT`, sets
/// `*needed`, and leaves `mask` untouched. A NULL `mask` with 0 `words` asks for the number and
/// succeeds. A token that the grammar does not allow in its place is `LLAMA_E_INVALID_ARGUMENT`,
/// too, and so is a text that is too complex for the parser. Any thread may call this, also from
/// inside a callback.
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
        // SAFETY: by contract both are NULL or writable, and `mask` has room for `words` words.
        let out = unsafe { args::buffer("mask", mask, words, "needed", needed) }?;
        // SAFETY: by contract `tokens` has `n` elements.
        let tokens = unsafe { args::slice("tokens", tokens, n) }?;
        let mut found = reserve::filled("a grammar's mask", grammar.mask_words(), 0)?;
        grammar.mask(tokens, &mut found)?;
        out.fill(&found, None)?;
        Ok(LLAMA_OK)
    })
}
