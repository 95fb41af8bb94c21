//! Products of prompts by a library of the GPU's vendor (cuBLASLt), if the device has one and was
//! told to use it.
//!
//! In the output and down projections, the library itself adds the product to the residual stream.
//! For qkv and for gate and up, it writes the sums to a scratch buffer, and a small kernel of ours
//! applies to them the epilogue of our own products. The buffer is float32, so both ways round at
//! the same places and differ only in the order of additions.
//!
//! The rows of a step are multiplied in groups of [`GROUP`] rows. With the 8B shape, a buffer for
//! all rows at once would take 235 MB (2048 rows of 28672 columns); a group takes 59 MB, of which
//! L2 still holds a part when the sums are read. The product of a group has 448 tiles of 128 x 256,
//! and uses each weight for 512 rows, so the tensor cores remain the limit. (These numbers are
//! calculated, not measured.)

use super::device::{Device, Product};
use super::memory::Memory;
use super::params::*;
use super::{Gpu, launch, pad32};
use crate::backend::{Limits, Shape};
use crate::log::Level;
use crate::{Dtype, Error, Result};

/// Products of at least this many rows are offered to the library.
const LARGE: usize = 65;

/// The largest number of rows of a product whose sums go to the buffer.
const GROUP: usize = 512;

fn qkv_cols(shape: &Shape) -> usize {
    (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
}

/// Bytes of the sums of one group.
fn sums_bytes(shape: &Shape, limits: &Limits) -> usize {
    let cols = qkv_cols(shape).max(2 * shape.ffn_dim);
    let rows = GROUP.min(limits.max_rows);
    pad32(cols).saturating_mul(rows).saturating_mul(4)
}

/// The number of rows per group. `n` > 0 rows are split evenly into groups of at most [`GROUP`]
/// rows; the last group may have a few rows less. So no group is a small product.
fn group(n: usize) -> usize {
    n.div_ceil(n.div_ceil(GROUP))
}

impl<D: Device> Gpu<D> {
    /// Gives the device's library up if it would never be used with weights of the dtypes in
    /// `weights`, or if it needs more than `room`, the bytes that the model's plan leaves free. The
    /// library is optional, so it must not take memory that the model needs. Returns the reason if
    /// the user should hear of it.
    pub fn give_up_library(
        device: &D,
        shape: &Shape,
        limits: &Limits,
        weights: &[Dtype],
        room: u64,
    ) -> Option<String> {
        let own = device.own_bytes();
        let takes = |dtype: &Dtype| matches!(dtype, Dtype::F16 | Dtype::Bf16);
        if own == 0 {
            return None;
        }
        if !weights.iter().any(takes) || limits.max_rows < LARGE {
            device.give_up_library();
            return None;
        }
        let needed = own.saturating_add(sums_bytes(shape, limits) as u64);
        if needed <= room {
            return None;
        }
        device.give_up_library();
        Some(format!(
            "it needs {needed} bytes of device memory, the model leaves {room}"
        ))
    }

    /// If the device still has a library, allocates memory for the sums that it computes.
    /// `given_up`: the reason, if the library was given up before.
    pub fn library(mut self, limits: &Limits, mut given_up: Option<String>) -> Self {
        if self.device.own_bytes() > 0 {
            let bytes = sums_bytes(&self.shape, limits);
            match Memory::new(&self.device, "sums of products", bytes) {
                Ok(sums) => self.sums = Some(sums),
                Err(error) => {
                    self.device.give_up_library();
                    given_up = Some(error.to_string());
                }
            }
        }
        if let Some(why) = given_up {
            self.say(&why);
        }
        self
    }

    fn say(&self, why: &str) {
        self.graphs.log.write(Level::Warn, || {
            format!("our own kernels do the products of prompts, not cuBLASLt: {why}")
        });
    }

    /// Lets the library do this product. Returns false if it did not.
    fn done_by_library(&self, product: &Product) -> bool {
        let done = launch::product(&*self.device, product);
        if let Err(Some(why)) = &done {
            self.say(why);
        }
        done.is_ok()
    }

    fn offers(&self, dtype: Dtype) -> bool {
        matches!(dtype, Dtype::F16 | Dtype::Bf16) && self.step.n_prefill >= LARGE
    }

    /// Lets the library do this product of prefill rows. Returns false if it did not. The rows are
    /// neighbours, from row `first` on. A product with a bias or a factor is not offered.
    pub(super) fn matmul_add_by_library(&self, dtype: Dtype, p: &MatmulAddParams) -> bool {
        let x = p.x + 4 * u64::from(p.first) * u64::from(p.x_stride);
        let product = Product {
            x,
            y: p.y,
            w: p.w,
            m: p.n_rows as usize,
            n: p.n as usize,
            k: p.k as usize,
            x_stride: p.x_stride as usize,
            y_stride: p.y_stride as usize,
            w_stride: p.w_stride as usize,
            dtype,
            adds: true,
        };
        let plain = p.bias == 0 && p.scale == 1.0;
        self.offers(dtype) && plain && self.done_by_library(&product)
    }

    /// The same for qkv. If this returns false, some groups may be done already; doing the whole
    /// product again is harmless.
    pub(super) fn qkv_by_library(&self, dtype: Dtype, p: &QkvParams) -> Result<bool> {
        let whole = Product {
            x: 0,
            y: p.x,
            w: p.w,
            m: p.n_rows as usize,
            n: p.n as usize,
            k: p.dim as usize,
            x_stride: pad32(p.n as usize),
            y_stride: p.x_stride as usize,
            w_stride: p.w_stride as usize,
            dtype,
            adds: false,
        };
        self.in_groups(&whole, |part, first| {
            let p = QkvParams {
                x: part.x,
                x_stride: part.x_stride as u32,
                rows: p.rows + 4 * first,
                n_rows: part.m as u32,
                ..*p
            };
            launch::qkv_epilogue(&*self.device, &p)
        })
    }

    /// The same for gate and up. The results have type `h`.
    pub(super) fn ffn_up_by_library(
        &self,
        dtype: Dtype,
        h: Dtype,
        p: &FfnUpParams,
    ) -> Result<bool> {
        if h == Dtype::F32 {
            return Ok(false);
        }
        let n = 2 * p.ffn_dim as usize;
        let whole = Product {
            x: 0,
            y: p.x,
            w: p.w,
            m: p.n_rows as usize,
            n,
            k: p.dim as usize,
            x_stride: pad32(n),
            y_stride: p.x_stride as usize,
            w_stride: p.w_stride as usize,
            dtype,
            adds: false,
        };
        self.in_groups(&whole, |part, first| {
            let p = FfnUpParams {
                x: part.x,
                x_stride: part.x_stride as u32,
                rows: p.rows + 4 * first,
                n_rows: part.m as u32,
                ..*p
            };
            launch::ffn_up_epilogue(&*self.device, h, &p)
        })
    }

    /// For each group of rows, computes the sums in the buffer and then calls `rest(product,
    /// first_row)`.
    fn in_groups(
        &self,
        whole: &Product,
        rest: impl Fn(&Product, u64) -> Result<()>,
    ) -> Result<bool> {
        let Some(sums) = self.sums.as_ref().filter(|_| self.offers(whole.dtype)) else {
            return Ok(false);
        };
        let group = group(whole.m);
        if sums.bytes() < 4 * group * whole.x_stride {
            let (have, n) = (sums.bytes(), whole.x_stride);
            return Err(Error::Internal(format!(
                "sums of {group} rows of {n} columns in {have} bytes"
            )));
        }
        for first in (0..whole.m).step_by(group) {
            let part = Product {
                x: sums.at(),
                y: whole.y + (first * whole.y_stride * whole.dtype.size()) as u64,
                m: group.min(whole.m - first),
                ..*whole
            };
            if !self.done_by_library(&part) {
                return Ok(false);
            }
            rest(&part, first as u64)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_large() {
        for n in LARGE..3000 {
            let group = group(n);
            let groups = n.div_ceil(group);
            let last = n - (groups - 1) * group;
            assert!(group <= GROUP && last <= group, "{n}: {group}");
            assert!(last >= n.min(GROUP / 2 - groups), "{n}: {group}, {last}");
        }
    }
}
