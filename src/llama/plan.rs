//! The plan of a handle's memory. Everything is counted before anything is allocated.

use super::Device;
use crate::backend::cpu;
use crate::{Error, Result};

/// The device that a model goes to, and how much of its memory the model may take.
pub(super) struct Budget {
    pub device: Device,
    /// The bytes that are available there.
    pub available: u64,
    /// The error for memory that is not available: what it is for, bytes needed, bytes available.
    pub no_memory: fn(String, u64, u64) -> Error,
}

impl Budget {
    /// The memory of a GPU, of which `available` bytes are available.
    pub fn gpu(available: u64) -> Budget {
        Budget {
            device: Device::Cuda,
            available,
            no_memory: |what, needed, available| Error::DeviceMemory {
                what,
                needed,
                available,
            },
        }
    }

    /// The memory of this machine.
    pub fn cpu() -> Budget {
        Budget {
            device: Device::Cpu,
            available: cpu::available_bytes(),
            no_memory: |what, needed, available| Error::no_memory(what, needed, available),
        }
    }
}

/// What a handle takes, in bytes, item by item.
pub(super) struct MemoryPlan {
    pub items: Vec<(&'static str, u64)>,
    pub budget: Budget,
}

impl MemoryPlan {
    /// Fails if the plan does not fit.
    pub fn check(&self) -> Result<()> {
        if self.needed() <= self.budget.available {
            return Ok(());
        }
        Err(self.lacking())
    }

    pub fn needed(&self) -> u64 {
        let add = |sum: u64, item: &(&str, u64)| sum.saturating_add(item.1);
        self.items.iter().fold(0, add)
    }

    fn words(&self) -> String {
        let item = |(what, bytes): &(&str, u64)| format!("{what} {bytes}");
        self.items.iter().map(item).collect::<Vec<_>>().join(", ")
    }

    /// The error for a plan that does not fit. Its message names all items, and the largest.
    fn lacking(&self) -> Error {
        let largest = self.items.iter().max_by_key(|item| item.1);
        let largest = largest.map_or("", |item| item.0);
        let what = format!("the model ({}; most of it {largest})", self.words());
        (self.budget.no_memory)(what, self.needed(), self.budget.available)
    }

    /// Adds the plan to the message of a device that refuses memory that was planned for. (Others
    /// use the device too.)
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::DeviceMemory {
                what,
                needed,
                available,
            } => {
                let what = format!("{what} (of {})", self.words());
                (self.budget.no_memory)(what, needed, available)
            }
            error => error,
        }
    }
}
