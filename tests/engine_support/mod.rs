//! What the engine's tests share: a toy tokenizer, a model that is a function of the tokens it finds
//! in its own paged cache and that checks every step, and a plain simulation to compare with.
#![allow(dead_code)] // each test binary uses its part

use llamabi::backend::{Limits, RowKind, Run, Step};
use llamabi::engine::request::RequestLimits;
use llamabi::engine::sampler::{Params, Sampler, uniform};
use llamabi::engine::{
    Alternative, Engine, EngineOptions, Event, FinishReason, GenerateOptions, Next, Prompt,
    Request, RequestStats, Stream,
};
use llamabi::log::Log;
use llamabi::tokenizer::{Piece, Tokenizer};
use llamabi::{Error, Result, Token};
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

// ---- a tokenizer ----

pub const BOS: Token = 1;
pub const EOS: Token = 2;
/// 3..=28 are the letters.
pub const WORDS: [(Token, &str); 6] = [
    (29, " "),
    (30, "the"),
    (31, " he"),
    (32, "é"),
    (33, "日本"),
    (34, "ab"),
];
/// 40..296 are the bytes.
pub const BYTE: Token = 40;
/// The tokenizer's ids; the model has four more.
pub const IDS: usize = 296;
pub const VOCAB: usize = 300;

pub struct Toy;

impl Tokenizer for Toy {
    fn vocab_size(&self) -> usize {
        IDS
    }
    fn bos_id(&self) -> Token {
        BOS
    }
    fn eos_id(&self) -> Token {
        EOS
    }
    fn pad_id(&self) -> Token {
        -1
    }
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        Ok(ids(text))
    }
    fn decode(&self, tokens: &[Token]) -> String {
        decode(tokens).0
    }
    fn piece(&self, token: Token) -> Piece<'_> {
        const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
        match token {
            3..=28 => Piece::Text(&LETTERS[token as usize - 3..][..1]),
            29..=34 => Piece::Text(WORDS[token as usize - 29].1),
            40..296 => Piece::Byte((token - BYTE) as u8),
            _ => Piece::Control,
        }
    }
    fn strips_leading_space(&self) -> bool {
        true
    }
}

/// Letters and spaces as themselves, all else as bytes.
pub fn ids(text: &str) -> Vec<Token> {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' => Token::from(byte - b'a') + 3,
            b' ' => 29,
            byte => BYTE + Token::from(byte),
        })
        .collect()
}

/// BOS and the text.
pub fn prompt(text: &str) -> Prompt {
    let mut tokens = vec![BOS];
    tokens.extend(ids(text));
    Prompt::Tokens(tokens)
}

/// The text of `tokens`, and how many bytes of it no further token can change. From scratch every
/// time, and so unlike the streaming detokeniser.
pub fn decode(tokens: &[Token]) -> (String, usize) {
    let (mut text, mut certain, mut run) = (String::new(), 0, Vec::new());
    let mut first = true;
    let flush = |run: &mut Vec<u8>, text: &mut String| {
        let mut certain = text.len();
        let mut rest = &run[..];
        while !rest.is_empty() {
            let good = (1..=4.min(rest.len())).find(|n| std::str::from_utf8(&rest[..*n]).is_ok());
            match good {
                Some(n) => text.push_str(std::str::from_utf8(&rest[..n]).unwrap()),
                None => text.push('\u{FFFD}'),
            }
            let incomplete = good.is_none()
                && std::str::from_utf8(rest)
                    .is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none());
            if incomplete {
                text.extend((1..rest.len()).map(|_| '\u{FFFD}'));
                run.clear();
                return certain;
            }
            rest = &rest[good.unwrap_or(1)..];
            certain = text.len();
        }
        run.clear();
        certain
    };
    for token in tokens {
        match Toy.piece(*token) {
            Piece::Byte(byte) => {
                run.push(byte);
                first = false;
            }
            Piece::Text(piece) => {
                flush(&mut run, &mut text);
                text.push_str(if first {
                    piece.strip_prefix(' ').unwrap_or(piece)
                } else {
                    piece
                });
                first = false;
            }
            Piece::Control => {}
        }
        certain = text.len();
    }
    if !run.is_empty() {
        certain = flush(&mut run, &mut text);
    }
    (text, certain)
}

// ---- a model ----

/// What a row sees: its sequence's tokens up to itself, and with which arithmetic each was computed.
pub type History = [(Token, RowKind)];
/// History to logits, `[VOCAB]`.
pub type Think = dyn FnMut(&History, &mut [f32]) + Send;

