//! A beam search of one prompt, alone: lists of tokens, sorted anew in every step, as transformers
//! has it. No pages, no slots, no streams.

use super::Output;
use super::language::Reading;
use super::model::Think;
use super::simulate::{Reader, edits};
use super::toy::{EOS, IDS, VOCAB};
use llamabi::Token;
use llamabi::backend::RowKind;
use llamabi::engine::request::EarlyStopping;
use llamabi::engine::sampler::Sampler;
use llamabi::engine::{FinishReason, GenerateOptions};

struct Finished {
    score: f64,
    sum: f64,
    output: Vec<Token>,
    reason: FinishReason,
}

/// The model's row behind these tokens, loaded.
fn think_of(think: &mut Think, prompt: &[Token], output: &[Token], sampler: &mut Sampler) {
    let prompt = prompt.iter().map(|token| (*token, RowKind::Prefill));
    let output = output.iter().map(|token| (*token, RowKind::Decode));
    let history: Vec<_> = prompt.chain(output).collect();
    let mut row = vec![0.0; VOCAB];
    think(&history, &mut row);
    sampler.load(&row);
}

/// The best results, as many as are asked for.
pub fn simulate_beams(
    think: &mut Think,
    prompt: &[Token],
    options: &GenerateOptions,
    max_seq_len: usize,
) -> Vec<Output> {
    let room = max_seq_len - prompt.len();
    let most = options.max_gen_len.unwrap_or(room).min(room);
    let reader = Reader { prompt, options };
    let mut sampler = Sampler::new(IDS);
    let finished = match most {
        0 => None,
        _ => Some(search(think, prompt, options, most, &reader, &mut sampler)),
    };
    let empty = |think: &mut Think, score: f32, reason| {
        let mut out = Output {
            sum_logprob: score,
            score,
            ..Output::default()
        };
        echo(think, prompt, options, &mut Sampler::new(IDS), &mut out);
        reader.read(prompt, None, reason, &mut out);
        out
    };
    let mut outputs: Vec<Output> = Vec::new();
    for at in 0..options.num_return_sequences {
        let Some(finished) = &finished else {
            outputs.push(empty(think, 0.0, FinishReason::Length));
            continue;
        };
        let Some(best) = finished.get(at) else {
            outputs.push(empty(think, f32::NEG_INFINITY, FinishReason::Stop));
            continue;
        };
        let mut out = Output {
            sum_logprob: best.sum as f32,
            score: best.score as f32,
            ..Output::default()
        };
        echo(think, prompt, options, &mut sampler, &mut out);
        for (at, token) in best.output.iter().enumerate() {
            think_of(think, prompt, &best.output[..at], &mut sampler);
            let softmax = sampler.log_softmax().unwrap();
            let logprob = sampler.logprob(&softmax, *token);
            out.logprobs
                .push(if options.logprobs { logprob } else { 0.0 });
            let top = sampler.alternatives(&softmax, options.top_logprobs);
            out.top.push(top.unwrap());
        }
        let tokens = [prompt, &best.output[..]].concat();
        let cut = reader.cut(&tokens, false);
        reader.read(&tokens, cut, best.reason, &mut out);
        outputs.push(out);
    }
    outputs
}

/// What is reported of the prompt's own tokens.
fn echo(
    think: &mut Think,
    prompt: &[Token],
    options: &GenerateOptions,
    sampler: &mut Sampler,
    out: &mut Output,
) {
    if !options.echo {
        return;
    }
    out.logprobs.push(0.0);
    out.top.push(Vec::new());
    for at in 1..prompt.len() {
        think_of(think, &prompt[..at], &[], sampler);
        let softmax = sampler.log_softmax().unwrap();
        let logprob = sampler.logprob(&softmax, prompt[at]);
        out.logprobs
            .push(if options.logprobs { logprob } else { 0.0 });
        let top = sampler.alternatives(&softmax, options.top_logprobs);
        out.top.push(top.unwrap());
    }
}

fn search(
    think: &mut Think,
    prompt: &[Token],
    options: &GenerateOptions,
    most: usize,
    reader: &Reader<'_>,
    sampler: &mut Sampler,
) -> Vec<Finished> {
    let width = options.num_beams;
    let penalty = f64::from(options.length_penalty);
    let score = |sum: f64, n: usize| {
        if sum == 0.0 {
            0.0
        } else {
            sum / (n as f64).powf(penalty)
        }
    };
    let mut ends = options.stop_tokens.clone();
    if !options.ignore_eos {
        ends.push(EOS);
    }
    ends.sort();
    ends.dedup();
    let considered = width * (1 + ends.len()).max(2);
    let mut running = vec![(0.0f64, Vec::<Token>::new())];
    let mut finished: Vec<Finished> = Vec::new();
    loop {
        let mut flat = Vec::new();
        for (beam, (sum, output)) in running.iter().enumerate() {
            let tokens = [prompt, &output[..]].concat();
            think_of(think, prompt, output, sampler);
            let Some(softmax) = sampler.log_softmax() else {
                continue;
            };
            let edits = edits(options, &tokens, prompt.len());
            let reading = read(options, output);
            for token in 0..IDS as Token {
                if reading
                    .as_ref()
                    .is_some_and(|reading| !reading.allows(token))
                {
                    continue;
                }
                let mut value = sampler.logprob(&softmax, token);
                if tokens.contains(&token) {
                    value *= options.repetition_penalty;
                }
                if let Some(edit) = edits.iter().find(|edit| edit.token == token) {
                    value += edit.add;
                }
                if value > f32::NEG_INFINITY {
                    flat.push((sum + f64::from(value), beam, token));
                }
            }
        }
        flat.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        flat.truncate(considered);
        let mut next = Vec::new();
        let n = running[0].1.len() + 1;
        for (rank, (sum, beam, token)) in flat.into_iter().enumerate() {
            let mut output = running[beam].1.clone();
            let is_end = ends.contains(&token);
            if !is_end {
                output.push(token);
            }
            let reason = if is_end {
                Some(FinishReason::Stop)
            } else if reader.cut(&[prompt, &output[..]].concat(), false).is_some() {
                Some(FinishReason::StopString)
            } else if read(options, &output).is_some_and(|reading| !reading.follows().more) {
                Some(FinishReason::Stop)
            } else {
                (n == most).then_some(FinishReason::Length)
            };
            match reason {
                None => next.push((sum, output)),
                Some(reason) if rank < width => {
                    finished.push(Finished {
                        score: score(sum, n),
                        sum,
                        output,
                        reason,
                    });
                    finished.sort_by(|a, b| b.score.total_cmp(&a.score));
                    finished.truncate(width);
                }
                Some(_) => {}
            }
        }
        next.truncate(width);
        running = next;
        let Some((best, _)) = running.first() else {
            return finished;
        };
        if finished.len() == width {
            let length = match options.early_stopping {
                EarlyStopping::True => return finished,
                EarlyStopping::Never if penalty > 0.0 => most,
                _ => n,
            };
            if score(*best, length) <= finished[width - 1].score {
                return finished;
            }
        }
    }
}

/// How far an output has come in the language of a call.
fn read<'a>(options: &'a GenerateOptions, output: &[Token]) -> Option<Reading<'a>> {
    let mut reading = Reading::new(options)?;
    output.iter().for_each(|token| reading.take(*token));
    Some(reading)
}

/// With scores.
pub fn assert_same_beams(got: &Output, want: &Output) {
    super::assert_same(got, want);
    let bits = |out: &Output| (out.sum_logprob.to_bits(), out.score.to_bits());
    assert_eq!(bits(got), bits(want), "{got:?} {want:?}");
}
