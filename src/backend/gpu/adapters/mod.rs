//! Adapters of requests on the device: their matrices, and which of them the rows of a step have.
//! `kernels/adapt.cu` has the arithmetic.
//!
//! The products do not know of adapters. Before a product, a kernel computes `scale * A x`, a few
//! numbers for each row; behind it, another adds B times these to the sums. In a step with
//! adapters, q | k | v and gate | up leave their sums in float32 for that, and what their epilogues
//! would do follows in a kernel of its own (`append`, `adapt_up`), with the same bits. A step in
//! which no row has an adapter is launched as if there were none.
//!
//! A kernel finds a row's adapter by an address in a list that is filled before the step, so a
//! recorded step serves any adapters. The list and the other buffers of [`Room`] are allocated when
//! the first adapter is added, not in a step.
//!
//! Adapters come and go on threads of callers, while the engine's thread launches steps. Everything
//! goes through one stream: a copy is done before the steps that need it, and memory is freed
//! behind those that used it. [`Gate`](super::device::Gate) keeps the threads apart: while launches
//! are recorded nobody else may use the stream, and memory is freed while nothing is under way.

mod carriage;
mod rows;

pub(super) use carriage::Carriage;
pub(super) use rows::AdapterInput;

use super::device::Device;
use super::memory::Memory;
use super::params::{GPU_MAX_RANK, GPU_THIN};
use super::step::bucket;
use super::{Gpu, most_decoded, pad32};
use crate::backend::adapter::{LowRank, MAX_PARTS, MAX_RANK};
use crate::backend::{Adapter, Limits, RowKind, Shape, Step};
use crate::log::{Level, Log};
use crate::{Dtype, Error, Result, reserve};
use std::sync::{Arc, Mutex};

const _: () =
    assert!(MAX_RANK == GPU_MAX_RANK as usize && GPU_THIN as usize == MAX_PARTS * MAX_RANK);

/// The largest number of prompt rows whose sums of gate and up are in memory at once. A product of
/// so many rows uses each weight often enough (`library` has the numbers).
const GROUP: usize = 512;

/// The bytes that adapters may still take, if the handle has a limit.
struct Left(Mutex<u64>);

impl Left {
    fn with<T>(&self, work: impl FnOnce(&mut u64) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    fn take(&self, needed: u64) -> Result<()> {
        self.with(|left| match left.checked_sub(needed) {
            Some(less) => {
                *left = less;
                Ok(())
            }
            None => Err(Error::DeviceMemory {
                what: "an adapter".into(),
                needed,
                available: *left,
            }),
        })
    }

    fn give(&self, bytes: u64) {
        self.with(|left| *left = left.saturating_add(bytes));
    }
}

/// What a model's adapters share on the device. Recorded steps contain its addresses, so it stays
/// until the model is freed.
pub(super) struct Room<D: Device> {
    /// For each row of the step, the address of the parts of its adapter, or 0 if it has none.
    lists: Memory<D>,
    /// The same list on the host, two words for each row.
    host: Mutex<Vec<u32>>,
    /// What the kernels leave between A and B, `[max_rows, GPU_THIN]`.
    pub thin: Memory<D>,
    /// K and V of a step's rows before RoPE, where the backend has no such buffer.
    pub fresh: Option<Memory<D>>,
    /// Sums of gate | up, `[sums_rows, pad32(2 * ffn_dim)]`.
    pub sums: Memory<D>,
    /// 0, 1, 2, .. : the numbers of the rows of a group of prompt rows.
    pub counting: Memory<D>,
}

/// Bytes of the buffers of [`Room`], in the order of its fields.
fn room_bytes(shape: &Shape, limits: &Limits, fresh: bool) -> [usize; 5] {
    let rows = bucket(limits.max_rows);
    let group = GROUP.min(limits.max_rows);
    let sums = most_decoded(limits).max(group);
    [
        rows.saturating_mul(8),
        limits.max_rows.saturating_mul(4 * GPU_THIN as usize),
        if fresh {
            4 * super::fresh_len(shape, limits)
        } else {
            0
        },
        sums.saturating_mul(4 * pad32(2 * shape.ffn_dim)),
        4 * group,
    ]
}

impl<D: Device> Room<D> {
    fn new(device: &Arc<D>, bytes: [usize; 5]) -> Result<Room<D>> {
        let new = |at: usize| Memory::new(device, "scratch buffers of adapters", bytes[at]);
        let host = reserve::filled("the adapters of rows", bytes[0] / 4, 0)?;
        let mut numbers = reserve::room("the numbers of rows", bytes[4] / 4)?;
        numbers.extend(0..(bytes[4] / 4) as u32);
        let counting = new(4)?;
        counting.write_numbers(0, &numbers)?;
        Ok(Room {
            lists: new(0)?,
            host: Mutex::new(host),
            thin: new(1)?,
            fresh: match bytes[2] {
                0 => None,
                _ => Some(new(2)?),
            },
            sums: new(3)?,
            counting,
        })
    }

