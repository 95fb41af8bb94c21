//! The kernels as nvcc made them, in the library itself.

/// Compiled kernels.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// The driver interface that can load them: 1000 major + 10 minor. 0 where there are none.
    pub driver: i32,
    /// One for each file of `kernels/`: its name and a fatbin with machine code for several
    /// architectures and PTX for newer ones. The driver chooses.
    pub fatbins: &'static [(&'static str, &'static [u8])],
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));
