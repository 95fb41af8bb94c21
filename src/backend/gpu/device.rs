//! What the GPU backend needs of a device, and device memory that is freed when it is dropped.
//!
//! There are two implementations: [`super::cuda::Cuda`], and an emulator in the tests that runs the
//! same kernels on the CPU. Everything that the backend does with a GPU goes through this trait.
#![allow(unsafe_code)]

use super::kernels::Kernel;
use super::room::Room;
use crate::backend::Watch;
use crate::{Dtype, Error, Result};
use std::ops::Deref;
use std::sync::Arc;

/// The geometry of a launch. Sizes are `[x, y, z]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Blocks of a cluster, which are neighbours in the first dimension of the grid. A device may
    /// launch them without clusters: the results have the same bits.
    pub cluster: u32,
    /// Whether this launch may start while the previous one still runs. The kernel then waits for
    /// it.
    pub dependent: bool,
}

/// A rectangle of bytes in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// First byte.
    pub at: u64,
    /// Bytes of a row.
    pub width: usize,
    /// Bytes from the beginning of a row to the beginning of the next one.
    pub pitch: usize,
}

/// The driver's CUtensorMap, which describes a matrix for copies of boxes on compute capability
/// 9.0. It contains the address of the matrix and may be used as long as the matrix lives.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// Rows and columns of a box of weights or activations in a [`TensorMap`]. A box of the cache has
/// as many rows as a page has positions.
pub const BOX: [u32; 2] = [64, 64];

/// `x[m, n] = y[m, k] w[n, k]ᵀ`, or `+=`. x is float32, y and w have type `dtype`, and all are
/// row-major.
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

/// Why most devices are in no group.
const NO_GROUP: &str = "this device exchanges nothing by itself";

/// The name of a group of devices that exchange numbers by themselves.
pub type GroupId = [u8; 128];

