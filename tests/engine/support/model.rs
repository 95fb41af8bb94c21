//! A model that is a function of the tokens it finds in its own paged cache, and that checks every
//! step it is given.

use super::PATIENCE;
use super::toy::{EOS, IDS, VOCAB};
use llamabi::backend::choice::{Scale, mass};
use llamabi::backend::{Answer, Choice, Choices, Limits, Pick, RowKind, Run, Step, Threads};
use llamabi::engine::sampler::Sampler;
use llamabi::{Error, Result, Token};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

mod promises;

use promises::assert_only_tokens;

/// What a row sees: its sequence's tokens up to itself, and with which arithmetic each was
/// computed.
pub type History = [(Token, RowKind)];
/// History to logits, `[VOCAB]`.
pub type Think = dyn FnMut(&History, &mut [f32]) + Send;

/// Reads every row's history back through its page table, as attention would.
pub struct Model {
    limits: Limits,
    cache: Vec<Option<(Token, RowKind)>>,
    think: Box<Think>,
    /// Whether it chooses tokens itself and takes a step before the one before it is collected.
    ahead: bool,
    /// Whether it is a draft model: it computes rows of decode for their keys and values alone, and
    /// gives logits without choices.
    drafts: bool,
    /// Medusa heads, and what they see of the last step's rows: histories by row.
    heads: Option<(usize, Box<Think>)>,
    seen: Vec<(u32, Vec<(Token, RowKind)>)>,
    /// What the next step may follow: the tokens that the last one chose, one for each row.
    chosen: Option<Vec<Option<Token>>>,
    /// A step whose tokens are chosen when its masks are there.
    unmasked: Option<(Step, Choices, Given)>,
    /// Not collected, oldest first.
    answers: VecDeque<Given>,
    given: Given,
    pub probe: Arc<Probe>,
}

/// Threads that could run in any order: the last task is the first to run.
struct Backwards;

impl Threads for Backwards {
    fn count(&self) -> usize {
        3
    }

    fn each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).rev().for_each(task);
    }
}

/// What a step gave.
#[derive(Default)]
struct Given {
    logits: Vec<f32>,
    picks: Vec<Pick>,
    top: Vec<(Token, f32)>,
    /// Of the wanted rows, the tokens that they have seen.
    histories: Vec<Vec<Token>>,
    /// The logits of the rows that a device leaves to the host: it goes on with no beam whose row
    /// is changed, chooses from no row that the host wants to see, and has not always room for
    /// the alternatives.
    left: Vec<f32>,
    /// All rows are such.
    for_host: bool,
}

/// How a test watches and holds a [`Model`] that an engine owns.
#[derive(Default)]
pub struct Probe {
    state: Mutex<ProbeState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProbeState {
    steps: Vec<Step>,
    order: String,
    /// Steps that may still end; `None`: any number.
    allowed: Option<usize>,
    fail: Option<Error>,
    copies: usize,
    /// What each step takes at least.
    takes: Duration,
}

impl Probe {
    /// From now on only as many steps end as are allowed.
    pub fn hold(&self) {
        self.state.lock().unwrap().allowed = Some(0);
    }

    pub fn allow(&self, steps: usize) {
        *self.state.lock().unwrap().allowed.as_mut().unwrap() += steps;
        self.changed.notify_all();
    }

    pub fn release(&self) {
        self.state.lock().unwrap().allowed = None;
        self.changed.notify_all();
    }

    /// Wait until `n` steps have begun since the start.
    pub fn wait_for(&self, n: usize) {
        let state = self.state.lock().unwrap();
        let time = PATIENCE;
        let (_state, result) = self
            .changed
            .wait_timeout_while(state, time, |s| s.steps.len() < n)
            .unwrap();
        assert!(!result.timed_out(), "step {n} has not begun");
    }

    /// `<` for each step that was submitted, `>` for each that was collected.
    pub fn order(&self) -> String {
        self.state.lock().unwrap().order.clone()
    }

    /// Pages that were copied.
    pub fn copies(&self) -> usize {
        self.state.lock().unwrap().copies
    }

