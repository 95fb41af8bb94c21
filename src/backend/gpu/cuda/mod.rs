//! A real GPU, through the driver's own interface. (U)
//!
//! It uses the primary context, which it shares with other CUDA code of the process. The context is
//! current only during our calls, so such code notices nothing. All work goes through one stream.
//! On compute capability 9.0, kernels that can wait for the previous launch themselves are launched
//! early.
//!
//! Environment variables:
//! - LLAMABI_CUDA_GRAPHS=0: launches are never recorded.
//! - LLAMABI_CUDA_AHEAD=0: a step is launched only after the answer of the one before it has been
//!   read.
//! - LLAMABI_CUDA_PDL=0: no launch starts before the previous one has ended.
//! - LLAMABI_CUDA_CARVEOUT=0: the driver chooses for each kernel how it divides a multiprocessor's
//!   memory into L1 and shared memory. Otherwise all kernels of decode ask for as much shared
//!   memory as there is.
//! - LLAMABI_CUDA_HOPPER=0: the kernels for compute capability 9.0 are not used.
//! - LLAMABI_NCCL: the file of NCCL, by which several ranks exchange numbers.
//! - LLAMABI_CUDA_CLUSTERS=0: blocks of the kernels for compute capability 9.0 do not share what
//!   they copy.
//! - LLAMABI_CUDA_QUARTERS=0: prompts have no tiles of 64 x 64 on compute capability 9.0.
//! - LLAMABI_CUDA_BLASLT=1 or a path: cuBLASLt does the products of large prompts in f16 and bf16.
//!   Results may then depend on the other rows of the batch.
#![allow(unsafe_code)]

mod blaslt;
mod context;
mod device;
mod graph;
mod group;
mod modules;
mod nccl;
mod staging;
mod waits;

use super::device::{Device, Gate};
use super::driver::Driver;
use super::driver::sys::*;
use super::images::Images;
use super::preflight::{Found, preflight};
use super::room::Room;
use crate::Result;
use blaslt::BlasLt;
use context::{Context, Owned, Pinned};
use group::Pace;
use modules::Modules;
use nccl::Nccl;
use staging::Staging;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

pub use graph::Graph;

/// Floats in page-locked host memory.
pub struct Floats {
    memory: Pinned,
    /// Fires when the last copy into the memory is done.
    done: Owned<CUevent_st>,
    context: Arc<Context>,
}

impl Floats {
    fn wait(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the event is alive.
        unsafe { self.context.wait_for_event(self.done.raw) }
    }
}

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: page-aligned, initialised in `Pinned::new`, borrowed through `self`. Nobody reads
        // it while a copy into it is in progress (`Device::fetch`'s contract).
        unsafe { std::slice::from_raw_parts(self.memory.at.cast(), self.memory.bytes / 4) }
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        // After a device error no copy is in progress.
        let _ = self.wait();
    }
}

/// Who does the products that a library may do.
enum Products {
    /// Our own kernels do.
    Own,
    Library(Box<BlasLt>),
    /// Our own kernels do, because the library failed. The reason has not been reported yet.
    Failed(String),
}

/// One NVIDIA GPU. The order of the fields is the order in which they are dropped.
pub struct Cuda {
    products: Mutex<Products>,
    staging: Staging,
    modules: Modules,
    stream: Owned<CUstream_st>,
    gate: Gate,
    context: Arc<Context>,
    found: Found,
    /// The rows of a 2D copy may lie at most this many bytes apart.
    max_pitch: usize,
    multiprocessors: u32,
    room: Room,
    records: bool,
    runs_ahead: bool,
    /// Whether launches are being recorded.
    recording: AtomicBool,
    pace: Mutex<Pace>,
    /// [`Device::given_up`].
    given_up: Mutex<Option<Pinned>>,
    /// Whether launches may start before the previous one has ended.
    programmatic: bool,
    /// Whether the kernels for compute capability 9.0 are used, clusters of their blocks, and their
    /// quarter tiles.
    hopper: bool,
    clusters: bool,
    quarters: bool,
}