/// One GPU: memory, copies and launches. Calls take effect in their order.
///
/// Copies to the device and launches do not wait, so a later call may report their errors. After an
/// error, nothing in the device's memory may be used any more.
///
/// # Safety
/// Implementations must do what the methods say. [`Memory`] relies on getting the addresses of
/// live, distinct allocations.
pub unsafe trait Device: Send + Sync + 'static {
    /// Host memory that the device copies into. When dropped, it waits for a copy in progress.
    type Host: Deref<Target = [f32]> + Send;

    /// Recorded launches.
    type Graph: Send;

    /// A description of the device.
    fn name(&self) -> String;

    /// Which of the ways to run kernels are in use, for the log; `None` if there is one only.
    fn ways(&self) -> Option<String> {
        None
    }

    /// Bytes that can still be allocated.
    fn available(&self) -> Result<u64>;

    /// Bytes of device memory that the device has taken for a library of the vendor. They count
    /// towards a handle's limit. 0 if there is no library, or if it was given up, which makes
    /// [`Device::available`] larger by as much.
    fn own_bytes(&self) -> u64 {
        0
    }

    /// Gives the vendor's library up, and frees the memory that was taken for it.
    fn give_up_library(&self) {}

    /// Allocates `bytes` bytes (never 0), aligned to 256, with unknown contents.
    /// [`Error::DeviceMemory`] names `what`.
    fn allocate(&self, what: &str, bytes: usize) -> Result<u64>;

    /// Frees an allocation.
    ///
    /// # Safety
    /// `at` is from [`Device::allocate`] of this device and is not used again.
    unsafe fn free(&self, at: u64);

    /// Allocates `n` floats of host memory.
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
    /// Source and destination lie inside live allocations and do not overlap.
    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()>;

    /// Copies rows to the host, end to end, and waits for them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; `to.len()` is a multiple of `from.width`.
    unsafe fn read(&self, from: Rows, to: &mut [u8]) -> Result<()>;

    /// Begins to copy `n` floats to the host, where float number `at` and the next ones are.
    ///
    /// # Safety
    /// The bytes lie inside one live allocation; `at + n` is at most the length of `to`; nobody
    /// reads `to` before [`Device::wait`].
    unsafe fn fetch(&self, to: &mut Self::Host, at: usize, from: u64, n: usize) -> Result<()>;

    /// Waits for the last copy that was begun into `host`, and so for everything before it, but not
    /// for anything after it.
    fn wait(&self, host: &mut Self::Host) -> Result<()>;

    /// Launches a kernel whose only argument is a struct with these bytes.
    ///
    /// # Safety
    /// The bytes are a value of the kernel's parameter struct, and its addresses are those of live
    /// memory of the sizes that the kernel expects.
    unsafe fn launch(&self, kernel: Kernel, geometry: Geometry, params: &[u8]) -> Result<()>;

    /// Makes a map of `rows` rows of 16-bit numbers, with boxes of `box_rows` rows and as many
    /// columns as [`BOX`] says. Boxes are swizzled by 128 bytes and read zeros outside the matrix.
    /// Returns `None` if the device has no kernels that take a map (`*_hopper_*`), or was told not
    /// to use them.
    ///
    /// # Safety
    /// The rows lie inside one live allocation; the map is not used after the allocation is freed.
    unsafe fn tensor_map(&self, of: Rows, rows: usize, box_rows: u32) -> Result<Option<TensorMap>>;

    /// Lets the vendor's library do a product. `Err` means that the library has not done it, so a
    /// kernel must. It contains the reason if the user should hear of it, which is once.
    ///
    /// # Safety
    /// The rows lie inside live allocations; x does not overlap y and w; none of the sizes is 0.
    unsafe fn product(&self, _product: &Product) -> std::result::Result<(), Option<String>> {
        Err(None)
    }

    /// Roughly how many blocks of a large kernel run at the same time; at least 1. No kernel's
    /// result depends on it.
    fn multiprocessors(&self) -> u32;

    /// Whether prompts of few rows may be multiplied in quarter tiles
    /// (`geometry::Hopper`).
    fn quarters(&self) -> bool {
        true
    }

    /// The shared memory of a multiprocessor.
    fn room(&self) -> Room;

    /// Whether launches can be recorded.
    fn records(&self) -> bool;

    /// Whether a step may be launched while the one before it still runs.
    fn runs_ahead(&self) -> bool;

    /// Begins to record launches instead of running them. Until [`Device::end_capture`], only
    /// [`Device::launch`] and the exchanges of a group may be called, on the same thread.
    fn begin_capture(&self) -> Result<()>;

    /// Returns the launches since [`Device::begin_capture`]. From now on launches run again, even
    /// if this fails.
    fn end_capture(&self) -> Result<Self::Graph>;

    /// Runs the recorded launches in their order.
    ///
    /// # Safety
    /// Every recorded launch and exchange must be safe now, and the graph must belong to this
    /// device.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<()>;

    /// Waits for everything.
    fn synchronize(&self) -> Result<()>;

    /// Has all waits for this device watched. If the watch ends one, the exchanges of the group end
    /// with it, and nothing succeeds any more.
    fn watch(&self, _watch: Arc<dyn Watch>) {}

    /// A name for a group of devices that does not exist yet. `Err` is the reason why this device
    /// exchanges nothing by itself.
    fn new_group(&self) -> std::result::Result<GroupId, String> {
        Err(NO_GROUP.into())
    }

    /// Whether there is something by which this device can join a group; `Err` is the reason why
    /// not.
    fn can_join(&self) -> std::result::Result<(), String> {
        Err(NO_GROUP.into())
    }

    /// Joins a group as its member `rank`, and waits for all `ranks` of them. Waits must be watched
    /// ([`Device::watch`]). Returns the name of what moves the numbers. The device leaves the group
    /// when it is dropped, if it has not before.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Device`], or that of the watch.
    fn join(&self, _id: &GroupId, _rank: usize, _ranks: usize) -> Result<String> {
        Err(Error::Unsupported(NO_GROUP.into()))
    }

    /// Leaves the group, together with the other devices unless one of them has failed. Returns
    /// false if this device does not get idle: then it may still read and write what it was told
    /// to.
    fn leave(&self) -> bool {
        self.synchronize().is_ok()
    }

    /// Lets kernels of this device read and write the memory of the other one. `Err` is the reason
    /// why they cannot, or why it would not be faster than the group.
    fn reach(&self, _other: &Self) -> std::result::Result<(), String> {
        Err(NO_GROUP.into())
    }

    /// The address, for kernels of this device, of a word of the host. It is not 0 once a watch has
    /// ended a wait: then no kernel waits for another device any more.
    fn given_up(&self) -> Result<u64> {
        Err(Error::Internal(NO_GROUP.into()))
    }

    /// Must be called before each launch that waits for other devices. Waits for one that was
    /// launched a while ago, since a driver waits without an end where too many are under way.
    fn keep_pace(&self) -> Result<()> {
        Ok(())
    }

    /// Gives `n` floats to all devices of the group, and puts what all give to `to`, in the order
    /// of the ranks. May be recorded. All devices do the same exchanges in the same order.
    ///
    /// # Safety
    /// Both lie inside live allocations; they do not overlap, or `from` is this rank's part of
    /// `to`.
    unsafe fn all_gather(&self, _to: u64, _from: u64, _n: usize) -> Result<()> {
        Err(Error::Internal(NO_GROUP.into()))
    }

    /// Gives the `r`th `n` floats of `from` to rank `r`, and puts what the ranks give to this one
    /// to `to`, in their order. May be recorded.
    ///
    /// # Safety
    /// Both lie inside live allocations and do not overlap.
    unsafe fn all_to_all(&self, _to: u64, _from: u64, _n: usize) -> Result<()> {
        Err(Error::Internal(NO_GROUP.into()))
    }
}

