//! `llama_generate`, `llama_text_completion`, `llama_chat_completion`.
#![allow(unsafe_code)]

use super::callback::{Callbacks, InCallback};
use super::failure::{Failure, Outcome};
use super::guard::Scope;
use super::object::Handle;
use super::result::{ResultData, alternatives};
use super::types::*;
use super::{args, cancel, grammar, layout, table};
use crate::chat::{Format, Role, Turn};
use crate::engine::request::{Bias, EarlyStopping, MAX_LIST, MAX_SEQUENCES, MAX_STOP_BYTES};
use crate::engine::{Deciders, Event, Finish, GenerateOptions, Prompt, Question, Speculation};
use crate::llama::Completion;
use crate::{Cancel, Error, Token, reserve};
use std::ffi::c_char;
use std::ptr;

/// The most stop strings of a call.
const MAX_STOP: usize = 1024;

const KNOWN_FLAGS: u32 = LLAMA_GEN_ECHO
    | LLAMA_GEN_LOGPROBS
    | LLAMA_GEN_NO_WAIT
    | LLAMA_GEN_IGNORE_EOS
    | LLAMA_GEN_BEAM_EVENTS
    | LLAMA_GEN_SPECIAL;

pub(super) fn default_options() -> llama_generate_options {
    let defaults = GenerateOptions::default();
    llama_generate_options {
        struct_size: size_of::<llama_generate_options>() as u32,
        flags: 0,
        max_gen_len: LLAMABI_MAX_GEN_LEN_DEFAULT,
        temperature: defaults.temperature,
        top_p: defaults.top_p,
        top_k: defaults.top_k,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty,
        seed: defaults.seed,
        stop: ptr::null(),
        n_stop: 0,
        cancel: ptr::null_mut(),
        on_event: None,
        user_data: ptr::null_mut(),
        top_logprobs: 0,
        reserved1: 0,
        cache_salt: defaults.cache_salt,
        num_return_sequences: 0,
        num_beams: 0,
        grammar: ptr::null(),
        min_gen_len: 0,
        no_repeat_ngram_size: 0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        typical_p: 0.0,
        epsilon_cutoff: 0.0,
        eta_cutoff: 0.0,
        max_time_ms: 0,
        logit_bias: ptr::null(),
        n_logit_bias: 0,
        stop_tokens: ptr::null(),
        n_stop_tokens: 0,
        bad_words: ptr::null(),
        bad_word_lens: ptr::null(),
        n_bad_words: 0,
        adapter: 0,
        reserved_adapter: 0,
        length_penalty: defaults.length_penalty,
        early_stopping: LLAMA_EARLY_FALSE,
        on_logits: None,
        on_stop: None,
        speculation: LLAMA_SPEC_OFF,
        draft_len: 0,
        predicted: ptr::null(),
        n_predicted: 0,
        force_words: ptr::null(),
        force_word_lens: ptr::null(),
        force_group_lens: ptr::null(),
        n_force_groups: 0,
    }
}

// Section: Generating

