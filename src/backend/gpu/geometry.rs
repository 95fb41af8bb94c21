//! The grids and the shared memory of products, as `kernels/params.h` states them. Everything here
//! is arithmetic; `launch` passes the results to the device.

use super::params::*;
use crate::Dtype;
use crate::backend::Shape;

/// The blocks of a launch, and the shared memory of a block in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub blocks: [u32; 3],
    pub shared: u32,
}

/// Whether a decode product with so many rows reads rows that `prepare` has rounded. If it rounded
/// more rows itself, every block would read more bytes of activations than of weights. The results
/// are the same.
pub(super) fn prepares(dtype: Dtype, n_rows: u32) -> bool {
    match dtype {
        Dtype::F32 => false,
        Dtype::Int4 | Dtype::Nf4 => n_rows > 2,
        _ => n_rows > 4,
    }
}

/// A decode product with tensor cores of a few rows. `rounds`: whether it applies norm and rounding
/// to the rows itself.
pub(super) fn few(dtype: Dtype, pairs: u32, n_rows: u32, rounds: bool) -> Grid {
    // Steps of a row that are in shared memory at once.
    let steps = match dtype {
        Dtype::F16 | Dtype::Bf16 => 2,
        Dtype::Int8 | Dtype::Fp8 => 4,
        _ => 8,
    };
    Grid {
        blocks: [pairs.div_ceil(8), n_rows.div_ceil(GPU_FEW_ROWS), 1],
        shared: match rounds {
            true => GPU_FEW_SHARED + 4096 * steps,
            false => GPU_TABLE_BYTES + 4096,
        },
    }
}

/// A batch product: blocks by rows, by pairs of weight rows, and by shares of K.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Rows of a block.
    rows: u32,
    blocks: [u32; 3],
}

impl Batch {
    /// Every block reads all rows, so it has many weight rows. Where that leaves too few blocks for
    /// the multiprocessors of a large GPU, blocks share a K (split-K). The results are the same.
    pub fn new(pairs: u32, n_rows: u32) -> Self {
        let rows = match n_rows {
            ..=16 => 16,
            17..=32 => 32,
            _ => GPU_BATCH_ROWS,
        };
        let [x, y] = [n_rows.div_ceil(rows), pairs.div_ceil(GPU_BATCH_PAIRS)];
        let splits = match x.saturating_mul(y) {
            GPU_SPLIT_BELOW.. => 1,
            24.. => 4,
            _ => 8,
        };
        Batch {
            rows,
            blocks: [x, y, splits],
        }
    }

    /// How many blocks share a K.
    pub fn splits(&self) -> u32 {
        self.blocks[2]
    }

    pub fn grid(&self, dtype: Dtype) -> Grid {
        let of_eight = match dtype.is_float() || self.rows == GPU_BATCH_ROWS {
            true => GPU_BATCH_SHARED,
            false => GPU_BATCH_SHARED_CODES,
        };
        let levels = match self.splits() {
            1 => 2,
            4 => 1,
            _ => 0,
        };
        Grid {
            blocks: self.blocks,
            shared: GPU_TABLE_BYTES + self.rows / 8 * (of_eight + levels * GPU_BATCH_LEVEL),
        }
    }

    fn scratch(&self) -> u64 {
        let [x, y, splits] = self.blocks.map(u64::from);
        match splits {
            1 => 0,
            _ => x * y * splits * 512 * u64::from(self.rows),
        }
    }
}

/// Bytes of the counters and sums of blocks that share a K, in steps with up to `most_rows` rows,
/// including padding.
pub(super) fn scratch_bytes(shape: &Shape, most_rows: usize) -> u64 {
    let pairs = |rows: usize| u32::try_from(rows.div_ceil(2)).unwrap_or(u32::MAX);
    let products = [
        pairs(shape.q_dim() + 2 * shape.kv_dim()),
        pairs(shape.dim),
        pairs(2 * shape.ffn_dim),
        pairs(shape.vocab_size),
    ];
    let most_rows = u32::try_from(most_rows).unwrap_or(u32::MAX);
    // Every number of rows that makes a difference; with more rows nothing is split.
    let groups = (1..GPU_SPLIT_BELOW).map(|n| n * GPU_BATCH_ROWS);
    let rows = [16, 32].into_iter().chain(groups).map(|n| n.min(most_rows));
    let sums = rows.flat_map(|n| products.map(|pairs| Batch::new(pairs, n).scratch()));
    sums.max().unwrap_or(0) + 4 * u64::from(GPU_SPLIT_BELOW)
}

