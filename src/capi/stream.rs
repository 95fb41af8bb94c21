//! `llama_stream_*`: events that the caller pulls, waits for or polls.
#![allow(unsafe_code)]

use super::callback::{Callbacks, InCallback};
use super::failure::{Failure, Outcome};
use super::guard::Scope;
use super::object::Handle;
use super::types::*;
use super::{args, generate, layout, options, prompts, result, table};
use crate::engine::{Decider, Deciders, Event, Next, Prompt, Question, RequestStats, Stream};
use crate::{Cancel, Token, reserve};
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// The object behind `llama_stream_t`.
pub(super) struct StreamData {
    stream: Stream,
    /// The handle, which gets the stream's log lines and is poisoned by its panics. A stream
    /// outlives it.
    handle: Weak<Handle>,
    last: Mutex<Last>,
    callbacks: Callbacks,
    /// Reads the stream if the call has callbacks that decide.
    decider: Mutex<Decider>,
    /// The figures of the sequences whose end has been given to the caller.
    ends: Mutex<Vec<Option<RequestStats>>>,
    freed: AtomicBool,
}

impl table::Kind for StreamData {
    const NAME: &'static str = "llama_stream_t";
}

impl StreamData {
    fn next(&self, timeout: Option<Duration>) -> crate::Result<Next> {
        let Self {
            stream, callbacks, ..
        } = self;
        if !callbacks.any() {
            return stream.next(timeout);
        }
        // When the stream is gone, the host's data may be gone.
        let lives = || !self.freed.load(Ordering::Acquire);
        let mut on_stop =
            |index, tokens: &[Token], n_prompt| lives() && callbacks.stops(index, tokens, n_prompt);
        let mut on_logits = |question: &mut Question| lives() && callbacks.changes(question);
        let mut deciders = Deciders {
            on_stop: callbacks.on_stop.is_some().then_some(&mut on_stop),
            on_logits: callbacks.on_logits.is_some().then_some(&mut on_logits),
        };
        lock(&self.decider).next(stream, timeout, &mut deciders)
    }
}

/// The memory to which the pointers of the last event point.
#[derive(Default)]
struct Last {
    event: Option<Event>,
    text: Vec<u8>,
    /// An event that was not given yet, because there was no memory for its text.
    pending: bool,
}

/// The common part of the functions that open a stream.
///
/// # Safety
/// The pointers are as the header demands.
pub(super) unsafe fn open(
    function: &str,
    scope: &mut Scope,
    l: *mut llama_t,
    o: *const llama_generate_options,
    n: usize,
    out: *mut *mut llama_stream_t,
    prompts: impl FnOnce(&Handle, Option<&Cancel>) -> Outcome<Vec<Prompt>>,
) -> Outcome<llama_status> {
    InCallback::refuse(function)?;
    let handle = scope.handle(l)?;
    // SAFETY: by this function's contract.
    let given = unsafe { options::read_options(o) }?;
    if given.on_event.is_some() {
        return Err(Failure::invalid(
            "on_event is given, must be NULL: events are pulled with llama_stream_next",
        ));
    }
    // SAFETY: by this function's contract.
    let (out, options) = unsafe { (args::out("out", out)?, options::engine_options(&given)?) };
    let prompts = match prompts(handle, options.cancel.as_ref()) {
        // The call was cancelled while a text was encoded. A flag is never taken back, so the
        // stream ends before a step has any row of these prompts, which stand for what was not
        // encoded.
        Err(failure) if failure.status == LLAMA_CANCELLED => {
            let mut unread = reserve::room("the prompts", n)?;
            for _ in 0..n {
                unread.push(Prompt::Tokens(reserve::copy("a prompt", &[0])?));
            }
            unread
        }
        prompts => prompts?,
    };
    let callbacks = Callbacks::new(&given);
    let decider = Decider::new(&prompts, &options, callbacks.on_stop.is_some())?;
    let stream = handle.llama.stream(prompts, options)?;
    let n = n * options::samples(&given);
    let id = table::insert(StreamData {
        stream,
        handle: Arc::downgrade(handle),
        last: Mutex::default(),
        callbacks,
        decider: Mutex::new(decider),
        ends: Mutex::new(reserve::filled("the figures of a stream", n, None)?),
        freed: AtomicBool::new(false),
    })?;
    out.set(ptr::without_provenance_mut(id));
    Ok(LLAMA_OK)
}

