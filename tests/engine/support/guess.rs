//! Drafts whose worth a test decides: texts that are predicted.

use super::model::Think;
use super::simulate::simulate;
use super::toy::{IDS, VOCAB};
use llamabi::Token;
use llamabi::engine::{GenerateOptions, Speculation};

/// Numbers from a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// How much of what is predicted comes true.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guess {
    /// All.
    Right,
    /// Nothing: whatever two tokens follow each other, a wrong one is said to follow them.
    Wrong,
    /// Some of it, from a seed: tokens are left out, put in and changed.
    Random(u64),
}

impl Guess {
    /// A text of a sequence that ends with `last` and goes on with `tokens`.
    pub fn text(self, last: &[Token], tokens: &[Token]) -> Vec<Token> {
        let all = [last, tokens].concat();
        let other = |token: Token| (token + 1) % IDS as Token;
        match self {
            Guess::Right => all,
            Guess::Wrong => {
                let triple = |next: &[Token]| [next[0], next[1], other(next[2])];
                all.windows(3).flat_map(triple).collect()
            }
            Guess::Random(seed) => {
                let mut random = Random(seed);
                let mistakes = [40, 12, 5][random.below(3)];
                let mut text = Vec::new();
                for token in all {
                    match random.below(mistakes) {
                        0 => {}
                        1 => text.extend([token, random.below(VOCAB) as Token]),
                        2 => text.push(random.below(VOCAB) as Token),
                        _ => text.push(token),
                    }
                }
                text
            }
        }
    }

    /// The options of a call, with guesses at what all its sequences will say.
    pub fn of(
        self,
        think: &mut Think,
        prompts: &[Vec<Token>],
        options: &GenerateOptions,
        max_seq_len: usize,
        draft_len: usize,
    ) -> GenerateOptions {
        let n = options.num_return_sequences;
        let prompts = prompts
            .iter()
            .flat_map(|tokens| std::iter::repeat_n(tokens, n));
        let mut predicted = Vec::new();
        for (index, prompt) in (0..).zip(prompts) {
            let want = simulate(think, prompt, index, options, max_seq_len);
            let echoed = if options.echo { prompt.len() } else { 0 };
            let last = &prompt[prompt.len().saturating_sub(2)..];
            predicted.extend(self.text(last, &want.tokens[echoed..]));
        }
        GenerateOptions {
            speculation: Speculation::NGram,
            predicted,
            draft_len,
            ..options.clone()
        }
    }
}

/// The options of a call on a handle with a draft model: some let it guess, some are contrasted
/// with it, some have nothing to do with it.
pub fn with_draft_model(options: GenerateOptions) -> GenerateOptions {
    if options.num_beams > 1 {
        return options;
    }
    let kinds = [Speculation::Draft, Speculation::Auto];
    let seed = options.seed as usize;
    match seed % 4 {
        0 | 1 => GenerateOptions {
            speculation: kinds[seed % 4],
            draft_len: seed / 4 % 6,
            ..options
        },
        2 => GenerateOptions {
            contrast_beta: 0.5,
            // So little that it leaves all tokens, of which options may ban many.
            contrast_alpha: 1e-6,
            ..options
        },
        _ => options,
    }
}
