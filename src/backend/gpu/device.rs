//! What the GPU backend needs of a device, and memory that gives itself back.
//!
//! Two implementations: [`super::cuda::Cuda`], and in the tests an emulator that runs the same
//! kernels on the CPU. Everything the backend does with a GPU goes through this trait.
#![allow(unsafe_code)]

use super::kernels::Kernel;
use crate::{Dtype, Error, Result};
use std::ops::Deref;
use std::sync::Arc;

/// Threads of a block and blocks of a grid, `[x, y, z]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// The kernel waits itself for the launch before it, which may still run when this one starts.
    pub dependent: bool,
}

/// A rectangle of bytes in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// First byte.
    pub at: u64,
    /// Bytes of a row.
    pub width: usize,
    /// Bytes from the beginning of a row to that of the next.
    pub pitch: usize,
}

/// What copies of boxes on compute capability 9.0 are told of a matrix: the driver's CUtensorMap. It has the matrix's
/// address and is of use as long as that is.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// Rows and columns of a box of weights or activations: a [`TensorMap`]'s. One of the cache has a page's rows.
pub const BOX: [u32; 2] = [64, 64];

/// `x[m, n] = y[m, k] w[n, k]ᵀ`, or `+=`: x float32, y and w of `dtype`, all row-major.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Address.
    pub x: u64,
    /// Address.
    pub y: u64,
    /// Address.
    pub w: u64,
    /// Rows of x and y.
    pub m: usize,
    /// Columns of x, rows of w.
    pub n: usize,
    /// Columns of y and w.
    pub k: usize,
    /// Elements from a row to the next.
    pub x_stride: usize,
    /// Elements from a row to the next.
    pub y_stride: usize,
    /// Elements from a row to the next.
    pub w_stride: usize,
    /// f16 or bf16.
    pub dtype: Dtype,
    /// To what x has; else that is not read.
    pub adds: bool,
}