/// The oldest driver whose graphs keep programmatic dependent launches as such.
const PROGRAMMATIC_DRIVER: i32 = 12_030;

fn is_on(variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|value| value != "0")
}

impl Cuda {
    /// Opens GPU `index` with these kernels and the driver from the first of `libraries` that can
    /// be opened.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] with a [`super::reason::Reason`] if there is no usable GPU,
    /// [`crate::Error::Device`] if the driver refuses something.
    pub fn open(libraries: &[&str], images: &Images, index: usize) -> Result<Cuda> {
        let (driver, found) = preflight(images, libraries, index)?;
        let context = Context::retain(driver, index)?;
        let current = context.enter()?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let stream = Owned::new(
            &context,
            // SAFETY: the context is current; `to` outlives the call.
            |driver, to| unsafe { driver.cuStreamCreate(to, flags) },
            Driver::cuStreamDestroy_v2,
        )?;
        let modules = Modules::load(&context, images, &found, is_on("LLAMABI_CUDA_CARVEOUT"))?;
        let multiprocessors =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let whole = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        let reserved = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK;
        let bytes = |which| context.attribute(which).map(|bytes| bytes.max(0) as u32);
        let room = Room {
            whole: bytes(whole)?,
            reserved: bytes(reserved)?,
            most: modules.shared,
            is_90: found.arch == (9, 0),
        };
        let cuda = Cuda {
            hopper: modules.hopper && found.arch == (9, 0) && is_on("LLAMABI_CUDA_HOPPER"),
            clusters: is_on("LLAMABI_CUDA_CLUSTERS"),
            quarters: is_on("LLAMABI_CUDA_QUARTERS"),
            products: Mutex::new(Products::Own),
            programmatic: modules.programmatic
                && found.driver >= PROGRAMMATIC_DRIVER
                && is_on("LLAMABI_CUDA_PDL"),
            modules,
            staging: Staging::new(&context)?,
            stream,
            gate: Gate::default(),
            found,
            max_pitch: context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)?
                as usize,
            multiprocessors: multiprocessors.max(1) as u32,
            room,
            records: is_on("LLAMABI_CUDA_GRAPHS"),
            recording: AtomicBool::new(false),
            pace: Mutex::new(Pace::new(&context)?),
            given_up: Mutex::default(),
            runs_ahead: is_on("LLAMABI_CUDA_AHEAD"),
            context: context.clone(),
        };
        drop(current);
        match std::env::var("LLAMABI_CUDA_BLASLT") {
            Ok(asked) if !asked.is_empty() && asked != "0" => cuda.with_blaslt(&asked),
            _ => Ok(cuda),
        }
    }

    /// Makes the device use cuBLASLt. `asked` is the value of LLAMABI_CUDA_BLASLT: `1` or a file.
    /// If the library cannot be opened, or fails later, our own kernels do its work.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if the device is broken.
    pub fn with_blaslt(mut self, asked: &str) -> Result<Cuda> {
        let current = self.context.enter()?;
        let products = match BlasLt::open(asked, &self.context) {
            Ok(library) => Products::Library(Box::new(library)),
            Err(why) => Products::Failed(format!("{asked}: {why}")),
        };
        drop(current);
        self.products = Mutex::new(products);
        Ok(self)
    }

    /// Makes the device use this file of NCCL.
    ///
    /// # Errors
    /// A sentence.
    pub fn with_nccl(self, file: &str) -> std::result::Result<Cuda, String> {
        let nccl = Nccl::of(file, &[0])?;
        let _ = self.context.nccl.set(Ok(nccl));
        Ok(self)
    }

    fn driver(&self) -> &Driver {
        &self.context.driver
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Copies in progress may still use the fields that are dropped now.
        self.leave();
        self.context.tell_no_kernels();
    }
}