    /// The steps so far, which are forgotten, with what they hold.
    pub fn take_steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.state.lock().unwrap().steps)
    }

    pub fn steps(&self) -> Vec<Step> {
        self.state.lock().unwrap().steps.clone()
    }

    /// Let the next step fail.
    pub fn fail(&self, error: Error) {
        self.state.lock().unwrap().fail = Some(error);
    }

    /// From now on each step takes so long, however many rows it has.
    pub fn slow_down(&self, takes: Duration) {
        self.state.lock().unwrap().takes = takes;
    }

    fn begin(&self, step: &Step) -> Result<()> {
        std::thread::sleep(self.state.lock().unwrap().takes);
        let mut state = self.state.lock().unwrap();
        state.steps.push(step.clone());
        state.order.push('<');
        self.changed.notify_all();
        let mut state = self
            .changed
            .wait_while(state, |s| s.allowed == Some(0))
            .unwrap();
        if let Some(allowed) = &mut state.allowed {
            *allowed -= 1;
        }
        state.fail.take().map_or(Ok(()), Err)
    }
}

impl Model {
    pub fn new(limits: Limits, think: impl FnMut(&History, &mut [f32]) + Send + 'static) -> Self {
        let cache = vec![None; limits.n_pages * limits.page_size];
        Self {
            limits,
            cache,
            think: Box::new(think),
            ahead: false,
            drafts: false,
            heads: None,
            seen: Vec::new(),
            chosen: None,
            unmasked: None,
            answers: VecDeque::new(),
            given: Given::default(),
            probe: Arc::default(),
        }
    }

    /// The same, with steps that follow others.
    pub fn ahead(limits: Limits, think: impl FnMut(&History, &mut [f32]) + Send + 'static) -> Self {
        Self {
            ahead: true,
            ..Self::new(limits, think)
        }
    }

    /// As a draft model.
    pub fn drafting(self) -> Self {
        Self {
            drafts: true,
            ..self
        }
    }

    /// With so many Medusa heads, which think this of the tokens that come: each takes what is
    /// likeliest for the tokens before its own.
    pub fn with_heads(self, n: usize, think: Box<Think>) -> Self {
        Self {
            heads: Some((n, think)),
            ..self
        }
    }

    /// What of a row a device gives, its list not made by the sampler.
    fn pick(
        &self,
        choices: &Choices,
        at: usize,
        logits: &[f32],
        top: &mut Vec<(Token, f32)>,
    ) -> Pick {
        let choice = &choices.rows[at];
        let clean = |logit: &f32| {
            if logit.is_finite() {
                *logit
            } else {
                f32::NEG_INFINITY
            }
        };
        let logits: Vec<f32> = logits.iter().map(clean).collect();
        let mut sampler = Sampler::new(choice.n_tokens);
        sampler.load(&logits);
        let token = sampler
            .choose(choice, choices)
            .unwrap()
            .map(|(token, _)| token);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = Scale::new(1.0);
        let mut order: Vec<Token> = (0..logits.len() as Token).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        let first = top.len();
        top.extend(
            order[..choice.top]
                .iter()
                .map(|&id| (id, logits[id as usize])),
        );
        Pick {
            token,
            possible: token.is_none() && sampler.has_possible(),
            logit: token.map_or(0.0, |token| logits[token as usize]),
            max,
            total: logits.iter().map(|&l| mass(scale.share(l, max))).sum(),
            top: first..top.len(),
            logits: None,
        }
    }

    /// Chooses the tokens of a step, if it is the model that does.
    fn choose(&mut self, step: &Step, mut choices: Choices, mut given: Given) {
        if self.ahead && !given.for_host {
            for (at, logits) in given.logits.chunks(VOCAB).enumerate() {
                if is_left_to_host(&choices.rows[at]) {
                    assert!(!step.follows);
                    let number = given.left.len() / VOCAB;
                    given.picks.push(Pick::left_to_host(number as u32));
                    given.left.extend(logits);
                    continue;
                }
                if step.follows && choices.rows[at].strategy.penalty != 1.0 {
                    // A device has them from the steps before.
                    assert!(choices.rows[at].history.is_empty());
                    let first = choices.history.len();
                    choices.history.extend(&given.histories[at]);
                    choices.rows[at].history = first..choices.history.len();
                }
                given
                    .picks
                    .push(self.pick(&choices, at, logits, &mut given.top));
            }
            let mut spans = step.spans.iter();
            let decodes = spans.all(|span| span.kind == RowKind::Decode && span.rows.len() == 1);
            self.chosen = (decodes && given.left.is_empty())
                .then(|| given.picks.iter().map(|pick| pick.token).collect());
        }
        self.answers.push_back(given);
    }