/// An allocation on a device. It is freed when it is dropped.
pub struct Memory<D: Device> {
    device: Arc<D>,
    at: u64,
    bytes: usize,
}

impl<D: Device> Memory<D> {
    /// Allocates `bytes` bytes with unknown contents. [`Error::DeviceMemory`] names `what`.
    pub fn new(device: &Arc<D>, what: &str, bytes: usize) -> Result<Self> {
        let at = device.allocate(what, bytes.max(1))?;
        Ok(Memory {
            device: device.clone(),
            at,
            bytes,
        })
    }

    /// Allocates `bytes` bytes of zeros.
    pub fn zeroed(device: &Arc<D>, what: &str, bytes: usize) -> Result<Self> {
        let memory = Self::new(device, what, bytes)?;
        // SAFETY: the allocation just made, to its end.
        unsafe { device.clear(memory.at, bytes) }?;
        Ok(memory)
    }

    /// Sets bytes to zero.
    pub fn clear(&self, offset: usize, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.check(offset, bytes, bytes, bytes)?;
        // SAFETY: just compared with the end of the allocation.
        unsafe { self.device.clear(self.at + offset as u64, bytes) }
    }

    /// Copies numbers to `offset`, which is in bytes.
    pub fn write_numbers(&self, offset: usize, numbers: &[u32]) -> Result<()> {
        // SAFETY: any u32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Copies floats to `offset`, which is in bytes.
    pub fn write_floats(&self, offset: usize, floats: &[f32]) -> Result<()> {
        // SAFETY: any f32 is four initialised bytes.
        let bytes: &[u8] =
            unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) };
        self.write(offset, bytes.len(), bytes.len(), bytes)
    }

    /// Gives the first `n` floats of `from` to all of the `ranks` devices of the group, and takes
    /// those of all of them, in their order. `from` is memory of the same device.
    pub fn all_gather(&self, from: &Memory<D>, n: usize, ranks: usize) -> Result<()> {
        self.check_exchange(from, n, n.saturating_mul(ranks))?;
        // SAFETY: both lengths were just compared.
        unsafe { self.device.all_gather(self.at, from.at, n) }
    }

    /// Gives each of the `ranks` slices of `n` floats of `from` to the rank of that number, and
    /// takes what all ranks give to this one, in their order.
    pub fn all_to_all(&self, from: &Memory<D>, n: usize, ranks: usize) -> Result<()> {
        let all = n.saturating_mul(ranks);
        self.check_exchange(from, all, all)?;
        // SAFETY: both lengths were just compared.
        unsafe { self.device.all_to_all(self.at, from.at, n) }
    }

    /// Of `ranks` slices of `n` floats each, this rank has its own; it gives it to all, and takes
    /// those of the others.
    pub fn gather_slices(&self, n: usize, rank: usize, ranks: usize) -> Result<()> {
        self.check_exchange(self, n.saturating_mul(rank + 1), n.saturating_mul(ranks))?;
        let own = self.at + (4 * n * rank) as u64;
        // SAFETY: both lengths were just compared.
        unsafe { self.device.all_gather(self.at, own, n) }
    }

    /// Checks that `from` has as many floats as are given, and this memory as many as are taken.
    fn check_exchange(&self, from: &Memory<D>, given: usize, taken: usize) -> Result<()> {
        match given.saturating_mul(4) <= from.bytes && taken.saturating_mul(4) <= self.bytes {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "{given} floats from {} bytes on the device, {taken} to {}",
                from.bytes, self.bytes
            ))),
        }
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

    /// Copies rows of `width` bytes from offsets `offset`, `offset + pitch` and so on to `to`,
    /// where they lie end to end, and waits for them.
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

    /// Makes a tensor map of the first `rows` rows of `width` bytes, which have no gaps, with boxes
    /// of `box_rows` rows. The map must not be used after this memory is dropped. Returns `None` if
    /// [`Device::tensor_map`] does.
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

    /// Checks that `bytes` > 0 bytes, in rows of `width` bytes, lie inside the allocation.
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

