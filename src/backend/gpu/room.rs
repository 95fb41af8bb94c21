//! How many blocks of a launch lie on a multiprocessor beside each other.

/// The shared memory of a multiprocessor, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub whole: u32,
    /// What a block takes beside its own.
    pub reserved: u32,
    /// The most that a block can have.
    pub most: u32,
    /// Whether the compute capability is 9.0, where some kernels take more
    /// (`GPU_FEW_SLOTS_90`).
    pub is_90: bool,
}

impl Room {
    /// How many blocks with `shared` bytes fit.
    pub fn fits(&self, shared: u32) -> u32 {
        match shared > self.most {
            true => 0,
            false => self.whole / shared.saturating_add(self.reserved).max(1),
        }
    }

    /// The least bytes of a block for which a second one like it does not fit; 0 if a block cannot
    /// have so many.
    pub fn alone(&self) -> u32 {
        let least = (self.whole / 2 + 1).saturating_sub(self.reserved);
        if least > self.most { 0 } else { least }
    }
}
