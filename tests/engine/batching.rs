//! Batching: joining and leaving, fairness, slots and pages.

use crate::support::*;
use llamabi::backend::{Answer, Choices, Limits, RowKind, Run, Step};
use llamabi::engine::{GenerateOptions, Next, Prompt, Stream};
use llamabi::{Error, Result};
use std::time::Duration;

fn rows(step: &Step, kind: RowKind) -> usize {
    step.spans
        .iter()
        .filter(|span| span.kind == kind)
        .map(|span| span.rows.len())
        .sum()
}

/// The event that is there now.
fn now(stream: &Stream) -> Next {
    stream.next(Some(Duration::ZERO)).unwrap()
}

#[test]
fn a_request_joins_at_the_next_step_and_leaves_without_stopping_the_others() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("a")], length(6)).unwrap();
    probe.wait_for(1);
    let second = host.submit(vec![prompt("k")], length(2)).unwrap();
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (1, 1)
    );
    probe.allow(1);
    probe.wait_for(2);
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (2, 0)
    );
    probe.release();
    assert_eq!(collect(&second, 1).unwrap().0[0].text, "lm");
    assert_eq!(collect(&first, 1).unwrap().0[0].text, "bcdefg");
    let steps = probe.steps();
    let shape: Vec<_> = steps
        .iter()
        .map(|s| (rows(s, RowKind::Decode), rows(s, RowKind::Prefill)))
        .collect();
    // Prefill; join with prefill; one decode together; alone.
    assert_eq!(shape, [(0, 2), (1, 2), (2, 0), (1, 0), (1, 0), (1, 0)]);
    host.assert_empty();
}

#[test]
fn the_rest_wait_in_order_of_arrival() {
    let (host, probe) = Setup {
        max_batch_size: 2,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    // Two sequences of one call, which come in one step however late the other calls are.
    let streams: Vec<(Stream, usize)> = [2, 1, 1, 1]
        .map(|n| {
            let prompts = vec![prompt("a"); n];
            (host.submit(prompts, length(3)).unwrap(), n)
        })
        .into();
    probe.wait_for(1);
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (2, 3)
    );
    for (ended, steps, running) in [(0..1, 3, 2), (1..3, 6, 1)] {
        probe.allow(3);
        for (stream, n) in &streams[ended.clone()] {
            collect(stream, *n).unwrap();
        }
        probe.wait_for(steps + 1);
        for (at, (stream, _)) in streams.iter().enumerate().skip(ended.end) {
            assert_eq!(now(stream), Next::Timeout, "{at}");
        }
        assert_eq!(host.engine.timings().running, running);
    }
    probe.release();
    collect(&streams[3].0, 1).unwrap();
    host.assert_empty();
}

#[test]
fn a_long_prompt_and_running_streams_do_not_starve_each_other() {
    let setup = Setup {
        prefill_chunk: Some(4),
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    probe.hold();
    let short = host.submit(vec![prompt("a")], length(8)).unwrap();
    probe.wait_for(1);
    let long = host
        .submit(vec![prompt(&"x".repeat(39))], length(1))
        .unwrap();
    probe.release();
    collect(&long, 1).unwrap();
    collect(&short, 1).unwrap();
    let steps = probe.steps();
    for step in &steps[1..8] {
        assert_eq!(
            (rows(step, RowKind::Decode), rows(step, RowKind::Prefill)),
            (1, 4)
        );
    }
    assert_eq!(steps.len(), 11);
}

#[test]
fn several_prompts_share_a_chunk() {
    let setup = Setup {
        prefill_chunk: Some(10),
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    let prompts = vec![
        prompt("abc"),
        prompt("bcd"),
        prompt("cdefghijk"),
        prompt("x"),
    ];
    host.run(prompts, length(1));
    let shape: Vec<Vec<usize>> = probe
        .steps()
        .iter()
        .map(|s| s.spans.iter().map(|x| x.rows.len()).collect())
        .collect();
    assert_eq!(shape, [vec![4, 4, 2], vec![8, 2]]);
}

/// Rows of the prompt in the first steps beside a sequence that decodes, perhaps for somebody who
/// follows it, where a row of a prompt takes 2 ms.
fn chunks_of_a_slow_model(max_step_ms: u32, streaming: bool) -> Vec<usize> {
    let setup = Setup {
        max_seq_len: 1024,
        n_pages: 1024,
        max_rows: 516,
        max_step_ms,
        ..Setup::default()
    };
    let model = Model::new(setup.limits(), alphabet);
    let probe = model.probe.clone();
    let host = setup.start_run(Box::new(Slow(model, Duration::from_millis(2))));
    probe.hold();
    let followed = GenerateOptions {
        streaming,
        ..length(12)
    };
    let short = host
        .submit(vec![prompt(&"a".repeat(99))], followed)
        .unwrap();
    probe.wait_for(1);
    let long = host
        .submit(vec![prompt(&"x".repeat(399))], length(1))
        .unwrap();
    probe.release();
    collect(&long, 1).unwrap();
    short.cancel();
    let steps = probe.steps();
    assert_eq!(rows(&steps[0], RowKind::Prefill), 100, "alone: all of it");
    let beside = steps.iter().skip(1).take(4);
    beside.map(|step| rows(step, RowKind::Prefill)).collect()
}

#[test]
fn chunks_adapt_to_a_slow_model_only_beside_running_streams() {
    // About 50 rows in 100 ms. The clock of a busy machine may be slow, never fast.
    let chunks = chunks_of_a_slow_model(100, true);
    assert!(
        chunks.iter().all(|rows| (16..=50).contains(rows)),
        "{chunks:?}"
    );
}

#[test]
fn a_step_may_take_as_long_as_is_said() {
    let chunks = chunks_of_a_slow_model(40, true);
    assert!(
        chunks.iter().all(|rows| (16..=20).contains(rows)),
        "{chunks:?}"
    );
    // Ten times the time that the prompt needs.
    let chunks = chunks_of_a_slow_model(8000, true);
    assert_eq!(chunks[0], 400, "{chunks:?}");
}

#[test]
fn prompts_hold_up_what_nobody_follows() {
    let chunks = chunks_of_a_slow_model(40, false);
    assert_eq!(chunks[0], 400, "{chunks:?}");
}

struct Slow(Model, Duration);

impl Run for Slow {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        std::thread::sleep(self.1 * rows(step, RowKind::Prefill) as u32);
        self.0.submit(step, choices)
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        self.0.collect()
    }
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.0.copy_pages(pairs)
    }
    fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }
    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.0.save_pages(pages, to)
    }
    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.0.load_pages(pages, from)
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

