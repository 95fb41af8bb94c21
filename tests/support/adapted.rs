//! Streams of made-up prompts, and what they say, for tests of adapters.

use llamabi::engine::{Event, GenerateOptions, Next, Prompt, Stream};
use llamabi::{Llama, Token};

/// Greedy, past EOS.
pub fn with(adapter: u32, n: usize) -> GenerateOptions {
    GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(n),
        adapter,
        ..GenerateOptions::default()
    }
}

pub fn prompt(n: usize) -> Vec<Token> {
    let token = |i: usize| (1 + (i * i * 31 + i * 17 + n * 57) % 290) as Token;
    (0..n).map(token).collect()
}

pub fn start(llama: &Llama, n: usize, options: GenerateOptions) -> llamabi::Result<Stream> {
    llama.stream(vec![Prompt::Tokens(prompt(n))], options)
}

/// A token and its log probability.
pub type Said = (Token, f32);

pub fn next(stream: &Stream) -> Option<Said> {
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => return Some((e.token, e.logprob)),
            Next::Event(_) => {}
            Next::Done => return None,
            other => panic!("{other:?}"),
        }
    }
}

pub fn finish(stream: &Stream) -> Vec<Said> {
    std::iter::from_fn(|| next(stream)).collect()
}

pub fn run(llama: &Llama, n: usize, options: GenerateOptions) -> Vec<Said> {
    finish(&start(llama, n, options).unwrap())
}

pub fn bits(said: &[Said]) -> Vec<(Token, u32)> {
    said.iter().map(|&(t, l)| (t, l.to_bits())).collect()
}