/// One GPU: memory, copies and launches, all in the order in which they were asked for.
///
/// Copies to the device and launches do not wait; an error of theirs may be reported by a later call.
/// After an error nothing that the device holds is of use.
///
/// # Safety
/// Implementations must do what the methods say: [`Memory`] relies on addresses being those of live,
/// distinct allocations.
pub unsafe trait Device: Send + Sync + 'static {
    /// Host memory that the device copies into. Dropped, it waits for a copy that is under way.
    type Host: Deref<Target = [f32]> + Send;

    /// Launches that were recorded.
    type Graph: Send;

    /// The device in words.
    fn name(&self) -> String;

    /// Bytes that can still be allocated.
    fn available(&self) -> Result<u64>;

    /// Bytes of its memory that it has taken for a library of the vendor's: a handle's limit counts them. 0: it has none,
    /// or has given it up: then [`Device::available`] is so much more.
    fn own_bytes(&self) -> u64 {
        0
    }

    /// Do without that library, and give back what it has taken.
    fn give_up_library(&self) {}

    /// `bytes` bytes, aligned to 256, of unknown contents; never 0 bytes. [`Error::DeviceMemory`]
    /// names `what`.
    fn allocate(&self, what: &str, bytes: usize) -> Result<u64>;

    /// Give an allocation back.
    ///
    /// # Safety
    /// `at` is from [`Device::allocate`] of this device and is not used again.
    unsafe fn free(&self, at: u64);

    /// `n` floats of host memory.
    fn host(&self, n: usize) -> Result<Self::Host>;

    /// Set bytes to zero.
    ///
    /// # Safety
    /// The bytes lie inside one live allocation.
    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()>;

    /// Copy rows, end to end in `from`, to the device. `from` may be changed as soon as this returns.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; `from.len()` is a multiple of `to.width`.
    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()>;

    /// Copy `rows` rows inside the device; those at `from` have the same width and pitch.
    ///
    /// # Safety
    /// Both lie inside live allocations and do not overlap.
    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()>;

    /// Copy rows to the host, end to end, and wait for them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; `to.len()` is a multiple of `from.width`.
    unsafe fn read(&self, from: Rows, to: &mut [u8]) -> Result<()>;

    /// Begin to copy floats to the host.
    ///
    /// # Safety
    /// The bytes lie inside one live allocation; `n` is at most `to`'s length; until [`Device::wait`] nobody looks
    /// at `to`.
    unsafe fn fetch(&self, to: &mut Self::Host, from: u64, n: usize) -> Result<()>;

    /// Wait for the last copy that was begun into `host`, and so for everything before it, and for nothing else.
    fn wait(&self, host: &mut Self::Host) -> Result<()>;

    /// Run a kernel whose only argument is a struct with these bytes.
    ///
    /// # Safety
    /// The bytes are those of the kernel's parameter struct, and what it points to is live memory of
    /// the sizes the kernel expects.
    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()>;

    /// A map of `rows` rows of 16-bit numbers, in boxes of `box_rows` and [`BOX`]'s columns that are swizzled by 128 bytes, with
    /// zeros outside. None where the device has no kernels that take one (`*_hopper_*`), or is told not to use them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; the map is not used after that.
    unsafe fn tensor_map(&self, of: Rows, rows: usize, box_rows: u32) -> Result<Option<TensorMap>>;

    /// Have the vendor's library do a product. `Err`: it has not, and a kernel must; with the reason, if there
    /// is one to be said, once.
    ///
    /// # Safety
    /// The rows lie inside live allocations, those of x beside those of y and w; none of the sizes is 0.
    unsafe fn product(&self, _product: &Product) -> std::result::Result<(), Option<String>> {
        Err(None)
    }

    /// How many blocks of a large kernel run at a time, about; at least 1. No number that a kernel gives depends on it.
    fn multiprocessors(&self) -> u32;

    /// Whether launches can be recorded.
    fn records(&self) -> bool;

    /// Whether a step is to be launched while the one before it may still run.
    fn runs_ahead(&self) -> bool;

    /// From here on launches are recorded and do not run. Until [`Device::end_capture`], on the same thread,
    /// nothing else may be asked of this device.
    fn begin_capture(&self) -> Result<()>;

    /// What was launched since [`Device::begin_capture`]. Launches run again from here on, after an error too.
    fn end_capture(&self) -> Result<Self::Graph>;

    /// Run what was recorded, in its order.
    ///
    /// # Safety
    /// That of every [`Device::launch`] that was recorded, now; the graph is this device's.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<()>;

    /// Wait for everything.
    fn synchronize(&self) -> Result<()>;
}

/// An allocation on a device; freed when dropped.
pub struct Memory<D: Device> {
    device: Arc<D>,
    at: u64,
    bytes: usize,
}

impl<D: Device> Memory<D> {
    /// `bytes` bytes of whatever; `what` is for the message of [`Error::DeviceMemory`].
    pub fn new(device: &Arc<D>, what: &str, bytes: usize) -> Result<Self> {
        let at = device.allocate(what, bytes.max(1))?;
        Ok(Memory {
            device: device.clone(),
            at,
            bytes,
        })
    }

    /// `bytes` bytes of zeros.
    pub fn zeroed(device: &Arc<D>, what: &str, bytes: usize) -> Result<Self> {
        let memory = Self::new(device, what, bytes)?;
        // SAFETY: the allocation just made, to its end.
        unsafe { device.clear(memory.at, bytes) }?;
        Ok(memory)
    }

