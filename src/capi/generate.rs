//! `llama_generate`, `llama_text_completion`, `llama_chat_completion`.
#![allow(unsafe_code)]

use super::callback::{Callbacks, InCallback};
use super::failure::{Failure, Outcome};
use super::guard::Scope;
use super::object::Handle;
use super::result::{ResultData, alternatives};
use super::types::*;
use super::{args, table};
use super::{
    options::{engine_options, read_options, samples},
    prompts::{dialog_prompts, text_prompts, token_prompts},
};
use crate::engine::{Deciders, Event, Finish, GenerateOptions, Prompt, Question};
use crate::llama::Completion;
use crate::process::Process;
use crate::{Cancel, Token, reserve};
use std::ffi::c_char;
use std::ptr;

/// Converts an event to C's struct. `text` is the event's text, followed by a NUL ([`set_text`]).
pub(super) fn view(event: &Event, text: &[u8]) -> llama_event {
    let mut ev = llama_event {
        struct_size: size_of::<llama_event>() as u32,
        kind: LLAMA_EVENT_TOKEN,
        index: 0,
        token: -1,
        logprob: 0.0,
        finish_reason: 0,
        text: text.as_ptr().cast(),
        text_len: text.len() - 1,
        top: ptr::null(),
        n_top: 0,
        beam: 0,
        parent: 0,
        sum_logprob: 0.0,
        score: 0.0,
        draft: LLAMA_DRAFT_NONE,
        step: 0,
    };
    match event {
        Event::Token(e) => {
            ev.index = e.index;
            ev.token = e.token;
            ev.logprob = e.logprob;
            ev.top = alternatives(&e.top);
            ev.n_top = e.top.len();
            ev.draft = e.draft as i32;
        }
        Event::Finish(e) => {
            ev.kind = LLAMA_EVENT_FINISH;
            ev.index = e.index;
            ev.finish_reason = e.reason as i32;
            (ev.sum_logprob, ev.score) = (e.sum_logprob, e.score);
        }
        Event::Beam(e) => {
            ev.kind = LLAMA_EVENT_BEAM;
            (ev.index, ev.token) = (e.index, e.token);
            (ev.beam, ev.parent, ev.step) = (e.beam, e.parent, e.step);
            (ev.sum_logprob, ev.score) = (e.sum_logprob, e.score);
            ev.finish_reason = e.reason.map_or(0, |reason| reason as i32);
        }
    }
    ev
}

/// Makes `bytes` the text of an event, followed by a NUL.
pub(super) fn set_text(bytes: &mut Vec<u8>, event: &Event) -> crate::Result<()> {
    let text = match event {
        Event::Token(e) => &e.text[..],
        Event::Finish(e) => &e.text[..],
        Event::Beam(_) => "",
    };
    bytes.clear();
    reserve::vec("the text of an event", bytes, text.len() + 1)?;
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    Ok(())
}

/// The common part of the functions that run a call to its end.
///
/// # Safety
/// The pointers are as the header demands.
pub(super) unsafe fn run(
    function: &str,
    scope: &mut Scope,
    l: *mut llama_t,
    o: *const llama_generate_options,
    n: usize,
    out: *mut *mut llama_result_t,
    prompts: impl FnOnce(&Handle, Option<&Cancel>) -> Outcome<Vec<Prompt>>,
) -> Outcome<llama_status> {
    InCallback::refuse(function)?;
    let handle = scope.handle(l)?;
    // SAFETY: by this function's contract.
    let given = unsafe { read_options(o) }?;
    if out.is_null() && given.on_event.is_none() {
        return Err(Failure::invalid(
            "out and on_event are both NULL, the outcome would be lost",
        ));
    }
    // SAFETY: by this function's contract.
    let out = if out.is_null() {
        None
    } else {
        Some(unsafe { args::out("out", out) }?)
    };
    // SAFETY: by this function's contract.
    let options = unsafe { engine_options(&given) }?;
    let options = GenerateOptions {
        streaming: given.on_event.is_some(),
        ..options
    };
    // A call that is cancelled while its texts are encoded has one end for each sequence.
    let limits = handle.llama.request_limits();
    limits.check_sequences(n, samples(&given))?;
    let (mut text, mut failure) = (Vec::new(), None);
    let process = Process::current();
    let mut on_event = |event: &Event| {
        handle.deliver_log();
        // The callback that takes log lines may have forked, too.
        if !process.is_current() {
            return false;
        }
        let Some(function) = given.on_event else {
            return true;
        };
        if let Err(error) = set_text(&mut text, event) {
            failure = Some(error);
            return false;
        }
        let ev = view(event, &text);
        let _inside = InCallback::enter();
        // SAFETY: this calls the host's function with the host's data, and `ev` lives until it
        // returns.
        unsafe { function(given.user_data, &ev) != 0 }
    };
    let callbacks = Callbacks::new(&given);
    let mut on_stop = |index, tokens: &[Token], n_prompt| callbacks.stops(index, tokens, n_prompt);
    let mut on_logits = |question: &mut Question| callbacks.changes(question);
    let deciders = Deciders {
        on_stop: callbacks.on_stop.is_some().then_some(&mut on_stop),
        on_logits: callbacks.on_logits.is_some().then_some(&mut on_logits),
    };
    let completion = match prompts(handle, options.cancel.as_ref()) {
        Ok(prompts) => {
            let llama = &handle.llama;
            llama.generate_deciding(prompts, options, deciders, &mut on_event)?
        }
        // The call was cancelled while a text was encoded. Like a call that waits, it has ends and
        // no tokens.
        Err(failure) if failure.status == LLAMA_CANCELLED => {
            let n = n * samples(&given);
            let completion = Completion::cancelled(n)?;
            let ends = (0..n as u32).map(Finish::cancelled).map(Event::Finish);
            let _stopped = ends.into_iter().all(|end| on_event(&end));
            completion
        }
        Err(failure) => return Err(failure),
    };
    scope.check_process()?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    let status = if completion.cancelled {
        LLAMA_CANCELLED
    } else {
        LLAMA_OK
    };
    if let Some(out) = out {
        let id = table::insert(ResultData::new(completion)?)?;
        out.set(ptr::without_provenance_mut(id));
    }
    Ok(status)
}

