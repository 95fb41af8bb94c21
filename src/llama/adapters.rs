//! The adapters that requests may choose.

use super::Llama;
use crate::backend::cpu::available_bytes;
use crate::backend::{Adapter, Carrier};
use crate::{Dtype, Error, Result, checkpoint};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Adapters by their numbers.
pub(super) struct Adapters {
    /// What brings them to the device, if they must be brought there; or why requests cannot choose
    /// any.
    carrier: Result<Option<Box<dyn Carrier>>>,
    /// What the layers' weights are kept as.
    dtype: Dtype,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The last number that was given.
    last: u32,
    adapters: HashMap<u32, Arc<Adapter>>,
}

impl Adapters {
    pub fn new(carrier: Result<Option<Box<dyn Carrier>>>, dtype: Dtype) -> Adapters {
        Adapters {
            carrier,
            dtype,
            known: Mutex::default(),
        }
    }

    /// What was never half changed is whole after a panic too.
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
    /// Load a LoRA adapter for requests to choose ([`crate::engine::GenerateOptions::adapter`]),
    /// and give its number, which is never used again. Beside weights that are kept as float32 it
    /// is kept as float32, else as bfloat16. Requests run on meanwhile.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on several ranks, for an adapter that replaces modules, and for a rank
    /// over 256; [`Error::NoMemory`], [`Error::DeviceMemory`]; those of reading it.
    pub fn add_adapter(&self, dir: &Path, scale: f32) -> Result<u32> {
        let carrier = self.adapters.carrier.as_ref().map_err(Error::clone)?;
        if !scale.is_finite() {
            return Err(Error::invalid("scale", "a finite number", scale));
        }
        let stored = checkpoint::Adapter::open(dir, scale, None)?;
        let mut adapter = stored.load(&self.info.config, self.adapters.dtype, available_bytes())?;
        if let Some(carrier) = carrier {
            carrier.carry(&mut adapter)?;
        }
        let mut known = self.adapters.known();
        let Some(id) = known.last.checked_add(1) else {
            return Err(Error::Unsupported("more than 4294967295 adapters".into()));
        };
        adapter.id = id;
        known.adapters.insert(id, Arc::new(adapter));
        known.last = id;
        Ok(id)
    }

    /// No new request may name this adapter. Its memory is free when the last request that runs
    /// with it has ended.
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