/// Host memory into which a device copies floats. Nobody can read them before they have arrived.
pub struct Landing<D: Device> {
    device: Arc<D>,
    host: D::Host,
    /// The capacity in floats; below, the number of floats that were fetched.
    room: usize,
    n: usize,
}

impl<D: Device> Landing<D> {
    /// Allocates room for `n` floats.
    pub fn new(device: &Arc<D>, n: usize) -> Result<Self> {
        Ok(Landing {
            host: device.host(n)?,
            device: device.clone(),
            room: n,
            n: 0,
        })
    }

    /// Begins to copy the first `n` floats of `from`, which must belong to the same device.
    pub fn fetch(&mut self, from: &Memory<D>, n: usize) -> Result<()> {
        self.n = 0;
        self.fetch_more(from, 0, n)
    }

    /// The same for `n` floats from float `first` on, which come behind those fetched before.
    pub fn fetch_more(&mut self, from: &Memory<D>, first: usize, n: usize) -> Result<()> {
        let end = first.saturating_add(n).saturating_mul(4);
        if n > self.room - self.n || end > from.bytes {
            return Err(Error::Internal(format!(
                "floats {first} to {first} + {n} from {} bytes on the device to {} on the host, \
                 behind {}",
                from.bytes, self.room, self.n
            )));
        }
        let from = from.at + 4 * first as u64;
        // SAFETY: just compared with both lengths; whoever reads `host` waits first.
        unsafe { self.device.fetch(&mut self.host, self.n, from, n) }?;
        self.n += n;
        Ok(())
    }

    /// Waits for the last fetch and returns the floats of all since [`Landing::fetch`].
    pub fn wait(&mut self) -> Result<&[f32]> {
        self.device.wait(&mut self.host)?;
        Ok(&self.host[..self.n])
    }
}
