//! A draft model that answers from a script: a part of benches/decoding.rs.

use super::clock;
use llamabi::backend::{Answer, Choices, Limits, Pick, RowKind, Run, Step};
use llamabi::{Result, Token};
use std::sync::{Arc, Mutex};

/// What the draft model says, which the bench knows beforehand.
#[derive(Default)]
pub struct Script {
    pub text: Vec<Token>,
    pub prompt_len: usize,
    /// So many times of ten.
    pub right: u64,
    /// What it has computed: rows of prompts, other rows, and the seconds that both took.
    pub computed: [f64; 3],
}

/// A model that takes its time, and answers from a script; of one sequence.
pub struct Scripted {
    run: Box<dyn Run>,
    threads: usize,
    script: Arc<Mutex<Script>>,
    picks: Vec<Pick>,
    next: Vec<usize>,
}

impl Scripted {
    pub fn new(run: Box<dyn Run>, threads: usize, script: Arc<Mutex<Script>>) -> Self {
        Self {
            run,
            threads,
            script,
            picks: Vec::new(),
            next: Vec::new(),
        }
    }
}

impl Run for Scripted {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        self.next.clear();
        for span in &step.spans {
            let rows = span.rows.clone().zip(span.position + 1..);
            let wanted = rows.filter(|(row, _)| step.wanted.contains(&(*row as u32)));
            self.next.extend(wanted.map(|(_, next)| next));
        }
        let start = clock(self.threads);
        self.run.submit(step, choices)?;
        self.run.collect()?;
        let computed = &mut self.script.lock().unwrap().computed;
        for span in &step.spans {
            computed[usize::from(span.kind == RowKind::Decode)] += span.rows.len() as f64;
        }
        computed[2] += clock(self.threads) - start;
        Ok(())
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        let script = self.script.lock().unwrap();
        self.picks.clear();
        for next in &self.next {
            let token = script.text.get(next - script.prompt_len).copied();
            let is_right = (*next as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let is_right = is_right % 10 < script.right;
            self.picks.push(Pick {
                token: token.map(|token| {
                    if is_right {
                        token
                    } else {
                        3 + (token + 1) % 31_000
                    }
                }),
                ..Pick::default()
            });
        }
        Ok(Answer::Picks {
            picks: &self.picks,
            top: &[],
            logits: &[],
        })
    }
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.run.copy_pages(pairs)
    }
    fn page_bytes(&self) -> usize {
        self.run.page_bytes()
    }
    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.run.save_pages(pages, to)
    }
    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.run.load_pages(pages, from)
    }
    fn limits(&self) -> Limits {
        self.run.limits()
    }
}
