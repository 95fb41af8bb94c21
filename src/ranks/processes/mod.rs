//! Ranks in separate processes, on one machine or several. At rank 0 they act as one [`Run`]. The
//! host gives the functions that move bytes; `include/llamabi_mpi.h` has such functions for MPI.
//!
//! - [`adapters`]: the adapters that requests choose
//! - [`comm`]: the host's functions
//! - [`message`]: the messages between ranks; `step`: the longest of them
//! - [`handshake`]: what the ranks agree on before they load
//! - [`link`]: messages and exchanges, and noticing that a rank is gone
//! - [`serve`]: what the ranks other than 0 do
//!
//! Only rank 0 has the engine. The other ranks know steps, pages and slots, but no sequences.

pub mod adapters;
pub mod comm;
pub mod handshake;
pub mod link;
pub mod message;
#[cfg(test)]
mod queues;
pub mod serve;
mod step;
#[cfg(test)]
mod tests;

use crate::backend::{Answer, Choices, Limits, Run, Step, Watch, Wire};
use crate::{Error, Result};
use adapters::{Desks, Orders};
use link::Link;
use message::Kind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// A rank's link, which its messages and its exchanges share. One thread uses both.
#[derive(Clone)]
pub struct Shared {
    link: Arc<Mutex<Link>>,
    rank: usize,
    size: usize,
    /// How long a rank may be silent, in milliseconds.
    timeout: Arc<AtomicU64>,
}

impl Shared {
    /// Shares a link.
    pub fn new(link: Link) -> Shared {
        Shared {
            rank: link.rank(),
            size: link.size(),
            timeout: Arc::new(AtomicU64::new(link.timeout().as_millis() as u64)),
            link: Arc::new(Mutex::new(link)),
        }
    }

    /// Locks the link. One statement must not do this twice: the first guard lives until the
    /// statement ends.
    pub fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets how long a rank may be silent.
    pub fn set_timeout(&self, timeout: Duration) {
        self.link().set_timeout(timeout);
        let ms = timeout.as_millis() as u64;
        self.timeout.store(ms, Ordering::Relaxed);
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Watch for Shared {
    /// A thread that waits for its device in the middle of an exchange through the host holds the
    /// link's lock already.
    fn look(&self, waited: Duration) -> Result<()> {
        match self.link.try_lock() {
            Ok(mut link) => link.watch(waited),
            Err(TryLockError::Poisoned(link)) => link.into_inner().watch(waited),
            Err(TryLockError::WouldBlock) if waited <= self.timeout() => Ok(()),
            Err(TryLockError::WouldBlock) => Err(Error::Peer(format!(
                "rank {} has waited for its device for {} ms",
                self.rank,
                self.timeout().as_millis()
            ))),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }
}

impl Wire for Shared {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(self.clone())
    }

    fn all_gather(
        &mut self,
        mine: &[f32],
        len: &dyn Fn(usize) -> usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        self.link().all_gather(mine, len, take)
    }

    fn prefers_slices(&self, numbers: usize) -> bool {
        self.link().prefers_slices(numbers)
    }

    fn all_to_all(
        &mut self,
        numbers: &[f32],
        slice: usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        self.link().all_to_all(numbers, slice, take)
    }
}

/// Rank 0 with its own share of the model, and the link to the others.
pub struct Processes {
    own: Box<dyn Run>,
    link: Shared,
    /// Bytes of a page at each of the other ranks.
    others: Vec<usize>,
    /// Whether a step has been submitted and not collected.
    stepping: bool,
    desks: Desks,
}

impl Processes {
    /// `others` are the numbers of bytes of a page at each rank except the first. `orders` are the
    /// orders for adapters.
    pub fn new(own: Box<dyn Run>, link: Shared, others: Vec<usize>, orders: Orders) -> Processes {
        Processes {
            own,
            link,
            others,
            stepping: false,
            desks: Desks::new(orders),
        }
    }

    /// Tells the other ranks of a failure of this rank. If another rank failed before, that failure
    /// is the reason for this one, and is returned.
    fn told<T>(link: &Shared, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let mut link = link.link();
            match link.check() {
                Err(before) => before,
                Ok(()) => {
                    link.fail(&error);
                    error
                }
            }
        })
    }
}

impl Run for Processes {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        self.stepping = true;
        self.link.link().tell_all(Kind::Step, |m| m.step(step))?;
        Self::told(&self.link, self.own.submit(step, choices))
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        self.stepping = false;
        Self::told(&self.link, self.own.collect())
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.link.link().tell_all(Kind::Copy, |m| {
            m.list(pairs.iter().map(|pair| pair.0));
            m.list(pairs.iter().map(|pair| pair.1))
        })?;
        Self::told(&self.link, self.own.copy_pages(pairs))
    }

    /// Each rank's cache has a part of a page.
    fn page_bytes(&self) -> usize {
        self.own.page_bytes() + self.others.iter().sum::<usize>()
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        let whole = self.page_bytes();
        let mut link = self.link.link();
        link.tell_all(Kind::Save, |m| m.list(pages.iter().copied()))?;
        drop(link);
        for (page, to) in pages.iter().zip(to.chunks_exact_mut(whole)) {
            let (own, mut rest) = to.split_at_mut(self.own.page_bytes());
            Self::told(&self.link, self.own.save_pages(&[*page], own))?;
            let mut link = self.link.link();
            for (i, &bytes) in self.others.iter().enumerate() {
                let (part, others) = rest.split_at_mut(bytes);
                rest = others;
                let message = link.await_kind(i + 1, Kind::Page, &mut |_| Ok(()))?;
                if message.body.len() != bytes {
                    return Err(link.unexpected(i + 1, &message, Kind::Page));
                }
                part.copy_from_slice(&message.body);
            }
        }
        Ok(())
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        let whole = self.page_bytes();
        let mut link = self.link.link();
        link.tell_all(Kind::Load, |m| m.list(pages.iter().copied()))?;
        drop(link);
        for (page, from) in pages.iter().zip(from.chunks_exact(whole)) {
            let (own, mut rest) = from.split_at(self.own.page_bytes());
            Self::told(&self.link, self.own.load_pages(&[*page], own))?;
            let mut link = self.link.link();
            for (i, &bytes) in self.others.iter().enumerate() {
                let (part, others) = rest.split_at(bytes);
                rest = others;
                link.tell(i + 1, Kind::Page, |m| m.raw(part))?;
            }
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.own.limits()
    }

    /// The threads of rank 0, because the answer is rank 0's.
    fn n_threads(&self) -> usize {
        self.own.n_threads()
    }

    fn least_prompt_rows(&self) -> usize {
        self.own.least_prompt_rows()
    }

    fn beats(&self) -> Option<Duration> {
        Some(self.link.link().beats())
    }

    fn beat(&mut self) -> Result<()> {
        let mut link = self.link.link();
        self.desks.serve(&mut link)?;
        link.beat()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let mut link = self.link.link();
        match self.stepping {
            false => link.close(),
            // The other ranks wait for this rank in an exchange.
            true => link.fail(&Error::Internal("rank 0 has ended in a step".into())),
        }
        // Freeing a handle cancels the orders that are under way.
        let why = link.check().err().unwrap_or(Error::Cancelled);
        self.desks.close(&why);
    }
}