#[test]
fn a_sequence_waits_for_pages_and_gives_them_back() {
    // Four pages: each sequence reserves three, for 3 + 8 positions.
    let setup = Setup {
        n_pages: 4,
        max_seq_len: 16,
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("xx")], length(9)).unwrap();
    let second = host.submit(vec![prompt("yy")], length(9)).unwrap();
    let third = host.submit(vec![prompt("z")], length(1)).unwrap();
    probe.wait_for(1);
    probe.allow(1);
    probe.wait_for(2);
    let timings = host.engine.timings();
    assert_eq!(
        (timings.running, timings.waiting),
        (1, 2),
        "in order, though the third would fit"
    );
    assert_eq!((timings.pages_used, timings.pages_total), (3, 4));
    probe.release();
    for stream in [&first, &second, &third] {
        collect(stream, 1).unwrap();
    }
    host.assert_empty();
}

#[test]
fn sixteen_threads_share_four_slots() {
    let (host, _) = Setup::default().start(hash_think);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let host = &host;
            scope.spawn(move || {
                for round in 0..8 {
                    let text = &"abcdefghijklmnop"[..1 + (thread as usize + round) % 16];
                    let options = GenerateOptions {
                        seed: thread + 1,
                        temperature: 1.0,
                        max_gen_len: Some(10),
                        ..GenerateOptions::default()
                    };
                    let got = host.one(Prompt::Tokens(ids(text)), options.clone());
                    assert_same(
                        &got,
                        &simulate(&mut hash_think, &ids(text), 0, &options, 64),
                    );
                }
            });
        }
    });
    host.assert_empty();
    let timings = host.engine.timings();
    assert!(timings.steps > 0 && timings.cached_tokens > 0 && timings.generated_tokens > 0);
    assert!(timings.prefill_ms > 0.0 && timings.decode_ms > 0.0);
}

#[test]
fn a_call_that_must_not_wait_starts_or_fails() {
    let (host, probe) = Setup {
        max_batch_size: 3,
        ..Setup::default()
    }
    .start(alphabet);
    let no_wait = || GenerateOptions {
        no_wait: true,
        ..length(2)
    };
    probe.hold();
    let first = host.submit(vec![prompt("a")], no_wait()).unwrap();
    probe.wait_for(1);
    let error = host.submit(vec![prompt("a"); 3], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 3, free: 2 }),
        "{error}"
    );
    let second = host.submit(vec![prompt("a"); 2], no_wait()).unwrap();
    let error = host.submit(vec![prompt("a")], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 1, free: 0 }),
        "{error}"
    );
    let waiting = host.submit(vec![prompt("a")], length(2)).unwrap();
    probe.release();
    for (stream, n) in [(&first, 1), (&second, 2), (&waiting, 1)] {
        collect(stream, n).unwrap();
    }
    // Whoever has seen the end finds the slots free.
    for _ in 0..50 {
        let stream = host.submit(vec![prompt("a"); 3], no_wait()).unwrap();
        collect(&stream, 3).unwrap();
    }
    host.assert_empty();
}

