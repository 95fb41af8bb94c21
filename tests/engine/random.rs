//! Random mixes of requests: whatever the batch, the chunks, the pages and the cache do, every
//! sequence gets what a plain simulation of it alone says.

use crate::support::*;
use llamabi::Cancel;
use llamabi::engine::request::{Bias, EarlyStopping};
use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Prompt, Speculation};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Call {
    prompts: Vec<Vec<i32>>,
    options: GenerateOptions,
    /// Cancel after so many events.
    cancel_after: Option<usize>,
    by_flag: bool,
    /// Drafts of this worth, so many in a step.
    guess: Option<(Guess, usize)>,
}

fn guess() -> impl Strategy<Value = Option<(Guess, usize)>> {
    let guess = prop_oneof![
        Just(Guess::Right),
        Just(Guess::Wrong),
        any::<u64>().prop_map(Guess::Random)
    ];
    let len = prop_oneof![Just(0usize), 1..17usize];
    prop_oneof![1 => Just(None), 1 => (guess, len).prop_map(Some)]
}

/// Prompts with common beginnings, so that pages are found, and with byte pieces in them.
fn prompt_tokens(longest: usize) -> impl Strategy<Value = Vec<i32>> {
    let common = (0..3usize, 0..=longest).prop_map(|(family, len)| {
        let token = move |i: usize| 3 + ((i * (family + 2) + family) % 37) as i32;
        (0..len).map(token).collect::<Vec<_>>()
    });
    let tail = prop::collection::vec(prop_oneof![3..40i32, 40..IDS as i32], 0..4);
    (common, tail).prop_map(move |(mut tokens, tail)| {
        tokens.extend(tail);
        tokens.truncate(longest);
        if tokens.is_empty() {
            tokens.push(BOS);
        }
        tokens
    })
}

/// What edits logits, and what ends a sequence beside EOS.
fn edits() -> impl Strategy<Value = GenerateOptions> {
    let bias = |token, bias| Bias { token, bias };
    let penalties = (
        prop_oneof![Just(0.0f32), Just(0.6)],
        prop_oneof![Just(0.0f32), Just(0.3), Just(-0.2)],
    );
    let biases = prop_oneof![
        Just(vec![]),
        Just(vec![bias(7, 1.5), bias(EOS, -2.0), bias(7, 0.25)]),
        Just(vec![bias(30, f32::NEG_INFINITY), bias(31, 2.5)]),
    ];
    let words = prop_oneof![
        Just(vec![]),
        Just(vec![vec![29], vec![3]]),
        Just(vec![vec![5, 6], vec![30, 31, 29], vec![4]]),
    ];
    let lengths = (0..4usize, prop_oneof![Just(0usize), Just(2), Just(3)]);
    let stops = prop_oneof![Just(vec![]), Just(vec![33, 5]), Just(vec![40])];
    (penalties, biases, words, lengths, stops).prop_map(
        |(penalties, logit_bias, bad_words, lengths, stop_tokens)| GenerateOptions {
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            logit_bias,
            bad_words,
            min_gen_len: lengths.0,
            no_repeat_ngram_size: lengths.1,
            stop_tokens,
            ..GenerateOptions::default()
        },
    )
}

