//! Readers who are behind: their sequences give their slots up while others wait, and go on later
//! to the same bits.

mod ends;
mod random;

use crate::support::*;
use llamabi::Token;
use llamabi::engine::{Event, GenerateOptions, MAX_DRAFTS, Next, Prompt, Speculation, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn short() -> GenerateOptions {
    GenerateOptions {
        max_gen_len: Some(3),
        ..greedy()
    }
}

/// Four slots and as many pages as they need.
fn setup() -> Setup {
    Setup {
        max_seq_len: 1024,
        n_pages: 1024,
        max_stall_ms: 20,
        max_unread_ms: u32::MAX,
        ..Setup::default()
    }
}

fn tokens(prompt: &Prompt) -> &[Token] {
    match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Refused(_) => unreachable!(),
    }
}

/// Wait until the only call that runs is behind, or will be in a moment: that is with more than
/// 1,024 events. `before`: tokens of those that came before it.
fn until_behind(host: &Host, before: u64) {
    until(host, "it is behind", |host| {
        host.engine.timings().generated_tokens >= before + 1024
    });
}

/// A call of four prompts, which has generated some tokens that nobody reads.
fn unread(host: &Host, options: &GenerateOptions) -> (Vec<Prompt>, Stream) {
    let texts = ["abcdefgh", "abcdefgh", "abcdefghijkl", "x"];
    let prompts: Vec<Prompt> = texts.iter().map(|text| prompt(text)).collect();
    let stream = host.submit(prompts.clone(), options.clone()).unwrap();
    until(host, "it runs", |host| {
        host.engine.timings().generated_tokens > 8
    });
    (prompts, stream)
}

fn parked(host: &Host) -> u32 {
    host.engine.timings().parked
}

/// Whether a step has run in the last moment.
fn still(probe: &Probe) -> bool {
    let before = probe.steps().len();
    std::thread::sleep(Duration::from_millis(30));
    probe.steps().len() == before
}

/// What a parked sequence has of the draft model's pages is not kept: it is computed again, in
/// chunks, so that others need not wait for all of it.
#[test]
fn a_draft_model_catches_up_with_a_sequence_that_comes_back() {
    let contrast = GenerateOptions {
        contrast_beta: 0.5,
        contrast_alpha: 1e-6,
        ..long(600)
    };
    let drafts = GenerateOptions {
        speculation: Speculation::Draft,
        draft_len: 3,
        ..long(600)
    };
    for options in [contrast, drafts] {
        let agrees = if options.contrast_beta > 0.0 { 4 } else { 16 };
        let mut amateur = half_hash_think(agrees);
        let draft = half_hash_think(agrees);
        let setup = Setup {
            prefill_chunk: Some(8),
            ..setup()
        };
        let (host, _, drafting) = setup.start_drafting(false, hash_think, draft);
        let (prompts, unread) = unread(&host, &options);
        // What runs meanwhile writes to the pages that it has left.
        for _ in 0..3 {
            host.run(
                vec![prompt("abcd"); 5],
                GenerateOptions {
                    max_gen_len: Some(3),
                    ..options.clone()
                },
            );
        }
        assert!(parked(&host) > 0);
        let (outputs, _) = collect(&unread, 4).unwrap();
        let steps = drafting.take_steps();
        let spans = steps.iter().flat_map(|step| &step.spans);
        let most = spans.map(|span| span.rows.len()).max();
        assert!(
            most.is_some_and(|rows| (8..=2 * MAX_DRAFTS).contains(&rows)),
            "{most:?}"
        );
        for ((index, prompt), got) in (0..).zip(&prompts).zip(&outputs) {
            let other: &mut Think = &mut amateur;
            let (think, prompt) = (&mut hash_think, tokens(prompt));
            let want = simulate_contrast(think, Some(other), prompt, index, &options, 1024);
            assert_same(got, &want);
            assert_eq!(got.stats.accepted_tokens, got.stats.drafted_tokens);
            // It has drafts before it is behind, and when it has come back.
            let drafted = got.stats.drafted_tokens;
            assert!(options.draft_len == 0 || drafted > 200, "{drafted}");
        }
        host.assert_empty();
    }
}

