//! What beams and samples of one prompt cost: parts of benches/decoding.rs.

use super::{Bench, Letters, PROMPT, clock, median};
use llamabi::Token;
use llamabi::engine::{Engine, Event, GenerateOptions, Next, Prompt, Request};
use std::sync::Arc;

/// Steps of a beam search.
const STEPS: usize = 256;
const BEAMS: usize = 4;

/// Tokens of the prompt that is sampled from, and how many samples there are.
const LONG_PROMPT: usize = 1000;
const SAMPLES: usize = 8;

/// What one call gave.
pub struct Done {
    /// Seconds until each of its sequences had a token, and until all were over.
    first: f64,
    all: f64,
    pub tokens: Vec<Vec<Token>>,
}

pub fn generate(
    engine: &Engine,
    threads: usize,
    prompt: Vec<Token>,
    n: usize,
    options: &GenerateOptions,
) -> Done {
    generate_from(engine, threads, vec![prompt], n, options)
}

pub fn generate_from(
    engine: &Engine,
    threads: usize,
    prompts: Vec<Vec<Token>>,
    n: usize,
    options: &GenerateOptions,
) -> Done {
    let limits = engine.request_limits();
    let prompts = prompts.into_iter().map(Prompt::Tokens).collect();
    let request = Request::new(prompts, options.clone(), &limits).unwrap();
    let start = clock(threads);
    let stream = engine.submit(request).unwrap();
    let (mut tokens, mut first) = (vec![Vec::new(); n], 0.0);
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(event)) => {
                let tokens = &mut tokens[event.index as usize];
                if tokens.is_empty() {
                    first = clock(threads) - start;
                }
                tokens.push(event.token);
            }
            Next::Event(_) => {}
            _ => break,
        }
    }
    let all = clock(threads) - start;
    Done { first, all, tokens }
}

pub fn prompt(n: usize, seed: usize) -> Vec<Token> {
    let token = |p: usize| 3 + ((p * 7919 + seed * 104_729) % 31_000) as Token;
    (0..n).map(token).collect()
}

/// Seconds of both, in turns, for so many rounds: their medians, and that of their ratios.
fn in_turns(rounds: usize, mut one: impl FnMut(bool, usize) -> f64) -> [f64; 3] {
    let (mut seconds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..rounds {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let other = (round + turn) % 2 == 1;
            pair[usize::from(other)] = one(other, round);
        }
        seconds[0].push(pair[0]);
        seconds[1].push(pair[1]);
        ratios.push(pair[1] / pair[0]);
    }
    [median(&seconds[0]), median(&seconds[1]), median(&ratios)]
}

/// 4 beams and a batch of 4 samples of the same prompt, by the time of a step.
pub fn beams(bench: &mut Bench, engine: &Engine) {
    let batch = GenerateOptions {
        temperature: 1.0,
        top_p: 1.0,
        seed: 7,
        ignore_eos: true,
        max_gen_len: Some(STEPS),
        num_return_sequences: BEAMS,
        ..GenerateOptions::default()
    };
    let beams = GenerateOptions {
        num_return_sequences: 1,
        num_beams: BEAMS,
        ..batch.clone()
    };
    let threads = bench.threads;
    let [plain, beams, ratio] = in_turns(bench.rounds, |is_search, round| {
        let (options, n) = match is_search {
            true => (&beams, 1),
            false => (&batch, BEAMS),
        };
        let done = generate(engine, threads, prompt(PROMPT, round), n, options);
        assert_eq!(done.tokens[0].len(), STEPS);
        done.all / STEPS as f64
    });
    let (plain, beams) = (plain * 1e3, beams * 1e3);
    let said = format!("a step takes {beams:.2} ms, a batch of 4 {plain:.2} ms: {ratio:.3}x");
    bench.say(
        "4 beams",
        &said,
        &[("batch_ms", plain), ("ms", beams), ("ratio", ratio)],
    );
}

/// The time to the first token of every one of 8 samples, and of one alone.
pub fn samples(bench: &mut Bench, engine: &Engine) {
    let one = GenerateOptions {
        temperature: 1.0,
        top_p: 1.0,
        seed: 7,
        ignore_eos: true,
        max_gen_len: Some(4),
        ..GenerateOptions::default()
    };
    let eight = GenerateOptions {
        num_return_sequences: SAMPLES,
        ..one.clone()
    };
    let threads = bench.threads;
    let [one, eight, ratio] = in_turns(bench.rounds, |are_many, round| {
        let (options, n) = match are_many {
            true => (&eight, SAMPLES),
            false => (&one, 1),
        };
        // One that no other call has left in the prefix cache.
        let prompt = prompt(LONG_PROMPT, 100 + 2 * round + usize::from(are_many));
        generate(engine, threads, prompt, n, options).first
    });
    let (one, eight) = (one * 1e3, eight * 1e3);
    let said =
        format!("all 8 have a token after {eight:.0} ms, one alone {one:.0} ms: {ratio:.3}x");
    bench.say(
        "8 samples of a prompt of 1000",
        &said,
        &[("one_ms", one), ("ms", eight), ("ratio", ratio)],
    );
}

/// An engine without a draft model, whose tokens are letters.
pub fn plain_engine(bench: &Bench) -> Engine {
    let n = bench.shape.vocab_size;
    bench.engine(None, n, Arc::new(Letters(n)))
}