fn options() -> impl Strategy<Value = GenerateOptions> {
    let stop = prop_oneof![
        Just("e"),
        Just("ab"),
        Just("the"),
        Just("he h"),
        Just("本"),
        Just("\u{FFFD}"),
        Just(" "),
        Just("aab"),
        Just("日本日"),
        Just(" he"),
        Just(" a")
    ];
    let sampling = (
        prop_oneof![Just(0.0f32), Just(0.7), Just(1.5)],
        prop_oneof![Just(0.9f32), Just(1.0), Just(0.0)],
        prop_oneof![Just(0), Just(5)],
        prop_oneof![Just(0.0f32), Just(0.2)],
        prop_oneof![Just(1.0f32), Just(1.4)],
        1..1000u64,
        (
            prop_oneof![3 => Just(0.0f32), 1 => Just(0.5), 1 => Just(1.0)],
            prop_oneof![3 => Just(0.0f32), 1 => Just(0.02)],
            prop_oneof![3 => Just(0.0f32), 1 => Just(0.05)],
        ),
    );
    let report = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0usize), Just(3)],
        prop_oneof![Just(0u64), Just(7)],
    );
    let length = prop_oneof![Just(None), (0..30usize).prop_map(Some)];
    let stops = prop_oneof![
        Just(Vec::new()).boxed(),
        prop::collection::vec(stop, 0..4).boxed()
    ];
    let edits = prop_oneof![Just(GenerateOptions::default()).boxed(), edits().boxed()];
    let all = (sampling, report, length, stops, edits);
    all.prop_map(|(sampling, report, max_gen_len, stop, edits)| {
        let (temperature, top_p, top_k, min_p, repetition_penalty, seed, cutoffs) = sampling;
        let (typical_p, epsilon_cutoff, eta_cutoff) = cutoffs;
        let (echo, logprobs, ignore_eos, top_logprobs, cache_salt) = report;
        GenerateOptions {
            echo,
            logprobs,
            ignore_eos,
            max_gen_len,
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            seed,
            stop: stop.into_iter().map(String::from).collect(),
            top_logprobs,
            cache_salt,
            typical_p,
            epsilon_cutoff,
            eta_cutoff,
            min_gen_len: edits.min_gen_len.min(max_gen_len.unwrap_or(usize::MAX)),
            ..edits
        }
    })
}

/// Who else has a say about tokens: a grammar, the caller, or both of a call.
#[derive(Clone, Copy, Debug)]
struct Say {
    grammar: Option<usize>,
    asks: bool,
    guesses: bool,
    /// Phrases of a search.
    phrases: usize,
}

fn say() -> impl Strategy<Value = Say> {
    let grammar = prop_oneof![2 => Just(None), 1 => (0..=SHORT_LANGUAGES).prop_map(Some)];
    let asks = prop_oneof![3 => Just(false), 1 => Just(true)];
    (grammar, asks, any::<bool>(), 0..3usize).prop_map(|(grammar, asks, guesses, phrases)| Say {
        grammar,
        asks,
        guesses,
        phrases,
    })
}

impl Say {
    /// The options of a call with these prompts, as far as they may be together.
    fn of(self, options: GenerateOptions, prompts: &[Vec<i32>], most: usize) -> GenerateOptions {
        let searches = options.num_beams > 1;
        if let Some(language) = self.grammar {
            let auto = self.guesses && !searches;
            return GenerateOptions {
                grammar: Some(grammar(language)),
                ignore_eos: false,
                // They might leave none of the few tokens that the grammar leaves.
                no_repeat_ngram_size: 0,
                bad_words: Vec::new(),
                // What is forced is guessed at.
                speculation: if auto {
                    Speculation::Auto
                } else {
                    Speculation::Off
                },
                ..options
            };
        }
        if !searches {
            return GenerateOptions {
                ask_logits: self.asks,
                ..options
            };
        }
        let phrases = [vec![vec![40, 41], vec![44]], vec![vec![7, 30, 7]]];
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = (most - longest).min(options.max_gen_len.unwrap_or(most));
        // The shortest have a token, and three.
        let n = [0, 1, 4].iter().rposition(|least| *least <= room);
        let phrases = &phrases[..self.phrases.min(n.unwrap_or(0))];
        GenerateOptions {
            force_words: phrases.to_vec(),
            // Where all that is likely ends at one, no text without the phrases goes on.
            stop: match phrases.is_empty() {
                true => options.stop,
                false => Vec::new(),
            },
            ..options
        }
    }
}