// Section: Streams

/// Start a call whose events are pulled, instead of passed to a callback. Everything else is as in
/// `llama_generate`, with its arguments and errors. `o->on_event` must be NULL
/// (`LLAMA_E_INVALID_ARGUMENT`).
///
/// Keep reading a stream. While more than 1,024 events (or 4 MiB) are queued, its sequences pause.
/// If others wait, the paused sequences give up their slots for that time (`max_stall_ms`). A
/// stream that is not read at all ends with `LLAMA_FINISH_UNREAD` (`max_unread_ms`).
///
/// `*out` is the stream; free it with `llama_stream_free`. A stream may outlive the handle, and
/// then ends as cancelled. Any thread may call this, but not from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_open(
    l: *mut llama_t,
    tokens: *const i32,
    lens: *const usize,
    n: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_stream_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            open("llama_stream_open", scope, l, o, n, out, |handle, _| {
                prompts::token_prompts(handle, tokens, lens, n)
            })
        }
    })
}

/// Start a call on texts and pull its events. The prompts are as in `llama_text_completion`,
/// everything else is as in `llama_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_open_text(
    l: *mut llama_t,
    prompts: *const *const c_char,
    lens: *const usize,
    n: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_stream_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            open(
                "llama_stream_open_text",
                scope,
                l,
                o,
                n,
                out,
                |handle, cancel| prompts::text_prompts(handle, prompts, lens, n, cancel),
            )
        }
    })
}

/// Start a call on dialogs and pull its events. The dialogs are as in `llama_chat_completion`: one
/// with a special tag ends with `LLAMA_FINISH_UNSAFE`. Everything else is as in
/// `llama_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_open_chat(
    l: *mut llama_t,
    msgs: *const llama_message,
    dialog_lens: *const usize,
    n_dialogs: usize,
    o: *const llama_generate_options,
    out: *mut *mut llama_stream_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            open(
                "llama_stream_open_chat",
                scope,
                l,
                o,
                n_dialogs,
                out,
                |handle, cancel| {
                    prompts::dialog_prompts(handle, msgs, dialog_lens, n_dialogs, cancel)
                },
            )
        }
    })
}

/// Get the next event. Set `ev->struct_size` before the first call; no more than that is written.
///
/// A `timeout_ms` of -1 waits as long as it takes, 0 does not wait, and any greater number is how
/// long to wait. Returns `LLAMA_OK` with `*ev` written, or `LLAMA_TIMEOUT`. After all events it
/// returns `LLAMA_DONE` for ever; or `LLAMA_CANCELLED` for ever if the call was cancelled, after
/// the events that were generated before. An error of the engine (`_DEVICE`, `_POISONED`,
/// `_INTERNAL`, and `_NO_MEMORY` if it could not queue an event) ends the stream, and every later
/// call returns it again. `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, and `_NO_MEMORY` for the text of an
/// event take no event: the next call gives that event.
///
/// If the call has `on_logits` or `on_stop`, this function calls them. It answers a question about
/// logits and then continues to wait for an event, as long as `timeout_ms` says. So their
/// `user_data` must live until the stream is freed and no call of this function runs.
///
/// The pointers in `*ev` are valid until the next call on this stream, so use a stream from one
/// thread at a time. Another thread may call `llama_stream_free`; a call that waits then returns
/// `LLAMA_CANCELLED`. Do not call this from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_next(
    s: *mut llama_stream_t,
    ev: *mut llama_event,
    timeout_ms: i32,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        InCallback::refuse("llama_stream_next")?;
        let data = table::get::<StreamData>("s", s.addr())?;
        // SAFETY: by contract `ev` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("ev", ev) }?;
        let timeout = match timeout_ms {
            -1 => None,
            0.. => Some(Duration::from_millis(timeout_ms as u64)),
            _ => {
                return Err(Failure::invalid(format!(
                    "timeout_ms is {timeout_ms}, must be -1 (wait) or more"
                )));
            }
        };
        if let Some(handle) = data.handle.upgrade() {
            scope.keep(handle).deliver_log();
            // The callback that takes log lines may have forked, while another thread has a lock.
            scope.check_process()?;
        }
        let held = {
            let mut last = lock(&data.last);
            let pending = std::mem::take(&mut last.pending);
            last.event.take().filter(|_| pending)
        };
        let next = match held {
            Some(event) => Ok(Next::Event(event)),
            None => data.next(timeout),
        };
        scope.check_process()?;
        if data.freed.load(Ordering::Acquire) {
            return Ok(LLAMA_CANCELLED);
        }
        match next? {
            // The decider answers questions itself and does not pass them on.
            Next::Timeout | Next::Question(_) => Ok(LLAMA_TIMEOUT),
            Next::Done => Ok(LLAMA_DONE),
            Next::Cancelled => Ok(LLAMA_CANCELLED),
            Next::Event(event) => {
                let mut last = lock(&data.last);
                let Last {
                    event: kept,
                    text,
                    pending,
                } = &mut *last;
                let event = kept.insert(event);
                if let Err(error) = generate::set_text(text, event) {
                    *pending = true;
                    return Err(error.into());
                }
                if let Event::Finish(end) = event {
                    lock(&data.ends)[end.index as usize] = Some(end.stats);
                }
                out.write(&generate::view(event, text));
                Ok(LLAMA_OK)
            }
        }
    })
}

