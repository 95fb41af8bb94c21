//! What should come out.

use super::Output;
use super::language::Reading;
use super::model::Think;
use super::toy::{EOS, IDS, Toy, VOCAB, decode};
use llamabi::Token;
use llamabi::backend::RowKind;
use llamabi::backend::choice::{Changes, Edit, Strategy, mask_words};
use llamabi::engine::sampler::{Sampler, uniform};
use llamabi::engine::{FinishReason, GenerateOptions, Question};
use llamabi::tokenizer::{Piece, Tokenizer};

/// What is added to the logits of the token after `tokens`, one id at a time, by the definitions of
/// OpenAI (penalties, biases) and transformers (bans).
pub fn edits(options: &GenerateOptions, tokens: &[Token], prompt_len: usize) -> Vec<Edit> {
    let output = &tokens[prompt_len..];
    let is_banned = |id: Token| {
        let ends = id == EOS && !options.ignore_eos || options.stop_tokens.contains(&id);
        let with = [tokens, &[id]].concat();
        let n = options.no_repeat_ngram_size;
        let repeats = n > 0 && with.len() > n && {
            let last = &with[with.len() - n..];
            tokens.windows(n).any(|ngram| ngram == last)
        };
        repeats
            || ends && output.len() < options.min_gen_len
            || options.bad_words.iter().any(|word| with.ends_with(word))
    };
    let edit = |id: Token| {
        let add = match output.iter().filter(|token| **token == id).count() {
            0 => 0.0,
            n => -(n as f32 * options.frequency_penalty + options.presence_penalty),
        };
        let biases = options.logit_bias.iter().filter(|bias| bias.token == id);
        let add = biases.fold(add, |add, bias| add + bias.bias);
        match is_banned(id) {
            true => f32::NEG_INFINITY,
            false => add,
        }
    };
    let all = (0..IDS as Token).map(|token| Edit {
        token,
        add: edit(token),
    });
    all.filter(|edit| edit.add != 0.0).collect()
}

/// Which tokens a caller who is asked about logits bans behind these.
fn banned_by_caller(tokens: &[Token]) -> impl Fn(Token) -> bool + use<> {
    let sum: usize = tokens.iter().map(|token| *token as usize).sum();
    move |token| (sum + token as usize).is_multiple_of(5)
}

/// What that caller says to a question.
pub fn answer(mut question: Question) {
    let is_banned = banned_by_caller(question.tokens());
    for (token, logit) in (0..).zip(question.logits_mut()) {
        if is_banned(token) {
            *logit = f32::NEG_INFINITY;
        }
    }
    question.answer();
}

/// The tokens that a grammar and the caller leave, if there is one that has a say.
fn mask(
    options: &GenerateOptions,
    tokens: &[Token],
    reading: Option<&Reading>,
) -> Option<Vec<u32>> {
    if let Some(reading) = reading {
        return Some(reading.mask());
    }
    options.ask_logits.then(|| {
        let mut mask = vec![0; mask_words(VOCAB)];
        let is_banned = banned_by_caller(tokens);
        let left = (0..IDS as Token).filter(|token| !is_banned(*token));
        left.for_each(|token| mask[token as usize / 32] |= 1 << (token % 32));
        mask
    })
}

/// One sequence alone, one whole prompt at a time, without pages, batches or streams.
pub fn simulate(
    think: &mut Think,
    prompt: &[Token],
    index: u32,
    options: &GenerateOptions,
    max_seq_len: usize,
) -> Output {
    simulate_contrast(think, None, prompt, index, options, max_seq_len)
}

/// What a token is drawn from where the row of another model is contrasted with: by the definition.
/// `left`: impossible are the tokens that bans and grammars forbid.
fn contrast(row: &[f32], left: &[f32], amateur: &[f32], options: &GenerateOptions) -> Vec<f32> {
    let (beta, alpha) = (options.contrast_beta, options.contrast_alpha);
    let alpha = if alpha == 0.0 { 0.1 } else { alpha };
    let possible = (0..IDS).filter(|id| left[*id] > f32::NEG_INFINITY);
    let most = possible.map(|id| row[id]).fold(f32::NEG_INFINITY, f32::max);
    let of = |(expert, amateur): (&f32, &f32)| match *expert >= most + alpha.ln() {
        true => (1.0 + beta) * expert - beta * amateur,
        false => f32::NEG_INFINITY,
    };
    row.iter().zip(amateur).map(of).collect()
}

