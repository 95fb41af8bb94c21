//! What prompts that arrive do to streams that run: `cargo bench --bench latency -- MODEL [streams]
//! [prompt] [seconds]`, by default 32 streams, and every second a prompt of 2,000 tokens.
//!
//! For some values of `max_step_ms` in turns, first without prompts: the time between two tokens of
//! a stream (median, 99th of 100, longest), and how long a prompt waited for its first token.
//! `BENCH_DTYPE` (default: as stored) is the type that weights are converted to, and
//! `BENCH_SEQUENCES` (default: eight more than there are streams) what the handle is built for.
//! Prompts are random tokens, so none finds pages of another; texts go on behind EOS.

use llamabi::engine::{Event, GenerateOptions, Prompt};
use llamabi::{BuildOptions, Cancel, Dtype, Llama, Token};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Tokens of the prompts of the streams.
const SHORT: usize = 32;

fn main() {
    let arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let Some(dir) = arguments.first() else {
        return println!(
            "usage: cargo bench --bench latency -- MODEL [streams] [prompt] [seconds]"
        );
    };
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse().expect("a number"),
        None => default,
    };
    let (streams, prompt, seconds) = (number(1, 32), number(2, 2000), number(3, 15));
    let dtype = std::env::var("BENCH_DTYPE").ok();
    let dtype = dtype.map(|name| Dtype::named(&name).expect("BENCH_DTYPE is a dtype"));
    let sequences = std::env::var("BENCH_SEQUENCES").ok();
    let sequences = match sequences {
        Some(text) => text.parse().expect("BENCH_SEQUENCES is a number"),
        None => streams + 8,
    };
    assert!(
        sequences > streams,
        "prompts need a slot beside the streams"
    );
    println!("{streams} streams, every second a prompt of {prompt} tokens, {seconds} s each");
    println!("                      between tokens, ms                 to the first token, ms");
    println!("max_step_ms           median     99 %  longest  ratio    median  longest  prompts");
    let mut plain = 0.0;
    for max_step_ms in [0, 200, 100, 50, 25] {
        let options = BuildOptions {
            max_seq_len: prompt + SHORT + 16,
            max_batch_size: sequences,
            weights_dtype: dtype,
            max_step_ms: if max_step_ms == 0 { 100 } else { max_step_ms },
            ..BuildOptions::default()
        };
        let llama = Llama::build(Path::new(dir), None, &options, &mut |_| true).expect("a model");
        let arriving = if max_step_ms == 0 { 0 } else { prompt };
        let [mut gaps, mut firsts] = run(&llama, streams, arriving, seconds as u64);
        gaps.sort_by(f64::total_cmp);
        firsts.sort_by(f64::total_cmp);
        let at = |of: &[f64], share: f64| match of.len() {
            0 => 0.0,
            n => of[((n - 1) as f64 * share) as usize] * 1e3,
        };
        if max_step_ms == 0 {
            plain = at(&gaps, 0.5);
        }
        let name = match max_step_ms {
            0 => "no prompts".to_owned(),
            ms => ms.to_string(),
        };
        let late = at(&gaps, 0.99);
        println!(
            "{name:20} {:8.1} {late:8.1} {:8.1} {:6.2} {:9.0} {:8.0} {:8}",
            at(&gaps, 0.5),
            at(&gaps, 1.0),
            late / plain,
            at(&firsts, 0.5),
            at(&firsts, 1.0),
            firsts.len()
        );
    }
}

/// Seconds between two tokens of each stream, once all have begun; and from each prompt to its
/// first token.
fn run(llama: &Llama, streams: usize, prompt: usize, seconds: u64) -> [Vec<f64>; 2] {
    let vocab = llama.info().config.shape.vocab_size;
    let tokens = |n: usize, seed: usize| {
        let token = |i: usize| (100 + (seed * 7919 + i * i * 31 + i * 17) % (vocab - 200)) as Token;
        Prompt::Tokens((0..n).map(token).collect())
    };
    let cancel = Cancel::new();
    let options = |max_gen_len| GenerateOptions {
        ignore_eos: true,
        temperature: 1.0,
        max_gen_len,
        cancel: Some(cancel.clone()),
        ..GenerateOptions::default()
    };
    let firsts = Mutex::new(Vec::new());
    let gaps = std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            let (mut last, mut gaps) = (vec![None; streams], Vec::new());
            let mut begun = 0;
            let mut on_event = |event: &Event| {
                if let Event::Token(token) = event {
                    let now = Instant::now();
                    match last[token.index as usize].replace(now) {
                        None => begun += 1,
                        Some(before) if begun == streams => gaps.push((now - before).as_secs_f64()),
                        Some(_) => {}
                    }
                }
                true
            };
            let prompts = (0..streams).map(|i| tokens(SHORT, i)).collect();
            llama
                .generate(prompts, options(None), &mut on_event)
                .expect("streams");
            gaps
        });
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut seed = streams;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_secs(1));
            seed += 1;
            if prompt > 0 {
                let (prompt, firsts) = (tokens(prompt, seed), &firsts);
                let options = options(Some(1));
                scope.spawn(move || {
                    let start = Instant::now();
                    let mut on_event = |event: &Event| {
                        if matches!(event, Event::Token(_)) {
                            let took = start.elapsed().as_secs_f64();
                            firsts.lock().expect("no thread panicked").push(took);
                        }
                        true
                    };
                    let done = llama.generate(vec![prompt], options, &mut on_event);
                    done.expect("a prompt");
                });
            }
        }
        cancel.trigger();
        long.join().expect("streams")
    });
    [gaps, firsts.into_inner().expect("no thread panicked")]
}
