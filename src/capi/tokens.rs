//! `llama_encode_text`, `llama_encode_text_bounded`, `llama_decode_tokens`, `llama_token_bytes`,
//! `llama_encode_dialog`.
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::object::Handle;
use super::prompts::read_messages;
use super::types::*;
use super::{args, cancel};
use crate::chat::{self, Encoding};
use crate::tokenizer::{Bound, Encoded, Run, Tokenizer};
use crate::{Cancel, Token, reserve};
use std::ffi::c_char;

const KNOWN_FLAGS: u32 = LLAMA_ENC_BOS | LLAMA_ENC_EOS | LLAMA_ENC_SPECIAL;

fn check_token(handle: &Handle, name: impl std::fmt::Display, token: i32) -> Outcome<()> {
    let vocab_size = handle.llama.info().config.shape.vocab_size;
    if usize::try_from(token).is_ok_and(|t| t < vocab_size) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "{name} is {token}, must be at least 0 and below {vocab_size}"
    )))
}

/// Returns the tokens of a text, with what `flags` adds around them.
fn encode(
    handle: &Handle,
    text: &str,
    flags: u32,
    max_tokens: usize,
    cancel: Option<&Cancel>,
) -> Outcome<Vec<Token>> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Failure::invalid(format!(
            "flags is {flags:#x}, known LLAMA_ENC_* bits are {KNOWN_FLAGS:#x}"
        )));
    }
    let tokenizer = handle.llama.tokenizer();
    let special = flags & LLAMA_ENC_SPECIAL != 0;
    let eos_id = handle.llama.info().eos_ids.first();
    let eos_id = eos_id.filter(|_| flags & LLAMA_ENC_EOS != 0);
    let n_behind = usize::from(eos_id.is_some());
    let mut tokens = reserve::room("the tokens of a text", 1)?;
    if flags & LLAMA_ENC_BOS != 0
        && let Some(bos_id) = bos_for(tokenizer, text, special)
    {
        tokens.push(bos_id);
    }
    let bound = Bound {
        max_tokens: Some(max_tokens.saturating_sub(n_behind)),
        cancel,
    };
    let encoded = match special {
        false => tokenizer.encode_onto(text, &mut tokens, bound)?,
        true => {
            let run = Run {
                len: text.len(),
                from_template: true,
            };
            tokenizer.encode_rendered_onto(text, &[run], true, &mut tokens, bound)?
        }
    };
    let least = match encoded {
        Encoded::Whole => tokens.len() + n_behind,
        Encoded::TooLong(least) => least + n_behind,
    };
    if least > max_tokens {
        return Err(Failure::new(
            LLAMA_E_TOO_LONG,
            format!("s has at least {least} tokens, max_tokens is {max_tokens}"),
        ));
    }
    if let Some(&eos_id) = eos_id {
        reserve::vec("the tokens of a text", &mut tokens, 1)?;
        tokens.push(eos_id);
    }
    Ok(tokens)
}

/// Returns the BOS to put in front of a text, if the tokenizer has one and the text does not begin
/// with it.
fn bos_for(tokenizer: &dyn Tokenizer, text: &str, special: bool) -> Option<Token> {
    let bos_id = Some(tokenizer.bos_id()).filter(|&id| id >= 0)?;
    let spelled = tokenizer.special_text(bos_id);
    let is_there = special && spelled.is_some_and(|spelled| text.starts_with(spelled));
    (!is_there).then_some(bos_id)
}

// Section: Tokens

