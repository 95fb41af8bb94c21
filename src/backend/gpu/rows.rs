//! What kernels read besides weights: rows, their norm, and which of them.

/// A list of row numbers on the device.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub at: u64,
    pub n: u32,
}

/// The RMSNorm of rows, or none.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub weight: u64,
    pub eps: f32,
}

/// The input of a product of normed rows.
pub(super) struct Input {
    pub at: u64,
    pub stride: u32,
}
