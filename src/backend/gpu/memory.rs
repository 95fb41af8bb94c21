//! Device memory that is freed when it is dropped, and host memory into which a device copies.
//! Every copy is compared with the ends of the allocations first. (U)
#![allow(unsafe_code)]

use super::device::{Device, Rows, TensorMap};
use crate::{Error, Result};
use std::sync::Arc;

/// An allocation on a device. It is freed when it is dropped.
pub struct Memory<D: Device> {
    device: Arc<D>,
    /// 0 once it has been given back.
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

    /// Frees the memory, as dropping it does, and says whether that worked.
    ///
    /// # Errors
    /// The error of [`Device::free`]: the memory is left behind.
    pub fn free(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        match std::mem::take(&mut self.at) {
            0 => Ok(()),
            // SAFETY: allocated in `new`, and nobody can name it any more. The device finishes what
            // was launched before, because its `free` waits.
            at => unsafe { self.device.free(at) },
        }
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
    /// the floats that all devices give, in the order of the devices. `from` is memory of the same
    /// device.
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

    /// This memory has `ranks` slices of `n` floats each, of which this rank has filled its own.
    /// Gives this slice to all ranks, and takes the slices of the others.
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
        // Nobody could handle a failure here.
        let _ = self.give_back();
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
