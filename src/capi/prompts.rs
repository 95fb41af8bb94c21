//! Prompts of the caller's, as tokens, texts and dialogs, to [`Prompt`]s.
#![allow(unsafe_code)]

use super::args;
use super::failure::{Failure, Outcome};
use super::object::Handle;
use super::types::*;
use crate::chat::{Format, Role, Turn};
use crate::engine::Prompt;
use crate::engine::request::MAX_SEQUENCES;
use crate::{Cancel, Error, reserve};
use std::ffi::c_char;

/// Checks the number of prompts before an array of that length is read.
pub(super) fn check_batch(n: usize) -> Outcome<()> {
    match n {
        1..=MAX_SEQUENCES => Ok(()),
        _ => Err(Error::Batch {
            n,
            max: MAX_SEQUENCES,
        }
        .into()),
    }
}

/// Makes prompts of tokens that lie end to end. Every length is checked before any token is read.
///
/// # Safety
/// `lens` has `n` elements, and `tokens` has as many elements as these add up to.
pub(super) unsafe fn token_prompts(
    handle: &Handle,
    tokens: *const i32,
    lens: *const usize,
    n: usize,
) -> Outcome<Vec<Prompt>> {
    check_batch(n)?;
    // SAFETY: by this function's contract.
    let lens = unsafe { args::slice("lens", lens, n) }?;
    let max = handle.llama.request_limits().max_seq_len;
    let mut total = 0usize;
    for (index, &len) in lens.iter().enumerate() {
        if len == 0 {
            return Err(Failure::invalid(format!(
                "lens[{index}] is 0, must be at least 1"
            )));
        }
        if len > max {
            return Err(Error::TooLong { index, len, max }.into());
        }
        total = total.saturating_add(len);
    }
    // SAFETY: by this function's contract.
    let mut rest = unsafe { args::slice("tokens", tokens, total) }?;
    let mut prompts = reserve::room("the prompts", n)?;
    for &len in lens {
        let (prompt, after) = rest.split_at(len);
        prompts.push(Prompt::Tokens(reserve::copy("a prompt", prompt)?));
        rest = after;
    }
    Ok(prompts)
}

/// Makes prompts of texts.
///
/// # Safety
/// `prompts` has `n` elements that are as the header demands, and so has `lens` unless it is NULL.
pub(super) unsafe fn text_prompts(
    handle: &Handle,
    prompts: *const *const c_char,
    lens: *const usize,
    n: usize,
    cancel: Option<&Cancel>,
) -> Outcome<Vec<Prompt>> {
    check_batch(n)?;
    // SAFETY: by this function's contract.
    let prompts = unsafe { args::slice("prompts", prompts, n) }?;
    // SAFETY: as above.
    let lens = if lens.is_null() {
        None
    } else {
        Some(unsafe { args::slice("lens", lens, n) }?)
    };
    let mut texts = reserve::room("the prompts", n)?;
    for (i, &text) in prompts.iter().enumerate() {
        let len = lens.map_or(usize::MAX, |lens| lens[i]);
        // SAFETY: as above.
        texts.push(unsafe { args::text(format_args!("prompts[{i}]"), text, len) }?);
    }
    Ok(handle.llama.text_prompts(&texts, cancel)?)
}

/// Makes prompts of dialogs.
///
/// # Safety
/// `dialog_lens` has `n` elements. `msgs` has as many elements as these add up to, and they are as
/// the header demands.
pub(super) unsafe fn dialog_prompts(
    handle: &Handle,
    msgs: *const llama_message,
    dialog_lens: *const usize,
    n: usize,
    cancel: Option<&Cancel>,
) -> Outcome<Vec<Prompt>> {
    check_batch(n)?;
    // SAFETY: by this function's contract.
    let lens = unsafe { args::slice("dialog_lens", dialog_lens, n) }?;
    let max = handle.llama.request_limits().max_seq_len;
    let mut total = 0usize;
    for (i, &len) in lens.iter().enumerate() {
        // A message takes more than one token, so a greater length is certainly wrong and need not
        // be read.
        if len > max {
            return Err(Failure::new(
                LLAMA_E_TOO_LONG,
                format!("dialog {i} has {len} messages, max_seq_len is {max} tokens"),
            ));
        }
        total = total.saturating_add(len);
    }
    // SAFETY: by this function's contract.
    let messages = unsafe { read_messages(handle, msgs, total) }?;
    let mut rest = &messages[..];
    let mut dialogs = reserve::room("the dialogs", n)?;
    for &len in lens {
        let (dialog, after) = rest.split_at(len);
        dialogs.push(dialog);
        rest = after;
    }
    Ok(handle.llama.chat_prompts(&dialogs, cancel)?)
}

/// Reads a caller's messages.
///
/// # Safety
/// `msgs` has `n` elements that are as the header demands and stay unchanged for `'a`.
pub(super) unsafe fn read_messages<'a>(
    handle: &Handle,
    msgs: *const llama_message,
    n: usize,
) -> Outcome<Vec<Turn<'a>>> {
    // SAFETY: by this function's contract.
    let given = unsafe { args::slice("msgs", msgs, n) }?;
    let mut messages = Vec::new();
    reserve::vec("the messages", &mut messages, n)?;
    for (i, m) in given.iter().enumerate() {
        // SAFETY: as above.
        let role = unsafe { args::text(format_args!("msgs[{i}].role"), m.role, m.role_len) }?;
        // The template itself decides which roles it takes.
        if handle.llama.chat().format() == Format::Llama2 && Role::named(role).is_none() {
            let shown: String = role.chars().take(40).collect();
            let [a, b, c] = Role::ALL.map(Role::name);
            return Err(Failure::invalid(format!(
                "msgs[{i}].role is {shown:?}, must be {a:?}, {b:?} or {c:?}"
            )));
        }
        let name = format_args!("msgs[{i}].content");
        // SAFETY: as above.
        let content = unsafe { args::text(name, m.content, m.content_len) }?;
        messages.push(Turn { role, content });
    }
    Ok(messages)
}
