//! AWQ, as AutoAWQ and GPTQModel write it (`gemm`). Every group has its zero points, so `sym` says
//! nothing more.
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | `qweight` | I32 | `[cols, rows / 8]` |
//! | `qzeros` | I32 | `[groups, rows / 8]` |
//! | `scales` | F16 | `[groups, rows]` |

use super::affine::{Affine, Packing};
use super::{FLOATS, Method, options, tensor};
use crate::Result;
use crate::checkpoint::files::Finder;
use crate::checkpoint::keys::Keys;
use crate::checkpoint::stored::{Coded, Wanted};
use crate::format::Encoding;
use crate::quant::affine::Format;
use serde_json::json;

#[derive(Debug)]
pub(super) struct Awq {
    group: Option<usize>,
}

impl Awq {
    pub fn new(keys: &Keys) -> Result<Awq> {
        const LAYOUT: [&str; 3] = ["checkpoint_format", "format", "version"];
        let read = [
            "bits",
            "w_bit",
            "group_size",
            "q_group_size",
            "zero_point",
            "sym",
        ];
        options::check(keys, &[&read[..], &LAYOUT, &options::COMMON].concat())?;
        options::common(keys, "awq")?;
        options::only(keys, "bits", &json!(4))?;
        if !keys.flag("zero_point")? {
            return Err(keys.wrong("zero_point", "true"));
        }
        for key in LAYOUT {
            let layout = keys.text(key)?.unwrap_or("gemm");
            if !layout.eq_ignore_ascii_case("gemm") {
                return Err(keys.wrong(key, "gemm"));
            }
        }
        Ok(Awq {
            group: options::group_size(keys)?,
        })
    }
}

impl Method for Awq {
    fn name(&self) -> &'static str {
        "awq 4 bits"
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        if !finder.holds(&format!("{}.qweight", wanted.name)) {
            return Ok(None);
        }
        let (rows, cols) = (wanted.rows, wanted.cols);
        let group = self.group.unwrap_or(cols);
        let groups = cols.div_ceil(group);
        let int = [Encoding::I32];
        let codes = tensor(finder, wanted, ".qweight", &[&[cols, rows / 8]], &int)?;
        if !rows.is_multiple_of(8) {
            return Err(codes.wrong("rows that 8 divides".into(), rows.to_string()));
        }
        let zeros = tensor(finder, wanted, ".qzeros", &[&[groups, rows / 8]], &int)?;
        let scales = tensor(finder, wanted, ".scales", &[&[groups, rows]], &FLOATS)?;
        Ok(Some(Box::new(Affine {
            packing: Packing::Awq,
            format: Format {
                bits: 4,
                symmetric: false,
                group: Some(group),
            },
            rows,
            cols,
            codes,
            scales,
            zeros: Some(zeros),
            index: None,
            groups,
        })))
    }
}
