//! Pages that are copied to the host and back, to other pages, are the same to the bit, and so are
//! the two branches of a sequence that is forked in the middle of a page: on the CPU and on the GPU
//! backend, over an emulated device and over the stand-in driver, with every format of the cache.

use crate::emu::{Emu, real, standin};
use crate::small_model::{LIMITS, SHAPE, rope, runner};
use llamabi::Dtype;
use llamabi::backend::cpu::Cpu;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::gpu::device::Device;
use llamabi::backend::*;
use llamabi::kv::Pool;
use llamabi::model::Runner;
use std::sync::Arc;

const PAGE: usize = LIMITS.page_size;

/// Rows of one sequence, from `position` on.
fn step(kind: RowKind, position: usize, rows: usize, pages: &[u32]) -> Step {
    branch_step(0, kind, position, rows, pages)
}

/// The same with tokens that every `branch` has of its own.
fn branch_step(branch: usize, kind: RowKind, position: usize, rows: usize, pages: &[u32]) -> Step {
    let positions = position..position + rows;
    let slot = |p: usize| pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32;
    Step {
        tokens: positions
            .clone()
            .map(|p| ((p * 37 + branch * 11) % SHAPE.vocab_size) as i32)
            .collect(),
        slots: positions.clone().map(slot).collect(),
        spans: vec![Span {
            rows: 0..rows,
            kind,
            position,
            pages: 0..pages.len(),
        }],
        pages: pages.to_vec(),
        wanted: vec![rows as u32 - 1],
        ..Step::default()
    }
}

fn logits<B: Steps>(runner: &mut Runner<B>, step: &Step) -> Vec<u32> {
    let logits = runner.run(step, Choices::NONE).unwrap().logits();
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A prompt of 40 tokens, and 7 more: the last page is not full.
fn begin<B: Steps>(runner: &mut Runner<B>, pages: &[u32]) {
    runner
        .run(&step(RowKind::Prefill, 0, 40, pages), Choices::NONE)
        .unwrap();
    for position in 40..47 {
        runner
            .run(&step(RowKind::Decode, position, 1, pages), Choices::NONE)
            .unwrap();
    }
}

fn go_on<B: Steps>(runner: &mut Runner<B>, pages: &[u32]) -> Vec<Vec<u32>> {
    let mut row = |position| logits(runner, &step(RowKind::Decode, position, 1, pages));
    (47..52).map(&mut row).collect()
}

fn moved<B: Steps>(backend: B, dtype: Dtype, kv_dtype: Dtype) {
    let mut runner = runner(backend, dtype, kv_dtype);
    let (first, other) = ([3, 200, 7, 9], [255, 0, 31, 100]);
    begin(&mut runner, &first);
    let want = go_on(&mut runner, &first);
    assert!(
        want.windows(2).all(|pair| pair[0] != pair[1]),
        "the rows differ"
    );

    begin(&mut runner, &first);
    let mut kept = vec![0; 3 * runner.page_bytes()];
    assert_eq!(runner.page_bytes() as u64, B::page_bytes(&SHAPE, kv_dtype));
    runner.save_pages(&first[..3], &mut kept).unwrap();
    // Someone else has the pages meanwhile; neighbours keep theirs.
    let noise: Vec<u8> = (0..kept.len()).map(|i| (i % 251) as u8).collect();
    let neighbours = [1, 30, 32, 101];
    let mut before = vec![0; 4 * runner.page_bytes()];
    runner.load_pages(&neighbours[..3], &noise).unwrap();
    runner.save_pages(&neighbours, &mut before).unwrap();
    runner.load_pages(&first[..3], &noise).unwrap();
    runner.load_pages(&other[..3], &kept).unwrap();
    let mut again = vec![0; kept.len()];
    runner.save_pages(&other[..3], &mut again).unwrap();
    assert!(again == kept, "{kv_dtype}: other bytes came back");
    let mut after = vec![0; before.len()];
    runner.save_pages(&neighbours, &mut after).unwrap();
    assert!(after == before, "{kv_dtype}: a neighbour was written");
    assert!(go_on(&mut runner, &other) == want, "{kv_dtype}: other bits");
}

/// Positions of a branch behind the fork: over the end of a page.
const BEHIND: std::ops::Range<usize> = 43..66;

/// Fork a sequence in the middle of a page, as [`Pool::fork`] says, and go on with both branches in
/// turns, with tokens of their own: each gives the logits that it gives alone.
fn forked<B: Steps>(backend: B, dtype: Dtype, kv_dtype: Dtype) {
    let mut runner = runner(backend, dtype, kv_dtype);
    let mut pool = Pool::new(LIMITS.n_pages, PAGE).unwrap();
    let total = BEHIND.end.div_ceil(PAGE);
    let table = |pool: &mut Pool| {
        let mut table = pool.reserve(&[], total).unwrap().unwrap();
        pool.grow(&mut table, total);
        table
    };
    let before = |runner: &mut Runner<B>, pages: &[u32]| {
        runner
            .run(&step(RowKind::Prefill, 0, 40, pages), Choices::NONE)
            .unwrap();
        for position in 40..BEHIND.start {
            runner
                .run(&step(RowKind::Decode, position, 1, pages), Choices::NONE)
                .unwrap();
        }
    };
    let row = |runner: &mut Runner<B>, branch, position, pages: &[u32]| {
        logits(
            runner,
            &branch_step(branch, RowKind::Decode, position, 1, pages),
        )
    };
    let alone: Vec<Vec<Vec<u32>>> = (1..=2)
        .map(|branch| {
            let pages = table(&mut pool);
            before(&mut runner, &pages);
            BEHIND
                .map(|position| row(&mut runner, branch, position, &pages))
                .collect()
        })
        .collect();
    assert!(alone[0] != alone[1], "the branches differ");

    let parent = table(&mut pool);
    let mut child = table(&mut pool);
    let used = pool.used();
    before(&mut runner, &parent);
    let pair = pool.fork(&parent, &mut child, BEHIND.start);
    let full = BEHIND.start / PAGE;
    assert_eq!(child[..full], parent[..full], "full pages are shared");
    assert_eq!(pool.used(), used - full);
    assert_eq!(pair, Some((parent[full], child[full])));
    runner.copy_pages(&[pair.unwrap()]).unwrap();
    for (at, position) in BEHIND.enumerate() {
        for (branch, pages) in [(1, &parent), (2, &child)] {
            assert!(
                row(&mut runner, branch, position, pages) == alone[branch - 1][at],
                "{kv_dtype}: branch {branch}, position {position}"
            );
        }
    }
}

#[test]
fn branches_of_a_fork_are_sequences_of_their_own_on_the_cpu() {
    for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        let cpu = Cpu::new(&SHAPE, rope(), 2, LIMITS.max_rows).unwrap();
        forked(cpu, Dtype::Bf16, kv_dtype);
    }
}

