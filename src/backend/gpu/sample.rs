//! Chooses the tokens of a step on the device. `kernels/change.cu` and `kernels/sample.cu` run on
//! the logits, and tokens come back instead of logits.

use super::device::Device;
use super::memory::Memory;
use super::params::*;
use super::step::CHOICE;
use super::{launch, pad32};
use crate::backend::choice::{ALL, Scale, Strategy, mask_words};
use crate::backend::{Choice, Choices, Limits, Pick, Step};
use crate::{Error, Result, Token, reserve};
use std::sync::Arc;

/// The largest number of alternatives that the kernel finds. A row that asks for more gets logits
/// instead, and so does a row with a choice that only the host can make.
const MAX_TOP: usize = GPU_MAX_TOP as usize;

/// The largest number of edits that there is room for in a row: penalties of an output with so many
/// different tokens. A row with more gets logits instead.
const MAX_EDITS: usize = 4096;

/// Words of an edit.
const EDIT: usize = size_of::<SampleEdit>() / 4;

/// Words of a row's answer before its alternatives.
const OUT: usize = size_of::<SampleOut>() / 4;

/// What a row of a step asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// A token: whether it is scored, and how many alternatives it wants.
    Token { scored: bool, n_top: usize },
    /// Its logits, because only the host can choose.
    Logits,
}

/// The largest number of words in a row's answer.
pub(super) fn out_len() -> usize {
    OUT + 2 * MAX_TOP
}

/// Slices of a row of logits.
fn slices(vocab_size: usize) -> usize {
    vocab_size.div_ceil(GPU_SLICE as usize)
}

/// Bytes of the buffers on the device.
pub(super) fn bytes(limits: &Limits) -> usize {
    let slices = slices(limits.vocab_size).saturating_mul(GPU_SAMPLE_SLICE as usize);
    let changes = pad32(limits.vocab_size) + mask_words(limits.vocab_size) + EDIT * MAX_EDITS + 1;
    let row = 4 * (mask_words(limits.vocab_size) + out_len() + 1 + changes);
    limits.max_wanted.saturating_mul(slices.saturating_add(row))
}

/// Buffers for the choices of a step and their outcome.
pub(super) struct Chooser<D: Device> {
    /// `[max_wanted, mask_words(vocab_size)]`: a bit for each token id.
    histories: Memory<D>,
    /// `[max_wanted, slices]`: what the blocks of a row tell one another.
    slices: Memory<D>,
    /// `[max_wanted]`: how many of them have done so; zero between launches.
    counters: Memory<D>,
    /// `[max_wanted, out_len]`.
    pub out: Memory<D>,
    /// `[max_wanted, pad32(vocab_size)]`: for rows with edits or a mask, the logits after edits and
    /// mask.
    changed: Memory<D>,
    /// `[max_wanted]`: for rows with edits or a mask, whether a token was possible before these
    /// changes; zero between launches.
    possible: Memory<D>,
    /// `[max_wanted, MAX_EDITS]`, without gaps.
    edits: Memory<D>,
    /// `[max_wanted, mask_words(vocab_size)]`, rows of `mask_stride` words.
    masks: Memory<D>,
    host_edits: Vec<u32>,
    /// Words of a mask of the loaded step; 0 if no row with a mask is chosen here.
    mask_stride: usize,
    /// Whether its masks have not been loaded yet.
    awaits_masks: bool,
    host_histories: Vec<u32>,
    /// For each row of the loaded step, the number of its history. A step that follows must use the
    /// same.
    history_of: Vec<u32>,
    vocab_size: usize,
    /// Number of rows with a choice in the loaded step; 0 if all are left to the host.
    pub n_rows: usize,
    /// The same with padding.
    n_padded: usize,
    /// Whether a row needs more than its largest logit.
    pub draws: bool,
    /// Number of words from one row's answer to the next row's.
    pub out_stride: usize,
    /// For each row, what it asks for.
    pub asked: Vec<Asked>,
    /// The tokens that [`Chooser::take`] has read; below, their alternatives.
    pub picks: Vec<Pick>,
    pub top: Vec<(Token, f32)>,
}