    fn slots(&self, page: u32) -> std::ops::Range<usize> {
        let first = page as usize * self.limits.page_size;
        first..first + self.limits.page_size
    }
}

/// Whether a device leaves the row to the host.
fn is_left_to_host(choice: &Choice) -> bool {
    choice.needs_logits() || choice.to_host || choice.mask.is_some() && choice.top > 2
}

impl Run for Model {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        self.check(step, choices);
        self.probe.begin(step)?;
        let mut step = step.clone();
        if let (true, Some(chosen)) = (step.follows, &self.chosen) {
            // A row without a token is skipped by a device; any other is as good.
            step.tokens = chosen.iter().map(|token| token.unwrap_or(0)).collect();
        }
        let size = self.limits.page_size;
        let mut given = Given::default();
        self.seen.clear();
        // All rows write before any row reads, as in a layer.
        for span in &step.spans {
            for row in span.rows.clone() {
                if step.slots[row] != Step::NO_SLOT {
                    self.cache[step.slots[row] as usize] = Some((step.tokens[row], span.kind));
                }
            }
        }
        for span in &step.spans {
            for (row, position) in span.rows.clone().zip(span.position..) {
                if !step.wanted.contains(&(row as u32)) {
                    continue;
                }
                let pages = &step.pages[span.pages.clone()];
                let history: Vec<_> = (0..=position)
                    .map(|p| self.cache[pages[p / size] as usize * size + p % size])
                    .map(|entry| entry.expect("a position that nobody has written"))
                    .collect();
                let at = given.logits.len();
                given.logits.resize(at + VOCAB, 0.0);
                (self.think)(&history, &mut given.logits[at..]);
                given
                    .histories
                    .push(history.iter().map(|entry| entry.0).collect());
                self.seen.push((row as u32, history));
            }
        }
        self.chosen = None;
        // Of a step without choices, too.
        given.for_host = choices.rows.iter().all(is_left_to_host);
        let masked = |choice: &Choice| choice.mask.is_some() && !is_left_to_host(choice);
        match self.ahead && choices.rows.iter().any(masked) {
            true => self.unmasked = Some((step, choices.clone(), given)),
            false => self.choose(&step, choices.clone(), given),
        }
        Ok(())
    }

    fn awaits_masks(&self) -> bool {
        self.unmasked.is_some()
    }

    fn give_masks(&mut self, masks: &[u32]) {
        let (step, mut choices, given) = self.unmasked.take().expect("a step that awaits masks");
        assert_eq!(masks.len(), choices.masks.len());
        choices.masks = masks.to_vec();
        self.choose(&step, choices, given);
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        assert!(self.unmasked.is_none(), "a step that awaits masks");
        self.probe.state.lock().unwrap().order.push('>');
        self.given = self.answers.pop_front().expect("a step was submitted");
        let Given {
            logits,
            picks,
            top,
            left,
            for_host,
            histories: _,
        } = &self.given;
        Ok(match self.ahead && !for_host {
            true => Answer::Picks {
                picks,
                top,
                logits: left,
            },
            false if self.n_threads() > 1 => Answer::Beside {
                logits,
                threads: &Backwards,
            },
            false => Answer::Logits(logits),
        })
    }

    fn medusa_heads(&self) -> usize {
        self.heads.as_ref().map_or(0, |(n, _)| *n)
    }

    fn guess(&mut self, head: usize, step: &Step, choices: &Choices) -> Result<Answer<'_>> {
        assert!(self.answers.is_empty(), "a step is under way");
        let (n, think) = self.heads.as_mut().expect("there are heads");
        assert!(head < *n && !step.follows && !step.tokens.is_empty());
        let rows = step.tokens.len();
        assert!(step.wanted.iter().copied().eq(0..rows as u32));
        assert_eq!(choices.rows.len(), rows);
        assert_only_tokens(choices);
        let mut given = Given::default();
        for row in &step.tokens {
            let seen = self.seen.iter().find(|(at, _)| *at == *row as u32);
            let mut history = seen.expect("a row of the last step").1.clone();
            let mut logits = vec![0.0; VOCAB];
            for _ in 0..=head {
                think(&history, &mut logits);
                let best = (0..IDS).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
                history.push((best.unwrap() as Token, RowKind::Decode));
            }
            think(&history, &mut logits);
            given.logits.extend(&logits);
        }
        if self.ahead {
            for (at, logits) in given.logits.chunks(VOCAB).enumerate() {
                given
                    .picks
                    .push(self.pick(choices, at, logits, &mut given.top));
            }
        }
        self.given = given;
        Ok(match self.ahead {
            true => Answer::Picks {
                picks: &self.given.picks,
                top: &self.given.top,
                logits: &[],
            },
            false => Answer::Logits(&self.given.logits),
        })
    }

    /// Every second set of limits has threads that choose tokens.
    fn n_threads(&self) -> usize {
        match self.ahead || self.limits.max_wanted % 2 == 1 {
            true => 1,
            false => Backwards.count(),
        }
    }

    fn can_follow(&self) -> bool {
        self.chosen.is_some()
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        assert!(self.answers.is_empty(), "a step is under way");
        for (from, to) in pairs {
            let (from, to) = (self.slots(*from), self.slots(*to));
            self.cache.copy_within(from, to.start);
        }
        self.probe.state.lock().unwrap().copies += pairs.len();
        Ok(())
    }

    /// A position is its token and the arithmetic; nothing is `i32::MIN`.
    fn page_bytes(&self) -> usize {
        5 * self.limits.page_size
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        assert_eq!(to.len(), pages.len() * self.page_bytes());
        let slots = pages.iter().flat_map(|page| self.slots(*page));
        for (slot, to) in slots.zip(to.chunks_mut(5)) {
            let (token, kind) = self.cache[slot].unwrap_or((Token::MIN, RowKind::Decode));
            to[..4].copy_from_slice(&token.to_ne_bytes());
            to[4] = u8::from(kind == RowKind::Prefill);
        }
        Ok(())
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        assert_eq!(from.len(), pages.len() * self.page_bytes());
        let slots: Vec<usize> = pages.iter().flat_map(|page| self.slots(*page)).collect();
        for (slot, from) in slots.into_iter().zip(from.chunks(5)) {
            let token = Token::from_ne_bytes(from[..4].try_into().unwrap());
            let kinds = [RowKind::Decode, RowKind::Prefill];
            self.cache[slot] = (token != Token::MIN).then(|| (token, kinds[from[4] as usize]));
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }
}

