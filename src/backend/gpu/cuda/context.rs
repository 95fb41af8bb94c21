//! The primary context of a GPU, and objects in it that free themselves. (U)
#![allow(unsafe_code)]

use super::nccl::Nccl;
use super::waits::Waits;
use crate::backend::gpu::driver::sys::{
    CUcontext, CUdevice_attribute, CUevent_flags, CUevent_st, CUresult, CUstreamCaptureMode,
};
use crate::backend::gpu::driver::{Driver, Outcome};
use crate::backend::gpu::reason::Failed;
use crate::process::Process;
use crate::{Error, Result};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// A retained context.
pub(super) struct Context {
    pub driver: Driver,
    pub device: c_int,
    pub raw: CUcontext,
    process: Process,
    pub waits: Waits,
    pub nccl: OnceLock<std::result::Result<Nccl, String>>,
}

// SAFETY: a context may be pushed on any thread (CUDA driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: as above; what changes in it lies behind locks.
unsafe impl Sync for Context {}

/// While this value lives, the context is current on this thread, and streams that others record
/// are not disturbed.
pub(super) struct Current<'a> {
    driver: &'a Driver,
    /// The thread's capture mode before.
    mode: u32,
    /// Keeps the value from leaving its thread.
    not_send: PhantomData<*const ()>,
}

impl Context {
    /// Retains the primary context of device `index`, which preflight has seen.
    pub fn retain(driver: Driver, index: usize) -> Result<Arc<Context>> {
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: preflight has started the driver; both outlive the calls. Released in `drop`.
        unsafe {
            driver.cuDeviceGet(&mut device, index as c_int)?;
            driver.cuDevicePrimaryCtxRetain(&mut raw, device)?;
        }
        Ok(Arc::new(Context {
            driver,
            device,
            raw,
            process: Process::current(),
            waits: Waits::default(),
            nccl: OnceLock::new(),
        }))
    }

    /// Makes the context current. Every use of the device begins with this call, also to free
    /// something. It fails in a child after `fork`, where the driver promises nothing, so a child
    /// never calls the driver; and if the GPU was lost, where a call might never return.
    pub fn enter(&self) -> Result<Current<'_>> {
        if !self.process.is_current() {
            return Err(Error::Forked { what: "the device" });
        }
        if self.is_lost() {
            let what = "the GPU does not end what it was told to do; its memory is left behind";
            return Err(Error::Device(what.into()));
        }
        // SAFETY: retained until `drop`.
        unsafe { self.driver.cuCtxPushCurrent_v2(self.raw) }?;
        // The host may record a stream of its own meanwhile, on any thread. Unless it asks for
        // less, which PyTorch does not, allocations of every thread that does not say this would
        // then fail, and spoil its recording.
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        match exchange_mode(&self.driver, relaxed) {
            Ok(mode) => Ok(Current {
                driver: &self.driver,
                mode,
                not_send: PhantomData,
            }),
            Err(failed) => {
                pop(&self.driver);
                Err(failed.into())
            }
        }
    }

    pub fn attribute(&self, which: CUdevice_attribute) -> Result<c_int> {
        let mut value = 0;
        let to = &mut value;
        // SAFETY: `retain` has found the device.
        unsafe { self.driver.cuDeviceGetAttribute(to, which, self.device) }?;
        Ok(value)
    }
}

// The `drop` functions below ignore failures, because nobody could handle them: after a device
// error every call fails, and the process goes on.

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let _ = exchange_mode(self.driver, self.mode);
        pop(self.driver);
    }
}

/// Undoes the push of `enter`, on the same thread.
fn pop(driver: &Driver) {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` outlives the call.
    let _ = unsafe { driver.cuCtxPopCurrent_v2(&mut popped) };
}

/// Sets this thread's capture mode and returns the one before.
fn exchange_mode(driver: &Driver, mut mode: u32) -> std::result::Result<u32, Failed> {
    // SAFETY: `mode` outlives the call. It is a number, because the driver may know more modes than
    // the bindings.
    unsafe { driver.cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) }?;
    Ok(mode)
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.process.is_current() && !self.is_lost() {
            // SAFETY: undoes the retain of `retain`.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// A stream, event, module or graph, which is destroyed when it is dropped.
pub(super) struct Owned<T> {
    pub raw: *mut T,
    destroy: unsafe fn(&Driver, *mut T) -> Outcome,
    context: Arc<Context>,
}

// SAFETY: it may be used from any thread on which its context is current; `drop` sees to that.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above; the driver's functions may be called from several threads at a time.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// Owns the object that `create` makes. The context must be current.
    pub fn new(
        context: &Arc<Context>,
        create: impl FnOnce(&Driver, &mut *mut T) -> Outcome,
        destroy: unsafe fn(&Driver, *mut T) -> Outcome,
    ) -> Result<Self> {
        let mut raw = ptr::null_mut();
        create(&context.driver, &mut raw)?;
        Ok(Owned {
            raw,
            destroy,
            context: context.clone(),
        })
    }
}

impl Owned<CUevent_st> {
    /// An event for which somebody will wait. The context must be current.
    pub fn event(context: &Arc<Context>) -> Result<Self> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        Owned::new(
            context,
            // SAFETY: the context is current; `to` outlives the call.
            |driver, to| unsafe { driver.cuEventCreate(to, flags) },
            Driver::cuEventDestroy_v2,
        )
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: made by the function that `destroy` undoes; nobody uses it any more.
            let _ = unsafe { (self.destroy)(&self.context.driver, self.raw) };
        }
    }
}

/// Page-locked host memory.
pub(super) struct Pinned {
    pub at: *mut u8,
    pub bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        let _current = context.enter()?;
        let mut at = ptr::null_mut();
        let size = bytes.max(1);
        // Flags 0 give memory that the CPU caches; write-combined memory would be slow to read.
        // SAFETY: the context is current; `at` outlives the call.
        match unsafe { context.driver.cuMemHostAlloc(&mut at, size, 0) } {
            Err(failed) if failed.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {
                return Err(Error::refused(
                    "page-locked memory for copies",
                    bytes as u64,
                ));
            }
            outcome => outcome?,
        }
        let pinned = Pinned {
            at: at.cast(),
            bytes,
            context: context.clone(),
        };
        // SAFETY: just allocated; initialised here, so that slices of it are sound.
        unsafe { ptr::write_bytes(pinned.at, 0, size) };
        Ok(pinned)
    }
}

impl Drop for Pinned {
    /// No copy uses the memory any more, because its owners wait for their copies.
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: allocated in `new`, used by no copy.
            let _ = unsafe { self.context.driver.cuMemFreeHost(self.at.cast()) };
        }
    }
}
