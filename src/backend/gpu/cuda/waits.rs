//! Waiting for the GPU of a rank, which may wait for other ranks that never come. (U)
//!
//! With one rank, the driver waits. With several, we ask the driver again and again, and now and
//! then the [`Watch`], which hears of ranks that failed and knows how long is too long. Then the
//! communicator is given up, which ends the exchanges that the GPU is in. If the GPU does not get
//! idle even so, it is lost: nothing is freed on it any more, because everything that frees waits.
#![allow(unsafe_code)]

use super::context::{Context, Pinned};
use super::group::Group;
use crate::backend::gpu::driver::Outcome;
use crate::backend::gpu::driver::sys::{CUevent, CUresult, CUstream};
use crate::backend::{Waited, Watch};
use crate::{Error, Result};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How long a wait spins before it sleeps between two looks: longer than most steps' last kernels.
const SPIN: Duration = Duration::from_micros(50);

/// How long it sleeps.
const SLEEP: Duration = Duration::from_micros(100);

/// Asks until there is an answer.
pub(super) fn poll<T>(watch: &dyn Watch, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (start, mut clock) = (Instant::now(), Waited::default());
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        }
        watch.look(clock.look())?;
        std::thread::sleep(SLEEP);
    }
}

/// How a context waits.
#[derive(Default)]
pub(super) struct Waits {
    /// What watches, and the address of the stream in which all work is done.
    watch: OnceLock<(Arc<dyn Watch>, usize)>,
    group: Mutex<Option<Group>>,
    /// Whether exchanges were given up. There is nothing left to wait for.
    given_up: AtomicBool,
    /// The word that says so to kernels; null if there is none.
    word: AtomicPtr<u32>,
    /// Whether the GPU does not get idle.
    lost: AtomicBool,
}

impl Context {
    /// Has waits watched, for work that is done in `stream`.
    pub fn watch(&self, watch: Arc<dyn Watch>, stream: CUstream) {
        let _ = self.waits.watch.set((watch, stream.addr()));
    }

    pub fn watcher(&self) -> Option<&dyn Watch> {
        self.waits.watch.get().map(|(watch, _)| &**watch)
    }

    pub fn group(&self) -> MutexGuard<'_, Option<Group>> {
        self.waits.group.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn is_lost(&self) -> bool {
        self.waits.lost.load(Ordering::Relaxed)
    }

    /// Has kernels told by this word when exchanges are given up. It lives until
    /// [`Context::tell_no_kernels`].
    pub fn tell_kernels(&self, word: &Pinned) {
        self.waits.word.store(word.at.cast(), Ordering::Release);
    }

    pub fn tell_no_kernels(&self) {
        self.waits.word.store(ptr::null_mut(), Ordering::Release);
    }

    /// Waits for an event; one that was never recorded counts as done. The context must be current.
    ///
    /// # Safety
    /// The event is alive.
    pub unsafe fn wait_for_event(&self, event: CUevent) -> Result<()> {
        let driver = &self.driver;
        // SAFETY: by this function's contract.
        let ask = || unsafe { driver.cuEventQuery(event) };
        // SAFETY: as above.
        self.wait(ask, || unsafe { driver.cuEventSynchronize(event) })
    }

    /// Waits for a stream. The context must be current.
    ///
    /// # Safety
    /// The stream is alive.
    pub unsafe fn wait_for_stream(&self, stream: CUstream) -> Result<()> {
        let driver = &self.driver;
        // SAFETY: by this function's contract.
        let ask = || unsafe { driver.cuStreamQuery(stream) };
        // SAFETY: as above.
        self.wait(ask, || unsafe { driver.cuStreamSynchronize(stream) })
    }

    fn wait(&self, ask: impl Fn() -> Outcome, block: impl Fn() -> Outcome) -> Result<()> {
        let given_up = self.waits.given_up.load(Ordering::Relaxed);
        let Some(watch) = self.watcher().filter(|_| !given_up) else {
            return Ok(block()?);
        };
        let waited = poll(watch, || match ready(ask())? {
            true => Ok(Some(())),
            false => match &*self.group() {
                Some(group) => group.check().map(|()| None),
                None => Ok(None),
            },
        });
        waited.inspect_err(|_| self.give_up())
    }

    /// Gives up the exchanges that are under way, and waits until the GPU is idle.
    pub fn give_up(&self) {
        let (Some((watch, stream)), Ok(_current)) = (self.waits.watch.get(), self.enter()) else {
            return;
        };
        if self.waits.given_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let word = self.waits.word.load(Ordering::Acquire);
        if !word.is_null() {
            // SAFETY: page-locked memory of four bytes, which lives until `tell_no_kernels`.
            // Besides this, only kernels look at it.
            unsafe { AtomicU32::from_ptr(word) }.store(1, Ordering::Release);
        }
        let stream: CUstream = ptr::without_provenance_mut(*stream);
        // SAFETY: the stream lives as long as somebody waits for its work.
        let ask = || ready(unsafe { self.driver.cuStreamQuery(stream) });
        let group = self.group().take();
        if ask().is_err() {
            // The driver refuses every call after such a failure. Graphs cannot be destroyed, and
            // NCCL would wait for them without end, so the communicator is left behind.
            return;
        }
        let limit = watch.timeout();
        let ended = group.is_none_or(|group| group.abort(limit));
        let start = Instant::now();
        while ask().is_ok_and(|ready| !ready) {
            if start.elapsed() > limit {
                self.waits.lost.store(true, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(SLEEP);
        }
        if !ended {
            self.waits.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the communicator, if there is one: together with the other ranks, unless one has
    /// failed. The stream is idle.
    pub fn leave(&self) {
        let (Some(watch), Ok(_current)) = (self.watcher(), self.enter()) else {
            return;
        };
        let Some(group) = self.group().take() else {
            return;
        };
        let ended = match watch.look(Duration::ZERO) {
            Ok(()) => group.end(),
            Err(_) => group.abort(watch.timeout()),
        };
        if !ended {
            self.waits.lost.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether what was asked for is done.
fn ready(answer: Outcome) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(failed) if failed.code == CUresult::CUDA_ERROR_NOT_READY as u32 => Ok(false),
        Err(failed) => Err(Error::from(failed)),
    }
}