/// A product of `n` columns by tiles. A tile has `cols` columns for 16-bit and quantised weights,
/// half as many for float32.
pub(super) fn tiles(dtype: Dtype, n: u32, cols: u32, n_rows: u32) -> Grid {
    let (cols, rows, shared) = match dtype {
        Dtype::F32 => (cols / 2, 64, 20_480),
        Dtype::F16 | Dtype::Bf16 => (cols, 128, 49_152),
        _ => (cols, 128, 66_048),
    };
    Grid {
        blocks: [n.div_ceil(cols), n_rows.div_ceil(rows), 1],
        shared,
    }
}

/// How a product runs on compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hopper {
    /// Whether its tiles are half as large.
    pub half: bool,
    /// Warpgroups of a block that multiply.
    pub groups: u32,
    pub grid: Grid,
}

impl Hopper {
    /// For `n` columns with tiles of `cols` columns, on so many multiprocessors. (With quantised
    /// weights a tile has half as many columns, and 256 rows instead of 128.) Blocks with the same
    /// weights are neighbours.
    ///
    /// Half tiles are used if they take under 3/4 of the time, because they cost 4/3 of the L2
    /// traffic. Half tiles with one warpgroup in each block are used if all these blocks then fit
    /// on the GPU at once. The choice depends on the number of rows, so all variants must give the
    /// same bits. They do in the emulator, and tests/gpu/day.sh checks it on hardware.
    pub fn new(dtype: Dtype, n: u32, cols: u32, n_rows: u32, multiprocessors: u32) -> Hopper {
        let blocks = |rows, cols| [n_rows.div_ceil(rows), n.div_ceil(cols), 1];
        let rounds = |[x, y, _]: [u32; 3]| x.saturating_mul(y).div_ceil(multiprocessors);
        let smaller = blocks(128, cols / 2);
        let (larger, smallest, shared) = match dtype.is_float() {
            true => (
                blocks(128, cols),
                blocks(64, cols / 2),
                [GPU_HOPPER_SHARED, GPU_HOPPER_HALF_SHARED],
            ),
            false => (
                blocks(256, cols / 2),
                blocks(128, cols / 4),
                [GPU_CODES_SHARED, GPU_CODES_HALF_SHARED],
            ),
        };
        let half = 2 * rounds(smaller) < 3 * rounds(larger);
        let (blocks, groups) = match half {
            false => (larger, 2),
            true if smallest == smaller || rounds(smallest) == 1 => (smallest, 1),
            true => (smaller, 2),
        };
        Hopper {
            half,
            groups,
            grid: Grid {
                blocks,
                shared: shared[usize::from(half)],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::step::bucket;
    use super::*;

    #[test]
    fn blocks_that_share_a_k_have_room_for_their_sums() {
        for (dim, ffn_dim, vocab_size) in [(8, 24, 40), (2048, 8192, 128_256), (4096, 14_336, 512)]
        {
            let shape = Shape {
                dim,
                n_layers: 1,
                n_heads: dim / 8,
                n_kv_heads: 1,
                head_dim: 8,
                ffn_dim,
                vocab_size,
                norm_eps: 1e-5,
            };
            let products = [dim + 16, dim, 2 * ffn_dim, vocab_size].map(|n| n as u32 / 2);
            let mut most = 0;
            for max_rows in [1, 5, 16, 17, 33, 64, 65, 200, 5000] {
                let room = scratch_bytes(&shape, bucket(max_rows));
                for n_rows in (1..=max_rows).map(|n| bucket(n) as u32) {
                    for pairs in products {
                        let batch = Batch::new(pairs, n_rows);
                        let [x, y, splits] = batch.blocks;
                        assert!(
                            splits == 1 || x * y < GPU_SPLIT_BELOW,
                            "a counter for each tile"
                        );
                        let needed = batch.scratch() + 4 * u64::from(GPU_SPLIT_BELOW);
                        assert!(needed <= room, "{pairs} pairs, {n_rows} of {max_rows} rows");
                        most = most.max(needed);
                    }
                }
                assert_eq!(room, most, "and no more than that");
            }
        }
    }
}
