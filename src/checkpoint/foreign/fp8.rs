//! fp8 checkpoints: `weight` F8_E4M3 `[rows, cols]` and
//!
//! | `quant_method` | tensor | shape |
//! |---|---|---|
//! | `fbgemm_fp8` | `weight_scale` | `[rows, 1]` |
//! | `fp8` with `weight_block_size` | `weight_scale_inv` | `[rows / b, cols / b]`, rounded up |
//! | `fp8` without | `weight_scale` or `weight_scale_inv` | `[]` or `[1]` |
//!
//! `input_scale` and `activation_scale` are not read, because activations are not quantised here.

use super::scaled::Scaled;
use super::{FLOATS, Method, options, tensor};
use crate::Result;
use crate::checkpoint::files::Finder;
use crate::checkpoint::keys::Keys;
use crate::checkpoint::stored::{Coded, Wanted};
use crate::format::Encoding;
use serde_json::json;

#[derive(Debug)]
pub(super) struct Fp8 {
    /// The rows and columns of a block that shares a scale, if blocks have scales.
    block: Option<[usize; 2]>,
}

impl Fp8 {
    pub fn new(keys: &Keys) -> Result<Fp8> {
        const BLOCK: &str = "weight_block_size";
        options::check(keys, &[BLOCK, "fmt", "scale_fmt"])?;
        options::only(keys, "fmt", &json!("e4m3"))?;
        options::only(keys, "scale_fmt", &json!("float"))?;
        Ok(Fp8 {
            block: block_size(keys, BLOCK)?,
        })
    }
}

/// Reads the size of blocks, `[rows, cols]`.
pub(super) fn block_size(keys: &Keys, key: &str) -> Result<Option<[usize; 2]>> {
    let Some(value) = keys.get(key) else {
        return Ok(None);
    };
    let size = |i: usize| value.get(i)?.as_u64().filter(|n| (1..=1 << 22).contains(n));
    match (value.as_array().map(Vec::len), size(0), size(1)) {
        (Some(2), Some(rows), Some(cols)) => Ok(Some([rows as usize, cols as usize])),
        _ => Err(keys.wrong(key, "two sizes of a block")),
    }
}

impl Method for Fp8 {
    fn name(&self) -> &'static str {
        "fp8"
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        let inverse = format!("{}.weight_scale_inv", wanted.name);
        let suffix = match finder.holds(&inverse) {
            true => ".weight_scale_inv",
            false => ".weight_scale",
        };
        if !finder.holds(&format!("{}{suffix}", wanted.name)) {
            return Ok(None);
        }
        scaled(finder, wanted, suffix, Encoding::F8E4m3, self.block).map(Some)
    }
}

/// Finds a matrix of 8-bit numbers, with its scales in the tensor of this suffix. There is one
/// scale for each block, or, as the shape of the scales says, for each row or for all weights.
pub(super) fn scaled<'a>(
    finder: &mut Finder<'a>,
    wanted: &Wanted<'_>,
    suffix: &str,
    encoding: Encoding,
    block: Option<[usize; 2]>,
) -> Result<Box<dyn Coded + 'a>> {
    let (rows, cols) = (wanted.rows, wanted.cols);
    let codes = tensor(finder, wanted, ".weight", &[&[rows, cols]], &[encoding])?;
    let of_blocks = block.map(|[r, c]| [rows.div_ceil(r), cols.div_ceil(c)]);
    let of_rows = [rows, 1];
    let shapes: &[&[usize]] = match &of_blocks {
        Some(of_blocks) => &[of_blocks],
        None => &[&of_rows, &[rows], &[1], &[]],
    };
    let scales = tensor(finder, wanted, suffix, shapes, &FLOATS)?;
    let block = block.unwrap_or(match scales.info.shape.first() {
        Some(&n) if n == rows => [1, cols],
        _ => [rows, cols],
    });
    Ok(Box::new(Scaled {
        codes,
        scales,
        divisor: 1.0,
        block,
    }))
}
