//! Matrices of bitsandbytes' 4-bit codes. The whole tensor, row by row, is cut into blocks of any
//! size. The scales of the blocks may be quantised themselves.

use super::{bytes, check_finite, floats};
use crate::checkpoint::files::Source;
use crate::checkpoint::finite;
use crate::checkpoint::stored::{Coded, Rows};
use crate::file::zeros;
use crate::quant::bnb::Kind;
use crate::quant::{Quant, nf4};
use crate::{Dtype, Result, reserve};
use half::{bf16, f16};

/// A matrix of `[rows, cols]`.
pub(super) struct Blocks4<'a> {
    pub kind: Kind,
    pub rows: usize,
    pub cols: usize,
    /// The number of weights that share a scale.
    pub block: usize,
    /// The format to which bitsandbytes rounds decoded weights.
    pub rounded: Dtype,
    pub codes: Source<'a>,
    /// The scales: floats, or codes of the dynamic map if there is `nested`.
    pub absmax: Source<'a>,
    pub nested: Option<Nested<'a>>,
}

/// The scales of quantised scales.
pub(super) struct Nested<'a> {
    pub absmax: Source<'a>,
    /// The number of scales that share one of these.
    pub block: usize,
    pub offset: f32,
}

impl Blocks4<'_> {
    /// Decodes all scales.
    fn scales(&self) -> Result<Vec<f32>> {
        let Some(nested) = &self.nested else {
            let scales = floats(&self.absmax)?;
            check_finite(&self.absmax, &scales)?;
            return Ok(scales);
        };
        let (codes, outer) = (bytes(&self.absmax)?, floats(&nested.absmax)?);
        check_finite(&nested.absmax, &outer)?;
        let mut scales = reserve::room("scales of a tensor", codes.len())?;
        for (codes, outer) in codes.chunks(nested.block).zip(outer) {
            let scale = |&code| nf4::dynamic(code) * outer + nested.offset;
            scales.extend(codes.iter().map(scale));
        }
        check_finite(&self.absmax, &scales)?;
        Ok(scales)
    }
}

impl Coded for Blocks4<'_> {
    fn source(&self) -> &Source<'_> {
        &self.codes
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn bytes(&self) -> u64 {
        let nested = self
            .nested
            .as_ref()
            .map_or(0, |nested| nested.absmax.info.len);
        self.codes.info.len + self.absmax.info.len + nested
    }

    fn natives(&self) -> &[Quant] {
        let ours = self.kind == Kind::Nf4 && self.block == Quant::Nf4.group();
        match ours && Quant::Nf4.takes(self.cols) {
            true => &[Quant::Nf4],
            false => &[],
        }
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        Ok(Box::new(Reader {
            stored: self,
            scales: self.scales()?,
        }))
    }
}

struct Reader<'a, 'b> {
    stored: &'b Blocks4<'a>,
    scales: Vec<f32>,
}

impl Rows for Reader<'_, '_> {
    fn native(&self, _: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let (source, cols) = (&self.stored.codes, self.stored.cols);
        source
            .file
            .read(source.info, (row * cols / 2) as u64, codes)?;
        let first = row * cols / self.stored.block;
        let stored = &self.scales[first..][..scales.len()];
        finite::check_scales(&self.stored.absmax, first, stored)?;
        for (to, scale) in scales.iter_mut().zip(stored) {
            *to = f16::from_f32(*scale).to_bits();
        }
        Ok(())
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let (source, block) = (&self.stored.codes, self.stored.block);
        // If the number of columns is odd, neighbouring rows share a byte.
        let first = row * self.stored.cols;
        let before = first % 2;
        let mut codes = zeros("codes of rows", (before + to.len()).div_ceil(2) as u64)?;
        source
            .file
            .read(source.info, (first / 2) as u64, &mut codes)?;
        let kind = self.stored.kind;
        kind.decode(&codes, before, &self.scales, block, first, to);
        let round: fn(f32) -> f32 = match self.stored.rounded {
            Dtype::F16 => |x| f16::from_f32(x).to_f32(),
            Dtype::Bf16 => |x| bf16::from_f32(x).to_f32(),
            _ => return Ok(()),
        };
        to.iter_mut().for_each(|x| *x = round(*x));
        Ok(())
    }
}
