//! Ranks in several processes: the host's functions that move bytes, `llama_worker_run`,
//! `llama_get_rank`, `llama_health`.
#![allow(unsafe_code)]

use super::callback::InCallback;
use super::failure::{Failure, Outcome};
use super::info::{c_text, number};
use super::types::*;
use super::{args, building, layout};
use crate::ranks::processes::comm::{Comm, GoOn, Moved};
use crate::{Error, Llama};
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The host's functions.
pub(super) struct HostComm(llama_comm);

// SAFETY: `user_data` is only handed back to the host, whose functions are documented to be called
// by one thread at a time, but not always by the same one.
unsafe impl Send for HostComm {}

impl HostComm {
    /// Copies a caller's `llama_comm`, or nothing if it is NULL.
    ///
    /// # Safety
    /// `p` is NULL, or has `struct_size` readable bytes.
    pub unsafe fn read(p: *const llama_comm) -> Outcome<Option<HostComm>> {
        if p.is_null() {
            return Ok(None);
        }
        let none = llama_comm {
            struct_size: size_of::<llama_comm>() as u32,
            rank: 0,
            size: 0,
            reserved0: 0,
            user_data: std::ptr::null_mut(),
            send: None,
            receive: None,
            all_gather: None,
            all_to_all: None,
        };
        // SAFETY: by this function's contract.
        let comm = unsafe { layout::read("comm", p, none) }?;
        for (name, is_none) in [
            ("send", comm.send.is_none()),
            ("receive", comm.receive.is_none()),
            ("all_gather", comm.all_gather.is_none()),
            ("all_to_all", comm.all_to_all.is_none()),
        ] {
            if is_none {
                return Err(Failure::invalid(format!("comm.{name} is NULL")));
            }
        }
        Ok(Some(HostComm(comm)))
    }

    /// Calls a function of the host's with something that it can ask whether to go on.
    fn call(&self, mut go_on: GoOn<'_>, call: impl FnOnce(*const llama_wait) -> i32) -> Moved {
        unsafe extern "C" fn ask(context: *const c_void) -> i32 {
            // SAFETY: `context` is the one below, which lives while the host's function runs, and
            // the host asks on the thread that runs this function.
            let go_on = unsafe { &mut *context.cast_mut().cast::<GoOn<'_>>() };
            // A panic must not cross the host's frames. The wait then ends, and the model with it.
            i32::from(catch_unwind(AssertUnwindSafe(go_on)).unwrap_or(false))
        }
        let wait = llama_wait {
            go_on: Some(ask),
            context: (&raw mut go_on).cast_const().cast(),
        };
        let _inside = InCallback::enter();
        match call(&raw const wait) {
            0 => Moved::Done,
            1 => Moved::GivenUp,
            code => Moved::Failed(code),
        }
    }
}

impl Comm for HostComm {
    fn rank(&self) -> usize {
        self.0.rank as usize
    }

    fn size(&self) -> usize {
        self.0.size as usize
    }

    fn send(&self, to: usize, bytes: &[u8], go_on: GoOn<'_>) -> Moved {
        let (comm, to) = (&self.0, to as u32);
        let Some(send) = comm.send else {
            return Moved::Failed(0);
        };
        self.call(go_on, |wait| {
            // SAFETY: this calls the host's function with the host's data; the bytes and `wait` are
            // there until it returns.
            unsafe { send(comm.user_data, to, bytes.as_ptr().cast(), bytes.len(), wait) }
        })
    }

    fn receive(&self, from: usize, bytes: &mut [u8], n: &mut usize, go_on: GoOn<'_>) -> Moved {
        let (comm, from, capacity) = (&self.0, from as u32, bytes.len());
        let Some(receive) = comm.receive else {
            return Moved::Failed(0);
        };
        let moved = self.call(go_on, |wait| {
            let bytes = bytes.as_mut_ptr().cast();
            // SAFETY: as for `send`; `bytes` has room for `capacity` bytes.
            unsafe { receive(comm.user_data, from, bytes, capacity, &raw mut *n, wait) }
        });
        match moved {
            Moved::Done if *n > capacity => Moved::Failed(0),
            moved => moved,
        }
    }

    fn all_gather(&self, mine: &[f32], all: &mut [f32], go_on: GoOn<'_>) -> Moved {
        let comm = &self.0;
        let Some(all_gather) = comm.all_gather else {
            return Moved::Failed(0);
        };
        assert_eq!(all.len(), mine.len() * self.size(), "room for all ranks");
        self.call(go_on, |wait| {
            let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            // SAFETY: as for `send`; there is room for as many bytes of every rank.
            unsafe { all_gather(comm.user_data, from, to, size_of_val(mine), wait) }
        })
    }