/// Fill `o` with defaults. Pass `sizeof(llama_generate_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_generate_options_init(
    o: *mut llama_generate_options,
    struct_size: usize,
) {
    guard!(else (), {
        let defaults =
            llama_generate_options { struct_size: struct_size as u32, ..default_options() };
        // SAFETY: by contract `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// Reads a caller's options. NULL means defaults.
///
/// # Safety
/// `o` is NULL or as the header demands.
pub(super) unsafe fn read_options(
    o: *const llama_generate_options,
) -> Outcome<llama_generate_options> {
    if o.is_null() {
        return Ok(default_options());
    }
    // SAFETY: by this function's contract.
    unsafe { layout::read("o", o, default_options()) }
}

/// Makes the engine's options of a caller's. The engine checks their ranges.
///
/// # Safety
/// The pointers in `o` are as the header demands.
pub(super) unsafe fn engine_options(o: &llama_generate_options) -> Outcome<GenerateOptions> {
    if o.flags & !KNOWN_FLAGS != 0 {
        return Err(Failure::invalid(format!(
            "flags is {:#x}, known LLAMA_GEN_* bits are {KNOWN_FLAGS:#x}",
            o.flags
        )));
    }
    if o.n_stop > MAX_STOP {
        return Err(Failure::invalid(format!(
            "n_stop is {}, must be at most {MAX_STOP}",
            o.n_stop
        )));
    }
    let mut stop = reserve::room("the stop strings", o.n_stop)?;
    // SAFETY: by this function's contract.
    for (i, &text) in unsafe { args::slice("stop", o.stop, o.n_stop) }?
        .iter()
        .enumerate()
    {
        // SAFETY: as above.
        let text = unsafe { args::text(format_args!("stop[{i}]"), text, usize::MAX) }?;
        if text.len() > MAX_STOP_BYTES {
            return Err(Failure::invalid(format!(
                "stop[{i}] is {} bytes long, must be at most {MAX_STOP_BYTES}",
                text.len()
            )));
        }
        let mut copy = String::new();
        reserve::string("a stop string", &mut copy, text.len())?;
        copy.push_str(text);
        stop.push(copy);
    }
    // SAFETY: by this function's contract.
    let biases = unsafe { list("logit_bias", o.logit_bias, o.n_logit_bias) }?;
    let mut logit_bias = reserve::room("logit_bias", biases.len())?;
    logit_bias.extend(biases.iter().map(|b| Bias {
        token: b.token,
        bias: b.bias,
    }));
    // SAFETY: as above.
    let stop_tokens = unsafe { list("stop_tokens", o.stop_tokens, o.n_stop_tokens) }?;
    // SAFETY: as above.
    let predicted = unsafe { list("predicted", o.predicted, o.n_predicted) }?;
    Ok(GenerateOptions {
        min_gen_len: o.min_gen_len as usize,
        no_repeat_ngram_size: o.no_repeat_ngram_size as usize,
        presence_penalty: o.presence_penalty,
        frequency_penalty: o.frequency_penalty,
        typical_p: o.typical_p,
        epsilon_cutoff: o.epsilon_cutoff,
        eta_cutoff: o.eta_cutoff,
        max_time_ms: o.max_time_ms,
        logit_bias,
        stop_tokens: reserve::copy("stop_tokens", stop_tokens)?,
        // SAFETY: as above.
        bad_words: unsafe { bad_words(o) }?,
        echo: o.flags & LLAMA_GEN_ECHO != 0,
        logprobs: o.flags & LLAMA_GEN_LOGPROBS != 0,
        no_wait: o.flags & LLAMA_GEN_NO_WAIT != 0,
        ignore_eos: o.flags & LLAMA_GEN_IGNORE_EOS != 0,
        special: o.flags & LLAMA_GEN_SPECIAL != 0,
        max_gen_len: (o.max_gen_len != LLAMABI_MAX_GEN_LEN_DEFAULT)
            .then_some(o.max_gen_len as usize),
        temperature: o.temperature,
        top_p: o.top_p,
        top_k: o.top_k,
        min_p: o.min_p,
        repetition_penalty: o.repetition_penalty,
        seed: o.seed,
        stop,
        top_logprobs: o.top_logprobs as usize,
        cache_salt: o.cache_salt,
        adapter: o.adapter,
        ask_logits: o.on_logits.is_some(),
        speculation: speculation(o.speculation)?,
        draft_len: o.draft_len as usize,
        predicted: reserve::copy("predicted", predicted)?,
        num_return_sequences: samples(o),
        num_beams: o.num_beams.max(1) as usize,
        length_penalty: o.length_penalty,
        early_stopping: early_stopping(o.early_stopping)?,
        beam_events: o.flags & LLAMA_GEN_BEAM_EVENTS != 0,
        // SAFETY: as above.
        force_words: unsafe { force_words(o) }?,
        grammar: grammar::grammar(o.grammar)?,
        cancel: cancel::flag(o.cancel)?,
    })
}

fn speculation(value: i32) -> Outcome<Speculation> {
    match value {
        LLAMA_SPEC_OFF => Ok(Speculation::Off),
        LLAMA_SPEC_AUTO => Ok(Speculation::Auto),
        LLAMA_SPEC_NGRAM => Ok(Speculation::NGram),
        _ => Err(Failure::invalid(format!(
            "speculation is {value}, must be LLAMA_SPEC_OFF ({LLAMA_SPEC_OFF}), AUTO \
             ({LLAMA_SPEC_AUTO}) or NGRAM ({LLAMA_SPEC_NGRAM})"
        ))),
    }
}

/// A list of the caller's, whose length is checked before it is looked at.
///
/// # Safety
/// `p` is NULL or points to `n` elements that stay unchanged for `'a`.
unsafe fn list<'a, T>(name: &str, p: *const T, n: usize) -> Outcome<&'a [T]> {
    if n > MAX_LIST {
        let sentence = format!("n_{name} is {n}, must be at most {MAX_LIST}");
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract.
    unsafe { args::slice(name, p, n) }
}

/// Returns the bad words, which lie end to end.
///
/// # Safety
/// As [`engine_options`].
unsafe fn bad_words(o: &llama_generate_options) -> Outcome<Vec<Vec<i32>>> {
    if o.n_bad_words > MAX_LIST {
        let sentence = format!(
            "n_bad_words is {}, must be at most {MAX_LIST}",
            o.n_bad_words
        );
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract.
    let (lens, total) = unsafe { lengths("bad_word_lens", o.bad_word_lens, o.n_bad_words) }?;
    // SAFETY: by this function's contract.
    let mut rest = unsafe { args::slice("bad_words", o.bad_words, total) }?;
    let mut words = reserve::room("bad_words", lens.len())?;
    for &len in lens {
        let (word, after) = rest.split_at(len);
        words.push(reserve::copy("a bad word", word)?);
        rest = after;
    }
    Ok(words)
}

/// Lengths of the caller's, which add up to what may be.
///
/// # Safety
/// `p` is NULL or points to `n` elements that stay unchanged for `'a`.
unsafe fn lengths<'a>(name: &str, p: *const usize, n: usize) -> Outcome<(&'a [usize], usize)> {
    // SAFETY: by this function's contract.
    let lens = unsafe { args::slice(name, p, n) }?;
    let total = lens.iter().copied().fold(0, usize::saturating_add);
    match total <= MAX_LIST {
        true => Ok((lens, total)),
        false => Err(Failure::invalid(format!(
            "{name} add up to {total}, must be at most {MAX_LIST}"
        ))),
    }
}

/// The groups of phrases, which lie end to end.
///
/// # Safety
/// As [`engine_options`].
unsafe fn force_words(o: &llama_generate_options) -> Outcome<Vec<Vec<Vec<i32>>>> {
    let n = o.n_force_groups;
    if n > MAX_LIST {
        let sentence = format!("n_force_groups is {n}, must be at most {MAX_LIST}");
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract, here and below.
    let (group_lens, n_words) = unsafe { lengths("force_group_lens", o.force_group_lens, n) }?;
    // SAFETY: as above.
    let words = unsafe { lengths("force_word_lens", o.force_word_lens, n_words) }?;
    let (mut lens, n_tokens) = words;
    // SAFETY: as above.
    let mut rest = unsafe { args::slice("force_words", o.force_words, n_tokens) }?;
    let mut groups = reserve::room("force_words", n)?;
    for &n_words in group_lens {
        let (own, after) = lens.split_at(n_words);
        lens = after;
        let mut group = reserve::room("force_words", n_words)?;
        for &len in own {
            let (word, after) = rest.split_at(len);
            group.push(reserve::copy("a phrase", word)?);
            rest = after;
        }
        groups.push(group);
    }
    Ok(groups)
}

fn early_stopping(given: i32) -> Outcome<EarlyStopping> {
    match given {
        LLAMA_EARLY_FALSE => Ok(EarlyStopping::False),
        LLAMA_EARLY_TRUE => Ok(EarlyStopping::True),
        LLAMA_EARLY_NEVER => Ok(EarlyStopping::Never),
        _ => Err(Failure::invalid(format!(
            "early_stopping is {given}, must be LLAMA_EARLY_FALSE (0), _TRUE (1) or _NEVER (2)"
        ))),
    }
}

/// Returns the number of sequences of each prompt.
pub(super) fn samples(o: &llama_generate_options) -> usize {
    o.num_return_sequences.max(1) as usize
}

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
    };
    match event {
        Event::Token(e) => {
            ev.index = e.index;
            ev.token = e.token;
            ev.logprob = e.logprob;
            ev.top = alternatives(&e.top);
            ev.n_top = e.top.len();
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
            (ev.beam, ev.parent) = (e.beam, e.parent);
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
        Some(unsafe { args::place("out", out) }?)
    };
    // SAFETY: by this function's contract.
    let options = unsafe { engine_options(&given) }?;
    // A call that is cancelled while its texts are encoded has one end for each sequence.
    let limits = handle.llama.request_limits();
    limits.check_sequences(n, samples(&given))?;
    let (mut text, mut failure) = (Vec::new(), None);
    let mut on_event = |event: &Event| {
        handle.deliver_log();
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