/// Get the tokens of a text.
///
/// `s` is UTF-8 of `len` bytes, or NUL-terminated if `len` is SIZE_MAX. `flags` are `LLAMA_ENC_*`.
/// `buf` has room for `cap` tokens, and `*n` is the number of tokens. If they do not fit, this
/// returns `LLAMA_E_INVALID_ARGUMENT`, sets `*n` to the number needed, and leaves `buf` untouched.
/// A NULL `buf` with a `cap` of 0 asks for the number and succeeds.
///
/// Fails with `LLAMA_E_UTF8` too, and the message names the byte. Fails with
/// `LLAMA_E_INVALID_ARGUMENT` if more than 1 MiB of the text has no place at which a token must end
/// (with SentencePiece models: no space or line feed). `LLAMA_ENC_BOS` and `_EOS` add nothing if
/// the model has no such token. With `LLAMA_ENC_SPECIAL`, `LLAMA_ENC_BOS` adds nothing to a text
/// that begins with the spelling of BOS.
///
/// The time grows with the length of the text and no faster, unless the model's `tokenizer.json`
/// has an expression that reads far ahead of its matches, as none of the usual ones does. This call
/// cannot be cancelled (`llama_encode_text_bounded` can). Any thread may call it, also from inside
/// a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_encode_text(
    l: *const llama_t,
    s: *const c_char,
    len: usize,
    flags: u32,
    buf: *mut i32,
    cap: usize,
    n: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` tokens.
        let out = unsafe { args::buffer("buf", buf, cap, "n", n) }?;
        // SAFETY: by contract there are `len` readable bytes, or the text is NUL-terminated.
        let text = unsafe { args::text("s", s, len) }?;
        out.fill(&encode(handle, text, flags, usize::MAX, None)?, None)?;
        Ok(LLAMA_OK)
    })
}

/// Get the tokens of a text that anybody may have sent. This does what `llama_encode_text` does,
/// but may end early for two reasons.
///
/// It returns `LLAMA_E_TOO_LONG` as soon as it is certain that there are more than `max_tokens`
/// tokens, with those of `flags`; SIZE_MAX means no bound. It returns `LLAMA_CANCELLED` once
/// `cancel` is triggered, which it checks every few kilobytes; NULL means that there is no flag. In
/// both cases `*n` and `buf` stay untouched, and the call needs no more time and memory than the
/// text up to there does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_encode_text_bounded(
    l: *const llama_t,
    s: *const c_char,
    len: usize,
    flags: u32,
    max_tokens: usize,
    cancel: *const llama_cancel_t,
    buf: *mut i32,
    cap: usize,
    n: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` tokens.
        let out = unsafe { args::buffer("buf", buf, cap, "n", n) }?;
        let cancel = cancel::flag(cancel)?;
        // SAFETY: by contract there are `len` readable bytes, or the text is NUL-terminated.
        let text = unsafe { args::text("s", s, len) }?;
        out.fill(
            &encode(handle, text, flags, max_tokens, cancel.as_ref())?,
            None,
        )?;
        Ok(LLAMA_OK)
    })
}

/// Get the text of `n` tokens, as the tokenizer decodes a whole sequence. The text is valid UTF-8:
/// a byte that is not becomes U+FFFD. Control tokens become nothing.
///
/// `buf` has room for `cap` bytes, and `*len` is the length of the text. A NUL follows the text if
/// `cap` is larger. If `cap` is too small, this does as `llama_encode_text` does. Tokens must be
/// below the model's vocabulary size (`LLAMA_E_INVALID_ARGUMENT`). Any thread may call this, also
/// from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_decode_tokens(
    l: *const llama_t,
    t: *const i32,
    n: usize,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` bytes.
        let out = unsafe { args::buffer("buf", buf.cast::<u8>(), cap, "len", len) }?;
        // SAFETY: by contract `t` has `n` elements.
        let tokens = unsafe { args::slice("t", t, n) }?;
        for (i, &token) in tokens.iter().enumerate() {
            check_token(handle, format_args!("t[{i}]"), token)?;
        }
        out.fill(handle.llama.tokenizer().decode(tokens)?.as_bytes(), Some(0))?;
        Ok(LLAMA_OK)
    })
}

/// Get what `token` contributes in the middle of a text. That is its text, with spaces as spaces;
/// or its one byte if it stands for a byte, which need not be UTF-8 on its own; or nothing if it is
/// a control token.
///
/// `*p` is `*n` bytes and a NUL. They belong to the handle and are valid until `llama_free`. Fails
/// with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, also from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_token_bytes(
    l: *const llama_t,
    token: i32,
    p: *mut *const c_char,
    n: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable.
        let (p, n) = unsafe { (args::out("p", p)?, args::out("n", n)?) };
        check_token(handle, "token", token)?;
        let bytes = handle.llama.tokenizer().token_bytes_with_nul(token);
        p.set(bytes.as_ptr().cast());
        n.set(bytes.len() - 1);
        Ok(LLAMA_OK)
    })
}

/// Get the tokens of one dialog, as `llama_chat_completion` gives them to the model.
///
/// The messages are as there. In the Llama 2 format, a dialog with one of the format's own tags in
/// a message is `LLAMA_E_INVALID_ARGUMENT` here. `buf`, `cap`, `len` (in tokens) and the other
/// errors are as in `llama_encode_text`. Any thread may call this, also from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_encode_dialog(
    l: *const llama_t,
    msgs: *const llama_message,
    n: usize,
    buf: *mut i32,
    cap: usize,
    len: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` tokens.
        let out = unsafe { args::buffer("buf", buf, cap, "len", len) }?;
        // SAFETY: by contract `msgs` has `n` elements.
        let messages = unsafe { read_messages(handle, msgs, n) }?;
        let (chat, tokenizer) = (handle.llama.chat(), handle.llama.tokenizer());
        match chat.encode_turns(tokenizer, &messages, Bound::default())? {
            Encoding::Tokens(tokens) => out.fill(&tokens, None)?,
            Encoding::Unsafe => return Err(Failure::invalid(chat::UNSAFE_ERROR)),
            Encoding::TooLong { least, .. } => unreachable!("{least} tokens and no bound"),
        }
        Ok(LLAMA_OK)
    })
}
