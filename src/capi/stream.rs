//! `llama_stream_*`: events to be pulled, waited for or polled.
#![allow(unsafe_code)]

use super::callback::InCallback;
use super::failure::{Failure, Outcome};
use super::guard::Scope;
use super::object::Handle;
use super::types::*;
use super::{args, generate, layout, result, table};
use crate::engine::{Event, Next, Prompt, RequestStats, Stream};
use crate::reserve;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// The object behind `llama_stream_t`.
pub(super) struct StreamData {
    stream: Stream,
    /// For its log lines, and to be poisoned; streams outlive it.
    handle: Weak<Handle>,
    last: Mutex<Last>,
    /// Figures of the sequences whose end has been given.
    ends: Mutex<Vec<Option<RequestStats>>>,
    freed: AtomicBool,
}

impl table::Kind for StreamData {
    const NAME: &'static str = "llama_stream_t";
}

/// What the last event's pointers point to.
#[derive(Default)]
struct Last {
    event: Option<Event>,
    text: Vec<u8>,
    /// It was not given yet, because there was no memory for its text.
    pending: bool,
}

/// What the three functions that open a stream have in common.
///
/// # Safety
/// The pointers are as the header demands.
pub(super) unsafe fn open(
    function: &str,
    scope: &mut Scope,
    l: *mut llama_t,
    o: *const llama_generate_options,
    out: *mut *mut llama_stream_t,
    prompts: impl FnOnce(&Handle) -> Outcome<Vec<Prompt>>,
) -> Outcome<llama_status> {
    InCallback::refuse(function)?;
    let handle = scope.handle(l)?;
    // SAFETY: by this function's contract.
    let given = unsafe { generate::read_options(o) }?;
    if given.on_event.is_some() {
        return Err(Failure::invalid(
            "on_event is given, must be NULL: events are pulled with llama_stream_next",
        ));
    }
    // SAFETY: by this function's contract.
    let (out, options) = unsafe { (args::place("out", out)?, generate::engine_options(&given)?) };
    let prompts = prompts(handle)?;
    let n = prompts.len();
    let stream = handle.llama.stream(prompts, options)?;
    let n = n * generate::samples(&given);
    let id = table::insert(StreamData {
        stream,
        handle: Arc::downgrade(handle),
        last: Mutex::default(),
        ends: Mutex::new(reserve::filled("the figures of a stream", n, None)?),
        freed: AtomicBool::new(false),
    })?;
    out.set(ptr::without_provenance_mut(id));
    Ok(LLAMA_OK)
}

// Section: Streams

/// Start a call and pull its events, instead of being called for each: `llama_generate` in all
/// else, so see there for the arguments and errors. `o->on_event` must be NULL
/// (`LLAMA_E_INVALID_ARGUMENT`).
///
/// Read it: while more than 1,024 events (or 4 MiB) wait to be taken, its sequences pause. If
/// others wait they give their slots up for that time (`max_stall_ms`), and a stream that is not
/// read at all ends with `LLAMA_FINISH_UNREAD` (`max_unread_ms`).
///
/// `*out` is the stream, to be freed with `llama_stream_free`. It outlives the handle, and then
/// ends as cancelled. Any thread; not from inside a callback.
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
        // SAFETY: the contract of the header is that of the functions called.
        unsafe {
            open("llama_stream_open", scope, l, o, out, |handle| {
                generate::token_prompts(handle, tokens, lens, n)
            })
        }
    })
}

/// Start a call on texts and pull its events: the prompts of `llama_text_completion`, and
/// `llama_stream_open` in all else.
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
        // Not stopped while it is encoded: a stream is there to say that it was cancelled.
        // SAFETY: the contract of the header is that of the functions called.
        unsafe {
            open("llama_stream_open_text", scope, l, o, out, |handle| {
                generate::text_prompts(handle, prompts, lens, n, None)
            })
        }
    })
}

/// Start a call on dialogs and pull its events: the dialogs of `llama_chat_completion`, those with
/// a special tag included, which end as `LLAMA_FINISH_UNSAFE`; and `llama_stream_open` in all else.
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
        // SAFETY: the contract of the header is that of the functions called.
        unsafe {
            open("llama_stream_open_chat", scope, l, o, out, |handle| {
                generate::dialog_prompts(handle, msgs, dialog_lens, n_dialogs, None)
            })
        }
    })
}

/// Get the next event. Set `ev->struct_size` before the first call; no more than that is written.
///
/// `timeout_ms`: -1 waits as long as it takes, 0 does not wait, else how long to wait. Returns
/// `LLAMA_OK` with `*ev` written; `LLAMA_TIMEOUT`; after all events `LLAMA_DONE` for ever, or
/// `LLAMA_CANCELLED` for ever if the call was cancelled (what was generated before comes first).
/// An error of the engine (`_DEVICE`, `_POISONED`, `_INTERNAL`, and `_NO_MEMORY` where it could not
/// queue an event) ends the stream and is given again on every later call.
/// `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, and `_NO_MEMORY` for the text of an event take no event: the
/// next call gives it.
///
/// The pointers in `*ev` are good until the next call on this stream, so use a stream from one
/// thread at a time; `llama_stream_free` from another is fine, a call that waits then returns
/// `LLAMA_CANCELLED`. Not from inside a callback.
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
        // SAFETY: the contract is that `ev` is NULL or has struct_size writable bytes.
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
        }
        let held = {
            let mut last = lock(&data.last);
            let pending = std::mem::take(&mut last.pending);
            last.event.take().filter(|_| pending)
        };
        let next = match held {
            Some(event) => Ok(Next::Event(event)),
            None => data.stream.next(timeout),
        };
        if data.freed.load(Ordering::Acquire) {
            return Ok(LLAMA_CANCELLED);
        }
        match next? {
            Next::Timeout => Ok(LLAMA_TIMEOUT),
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

/// A lock of the stream's: what it guards is good after any panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Figures of sequence `i`, once `llama_stream_next` has given its `LLAMA_EVENT_FINISH`; before
/// that `LLAMA_E_INVALID_ARGUMENT`. Set `st->struct_size` first; no more than that is written. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_stats(
    s: *const llama_stream_t,
    i: usize,
    st: *mut llama_request_stats,
) -> llama_status {
    guard!(ptr::null_mut(), |_scope| {
        let data = table::get::<StreamData>("s", s.addr())?;
        // SAFETY: the contract is that `st` is NULL or has struct_size writable bytes.
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

/// A descriptor that is readable while `llama_stream_next` would not wait (an event or the end is
/// there), for poll, select and epoll. -1 if there is none, or `s` is not a live stream.
///
/// It belongs to the stream: do not read, write or close it. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_fd(s: *const llama_stream_t) -> c_int {
    guard!(else -1, {
        let data = table::get::<StreamData>("s", s.addr());
        data.ok().and_then(|data| data.stream.fd()).unwrap_or(-1)
    })
}

/// Free a stream, at any time, from any thread: cancels what is still running of it. NULL, a stale
/// pointer or one of another library's does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_free(s: *mut llama_stream_t) {
    guard!(else (), {
        if let Some(data) = table::remove::<StreamData>(s.addr()) {
            data.freed.store(true, Ordering::Release);
            data.stream.cancel();
        }
    })
}
