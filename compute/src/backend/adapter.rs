//! LoRA adapters that requests choose. An adapter has two thin matrices for each matrix of the
//! model, and computes `y += B (A x)` in the rows of a sequence (Hu et al. 2021).
//!
//! An adapter has several owners: the handle, until the adapter is dropped from it, and all calls
//! and steps that use it. The last owner frees its memory.

use super::Shape;
use crate::{Dtype, Error, Result, reserve};
use half::bf16;
use std::any::Any;

/// The number of outputs whose weights lie together in [`LowRank::b`].
pub const LANES: usize = 16;

/// The highest rank of a part. Backends have room for this many numbers between A and B.
pub const MAX_RANK: usize = 256;

/// The most parts that a matrix has.
pub const MAX_PARTS: usize = 3;

/// The numbers of a thin matrix.
#[derive(Debug, PartialEq)]
pub enum Numbers {
    /// For matrices that are kept as float32.
    F32(Vec<f32>),
    /// Bits of bfloat16, for all other matrices.
    Bf16(Vec<u16>),
}

impl Numbers {
    fn zeros(dtype: Dtype, n: usize) -> Result<Numbers> {
        let what = "a matrix of an adapter";
        Ok(match LowRank::kept(dtype) {
            Dtype::F32 => Numbers::F32(reserve::filled(what, n, 0.0)?),
            _ => Numbers::Bf16(reserve::filled(what, n, 0)?),
        })
    }

    fn set(&mut self, at: usize, x: f32) {
        match self {
            Numbers::F32(numbers) => numbers[at] = x,
            Numbers::Bf16(bits) => bits[at] = bf16::from_f32(x).to_bits(),
        }
    }
}

/// What an adapter adds to one part of a matrix, `scale * B A`.
#[derive(Debug, PartialEq)]
pub struct LowRank {
    /// At most [`MAX_RANK`].
    pub rank: usize,
    /// The factor of `A x`.
    pub scale: f32,
    /// A, `[rank, columns]`, the columns padded with zeros to whole [`LANES`].
    pub a: Numbers,
    /// B, `[rows / LANES, rank, LANES]`, the rows padded with zeros.
    pub b: Numbers,
}

impl LowRank {
    /// Makes one from `a: [rank, cols]` and `b: [rows, rank]`, both row-major, with the rows in the
    /// part's own order.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no memory; [`Error::Unsupported`] if the rank is too high.
    pub fn new(
        dtype: Dtype,
        [rows, rank, cols]: [usize; 3],
        scale: f32,
        a: &[f32],
        b: &[f32],
    ) -> Result<LowRank> {
        if rank > MAX_RANK {
            return Err(Error::Unsupported(format!(
                "an adapter of rank {rank}: those that requests choose have at most {MAX_RANK}, \
                 one that is merged while the model is loaded may have more"
            )));
        }
        let width = cols.next_multiple_of(LANES);
        let mut low = LowRank {
            rank,
            scale,
            a: Numbers::zeros(dtype, rank * width)?,
            b: Numbers::zeros(dtype, rows.next_multiple_of(LANES) * rank)?,
        };
        for (j, from) in a.chunks_exact(cols).enumerate() {
            for (k, &x) in from.iter().enumerate() {
                low.a.set(j * width + k, x);
            }
        }
        for (row, from) in b.chunks_exact(rank).enumerate() {
            for (j, &x) in from.iter().enumerate() {
                low.b.set((row / LANES * rank + j) * LANES + row % LANES, x);
            }
        }
        Ok(low)
    }

    /// What the numbers are kept as beside weights of `dtype`.
    pub fn kept(dtype: Dtype) -> Dtype {
        match dtype {
            Dtype::F32 => Dtype::F32,
            _ => Dtype::Bf16,
        }
    }

    /// The bytes that the numbers of [`LowRank::new`] would take.
    pub fn bytes(dtype: Dtype, [rows, rank, cols]: [usize; 3]) -> u64 {
        let padded = |n: usize| n.next_multiple_of(LANES) as u64;
        let unit = if dtype == Dtype::F32 { 4 } else { 2 };
        (padded(rows).saturating_add(padded(cols))).saturating_mul(rank as u64 * unit)
    }
}

/// An adapter whose matrices are in memory.
pub struct Adapter {
    /// Its number, from 1 on; two adapters of a handle never have the same. 0 until it has one.
    pub id: u32,
    /// For each matrix of the layers, at its [`super::MatSpec::adapter_index`]: what is added to
    /// each of its parts.
    pub matrices: Vec<[Option<LowRank>; MAX_PARTS]>,
    /// What a [`Carrier`] has put in the place of the matrices. Only its backend knows the type.
    pub on_device: Option<Box<dyn Any + Send + Sync>>,
    /// What the other ranks of the model have of the adapter; `matrices` is then the share of the
    /// first rank. Only what runs the ranks knows the type.
    pub on_ranks: Option<Box<dyn Any + Send + Sync>>,
}

/// Brings adapters to a device that has memory of its own. Any thread may use it while steps run.
pub trait Carrier: Send + Sync {
    /// Copies the matrices to the device, where steps find them in [`Adapter::on_device`], and
    /// frees them here.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`]; [`Error::Device`]. The adapter is then as it was.
    fn carry(&self, adapter: &mut Adapter) -> Result<()>;
}

impl Adapter {
    /// An adapter that changes nothing yet.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no memory.
    pub fn new(shape: &Shape) -> Result<Adapter> {
        let n = 4 * shape.n_layers;
        let mut matrices = reserve::room("the matrices of an adapter", n)?;
        matrices.resize_with(n, || [const { None }; MAX_PARTS]);
        Ok(Adapter {
            id: 0,
            matrices,
            on_device: None,
            on_ranks: None,
        })
    }
}

impl PartialEq for Adapter {
    fn eq(&self, other: &Adapter) -> bool {
        self.id == other.id
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adapter {}", self.id)
    }
}
