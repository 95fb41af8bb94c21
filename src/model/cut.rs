//! Which part of every matrix belongs to which rank, where several ranks compute one model (tensor
//! parallelism).
//!
//! | matrix | cut by | among the ranks |
//! |---|---|---|
//! | q, k, v | rows | whole heads; a KV head is repeated if there are fewer of them than ranks |
//! | o | columns | the same heads |
//! | gate, up | rows | blocks of columns of `down` |
//! | down | columns | whole blocks of its weight format |
//! | embedding, head | rows | sixteen or more tokens |
//!
//! These are the cuts of Meta's model-parallel checkpoints, except that the embedding of Llama 2 is
//! cut by columns there.

use super::matrices::{Matrix, Part, Width};
use crate::backend::Shape;
use crate::{Error, Result};
use std::iter::once;
use std::ops::Range;

/// The fewest columns or rows into which a matrix is cut: the lanes of the kernels.
const UNIT: usize = 16;

/// The parts of a model that its ranks hold.
#[derive(Clone, Debug)]
pub struct Cuts {
    whole: Shape,
    ranks: usize,
    ffn: Vec<Range<usize>>,
    vocabulary: Vec<Range<usize>>,
}

impl Cuts {
    /// Cuts a model of this shape for so many ranks. `blocks` are the numbers of weights that are
    /// stored together in the rows of [`Part::O`] and of [`Part::Down`], and the number of rows of
    /// q, k and v whose codes are stored in the same words; cuts lie between them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the heads or the width of the feed-forward cannot be cut so.
    pub fn new(shape: &Shape, ranks: usize, blocks: [usize; 3]) -> Result<Cuts> {
        let [o, down, word] = blocks;
        let (heads, kv) = (shape.n_heads, shape.n_kv_heads);
        if !heads.is_multiple_of(ranks) {
            let what = format!("{heads} heads cannot be shared among {ranks} ranks");
            return Err(Error::Unsupported(what));
        }
        if !kv.is_multiple_of(ranks) && !ranks.is_multiple_of(kv) {
            let what = format!("{kv} KV heads cannot be shared among {ranks} ranks");
            return Err(Error::Unsupported(what));
        }
        let columns = heads / ranks * shape.head_dim;
        if ranks > 1 && !columns.is_multiple_of(o) {
            return Err(Error::Unsupported(format!(
                "of {ranks} ranks, each has {columns} columns of the attention's output projection, \
                 whose weights are stored in blocks of {o}"
            )));
        }
        // A rank's rows of q are as many or a multiple.
        let rows = (kv / ranks).max(1) * shape.head_dim;
        if ranks > 1 && !rows.is_multiple_of(word) {
            return Err(Error::Unsupported(format!(
                "of {ranks} ranks, each has {rows} rows of k and of v, whose weights are stored in \
                 words of {word} rows"
            )));
        }
        Ok(Cuts {
            ffn: share("ffn_dim", shape.ffn_dim, down.max(UNIT), ranks)?,
            vocabulary: share("vocab_size", shape.vocab_size, UNIT, ranks)?,
            whole: shape.clone(),
            ranks,
        })
    }