    fn all_to_all(&self, to: &[f32], from: &mut [f32], go_on: GoOn<'_>) -> Moved {
        let comm = &self.0;
        let Some(all_to_all) = comm.all_to_all else {
            return Moved::Failed(0);
        };
        assert_eq!(to.len(), from.len(), "as much comes as goes");
        let each = size_of_val(to) / self.size();
        self.call(go_on, |wait| {
            let (to, from) = (to.as_ptr().cast(), from.as_mut_ptr().cast());
            // SAFETY: as for `send`; both have `each` bytes of every rank.
            unsafe { all_to_all(comm.user_data, to, from, each, wait) }
        })
    }
}

/// Tells the other ranks that there will be no model, because of something that is wrong before
/// anything is built.
pub(super) fn leave(comm: HostComm, failure: &Failure, options: &llama_build_options) {
    let timeout = Duration::from_millis(u64::from(options.rank_timeout_ms.max(1)));
    let sentence = failure.message.clone();
    let kind = crate::error::Kind::InvalidArgument;
    Llama::leave(Box::new(comm), &Error::Told { kind, sentence }, timeout);
}

// Section: Several ranks

/// Take part in a model as a rank other than 0, until rank 0's handle is freed.
///
/// Of `o`, `comm` says which rank this is; `device`, `device_index`, `gpu_memory_bytes`,
/// `n_threads`, `rank_timeout_ms`, `cancel`, `progress` and `log` concern this process. Everything
/// else comes from rank 0. `ckpt_dir` may be another path to the same files; no tokenizer is
/// needed. Any thread may call this, but not from inside a callback.
///
/// Returns `LLAMA_OK` after rank 0's `llama_free`. Fails with a failure of its own, of which rank 0
/// hears, and with `LLAMA_E_PEER` if another rank failed, in its words, or is gone. Returns
/// `LLAMA_CANCELLED` if `o->cancel` or `o->progress` stopped it, or if rank 0 was cancelled while
/// it loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_worker_run(
    ckpt_dir: *const c_char,
    o: *const llama_build_options,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        InCallback::refuse("llama_worker_run")?;
        args::check_pointer("o", o)?;
        // SAFETY: by contract `o` has struct_size readable bytes.
        let given = unsafe { building::given(o) }?;
        // SAFETY: by contract `comm` is NULL or has struct_size readable bytes.
        let comm = unsafe { HostComm::read(given.comm) }?;
        let comm = comm.ok_or_else(|| Failure::invalid("comm is NULL"))?;
        // SAFETY: by contract the strings and arrays of the options are what they say.
        let (log, options) = match unsafe { building::build_options(&given) } {
            Ok(options) => options,
            Err(failure) => {
                leave(comm, &failure, &given);
                return Err(failure);
            }
        };
        // SAFETY: by contract the path is NULL or NUL-terminated.
        let ckpt_dir = match unsafe { building::ckpt_dir(ckpt_dir) } {
            Ok(path) => path,
            Err(failure) => {
                leave(comm, &failure, &given);
                return Err(failure);
            }
        };
        let mut progress = |fraction: f32| building::report(&given, &log, scope, fraction);
        let mut meanwhile = || log.deliver();
        let comm = Box::new(comm);
        let worked = Llama::work(comm, ckpt_dir, &options, &mut progress, &mut meanwhile);
        log.deliver();
        worked?;
        Ok(LLAMA_OK)
    })
}

/// Say what is known of a rank of the model. `llama_info` has their number. Set `r->struct_size`
/// first; no more than that is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_get_rank(
    l: *const llama_t,
    rank: u32,
    r: *mut llama_rank,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract `r` is NULL or has struct_size writable bytes.
        let out = unsafe { layout::out("r", r) }?;
        let (ranks, figures) = (&handle.llama.info().ranks, handle.llama.figures());
        let n = number(ranks.len());
        let known = ranks.get(rank as usize).ok_or_else(|| {
            Failure::invalid(format!(
                "rank is {rank}, must be below the number of ranks, {n}"
            ))
        })?;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        out.write(&llama_rank {
            struct_size: size_of::<llama_rank>() as u32,
            rank,
            device: known.device as i32,
            pid: known.pid,
            weight_bytes: known.weight_bytes,
            kv_bytes: known.kv_bytes,
            exchange_ms: milliseconds(figures.exchange(rank as usize)),
            silent_ms: milliseconds(figures.silent(rank as usize)),
            host: c_text(&known.host),
            device_name: c_text(&known.device_name),
        });
        Ok(LLAMA_OK)
    })
}

/// Say whether the handle can still run calls, without making one.
///
/// Returns `LLAMA_OK`, or `LLAMA_E_POISONED` with what has made the handle unusable: a rank that is
/// gone, for example. Fails with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, also from
/// inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_health(l: *const llama_t, err: *mut llama_error) -> llama_status {
    guard!(err, |scope| {
        scope.handle(l)?.llama.health()?;
        Ok(LLAMA_OK)
    })
}
