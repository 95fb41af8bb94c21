//! What the GPU backend needs of a device, and device memory that frees itself.
//!
//! There are two implementations: [`super::cuda::Cuda`], and an emulator in the tests that runs the
//! same kernels on the CPU. Everything that the backend does with a GPU goes through this trait.
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
    /// The kernel itself waits for the previous launch, which may still run when this one starts.
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

/// Describes a matrix for copies of boxes on compute capability 9.0: the driver's CUtensorMap. It
/// contains the address of the matrix and may be used as long as the matrix lives.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// Rows and columns of a box of weights or activations in a [`TensorMap`]. A box of the cache has
/// as many rows as a page.
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
    /// Elements from one row to the next.
    pub x_stride: usize,
    /// Elements from one row to the next.
    pub y_stride: usize,
    /// Elements from one row to the next.
    pub w_stride: usize,
    /// f16 or bf16.
    pub dtype: Dtype,
    /// Whether the product is added to x; if not, x is not read.
    pub adds: bool,
}

/// One GPU: memory, copies and launches. They take effect in the order of the calls.
///
/// Copies to the device and launches do not wait; a later call may report their errors. After an
/// error, nothing that the device holds may be used any more.
///
/// # Safety
/// Implementations must do what the methods say: [`Memory`] relies on addresses of live, distinct
/// allocations.
pub unsafe trait Device: Send + Sync + 'static {
    /// Host memory that the device copies into. When dropped, it waits for a copy in progress.
    type Host: Deref<Target = [f32]> + Send;

    /// Launches that were recorded.
    type Graph: Send;

    /// The device in words.
    fn name(&self) -> String;

    /// Bytes that can still be allocated.
    fn available(&self) -> Result<u64>;

    /// Bytes of device memory that it has taken for a library of the vendor; they count towards a
    /// handle's limit. 0 if it has no library or has given it up; [`Device::available`] is then
    /// larger by as much.
    fn own_bytes(&self) -> u64 {
        0
    }

    /// Gives that library up, and frees what it has taken.
    fn give_up_library(&self) {}

    /// Allocates `bytes` bytes (never 0), aligned to 256, with unknown contents.
    /// [`Error::DeviceMemory`] names `what`.
    fn allocate(&self, what: &str, bytes: usize) -> Result<u64>;

    /// Frees an allocation.
    ///
    /// # Safety
    /// `at` is from [`Device::allocate`] of this device and is not used again.
    unsafe fn free(&self, at: u64);

    /// `n` floats of host memory.
    fn host(&self, n: usize) -> Result<Self::Host>;

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// The bytes lie inside one live allocation.
    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()>;

    /// Copies rows, which lie end to end in `from`, to the device. `from` may be changed as soon as
    /// this returns.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; `from.len()` is a multiple of `to.width`.
    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()>;

    /// Copies `rows` rows within the device; the rows at `from` have the same width and pitch.
    ///
    /// # Safety
    /// Both lie inside live allocations and do not overlap.
    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()>;

    /// Copy rows to the host, end to end, and wait for them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; `to.len()` is a multiple of `from.width`.
    unsafe fn read(&self, from: Rows, to: &mut [u8]) -> Result<()>;

    /// Begins to copy floats to the host.
    ///
    /// # Safety
    /// The bytes lie inside one live allocation; `n` is at most the length of `to`; nobody reads
    /// `to` before [`Device::wait`].
    unsafe fn fetch(&self, to: &mut Self::Host, from: u64, n: usize) -> Result<()>;

    /// Waits for the last copy that was begun into `host`, hence for everything before it, and for
    /// nothing else.
    fn wait(&self, host: &mut Self::Host) -> Result<()>;

    /// Runs a kernel whose only argument is a struct with these bytes.
    ///
    /// # Safety
    /// The bytes are those of the kernel's parameter struct, and it points to live memory of the
    /// sizes that the kernel expects.
    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()>;

    /// A map of `rows` rows of 16-bit numbers, in boxes of `box_rows` rows and the columns of
    /// [`BOX`]. Boxes are swizzled by 128 bytes and read zeros outside the matrix. `None` if the
    /// device has no kernels that take a map (`*_hopper_*`), or is told not to use them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; the map is not used after the allocation is freed.
    unsafe fn tensor_map(&self, of: Rows, rows: usize, box_rows: u32) -> Result<Option<TensorMap>>;

    /// Does a product with the vendor's library. `Err`: the library has not done it, so a kernel
    /// must; it contains the reason if the user should hear of one, once.
    ///
    /// # Safety
    /// The rows lie inside live allocations; x does not overlap y and w; none of the sizes is 0.
    unsafe fn product(&self, _product: &Product) -> std::result::Result<(), Option<String>> {
        Err(None)
    }

    /// Roughly how many blocks of a large kernel run at the same time; at least 1. No result of a
    /// kernel depends on it.
    fn multiprocessors(&self) -> u32;

    /// Whether launches can be recorded.
    fn records(&self) -> bool;

    /// Whether a step may be launched while the one before it still runs.
    fn runs_ahead(&self) -> bool;

    /// From here on launches are recorded instead of run. Until [`Device::end_capture`], on the
    /// same thread, no other function of this device may be called.
    fn begin_capture(&self) -> Result<()>;

    /// Returns what was launched since [`Device::begin_capture`]. From here on launches run again,
    /// even after an error.
    fn end_capture(&self) -> Result<Self::Graph>;

    /// Runs what was recorded, in its order.
    ///
    /// # Safety
    /// Every recorded [`Device::launch`] must be safe now; the graph belongs to this device.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<()>;

    /// Waits for everything.
    fn synchronize(&self) -> Result<()>;
}