/// Logits that are a hash of the whole history, the kinds of its rows included.
pub fn hash_think(history: &History, logits: &mut [f32]) {
    let mut hash = 0xcbf29ce484222325u64;
    for (token, kind) in history {
        let decode = u64::from(*kind == RowKind::Decode);
        hash = (hash ^ (*token as u64 * 2 + decode)).wrapping_mul(0x100000001b3);
    }
    for (id, logit) in (0u64..).zip(logits) {
        // splitmix64
        let mut z = hash.wrapping_add(id.wrapping_mul(0x9e3779b97f4a7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        let unit = (z >> 40) as f32 / (1u64 << 24) as f32;
        // Text is likelier than stray bytes, and ends now and then.
        *logit = unit * 6.0
            + if id == EOS as u64 {
                2.0
            } else if id < 40 {
                1.5
            } else {
                0.0
            };
    }
}

/// A model that mostly thinks what [`hash_think`] thinks: the more, the higher `agrees` of 16 is.
pub fn half_hash_think(agrees: usize) -> impl FnMut(&History, &mut [f32]) + Send + use<> {
    move |history, logits| {
        hash_think(history, logits);
        let sum: usize = history.iter().map(|(token, _)| *token as usize).sum();
        if sum % 16 >= agrees {
            logits.reverse();
        }
    }
}

/// A model that answers every prompt with `answer` and then EOS, wherever the prompt ends.
pub fn say(answer: &[Token]) -> impl FnMut(&History, &mut [f32]) + Send + use<> {
    let answer = answer.to_vec();
    move |history, logits| {
        let generated = history
            .iter()
            .filter(|(_, kind)| *kind == RowKind::Decode)
            .count();
        logits.fill(0.0);
        logits[answer.get(generated).copied().unwrap_or(EOS) as usize] = 50.0;
    }
}

/// Counts up through the letters from the last token, for ever.
pub fn alphabet(history: &History, logits: &mut [f32]) {
    let last = history.last().unwrap().0;
    logits.fill(0.0);
    logits[if (3..28).contains(&last) { last + 1 } else { 3 } as usize] = 50.0;
}
