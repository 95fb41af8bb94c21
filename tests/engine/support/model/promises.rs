//! What every step keeps to, whatever is asked for.

use super::super::toy::{IDS, VOCAB};
use super::Model;
use llamabi::Token;
use llamabi::backend::choice::Search;
use llamabi::backend::{Choices, Limits, RowKind, Step};
use std::collections::HashSet;

impl Model {
    /// Everything a step and its choices promise.
    pub(super) fn check(&self, step: &Step, choices: &Choices) {
        let Limits {
            page_size,
            n_pages,
            max_rows,
            max_wanted,
            ..
        } = self.limits;
        let rows = step.tokens.len();
        assert!(rows > 0 && rows <= max_rows, "{rows} rows of {max_rows}");
        assert!(step.wanted.len() <= max_wanted);
        if !self.drafts || !choices.rows.is_empty() {
            assert_eq!(choices.rows.len(), step.wanted.len());
        }
        assert_eq!(step.slots.len(), rows);
        if self.drafts {
            assert_only_tokens(choices);
        }
        for choice in &choices.rows {
            let edits = &choices.edits[choice.edits.clone()];
            assert!(edits.is_sorted_by(|a, b| a.token < b.token));
            assert!(
                edits
                    .iter()
                    .all(|edit| (0..IDS as Token).contains(&edit.token))
            );
        }
        assert!(
            step.wanted.is_sorted_by(|a, b| a < b)
                && step.wanted.iter().all(|w| (*w as usize) < rows)
        );
        assert!(step.tokens.iter().all(|t| (0..VOCAB as Token).contains(t)));
        if step.follows {
            assert!(self.ahead && self.answers.len() == 1, "one step ahead");
            assert_eq!(self.chosen.as_ref().map(Vec::len), Some(rows));
            assert_eq!(step.wanted.len(), rows, "every row is wanted");
            assert!(step.spans.iter().all(|span| span.kind == RowKind::Decode));
        } else {
            assert!(
                self.answers.is_empty(),
                "a step before the last one was collected"
            );
        }

        let (mut next_row, mut next_page) = (0, 0);
        let mut written = HashSet::new();
        for span in &step.spans {
            assert_eq!(
                span.rows.start, next_row,
                "spans partition the rows in order"
            );
            assert!(span.rows.end > span.rows.start);
            assert_eq!(span.pages.start, next_page);
            (next_row, next_page) = (span.rows.end, span.pages.end);
            let pages = &step.pages[span.pages.clone()];
            assert!(pages.iter().all(|page| (*page as usize) < n_pages));
            assert_eq!(
                pages.iter().collect::<HashSet<_>>().len(),
                pages.len(),
                "a page twice"
            );
            let last = span.position + span.rows.len() - 1;
            assert!(
                last / page_size < pages.len(),
                "the page table covers every position"
            );
            if span.kind == RowKind::Decode && !self.drafts {
                let rows = span.rows.clone();
                let wanted = rows.filter(|row| step.wanted.contains(&(*row as u32)));
                assert_eq!(
                    wanted.count(),
                    span.rows.len(),
                    "each row of decode is wanted"
                );
            }
            for (row, position) in span.rows.clone().zip(span.position..) {
                let own = pages[position / page_size] as usize * page_size + position % page_size;
                match step.slots[row] {
                    Step::NO_SLOT => {
                        let cached = self.cache[own];
                        assert_eq!(cached, Some((step.tokens[row], RowKind::Prefill)));
                        assert_eq!(span.kind, RowKind::Prefill);
                    }
                    slot => {
                        assert_eq!(slot as usize, own, "the slot is in the sequence's own page");
                        assert!(written.insert(slot), "a slot is written twice");
                    }
                }
            }
        }
        assert_eq!(next_row, rows);
        assert_eq!(next_page, step.pages.len());
        // A page that one sequence writes is in no other's table.
        for (i, span) in step.spans.iter().enumerate() {
            let slots = step.slots[span.rows.clone()]
                .iter()
                .filter(|s| **s != Step::NO_SLOT);
            let pages: HashSet<u32> = slots.map(|s| s / page_size as u32).collect();
            for (j, other) in step.spans.iter().enumerate() {
                let shared = step.pages[other.pages.clone()]
                    .iter()
                    .any(|p| pages.contains(p));
                assert!(i == j || !shared, "a written page is shared");
            }
        }
    }
}

/// Nobody is told of a guess, so nothing is computed for one but its token.
pub(super) fn assert_only_tokens(choices: &Choices) {
    for choice in &choices.rows {
        assert!(!choice.logprob && choice.top == 0 && !choice.to_host);
        assert!(choice.search == Search::Off);
    }
}