    /// Copy numbers to `offset`, in bytes.
    pub fn write_numbers(&self, offset: usize, numbers: &[u32]) -> Result<()> {
        // SAFETY: any u32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Copy floats to `offset`, in bytes.
    pub fn write_floats(&self, offset: usize, floats: &[f32]) -> Result<()> {
        // SAFETY: any f32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Copy `rows` rows of `width` bytes, `pitch` bytes apart, from offset `from` to offset `to`. They do not
    /// overlap.
    pub fn copy(
        &self,
        to: usize,
        from: usize,
        width: usize,
        pitch: usize,
        rows: usize,
    ) -> Result<()> {
        if rows == 0 || width == 0 {
            return Ok(());
        }
        let last = (rows - 1)
            .checked_mul(pitch)
            .and_then(|n| n.checked_add(to.max(from))?.checked_add(width));
        if last.is_none_or(|last| last > self.bytes) {
            return Err(Error::Internal(format!(
                "a copy of {rows} rows of {width} bytes, {pitch} apart, from {from} to {to} of {}",
                self.bytes
            )));
        }
        let at = self.at + to as u64;
        // SAFETY: the ends of both were compared with the allocation's.
        unsafe {
            let to = Rows { at, width, pitch };
            self.device.copy(to, self.at + from as u64, rows)
        }
    }

    /// Copy rows of `width` bytes, from `offset`, `offset + pitch`, ..., to `to`, end to end, and wait for them.
    pub fn read(&self, offset: usize, width: usize, pitch: usize, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        self.check(offset, width, pitch, to.len())?;
        let from = Rows {
            at: self.at + offset as u64,
            width,
            pitch,
        };
        // SAFETY: just compared with the allocation's end.
        unsafe { self.device.read(from, to) }
    }

    /// A map of its first `rows` rows of `width` bytes without gaps, in boxes of `box_rows`; not to be used after it. None where
    /// [`Device::tensor_map`] gives none.
    pub fn tensor_map(
        &self,
        width: usize,
        rows: usize,
        box_rows: u32,
    ) -> Result<Option<TensorMap>> {
        if width == 0 || rows == 0 || width.checked_mul(rows).is_none_or(|n| n > self.bytes) {
            return Err(Error::Internal(format!(
                "a map of {rows} rows of {width} bytes in {} bytes on the device",
                self.bytes
            )));
        }
        let of = Rows {
            at: self.at,
            width,
            pitch: width,
        };
        // SAFETY: just compared with the allocation's length.
        unsafe { self.device.tensor_map(of, rows, box_rows) }
    }

    /// Where it begins.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copy rows of `width` bytes, end to end in `from`, to `offset`, `offset + pitch`, ...
    pub fn write(&self, offset: usize, width: usize, pitch: usize, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        self.check(offset, width, pitch, from.len())?;
        let to = Rows {
            at: self.at + offset as u64,
            width,
            pitch,
        };
        // SAFETY: just compared with the allocation's end.
        unsafe { self.device.write(to, from) }
    }

    /// Whether `bytes` bytes, which are not none, in rows of `width` lie inside.
    fn check(&self, offset: usize, width: usize, pitch: usize, bytes: usize) -> Result<()> {
        let rows = bytes / width;
        let last = rows.checked_sub(1).and_then(|n| {
            n.checked_mul(pitch)?
                .checked_add(offset)?
                .checked_add(width)
        });
        match bytes.is_multiple_of(width) && last.is_some_and(|last| last <= self.bytes) {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "{bytes} bytes in rows of {width}, {pitch} apart, at {offset} of {} bytes on the device",
                self.bytes
            ))),
        }
    }
}

impl<D: Device> Drop for Memory<D> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; nobody can name it any more. The device finishes what was
        // launched before (its `free` waits).
        unsafe { self.device.free(self.at) }
    }
}

/// Host memory for what comes from a device: seen by nobody before it has come.
pub struct Landing<D: Device> {
    device: Arc<D>,
    host: D::Host,
    /// Its length; then of what was fetched.
    room: usize,
    n: usize,
}

impl<D: Device> Landing<D> {
    /// For up to `n` floats.
    pub fn new(device: &Arc<D>, n: usize) -> Result<Self> {
        Ok(Landing {
            host: device.host(n)?,
            device: device.clone(),
            room: n,
            n: 0,
        })
    }

    /// Begin to copy the first `n` floats of `from`, which belongs to the same device.
    pub fn fetch(&mut self, from: &Memory<D>, n: usize) -> Result<()> {
        if n > self.room || n.saturating_mul(4) > from.bytes {
            return Err(Error::Internal(format!(
                "{n} floats from {} bytes on the device to {} on the host",
                from.bytes, self.room
            )));
        }
        // SAFETY: just compared with both lengths; whoever looks at `host` waits first.
        unsafe { self.device.fetch(&mut self.host, from.at, n) }?;
        self.n = n;
        Ok(())
    }

    /// Wait for what was fetched last.
    pub fn wait(&mut self) -> Result<&[f32]> {
        self.device.wait(&mut self.host)?;
        Ok(&self.host[..self.n])
    }
}
