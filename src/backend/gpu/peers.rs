//! Sums of the ranks of a process whose devices read each other's memory (`reduce_peers` of
//! `kernels/reduce.cu`): each rank's kernel reads the parts of all ranks where they are. The
//! additions are the same as in [`super::exchange`], in the same order. A sum takes one launch and
//! waits for no library, so it is faster where there is little to move: with few rows.

use super::device::Device;
use super::memory::Memory;
use super::params::{GPU_PEER_BLOCKS, GPU_PEERS, ReducePeersParams};
use super::{Gpu, GpuBuf, launch, pad32};
use crate::backend::Limits;
use crate::{Error, Result};
use std::sync::{Arc, Mutex};

/// Bytes of a part. With half a megabyte on four H100, a sum by such a kernel takes 10
/// microseconds, and a sum by NCCL takes 17 to 21 (vLLM's pull request 24532). The size at which
/// both take equally long was not measured.
const MOST: usize = 1 << 20;

/// Parts that take turns: one for the embedding, and two for the sums of the layers. Every step
/// begins with the first part, so its launches are the same as the launches of the previous step.
const PARTS: usize = 3;

const WHAT: &str = "what ranks exchange";

/// What one rank lets the others reach.
struct Shown<D: Device> {
    /// `[rows, dim]` each. Products add to the parts of the layers, which are zeros before.
    parts: [GpuBuf<D>; PARTS],
    /// What the others have told it.
    turns: Memory<D>,
}

/// The ranks of a process, all of whose devices reach each other's memory.
pub struct Neighbours<D: Device> {
    shown: Mutex<Vec<Option<Arc<Shown<D>>>>>,
}

impl<D: Device> Neighbours<D> {
    /// Lets all devices reach each other's memory; `Err` is the reason why not.
    pub fn of(devices: &[Arc<D>]) -> std::result::Result<Self, String> {
        if devices.len() > GPU_PEERS as usize {
            return Err(format!("there are more than {GPU_PEERS} of them"));
        }
        for (at, device) in devices.iter().enumerate() {
            let others = devices.iter().enumerate();
            for (_, other) in others.filter(|other| other.0 != at) {
                device.reach(other)?;
            }
        }
        Ok(Neighbours {
            shown: Mutex::new(devices.iter().map(|_| None).collect()),
        })
    }

    fn show(&self, rank: usize, shown: Shown<D>) {
        let mut all = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        all[rank] = Some(Arc::new(shown));
    }

    fn all(&self) -> Option<Vec<Arc<Shown<D>>>> {
        let all = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().cloned().collect()
    }
}

/// A rank among its neighbours.
pub struct Peers<D: Device> {
    device: Arc<D>,
    rank: usize,
    /// What each rank shows. It is not freed before all ranks have left, since others may still
    /// read it.
    all: Vec<Arc<Shown<D>>>,
    /// The number of this rank's launches, for each block.
    turn: Memory<D>,
    given_up: u64,
    /// The most rows of a sum.
    pub rows: usize,
    /// The part of the sum that comes next.
    at: usize,
}

impl<D: Device> Peers<D> {
    /// All ranks call this at the same time. `agree` waits until all of them have called it.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`], and the errors of `agree`.
    pub fn new(
        device: &Arc<D>,
        neighbours: &Neighbours<D>,
        rank: usize,
        (dim, limits): (usize, &Limits),
        agree: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let rows = Self::rows(dim, limits);
        let part = || GpuBuf::new(device, WHAT, rows, dim);
        let turns = 4 * GPU_PEERS as usize;
        let shown = Shown {
            parts: [part()?, part()?, part()?],
            turns: Memory::zeroed(device, WHAT, turns)?,
        };
        let turn = Memory::zeroed(device, WHAT, 4 * GPU_PEER_BLOCKS as usize)?;
        neighbours.show(rank, shown);
        let given_up = device.given_up()?;
        // What others reach is zeros before they reach it.
        device.synchronize()?;
        agree()?;
        let none = || Error::Internal("a rank that shows nothing".into());
        Ok(Peers {
            device: device.clone(),
            rank,
            all: neighbours.all().ok_or_else(none)?,
            turn,
            given_up,
            rows,
            at: 0,
        })
    }

    fn rows(dim: usize, limits: &Limits) -> usize {
        limits.max_rows.min(MOST / (4 * pad32(dim).max(1)))
    }

    /// Bytes of device memory that [`Peers::new`] allocates.
    pub fn bytes(dim: usize, limits: &Limits) -> u64 {
        let part = 4 * Self::rows(dim, limits) * pad32(dim);
        let turns = 4 * (GPU_PEER_BLOCKS + GPU_PEERS) as usize;
        (PARTS * part + turns) as u64
    }

    /// The part of the next sum, which is a step's `first` one or not.
    pub fn part(&mut self, first: bool) -> &GpuBuf<D> {
        self.at = if first { 0 } else { self.next() };
        &self.all[self.rank].parts[self.at]
    }

    /// The part of the sum after this one, if the step has one.
    fn next(&self) -> usize {
        if self.at == 1 { 2 } else { 1 }
    }

    /// Adds the parts of all ranks, as [`Peers::part`] has given them last, to `rows` rows of `x`,
    /// or puts their sum in its place.
    pub fn reduce(&self, gpu: &Gpu<D>, x: &GpuBuf<D>, rows: usize, adds: bool) -> Result<()> {
        let own = &self.all[self.rank].parts;
        let mut params = ReducePeersParams {
            x: x.at(),
            turn: self.turn.at(),
            next: own[self.next()].at(),
            given_up: self.given_up,
            n: (rows * own[self.at].stride) as u64,
            rank: self.rank as u32,
            ranks: self.all.len() as u32,
            adds: u32::from(adds),
            ..Default::default()
        };
        for (rank, shown) in self.all.iter().enumerate() {
            params.parts[rank] = shown.parts[self.at].at();
            params.turns[rank] = shown.turns.at();
        }
        self.device.keep_pace()?;
        launch::reduce_peers(&*gpu.device, &params)
    }
}

impl<D: Device> Drop for Peers<D> {
    /// The last rank that goes frees what all have shown, on its own thread. By then each device
    /// must have left the group, because leaving is something that all of them do together.
    fn drop(&mut self) {
        if !self.device.leave() {
            // The device may still reach it.
            self.all.drain(..).for_each(std::mem::forget);
        }
    }
}
