//! Brings adapters to the device.

use super::{Left, OnDevice, Room, room_bytes};
use crate::backend::adapter::{LANES, LowRank, MAX_PARTS, Numbers};
use crate::backend::gpu::device::Device;
use crate::backend::gpu::memory::Memory;
use crate::backend::gpu::{Gpu, pad32};
use crate::backend::{Adapter, Carrier};
use crate::log::Log;
use crate::{Dtype, Result, reserve};
use std::sync::{Arc, Mutex};

/// Words of an `AdapterPart` (`kernels/params.h`).
const PART: usize = 6;

/// [`Carrier`] for this backend.
pub(in crate::backend::gpu) struct Carriage<D: Device> {
    device: Arc<D>,
    bytes: [usize; 5],
    dtype: Dtype,
    left: Arc<Left>,
    log: Arc<Log>,
    room: Mutex<Option<Arc<Room<D>>>>,
}

impl<D: Device> Carriage<D> {
    pub fn new(gpu: &Gpu<D>) -> Self {
        Carriage {
            device: gpu.device.clone(),
            bytes: room_bytes(&gpu.shape, &gpu.step.limits, gpu.fresh.is_none()),
            dtype: gpu.adapters.dtype,
            left: gpu.adapters.left.clone(),
            log: gpu.graphs.log.clone(),
            room: Mutex::new(None),
        }
    }

    /// The shared buffers, which are allocated for the first adapter.
    fn room(&self) -> Result<Arc<Room<D>>> {
        let mut room = self.room.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(room) = &*room {
            return Ok(room.clone());
        }
        let bytes = self
            .bytes
            .iter()
            .fold(0, |sum: u64, &n| sum.saturating_add(n as u64));
        self.left.take(bytes)?;
        let _pass = self.device.gate().pass();
        let made = Room::new(&self.device, self.bytes).inspect_err(|_| self.left.give(bytes))?;
        Ok(room.insert(Arc::new(made)).clone())
    }

    /// Copies bytes to an offset, while nobody records.
    fn write(&self, memory: &Memory<D>, offset: usize, bytes: &[u8]) -> Result<()> {
        let _pass = self.device.gate().pass();
        memory.write(offset, bytes.len(), bytes.len(), bytes)
    }
}

/// The sizes of a part on the device.
struct Sizes {
    /// Columns and rows as [`LowRank`] pads them.
    cols: usize,
    rows: usize,
    /// As the kernels take it.
    rank: usize,
    /// Bytes of A and of B.
    bytes: [usize; 2],
}

impl Sizes {
    fn of(low: &LowRank, size: usize) -> Sizes {
        let n = |numbers: &Numbers| match numbers {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::Bf16(bits) => bits.len(),
        };
        let (cols, rows) = (n(&low.a) / low.rank.max(1), n(&low.b) / low.rank.max(1));
        let rank = low.rank.next_multiple_of(8);
        Sizes {
            bytes: [rank * pad32(cols) * size, rows * rank * size],
            cols,
            rows,
            rank,
        }
    }
}

/// Returns `bytes` bytes: number `i` is a copy of number `from(i)`, or zero if that is `None`.
fn rearranged(
    numbers: &Numbers,
    bytes: usize,
    from: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<u8>> {
    let mut out = reserve::filled("an adapter on its way to the device", bytes, 0u8)?;
    match numbers {
        Numbers::F32(numbers) => {
            for (i, to) in out.as_chunks_mut().0.iter_mut().enumerate() {
                *to = from(i).map_or([0; 4], |at| numbers[at].to_ne_bytes());
            }
        }
        Numbers::Bf16(bits) => {
            for (i, to) in out.as_chunks_mut().0.iter_mut().enumerate() {
                *to = from(i).map_or([0; 2], |at| bits[at].to_ne_bytes());
            }
        }
    }
    Ok(out)
}

impl<D: Device> Carrier for Carriage<D> {
    fn carry(&self, adapter: &mut Adapter) -> Result<()> {
        let room = self.room()?;
        let n_parts = adapter.matrices.len() * MAX_PARTS;
        let parts = || adapter.matrices.iter().flatten().enumerate();
        let sizes = |low: &LowRank| Sizes::of(low, self.dtype.size());
        let mut needed = 4 * PART * n_parts;
        for (_, low) in parts() {
            let bytes = low.as_ref().map_or([0; 2], |low| sizes(low).bytes);
            needed = needed.saturating_add(bytes[0]).saturating_add(bytes[1]);
        }
        self.left.take(needed as u64)?;
        let memory = {
            let _pass = self.device.gate().pass();
            Memory::new(&self.device, "an adapter", needed)
        };
        let memory = memory.inspect_err(|_| self.left.give(needed as u64))?;
        let mut placed = OnDevice {
            room,
            list: memory.at(),
            memory: Some(memory),
            rank: 0,
            device: self.device.clone(),
            left: self.left.clone(),
            log: self.log.clone(),
        };
        let Some(memory) = &placed.memory else {
            return Ok(());
        };
        let mut list = reserve::filled("the parts of an adapter", PART * n_parts, 0u32)?;
        // The sizes of all these are multiples of 16 bytes, and so are their places.
        let mut end = 4 * PART * n_parts;
        for (part, low) in parts() {
            let Some(low) = low else { continue };
            let Sizes {
                cols,
                rows,
                rank,
                bytes,
            } = sizes(low);
            let width = pad32(cols);
            let a = rearranged(&low.a, bytes[0], |i| {
                let (j, k) = (i / width, i % width);
                (j < low.rank && k < cols).then_some(j * cols + k)
            })?;
            let b = rearranged(&low.b, bytes[1], |i| {
                let (row, j) = (i / rank, i % rank);
                (j < low.rank).then_some((row / LANES * low.rank + j) * LANES + row % LANES)
            })?;
            debug_assert!(bytes[1] == rows * rank * self.dtype.size());
            let at = [end, end + bytes[0]].map(|offset| memory.at() + offset as u64);
            self.write(memory, end, &a)?;
            self.write(memory, end + bytes[0], &b)?;
            end += bytes[0] + bytes[1];
            let [a, b] = at.map(|at| [at as u32, (at >> 32) as u32]);
            let words = [a[0], a[1], b[0], b[1], rank as u32, low.scale.to_bits()];
            list[part * PART..][..PART].copy_from_slice(&words);
            placed.rank = placed.rank.max((rank as u32).next_power_of_two());
        }
        let _pass = self.device.gate().pass();
        memory.write_numbers(0, &list)?;
        drop(_pass);
        adapter.matrices = Vec::new();
        adapter.on_device = Some(Box::new(placed));
        Ok(())
    }
}