/// A sequence waits until a step has a row of it, even if it has a slot; samples of one prompt wait
/// for the same step.
#[test]
fn who_is_computed_later_has_waited_longer() {
    let (host, _) = Setup {
        prefill_chunk: Some(8),
        ..Setup::default()
    }
    .start(alphabet);
    let prompts = ["abcdefg", "bcdefga", "cdefgab"].map(prompt);
    let outputs = host.run(prompts.to_vec(), length(2));
    for pair in outputs.windows(2) {
        assert!(pair[1].stats.queue_ms >= pair[0].stats.first_token_ms);
    }
    let options = GenerateOptions {
        num_return_sequences: 2,
        ..length(2)
    };
    let outputs = host.run(["gfedcba", "fedcbag"].map(prompt).to_vec(), options);
    let queued: Vec<f64> = outputs.iter().map(|out| out.stats.queue_ms).collect();
    assert_eq!(queued[0], queued[1]);
    assert_eq!(queued[2], queued[3]);
    assert!(queued[2] >= outputs[0].stats.first_token_ms);
}

#[test]
fn figures_are_of_the_request() {
    let (host, probe) = Setup {
        max_batch_size: 1,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("abcdefg")], length(2)).unwrap();
    let second = host.submit(vec![prompt("abcdefg")], length(2)).unwrap();
    probe.wait_for(1);
    std::thread::sleep(Duration::from_millis(20));
    probe.release();
    let first = collect(&first, 1).unwrap().0[0].stats;
    let second = collect(&second, 1).unwrap().0[0].stats;
    assert_eq!(
        (
            first.prompt_tokens,
            first.cached_tokens,
            first.generated_tokens
        ),
        (8, 0, 2)
    );
    assert_eq!(
        (
            second.prompt_tokens,
            second.cached_tokens,
            second.generated_tokens
        ),
        (8, 7, 2)
    );
    assert!(first.queue_ms < first.first_token_ms && first.first_token_ms >= 20.0);
    assert!(second.queue_ms >= 20.0 && second.first_token_ms >= second.queue_ms);
    assert!(second.total_ms >= second.first_token_ms);
    let timings = host.engine.timings();
    assert_eq!((timings.prompt_tokens, timings.cached_tokens), (16, 7));
    assert_eq!((timings.generated_tokens, timings.steps), (4, 4));
}

/// Where the model takes it, the next step is submitted before the answer of the last one is
/// collected, for as long as only the tokens can be news; what is seen of it is nothing.
#[test]
fn the_next_step_is_under_way_when_a_token_is_read() {
    let answer = ids("wxyz");
    let until_eos = GenerateOptions {
        logprobs: true,
        ..greedy()
    };
    let penalised = GenerateOptions {
        repetition_penalty: 1.5,
        ..length(4)
    };
    // The prompt; a step for each token but the first, all of them one ahead; and where only the
    // token says that it is the last one, a step in vain.
    for (options, order, ends) in [
        (length(4), "<><<><>>", true),
        (length(2), "<><>", true),
        (length(1), "<>", true),
        (until_eos, "<><<><><><>", false),
        (penalised, "<><<><>>", true),
    ] {
        let walk = |ahead: bool| {
            let think = say(&answer);
            let (host, probe) = Setup::default().start_ahead(ahead, think);
            let mut out = host.one(prompt("a"), options.clone());
            let timings = host.engine.timings();
            drop(host);
            out.stats.queue_ms = 0.0;
            (out.stats.first_token_ms, out.stats.total_ms) = (0.0, 0.0);
            let counts = (timings.steps, timings.generated_tokens, timings.pages_used);
            (out, counts, probe.order())
        };
        let (want, want_counts, slow) = walk(false);
        let (got, counts, fast) = walk(true);
        assert_eq!(slow, "<>".repeat(want_counts.0 as usize));
        assert!(
            fast.starts_with(order) && (!ends || fast == order),
            "{fast}"
        );
        assert_eq!((got, counts), (want, want_counts), "{order}");
    }
}

/// A request that comes ends that, and it begins again with the new one.
#[test]
fn steps_ahead_end_where_somebody_comes_or_goes() {
    let (host, probe) = Setup::default().start_ahead(true, alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("a")], length(9)).unwrap();
    probe.wait_for(1);
    probe.allow(3);
    // The prompt, and three tokens of which the third is under way.
    probe.wait_for(4);
    let second = host.submit(vec![prompt("k")], length(4)).unwrap();
    probe.release();
    assert_eq!(collect(&second, 1).unwrap().0[0].text, "lmno");
    assert_eq!(collect(&first, 1).unwrap().0[0].text, "bcdefghij");
    // The step of the second's prompt begins when what was under way is over; three together; and
    // the first alone.
    assert_eq!(probe.order(), "<><<><>><><<><>><>");
    let follows: Vec<_> = probe.steps().iter().map(|step| step.follows).collect();
    let want = [false, false, true, true, false, false, true, true, false];
    assert_eq!(follows, want);
    host.assert_empty();
}
