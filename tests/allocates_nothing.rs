//! Law two: a backend's part of a step allocates nothing, whatever it does: on the CPU, and on a
//! GPU's side of the driver (a stand-in's). The engine, which plans steps and tells tokens, is not
//! counted: events have texts of their own. The binary's allocator counts. (U)
#![allow(unsafe_code)]

#[path = "support/emu/mod.rs"]
mod emu;
#[path = "support/small_model.rs"]
mod small_model;

use emu::standin::Standin;
use llamabi::Dtype;
use llamabi::backend::choice::{Edit, Search, Strategy, mask_words};
use llamabi::backend::cpu::{Cpu, Precision};
use llamabi::backend::gpu::Gpu;
use llamabi::backend::*;
use llamabi::engine::GenerateOptions;
use llamabi::model::Runner;
use small_model::{LIMITS, SHAPE, rope, runner};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// The thread of the test runner, which is not counted: after a minute it prints that the test has
/// not ended yet, and allocates for that.
static RUNNER: AtomicI32 = AtomicI32::new(0);

// SAFETY: the system's allocator, with a counter beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: it only tells the thread's number.
        if unsafe { libc::gettid() } != RUNNER.load(Ordering::SeqCst) {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// `rows` tokens of each of `batch` sequences of 64 pages, from `position` on.
fn step(kind: RowKind, batch: usize, position: usize, rows: usize) -> Step {
    let mut step = Step::default();
    for sequence in 0..batch {
        let first = step.tokens.len();
        for p in position..position + rows {
            step.tokens.push((p % SHAPE.vocab_size) as i32);
            step.slots.push((sequence * 1024 + p) as u32);
        }
        let pages = step.pages.len();
        step.pages
            .extend((sequence * 64) as u32..((sequence + 1) * 64) as u32);
        step.spans.push(Span {
            rows: first..step.tokens.len(),
            kind,
            position,
            pages: pages..step.pages.len(),
        });
    }
    step.wanted = (0..step.tokens.len() as u32).collect();
    step
}

/// A generated row of each of `batch` sequences that share their first 512 positions, and beside
/// them the first `rows` of a prompt.
fn company(batch: usize, rows: usize) -> Step {
    let (shared, position) = (32, 512);
    let mut step = Step::default();
    for sequence in 0..batch {
        let page = shared + sequence;
        step.tokens.push((sequence % SHAPE.vocab_size) as i32);
        step.slots.push((page * LIMITS.page_size) as u32);
        let pages = step.pages.len();
        step.pages.extend((0..shared as u32).chain([page as u32]));
        step.spans.push(Span {
            rows: sequence..sequence + 1,
            kind: RowKind::Decode,
            position,
            pages: pages..step.pages.len(),
        });
    }
    let own = shared + batch;
    let pages = step.pages.len();
    step.pages
        .extend((own..own + rows.div_ceil(LIMITS.page_size)).map(|page| page as u32));
    step.tokens.extend(0..rows as i32);
    step.slots
        .extend((0..rows).map(|row| (own * LIMITS.page_size + row) as u32));
    step.spans.push(Span {
        rows: batch..batch + rows,
        kind: RowKind::Prefill,
        position: 0,
        pages: pages..step.pages.len(),
    });
    step.wanted = (0..step.tokens.len() as u32).collect();
    step
}

/// With everything that a choice can have.
fn choice() -> Choice {
    let options = GenerateOptions {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.2,
        ..GenerateOptions::default()
    };
    Choice {
        given: None,
        strategy: Strategy::from(&options),
        draw: 1 << 23,
        n_tokens: SHAPE.vocab_size,
        history: 0..3,
        edits: 0..0,
        mask: None,
        to_host: false,
        logprob: true,
        top: 5,
        search: Search::Off,
    }
}

/// One test: a second one's allocations would be counted with the first one's.
#[test]
fn steps_allocate_nothing() {
    // SAFETY: they only tell numbers; a process's first thread has the process's.
    let (this, first) = unsafe { (libc::gettid(), libc::getpid()) };
    if this != first {
        RUNNER.store(first, Ordering::SeqCst);
    }
    for (dtype, kv_dtype) in [
        (Dtype::F16, Dtype::F16),
        (Dtype::Int8, Dtype::Int8),
        (Dtype::Int4, Dtype::Bf16),
    ] {
        let cpu = Cpu::new(&SHAPE, rope(), 3, 128).unwrap();
        steps_of(runner(cpu, dtype, kv_dtype), 1, vec![]);
    }
    // Every arithmetic that rows of many sequences can have.
    for precision in [
        Precision::Full,
        Precision::AsPrompts,
        Precision::Fast(4),
        Precision::Fast(64),
    ] {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
            let cpu = Cpu::new(&SHAPE, rope(), 2, 128)
                .unwrap()
                .precision(precision);
            let more = [(1, 20), (8, 33), (17, 1), (40, 60), (64, 64)];
            let more = more.map(|(batch, rows)| company(batch, rows));
            steps_of(runner(cpu, dtype, Dtype::Bf16), 8, more.into());
        }
    }
    for (dtype, kv_dtype) in [
        (Dtype::F32, Dtype::F32),
        (Dtype::Bf16, Dtype::Bf16),
        (Dtype::Bf16, Dtype::Int8),
        (Dtype::Int4, Dtype::Int8),
    ] {
        let standin = Standin::new("seed=1");
        let cuda = Arc::new(standin.open().unwrap());
        let gpu = Gpu::new(cuda, &SHAPE, &rope(), &LIMITS, &[dtype], kv_dtype).unwrap();
        // The emulator takes its time.
        assert!(steps_of(runner(gpu, dtype, kv_dtype), 5, vec![]) > 0);
        assert!(standin.count("launches") > 100);
        assert!(standin.count("replays") > 4);
        standin.assert_clean();
    }
}