/// The same with a draft model, which the model may be contrasted with.
pub fn simulate_contrast(
    think: &mut Think,
    mut amateur: Option<&mut Think>,
    prompt: &[Token],
    index: u32,
    options: &GenerateOptions,
    max_seq_len: usize,
) -> Output {
    let most = options
        .max_gen_len
        .unwrap_or(usize::MAX)
        .min(max_seq_len - prompt.len());
    let mut sampler = Sampler::new(IDS);
    let mut row = vec![0.0; VOCAB];
    let mut tokens = prompt.to_vec();
    let mut out = Output::default();
    let history = |tokens: &[Token]| -> Vec<(Token, RowKind)> {
        let kind = |at| {
            if at < prompt.len() {
                RowKind::Prefill
            } else {
                RowKind::Decode
            }
        };
        tokens
            .iter()
            .enumerate()
            .map(|(at, token)| (*token, kind(at)))
            .collect()
    };
    let record = |sampler: &mut Sampler, token: Option<Token>, out: &mut Output| {
        let Some(token) = token else {
            out.logprobs.push(0.0);
            out.top.push(Vec::new());
            return;
        };
        let softmax = sampler.log_softmax().unwrap();
        let logprob = sampler.logprob(&softmax, token);
        out.logprobs
            .push(if options.logprobs { logprob } else { 0.0 });
        out.top.push(
            sampler
                .alternatives(&softmax, options.top_logprobs)
                .unwrap(),
        );
    };
    if options.echo {
        record(&mut sampler, None, &mut out);
        for at in 1..prompt.len() {
            think(&history(&prompt[..at]), &mut row);
            sampler.load(&row);
            if options.logprobs || options.top_logprobs > 0 {
                record(&mut sampler, Some(prompt[at]), &mut out);
            } else {
                record(&mut sampler, None, &mut out);
            }
        }
    }
    let reader = Reader { prompt, options };
    let mut cut = None;
    let mut reason = FinishReason::Length;
    let mut reading = Reading::new(options);
    while tokens.len() - prompt.len() < most {
        think(&history(&tokens), &mut row);
        sampler.load(&row);
        let draw = uniform(options.seed, u64::from(index), tokens.len() as u64);
        let edits = edits(options, &tokens, prompt.len());
        let mask = mask(options, &tokens, reading.as_ref());
        let changes = Changes {
            edits: &edits,
            mask: mask.as_deref(),
            ..Changes::after(&tokens)
        };
        let contrasted = amateur
            .as_deref_mut()
            .filter(|_| options.contrast_beta > 0.0);
        let token = match contrasted {
            None => sampler.draw(&Strategy::from(options), changes, draw),
            Some(amateur) => {
                let mut other = vec![0.0; VOCAB];
                amateur(&history(&tokens), &mut other);
                let strategy = Strategy::from(options);
                let left = sampler.changed(&strategy, changes);
                let contrasted = contrast(&row, left, &other, options);
                let mut drawn = Sampler::new(IDS);
                drawn.load(&contrasted);
                drawn.draw(&strategy, changes, draw)
            }
        };
        let token = token.unwrap();
        if token == EOS && !options.ignore_eos || options.stop_tokens.contains(&token) {
            reason = FinishReason::Stop;
            break;
        }
        record(&mut sampler, Some(token), &mut out);
        tokens.push(token);
        cut = reader.cut(&tokens, false);
        if cut.is_some() {
            break;
        }
        if let Some(reading) = &mut reading {
            reading.take(token);
            if !reading.follows().more {
                reason = FinishReason::Stop;
                break;
            }
        }
    }
    reader.read(&tokens, cut, reason, &mut out);
    out
}

/// Text: of what is reported; stop strings count from where the generated part begins.
pub struct Reader<'a> {
    pub prompt: &'a [Token],
    pub options: &'a GenerateOptions,
}

impl Reader<'_> {
    fn shown(&self, tokens: &[Token]) -> Vec<Token> {
        let echo = self.options.echo;
        tokens[if echo { 0 } else { self.prompt.len() }..].to_vec()
    }

    /// The space that the generated part loses at its beginning is written all the same: a stop
    /// string that is more than spaces may begin with it.
    fn loses_space(&self, tokens: &[Token]) -> bool {
        let shown = self.shown(tokens);
        let generated = tokens.len() - self.prompt.len();
        let mut told = shown.iter().enumerate();
        let first = told.find(|(_, token)| Toy.piece(**token) != Piece::Control);
        first.is_some_and(|(at, token)| {
            let text = matches!(Toy.piece(*token), Piece::Text(text) if text.starts_with(' '));
            text && at >= shown.len() - generated
        })
    }

    /// Where a stop string cuts the text: of what is certain, or of all as it is at the end.
    pub fn cut(&self, tokens: &[Token], at_end: bool) -> Option<usize> {
        let begin = decode(&self.shown(self.prompt)).1;
        let (text, certain) = decode(&self.shown(tokens));
        let text = &text[begin..if at_end { text.len() } else { certain }];
        let loses_space = self.loses_space(tokens);
        let at = |stop: &String| match loses_space && !stop.trim_matches(' ').is_empty() {
            true => Some(format!(" {text}").find(&stop[..])?.saturating_sub(1)),
            false => text.find(&stop[..]),
        };
        let first = self.options.stop.iter().filter_map(at).min();
        first.map(|at| begin + at)
    }

    /// What the reader of these tokens gets.
    pub fn read(
        &self,
        tokens: &[Token],
        cut: Option<usize>,
        reason: FinishReason,
        out: &mut Output,
    ) {
        let text = decode(&self.shown(tokens)).0;
        let cut = cut.or_else(|| self.cut(tokens, true));
        let stopped = cut.map(|_| FinishReason::StopString);
        out.text = text[..cut.unwrap_or(text.len())].into();
        out.tokens = self.shown(tokens);
        out.finish = stopped.or(Some(reason));
    }
}

/// `got` is what the simulation says, figures aside.
pub fn assert_same(got: &Output, want: &Output) {
    assert_eq!(
        got.tokens, want.tokens,
        "{:?} {:?}",
        got.finish, want.finish
    );
    assert_eq!(got.logprobs, want.logprobs);
    assert_eq!(got.top, want.top);
    assert_eq!(got.text, want.text);
    assert_eq!(got.finish, want.finish);
}
