//! Writes a step as a message. Reads it again, and checks that it is a step that a backend can
//! take.

use super::message::{Reader, Writer, too_many};
use crate::backend::{Adapter, Limits, RowKind, Span, Step};
use crate::{Error, Result, reserve};
use std::ops::Range;
use std::sync::Arc;

impl Writer {
    /// Writes what the ranks need to compute a step. How tokens are chosen is left out: that is
    /// rank 0's task.
    pub fn step(&mut self, step: &Step) -> &mut Self {
        self.list(step.tokens.iter().map(|&token| token as u32));
        self.list(step.slots.iter().copied());
        self.size(step.spans.len());
        for span in &step.spans {
            let kind = u32::from(span.kind == RowKind::Decode);
            self.u32(kind).size(span.position);
            self.size(span.rows.start).size(span.rows.end);
            self.size(span.pages.start).size(span.pages.end);
        }
        self.list(step.pages.iter().copied());
        self.list(step.wanted.iter().copied());
        let id = |adapter: &Option<Arc<Adapter>>| adapter.as_ref().map_or(0, |adapter| adapter.id);
        self.list(step.adapters.iter().map(id))
    }
}

impl Reader<'_> {
    /// Reads a step and checks that it is one for these limits. `known` gives this rank's adapters
    /// by their numbers.
    pub fn step(
        &mut self,
        limits: &Limits,
        known: &dyn Fn(u32) -> Option<Arc<Adapter>>,
        step: &mut Step,
    ) -> Result<()> {
        step.clear();
        let slots = limits.n_pages.saturating_mul(limits.page_size);
        let vocabulary = limits.vocab_size;
        let tokens = self.list("tokens", limits.max_rows, &|n| (n as usize) < vocabulary)?;
        let rows = tokens.len();
        reserve::vec("a step", &mut step.tokens, rows)?;
        step.tokens.extend(tokens.map(|n| n as crate::Token));
        let is_slot = |n: u32| n == Step::NO_SLOT || (n as usize) < slots;
        let of_rows = self.list("slots", limits.max_rows, &is_slot)?;
        if of_rows.len() != rows {
            let what = format!("a step of {rows} tokens and {} slots", of_rows.len());
            return Err(Error::Peer(what));
        }
        reserve::vec("a step", &mut step.slots, rows)?;
        step.slots.extend(of_rows);
        let n_spans = self.size()?;
        if n_spans > rows {
            return Err(too_many("spans", n_spans, rows));
        }
        reserve::vec("a step", &mut step.spans, n_spans)?;
        for _ in 0..n_spans {
            let kind = match self.u32()? {
                0 => RowKind::Prefill,
                _ => RowKind::Decode,
            };
            let position = self.size()?;
            let [rows, pages] = [self.range()?, self.range()?];
            step.spans.push(Span {
                rows,
                kind,
                position,
                pages,
            });
        }
        let most_pages = rows.saturating_mul(limits.max_positions.div_ceil(limits.page_size) + 1);
        let pages = self.list("pages", most_pages, &|n| (n as usize) < limits.n_pages)?;
        reserve::vec("a step", &mut step.pages, pages.len())?;
        step.pages.extend(pages);
        let wanted = self.list("wanted rows", limits.max_wanted, &|n| (n as usize) < rows)?;
        reserve::vec("a step", &mut step.wanted, wanted.len())?;
        step.wanted.extend(wanted);
        let is_known = |id: u32| id == 0 || known(id).is_some();
        let adapters = self.list("adapters", n_spans, &is_known)?;
        reserve::vec("a step", &mut step.adapters, adapters.len())?;
        step.adapters.extend(adapters.map(known));
        check_spans(step, limits)
    }

    fn range(&mut self) -> Result<Range<usize>> {
        Ok(self.size()?..self.size()?)
    }
}