/// An allocation on a device; freed when dropped.
pub struct Memory<D: Device> {
    device: Arc<D>,
    at: u64,
    bytes: usize,
}

impl<D: Device> Memory<D> {
    /// `bytes` bytes with unknown contents; [`Error::DeviceMemory`] names `what`.
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

    /// Copies numbers to `offset`, in bytes.
    pub fn write_numbers(&self, offset: usize, numbers: &[u32]) -> Result<()> {
        // SAFETY: any u32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Copies floats to `offset`, in bytes.
    pub fn write_floats(&self, offset: usize, floats: &[f32]) -> Result<()> {
        // SAFETY: any f32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Copies `rows` rows of `width` bytes, `pitch` bytes apart, from offset `from` to offset `to`.
    /// The rows do not overlap.
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
        // SAFETY: both ends were compared with the end of the allocation.
        unsafe {
            let to = Rows { at, width, pitch };
            self.device.copy(to, self.at + from as u64, rows)
        }
    }

    /// Copies rows of `width` bytes, from `offset`, `offset + pitch`, ..., to `to`, end to end, and
    /// waits for them.
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
        // SAFETY: the end of the last row was compared with the end of the allocation.
        unsafe { self.device.read(from, to) }
    }

    /// A tensor map of its first `rows` rows of `width` bytes without gaps, in boxes of `box_rows`
    /// rows. The map may not be used once this memory is dropped. `None` where
    /// [`Device::tensor_map`] returns `None`.
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

    /// Its address.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies rows of `width` bytes, which lie end to end in `from`, to `offset`, `offset + pitch`,
    /// ...
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
        // SAFETY: the end of the last row was compared with the end of the allocation.
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
                "{bytes} bytes in rows of {width}, {pitch} apart, at {offset} of {} bytes on the \
                 device",
                self.bytes
            ))),
        }
    }
}

impl<D: Device> Drop for Memory<D> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and nobody can name it any more. The device finishes what was
        // launched before, because its `free` waits.
        unsafe { self.device.free(self.at) }
    }
}

/// Host memory for what comes from a device; nobody can read it before it has arrived.
pub struct Landing<D: Device> {
    device: Arc<D>,
    host: D::Host,
    /// Its capacity in floats; below, the floats of the last fetch.
    room: usize,
    n: usize,
}

impl<D: Device> Landing<D> {
    /// Has room for `n` floats.
    pub fn new(device: &Arc<D>, n: usize) -> Result<Self> {
        Ok(Landing {
            host: device.host(n)?,
            device: device.clone(),
            room: n,
            n: 0,
        })
    }

    /// Begins to copy the first `n` floats of `from`, which belongs to the same device.
    pub fn fetch(&mut self, from: &Memory<D>, n: usize) -> Result<()> {
        if n > self.room || n.saturating_mul(4) > from.bytes {
            return Err(Error::Internal(format!(
                "{n} floats from {} bytes on the device to {} on the host",
                from.bytes, self.room
            )));
        }
        // SAFETY: just compared with both lengths; whoever reads `host` waits first.
        unsafe { self.device.fetch(&mut self.host, from.at, n) }?;
        self.n = n;
        Ok(())
    }

    /// Waits for the last fetch.
    pub fn wait(&mut self) -> Result<&[f32]> {
        self.device.wait(&mut self.host)?;
        Ok(&self.host[..self.n])
    }
}
