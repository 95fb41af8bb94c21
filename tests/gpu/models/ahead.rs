//! Graphs, and steps that are submitted before the last answer is read.

use super::*;

/// Steps that are recorded once and repeated give the same bits as single launches: with sequences
/// of all lengths that come and go, with draws, penalties, probabilities and alternatives.
#[test]
fn graphs_change_nothing() {
    if real() {
        return println!(
            "only on the emulated device; LLAMABI_CUDA_GRAPHS=0 runs the others without graphs"
        );
    }
    for (model, long) in [("gqa-bf16/meta", 508), ("mha-f32/meta", 250)] {
        let walk = |device: Arc<Emu>| {
            let mut options = options(None);
            (options.max_seq_len, options.max_batch_size) = (600, 6);
            let dir = reference(model);
            let llama = Llama::build_on(device, &dir, None, &options, &mut |_| true).unwrap();
            let mut streams = Vec::new();
            for (i, n) in [3, long, 17, 40, 5, 250, 2, 8, 48].into_iter().enumerate() {
                let options = GenerateOptions {
                    temperature: 0.8 * (i % 3) as f32,
                    top_k: 5 * (i as i32 % 2),
                    repetition_penalty: [1.0, 1.3][i % 2],
                    logprobs: i % 4 != 0,
                    top_logprobs: [0, 3][i / 4 % 2],
                    seed: i as u64,
                    ..going_on(4 + 3 * i)
                };
                streams.push(start(&llama, &prompt(n, i), options));
            }
            streams.iter().map(|s| bits(&finish(s))).collect::<Vec<_>>()
        };
        let (with, without) = (Emu::new(GIB, 3), Emu::without_graphs(GIB, 4));
        assert_eq!(walk(with.clone()), walk(without.clone()), "{model}");
        assert!(with.replays() > 20, "{}", with.replays());
        assert_eq!(without.replays(), 0);
    }
}

/// What a reader sees of a sequence, without figures of time and of the cache.
type Seen = (Vec<(Token, u32, String, Vec<(Token, u32)>)>, String);

/// The first events up to `cancel_at` tokens, then a cancellation, then the rest.
fn seen(stream: &Stream, cancel_at: usize) -> Seen {
    use llamabi::engine::{Event, Next};
    let (mut tokens, mut end) = (Vec::new(), String::new());
    loop {
        if tokens.len() == cancel_at {
            stream.cancel();
        }
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => {
                let top = e.top.iter().map(|a| (a.token, a.logprob.to_bits()));
                tokens.push((e.token, e.logprob.to_bits(), e.text, top.collect()));
            }
            Next::Event(Event::Finish(e)) => {
                assert_eq!(e.stats.generated_tokens as usize, tokens.len());
                end = format!("{:?} {:?}", e.reason, e.text);
            }
            Next::Done | Next::Cancelled => return (tokens, end),
            other => panic!("{other:?}"),
        }
    }
}

/// A step that begins before the tokens of the previous one are read changes nothing that a reader
/// sees: with sequences that come and go and are ended by their length, a stop string, a token or
/// their reader; with draws, penalties, probabilities and alternatives. Nor does it change what
/// later sequences find in the cache.
#[test]
fn steps_ahead_change_nothing() {
    const NEVER: usize = usize::MAX;
    if real() {
        return println!(
            "only on the emulated device; LLAMABI_CUDA_AHEAD=0 runs the others step by step"
        );
    }
    let options = |i: usize| GenerateOptions {
        temperature: [0.0, 0.8, 3.0][i % 3],
        top_k: [0, 40][i % 2],
        // Penalises tokens that the host has not seen yet.
        repetition_penalty: [1.0, 1.0, 1.0, 1.2][i % 4],
        ignore_eos: [true, false][i % 2],
        logprobs: [false, true, true][i % 3],
        top_logprobs: [0, 3][i / 3 % 2],
        stop: [vec![], vec!["e".into(), "t".into()]][i % 2].clone(),
        max_gen_len: Some([8, 3, 14, 1, 11][i % 5]),
        seed: 1 + i as u64,
        ..GenerateOptions::default()
    };
    let walk = |device: Arc<Emu>| -> (Vec<Seen>, String) {
        let mut build = self::options(None);
        build.max_batch_size = 3;
        let dir = reference("gqa-bf16/hf");
        let tokenizer = reference("mha-f32/hf/tokenizer.model");
        let llama = Llama::build_on(device.clone(), &dir, Some(&tokenizer), &build, &mut |_| {
            true
        })
        .unwrap();
        let alone = run(&llama, &prompt(5, 1), going_on(6));
        assert_eq!(alone.len(), 6);
        let order = device.order();
        let mut all = Vec::new();
        // They share beginnings. The second round includes pages of the first, which it reads
        // again.
        for _ in 0..2 {
            let streams: Vec<_> = (0..8)
                .map(|i| start(&llama, &prompt(3 + i * 17 % 40, i % 3), options(i)))
                .collect();
            all.extend(streams.iter().map(|stream| seen(stream, NEVER)));
            // Nobody can say how far it gets.
            let long = GenerateOptions {
                max_gen_len: Some(14),
                ignore_eos: true,
                ..options(4)
            };
            let whole = seen(&start(&llama, &prompt(4, 0), long.clone()), NEVER);
            let cut = seen(&start(&llama, &prompt(4, 0), long), 3);
            assert!(cut.0.len() >= 3 && whole.0.starts_with(&cut.0));
            all.push(whole);
        }
        (all, order)
    };
    let (ahead, fast) = walk(Emu::new(GIB, 1));
    let (plain, slow) = walk(Emu::step_by_step(GIB, 2));
    assert_eq!(slow, "<><><><><><>");
    assert_eq!(fast, "<><<><><><>>", "each step but the first two");
    for (i, (got, want)) in ahead.iter().zip(&plain).enumerate() {
        assert_eq!(got, want, "call {i}");
    }
    for end in ["StopString", "Length"] {
        let n = plain.iter().filter(|seen| seen.1.starts_with(end)).count();
        assert!(n > 1, "{n} ended by {end}");
    }
}