    /// One rank, which has all of a model of this shape.
    pub fn one(shape: &Shape) -> Cuts {
        Cuts {
            ffn: once(0..shape.ffn_dim).collect(),
            vocabulary: once(0..shape.vocab_size).collect(),
            whole: shape.clone(),
            ranks: 1,
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The tokens of each rank: rows of the embedding and of the head.
    pub fn vocabulary(&self) -> &[Range<usize>] {
        &self.vocabulary
    }

    /// The model as a rank's backend sees it. `dim` and `vocab_size` are those of the whole.
    pub fn shape(&self, rank: usize) -> Shape {
        Shape {
            n_heads: self.whole.n_heads / self.ranks,
            n_kv_heads: self.kv_heads(rank).len(),
            ffn_dim: self.ffn[rank].len(),
            ..self.whole.clone()
        }
    }

    /// The rows of a part that a rank has.
    pub fn rows(&self, part: Part, rank: usize) -> Range<usize> {
        match part {
            Part::K | Part::V => self.of_heads(self.kv_heads(rank)),
            _ => self.within(part.rows(), rank),
        }
    }

    /// The columns of a matrix that a rank has.
    pub fn cols(&self, matrix: &Matrix, rank: usize) -> Range<usize> {
        self.within(matrix.cols, rank)
    }

    /// The KV heads that a rank has. With more ranks than heads, neighbours have the same one.
    fn kv_heads(&self, rank: usize) -> Range<usize> {
        let heads = self.whole.n_kv_heads;
        match heads / self.ranks {
            0 => {
                let head = rank * heads / self.ranks;
                head..head + 1
            }
            own => rank * own..(rank + 1) * own,
        }
    }

    fn of_heads(&self, heads: Range<usize>) -> Range<usize> {
        let width = self.whole.head_dim;
        heads.start * width..heads.end * width
    }

    fn within(&self, width: Width, rank: usize) -> Range<usize> {
        match width {
            Width::Dim => 0..self.whole.dim,
            Width::Q => {
                let own = self.whole.n_heads / self.ranks;
                self.of_heads(rank * own..(rank + 1) * own)
            }
            Width::Kv => self.of_heads(self.kv_heads(rank)),
            Width::Ffn => self.ffn[rank].clone(),
            Width::Vocab => self.vocabulary[rank].clone(),
        }
    }
}

/// Shares `0..n` among ranks in whole units. The last unit may be short, and the first ranks get
/// one more.
fn share(name: &str, n: usize, unit: usize, ranks: usize) -> Result<Vec<Range<usize>>> {
    let units = n.div_ceil(unit);
    if units < ranks {
        return Err(Error::Unsupported(format!(
            "{name} is {n}, which is {units} blocks of {unit}: too few for {ranks} ranks"
        )));
    }
    let first = |rank: usize| rank * (units / ranks) + rank.min(units % ranks);
    let end = |rank: usize| n.min(unit * first(rank + 1));
    Ok((0..ranks)
        .map(|rank| unit * first(rank)..end(rank))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::matrices::LAYER;

    fn shape(n_heads: usize, n_kv_heads: usize, ffn_dim: usize, vocab_size: usize) -> Shape {
        Shape {
            dim: 64,
            n_layers: 1,
            n_heads,
            n_kv_heads,
            head_dim: 16,
            ffn_dim,
            vocab_size,
            norm_eps: 1e-5,
        }
    }

    /// Checks that ranges follow one another and cover `0..n`.
    fn covers(ranges: impl Iterator<Item = Range<usize>>, n: usize) {
        let mut at = 0;
        for range in ranges {
            assert_eq!(range.start, at);
            assert!(range.end > range.start);
            at = range.end;
        }
        assert_eq!(at, n);
    }

    #[test]
    fn every_weight_is_on_one_rank() {
        for ranks in [1, 2, 3, 4, 8] {
            for (ffn, down) in [(11008, 128), (5632, 256), (160, 16), (136, 16), (2816, 32)] {
                let shape = shape(24, 24, ffn, 1003);
                let Ok(cuts) = Cuts::new(&shape, ranks, [16, down, 1]) else {
                    assert!(ffn.div_ceil(down) < ranks);
                    continue;
                };
                for part in [Part::Q, Part::K, Part::V, Part::Gate, Part::Up, Part::Head] {
                    let rows = part.rows().of(&shape);
                    covers((0..ranks).map(|rank| cuts.rows(part, rank)), rows);
                }
                for matrix in &LAYER {
                    let ranges = (0..ranks).map(|rank| cuts.cols(matrix, rank));
                    match matrix.cols {
                        Width::Dim => ranges.for_each(|range| assert_eq!(range, 0..64)),
                        cols => covers(ranges, cols.of(&shape)),
                    }
                }
                for rank in 1..ranks {
                    let down_cols = cuts.cols(&LAYER[3], rank);
                    assert_eq!(down_cols.start % down, 0);
                    assert_eq!(down_cols.len(), cuts.shape(rank).ffn_dim);
                }
            }
        }
    }

    #[test]
    fn few_kv_heads_are_repeated() {
        let cuts = Cuts::new(&shape(8, 2, 64, 64), 4, [16, 16, 1]).unwrap();
        let rows: Vec<_> = (0..4).map(|rank| cuts.rows(Part::K, rank)).collect();
        assert_eq!(rows, [0..16, 0..16, 16..32, 16..32]);
        assert_eq!(cuts.shape(3).n_kv_heads, 1);
        assert_eq!(cuts.rows(Part::Q, 3), 96..128);
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_its_numbers() {
        let refused = |shape: Shape, ranks, blocks| match Cuts::new(&shape, ranks, blocks) {
            Err(Error::Unsupported(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        let sentence = refused(shape(6, 6, 64, 64), 4, [16, 16, 1]);
        assert_eq!(sentence, "6 heads cannot be shared among 4 ranks");
        let sentence = refused(shape(12, 3, 64, 64), 2, [16, 16, 1]);
        assert_eq!(sentence, "3 KV heads cannot be shared among 2 ranks");
        let sentence = refused(shape(4, 4, 64, 64), 4, [32, 16, 1]);
        assert!(sentence.contains("16 columns") && sentence.contains("blocks of 32"));
        let sentence = refused(shape(8, 8, 256, 64), 2, [16, 256, 1]);
        assert!(sentence.contains("ffn_dim is 256, which is 1 blocks of 256"));
        let sentence = refused(shape(8, 8, 128, 16), 2, [16, 16, 1]);
        assert!(sentence.contains("vocab_size is 16"));
        let narrow = |head_dim| Shape {
            head_dim,
            ..shape(16, 2, 64, 64)
        };
        assert_eq!(
            refused(narrow(12), 2, [1, 16, 8]),
            "of 2 ranks, each has 12 rows of k and of v, whose weights are stored in words of 8 \
             rows"
        );
        for head_dim in [8, 16] {
            assert!(Cuts::new(&narrow(head_dim), 2, [1, 16, 8]).is_ok());
        }
    }
}
