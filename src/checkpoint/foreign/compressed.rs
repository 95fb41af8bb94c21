//! compressed-tensors, as llm-compressor writes it.
//!
//! | `format` | tensor | dtype | shape |
//! |---|---|---|---|
//! | `pack-quantized` | `weight_packed` | I32 | `[rows, cols * bits / 32]`, code + 2^(bits - 1) |
//! | | `weight_scale` | floats | `[rows, groups]` |
//! | | `weight_zero_point` | I32 | `[rows * bits / 32, groups]`, where not symmetric |
//! | | `weight_g_idx` | I32 | `[cols]`, may be absent |
//! | | `weight_shape` | I64 | `[2]` |
//! | `int-quantized` | `weight` | I8 | `[rows, cols]` |
//! | `float-quantized` | `weight` | F8_E4M3 | `[rows, cols]` |
//! | both | `weight_scale` | floats | `[rows, groups]`, `[rows, 1]`, `[1]`, or of blocks |

use super::affine::{Affine, Packing};
use super::fp8::{block_size, scaled};
use super::gptq::group_index;
use super::{FLOATS, Method, bytes, options, tensor};
use crate::Result;
use crate::checkpoint::files::Finder;
use crate::checkpoint::keys::Keys;
use crate::checkpoint::stored::{Coded, Wanted};
use crate::format::Encoding;
use crate::quant::affine::Format;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Packed,
    Int,
    Float,
}

#[derive(Debug)]
pub(super) struct Compressed {
    kind: Kind,
    bits: u32,
    symmetric: bool,
    /// The number of columns that share a scale; `None` if whole rows or all weights do.
    group: Option<usize>,
    block: Option<[usize; 2]>,
}

impl Compressed {
    pub fn new(keys: &Keys) -> Result<Compressed> {
        options::check(keys, &["format", "config_groups", "sparsity_config"])?;
        if let Some(sparsity) = keys.object("sparsity_config")? {
            let dense = |key: &str| sparsity.get(key) == Some(&json!("dense"));
            if sparsity.names().next().is_some() && !dense("format") {
                return Err(keys.wrong("sparsity_config", "no sparsity"));
            }
        }
        let formats = ["pack-quantized", "int-quantized", "float-quantized"];
        let kind = match keys.optional_name("format", &formats)? {
            Some("pack-quantized") => Kind::Packed,
            Some("int-quantized") => Kind::Int,
            Some(_) => Kind::Float,
            None => return Err(keys.wrong("format", formats.join(", "))),
        };
        let missing = || keys.wrong("config_groups", "groups with `weights`");
        let groups = keys.object("config_groups")?.ok_or_else(missing)?;
        let mut names = groups.names();
        let first = names.next().ok_or_else(missing)?;
        let group = groups.object(first)?.ok_or_else(missing)?;
        let weights = group.object("weights")?.ok_or_else(missing)?;
        for other in names {
            let same = |key: &str| groups.get(key).and_then(|group| group.get("weights"));
            if same(other) != same(first) {
                return Err(groups.wrong(other, format!("the same `weights` as {first} has")));
            }
        }
        let read = [
            "num_bits",
            "type",
            "symmetric",
            "group_size",
            "strategy",
            "block_structure",
            "dynamic",
            "actorder",
        ];
        options::check(&weights, &read)?;
        let bits = weights.size("num_bits", 8)? as u32;
        let (kinds, of_kind) = match kind {
            Kind::Packed => ("int", &[4, 8][..]),
            Kind::Int => ("int", &[8][..]),
            Kind::Float => ("float", &[8][..]),
        };
        options::only(&weights, "type", &json!(kinds))?;
        options::only(&weights, "dynamic", &json!(false))?;
        if !of_kind.contains(&bits) {
            return Err(weights.wrong("num_bits", format!("one of {of_kind:?}")));
        }
        let symmetric = weights.get("symmetric") != Some(&Value::Bool(false));
        if !symmetric && kind != Kind::Packed {
            return Err(weights.wrong("symmetric", "true"));
        }
        weights.optional_name("actorder", &["group", "static", "weight", "dynamic"])?;
        let known = ["tensor", "channel", "group", "block"];
        let block = match weights.optional_name("strategy", &known)? {
            Some("block") => block_size(&weights, "block_structure")?,
            _ => None,
        };
        Ok(Compressed {
            kind,
            bits,
            symmetric,
            group: options::group_size(&weights)?,
            block,
        })
    }

    fn packed<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Box<dyn Coded + 'a>> {
        let (rows, cols, bits) = (wanted.rows, wanted.cols, self.bits as usize);
        let group = self.group.unwrap_or(cols);
        let groups = cols.div_ceil(group);
        let int = [Encoding::I32];
        let packed = |n: usize| (n * bits).div_ceil(32);
        let codes = [rows, packed(cols)];
        let codes = tensor(finder, wanted, ".weight_packed", &[&codes], &int)?;
        let scales = tensor(finder, wanted, ".weight_scale", &[&[rows, groups]], &FLOATS)?;
        let mut zeros = None;
        if !self.symmetric {
            let shape = [packed(rows), groups];
            zeros = Some(tensor(
                finder,
                wanted,
                ".weight_zero_point",
                &[&shape],
                &int,
            )?);
        }
        let suffix = ".weight_shape";
        if finder.holds(&format!("{}{suffix}", wanted.name)) {
            let shape = tensor(finder, wanted, suffix, &[&[2]], &[Encoding::I64])?;
            let sizes = bytes(&shape)?;
            let sizes = sizes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b));
            let sizes: Vec<u64> = sizes.collect();
            if sizes != [rows as u64, cols as u64] {
                return Err(shape.wrong(format!("[{rows}, {cols}]"), format!("{sizes:?}")));
            }
        }
        let (mut index, suffix) = (None, ".weight_g_idx");
        if finder.holds(&format!("{}{suffix}", wanted.name)) {
            let source = tensor(finder, wanted, suffix, &[&[cols]], &int)?;
            index = group_index(&source, group, groups)?;
        }
        Ok(Box::new(Affine {
            packing: Packing::Compressed,
            format: Format {
                bits: self.bits,
                symmetric: self.symmetric,
                group: index.is_none().then_some(group),
            },
            rows,
            cols,
            codes,
            scales,
            zeros,
            index,
            groups,
        }))
    }
}

impl Method for Compressed {
    fn name(&self) -> &'static str {
        match (self.kind, self.bits) {
            (Kind::Packed, 4) => "compressed-tensors 4 bits",
            (Kind::Packed, _) => "compressed-tensors 8 bits",
            (Kind::Int, _) => "compressed-tensors int8",
            (Kind::Float, _) => "compressed-tensors fp8",
        }
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        const SCALE: &str = ".weight_scale";
        if !finder.holds(&format!("{}{SCALE}", wanted.name)) {
            return Ok(None);
        }
        let block = self.block.or(self.group.map(|group| [1, group]));
        match self.kind {
            Kind::Packed => self.packed(finder, wanted),
            Kind::Int => scaled(finder, wanted, SCALE, Encoding::I8, block),
            Kind::Float => scaled(finder, wanted, SCALE, Encoding::F8E4m3, block),
        }
        .map(Some)
    }
}