/// A beam search, or none.
fn beams(most: usize) -> impl Strategy<Value = GenerateOptions> {
    let early = prop_oneof![
        Just(EarlyStopping::False),
        Just(EarlyStopping::True),
        Just(EarlyStopping::Never)
    ];
    let penalty = prop_oneof![Just(1.0f32), Just(0.0), Just(-0.7), Just(1.8)];
    let n = prop_oneof![2 => Just(1), 1 => 1..=most];
    (n, penalty, early, any::<bool>()).prop_map(|(n, length_penalty, early_stopping, events)| {
        GenerateOptions {
            num_beams: n,
            length_penalty,
            early_stopping,
            beam_events: n > 1 && events,
            ..GenerateOptions::default()
        }
    })
}

fn call(
    max_seq_len: usize,
    max_batch_size: usize,
    max_samples: usize,
) -> impl Strategy<Value = Call> {
    (
        prop::collection::vec(prompt_tokens(max_seq_len), 1..=max_batch_size),
        options(),
        prop_oneof![2 => Just(1), 1 => 1..=max_samples],
        beams(max_samples),
        prop_oneof![3 => Just(None), 1 => (0..12usize).prop_map(Some)],
        any::<bool>(),
        guess(),
        say(),
    )
        .prop_map(
            move |(prompts, options, samples, beams, cancel_after, by_flag, guess, say)| {
                let options = GenerateOptions {
                    num_return_sequences: match beams.num_beams {
                        1 => samples,
                        beams => samples.min(beams),
                    },
                    num_beams: beams.num_beams,
                    length_penalty: beams.length_penalty,
                    early_stopping: beams.early_stopping,
                    beam_events: beams.beam_events,
                    ..options
                };
                Call {
                    options: say.of(options, &prompts, max_seq_len),
                    prompts,
                    cancel_after,
                    by_flag,
                    guess,
                }
            },
        )
}

fn setup() -> impl Strategy<Value = Setup> {
    (
        prop_oneof![Just(1usize), Just(2), Just(4), Just(16)],
        2..48usize,
        1..5usize,
        prop_oneof![Just(None), Just(Some(1)), Just(Some(7)), Just(Some(64))],
        0..3usize,
        1..20usize,
    )
        .prop_map(
            |(page_size, max_seq_len, max_batch_size, prefill_chunk, spare, rows)| Setup {
                page_size,
                // From barely enough for one sequence to enough for all.
                n_pages: max_seq_len.div_ceil(page_size) * (1 + spare.min(max_batch_size - 1)),
                max_rows: max_batch_size + rows * rows,
                max_wanted: max_batch_size + rows / 4,
                max_seq_len,
                max_batch_size,
                prefill_chunk,
                seed: 1,
                ..Setup::default()
            },
        )
}

fn scenario() -> impl Strategy<Value = (Setup, Vec<Call>)> {
    setup().prop_flat_map(|setup| {
        let (len, batch) = (setup.max_seq_len, setup.max_batch_size);
        let samples = batch.min(setup.n_pages / len.div_ceil(setup.page_size));
        let calls = prop::collection::vec(call(len, batch, samples), 1..8);
        (Just(setup), calls)
    })
}

