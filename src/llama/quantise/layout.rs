//! Where each tensor lies in the file that is written, and where its content comes from.

use crate::Dtype;
use crate::checkpoint::files::Source;
use crate::checkpoint::stored::Stored;
use crate::format::Encoding;
use crate::quant::Quant;

/// A tensor of the file.
pub(super) struct Tensor {
    pub name: String,
    pub encoding: Encoding,
    pub shape: Vec<usize>,
    /// Where it begins in the file.
    pub at: u64,
}

impl Tensor {
    /// A tensor that has no place yet.
    pub fn new(name: String, encoding: Encoding, shape: Vec<usize>) -> Tensor {
        Tensor {
            name,
            encoding,
            shape,
            at: 0,
        }
    }

    /// The number of its bytes.
    pub fn len(&self) -> u64 {
        let numbers = self.shape.iter().product::<usize>();
        let block = match self.encoding {
            Encoding::Ggml(kind) => kind.block(),
            _ => 1,
        };
        (numbers / block * self.encoding.size()) as u64
    }
}

/// Tensors that are written together, and where their content comes from.
pub(super) struct Output<'a> {
    /// For codes: the tensor of the codes, and the tensors of their scales, unless both are in
    /// blocks.
    pub tensors: Vec<Tensor>,
    pub content: Content<'a>,
}

/// Where the content of tensors comes from.
pub(super) enum Content<'a> {
    /// This part, with the number of its columns, as codes.
    Coded(Quant, usize, &'a Stored<'a>),
    /// This part, with the number of its columns, as it is or converted to another float.
    Floats(&'a Stored<'a>, usize, Dtype),
    /// A vector as it is.
    Vector(Source<'a>),
}

/// A part of the job. After each unit, the job records how many units are done.
pub(super) struct Unit<'a> {
    pub name: String,
    /// The number of the layer, if it is one.
    pub layer: Option<usize>,
    pub outputs: Vec<Output<'a>>,
}

/// The whole file.
pub(super) struct Layout<'a> {
    pub header: Vec<u8>,
    pub units: Vec<Unit<'a>>,
    /// Bytes of the file.
    pub len: u64,
}

impl Layout<'_> {
    /// All tensors, in order.
    pub fn tensors(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let outputs = self.units.iter_mut().flat_map(|unit| &mut unit.outputs);
        outputs.flat_map(|output| &mut output.tensors)
    }

    /// The share of bytes before this unit.
    pub fn share_before(&self, unit: usize) -> f32 {
        let bytes = |units: &[Unit<'_>]| -> u64 {
            let tensors = units.iter().flat_map(|unit| &unit.outputs);
            tensors.flat_map(|o| &o.tensors).map(Tensor::len).sum()
        };
        bytes(&self.units[..unit]) as f32 / bytes(&self.units).max(1) as f32
    }
}

impl Output<'_> {
    /// The number of columns, if this is a matrix in codes.
    pub fn coded_cols(&self) -> Option<usize> {
        match self.content {
            Content::Coded(_, cols, _) => Some(cols),
            _ => None,
        }
    }
}

/// A vector that is written as it is stored.
pub(super) fn vector(source: Source<'_>) -> Output<'_> {
    let (name, info) = (source.name.to_owned(), source.info);
    Output {
        tensors: vec![Tensor::new(name, info.encoding, info.shape.clone())],
        content: Content::Vector(source),
    }
}
