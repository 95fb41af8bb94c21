//! Products of prompts by a library of the vendor's, where the device has one and was told to use it.
//!
//! It adds the output and down projections to the residual stream itself. Of qkv and of gate and up it leaves the sums
//! in a scratch buffer, and a small kernel of ours does with them what the end of our own products does. The buffer is
//! float32, so that nothing is rounded that our own kernels do not round: the two differ in the order of sums alone.
//! All rows of a step at once would want 235 MB of it for the 8B shape (2048 rows of 28672 columns); groups of
//! [`GROUP`] rows 59 MB, of which the second cache still has a part when they are read. They are products of 448 tiles
//! of 128 x 256, each weight read for 512 rows: still bound by the tensor cores. (Reckoned, not measured.)

use super::device::{Device, Memory, Product};
use super::params::*;
use super::{Gpu, launch, pad32};
use crate::backend::{Limits, Shape};
use crate::log::Level;
use crate::{Dtype, Error, Result};

/// Rows from which a product is offered to the library.
const LARGE: usize = 65;

/// Most rows of a product whose sums go to the buffer.
const GROUP: usize = 512;

fn qkv_cols(shape: &Shape) -> usize {
    (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
}

/// Bytes of the sums of a group.
fn sums_bytes(shape: &Shape, limits: &Limits) -> usize {
    let cols = qkv_cols(shape).max(2 * shape.ffn_dim);
    let rows = GROUP.min(limits.max_rows);
    pad32(cols).saturating_mul(rows).saturating_mul(4)
}

/// Rows of a group of `n`, which are some: at most [`GROUP`]. All groups have as many, but for a few of the last: none is
/// a small product.
fn group(n: usize) -> usize {
    n.div_ceil(n.div_ceil(GROUP))
}

impl<D: Device> Gpu<D> {
    /// Give the device's library up where it would never be asked, or where what it needs is more than `room`, the bytes
    /// that the model has not planned for: an option, it may not take the place of the model. The reason, if there is one to
    /// be said.
    pub fn give_up_library(
        device: &D,
        shape: &Shape,
        limits: &Limits,
        weights: Dtype,
        room: u64,
    ) -> Option<String> {
        let own = device.own_bytes();
        let sixteen_bit = matches!(weights, Dtype::F16 | Dtype::Bf16);
        if own == 0 {
            return None;
        }
        if !sixteen_bit || limits.max_rows < LARGE {
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

    /// Memory for the sums that a library leaves, if the device still has one; `given_up`: why not, else.
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
            format!("products of prompts by our own kernels, not by cuBLASLt: {why}")
        });
    }

    /// Whether the library has done this product.
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

    /// Whether the library does this product of prefill rows, which lie one after another from row `first` on.
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
        self.offers(dtype) && p.bias == 0 && self.done_by_library(&product)
    }

    /// The same of qkv. Half of it may have been done where it says no: all of it can be done again.
    pub(super) fn qkv_by_library(&self, dtype: Dtype, p: &QkvParams) -> Result<bool> {
        let whole = Product {
            x: 0,
            y: p.x,
            w: p.w,
            m: p.n_rows as usize,
            n: qkv_cols(&self.shape),
            k: p.dim as usize,
            x_stride: pad32(qkv_cols(&self.shape)),
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
            launch::qkv_place(&*self.device, &p)
        })
    }

    /// And of gate and up.
    pub(super) fn ffn_up_by_library(&self, dtype: Dtype, p: &FfnUpParams) -> Result<bool> {
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
            launch::ffn_join(&*self.device, dtype, &p)
        })
    }

    /// `rest` of each group of rows, whose sums it finds in the buffer, and of which row is its first.
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
