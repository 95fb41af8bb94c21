//! Prompt compression: shortens segments of a prompt to a number of tokens. Tokens that the model
//! finds least surprising go. `shorten` decides; this file tokenises, runs the model, and writes
//! the texts.

use super::Llama;
use super::completion::{Completion, Sequence};
use super::shorten::{Budget, Left, Part, Scores, SegmentKind, Stretch, shorten};
use crate::engine::request::MAX_SEQUENCES;
use crate::engine::{FinishReason, GenerateOptions, Prompt, RequestStats};
use crate::tokenizer::{Bound, Encoded};
use crate::{Cancel, Error, Result, Token, reserve};
use std::ops::Range;

/// A part of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Its text.
    pub text: &'a str,
    /// What becomes of it.
    pub kind: SegmentKind,
}

/// Options of [`Llama::compress`].
#[derive(Clone, Debug)]
pub struct CompressOptions {
    /// How many tokens all segments together shall have; 0: see `rate`.
    pub target_tokens: usize,
    /// The share of all tokens that shall be left, above 0 and at most 1; rounded up.
    pub rate: f32,
    /// The number of tokens between two decisions, at least 1.
    pub window: usize,
    /// With several segments to shorten, the first pass leaves out whole segments, and leaves at
    /// most this many times the budget; at least 1.
    pub coarse: f32,
    /// Tokens with a newline stay.
    pub keep_newlines: bool,
    /// Tokens with a digit stay.
    pub keep_digits: bool,
    /// Stops the call.
    pub cancel: Option<Cancel>,
}

impl Default for CompressOptions {
    fn default() -> Self {
        Self {
            target_tokens: 0,
            rate: 0.5,
            window: 100,
            coarse: 2.0,
            keep_newlines: false,
            keep_digits: false,
            cancel: None,
        }
    }
}

impl CompressOptions {
    fn check(&self) -> Result<()> {
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Err(Error::invalid("rate", "above 0 and at most 1", self.rate));
        }
        if self.window == 0 {
            return Err(Error::invalid("window", "at least 1", 0));
        }
        match self.coarse >= 1.0 && self.coarse.is_finite() {
            true => Ok(()),
            false => Err(Error::invalid(
                "coarse",
                "finite and at least 1",
                self.coarse,
            )),
        }
    }

    /// The target for `all` tokens. As a float, a `rate` of 0.3 is a little above 3/10, which must
    /// not become one more token.
    fn target(&self, all: usize) -> usize {
        let exact = f64::from(self.rate) * (1.0 - f64::from(f32::EPSILON) / 2.0);
        match self.target_tokens {
            0 => (exact * all as f64).ceil() as usize,
            n => n,
        }
    }

    fn forces(&self, byte: u8) -> bool {
        self.keep_newlines && byte == b'\n' || self.keep_digits && byte.is_ascii_digit()
    }
}

/// How many prompts are scored in one call: enough to fill every batch, and few enough that their
/// tokens take little memory.
const AT_ONCE: usize = 256;

/// How many rounds of a call may score no piece ([`Llama::score_pieces`]).
const TRIES: u32 = 3;

/// The number of a text, and a part of the text that is scored at once.
type Piece = (usize, Range<usize>);

const WHAT: &str = "the segments";