#[test]
fn a_stream_that_nobody_reads_makes_room_and_goes_on_as_if_nothing_had_been() {
    for ahead in [false, true] {
        for options in [
            long(600),
            GenerateOptions {
                echo: true,
                logprobs: true,
                top_logprobs: 2,
                repetition_penalty: 1.2,
                ..long(600)
            },
        ] {
            let (host, _) = setup().start_ahead(ahead, hash_think);
            let (prompts, unread) = unread(&host, &options);
            // It has all slots, and another completes.
            for _ in 0..3 {
                let got = host.run(vec![prompt("abcd"); 5], short());
                assert!(got.iter().all(|out| out.tokens.len() <= 3));
            }
            assert!(parked(&host) > 0);
            let (outputs, cancelled) = collect(&unread, 4).unwrap();
            assert!(!cancelled);
            for ((index, prompt), got) in (0..).zip(&prompts).zip(&outputs) {
                let want = simulate(&mut hash_think, tokens(prompt), index, &options, 1024);
                assert_same(got, &want);
            }
            host.assert_empty();
            assert_eq!(parked(&host), 0);
        }
    }
}

/// What is parked needs no slot and no page.
#[test]
fn a_call_that_must_not_wait_finds_the_slots_free() {
    let (host, probe) = setup().start(hash_think);
    let unread = host.submit(vec![prompt("ab"); 4], long(600)).unwrap();
    let waiting = host.run(vec![prompt("k"); 4], short());
    assert_eq!(waiting.len(), 4);
    until(&host, "four are parked", |host| parked(host) == 4);
    let timings = host.engine.timings();
    assert_eq!(
        (timings.running, timings.waiting, timings.pages_used),
        (0, 0, 0)
    );
    assert!(still(&probe));
    let no_wait = GenerateOptions {
        no_wait: true,
        ..short()
    };
    let stream = host.submit(vec![prompt("k"); 4], no_wait).unwrap();
    collect(&stream, 4).unwrap();
    drop(unread);
    until(&host, "it is gone", |host| parked(host) == 0);
    host.assert_empty();
}

/// A reader who takes an event now and then does not keep its slot by it: it would have to take
/// half of what is queued.
#[test]
fn a_slow_reader_holds_nobody_up() {
    // A machine on which others take longer than so many events with these pauses is busy, and
    // shows nothing: then again with longer ones. One that reads keeps its slot however long they
    // are.
    let slow_enough = [3, 12, 48].map(Duration::from_millis);
    let held_up = |pause: &Duration| read_while_others_run(*pause) == MOST_READ;
    assert!(!slow_enough.iter().all(held_up));
}

/// Fewer than half of the events that are queued.
const MOST_READ: usize = 500;

/// How many events a reader takes, of [`MOST_READ`], until five others have been served.
fn read_while_others_run(pause: Duration) -> usize {
    let setup = Setup {
        max_batch_size: 1,
        ..setup()
    };
    let (host, _) = setup.start(hash_think);
    let slow = host.submit(vec![prompt("ab"); 3], long(900)).unwrap();
    until_behind(&host, 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = 0;
            while read < MOST_READ && !done.load(Ordering::SeqCst) {
                let next = slow.next(Some(Duration::ZERO)).unwrap();
                assert!(matches!(next, Next::Event(_)));
                read += 1;
                std::thread::sleep(pause);
            }
            read
        });
        for _ in 0..5 {
            host.one(prompt("k"), short());
        }
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    })
}

