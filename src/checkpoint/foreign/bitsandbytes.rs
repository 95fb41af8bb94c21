//! bitsandbytes.
//!
//! | bits | tensor | dtype | shape |
//! |---:|---|---|---|
//! | 4 | `weight` | U8 | `[rows * cols / 2, 1]`, the first code in the upper half |
//! | | `weight.absmax` | F32, or U8 where nested | `[blocks]` |
//! | | `weight.quant_map` | F32 | `[16]`, the format's own |
//! | | `weight.nested_absmax` | F32 | `[nested blocks]` |
//! | | `weight.nested_quant_map` | F32 | `[256]`, the dynamic map |
//! | | `weight.quant_state.bitsandbytes__nf4`, `__fp4` | U8 | JSON: shape, block sizes, offset |
//! | 8 | `weight` | I8 | `[rows, cols]` |
//! | | `SCB` | F32 | `[rows]`: weight = code * SCB / 127 |
//! | | `weight_format` | U8 | `[]`: 0 |

use super::blocks4::{Blocks4, Nested};
use super::scaled::Scaled;
use super::{Method, bytes, floats, options, tensor};
use crate::checkpoint::files::{Finder, Source};
use crate::checkpoint::keys::Keys;
use crate::checkpoint::stored::{Coded, Wanted};
use crate::format::Encoding;
use crate::quant::{bnb::Kind, nf4};
use crate::{Dtype, Result};
use serde_json::json;

/// The largest size of a quantisation's state; real ones have about 170 bytes.
const MAX_STATE: u64 = 4096;

#[derive(Debug)]
pub(super) struct BitsAndBytes {
    bits: u32,
}

/// `weight.quant_state.bitsandbytes__*`.
#[derive(serde::Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

impl BitsAndBytes {
    pub fn new(keys: &Keys) -> Result<BitsAndBytes> {
        let read = [
            "load_in_4bit",
            "load_in_8bit",
            "bnb_4bit_quant_type",
            "bnb_4bit_use_double_quant",
            "bnb_4bit_quant_storage",
        ];
        options::check(keys, &read)?;
        options::only(keys, "bnb_4bit_quant_storage", &json!("uint8"))?;
        match [keys.flag("load_in_4bit")?, keys.flag("load_in_8bit")?] {
            [true, false] => Ok(BitsAndBytes { bits: 4 }),
            [false, true] => Ok(BitsAndBytes { bits: 8 }),
            _ => Err(keys.wrong("load_in_4bit", "it or load_in_8bit to be true")),
        }
    }