/// Checks the promises of [`Step`] that a backend relies on.
fn check_spans(step: &Step, limits: &Limits) -> Result<()> {
    let wrong = |what: &str| Err(Error::Peer(format!("a step with {what}")));
    let mut row = 0;
    let mut generated = true;
    for span in &step.spans {
        let len = span.rows.len();
        if span.rows.start != row || len == 0 || span.rows.end > step.tokens.len() {
            return wrong("spans that do not partition its rows");
        }
        row = span.rows.end;
        let end = span.position.saturating_add(len);
        if end > limits.max_positions {
            return wrong("a position beyond max_seq_len");
        }
        if step.pages.get(span.pages.clone()).is_none()
            || span.pages.len().saturating_mul(limits.page_size) < end
        {
            return wrong("a sequence that lacks pages");
        }
        if span.kind == RowKind::Decode && !generated {
            return wrong("generated rows behind those of prompts");
        }
        generated = span.kind == RowKind::Decode;
    }
    if row != step.tokens.len() {
        return wrong("rows of no sequence");
    }
    match step.wanted.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => wrong("wanted rows that do not ascend"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::processes::message::{HEADER, Kind, Message};

    const LIMITS: Limits = Limits {
        page_size: 16,
        n_pages: 10,
        max_positions: 64,
        max_rows: 8,
        max_wanted: 4,
        vocab_size: 100,
    };

    /// The adapter with the number `id`. Only 3 and 70,000 exist.
    fn known(id: u32) -> Option<Arc<Adapter>> {
        let adapter = Adapter {
            id,
            matrices: Vec::new(),
            on_device: None,
            on_ranks: None,
        };
        [3, 70_000].contains(&id).then(|| Arc::new(adapter))
    }

    fn a_step() -> Step {
        Step {
            tokens: vec![1, 2, 99],
            slots: vec![159, Step::NO_SLOT, 17],
            spans: vec![
                Span {
                    rows: 0..1,
                    kind: RowKind::Decode,
                    position: 47,
                    pages: 0..3,
                },
                Span {
                    rows: 1..3,
                    kind: RowKind::Prefill,
                    position: 0,
                    pages: 3..4,
                },
            ],
            pages: vec![4, 5, 9, 1],
            wanted: vec![0, 2],
            adapters: vec![None, known(70_000)],
            ..Step::default()
        }
    }

    fn sent(step: &Step) -> Result<Step> {
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Step).step(step).end(7);
        assert!(bytes.len() <= Writer::most(&LIMITS));
        let message = Message::read(bytes, 7)?;
        assert_eq!(message.kind, Kind::Step);
        let mut read = Step::default();
        message.reader().step(&LIMITS, &known, &mut read)?;
        Ok(read)
    }

    #[test]
    fn a_step_arrives_as_it_was() {
        assert_eq!(sent(&a_step()).unwrap(), a_step());
        let without = Step {
            adapters: Vec::new(),
            ..a_step()
        };
        assert_eq!(sent(&without).unwrap(), without);
        let nothing = Step::default();
        assert_eq!(sent(&nothing).unwrap(), nothing);
    }

    #[test]
    fn a_step_that_would_crash_a_backend_is_refused() {
        type Break = fn(&mut Step);
        let breaks: [(&str, Break); 16] = [
            ("100 among its tokens", |s| s.tokens[0] = 100),
            ("4294967295 among its tokens", |s| s.tokens[0] = -1),
            ("160 among its slots", |s| s.slots[0] = 160),
            ("2 slots", |s| s.slots.truncate(2)),
            ("10 among its pages", |s| s.pages[0] = 10),
            ("3 among its wanted rows", |s| s.wanted[1] = 3),
            ("do not ascend", |s| s.wanted[0] = 2),
            ("4 among its adapters", |s| {
                s.adapters[0] = known(3).map(|a| {
                    Arc::new(Adapter {
                        id: 4,
                        ..Arc::into_inner(a).unwrap()
                    })
                });
            }),
            ("adapters 3, at most 2", |s| s.adapters.push(known(3))),
            ("partition", |s| s.spans[1].rows.start = 0),
            ("partition", |s| s.spans[1].rows.end = 4),
            ("rows of no sequence", |s| {
                s.spans.truncate(1);
                s.adapters.clear();
            }),
            ("beyond max_seq_len", |s| s.spans[0].position = usize::MAX),
            ("lacks pages", |s| s.spans[0].position = 48),
            ("lacks pages", |s| s.spans[0].pages = 3..9),
            ("behind those of prompts", |s| {
                s.spans[0].kind = RowKind::Prefill;
                s.spans[1].kind = RowKind::Decode;
            }),
        ];
        for (sentence, break_it) in breaks {
            let mut step = a_step();
            break_it(&mut step);
            let error = sent(&step).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}, not {sentence}");
        }
    }

    /// Every message in which one byte is changed, and every beginning of a message, is read or
    /// refused. Nothing panics, and nothing allocates what a message only claims.
    #[test]
    fn broken_messages_are_errors() {
        let mut writer = Writer::default();
        let bytes = writer.begin(Kind::Step).step(&a_step()).end(3).to_vec();
        let read = |bytes: &[u8]| -> Result<()> {
            let message = Message::read(bytes, 3)?;
            message
                .reader()
                .step(&LIMITS, &known, &mut Step::default())?;
            message.reader().error().map(drop)
        };
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let read = read(&changed);
                assert!(at >= HEADER || read.is_err(), "{at}");
            }
        }
        let error = Message::read(&bytes, 4).unwrap_err().to_string();
        assert_eq!(error, "message 3 came instead of message 4");
    }
}
