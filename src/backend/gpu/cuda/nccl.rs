//! NCCL, which moves numbers between the GPUs of several ranks. The library is opened at run time,
//! never linked. (U)
//!
//! It only moves numbers: its own sums would depend on the length of a message and on how the GPUs
//! are connected. Types and signatures come from cudarc's bindings. But results are read as
//! numbers, and a missing function is an error and no panic.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the library's names")]

use crate::Error;
use cudarc::nccl::sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use sys::*;

/// What makes [`Nccl::open`] look elsewhere: a file.
const VARIABLE: &str = "LLAMABI_NCCL";
/// Version 2.19. The configuration below has been read since 2.17; what is used has not changed.
const OLDEST: c_int = 21_900;

const SUCCESS: c_int = ncclResult_t::ncclSuccess as c_int;
const IN_PROGRESS: c_int = ncclResult_t::ncclInProgress as c_int;
const REMOTE: c_int = ncclResult_t::ncclRemoteError as c_int;
/// ncclConfig_t's "not set", and the first bytes of one, from nccl.h. The bindings have no macros.
const UNDEFINED: c_int = c_int::MIN;
const MAGIC: u32 = 0xcafe_beef;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        // The bindings have the same signatures. Their functions are never called.
        $(const _: unsafe fn($($type),*) -> ncclResult_t = sys::$name;)*

        /// The opened library.
        #[derive(Clone, Copy)]
        pub(super) struct Nccl {
            pub version: c_int,
            ncclGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Nccl {
            fn look_up(handle: *mut c_void) -> Result<Nccl, String> {
                let symbol = |name: &str| {
                    let c_name = CString::new(name).unwrap_or_default();
                    // SAFETY: the handle is never closed.
                    let symbol = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
                    if symbol.is_null() { Err(format!("it has no {name}")) } else { Ok(symbol) }
                };
                // SAFETY: the functions have these names, and the signatures that nccl.h gives
                // them.
                unsafe {
                    Ok(Nccl {
                        version: 0,
                        ncclGetErrorString: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn(c_int) -> *const c_char,
                        >(symbol("ncclGetErrorString")?),
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($type),*) -> c_int,
                        >(symbol(stringify!($name))?),)*
                    })
                }
            }

            $(
                /// Returns whether the call is still in progress.
                ///
                /// # Safety
                /// As the library's reference says.
                pub unsafe fn $name(&self, $($argument: $type),*) -> Result<bool, Failed> {
                    // SAFETY: the caller's contract.
                    self.outcome(stringify!($name), unsafe { (self.$name)($($argument),*) })
                }
            )*
        }
    };
}

functions! {
    ncclGetVersion(version: *mut c_int);
    ncclGetUniqueId(id: *mut ncclUniqueId);
    ncclCommInitRankConfig(
        to: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int,
        config: *mut ncclConfig_t);
    ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t);
    ncclAllGather(
        from: *const c_void, to: *mut c_void, n: usize, kind: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t);
    ncclSend(
        from: *const c_void, n: usize, kind: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t);
    ncclRecv(
        to: *mut c_void, n: usize, kind: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t);
    ncclGroupStart();
    ncclGroupEnd();
    ncclCommFinalize(comm: ncclComm_t);
    ncclCommDestroy(comm: ncclComm_t);
    ncclCommAbort(comm: ncclComm_t);
}

/// A failure of the library.
pub(super) struct Failed {
    pub text: String,
    /// Whether another rank or the way to it is the reason.
    remote: bool,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed.remote {
            true => Error::Peer(failed.text),
            false => Error::Device(failed.text),
        }
    }
}

impl Nccl {
    /// Opens the library: the file that LLAMABI_NCCL names; otherwise the one that the process has
    /// loaded already, or the one that the loader finds.
    ///
    /// # Errors
    /// A sentence.
    pub fn open() -> Result<Nccl, String> {
        const NAME: &str = "libnccl.so.2";
        match std::env::var(VARIABLE) {
            Ok(file) if !file.is_empty() => Self::of(&file, &[0]),
            _ => Self::of(NAME, &[libc::RTLD_NOLOAD, 0]),
        }
    }

    /// Opens this file with one of `flags` after the other, until one succeeds.
    pub fn of(file: &str, flags: &[c_int]) -> Result<Nccl, String> {
        let named = |why: String| format!("{file}: {why}");
        let name = CString::new(file).unwrap_or_default();
        let open = |more: &c_int| {
            // SAFETY: opening a library runs its initialisers, which is what it was made for. It is
            // never closed.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | more) }
        };
        let handle = flags.iter().map(open).find(|handle| !handle.is_null());
        let handle = handle.ok_or_else(|| named("it cannot be opened".into()))?;
        let mut nccl = Self::look_up(handle).map_err(named)?;
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        unsafe { nccl.ncclGetVersion(&mut version) }.map_err(|failed| named(failed.text))?;
        nccl.version = version;
        if version < OLDEST {
            return Err(named(format!("version {version}, needed is {OLDEST}")));
        }
        Ok(nccl)
    }

    /// A name for a communicator that does not exist yet.
    pub fn unique_id(&self) -> Result<ncclUniqueId, String> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: `id` outlives the call.
        match unsafe { self.ncclGetUniqueId(&mut id) } {
            Ok(_) => Ok(id),
            Err(failed) => Err(failed.text),
        }
    }

    /// Begins to make a communicator on the current context. It is there when
    /// [`Nccl::is_in_progress`] says no more.
    pub fn begin(&self, id: ncclUniqueId, rank: usize, ranks: usize) -> Result<ncclComm_t, Failed> {
        let mut comm = ptr::null_mut();
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            version: 22_203,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: UNDEFINED,
            netName: ptr::null(),
            splitShare: UNDEFINED,
        };
        let (rank, ranks) = (rank as c_int, ranks as c_int);
        // SAFETY: both outlive the call, which copies the configuration.
        unsafe { self.ncclCommInitRankConfig(&mut comm, ranks, id, rank, &mut config) }?;
        Ok(comm)
    }

    /// Whether a call for this communicator is still in progress.
    ///
    /// # Errors
    /// A failure of it, or of an exchange.
    ///
    /// # Safety
    /// The communicator is alive.
    pub unsafe fn is_in_progress(&self, comm: ncclComm_t) -> Result<bool, Failed> {
        let mut said = SUCCESS;
        // SAFETY: the communicator is alive; the function writes a number of the enum's size.
        unsafe { self.ncclCommGetAsyncError(comm, (&raw mut said).cast()) }?;
        self.outcome("an exchange", said)
    }

    fn outcome(&self, function: &str, code: c_int) -> Result<bool, Failed> {
        match code {
            SUCCESS => Ok(false),
            IN_PROGRESS => Ok(true),
            code => {
                // SAFETY: takes any number; a constant of the library, or NULL.
                let text = unsafe { (self.ncclGetErrorString)(code) };
                let text = match text.is_null() {
                    true => "an error without a name".into(),
                    // SAFETY: as above.
                    false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
                };
                Err(Failed {
                    text: format!("NCCL: {function}: {text} ({code})"),
                    remote: code == REMOTE,
                })
            }
        }
    }
}
