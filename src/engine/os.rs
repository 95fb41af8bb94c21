//! The system calls that the engine makes directly: those of an eventfd.
#![allow(unsafe_code)]

/// A descriptor that is readable while it is set. Linux only.
#[derive(Debug)]
pub(super) struct EventFd(#[cfg_attr(not(target_os = "linux"), allow(dead_code))] i32);

#[cfg(target_os = "linux")]
impl EventFd {
    /// A descriptor that is not set; `None` if the system refuses.
    pub fn new() -> Option<Self> {
        // SAFETY: no pointers; the result is checked here.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        (fd >= 0).then_some(Self(fd))
    }

    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Makes it readable. It is called only while it is not readable, so the counter cannot
    /// overflow.
    pub fn set(&self) {
        // SAFETY: `self` owns the descriptor; the buffer is the 8 bytes that eventfd(2) asks for.
        unsafe { libc::write(self.0, (&raw const ONE).cast(), 8) };
    }

    /// Makes it unreadable. It does not block if it is so already.
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