#[test]
fn branches_of_a_fork_are_sequences_of_their_own_on_an_emulated_gpu() {
    on_gpu(Emu::new(1 << 30, 1), &[Dtype::Bf16, Dtype::Int8], forked);
}

#[test]
fn moved_pages_are_the_same_on_the_cpu() {
    for kv_dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        let cpu = Cpu::new(&SHAPE, rope(), 2, LIMITS.max_rows).unwrap();
        moved(cpu, Dtype::Bf16, kv_dtype);
    }
}

fn on_gpu<D: Device>(device: Arc<D>, kv_dtypes: &[Dtype], test: fn(Gpu<D>, Dtype, Dtype)) {
    for &kv_dtype in kv_dtypes {
        let gpu = Gpu::new(
            device.clone(),
            &SHAPE,
            &rope(),
            &LIMITS,
            &[Dtype::Bf16],
            kv_dtype,
        )
        .unwrap();
        test(gpu, Dtype::Bf16, kv_dtype);
    }
}

#[test]
fn moved_pages_are_the_same_on_an_emulated_gpu() {
    let all = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8, Dtype::Fp8];
    on_gpu(Emu::new(1 << 30, 1), &all, moved);
}

#[test]
fn moved_pages_are_the_same_through_the_driver() {
    // Layers lie farther apart than one copy of rows can do.
    let standin = standin::Standin::new("seed=1 pitch=4096");
    on_gpu(
        Arc::new(standin.open().unwrap()),
        &[Dtype::Bf16, Dtype::Int8],
        moved,
    );
    standin.assert_clean();
}

/// With `LLAMABI_TEST_DEVICE=cuda`: what a real device makes of both.
#[test]
fn on_a_real_device() {
    let Some(cuda) = real::cuda() else {
        println!("no real device is meant");
        return;
    };
    let all = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8, Dtype::Fp8];
    on_gpu(cuda.clone(), &all, moved);
    on_gpu(cuda, &all, forked);
}