impl<D: Device> Chooser<D> {
    pub fn new(device: &Arc<D>, limits: &Limits) -> Result<Self> {
        let (n, vocab_size, what) = (limits.max_wanted, limits.vocab_size, "the rows of a step");
        let memory = |n: usize, len: usize| Memory::new(device, what, n.saturating_mul(4 * len));
        let mut chooser = Chooser {
            histories: memory(n, mask_words(vocab_size))?,
            slices: memory(n, slices(vocab_size) * (GPU_SAMPLE_SLICE as usize / 4))?,
            counters: Memory::zeroed(device, what, n.saturating_mul(4))?,
            // Rows that want less leave a gap before the next one, which is copied, too.
            out: Memory::zeroed(device, what, n.saturating_mul(4 * out_len()))?,
            // Threads load four logits at once, also where a row of tokens ends.
            changed: Memory::zeroed(device, what, n.saturating_mul(4 * pad32(vocab_size)))?,
            possible: Memory::zeroed(device, what, n.saturating_mul(4))?,
            edits: memory(n, EDIT * MAX_EDITS)?,
            masks: memory(n, mask_words(vocab_size))?,
            host_edits: Vec::new(),
            mask_stride: 0,
            awaits_masks: false,
            host_histories: Vec::new(),
            history_of: Vec::new(),
            vocab_size,
            n_rows: 0,
            n_padded: 0,
            draws: false,
            out_stride: OUT,
            asked: Vec::new(),
            picks: Vec::new(),
            top: Vec::new(),
        };
        let histories = n.saturating_mul(mask_words(vocab_size));
        reserve::vec(what, &mut chooser.host_histories, histories)?;
        let edits = n.saturating_mul(EDIT * MAX_EDITS);
        reserve::vec(what, &mut chooser.host_edits, edits)?;
        reserve::vec(what, &mut chooser.history_of, n)?;
        reserve::vec(what, &mut chooser.asked, n)?;
        reserve::vec(what, &mut chooser.picks, n)?;
        reserve::vec(what, &mut chooser.top, n.saturating_mul(MAX_TOP))?;
        Ok(chooser)
    }

