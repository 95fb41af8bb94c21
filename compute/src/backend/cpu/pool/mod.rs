//! The handle's own fork-join pool; `grid` cuts arrays into disjoint parts for its tasks.
//!
//! A decode step forks about a hundred times, for tens of microseconds each, so threads spin for a
//! moment before they park. An atomic counter hands out tasks one by one, so a thread that the
//! operating system suspends delays a single task and not a fixed share. If all tasks are done,
//! nobody waits for a thread that has not joined the job yet.

#![allow(unsafe_code)]

mod grid;

pub use grid::{Grid, Rect, Split, Tasks};

use crate::process::Process;
use crate::{Error, Result};
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread without work spins before it parks: longer than the serial parts of a step.
const SPIN: Duration = Duration::from_micros(100);

/// Gives a value that several threads write a cache line of its own, and the neighbouring line that
/// is prefetched with it.
#[repr(align(128))]
struct Line<T>(T);

/// The job's closure with its type erased: called with its address, a task and a thread.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize, usize),
    closure: *const (),
    tasks: usize,
}

/// `state` contains the job's number, whether threads may join it, and how many threads are in it.
const JOINED: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const NUMBER: u64 = 1 << 17;
/// `state` when the threads shall end.
const STOP: u64 = u64::MAX;

struct Shared {
    state: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    sleepers: Line<AtomicUsize>,
    started: AtomicUsize,
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while no thread is joined to it and the job is closed
// (`Pool::run`), and read only by threads that joined an open job; `state` orders the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only as said above.
unsafe impl Send for Shared {}

impl Shared {
    /// Takes tasks until there are none. A panic ends the job early and is kept for the caller.
    fn work(&self, job: Job, thread: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.0.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    break;
                }
                // SAFETY: this thread is joined to the job, so its closure is alive.
                unsafe { (job.call)(job.closure, task, thread) };
            }
        }));
        if let Err(payload) = result {
            self.next.0.store(job.tasks, Ordering::Relaxed);
            let mut slot = self.panic.lock().unwrap_or_else(|e| e.into_inner());
            slot.get_or_insert(payload);
        }
    }

    /// The life of thread number `thread`.
    fn serve(&self, thread: usize) {
        self.started.fetch_add(1, Ordering::Relaxed);
        let mut done = 0;
        loop {
            let state = self.wait(done);
            if state == STOP {
                return;
            }
            done = state / NUMBER;
            if self.join(state) {
                // SAFETY: joined, so the caller does not change the job; the exchange acquired it.
                let job = unsafe { *self.job.get() };
                self.work(job, thread);
                self.state.0.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Joins the job that `state` showed, unless the job has been closed meanwhile.
    fn join(&self, mut state: u64) -> bool {
        let number = state / NUMBER;
        while state != STOP && state & OPEN != 0 && state / NUMBER == number {
            match self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Spins, then parks, until there is an open job with a number other than `done`.
    fn wait(&self, done: u64) -> u64 {
        let news = |state: u64| state == STOP || (state & OPEN != 0 && state / NUMBER != done);
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                let state = self.state.0.load(Ordering::Acquire);
                if news(state) {
                    return state;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        // Both sides use sequential consistency, so that either the caller sees the sleeper or the
        // sleeper sees the job.
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.0.load(Ordering::SeqCst);
            if news(state) {
                break state;
            }
            std::thread::park();
        };
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        state
    }
}

/// Threads that work on one job at a time, together with the thread that submits it.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    number: Cell<u64>,
    process: Process,
}

impl Pool {
    /// `n` threads, including the caller's.
    pub fn new(n: usize) -> Result<Pool> {
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let mut pool = Pool {
            shared: Arc::new(Shared {
                state: Line(AtomicU64::new(0)),
                next: Line(AtomicUsize::new(0)),
                sleepers: Line(AtomicUsize::new(0)),
                started: AtomicUsize::new(0),
                job: UnsafeCell::new(Job {
                    call: nothing,
                    closure: std::ptr::null(),
                    tasks: 0,
                }),
                panic: Mutex::new(None),
            }),
            threads: Vec::new(),
            number: Cell::new(0),
            process: Process::current(),
        };
        let _quiet = BlockedSignals::new();
        for i in 1..n {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("llamabi-{i}"))
                .spawn(move || shared.serve(i))
                .map_err(|e| Error::thread(format!("thread {i} of {n}"), &e))?;
            pool.threads.push(thread);
        }
        // Waits until all threads run. By then, each has allocated what it needs for itself, so
        // that no step does.
        while pool.shared.started.load(Ordering::Relaxed) < pool.threads.len() {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Number of threads, including the caller's.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `f(task, thread, part)` for every part of `parts`, on all threads. `thread` is below
    /// [`Pool::n_threads`], and two tasks never run under the same `thread` at the same time. If a
    /// task panics, this panics after every thread has left the job.
    pub fn run<S: Split>(&self, parts: S, f: impl Fn(usize, usize, S::Part) + Sync) {
        let tasks = parts.count();
        if tasks <= 1 || self.threads.is_empty() {
            return self.here(parts, f);
        }
        let closure = |task: usize, thread: usize| {
            // SAFETY: `next` gives every task to one thread only, and `parts` is ours: nobody runs
            // it again.
            f(task, thread, unsafe { parts.part(task) });
        };
        self.fork(tasks, &closure);
    }

    /// As [`Pool::run`], on the calling thread only: for work that is too small to share.
    pub fn here<S: Split>(&self, parts: S, f: impl Fn(usize, usize, S::Part)) {
        for task in 0..parts.count() {
            // SAFETY: one thread takes each part once.
            f(task, 0, unsafe { parts.part(task) });
        }
    }

    fn fork<F: Fn(usize, usize) + Sync>(&self, tasks: usize, closure: &F) {
        unsafe fn call<F: Fn(usize, usize)>(closure: *const (), task: usize, thread: usize) {
            // SAFETY: `closure` is the `&F` below, alive until every thread has left the job.
            unsafe { (*closure.cast::<F>())(task, thread) }
        }
        let shared = &*self.shared;
        let job = Job {
            call: call::<F>,
            closure: std::ptr::from_ref(closure).cast(),
            tasks,
        };
        // SAFETY: the previous job is closed and empty (end of this function), and `Pool` is not
        // `Sync`, so nobody else is here.
        unsafe { *shared.job.get() = job };
        shared.next.0.store(0, Ordering::Relaxed);
        let number = self.number.get() + 1;
        self.number.set(number);
        shared
            .state
            .0
            .store((number * NUMBER) | OPEN, Ordering::SeqCst);
        if shared.sleepers.0.load(Ordering::SeqCst) > 0 {
            for thread in self.threads.iter().take(tasks - 1) {
                thread.thread().unpark();
            }
        }
        shared.work(job, 0);
        // No more threads can join. Wait for those that did: they are in their last task. If the
        // operating system has suspended one, yield the processor to it.
        shared.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut turns = 0u32;
        while shared.state.0.load(Ordering::Acquire) & JOINED != 0 {
            turns += 1;
            if turns < 2000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let payload = shared
            .panic
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child does not have these threads, so waiting for them would never end.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        self.shared.state.0.store(STOP, Ordering::SeqCst);
        self.threads
            .iter()
            .map(JoinHandle::thread)
            .for_each(Thread::unpark);
        for thread in self.threads.drain(..) {
            // Panics of tasks were caught, and nothing else in the thread can panic.
            let _ = thread.join();
        }
    }
}

/// While it lives, new threads inherit a mask that keeps the host's signal handlers off them.
/// Signals that faults or profilers raise are not blocked.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: plain sets of bits, filled before they are read; the calls touch only them and
        // this thread's mask.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            for signal in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
                libc::SIGABRT,
                libc::SIGSYS,
                libc::SIGPROF,
            ] {
                libc::sigdelset(&mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut old);
            Self(old)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_written_once() {
        for n in [1, 2, 3, 8] {
            let pool = Pool::new(n).unwrap();
            assert_eq!(pool.n_threads(), n);
            for (rows, stride, block) in [(3, 10, 4), (1, 1, 1), (7, 64, 16), (5, 5, 9), (0, 4, 2)]
            {
                let mut data = vec![0u32; rows * stride];
                pool.run(
                    Grid::columns(&mut data, stride, block),
                    |task, thread, mut part| {
                        assert!(thread < n);
                        for r in 0..part.rows() {
                            part.row(r).iter_mut().for_each(|x| *x += 1 + task as u32);
                        }
                    },
                );
                for (i, x) in data.iter().enumerate() {
                    assert_eq!(*x, 1 + (i % stride / block) as u32);
                }
            }
        }
    }

    #[test]
    fn bands_follow_their_cuts() {
        let pool = Pool::new(2).unwrap();
        let mut data = vec![0usize; 6 * 4];
        let cuts = [0, 1, 1, 4];
        let grid = Grid::bands(&mut data, 4, 2, &cuts);
        assert_eq!(grid.count(), 6);
        pool.run(grid, |task, _, mut part| {
            for r in 0..part.rows() {
                part.row(r).fill(10 + task);
            }
        });
        let want = [
            [10, 10, 11, 11],
            [14, 14, 15, 15],
            [14, 14, 15, 15],
            [14, 14, 15, 15],
        ];
        assert_eq!(data[..16], want.as_flattened()[..]);
        assert!(data[16..].iter().all(|&x| x == 0));
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        let mut data = vec![0; 100];
        for round in 0..20 {
            let grid = Grid::pieces(&mut data, 1);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(grid, |task, _, _| {
                    assert!(task != 50 + round, "task {task}")
                });
            }));
            let payload = caught.expect_err("no panic came through");
            let words = payload.downcast_ref::<String>().unwrap();
            assert!(words.contains(&format!("task {}", 50 + round)), "{words}");
            let mut out = vec![0; 64];
            pool.run(Grid::pieces(&mut out, 1), |task, _, mut part| {
                part.row(0)[0] = task
            });
            assert!(out.iter().enumerate().all(|(i, &x)| i == x));
        }
    }

    #[test]
    fn thousands_of_small_jobs_with_pauses() {
        let pool = Pool::new(4).unwrap();
        let mut sums = vec![0u64; 8];
        for i in 0..5000 {
            pool.run(Grid::pieces(&mut sums, 1), |_, _, mut part| {
                part.row(0)[0] += 1
            });
            if i % 1000 == 0 {
                std::thread::sleep(2 * SPIN); // all park
            }
        }
        assert_eq!(sums, [5000; 8]);
    }

    #[test]
    fn threads_are_named_and_take_no_signals() {
        let pool = Pool::new(2).unwrap();
        let seen = Mutex::new(Vec::new());
        let mut data = [0; 2];
        // Both tasks wait for each other, so each thread runs one.
        let met = std::sync::Barrier::new(2);
        pool.run(Grid::pieces(&mut data, 1), |_, thread, _| {
            met.wait();
            // SAFETY: reads this thread's mask into a set of our own.
            let blocked = unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
                libc::sigismember(&mask, libc::SIGINT) == 1
            };
            let name = std::thread::current().name().map(str::to_owned);
            seen.lock().unwrap().push((thread, name, blocked));
        });
        let seen = seen.into_inner().unwrap();
        let worker = seen.iter().find(|s| s.0 == 1).unwrap();
        assert_eq!((worker.1.as_deref(), worker.2), (Some("llamabi-1"), true));
        assert!(
            !seen.iter().find(|s| s.0 == 0).unwrap().2,
            "the caller's mask was changed"
        );
    }
}