/// However many streams go unread, who comes behind them waits for no more than what their queues
/// hold and for `max_stall_ms` of each: whether memory keeps what they have, or they end.
#[test]
fn many_unread_streams_bound_the_wait_of_others() {
    const STREAMS: usize = 32;
    for stall_memory_bytes in [u64::MAX, 0] {
        let setup = Setup {
            max_seq_len: 4096,
            n_pages: 4096,
            max_stall_ms: 5,
            stall_memory_bytes,
            ..setup()
        };
        let (host, _) = setup.start(hash_think);
        let unread: Vec<Stream> = (0..STREAMS)
            .map(|_| host.submit(vec![prompt("ab")], long(4000)).unwrap())
            .collect();
        assert!(host.one(prompt("k"), short()).tokens.len() <= 3);
        // Behind is who has more than 1,024 events. Once somebody waits, nobody runs on without a
        // reader, so the others cannot have generated more than that before it.
        let timings = host.engine.timings();
        let most = (STREAMS * 1025 + 3) as u64;
        assert!(timings.generated_tokens <= most, "{timings:?}");
        if stall_memory_bytes > 0 {
            assert!(timings.parked as usize > STREAMS - 5, "{timings:?}");
        }
        drop(unread);
        until(&host, "they are gone", |host| {
            let timings = host.engine.timings();
            (timings.running, timings.parked) == (0, 0)
        });
        host.assert_empty();
    }
}

/// Nobody waits: nobody gives up anything.
#[test]
fn without_others_a_slot_is_kept() {
    let (host, _) = setup().start(hash_think);
    let unread = host.submit(vec![prompt("ab"); 4], long(600)).unwrap();
    until_behind(&host, 0);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!((host.engine.timings().running, parked(&host)), (4, 0));
    let (outputs, _) = collect(&unread, 4).unwrap();
    assert!(outputs.iter().all(|out| out.tokens.len() == 600));
}

#[test]
fn who_comes_back_waits_for_its_turn() {
    let setup = Setup {
        max_batch_size: 1,
        max_seq_len: 2048,
        ..setup()
    };
    let (host, probe) = setup.start(hash_think);
    let unread = host.submit(vec![prompt("ab")], long(1500)).unwrap();
    host.one(prompt("k"), short());
    until(&host, "it is parked", |host| parked(host) == 1);
    probe.hold();
    let steps = probe.steps().len();
    let running = host.submit(vec![prompt("k")], long(2)).unwrap();
    probe.wait_for(steps + 1);
    let first = host.submit(vec![prompt("m")], long(2)).unwrap();
    let mut read = 0;
    // The engine sees that when the step has ended.
    while read < 1000 {
        assert!(matches!(
            unread.next(Some(Duration::ZERO)).unwrap(),
            Next::Event(_)
        ));
        read += 1;
    }
    probe.release();
    collect(&running, 1).unwrap();
    collect(&first, 1).unwrap();
    while let Next::Event(_) = unread.next(Some(PATIENCE)).unwrap() {
        read += 1;
    }
    assert_eq!(read, 1500 + 1);
    // Behind the one that came first: its first row is a prompt's, then two tokens; then the other.
    let rows = probe.steps()[steps..]
        .iter()
        .map(|step| step.spans[0].position)
        .collect::<Vec<_>>();
    assert_eq!(rows[..4], [0, 2, 0, 2]);
    assert!(rows[4] > 100, "{rows:?}");
}

/// Its prompt pages are published again under the call's own salt, whatever became of them.
#[test]
fn who_comes_back_keeps_its_salt() {
    let setup = Setup {
        max_batch_size: 1,
        max_seq_len: 2048,
        n_pages: 512,
        ..setup()
    };
    let (host, _) = setup.start(hash_think);
    let salted = GenerateOptions {
        cache_salt: 7,
        ..long(1500)
    };
    let text = || prompt("abcdefghijkl");
    let unread = host.submit(vec![text()], salted.clone()).unwrap();
    until_behind(&host, 0);
    // It needs all pages, so nothing of the parked prompt stays in the pool.
    let all = GenerateOptions {
        max_gen_len: None,
        ..short()
    };
    host.one(prompt("zyx"), all);
    let (outputs, _) = collect(&unread, 1).unwrap();
    let want = simulate(&mut hash_think, tokens(&text()), 0, &salted, 2048);
    assert_same(&outputs[0], &want);
    let cached = |cache_salt| {
        let options = GenerateOptions {
            cache_salt,
            ..short()
        };
        host.one(text(), options).stats.cached_tokens
    };
    assert_eq!((cached(0), cached(7)), (0, 12));
}
