//! The adapters that requests may choose.

use super::Llama;
use crate::backend::cpu::available_bytes;
use crate::backend::{Adapter, Carrier};
use crate::log::{Level, Log};
use crate::model::{Config, Cuts};
use crate::ranks::adapters::whole;
use crate::ranks::of_rank;
use crate::ranks::processes::adapters::Orders;
use crate::{Dtype, Error, Result, checkpoint, sentence};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Loads adapters for the ranks of this process.
pub(super) struct Loader {
    pub config: Config,
    /// The type that the layers' weights are kept as.
    pub dtype: Dtype,
    pub cuts: Cuts,
    /// The number of the first of these ranks.
    pub first: usize,
    /// The reason why these ranks take no adapters, if they take none.
    pub allowed: Result<()>,
    /// For each rank: what brings adapters to its device, if they must be brought there.
    pub carriers: Vec<Option<Box<dyn Carrier>>>,
}

impl Loader {
    /// Loads each rank's part of an adapter. Also returns the number that distinguishes the adapter
    /// from others ([`checkpoint::Adapter::load`]).
    pub fn load(&self, dir: &Path, scale: f32, log: &Log) -> Result<(Vec<Adapter>, u64)> {
        self.allowed.clone()?;
        if !scale.is_finite() {
            return Err(Error::invalid("scale", "a finite number", scale));
        }
        let stored = checkpoint::Adapter::open(dir, scale, None)?;
        say_base(&stored, log);
        let ranks = self.first..self.first + self.carriers.len();
        let available = available_bytes();
        let own = (&self.cuts, ranks.clone());
        let (mut parts, print) = stored.load(&self.config, self.dtype, own, available)?;
        // If ranks are in other processes, rank 0 names them.
        let several = self.cuts.ranks() > 1 && self.first == 0;
        for ((rank, part), carrier) in ranks.zip(&mut parts).zip(&self.carriers) {
            if let Some(carrier) = carrier {
                let named = |error| if several { of_rank(error, rank) } else { error };
                carrier.carry(part).map_err(named)?;
            }
        }
        Ok((parts, print))
    }

    /// The same for a rank that is alone in its process.
    pub fn load_own(&self, dir: &Path, scale: f32) -> Result<(Adapter, u64)> {
        let (mut parts, print) = self.load(dir, scale, &Log::default())?;
        match parts.pop() {
            Some(part) if parts.is_empty() => Ok((part, print)),
            _ => Err(Error::Internal("a process of several ranks".into())),
        }
    }
}

/// Logs for which model an adapter says that it was trained.
pub(super) fn say_base(adapter: &checkpoint::Adapter, log: &Log) {
    if let Some(base) = adapter.base() {
        log.write(Level::Info, || {
            let (path, base) = (sentence::path(adapter.path()), sentence::name(base));
            format!(
                "{path}: an adapter for `{base}`; the shapes of its tensors are checked, the name \
                 is not"
            )
        });
    }
}

/// Adapters by their numbers.
pub(super) struct Adapters {
    loader: Loader,
    log: Arc<Log>,
    /// Makes ranks of other processes load adapters, if there are such ranks.
    orders: Option<Orders>,
    /// Held while they load, so that two adapters do not get the same number.
    ordering: Mutex<()>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The last number that was given.
    last: u32,
    adapters: HashMap<u32, Arc<Adapter>>,
}

impl Known {
    /// The number of the next adapter.
    fn next(&self) -> Result<u32> {
        let next = self.last.checked_add(1);
        next.ok_or_else(|| Error::Unsupported("more than 4294967295 adapters".into()))
    }
}

impl Adapters {
    pub fn new(loader: Loader, orders: Option<Orders>, log: Arc<Log>) -> Adapters {
        Adapters {
            loader,
            log,
            orders,
            ordering: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// A panic leaves this whole, because it is never half changed.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The adapter that a request asks for; 0 asks for none.
    pub fn get(&self, id: u32) -> Result<Option<Arc<Adapter>>> {
        if id == 0 {
            return Ok(None);
        }
        match self.known().adapters.get(&id) {
            Some(adapter) => Ok(Some(adapter.clone())),
            None => Err(unknown("adapter", id)),
        }
    }
}

fn unknown(name: &str, id: u32) -> Error {
    Error::invalid(
        name,
        "the id of an adapter that was added and not dropped",
        id,
    )
}

impl Llama {
    /// Load a LoRA adapter that requests can choose ([`crate::engine::GenerateOptions::adapter`]).
    /// Returns its number, which is never used again. The adapter is kept as float32 if the weights
    /// are kept as float32, otherwise as bfloat16. Requests continue meanwhile.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an adapter that replaces modules, for a rank over 256, and on
    /// several GPUs of one process that exchange by NCCL;
    /// [`Error::NoMemory`], [`Error::DeviceMemory`]; those of reading it. Those of ranks in other
    /// processes, in their words; [`Error::Peer`].
    pub fn add_adapter(&self, dir: &Path, scale: f32) -> Result<u32> {
        let (parts, print) = self.adapters.loader.load(dir, scale, &self.adapters.log)?;
        let ordering = &self.adapters.ordering;
        let _ordering = ordering.lock().unwrap_or_else(|e| e.into_inner());
        let id = self.adapters.known().next()?;
        let mut adapter = whole(parts, id);
        if let Some(orders) = &self.adapters.orders {
            let nudge = || self.engine.nudge();
            let remote = orders.load(id, (dir, scale), print, &nudge)?;
            adapter.on_ranks = Some(Box::new(remote));
        }
        let mut known = self.adapters.known();
        known.adapters.insert(id, Arc::new(adapter));
        known.last = id;
        Ok(id)
    }

    /// From now on, no new request may name this adapter. Its memory is freed when the last request
    /// that runs with it has ended.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such adapter.
    pub fn drop_adapter(&self, id: u32) -> Result<()> {
        let dropped = self.adapters.known().adapters.remove(&id);
        match dropped {
            Some(_) => Ok(()),
            None => Err(unknown("id", id)),
        }
    }
}
