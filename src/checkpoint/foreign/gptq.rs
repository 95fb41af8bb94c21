//! GPTQ, as AutoGPTQ, GPTQModel and optimum write it.
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | `qweight` | I32 | `[cols * bits / 32, rows]` |
//! | `qzeros` | I32 | `[groups, rows * bits / 32]` |
//! | `scales` | F16 | `[groups, rows]` |
//! | `g_idx` | I32 | `[cols]`, may be absent: column / group |
//!
//! `weight = scale * (code - zero)`, where version 1 stores zero points less 1 ([`Less`]).

use super::affine::{Affine, Less, Packing};
use super::{FLOATS, Method, options, tensor, words};
use crate::checkpoint::files::{Finder, Source};
use crate::checkpoint::keys::Keys;
use crate::checkpoint::stored::{Coded, Wanted};
use crate::format::Encoding;
use crate::quant::affine::Format;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Gptq {
    bits: u32,
    group: Option<usize>,
    symmetric: bool,
    /// What zero points are less by; the data show it where the quantisation is symmetric.
    less: Option<Less>,
}

impl Gptq {
    pub fn new(keys: &Keys) -> Result<Gptq> {
        let read = ["bits", "checkpoint_format", "format", "group_size", "sym"];
        options::check(keys, &[&read[..], &options::COMMON].concat())?;
        options::common(keys, "gptq")?;
        let bits = keys.size("bits", 8)? as u32;
        if ![2, 3, 4, 8].contains(&bits) {
            return Err(keys.wrong("bits", "2, 3, 4 or 8"));
        }
        let symmetric = keys.flag("sym")?;
        let less = match version(keys)? {
            2 => Less::Nothing,
            _ if is_gptqmodel(keys) => Less::OfGptqModel,
            _ => Less::One,
        };
        Ok(Gptq {
            bits,
            group: options::group_size(keys)?,
            symmetric,
            less: (!symmetric).then_some(less),
        })
    }
}

/// Whether GPTQModel wrote the file: then it says so in `meta`, alone or beside optimum.
fn is_gptqmodel(keys: &Keys) -> bool {
    let quantizer = keys.get("meta").and_then(|meta| meta.get("quantizer"));
    quantizer.is_some_and(|names| names.to_string().contains("gptqmodel"))
}

/// The version of the format. Its name has two keys, of which current files have both.
fn version(keys: &Keys) -> Result<u8> {
    let [old, new] = ["checkpoint_format", "format"];
    let mut names = [None; 2];
    for (name, key) in names.iter_mut().zip([old, new]) {
        *name = keys.optional_name(key, &["gptq", "gptq_v2"])?;
    }
    if let [Some(of_old), Some(of_new)] = names
        && of_old != of_new
    {
        return Err(keys.wrong(new, format!("{of_old}, as {old} says")));
    }
    let name = names[0].or(names[1]);
    Ok(if name == Some("gptq_v2") { 2 } else { 1 })
}

impl Method for Gptq {
    fn name(&self) -> &'static str {
        match self.bits {
            2 => "gptq 2 bits",
            3 => "gptq 3 bits",
            4 => "gptq 4 bits",
            _ => "gptq 8 bits",
        }
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        if !finder.holds(&format!("{}.qweight", wanted.name)) {
            return Ok(None);
        }
        let (rows, cols, bits) = (wanted.rows, wanted.cols, self.bits as usize);
        let group = self.group.unwrap_or(cols);
        let groups = cols.div_ceil(group);
        let packed = |n: usize| n * bits / 32;
        let int = [Encoding::I32];
        let codes = [packed(cols), rows];
        let codes = tensor(finder, wanted, ".qweight", &[&codes], &int)?;
        for (what, n) in [("columns", cols), ("rows", rows)] {
            if !(n * bits).is_multiple_of(32) {
                let expected = format!("{what} whose codes of {bits} bits fill words of 32");
                return Err(codes.wrong(expected, n.to_string()));
            }
        }
        let scales = tensor(finder, wanted, ".scales", &[&[groups, rows]], &FLOATS)?;
        let zeros = [groups, packed(rows)];
        let zeros = tensor(finder, wanted, ".qzeros", &[&zeros], &int)?;
        let mut index = None;
        if finder.holds(&format!("{}.g_idx", wanted.name)) {
            let source = tensor(finder, wanted, ".g_idx", &[&[cols]], &int)?;
            index = group_index(&source, group, groups)?;
        }
        Ok(Some(Box::new(Affine {
            packing: Packing::Gptq { less: self.less },
            format: Format {
                bits: self.bits,
                symmetric: self.symmetric,
                group: index.is_none().then_some(group),
            },
            rows,
            cols,
            codes,
            scales,
            zeros: Some(zeros),
            index,
            groups,
        })))
    }
}

/// The group of each column; `None` if it is the column divided by the size of a group.
///
/// # Errors
/// [`Error::Tensor`] for a group that does not exist.
pub(super) fn group_index(
    source: &Source<'_>,
    group: usize,
    groups: usize,
) -> Result<Option<Vec<u32>>> {
    let index = words(source)?;
    let beyond = index.iter().position(|&of| of as usize >= groups);
    if let Some(at) = beyond {
        let got: Error = source.wrong(
            format!("groups from 0 to {}", groups - 1),
            format!("{} at index {at}", index[at] as i32),
        );
        return Err(got);
    }
    let in_turn = (0..).zip(&index).all(|(i, &of)| i / group == of as usize);
    Ok((!in_turn).then_some(index))
}