/// Reads every row's history back through its page table, as attention would.
pub struct Model {
    limits: Limits,
    cache: Vec<Option<(Token, RowKind)>>,
    think: Box<Think>,
    logits: Vec<f32>,
    pub probe: Arc<Probe>,
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
    /// Steps that may still end; `None`: any number.
    allowed: Option<usize>,
    fail: Option<Error>,
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
        let time = Duration::from_secs(30);
        let (_state, result) = self
            .changed
            .wait_timeout_while(state, time, |s| s.steps.len() < n)
            .unwrap();
        assert!(!result.timed_out(), "step {n} has not begun");
    }

    pub fn steps(&self) -> Vec<Step> {
        self.state.lock().unwrap().steps.clone()
    }

    /// Let the next step fail.
    pub fn fail(&self, error: Error) {
        self.state.lock().unwrap().fail = Some(error);
    }

    fn begin(&self, step: &Step) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.steps.push(step.clone());
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
            logits: Vec::new(),
            probe: Arc::default(),
        }
    }

    /// Everything a step promises.
    fn check(&self, step: &Step) {
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
        assert_eq!(step.slots.len(), rows);
        assert!(
            step.wanted.is_sorted_by(|a, b| a < b)
                && step.wanted.iter().all(|w| (*w as usize) < rows)
        );
        assert!(step.tokens.iter().all(|t| (0..VOCAB as Token).contains(t)));

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
            if span.kind == RowKind::Decode {
                assert_eq!(span.rows.len(), 1);
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

impl Run for Model {
    fn run(&mut self, step: &Step) -> Result<&[f32]> {
        self.check(step);
        self.probe.begin(step)?;
        let size = self.limits.page_size;
        self.logits.clear();
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
                let at = self.logits.len();
                self.logits.resize(at + VOCAB, 0.0);
                (self.think)(&history, &mut self.logits[at..]);
            }
        }
        Ok(&self.logits)
    }

    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<()> {
        unreachable!("nothing forks")
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

// ---- an engine ----

pub struct Setup {
    pub page_size: usize,
    pub n_pages: usize,
    pub max_rows: usize,
    pub max_wanted: usize,
    pub max_seq_len: usize,
    pub max_batch_size: usize,
    pub prefill_chunk: Option<usize>,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            page_size: 4,
            n_pages: 64,
            max_rows: 68,
            max_wanted: 8,
            max_seq_len: 64,
            max_batch_size: 4,
            prefill_chunk: None,
            seed: 1,
        }
    }
}

impl Setup {
    pub fn limits(&self) -> Limits {
        Limits {
            page_size: self.page_size,
            n_pages: self.n_pages,
            max_rows: self.max_rows,
            max_wanted: self.max_wanted,
            vocab_size: VOCAB,
        }
    }

    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            max_seq_len: self.max_seq_len,
            max_batch_size: self.max_batch_size,
            seed: self.seed,
            prefill_chunk: self.prefill_chunk,
            eos_ids: vec![EOS],
        }
    }

    pub fn start(
        &self,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
    ) -> (Host, Arc<Probe>) {
        let model = Model::new(self.limits(), think);
        let probe = model.probe.clone();
        (self.start_run(Box::new(model)), probe)
    }

    pub fn start_run(&self, run: Box<dyn Run>) -> Host {
        let engine =
            Engine::new(run, Arc::new(Toy), self.options(), Arc::new(Log::new(None))).unwrap();
        let limits = RequestLimits {
            max_seq_len: self.max_seq_len,
            max_batch_size: self.max_batch_size,
            vocab_size: VOCAB,
        };
        Host { engine, limits }
    }
}

pub struct Host {
    pub engine: Engine,
    pub limits: RequestLimits,
}