/// Read some events, cancel, read the rest.
fn drive(host: &Host, call: &Call) -> Vec<Output> {
    let flag = Cancel::new();
    let mut options = call.options.clone();
    if call.by_flag {
        options.cancel = Some(flag.clone());
    }
    let prompts: Vec<Prompt> = call.prompts.iter().cloned().map(Prompt::Tokens).collect();
    let stream = host.submit(prompts, options).unwrap();
    let n = call.prompts.len() * call.options.num_return_sequences;
    let Some(after) = call.cancel_after else {
        let (outputs, cancelled) = collect_answering(&stream, n, answer).unwrap();
        assert!(!cancelled);
        return outputs;
    };
    let mut first = Vec::new();
    for _ in 0..after {
        match stream.next(None).unwrap() {
            Next::Event(event) => first.push(event),
            Next::Question(question) => answer(question),
            _ => break,
        }
    }
    if call.by_flag {
        flag.trigger()
    } else {
        stream.cancel()
    }
    let mut outputs = vec![Output::default(); n];
    loop {
        let event = match first.is_empty() {
            false => first.remove(0),
            true => match stream.next(Some(PATIENCE)).unwrap() {
                Next::Event(event) => event,
                Next::Question(question) => {
                    answer(question);
                    continue;
                }
                Next::Timeout => panic!("a cancelled call hangs"),
                Next::Done | Next::Cancelled => return outputs,
            },
        };
        match event {
            Event::Token(e) => {
                let out = &mut outputs[e.index as usize];
                out.tokens.push(e.token);
                out.text.push_str(&e.text);
            }
            Event::Beam(_) => {}
            Event::Finish(e) => {
                let out = &mut outputs[e.index as usize];
                out.text.push_str(&e.text);
                out.finish = Some(e.reason);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]
    #[test]
    fn every_sequence_is_as_if_alone(
        (setup, calls) in scenario(),
        ahead in any::<bool>(),
        draft in prop_oneof![Just(None), (0..17usize).prop_map(Some)],
    ) {
        let host = setup.start_perhaps_drafting(ahead, draft);
        let mut amateur = half_hash_think(draft.unwrap_or(0));
        let guessing = |call: Call| match call.guess {
            None => call,
            Some((guess, len)) => {
                let Call { prompts, options, .. } = &call;
                let most = setup.max_seq_len;
                let options = guess.of(&mut hash_think, prompts, options, most, len);
                Call { options, ..call }
            }
        };
        let drafting = |call: Call| match draft {
            None => call,
            Some(_) => Call { options: with_draft_model(call.options), ..call },
        };
        let calls: Vec<Call> = calls.into_iter().map(guessing).map(drafting).collect();
        let outputs: Vec<Vec<Output>> = std::thread::scope(|scope| {
            let host = &host;
            let drive = |call| scope.spawn(move || drive(host, call));
            let threads: Vec<_> = calls.iter().map(drive).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        host.assert_empty();
        for (call, outputs) in calls.iter().zip(&outputs) {
            let n = call.options.num_return_sequences;
            if call.options.num_beams > 1 {
                for (tokens, got) in call.prompts.iter().zip(outputs.chunks(n)) {
                    prop_assert!(got.iter().all(|out| out.finish.is_some()));
                    // What is there of one that was cut short is not what it would have found.
                    if call.cancel_after.is_none() {
                        let want = match call.options.force_words.is_empty() {
                            true => simulate_beams(
                                &mut hash_think, tokens, &call.options, setup.max_seq_len),
                            false => alone(setup.max_seq_len, tokens, &call.options),
                        };
                        got.iter().zip(&want).for_each(|(got, want)| assert_same_beams(got, want));
                    }
                }
                continue;
            }
            let prompts = call.prompts.iter().flat_map(|tokens| std::iter::repeat_n(tokens, n));
            for ((index, tokens), got) in (0..).zip(prompts).zip(outputs) {
                let (other, options): (&mut Think, _) = (&mut amateur, &call.options);
                let most = setup.max_seq_len;
                let want =
                    simulate_contrast(&mut hash_think, Some(other), tokens, index, options, most);
                if got.finish == Some(FinishReason::Cancelled) {
                    prop_assert!(call.cancel_after.is_some());
                    prop_assert!(want.tokens.starts_with(&got.tokens));
                    // Half a code point or half a stop string may be shown at the end.
                    let sure = got.text.trim_end_matches('\u{FFFD}');
                    prop_assert!(decode(&got.tokens).0.starts_with(sure));
                } else if call.cancel_after.is_some() {
                    prop_assert_eq!(&got.tokens, &want.tokens);
                    prop_assert_eq!(&got.text, &want.text);
                } else {
                    assert_same(got, &want);
                    prop_assert_eq!(got.stats.prompt_tokens as usize, tokens.len());
                    let computes = (index as usize).is_multiple_of(n);
                    prop_assert!(got.stats.cached_tokens < got.stats.prompt_tokens + u32::from(!computes));
                }
            }
        }
    }
}