// Section: Generating

/// Continue `n` prompts of tokens and wait for the end.
///
/// `tokens` has all prompts end to end, and `lens[i]` is the length of prompt `i`, at least 1. `o`
/// may be NULL, which means defaults. `*out` is the result; free it with `llama_result_free`. `out`
/// may be NULL if `o->on_event` is given. Everything that is given is borrowed for the call. Any
/// number of threads may call this at a time: calls on one handle share batches and do not change
/// each other's results. Callbacks run on the calling thread. Do not call this from inside a
/// callback.
///
/// More prompts than max_batch_size run in order as slots become free, and each gives what it would
/// give if all ran at once. Calls begin in the order in which they came. Each begins up to
/// max_batch_size prompts before it is the next call's turn, so that no call keeps the others out.
///
/// Returns `LLAMA_CANCELLED`, with what was generated so far in `*out`, if `o->cancel`,
/// `o->on_event`, `o->on_logits` or `llama_free` stopped it. Fails with `LLAMA_E_INVALID_ARGUMENT`,
/// `_ABI`, `_BATCH` (see there), `_TOO_LONG` (a prompt is longer than max_seq_len), `_UTF8` (a stop
/// string), `_BUSY` (with `LLAMA_GEN_NO_WAIT`, or if as many calls wait as `max_waiting` allows),
/// `_NO_MEMORY`, `_DEVICE`, `_POISONED`, `_INTERNAL`. `*out` is not written then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_generate(
    l: *mut llama_t,
    tokens: *const i32,
    lens: *const usize,
    n: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_result_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            run("llama_generate", scope, l, o, n, out, |handle, _| {
                token_prompts(handle, tokens, lens, n)
            })
        }
    })
}

/// Continue `n` texts. The prompts are BOS and the text's tokens. Everything else is as in
/// `llama_generate`.
///
/// `prompts[i]` is UTF-8 of `lens[i]` bytes. A text is NUL-terminated if `lens` is NULL or its
/// length is SIZE_MAX. Fails with `LLAMA_E_UTF8` as well, and the message names prompt and byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_text_completion(
    l: *mut llama_t,
    prompts: *const *const c_char,
    lens: *const usize,
    n: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_result_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            run(
                "llama_text_completion",
                scope,
                l,
                o,
                n,
                out,
                |handle, cancel| text_prompts(handle, prompts, lens, n, cancel),
            )
        }
    })
}

// Section: Chat

/// Answer `n_dialogs` dialogs. The prompts are made by the model's chat template if it has one (see
/// `llama_chat`, which takes tools too), otherwise in Meta's format for its tokenizer. Everything
/// else is as in `llama_generate`.
///
/// `msgs` are the messages of all dialogs end to end, and dialog `i` has `dialog_lens[i]` of them.
/// A template decides which roles there may be, and in which order. In the Llama 2 format there may
/// be a system message, then user and assistant alternate, and the last message is the user's;
/// anything else is `LLAMA_E_INVALID_ARGUMENT`. A dialog with one of this format's own tags in a
/// message is not given to the model: its text is a sentence that says so, and its finish reason is
/// `LLAMA_FINISH_UNSAFE`. Fails with `LLAMA_E_UTF8` as well, and the message names message and
/// byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_chat_completion(
    l: *mut llama_t,
    msgs: *const llama_message,
    dialog_lens: *const usize,
    n_dialogs: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_result_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            run(
                "llama_chat_completion",
                scope,
                l,
                o,
                n_dialogs,
                out,
                |handle, cancel| dialog_prompts(handle, msgs, dialog_lens, n_dialogs, cancel),
            )
        }
    })
}
