//! Limits of this process, named where they are why memory or a thread cannot be had. Nothing here
//! allocates before it is certain that there is something to say: whoever asks has just been
//! refused.
#![allow(unsafe_code)]

use std::fmt;

/// A limit of this process (`ulimit`, `setrlimit`) and how much of it is in use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// As setrlimit(2) calls it.
    pub name: &'static str,
    /// The soft limit.
    pub limit: u64,
    /// Of that, in use.
    pub used: u64,
}

impl fmt::Display for Rlimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rlimit { name, limit, used } = self;
        write!(f, "{name} is {limit} bytes, {used} of them in use")
    }
}

impl Rlimit {
    /// That of address space (`RLIMIT_AS`) or private memory (`RLIMIT_DATA`) which leaves the
    /// least, if it leaves less than `needed` bytes.
    pub fn that_binds(needed: u64) -> Option<Rlimit> {
        // An allocator maps a little more than it is asked for.
        const SLACK: u64 = 1 << 20;
        let tightest = memory()?.into_iter().flatten().min_by_key(Rlimit::left)?;
        (tightest.left() < needed.saturating_add(SLACK)).then_some(tightest)
    }

    /// Bytes below the limit that are not taken yet.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The limits of memory that are set.
pub fn memory() -> Option<[Option<Rlimit>; 2]> {
    // SAFETY: no pointers.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let mut buf = [0; 128];
    // Pages: size resident shared text lib data dt.
    let statm = read_start("/proc/self/statm", &mut buf)?;
    let mut pages = statm
        .split_ascii_whitespace()
        .map(|n| n.parse::<u64>().ok());
    let (size, data) = (pages.next()??, pages.nth(4)??);
    let limit = |name, resource, used: u64| {
        let used = used.saturating_mul(page);
        soft(resource).map(|limit| Rlimit { name, limit, used })
    };
    Some([
        limit("RLIMIT_AS", libc::RLIMIT_AS, size),
        limit("RLIMIT_DATA", libc::RLIMIT_DATA, data),
    ])
}

/// Most processes and threads that this user may have, if that is limited.
fn threads() -> Option<u64> {
    soft(libc::RLIMIT_NPROC)
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn soft(resource: Resource) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    let got = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
    (got && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn read_start<'a>(path: &str, buf: &'a mut [u8]) -> Option<&'a str> {
    use std::io::Read;
    let n = std::fs::File::open(path).ok()?.read(buf).ok()?;
    std::str::from_utf8(&buf[..n]).ok()
}

/// Why a thread was refused: the system's words, and the limits that may be behind them.
pub fn thread_refusal(error: &std::io::Error) -> String {
    /// A stack, and what the C library maps for a thread's allocations.
    const THREAD: u64 = 72 << 20;
    let mut detail = error.to_string();
    if let Some(limit) = Rlimit::that_binds(THREAD) {
        detail.push_str(&format!("; {limit}"));
    }
    if let Some(n) = threads() {
        detail.push_str(&format!("; RLIMIT_NPROC is {n}"));
    }
    detail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_what_it_leaves() {
        let limit = Rlimit {
            name: "RLIMIT_AS",
            limit: 1000,
            used: 1200,
        };
        assert_eq!(limit.left(), 0);
        assert_eq!(
            limit.to_string(),
            "RLIMIT_AS is 1000 bytes, 1200 of them in use"
        );
        // Whatever is set where this runs: there is a size, and nothing needs no bytes at all.
        let set = memory().unwrap();
        assert!(set.iter().flatten().all(|limit| limit.used > 0));
    }
}