    fn eight<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        if !finder.holds(&format!("{}.SCB", wanted.name)) {
            return Ok(None);
        }
        let (rows, cols) = (wanted.rows, wanted.cols);
        let codes = tensor(finder, wanted, ".weight", &[&[rows, cols]], &[Encoding::I8])?;
        let scales = tensor(finder, wanted, ".SCB", &[&[rows]], &[Encoding::F32])?;
        if finder.holds(&format!("{}.weight_format", wanted.name)) {
            let format = tensor(finder, wanted, ".weight_format", &[&[]], &[Encoding::U8])?;
            let found = bytes(&format)?;
            if found != [0] {
                return Err(format.wrong("0, rows in order".into(), format!("{found:?}")));
            }
        }
        Ok(Some(Box::new(Scaled {
            codes,
            scales,
            divisor: 127.0,
            block: [1, cols],
        })))
    }

    fn four<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        let kinds = [Kind::Nf4, Kind::Fp4].map(|kind| {
            let suffix = format!(".weight.quant_state.bitsandbytes__{}", kind.name());
            (kind, suffix)
        });
        let held =
            |(_, suffix): &&(Kind, String)| finder.holds(&format!("{}{suffix}", wanted.name));
        let Some((kind, suffix)) = kinds.iter().find(held) else {
            return Ok(None);
        };
        let (rows, cols) = (wanted.rows, wanted.cols);
        let (source, state) = state(finder, wanted, suffix)?;
        if state.quant_type != kind.name() || state.shape != [rows, cols] {
            let expected = format!("{} of shape [{rows}, {cols}]", kind.name());
            let got = format!("{} of shape {:?}", state.quant_type, state.shape);
            return Err(source.wrong(expected, got));
        }
        let rounded = match state.dtype.as_str() {
            "float16" => Dtype::F16,
            "bfloat16" => Dtype::Bf16,
            "float32" => Dtype::F32,
            other => {
                let expected = "dtype float16, bfloat16 or float32".into();
                return Err(source.wrong(expected, other.into()));
            }
        };
        let sizes = [Some(state.blocksize), state.nested_blocksize];
        if let Some(size) = sizes
            .into_iter()
            .flatten()
            .find(|n| !(1..=1 << 20).contains(n))
        {
            return Err(source.wrong("blocks of 1 to 1048576".into(), size.to_string()));
        }
        let packed = (rows * cols).div_ceil(2);
        let codes = tensor(finder, wanted, ".weight", &[&[packed, 1]], &[Encoding::U8])?;
        let blocks = (rows * cols).div_ceil(state.blocksize);
        let map = tensor(
            finder,
            wanted,
            ".weight.quant_map",
            &[&[16]],
            &[Encoding::F32],
        )?;
        check_map(&map, kind.codebook().iter().copied())?;
        let Some(nested_block) = state.nested_blocksize else {
            let absmax = tensor(
                finder,
                wanted,
                ".weight.absmax",
                &[&[blocks]],
                &[Encoding::F32],
            )?;
            return Ok(Some(Box::new(Blocks4 {
                kind: *kind,
                rows,
                cols,
                block: state.blocksize,
                rounded,
                codes,
                absmax,
                nested: None,
            })));
        };
        let absmax = tensor(
            finder,
            wanted,
            ".weight.absmax",
            &[&[blocks]],
            &[Encoding::U8],
        )?;
        let outer = [blocks.div_ceil(nested_block)];
        let suffix = ".weight.nested_absmax";
        let outer = tensor(finder, wanted, suffix, &[&outer], &[Encoding::F32])?;
        let suffix = ".weight.nested_quant_map";
        let map = tensor(finder, wanted, suffix, &[&[256]], &[Encoding::F32])?;
        check_map(&map, (0..=255).map(nf4::dynamic))?;
        let nested = Nested {
            absmax: outer,
            block: nested_block,
            offset: state.nested_offset.unwrap_or(0.0),
        };
        Ok(Some(Box::new(Blocks4 {
            kind: *kind,
            rows,
            cols,
            block: state.blocksize,
            rounded,
            codes,
            absmax,
            nested: Some(nested),
        })))
    }
}

fn state<'a>(
    finder: &mut Finder<'a>,
    wanted: &Wanted<'_>,
    suffix: &str,
) -> Result<(Source<'a>, State)> {
    let name = format!("{}{suffix}", wanted.name);
    let source = finder.vector(&name)?;
    if source.info.encoding != Encoding::U8 || source.info.len > MAX_STATE {
        let got = format!("{} of {}", source.info.len, source.info.encoding);
        return Err(source.wrong(format!("at most {MAX_STATE} bytes of u8"), got));
    }
    let state = serde_json::from_slice(&bytes(&source)?);
    let state =
        state.map_err(|e| source.wrong("the JSON of a quantisation".into(), e.to_string()))?;
    Ok((source, state))
}

/// Checks that the file's table gives codes the values of this format. It allows differences in the
/// last bits, because PyTorch's `linspace` differs in them between machines.
fn check_map(source: &Source<'_>, own: impl Iterator<Item = f32>) -> Result<()> {
    let map = floats(source)?;
    let same = |(x, y): (&f32, f32)| (x - y).abs() <= 2e-7 * y.abs();
    match map.iter().zip(own).position(|pair| !same(pair)) {
        None => Ok(()),
        Some(at) => {
            let expected = "the numbers of the format's own codes".into();
            Err(source.wrong(expected, format!("{} for code {at}", map[at])))
        }
    }
}

impl Method for BitsAndBytes {
    fn name(&self) -> &'static str {
        match self.bits {
            4 => "bitsandbytes 4 bits",
            _ => "bitsandbytes 8 bits",
        }
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        match self.bits {
            4 => self.four(finder, wanted),
            _ => self.eight(finder, wanted),
        }
    }
}
