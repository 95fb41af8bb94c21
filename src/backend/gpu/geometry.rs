//! Computes the grids and the shared memory of products, as `kernels/params.h` states them.
//! `launch` passes the results to the device.

use super::params::*;
use super::room::Room;
use crate::Dtype;
use crate::backend::Shape;
use crate::quant::Quant;

/// The blocks of a launch, and the shared memory of a block in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub blocks: [u32; 3],
    pub shared: u32,
}

/// Whether a decode product of `n_rows` rows and `k` columns uses the batch kernel, which reads
/// rows that `prepare` has rounded. The other kernel rounds the rows itself and keeps them in
/// shared memory, so with many rows each of its blocks reads more bytes of activations than of
/// weights. On an H100 a step of 4 rows of int4 took 0.84 of the time with it, one of 8 rows 0.98,
/// one of 8 rows of int8 1.02 and one of 8 rows of bf16 1.01; the other bounds are not measured.
/// Rows are padded to 1, 2, 4 or 8. Both kernels give the same bits.
pub(super) fn prepares(dtype: Dtype, n_rows: u32, k: u32, room: &Room) -> bool {
    let most = match dtype {
        Dtype::F32 => return false,
        Dtype::F16 | Dtype::Bf16 | Dtype::Int4 => 4,
        _ if dtype.quant().is_some_and(Quant::has_bytes) => 4,
        _ => 2,
    };
    n_rows > most || room.fits(few_shared(dtype, k, n_rows, true, GPU_FEW_TILES, room)) == 0
}

/// The bytes of an activation row in shared memory. The row is extended to whole lines.
fn row_bytes(dtype: Dtype, k: u32) -> u32 {
    let line = match dtype.quant() {
        None => 64,
        Some(quant) if quant.has_bytes() => 128,
        Some(_) => 256,
    };
    k.div_ceil(line).saturating_mul(2 * line)
}

/// The bytes of a slot of the ring through which weights come, with the scales of 128 rows; `None`
/// for formats without one.
fn slot_bytes(dtype: Dtype) -> Option<u32> {
    let scales = match dtype {
        Dtype::F16 | Dtype::Bf16 => 0,
        Dtype::Int8 | Dtype::Nf4 => 8,
        Dtype::Int4 => 16,
        Dtype::Fp8 => 4,
        _ => return None,
    };
    Some(GPU_SLOT + 128 * scales)
}

/// The shared memory of a block of a decode product of a few rows that has `tiles` tiles.
fn few_shared(dtype: Dtype, k: u32, n_rows: u32, rounds: bool, tiles: u32, room: &Room) -> u32 {
    let norms = if rounds { GPU_FEW_NORMS } else { 0 };
    let staged = n_rows.min(GPU_FEW_ROWS).saturating_mul(row_bytes(dtype, k));
    let slots = match dtype {
        Dtype::Int4 | Dtype::Nf4 => GPU_FEW_SLOTS,
        _ if room.is_90 => GPU_FEW_SLOTS_90,
        _ => GPU_FEW_SLOTS,
    };
    let ring = slots * slot_bytes(dtype).unwrap_or(0);
    staged.saturating_add(GPU_TABLE_BYTES + norms + ring + 4096 * tiles.min(GPU_FEW_TILES))
}

/// The grid of a decode product of a few rows on tensor cores. `rounds`: whether the kernel applies
/// norm and rounding to the rows itself. All blocks share the tiles, and all blocks run at the same
/// time. Formats without a ring have fewer bytes in flight in a block, so they have two blocks on a
/// multiprocessor, where two fit.
///
/// Formats with a ring have one block on a multiprocessor, and ask for so much shared memory that
/// two do not fit. Without that (and with rings of three lines), a step of one row took 1.17 times
/// as long for int4 and 1.07 times for bf16 on an H100, and longer than if no launch started early.
/// Presumably early blocks go where the previous launch leaves room: two to one multiprocessor and
/// none to another.
pub(super) fn few(
    dtype: Dtype,
    [pairs, k, n_rows]: [u32; 3],
    rounds: bool,
    multiprocessors: u32,
    room: &Room,
) -> Grid {
    let tiles = pairs.div_ceil(8);
    let grid = |of_each: u32| {
        let blocks = tiles.min(of_each * multiprocessors);
        let of_block = tiles.div_ceil(blocks.max(1));
        Grid {
            blocks: [blocks, n_rows.div_ceil(GPU_FEW_ROWS), 1],
            shared: few_shared(dtype, k, n_rows, rounds, of_block, room),
        }
    };
    let two = grid(2);
    match slot_bytes(dtype) {
        None if room.fits(two.shared) > 1 => two,
        _ => {
            let Grid { blocks, shared } = grid(1);
            let shared = shared.max(room.alone());
            Grid { blocks, shared }
        }
    }
}

