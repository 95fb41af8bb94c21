//! What the engine needs of the system directly: an eventfd, and a thread without signals.
#![allow(unsafe_code)]

/// A descriptor that is readable while it is set. Linux only.
#[derive(Debug)]
pub(super) struct EventFd(#[cfg_attr(not(target_os = "linux"), allow(dead_code))] i32);

#[cfg(target_os = "linux")]
impl EventFd {
    /// Not set; `None` where the system refuses.
    pub fn new() -> Option<Self> {
        // SAFETY: no pointers; the result is checked here.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        (fd >= 0).then_some(Self(fd))
    }

    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Make it readable. Called only when it is not, so the counter cannot overflow.
    pub fn set(&self) {
        // SAFETY: `self` owns the descriptor; the buffer is the 8 bytes that eventfd(2) asks for.
        unsafe { libc::write(self.0, (&raw const ONE).cast(), 8) };
    }

    /// Make it unreadable; does not block where it is already.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: as in `set`; `count` is writable for 8 bytes.
        unsafe { libc::read(self.0, (&raw mut count).cast(), 8) };
    }
}

#[cfg(target_os = "linux")]
static ONE: u64 = 1;

#[cfg(target_os = "linux")]
impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: `self` owns the descriptor, and this is its end.
        unsafe { libc::close(self.0) };
    }
}

#[cfg(not(target_os = "linux"))]
impl EventFd {
    pub fn new() -> Option<Self> {
        None
    }
    pub fn raw(&self) -> i32 {
        self.0
    }
    pub fn set(&self) {}
    pub fn clear(&self) {}
}

/// Run `spawn` with all signals blocked, so that the thread it starts inherits that and the host's
/// handlers never run on it. Signals that a faulting instruction raises stay as they are: blocking
/// those would only take the host's crash handler out of the way.
#[cfg(unix)]
pub(super) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    const FAULTS: [i32; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    // SAFETY: a sigset_t is plain data that sigfillset initialises.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: both sets are ours and live through the calls.
    let blocked = unsafe {
        libc::sigfillset(&mut all);
        for signal in FAULTS {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) == 0
    };
    let result = spawn();
    if blocked {
        // SAFETY: `before` was filled by the successful call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    result
}

#[cfg(not(unix))]
pub(super) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    spawn()
}
