//! The place of a text in its grammar, and the mask of the tokens that may come next there. A
//! thread of its own computes it, see `guides`.

use crate::backend::choice::mask_words;
use crate::error::panic_text;
use crate::grammar::{Cursor, Grammar, Scout};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// What a guide is asked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Work {
    /// The masks of the next row and of those behind the drafts.
    Masks,
    /// Drafts: what the grammar leaves no choice about.
    Forced,
    /// Which of the drafts, from the first on, the grammar allows.
    Allowed,
}

/// How far a sequence has come in its grammar.
pub(super) struct Guide {
    cursor: Cursor,
    /// What says which drafts the grammar allows, if the sequence has any.
    scout: Option<Scout>,
    /// What was asked for last.
    work: Work,
    /// The drafts of the step that is planned or under way.
    drafts: Vec<Token>,
    /// The tokens that may come next, and those that may come behind each of the drafts; `words`
    /// for each. The thread fills it.
    masks: Vec<u32>,
    words: usize,
    /// Whether the sequence may end in the state of each mask.
    accepts: Vec<bool>,
    /// In which of these states it is.
    at: usize,
    /// Tokens that end the sequence beside EOS.
    stop_tokens: Vec<Token>,
    /// Whether the returned text begins with the generated text.
    begins_text: bool,
    error: Option<Error>,
    ms: f64,
}

impl Guide {
    /// A guide at the beginning of its grammar. `begins_text`: whether nothing precedes the
    /// generated text in the returned text. `most_drafts`: of a step.
    pub fn new(
        grammar: &Arc<Grammar>,
        tokenizer: &Arc<dyn Tokenizer>,
        n_tokens: usize,
        stop_tokens: &[Token],
        begins_text: bool,
        most_drafts: usize,
    ) -> Result<Box<Self>> {
        let mut mine = reserve::copy("the stop tokens of a sequence", stop_tokens)?;
        mine.retain(|token| (*token as usize) < n_tokens);
        let scout = (most_drafts > 0).then(|| Scout::new(grammar, tokenizer));
        let (what, words) = ("a grammar's masks", mask_words(n_tokens));
        Ok(Box::new(Self {
            cursor: Cursor::new(grammar)?,
            scout: scout.transpose()?,
            work: Work::Masks,
            drafts: reserve::room(what, most_drafts)?,
            masks: reserve::filled(what, words * (1 + most_drafts), 0)?,
            words,
            accepts: reserve::room(what, 1 + most_drafts)?,
            at: 0,
            stop_tokens: mine,
            begins_text,
            error: None,
            ms: 0.0,
        }))
    }

    /// The tokens that may come next.
    pub fn mask(&self) -> &[u32] {
        &self.masks[self.at * self.words..][..self.words]
    }

    /// The masks that were computed last: of the next row, and of those behind its drafts as far
    /// as the grammar allows these.
    pub fn masks(&self) -> &[u32] {
        &self.masks[..self.n_masks() * self.words]
    }

    /// How many these are.
    pub fn n_masks(&self) -> usize {
        self.accepts.len()
    }

    /// Words of a mask.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Whether there is a mask for what comes next. Behind a draft there may be none.
    pub fn has_mask(&self) -> bool {
        self.at < self.n_masks()
    }

    /// Whether the text may end here.
    pub fn accepts(&self) -> bool {
        self.accepts.get(self.at).is_some_and(|accepts| *accepts)
    }