    /// The list from row `first` on.
    pub fn adapters(&self, first: usize) -> u64 {
        self.lists.at() + 8 * first as u64
    }
}

/// An adapter on the device.
struct OnDevice<D: Device> {
    room: Arc<Room<D>>,
    /// The list of its parts, and then their numbers. `None` only while it is dropped.
    memory: Option<Memory<D>>,
    /// The address of the list.
    list: u64,
    /// The highest rank of its parts, rounded up to a power of two from 8 on; 0 if it has none.
    rank: u32,
    device: Arc<D>,
    left: Arc<Left>,
    log: Arc<Log>,
}

impl<D: Device> OnDevice<D> {
    fn of(adapter: &Adapter) -> Result<&OnDevice<D>> {
        let placed = adapter
            .on_device
            .as_ref()
            .and_then(|any| any.downcast_ref());
        placed.ok_or_else(|| Error::Internal(format!("{adapter:?} is not on this device")))
    }
}

impl<D: Device> Drop for OnDevice<D> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let bytes = memory.bytes() as u64;
            let _pass = self.device.gate().pass();
            match memory.free() {
                Ok(()) => self.left.give(bytes),
                Err(error) => self.log.write(Level::Warn, || {
                    format!("{bytes} bytes of a dropped adapter stay on the device: {error}")
                }),
            }
        }
    }
}

/// The adapters of a model, as its backend knows them.
pub(super) struct Adapters<D: Device> {
    /// What the numbers of adapters are kept as.
    pub dtype: Dtype,
    left: Arc<Left>,
    /// From the first step with an adapter on.
    room: Option<Arc<Room<D>>>,
    /// The highest [`OnDevice::rank`] in the loaded step's rows of each kind; 0 if no adapter adds
    /// anything to them.
    pub decode: u32,
    pub prefill: u32,
}

impl<D: Device> Adapters<D> {
    /// For a model whose layers have weights of this type.
    pub fn new(weights: Dtype) -> Self {
        Adapters {
            dtype: LowRank::kept(weights),
            left: Arc::new(Left(Mutex::new(u64::MAX))),
            room: None,
            decode: 0,
            prefill: 0,
        }
    }

    /// The buffers, if a row of the loaded step has an adapter.
    pub fn room(&self) -> Option<&Room<D>> {
        match self.decode.max(self.prefill) {
            0 => None,
            _ => self.room.as_deref(),
        }
    }
}

impl<D: Device> Gpu<D> {
    /// Allows the adapters so many bytes, less what a vendor's library has taken.
    pub fn adapters_within(self, bytes: u64) -> Self {
        let sums = self.sums.as_ref().map_or(0, Memory::bytes) as u64;
        let library = self.device.own_bytes().saturating_add(sums);
        let left = bytes.saturating_sub(library);
        self.adapters.left.with(|all| *all = left);
        self
    }

    /// Fills the list of the adapters of this step's rows, which are loaded already.
    pub(super) fn load_adapters(&mut self, step: &Step) -> Result<()> {
        let all = &mut self.adapters;
        (all.decode, all.prefill) = (0, 0);
        let Some(first) = step.adapters.iter().flatten().next() else {
            return Ok(());
        };
        let room = all.room.insert(OnDevice::<D>::of(first)?.room.clone());
        // Padding has no adapter.
        let n = self.step.n_rows;
        let mut host = room.host.lock().unwrap_or_else(|e| e.into_inner());
        let list = &mut host[..2 * n];
        list.fill(0);
        for (span, adapter) in step.spans.iter().zip(&step.adapters) {
            let Some(adapter) = adapter else { continue };
            let OnDevice { list: at, rank, .. } = OnDevice::<D>::of(adapter)?;
            let (low, high) = (*at as u32, (at >> 32) as u32);
            for row in span.rows.clone() {
                list[2 * row..][..2].copy_from_slice(&[low, high]);
            }
            let most = match span.kind {
                RowKind::Decode => &mut all.decode,
                RowKind::Prefill => &mut all.prefill,
            };
            *most = (*most).max(*rank);
        }
        room.lists.write_numbers(0, list)
    }
}
