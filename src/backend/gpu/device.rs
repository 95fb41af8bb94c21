//! What the GPU backend needs of a device. [`super::memory`] is what it makes of that.
//!
//! There are two implementations: [`super::cuda::Cuda`], and an emulator in the tests that runs the
//! same kernels on the CPU. Everything that the backend does with a GPU goes through this trait.
#![allow(unsafe_code)]

use super::kernels::Kernel;
use super::room::Room;
use crate::backend::Watch;
use crate::{Dtype, Error, Result};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

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

/// Held by whoever puts work into a device's stream or frees its memory. One thread launches steps,
/// perhaps of two models, while others bring adapters and take them away. What anybody puts into
/// the stream while launches are recorded would become part of the record.
///
/// The thread of steps holds it whenever it submits something (a step's input, its launches, the
/// copy of its answer, pages), and no longer. So it waits for another thread's copy of one matrix,
/// or, when an adapter is dropped, for the step that runs.
#[derive(Debug, Default)]
pub struct Gate(Mutex<()>);

impl Gate {
    /// Waits for its turn, which lasts as long as the guard.
    pub fn pass(&self) -> MutexGuard<'_, ()> {
        // What it guards is not in memory, so nothing is half changed after a panic.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// One GPU: memory, copies and launches. Calls take effect in their order.
///
/// Copies to the device and launches do not wait, so a later call may report their errors. After an
/// error, nothing in the device's memory may be used any more.
///
/// # Safety
/// Implementations must do what the methods say. [`super::memory::Memory`] relies on getting the
/// addresses of live, distinct allocations.
pub unsafe trait Device: Send + Sync + 'static {
    /// Host memory that the device copies into. When dropped, it waits for a copy in progress.
    type Host: Deref<Target = [f32]> + Send;

    /// Recorded launches.
    type Graph: Send;

    /// The gate of its stream.
    fn gate(&self) -> &Gate;

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

    /// Waits for everything, and frees an allocation. After an error the memory is left behind,
    /// since what was launched may still use it.
    ///
    /// # Safety
    /// `at` is from [`Device::allocate`] of this device and is not used again.
    unsafe fn free(&self, at: u64) -> Result<()>;

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
    /// The bytes are a value of the kernel's parameter struct. Its addresses point to live
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
    /// [`Error::Unsupported`], [`Error::Device`], or the error of the watch.
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