/// Takes one of the stream's locks. What it guards is good even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Get the figures of sequence `i`, after `llama_stream_next` has given its `LLAMA_EVENT_FINISH`.
/// Before that, this is `LLAMA_E_INVALID_ARGUMENT`. Set `st->struct_size` first; no more than that
/// is written. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_stats(
    s: *const llama_stream_t,
    i: usize,
    st: *mut llama_request_stats,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        let data = table::get::<StreamData>("s", s.addr())?;
        // SAFETY: by contract `st` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("st", st) }?;
        let ends = lock(&data.ends);
        match ends.get(i) {
            Some(Some(stats)) => out.write(&result::stats_view(stats)),
            Some(None) => return Err(Failure::invalid(format!("sequence {i} has not ended"))),
            None => {
                return Err(Failure::invalid(format!(
                    "i is {i}, must be below {}",
                    ends.len()
                )));
            }
        }
        Ok(LLAMA_OK)
    })
}

/// End sequence `i` of a stream after the events that `llama_stream_next` has given of it. Later
/// events of the sequence are dropped, whatever the model has computed since. Its
/// `LLAMA_EVENT_FINISH` follows, with `LLAMA_FINISH_CALLER` and the text of its remaining tokens
/// that was held back. The other sequences of the call continue.
///
/// Any thread may call this, also from inside a callback. Returns `LLAMA_OK`, also if the sequence
/// has ended already. An `i` that the call does not have is `LLAMA_E_INVALID_ARGUMENT`. After
/// `LLAMA_E_NO_MEMORY` the sequence continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_stop(s: *mut llama_stream_t, i: usize) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        table::get::<StreamData>("s", s.addr())?.stream.stop(i)?;
        Ok(LLAMA_OK)
    })
}

/// Get a descriptor for poll, select and epoll. It is readable while `llama_stream_next` would not
/// wait, because there is an event, a question of `on_logits` or the end. Returns -1 if there is no
/// descriptor or `s` is not a live stream.
///
/// The descriptor belongs to the stream: do not read, write or close it. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_fd(s: *const llama_stream_t) -> c_int {
    guard!(else -1, {
        let data = table::get::<StreamData>("s", s.addr());
        data.ok().and_then(|data| data.stream.fd()).unwrap_or(-1)
    })
}

/// Free a stream. This cancels what still runs of it. Any thread may call this at any time. NULL, a
/// stale pointer and a pointer of another library are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_free(s: *mut llama_stream_t) {
    guard!(else (), {
        if let Some(data) = table::remove::<StreamData>(s.addr()) {
            data.freed.store(true, Ordering::Release);
            data.stream.cancel();
        }
    })
}