/// The shape of a batch product: its blocks by activation rows, by pairs of weight rows, and by
/// parts of K.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Activation rows of a block.
    rows: u32,
    blocks: [u32; 3],
}

impl Batch {
    /// Every block reads all activation rows, so a block has many weight rows. Where this leaves
    /// too few blocks for the multiprocessors of a large GPU, several blocks share a K (split-K).
    /// The bits are the same.
    pub fn new(pairs: u32, n_rows: u32) -> Self {
        let rows = match n_rows {
            ..=16 => 16,
            17..=32 => 32,
            _ => GPU_BATCH_ROWS,
        };
        let [x, y] = [n_rows.div_ceil(rows), pairs.div_ceil(GPU_BATCH_PAIRS)];
        let splits = match x.saturating_mul(y) {
            GPU_SPLIT_BELOW.. => 1,
            40.. => 4,
            _ => 8,
        };
        Batch {
            rows,
            blocks: [x, y, splits],
        }
    }

    /// The number of blocks that share a K.
    pub fn splits(&self) -> u32 {
        self.blocks[2]
    }

    pub fn grid(&self, dtype: Dtype) -> Grid {
        let slot = slot_bytes(dtype).filter(|_| self.rows < GPU_BATCH_ROWS);
        // Bytes of stages for every eight rows, and bytes of all slots.
        let (of_eight, ring) = match (slot, dtype) {
            (None, _) if dtype.is_float() || self.rows == GPU_BATCH_ROWS => (GPU_BATCH_SHARED, 0),
            (None, _) => (GPU_BATCH_SHARED_CODES, 0),
            (Some(slot), Dtype::F16 | Dtype::Bf16) => (3 * 1024, 3 * slot),
            (Some(slot), Dtype::Int4 | Dtype::Nf4) => (3 * 2048, 2 * slot),
            (Some(slot), _) if self.rows == 32 => (2 * 2048, 2 * slot),
            (Some(slot), _) => (3 * 2048, 3 * slot),
        };
        let levels = match self.splits() {
            1 => 2,
            4 => 1,
            _ => 0,
        };
        Grid {
            blocks: self.blocks,
            shared: GPU_TABLE_BYTES + self.rows / 8 * (of_eight + levels * GPU_BATCH_LEVEL) + ring,
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

/// Bytes of the counters and of the sums of blocks that share a K. They suffice for steps of up to
/// `most_rows` rows, padding included, and for any head of at most `vocab_size` rows. Smaller heads
/// matter because the head of a rank has only a share of the rows. It may need to share K where the
/// whole head has blocks enough.
pub(super) fn scratch_bytes(shape: &Shape, most_rows: usize) -> u64 {
    let pairs = |rows: usize| u32::try_from(rows.div_ceil(2)).unwrap_or(u32::MAX);
    let layers = [
        pairs(shape.q_dim() + 2 * shape.kv_dim()),
        pairs(shape.dim),
        pairs(2 * shape.ffn_dim),
    ];
    let heads = (1..GPU_SPLIT_BELOW).map(|n| n * GPU_BATCH_PAIRS);
    let heads = heads.map(|n| n.min(pairs(shape.vocab_size)));
    let products: Vec<u32> = layers.into_iter().chain(heads).collect();
    let most_rows = u32::try_from(most_rows).unwrap_or(u32::MAX);
    // All numbers of rows that can need the most. With more rows, no product is split.
    let groups = (1..GPU_SPLIT_BELOW).map(|n| n * GPU_BATCH_ROWS);
    let rows = [16, 32].into_iter().chain(groups).map(|n| n.min(most_rows));
    let sums = rows.flat_map(|n| {
        products
            .iter()
            .map(move |&pairs| Batch::new(pairs, n).scratch())
    });
    sums.max().unwrap_or(0) + 4 * u64::from(GPU_SPLIT_BELOW)
}

/// The grid of a prefill product of `n` columns. For 16-bit and quantised weights, a tile has
/// `cols` columns; for float32, half as many.
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

/// How a prefill product runs on compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hopper {
    /// The tiles: 0 whole, 1 half, [`Hopper::QUARTER`].
    pub tile: usize,
    /// The number of warpgroups of a block that multiply.
    pub groups: u32,
    /// The number of blocks that share copies: of the same weights with 16-bit weights, of the same
    /// rows with quantised ones.
    pub cluster: u32,
    /// Whether blocks with the same rows are neighbours, and not those with the same weights.
    pub across: bool,
    pub grid: Grid,
}

impl Hopper {
    pub const QUARTER: usize = 2;

    /// Chooses the tiles of a product of `n` columns. A tile has `cols` columns and 128 rows; with
    /// quantised weights, half as many columns and 256 rows. Blocks with the same weights are
    /// neighbours.
    ///
    /// Half tiles are used if they take under 3/4 of the time; they cost 4/3 of the L2 traffic. If
    /// the blocks of half tiles with one warpgroup each fit on the GPU all at once, these are used;
    /// with 16-bit weights, if `quarters` exist and even their blocks fit, these.
    /// With 16-bit weights, blocks with the same weights are clusters of two; a block without rows
    /// makes an odd number of them even, unless that takes longer. With quantised weights, blocks
    /// with the same rows are, where their number is even. The choice depends on the number
    /// of rows, so all variants must give the same bits. They do in the emulator, and
    /// tests/gpu/day.sh checks it on hardware.
    pub fn new(
        dtype: Dtype,
        [n, cols, n_rows]: [u32; 3],
        quarters: bool,
        multiprocessors: u32,
    ) -> Hopper {
        let blocks = |rows, cols| [n_rows.div_ceil(rows), n.div_ceil(cols), 1];
        let rounds = |[x, y, _]: [u32; 3]| x.saturating_mul(y).div_ceil(multiprocessors);
        let smaller = blocks(128, cols / 2);
        let (larger, smallest, shared) = match dtype.is_float() {
            true => (
                blocks(128, cols),
                blocks(64, cols / 2),
                [
                    GPU_HOPPER_SHARED,
                    GPU_HOPPER_HALF_SHARED,
                    GPU_HOPPER_QUARTER_SHARED,
                ],
            ),
            false => (
                blocks(256, cols / 2),
                blocks(128, cols / 4),
                [GPU_CODES_SHARED, GPU_CODES_HALF_SHARED, 0],
            ),
        };
        let half = 2 * rounds(smaller) < 3 * rounds(larger);
        let of_quarters = blocks(64, cols / 4);
        let quarters = quarters && dtype.is_float() && rounds(of_quarters) == 1;
        let (tile, blocks, groups) = match half {
            false => (0, larger, 2),
            true if quarters => (Hopper::QUARTER, of_quarters, 1),
            true if smallest == smaller || rounds(smallest) == 1 => (1, smallest, 1),
            true => (1, smaller, 2),
        };
        let shared = match (tile, groups) {
            (1, 1) if dtype.is_float() => GPU_HOPPER_SINGLE_SHARED,
            _ => shared[tile],
        };
        let [x, y, _] = blocks;
        let even = [x.next_multiple_of(2), y, 1];
        let pairs = dtype.is_float() && x > 1 && rounds(even) == rounds(blocks);
        let across = !dtype.is_float() && y % 2 == 0;
        let (blocks, cluster) = match (pairs, across) {
            (true, _) => (even, 2),
            (_, true) => ([2 * x, y / 2, 1], 2),
            _ => (blocks, 1),
        };
        Hopper {
            tile,
            groups,
            cluster,
            across,
            grid: Grid { blocks, shared },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::step::bucket;
    use super::*;

    const fn room(kib: u32, is_90: bool) -> Room {
        Room {
            whole: kib << 10,
            reserved: 1 << 10,
            most: (kib - 1) << 10,
            is_90,
        }
    }

    /// Of compute capability 9.0, 10.0, 8.0 and 8.6.
    const ROOMS: [Room; 4] = [
        room(228, true),
        room(228, false),
        room(164, false),
        room(100, false),
    ];

    #[test]
    fn products_fit_into_the_shared_memory_of_every_gpu() {
        let dtypes = || Dtype::ALL.into_iter().filter(|&d| d != Dtype::F32);
        for (room, dtype) in ROOMS.iter().flat_map(|r| dtypes().map(move |d| (r, d))) {
            for k in [1, 65, 4096, 8192, 14_336, 28_672, 60_000] {
                for n_rows in (1..=8).filter(|&n| !prepares(dtype, n, k, room)) {
                    for (pairs, multiprocessors) in [(1, 132), (64_128, 132), (64_128, 1)] {
                        let grid = few(dtype, [pairs, k, n_rows], true, multiprocessors, room);
                        let at_once = multiprocessors * room.fits(grid.shared);
                        assert!(grid.blocks[0] <= pairs.div_ceil(8).min(at_once));
                        assert!(slot_bytes(dtype).is_none() || at_once == multiprocessors);
                    }
                }
            }
            for (n_rows, pairs) in [16, 32, 64]
                .map(|n| [2048, 3072, 64_128].map(|p| (n, p)))
                .concat()
            {
                let shared = Batch::new(pairs, n_rows).grid(dtype).shared;
                assert!(room.fits(shared) > 0, "{dtype:?}, {n_rows} rows: {shared}");
            }
        }
        let [large, _, _, small] = &ROOMS;
        assert!(
            !prepares(Dtype::Int4, 1, 28_672, large) && prepares(Dtype::Int4, 1, 14_336, small)
        );
        assert!(!prepares(Dtype::F32, 8, 60_000, small));
        for dtype in [Dtype::Bf16, Dtype::Int8, Dtype::Fp8, Dtype::Int4] {
            assert!(!prepares(dtype, 1, 4096, small), "{dtype}");
            assert!(!prepares(dtype, 4, 4096, large) && prepares(dtype, 5, 4096, large));
        }
    }

    #[test]
    fn a_block_that_is_to_be_alone_is_so_wherever_it_can_have_as_much() {
        for room in &ROOMS {
            assert_eq!(room.fits(room.alone()), 1);
            assert_eq!(room.fits(room.alone() - 1), 2);
        }
        let kept = Room {
            most: 99 << 10,
            ..ROOMS[0]
        };
        assert_eq!(kept.alone(), 0);
    }

    #[test]
    fn formats_without_a_ring_have_two_blocks_where_they_fit() {
        for (room, dtype, k, each) in [
            (&ROOMS[3], Dtype::K4, 8192, 2),
            (&ROOMS[3], Dtype::K4, 8448, 1),
            (&ROOMS[0], Dtype::K4, 32_768, 2),
            (&ROOMS[0], Dtype::Uint4, 4096, 2),
            (&ROOMS[0], Dtype::Int4, 4096, 1),
        ] {
            let grid = few(dtype, [64_128, k, 1], true, 132, room);
            assert_eq!(grid.blocks, [132 * each, 1, 1], "{room:?}, {k} columns");
        }
    }

    #[test]
    fn blocks_with_the_same_weights_are_pairs_where_that_takes_no_longer() {
        let of = |dtype, n, n_rows, multiprocessors| {
            let how = Hopper::new(dtype, [n, 256, n_rows], false, multiprocessors);
            (how.grid.blocks, how.cluster)
        };
        assert_eq!(of(Dtype::Bf16, 6144, 2048, 132), ([16, 24, 1], 2));
        assert_eq!(of(Dtype::Bf16, 6144, 2050, 132), ([18, 24, 1], 2));
        // A fourth block would need a second round, so there is no pair. A single block has no
        // partner.
        assert_eq!(of(Dtype::Bf16, 256, 300, 3), ([3, 1, 1], 1));
        assert_eq!(of(Dtype::Bf16, 6144, 64, 132), ([1, 48, 1], 1));
    }

    #[test]
    fn tiles_are_quarters_where_every_block_has_a_multiprocessor() {
        let of = |n, n_rows| {
            let how = Hopper::new(Dtype::Bf16, [n, 256, n_rows], true, 132);
            (how.tile, how.grid.blocks, how.cluster)
        };
        assert_eq!(of(4096, 128), (Hopper::QUARTER, [2, 64, 1], 2));
        assert_eq!(of(6144, 64), (Hopper::QUARTER, [1, 96, 1], 1));
        assert_eq!(of(6144, 128), (1, [2, 48, 1], 2));
        assert_eq!(of(4096, 2048), (0, [16, 16, 1], 2));
    }

    #[test]
    fn blocks_with_the_same_rows_are_pairs_where_weights_are_quantised() {
        let of = |n, n_rows| {
            let how = Hopper::new(Dtype::Int8, [n, 256, n_rows], true, 132);
            (how.grid.blocks, how.cluster, how.across)
        };
        assert_eq!(of(6144, 2048), ([16, 24, 1], 2, true));
        assert_eq!(of(6144, 128), ([2, 48, 1], 2, true));
        assert_eq!(of(64 * 3, 128), ([1, 3, 1], 1, false));
    }

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
            // The heads of up to eight ranks, and of so many blocks.
            let heads = (1..=8).map(|ranks| vocab_size.div_ceil(ranks));
            let blocks = (1..=100).map(|n| (2 * n * GPU_BATCH_PAIRS as usize).min(vocab_size));
            let products = [dim + 16, dim, 2 * ffn_dim]
                .into_iter()
                .chain(heads)
                .chain(blocks);
            let products: Vec<u32> = products.map(|n| n.div_ceil(2) as u32).collect();
            let mut most = 0;
            for max_rows in [1, 5, 16, 17, 33, 64, 65, 200, 5000] {
                let room = scratch_bytes(&shape, bucket(max_rows));
                for n_rows in (1..=max_rows).map(|n| bucket(n) as u32) {
                    for &pairs in &products {
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
