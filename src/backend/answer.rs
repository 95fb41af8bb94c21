//! What a step gives: logits, or the tokens that a device chose from them.

use super::Threads;
use crate::Token;
use std::ops::Range;

/// The token that a device chose, or the row that it leaves to the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pick {
    /// The token, drawn or given; `None` if no token is possible.
    pub token: Option<Token>,
    /// Whether a token is possible before edits and mask. Valid only if [`Pick::token`] is `None`.
    pub possible: bool,
    /// The token's raw logit; -inf if it is not finite. This field and the next ones are valid only
    /// if [`super::Choice::scored`].
    pub logit: f32,
    /// The largest raw logit.
    pub max: f32,
    /// Sum of the masses of all raw logits at temperature 1.
    pub total: u64,
    /// The alternatives, as a range in the list of [`Answer::Picks`].
    pub top: Range<usize>,
    /// `Some(i)`: nothing was chosen, and the row's logits are row `i` of the logits of
    /// [`Answer::Picks`]. Such rows are numbered in their order.
    pub logits: Option<u32>,
}

impl Pick {
    /// The pick of a row whose token the host chooses.
    pub fn left_to_host(logits: u32) -> Pick {
        Pick {
            logits: Some(logits),
            ..Pick::default()
        }
    }
}

/// The answer of a step.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// The logits of the wanted rows, `[wanted, vocab_size]`, row-major. A step gives them if
    /// [`super::Choices::rows`] is empty, or if the backend cannot choose tokens, or not in the way
    /// that is asked for.
    Logits(&'a [f32]),
    /// The same, and the threads that have computed them, which have nothing to do now.
    Beside {
        /// As in [`Answer::Logits`].
        logits: &'a [f32],
        /// They may choose tokens.
        threads: &'a dyn Threads,
    },
    /// One for each wanted row: its token, or its logits if only the host can choose.
    Picks {
        /// Chosen as [`super::Choices::rows`] says.
        picks: &'a [Pick],
        /// The alternatives of all rows: tokens and their raw logits, best first; ties lowest id
        /// first.
        top: &'a [(Token, f32)],
        /// The logits of the rows that are left to the host, `[rows, vocab_size]`, row-major.
        logits: &'a [f32],
    },
}

/// The answer for one wanted row.
#[derive(Clone, Copy, Debug)]
pub enum RowAnswer<'a> {
    /// Its logits, `[vocab_size]`.
    Logits(&'a [f32]),
    /// Its token, and the alternatives of all rows.
    Pick(&'a Pick, &'a [(Token, f32)]),
}

impl<'a> Answer<'a> {
    /// The answer for wanted row number `row`, of a model with so many tokens.
    pub fn row(self, row: usize, vocab_size: usize) -> RowAnswer<'a> {
        match self {
            Answer::Logits(logits) | Answer::Beside { logits, .. } => {
                RowAnswer::Logits(&logits[row * vocab_size..][..vocab_size])
            }
            Answer::Picks { picks, top, logits } => match picks[row].logits {
                Some(at) => RowAnswer::Logits(&logits[at as usize * vocab_size..][..vocab_size]),
                None => RowAnswer::Pick(&picks[row], top),
            },
        }
    }

    /// Whether it has what so many wanted rows need; otherwise what it has, and what is needed.
    pub fn complete(self, rows: usize, vocab_size: usize) -> Result<(), String> {
        let (got, what, want) = match self {
            Answer::Logits(logits) | Answer::Beside { logits, .. } => {
                (logits.len(), "logits", rows * vocab_size)
            }
            Answer::Picks { picks, .. } if picks.len() != rows => (picks.len(), "tokens", rows),
            Answer::Picks { picks, logits, .. } => {
                let left = picks.iter().filter_map(|pick| pick.logits);
                let n = left.clone().count();
                match left.zip(0..).all(|(number, at)| number == at) {
                    true => (logits.len(), "logits", n * vocab_size),
                    false => return Err("the rows left to the host are in disorder".into()),
                }
            }
        };
        match got == want {
            true => Ok(()),
            false => Err(format!("{got} {what} in place of {want}")),
        }
    }

    /// The logits of a step that has no choices.
    pub fn logits(self) -> &'a [f32] {
        match self {
            Answer::Logits(logits) | Answer::Beside { logits, .. } => logits,
            Answer::Picks { .. } => unreachable!("a step without choices gives logits"),
        }
    }
}
