//! What a process has one of, with its locks. A thread of the parent's that a forked child does not
//! have may hold these for ever, so the child has one of its own.
#![allow(unsafe_code)]

use crate::process::Process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Own<T> {
    process: Process,
    value: T,
}

/// A static that each process makes for itself, where it first needs it.
pub struct PerProcess<T: 'static> {
    /// Of this process, or of one that it was forked from.
    latest: AtomicPtr<Own<T>>,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// Nothing yet.
    pub const fn new() -> Self {
        PerProcess {
            latest: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's. What a parent had is left as it is, for ever.
    pub fn get(&self) -> &'static T {
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            // SAFETY: `latest` is NULL or was stored below, and what was stored there is never
            // freed nor changed but through `&T`, which is shared with other threads because T is
            // Sync.
            if let Some(own) = unsafe { latest.as_ref() }
                && own.process.is_current()
            {
                return &own.value;
            }
            let new = Box::into_raw(Box::new(Own {
                process: Process::current(),
                value: T::default(),
            }));
            let stored =
                self.latest
                    .compare_exchange(latest, new, Ordering::AcqRel, Ordering::Acquire);
            if stored.is_err() {
                // SAFETY: another thread was faster, so nobody else has seen `new`, which is the
                // pointer of a box.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_child_does_not_wait_for_what_a_thread_of_its_parent_holds() {
        static NUMBER: PerProcess<Mutex<u32>> = PerProcess::new();
        let held = NUMBER.get().lock().unwrap();
        // For the child, which has no other thread, this lock is like one of another thread's: it
        // is held and not given back.
        // SAFETY: the child calls nothing but what is below, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a number. It ends the child if that hangs.
            unsafe { libc::alarm(20) };
            let fresh = match NUMBER.get().try_lock() {
                Ok(mut number) => {
                    *number += 1;
                    *number == 1
                }
                Err(_) => false,
            };
            let same = NUMBER.get().try_lock().is_ok_and(|number| *number == 1);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fresh && same { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(*held, 0);
        drop(held);
        assert_eq!(
            *NUMBER.get().lock().unwrap(),
            0,
            "the parent's is as it was"
        );
    }
}