    /// Loads the choices of `step`'s wanted rows. `rows` is room for the words of a [`SampleRow`]
    /// for each of them, and for padding. The step must not have more choices than there is room
    /// for. `changes`: whether rows with edits or a mask are chosen here.
    pub fn load(
        &mut self,
        step: &Step,
        choices: &Choices,
        changes: bool,
        rows: &mut [u32],
    ) -> Result<()> {
        (self.n_rows, self.n_padded, self.out_stride) = (0, 0, OUT);
        (self.draws, self.awaits_masks, self.mask_stride) = (false, false, 0);
        self.host_edits.clear();
        let vocab_size = self.vocab_size;
        let n_top = |choice: &Choice| choice.top.min(vocab_size);
        let beyond = |choice: &Choice| {
            n_top(choice) > MAX_TOP
                || choice.is_for_host()
                || choice.is_edited() && !(changes && choice.edits.len() <= MAX_EDITS)
        };
        // A step without choices wants logits, too.
        if choices.rows.iter().all(beyond) || slices(self.vocab_size) > GPU_MOST_SLICES as usize {
            return Ok(());
        }
        let known = |token: Token| (token as usize) < self.vocab_size;
        if choices.rows.len() != step.wanted.len()
            || !choices.rows.iter().filter_map(|c| c.given).all(known)
        {
            return Err(Error::Internal(format!(
                "{} choices for {} wanted rows, or of tokens that are none",
                choices.rows.len(),
                step.wanted.len()
            )));
        }
        self.host_histories.clear();
        self.asked.clear();
        if !step.follows {
            self.history_of.clear();
        }
        let (history_len, mut n_histories) = (mask_words(self.vocab_size), 0);
        let n_padded = rows.len() / CHOICE;
        let mut to = rows.chunks_exact_mut(CHOICE);
        let mut put = |row: &SampleRow| {
            let to = to.next().into_iter().flatten();
            to.zip(row.words()).for_each(|(to, word)| *to = word);
        };
        for (at, choice) in choices.rows.iter().enumerate() {
            if beyond(choice) {
                if step.follows {
                    return Err(Error::Internal(format!(
                        "row {at} of a step that follows another is left to the host"
                    )));
                }
                // The kernel takes it for padding.
                put(&no_row());
                self.history_of.push(GPU_NO_HISTORY);
                self.asked.push(Asked::Logits);
                continue;
            }
            let history = match choice.strategy.penalty == 1.0 || choice.given.is_some() {
                true => GPU_NO_HISTORY,
                false => {
                    n_histories += 1;
                    n_histories - 1
                }
            };
            if step.follows {
                // The histories are on the device already, and the kernel has added the tokens that
                // it drew.
                let there = self.history_of.get(at).copied();
                if there != Some(history) {
                    return Err(Error::Internal(format!(
                        "row {at} of a step that follows another has history {history}, \
                         there it was {there:?}"
                    )));
                }
            } else {
                self.history_of.push(history);
            }
            if history != GPU_NO_HISTORY && !step.follows {
                let first = self.host_histories.len();
                self.host_histories.resize(first + history_len, 0);
                for &token in &choices.history[choice.history.clone()] {
                    let at = token as usize;
                    if let Some(word) = self.host_histories[first..].get_mut(at / 32) {
                        *word |= 1 << (at % 32);
                    }
                }
            }
            let mut row = SampleRow {
                n_tokens: choice.n_tokens.min(self.vocab_size) as u32,
                history,
                n_top: n_top(choice) as u32,
                ..row(choice)
            };
            if choice.given.is_none() {
                self.put_changes(choice, choices, &mut row)?;
            }
            put(&row);
            self.draws |= choice.scored() || choice.given.is_none() && row.halvings != 0.0;
            self.asked.push(Asked::Token {
                scored: choice.scored(),
                n_top: n_top(choice),
            });
            if row.n_top > 0 {
                // This is room for the largest number of alternatives rather than for `n_top`, so
                // that launches have few different forms.
                self.out_stride = out_len();
            }
        }
        (self.n_rows, self.n_padded) = (choices.rows.len(), n_padded);
        for _ in self.n_rows..n_padded {
            put(&no_row());
        }
        self.edits.write_numbers(0, &self.host_edits)?;
        self.histories.write_numbers(0, &self.host_histories)
    }

    /// Puts into `row` what changes its logits, and keeps the edits for the device.
    fn put_changes(
        &mut self,
        choice: &Choice,
        choices: &Choices,
        row: &mut SampleRow,
    ) -> Result<()> {
        row.first_edit = (self.host_edits.len() / EDIT) as u32;
        row.n_edits = choice.edits.len() as u32;
        for edit in &choices.edits[choice.edits.clone()] {
            let words = [edit.token as u32, edit.add.to_bits()];
            self.host_edits.extend_from_slice(&words);
        }
        let Some(mask) = choice.mask else {
            return Ok(());
        };
        row.mask = mask + 1;
        let words = mask_words(row.n_tokens as usize);
        if self.mask_stride != 0 && self.mask_stride != words {
            let there = self.mask_stride;
            return Err(Error::Internal(format!(
                "masks of {there} words and of {words}"
            )));
        }
        (self.mask_stride, self.awaits_masks) = (words, true);
        Ok(())
    }

    /// Whether the loaded step has rows that cannot be chosen from before the masks are there.
    pub fn awaits_masks(&self) -> bool {
        self.awaits_masks
    }

    /// Loads [`Choices::masks`] of the loaded step.
    pub fn load_masks(&mut self, masks: &[u32]) -> Result<()> {
        self.awaits_masks = false;
        self.masks.write_numbers(0, masks)
    }

    /// Whether edits or masks change rows of the loaded step.
    pub fn is_changed(&self) -> bool {
        self.n_rows > 0 && (self.mask_stride > 0 || !self.host_edits.is_empty())
    }