/// Every so many of them, and `more`; returns in how many of these the device chose for some rows
/// and left others to the host.
fn steps_of<B: Steps>(mut runner: Runner<B>, every: usize, more: Vec<Step>) -> usize {
    let mut steps = Vec::new();
    for position in (0..1000).step_by(100) {
        steps.push(step(RowKind::Prefill, 1, position, 100));
    }
    for batch in 1..=4 {
        for position in [0, 1, 255, 256, 900, 1023] {
            steps.push(step(RowKind::Decode, batch, position, 1));
        }
    }
    steps.push(step(RowKind::Prefill, 4, 500, 32));
    let mut steps: Vec<_> = steps.into_iter().step_by(every).collect();
    steps.extend(more);
    // What was recorded runs again.
    let last = steps.len() - 2;
    steps.extend([
        steps[last].clone(),
        steps[last].clone(),
        steps[last].clone(),
    ]);
    let choices_of = |(i, step): (usize, &Step)| {
        let mut choices = Choices::default();
        if i % 2 == 0 {
            choices.history = vec![1, 2, 3];
            choices.rows = vec![choice(); step.wanted.len()];
        }
        if i % 4 == 0 {
            let every_second = choices.rows.iter_mut().skip(1).step_by(2);
            every_second.for_each(|choice| choice.to_host = true);
        }
        if i % 4 == 2 {
            choices.edits = vec![Edit {
                token: 5,
                add: -1.5,
            }];
            choices.masks = vec![u32::MAX; mask_words(SHAPE.vocab_size)];
            for choice in choices.rows.iter_mut().step_by(2) {
                (choice.edits, choice.mask) = (0..1, Some(0));
            }
        }
        choices
    };
    let choices: Vec<_> = steps.iter().enumerate().map(choices_of).collect();
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let (mut answered, mut mixed) = (0, 0);
    for (step, choices) in steps.iter().zip(&choices) {
        answered += match runner.run(step, choices).unwrap() {
            Answer::Logits(logits) | Answer::Beside { logits, .. } => {
                logits.len() / SHAPE.vocab_size
            }
            Answer::Picks { picks, top, .. } => {
                let left = picks.iter().filter(|pick| pick.logits.is_some()).count();
                assert_eq!(top.len(), 5 * (picks.len() - left));
                mixed += usize::from(left > 0);
                picks.len()
            }
        };
    }
    runner.copy_pages(&[(0, 70), (1, 71)]).unwrap();
    let after = ALLOCATIONS.load(Ordering::SeqCst);
    assert_eq!(after - before, 0, "allocations in {} steps", steps.len());
    let rows: usize = steps.iter().map(|s| s.tokens.len()).sum();
    assert_eq!(answered, rows);
    mixed
}