impl Host {
    pub fn submit(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Result<Stream> {
        self.engine
            .submit(Request::new(prompts, options, &self.limits)?)
    }

    pub fn run(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Vec<Output> {
        let n = prompts.len();
        collect(&self.submit(prompts, options).unwrap(), n)
            .unwrap()
            .0
    }

    pub fn one(&self, prompt: Prompt, options: GenerateOptions) -> Output {
        self.run(vec![prompt], options).remove(0)
    }

    /// Nothing runs, waits, or holds a page.
    pub fn assert_empty(&self) {
        let timings = self.engine.timings();
        assert_eq!(
            (timings.running, timings.waiting, timings.pages_used),
            (0, 0, 0)
        );
    }
}

pub fn greedy() -> GenerateOptions {
    GenerateOptions {
        temperature: 0.0,
        ..GenerateOptions::default()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub tokens: Vec<Token>,
    pub logprobs: Vec<f32>,
    pub text: String,
    pub top: Vec<Vec<Alternative>>,
    pub finish: Option<FinishReason>,
    pub stats: RequestStats,
}

impl Output {
    pub fn reason(&self) -> FinishReason {
        self.finish.unwrap()
    }
}

/// All events of a stream, per sequence, and whether it ended as cancelled. Fails the test where it
/// hangs, or where an event follows the end.
pub fn collect(stream: &Stream, n: usize) -> Result<(Vec<Output>, bool)> {
    let mut outputs = vec![Output::default(); n];
    loop {
        match stream.next(Some(Duration::from_secs(30)))? {
            Next::Event(Event::Token(e)) => {
                let out = &mut outputs[e.index as usize];
                assert_eq!(out.finish, None, "nothing follows the end of a sequence");
                out.tokens.push(e.token);
                out.logprobs.push(e.logprob);
                out.text.push_str(&e.text);
                out.top.push(e.top);
            }
            Next::Event(Event::Finish(e)) => {
                let out = &mut outputs[e.index as usize];
                assert_eq!(out.finish, None, "a sequence ends once");
                out.text.push_str(&e.text);
                (out.finish, out.stats) = (Some(e.reason), e.stats);
            }
            Next::Timeout => panic!("nothing within 30 s"),
            end => {
                assert!(outputs.iter().all(|out| out.finish.is_some()));
                assert_eq!(stream.next(None).unwrap(), end, "the end is for ever");
                return Ok((outputs, end == Next::Cancelled));
            }
        }
    }
}

// ---- what should come out ----

/// One sequence alone, one whole prompt at a time, without pages, batches or streams.
pub fn simulate(
    think: &mut Think,
    prompt: &[Token],
    index: u32,
    options: &GenerateOptions,
    max_seq_len: usize,
) -> Output {
    let most = options
        .max_gen_len
        .unwrap_or(usize::MAX)
        .min(max_seq_len - prompt.len());
    let mut sampler = Sampler::new(IDS);
    let mut row = vec![0.0; VOCAB];
    let mut tokens = prompt.to_vec();
    let mut out = Output::default();
    let history = |tokens: &[Token]| -> Vec<(Token, RowKind)> {
        let kind = |at| {
            if at < prompt.len() {
                RowKind::Prefill
            } else {
                RowKind::Decode
            }
        };
        tokens
            .iter()
            .enumerate()
            .map(|(at, token)| (*token, kind(at)))
            .collect()
    };
    let record = |sampler: &mut Sampler, token: Option<Token>, out: &mut Output| {
        let Some(token) = token else {
            out.logprobs.push(0.0);
            out.top.push(Vec::new());
            return;
        };
        let softmax = sampler.log_softmax().unwrap();
        let logprob = sampler.logprob(&softmax, token);
        out.logprobs
            .push(if options.logprobs { logprob } else { 0.0 });
        out.top
            .push(sampler.alternatives(&softmax, options.top_logprobs));
    };
    if options.echo {
        record(&mut sampler, None, &mut out);
        for at in 1..prompt.len() {
            think(&history(&prompt[..at]), &mut row);
            sampler.load(&row);
            if options.logprobs || options.top_logprobs > 0 {
                record(&mut sampler, Some(prompt[at]), &mut out);
            } else {
                record(&mut sampler, None, &mut out);
            }
        }
    }
    // Text: of what is reported; stop strings count from where the generated part begins.
    let shown = |tokens: &[Token]| -> Vec<Token> {
        tokens[if options.echo { 0 } else { prompt.len() }..].to_vec()
    };
    let begin = decode(&shown(prompt)).1;
    let find = |text: &str| options.stop.iter().filter_map(|s| text.find(&s[..])).min();
    let mut cut = None;
    let mut reason = FinishReason::Length;
    while tokens.len() - prompt.len() < most {
        think(&history(&tokens), &mut row);
        sampler.load(&row);
        let draw = uniform(options.seed, u64::from(index), tokens.len() as u64);
        let token = sampler
            .sample(&Params::from(options), &tokens, draw)
            .unwrap();
        if token == EOS && !options.ignore_eos {
            reason = FinishReason::Stop;
            break;
        }
        record(&mut sampler, Some(token), &mut out);
        tokens.push(token);
        let (text, certain) = decode(&shown(&tokens));
        cut = find(&text[begin..certain]).map(|at| begin + at);
        if cut.is_some() {
            break;
        }
    }
    let text = decode(&shown(&tokens)).0;
    cut = cut.or_else(|| find(&text[begin..]).map(|at| begin + at));
    if cut.is_some() {
        reason = FinishReason::StopString;
    }
    out.text = text[..cut.unwrap_or(text.len())].into();
    out.tokens = shown(&tokens);
    out.finish = Some(reason);
    out
}

/// `got` is what the simulation says, figures aside.
pub fn assert_same(got: &Output, want: &Output) {
    assert_eq!(got.tokens, want.tokens);
    assert_eq!(got.logprobs, want.logprobs);
    assert_eq!(got.top, want.top);
    assert_eq!(got.text, want.text);
    assert_eq!(got.finish, want.finish);
}
