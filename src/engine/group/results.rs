//! What a search that is over tells its reader.

use super::{Group, Told, WHAT};
use crate::engine::branch::Branch;
use crate::engine::event::{Drafted, FinishReason, RequestStats};
use crate::engine::output::{Output, Sums};
use crate::engine::sampler::Score;
use crate::{Result, reserve};
use std::iter::once;

impl Group {
    /// Tell the results. `reason`: why it is over; [`FinishReason::Stop`] where it came to its end.
    pub fn finish(
        &mut self,
        own: &Branch,
        output: &mut Output,
        cached: usize,
        reason: FinishReason,
    ) -> Result<()> {
        let Self {
            search,
            beams,
            slots,
            outputs,
            next,
            ..
        } = self;
        let (length, prompt_len) = (search.length, own.prompt_len as u32);
        let finished = search.finished().iter().map(|f| {
            let sums = Sums {
                logprob: f.sum,
                score: f.score,
            };
            (&f.text, f.reason, sums)
        });
        // Where phrases are to be written, those that run are not in the order of their sums.
        next.clear();
        next.extend(0..search.running.len());
        next.sort_unstable_by(|a, b| {
            let sums = search.running[*b].total_cmp(&search.running[*a]);
            sums.then(a.cmp(b))
        });
        let running = next.iter().map(|at| {
            let (sum, slot) = (&search.running[*at], &beams[*at]);
            let sums = Sums {
                logprob: *sum,
                score: search.rules.score(*sum, length.max(1)),
            };
            (&slots[*slot].told, reason, sums)
        });
        let mut results = finished.chain(running);
        if reason == FinishReason::Cancelled {
            // Perhaps nothing of what is told was.
            output.call.cut_short();
        }
        let mut cached = cached as u32;
        for other in outputs.iter_mut() {
            other.begins_with(output);
        }
        for output in once(output).chain(outputs) {
            if reason == FinishReason::Length {
                output.echo(&own.tokens[..own.prompt_len], own.prompt_len)?;
            }
            let stats = |generated: usize| RequestStats {
                prompt_tokens: prompt_len,
                cached_tokens: cached,
                generated_tokens: generated as u32,
                ..RequestStats::default()
            };
            match results.next() {
                Some((told, reason, sums)) => {
                    output.tell(told)?;
                    output.finish(reason, sums, stats(told.tokens.len()))?;
                }
                None => {
                    let (none, reason) = match (length, reason) {
                        (0, reason) => (0.0, reason),
                        // Others were cut at their greatest length.
                        (_, FinishReason::Length) => (f64::NEG_INFINITY, FinishReason::Stop),
                        (_, reason) => (f64::NEG_INFINITY, reason),
                    };
                    let sums = Sums {
                        logprob: none,
                        score: none,
                    };
                    output.finish(reason, sums, stats(0))?;
                }
            }
            cached = prompt_len;
        }
        Ok(())
    }
}

impl Output {
    /// Tell all generated tokens at once.
    fn tell(&mut self, told: &Told) -> Result<()> {
        let logprobs = self.call.options.logprobs;
        for (at, (token, logprob)) in told.tokens.iter().zip(&told.logprobs).enumerate() {
            let top = match told.tops.get(at) {
                Some(top) => reserve::copy(WHAT, top)?,
                None => Vec::new(),
            };
            let logprob = if logprobs { *logprob } else { 0.0 };
            self.generated(*token, Score { logprob, top }, Drafted::None)?;
        }
        Ok(())
    }
}