    /// Advances by a token that the mask allowed. Returns whether nothing can follow it.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        self.at += 1;
        // A scout that sees it otherwise is of no use, and none is needed.
        self.scout
            .take_if(|scout| !matches!(scout.take(token), Ok(true)));
        match self.cursor.take(token)? {
            true => self.cursor.is_complete(),
            false => Err(Error::Grammar(format!(
                "its mask allowed token {token}, which it does not take"
            ))),
        }
    }

    /// Asks for `work` on these drafts; of forced ones, for as many.
    pub fn want(&mut self, work: Work, drafts: &[Token]) {
        self.work = work;
        self.drafts.clear();
        self.drafts.extend_from_slice(drafts);
    }

    /// The drafts that were asked for last, or what the grammar allows of those that were asked
    /// about.
    pub fn drafts(&self) -> &[Token] {
        &self.drafts
    }

    /// The same place once more, for a sequence that goes on apart from here, without drafts.
    pub fn fork(&self) -> Result<Box<Self>> {
        let what = "a grammar's masks";
        Ok(Box::new(Self {
            cursor: self.cursor.fork()?,
            scout: None,
            work: Work::Masks,
            drafts: Vec::new(),
            masks: reserve::copy(what, &self.masks[..self.words])?,
            accepts: reserve::copy(what, &self.accepts)?,
            stop_tokens: reserve::copy("the stop tokens of a sequence", &self.stop_tokens)?,
            error: None,
            ..*self
        }))
    }

    /// Whether nothing can follow this token, which the mask allows.
    pub fn ends_with(&self, token: Token) -> Result<bool> {
        self.fork()?.take(token)
    }

    /// Why the last mask was not computed, if it was not.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// The milliseconds that the last masks took.
    pub fn ms(&self) -> f64 {
        self.ms
    }

    /// Does what it was asked for; runs on the thread.
    pub fn compute(&mut self) {
        match self.work {
            Work::Masks => self.compute_masks(),
            Work::Forced | Work::Allowed => self.scout(),
        }
    }

    /// A draft is a hint: where the scout fails, there is none from then on.
    fn scout(&mut self) {
        let (work, drafts, scout) = (self.work, &mut self.drafts, &mut self.scout);
        let found = catch_unwind(AssertUnwindSafe(|| match scout {
            Some(scout) if work == Work::Forced => scout.forced(drafts),
            Some(scout) => scout.allowed(drafts),
            None => Ok(0),
        }));
        match found {
            Ok(Ok(n)) => self.drafts.truncate(n),
            _ => {
                self.drafts.clear();
                self.scout = None;
            }
        }
    }

    fn compute_masks(&mut self) {
        let start = Instant::now();
        (self.at, self.error) = (0, None);
        self.accepts.clear();
        let computed = catch_unwind(AssertUnwindSafe(|| self.try_compute_masks()));
        let error = match computed {
            Ok(done) => done.err(),
            Err(panic) => {
                let why = panic_text(&*panic);
                Some(Error::Grammar(format!("the parser failed: {why}")))
            }
        };
        // What fails behind a draft is met again, if it is met, where it is the next row's.
        self.error = error.filter(|_| self.accepts.is_empty());
        self.ms = start.elapsed().as_secs_f64() * 1e3;
    }

    fn try_compute_masks(&mut self) -> Result<()> {
        let Self {
            cursor,
            drafts,
            masks,
            words,
            accepts,
            stop_tokens,
            begins_text,
            ..
        } = self;
        let mut masks = masks.chunks_exact_mut((*words).max(1));
        let mut compute = |cursor: &mut Cursor| -> Result<()> {
            let mask = masks.next().unwrap_or_default();
            match *begins_text {
                true => cursor.mask_to_generate(mask)?,
                false => cursor.mask(mask)?,
            }
            let accepts_here = cursor.accepts()?;
            // A stop token is no part of the text, and the text is of the language where it ends.
            for token in &*stop_tokens {
                let (word, bit) = (*token as usize / 32, 1 << (*token % 32));
                match accepts_here {
                    true => mask[word] |= bit,
                    false => mask[word] &= !bit,
                }
            }
            accepts.push(accepts_here);
            Ok(())
        };
        compute(cursor)?;
        if drafts.is_empty() {
            return Ok(());
        }
        let mut ahead = cursor.fork()?;
        for draft in &*drafts {
            if !ahead.take(*draft)? || ahead.is_complete()? {
                break;
            }
            compute(&mut ahead)?;
        }
        Ok(())
    }
}