    /// Launches the choice from `logits`, which have `stride` floats from row to row. `rows` is
    /// where the rows lie that [`Chooser::load`] has made. The kernels also write the tokens to
    /// `next`.
    pub fn launch(
        &self,
        device: &D,
        rows: u64,
        logits: u64,
        stride: usize,
        next: u64,
    ) -> Result<()> {
        if self.is_changed() {
            let params = ChangeParams {
                changed: self.changed.at(),
                logits,
                rows,
                histories: self.histories.at(),
                edits: self.edits.at(),
                masks: self.masks.at(),
                possible: self.possible.at(),
                n_rows: self.n_padded as u32,
                vocab_size: self.vocab_size as u32,
                stride: stride as u32,
                history_stride: mask_words(self.vocab_size) as u32,
                mask_stride: self.mask_stride as u32,
                zero: 0,
            };
            launch::change(device, &params)?;
        }
        let one = Scale::new(1.0);
        let params = SampleParams {
            out: self.out.at(),
            logits,
            rows,
            histories: self.histories.at(),
            next,
            slices: self.slices.at(),
            counters: self.counters.at(),
            changed: self.changed.at(),
            possible: self.possible.at(),
            n_rows: self.n_padded as u32,
            vocab_size: self.vocab_size as u32,
            stride: stride as u32,
            history_stride: mask_words(self.vocab_size) as u32,
            out_stride: self.out_stride as u32,
            halvings: one.halvings,
            high: one.high,
            low: one.low,
            inverse: one.inverse,
            zero: 0,
        };
        launch::sample(device, &params, self.draws)
    }

    /// Whether the loaded step leaves a row to the host.
    pub fn is_mixed(&self) -> bool {
        self.n_rows > 0 && self.asked.contains(&Asked::Logits)
    }

    /// Decodes the answer: 32-bit words, given as floats of the same bits, `stride` words a row.
    /// `asked` says what each row asked for.
    pub fn take(&mut self, words: &[f32], stride: usize, asked: &[Asked]) {
        self.picks.clear();
        self.top.clear();
        let mut left = 0..;
        for (words, &asked) in words.chunks_exact(stride).zip(asked) {
            let Asked::Token { scored, n_top } = asked else {
                self.picks.extend(left.next().map(Pick::left_to_host));
                continue;
            };
            let token = words[0].to_bits() as Token;
            let first = self.top.len();
            let pairs = words[OUT..][..2 * n_top].chunks_exact(2);
            self.top
                .extend(pairs.map(|pair| (pair[0].to_bits() as Token, pair[1])));
            let number = |at: usize| match scored {
                true => words[at],
                false => 0.0,
            };
            self.picks.push(Pick {
                token: (token >= 0).then_some(token),
                possible: token == GPU_NONE_LEFT,
                logit: number(1),
                max: number(2),
                total: u64::from(number(4).to_bits()) << 32 | u64::from(number(3).to_bits()),
                top: first..self.top.len(),
                logits: None,
            });
        }
    }
}

/// A row that the kernel does not look at.
fn no_row() -> SampleRow {
    SampleRow {
        given: GPU_NO_ROW,
        ..SampleRow::default()
    }
}

/// The fields of a row that follow from the choice alone.
fn row(choice: &Choice) -> SampleRow {
    // Every field of a strategy is a field of a row, but for the filters that the host applies.
    let Strategy {
        penalty,
        scale,
        top_k,
        top_p,
        min_mass,
        filters: _,
    } = choice.strategy;
    let greedy = Scale {
        halvings: 0.0,
        high: 0.0,
        low: 0.0,
        inverse: 0.0,
    };
    let scale = scale.unwrap_or(greedy);
    SampleRow {
        given: choice.given.unwrap_or(GPU_DRAW),
        penalty,
        halvings: scale.halvings,
        high: scale.high,
        low: scale.low,
        inverse: scale.inverse,
        top_k,
        top_p,
        min_low: min_mass as u32,
        min_high: (min_mass >> 32) as u32,
        draw: choice.draw,
        scored: u32::from(choice.scored()),
        ..SampleRow::default()
    }
}

const _: () = assert!(ALL == u32::MAX, "what sample.cu compares top_p with");
