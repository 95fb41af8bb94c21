//! Random mixes of readers who stop, go on, cancel or leave: whatever gives its slot up and comes
//! back, every sequence gets what a plain simulation of it alone says, or a beginning of it, and
//! nothing is left behind.

use crate::support::*;
use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Prompt};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum After {
    ReadOn,
    Cancel,
    Drop,
}

#[derive(Clone, Debug)]
struct Call {
    prompts: Vec<Vec<i32>>,
    options: GenerateOptions,
    /// Read so many events, pause, and then?
    read: usize,
    pause_ms: u64,
    after: After,
}

const MAX_SEQ_LEN: usize = 420;

fn call(max_samples: usize) -> impl Strategy<Value = Call> {
    let letters = |len: usize| (0..len).map(|i| 3 + (i % 23) as i32).collect::<Vec<_>>();
    // Common beginnings, so that pages are shared, some of them much longer than a page.
    let prompt = (1..40usize, 3..29i32).prop_map(move |(len, last)| {
        let mut tokens = letters(len);
        tokens.push(last);
        tokens
    });
    let options = (
        1..1000u64,
        100..380usize,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let options = options.prop_map(|(seed, n, echo, logprobs, stop)| GenerateOptions {
        seed,
        max_gen_len: Some(n),
        ignore_eos: true,
        temperature: 1.0,
        echo,
        logprobs,
        stop: if stop {
            vec!["abab".into(), "zz".into()]
        } else {
            vec![]
        },
        ..GenerateOptions::default()
    });
    let after =
        prop_oneof![4 => Just(After::ReadOn), 1 => Just(After::Cancel), 1 => Just(After::Drop)];
    let prompts = prop::collection::vec(prompt, 3..8);
    let samples = prop_oneof![2 => Just(1), 1 => 1..=max_samples];
    let samples = (
        samples,
        prop_oneof![2 => Just(false), 1 => Just(max_samples > 1)],
        0..4usize,
    );
    (prompts, options, samples, 0..200usize, 5..60u64, after).prop_map(
        |(prompts, options, (samples, beams, say), read, pause_ms, after)| Call {
            prompts,
            options: GenerateOptions {
                num_return_sequences: samples,
                num_beams: if beams { samples.max(2) } else { 1 },
                beam_events: beams,
                // Searches are simulated slowly.
                max_gen_len: options.max_gen_len.map(|n| if beams { n / 4 } else { n }),
                // Who else has a say about tokens: a grammar, or the caller, or phrases.
                grammar: (say == 1).then(|| grammar(SHORT_LANGUAGES)),
                ignore_eos: say != 1,
                ask_logits: say == 2 && !beams,
                force_words: match say == 2 && beams {
                    true => vec![vec![vec![40, 41], vec![44]], vec![vec![7, 30, 7]]],
                    false => Vec::new(),
                },
                ..options
            },
            read,
            pause_ms,
            after,
        },
    )
}

fn setup() -> impl Strategy<Value = Setup> {
    let memory = prop_oneof![Just(0u64), Just(3000), Just(1 << 20)];
    let unread = prop_oneof![3 => Just(u32::MAX), 1 => 5..25u32];
    let size = prop_oneof![Just(4usize), Just(16)];
    (size, 1..4usize, 0..3u32, memory, unread, any::<bool>()).prop_map(
        |(page_size, max_batch_size, max_stall_ms, stall_memory_bytes, max_unread_ms, tight)| {
            Setup {
                page_size,
                // For one sequence, or for all.
                n_pages: MAX_SEQ_LEN.div_ceil(page_size) * if tight { 1 } else { max_batch_size },
                max_rows: 64 + max_batch_size,
                max_wanted: 8,
                max_seq_len: MAX_SEQ_LEN,
                max_batch_size,
                max_stall_ms,
                max_unread_ms,
                stall_memory_bytes,
                ..Setup::default()
            }
        },
    )
}

fn scenario() -> impl Strategy<Value = (Setup, Vec<Call>)> {
    setup().prop_flat_map(|setup| {
        let each = MAX_SEQ_LEN.div_ceil(setup.page_size);
        let samples = setup.max_batch_size.min(setup.n_pages / each);
        (Just(setup), prop::collection::vec(call(samples), 2..6))
    })
}

/// What came, per sequence; `None`: nobody looked.
fn drive(host: &Host, call: &Call) -> Option<Vec<Output>> {
    let prompts = call.prompts.iter().cloned().map(Prompt::Tokens).collect();
    let stream = host.submit(prompts, call.options.clone()).unwrap();
    let n = call.prompts.len() * call.options.num_return_sequences;
    let mut outputs = vec![Output::default(); n];
    for event in 0.. {
        if event == call.read {
            std::thread::sleep(Duration::from_millis(call.pause_ms));
            match call.after {
                After::ReadOn => {}
                After::Cancel => stream.cancel(),
                After::Drop => return None,
            }
        }
        match stream.next(Some(PATIENCE)).unwrap() {
            Next::Event(Event::Token(e)) => {
                let out = &mut outputs[e.index as usize];
                assert_eq!(out.finish, None);
                out.tokens.push(e.token);
                out.logprobs.push(e.logprob);
                out.text.push_str(&e.text);
                out.top.push(e.top);
            }
            Next::Event(Event::Beam(_)) => {}
            Next::Event(Event::Finish(e)) => {
                let out = &mut outputs[e.index as usize];
                assert_eq!(out.finish, None, "it ends once");
                out.text.push_str(&e.text);
                out.finish = Some(e.reason);
                (out.sum_logprob, out.score) = (e.sum_logprob, e.score);
            }
            Next::Question(question) => answer(question),
            Next::Timeout => panic!("nothing within {PATIENCE:?}"),
            Next::Done | Next::Cancelled => break,
        }
    }
    Some(outputs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]
    #[test]
    fn whoever_stalls_gets_the_same(
        (setup, calls) in scenario(),
        ahead in any::<bool>(),
        guess in prop_oneof![Just(None), any::<u64>().prop_map(Some)],
        draft in prop_oneof![Just(None), (0..17usize).prop_map(Some)],
    ) {
        let host = setup.start_perhaps_drafting(ahead, draft);
        let mut amateur = half_hash_think(draft.unwrap_or(0));
        let guessing = |mut call: Call| {
            if let Some(seed) = guess {
                let Call { prompts, options, .. } = &call;
                let guess = Guess::Random(seed);
                call.options = guess.of(&mut hash_think, prompts, options, MAX_SEQ_LEN, 4);
            }
            if draft.is_some() {
                call.options = with_draft_model(call.options);
            }
            call
        };
        let calls: Vec<Call> = calls.into_iter().map(guessing).collect();
        let outputs: Vec<Option<Vec<Output>>> = std::thread::scope(|scope| {
            let host = &host;
            let drive = |call| scope.spawn(move || drive(host, call));
            let threads: Vec<_> = calls.iter().map(drive).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        // One that was dropped may still be in its last step.
        until(&host, "nothing runs, waits or is parked", |host| {
            let timings = host.engine.timings();
            timings.running + timings.waiting + timings.parked == 0 && timings.pages_used == 0
        });
        host.assert_empty();
        prop_assert_eq!(host.engine.timings().parked, 0);
        for (call, outputs) in calls.iter().zip(&outputs) {
            let n = call.options.num_return_sequences;
            if call.options.num_beams > 1 {
                let outputs = outputs.iter().flatten().collect::<Vec<_>>();
                for (tokens, got) in call.prompts.iter().zip(outputs.chunks(n)) {
                    let ended = |out: &&Output| match out.finish {
                        Some(FinishReason::Cancelled) => matches!(call.after, After::Cancel),
                        reason => reason.is_some(),
                    };
                    prop_assert!(got.iter().all(ended));
                    // One that was stopped gives what it has, which may be finished beams.
                    let whole = matches!(call.after, After::ReadOn)
                        && setup.max_unread_ms == u32::MAX
                        && setup.stall_memory_bytes == 1 << 20;
                    if whole {
                        let want = match call.options.force_words.is_empty() {
                            true => simulate_beams(
                                &mut hash_think, tokens, &call.options, MAX_SEQ_LEN),
                            false => alone(MAX_SEQ_LEN, tokens, &call.options),
                        };
                        got.iter().zip(&want).for_each(|(got, want)| assert_same_beams(got, want));
                    }
                }
                continue;
            }
            let prompts = call.prompts.iter().flat_map(|tokens| std::iter::repeat_n(tokens, n));
            for ((index, tokens), got) in (0..).zip(prompts).zip(outputs.iter().flatten()) {
                let (other, options): (&mut Think, _) = (&mut amateur, &call.options);
                let want = simulate_contrast(
                    &mut hash_think, Some(other), tokens, index, options, MAX_SEQ_LEN);
                match got.finish {
                    Some(FinishReason::Cancelled) => {
                        prop_assert!(matches!(call.after, After::Cancel));
                        prop_assert!(want.tokens.starts_with(&got.tokens));
                    }
                    Some(FinishReason::Unread) => {
                        prop_assert!(want.tokens.starts_with(&got.tokens));
                    }
                    Some(_) => {
                        prop_assert_eq!(&got.tokens, &want.tokens, "{:?} {:?}", got.finish, want.finish);
                        prop_assert_eq!(&got.text, &want.text);
                        prop_assert_eq!(&got.logprobs, &want.logprobs);
                        prop_assert_eq!(got.finish, want.finish);
                    }
                    None => prop_assert!(false, "a sequence has no end"),
                }
            }
        }
    }
}