impl Llama {
    /// Shorten the segments of kind [`SegmentKind::Compress`] until all segments have the number of
    /// tokens that `options` ask for, or as near as possible. Sequence `i` of the outcome is what
    /// is left of segment `i`: its tokens; the log probabilities by which they stayed (0 if nothing
    /// was decided); its text; and, as score, what the first pass found it worth.
    ///
    /// Fails with [`Error::Batch`], with [`Error::InvalidArgument`], and like [`Llama::generate`].
    pub fn compress(
        &self,
        segments: &[Segment<'_>],
        options: &CompressOptions,
    ) -> Result<Completion> {
        options.check()?;
        self.health()?;
        if !(1..=MAX_SEQUENCES).contains(&segments.len()) {
            let (n, max) = (segments.len(), MAX_SEQUENCES);
            return Err(Error::Batch { n, max });
        }
        let lefts = match self.shortened(segments, options) {
            Err(Error::Cancelled) => return Completion::cancelled(segments.len()),
            outcome => outcome?,
        };
        let mut sequences = reserve::room(WHAT, segments.len())?;
        for (segment, (left, before)) in segments.iter().zip(lefts) {
            sequences.push(self.sequence(segment, left, before)?);
        }
        Ok(Completion {
            sequences,
            cancelled: false,
        })
    }

    /// What is left of each segment, and how many tokens it had.
    fn shortened(
        &self,
        segments: &[Segment<'_>],
        options: &CompressOptions,
    ) -> Result<Vec<(Left, usize)>> {
        let mut parts = reserve::room(WHAT, segments.len())?;
        for segment in segments {
            parts.push(self.part(segment, options)?);
        }
        let budget = Budget {
            target: options.target(parts.iter().map(|part: &Part| part.tokens.len()).sum()),
            window: options.window,
            coarse: options.coarse,
        };
        let cancel = options.cancel.as_ref();
        let lefts = shorten(&parts, &budget, &mut |stretches| {
            self.score(stretches, cancel)
        })?;
        let mut counted = reserve::room(WHAT, segments.len())?;
        counted.extend(
            lefts
                .into_iter()
                .zip(parts.iter().map(|part| part.tokens.len())),
        );
        Ok(counted)
    }

    fn part(&self, segment: &Segment<'_>, options: &CompressOptions) -> Result<Part> {
        let mut tokens = Vec::new();
        let bound = Bound {
            max_tokens: None,
            cancel: options.cancel.as_ref(),
        };
        let (Encoded::Whole | Encoded::TooLong(_)) =
            self.tokenizer
                .encode_onto(segment.text, &mut tokens, bound)?;
        let mut forced = Vec::new();
        if options.keep_newlines || options.keep_digits {
            reserve::vec(WHAT, &mut forced, tokens.len())?;
            let forces = |token: &Token| {
                let bytes = self.tokenizer.token_bytes(*token);
                bytes.iter().any(|byte| options.forces(*byte))
            };
            forced.extend(tokens.iter().map(forces));
        }
        Ok(Part {
            tokens,
            forced,
            kind: segment.kind,
        })
    }

    /// The log probability of each token of each text, after the text's context. If both together
    /// are too long for the model, the context is cut at its beginning. A text that is too long
    /// alone is scored piece by piece, with as much context as piece.
    fn score(&self, stretches: &[Stretch<'_>], cancel: Option<&Cancel>) -> Result<Scores> {
        let start = self.start()?;
        let room = self.request_limits().max_seq_len - 1;
        if room == 0 {
            let expected = "at least 2 where prompts are compressed";
            return Err(Error::invalid("max_seq_len", expected, 1));
        }
        let mut pieces = Vec::new();
        let mut scores = reserve::room(WHAT, stretches.len())?;
        for (of, Stretch { text, .. }) in stretches.iter().enumerate() {
            let mut of_text = reserve::room(WHAT, text.len())?;
            of_text.resize(text.len(), 0.0);
            scores.push(of_text);
            let len = if text.len() <= room {
                text.len()
            } else {
                room.div_ceil(2)
            };
            for begin in (0..text.len()).step_by(len.max(1)) {
                let end = (begin + len).min(text.len());
                reserve::push(WHAT, &mut pieces, (of, begin..end))?;
            }
        }
        let mut tries = TRIES;
        while !pieces.is_empty() {
            let again = self.score_pieces(stretches, &pieces, start, room, cancel, &mut scores)?;
            if again.len() == pieces.len() {
                tries -= 1;
            }
            if tries == 0 {
                let what = "the scores of a compressed prompt";
                return Err(Error::Unread { what });
            }
            pieces = again;
        }
        Ok(scores)
    }

    /// Writes the scores of some pieces of texts. Each piece begins with `start` and has room for
    /// `room` more tokens. Returns the pieces that have to be scored again: the engine ends calls
    /// that nobody reads, and this thread may have been held up.
    fn score_pieces(
        &self,
        stretches: &[Stretch<'_>],
        pieces: &[Piece],
        start: Token,
        room: usize,
        cancel: Option<&Cancel>,
        scores: &mut Scores,
    ) -> Result<Vec<Piece>> {
        let mut again = Vec::new();
        for some in pieces.chunks(AT_ONCE) {
            let mut prompts = reserve::room(WHAT, some.len())?;
            for (of, piece) in some {
                let Stretch { context, text } = &stretches[*of];
                let behind = (room - piece.len()).min(piece.start);
                let front = (room - piece.len() - behind).min(context.len());
                let mut prompt = reserve::room(WHAT, 1 + front + behind + piece.len())?;
                prompt.push(start);
                prompt.extend(&context[context.len() - front..]);
                prompt.extend(&text[piece.start - behind..piece.end]);
                prompts.push(Prompt::Tokens(prompt));
            }
            let asked = GenerateOptions {
                echo: true,
                logprobs: true,
                max_gen_len: Some(0),
                publishes: false,
                cancel: cancel.cloned(),
                ..GenerateOptions::default()
            };
            let done = self.generate(prompts, asked, &mut |_| true)?;
            if done.cancelled {
                return Err(Error::Cancelled);
            }
            for ((of, piece), sequence) in some.iter().zip(done.sequences) {
                if sequence.finish == FinishReason::NotFinite {
                    let sentence =
                        "prompts cannot be compressed: the model's logits are not finite";
                    return Err(Error::Unsupported(sentence.into()));
                }
                if sequence.finish == FinishReason::Unread {
                    reserve::push(WHAT, &mut again, (*of, piece.clone()))?;
                    continue;
                }
                let all = &sequence.logprobs;
                scores[*of][piece.clone()].copy_from_slice(&all[all.len() - piece.len()..]);
            }
        }
        Ok(again)
    }

    /// The token before a text that is scored: BOS or, if the tokenizer has no BOS, the token that
    /// ends a document.
    fn start(&self) -> Result<Token> {
        let known = [self.tokenizer.bos_id(), self.tokenizer.eos_id()];
        let known = known.into_iter().find(|token| *token >= 0);
        known.ok_or_else(|| {
            let sentence = "prompts cannot be compressed: the tokenizer has neither BOS nor EOS";
            Error::Unsupported(sentence.into())
        })
    }

    fn sequence(&self, segment: &Segment<'_>, left: Left, before: usize) -> Result<Sequence> {
        let text = match left.whole {
            true => {
                let mut text = String::new();
                reserve::string(WHAT, &mut text, segment.text.len())?;
                text.push_str(segment.text);
                text
            }
            false => {
                let bytes = |i: usize| self.tokenizer.token_bytes(left.tokens[i]);
                text_of(&left.places, bytes)?
            }
        };
        let stats = RequestStats {
            prompt_tokens: before as u32,
            generated_tokens: left.tokens.len() as u32,
            ..RequestStats::default()
        };
        Ok(Sequence {
            tokens: left.tokens,
            logprobs: left.logprobs,
            text,
            top: Vec::new(),
            finish: FinishReason::Stop,
            sum_logprob: 0.0,
            score: left.worth,
            stats,
        })
    }
}

/// The text of the tokens that stay, which are the segment's tokens at `places`. A space at its
/// beginning is left out. A character goes if some of its tokens have gone: otherwise its remaining
/// bytes could form another character together with those of the next.
fn text_of<'t>(places: &[usize], bytes: impl Fn(usize) -> &'t [u8]) -> Result<String> {
    let n_bytes = (0..places.len()).map(|i| bytes(i).len()).sum();
    let (mut text, mut run) = (String::new(), reserve::room(WHAT, n_bytes)?);
    reserve::string(WHAT, &mut text, n_bytes)?;
    let mut at = 0;
    for neighbours in places.chunk_by(|a, b| a + 1 == *b) {
        run.clear();
        for _ in neighbours {
            run.extend_from_slice(bytes(at));
            at += 1;
        }
        run.utf8_chunks()
            .for_each(|part| text.push_str(part.valid()));
    }
    if text.starts_with(' ') {
        text.remove(0);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{CompressOptions, text_of};

    #[test]
    fn a_rate_is_rounded_up_but_not_by_its_last_bit() {
        for (rate, all, expected) in [
            (0.3, 10, 3),
            (0.3, 11, 4),
            (0.5, 11, 6),
            (0.7, 1_000_000, 700_000),
            (1.0, 1_000_001, 1_000_001),
            (f32::MIN_POSITIVE, 9, 1),
            (0.5, 0, 0),
        ] {
            let options = CompressOptions {
                rate,
                ..CompressOptions::default()
            };
            assert_eq!(options.target(all), expected, "{rate} of {all}");
        }
    }

    #[test]
    fn texts_begin_without_a_space_and_have_no_half_characters() {
        let text = |places: &[usize], tokens: &[&[u8]]| text_of(places, |i| tokens[i]).unwrap();
        assert_eq!(text(&[0, 1], &[b" a", b" b "]), "a b ");
        assert_eq!(text(&[0], &[b"  a"]), " a");
        assert_eq!(text(&[], &[]), "");
        // Of "ä ö z é" the first halves of two letters, and a word between them.
        let halves: [&[u8]; 3] = [b"\xc3", b" z", b"\xc3"];
        assert_eq!(text(&[1, 6, 8], &halves), "z");
        // The remains of two characters form no third one. Side by side they are the character that
        // they were.
        let two: [&[u8]; 2] = [b"\xe7", b"\xab\x9c"];
        assert_eq!(text(&[3, 9], &two), "");
        assert_eq!(text(&[3, 4], &two), "\u{7adc}");
        assert_eq!(text(&[0], &["a\u{fffd}".as_bytes()]), "a\u{fffd}");
    }
}
