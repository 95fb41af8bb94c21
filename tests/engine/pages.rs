//! Pages are promised when a sequence begins, and get their numbers when they are written to.

use crate::support::*;
use llamabi::Token;
use llamabi::backend::{RowKind, Step};
use llamabi::engine::{FinishReason, GenerateOptions, Prompt};

/// Texts of twelve tokens with their prompts.
fn twelve(history: &History, row: &mut [f32]) {
    row.fill(-1.0);
    let next = if history.len() < 12 { 5 } else { EOS };
    row[next as usize] = 1.0;
}

/// Room for four sequences of 64 pages.
fn long_ones() -> Setup {
    Setup {
        max_seq_len: 256,
        n_pages: 256,
        ..Setup::default()
    }
}

fn prompts(first: Token) -> Vec<Prompt> {
    let prompt = |n| Prompt::Tokens((first + n..).take(5).collect());
    (0..4).map(prompt).collect()
}

/// The last page that these steps write to.
fn last_page(steps: &[Step], page_size: usize) -> usize {
    let slots = steps.iter().flat_map(|step| &step.slots);
    let written = slots.filter(|slot| **slot != Step::NO_SLOT);
    written
        .map(|slot| *slot as usize / page_size)
        .max()
        .unwrap()
}

#[test]
fn sequences_write_side_by_side_however_much_they_may_write() {
    for options in [
        greedy(),
        GenerateOptions {
            num_beams: 4,
            ..greedy()
        },
        GenerateOptions {
            num_return_sequences: 4,
            ..greedy()
        },
    ] {
        let setup = long_ones();
        let (host, probe) = setup.start(twelve);
        // Prompts differ, so that the second call finds nothing that the first has left.
        // What they leave in the cache stays where it is.
        for (first, most) in [(3, 16), (13, 20)] {
            let got = host.run(prompts(first), options.clone());
            assert!(got.iter().all(|got| got.reason() == FinishReason::Stop));
            let last = last_page(&probe.take_steps(), setup.page_size);
            assert!(last < most, "{last} with {} beams", options.num_beams);
            host.assert_empty();
        }
    }
}

#[test]
fn what_is_promised_is_not_for_others() {
    let (host, probe) = long_ones().start(twelve);
    probe.hold();
    let stream = host.submit(prompts(3), greedy()).unwrap();
    probe.wait_for(1);
    let timings = host.engine.timings();
    assert_eq!((timings.running, timings.pages_used), (4, 256));
    probe.release();
    collect(&stream, 4).unwrap();
    host.assert_empty();
}

/// Whoever may write much and writes little takes little of what is cached.
#[test]
fn a_promise_reclaims_nothing_that_is_cached() {
    let (host, probe) = Setup {
        max_batch_size: 1,
        n_pages: 64,
        ..long_ones()
    }
    .start(twelve);
    let long = Prompt::Tokens((0..100).map(|n| 3 + n % 20).collect());
    let short = GenerateOptions {
        max_gen_len: Some(1),
        ..greedy()
    };
    assert_eq!(host.one(long.clone(), short.clone()).stats.cached_tokens, 0);
    // All 64 pages are promised to it.
    host.one(Prompt::Tokens(vec![40; 5]), greedy());
    probe.take_steps();
    assert_eq!(host.one(long, short).stats.cached_tokens, 99);
    let steps = probe.take_steps();
    let rows = steps.iter().flat_map(|step| &step.spans);
    let rows = rows.filter(|span| span.kind == RowKind::Prefill);
    assert_eq!(rows.map(|span| span.rows.len()).sum::<usize>(), 1);
    host.assert_empty();
}
