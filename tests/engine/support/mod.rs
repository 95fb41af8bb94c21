//! What the engine's tests share: a toy tokenizer, a model that checks what it is given, and a
//! plain simulation to compare with.

mod beams;
mod guess;
mod language;
mod model;
mod simulate;
mod toy;

pub use beams::*;
pub use guess::*;
pub use language::*;
pub use model::*;
pub use simulate::*;
pub use toy::*;

use llamabi::backend::{Limits, Run};
use llamabi::engine::request::RequestLimits;
use llamabi::engine::{
    Alternative, BeamEvent, Drafted, Engine, EngineOptions, Event, FinishReason, GenerateOptions,
    Next, Prompt, Question, Request, RequestStats, Stream,
};
use llamabi::log::Log;
use llamabi::{Result, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For what hangs, and more than a busy machine needs for anything else.
pub const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct Setup {
    pub page_size: usize,
    pub n_pages: usize,
    pub max_rows: usize,
    pub max_wanted: usize,
    pub max_seq_len: usize,
    pub max_batch_size: usize,
    pub prefill_chunk: Option<usize>,
    pub max_step_ms: u32,
    pub max_waiting: u32,
    pub max_stall_ms: u32,
    pub max_unread_ms: u32,
    pub stall_memory_bytes: u64,
    pub draft_share: f64,
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
            max_step_ms: 100,
            max_waiting: 1024,
            max_stall_ms: 1000,
            max_unread_ms: 60_000,
            stall_memory_bytes: 1 << 20,
            draft_share: 0.0,
            seed: 1,
        }
    }
}

impl Setup {
    pub fn limits(&self) -> Limits {
        Limits {
            page_size: self.page_size,
            n_pages: self.n_pages,
            max_positions: self.max_seq_len,
            max_rows: self.max_rows,
            max_wanted: self.max_wanted,
            vocab_size: VOCAB,
        }
    }

    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            max_batch_size: self.max_batch_size,
            seed: self.seed,
            prefill_chunk: self.prefill_chunk,
            max_step_ms: self.max_step_ms,
            max_waiting: self.max_waiting,
            max_stall_ms: self.max_stall_ms,
            max_unread_ms: self.max_unread_ms,
            stall_memory_bytes: self.stall_memory_bytes,
            draft_share: self.draft_share,
            eos_ids: vec![EOS],
        }
    }

    pub fn start(
        &self,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
    ) -> (Host, Arc<Probe>) {
        self.start_model(Model::new(self.limits(), think))
    }

    /// With a model that, if `ahead`, takes a step before the one before it is collected.
    pub fn start_ahead(
        &self,
        ahead: bool,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
    ) -> (Host, Arc<Probe>) {
        self.start_model(self.model(ahead, think))
    }

    fn start_model(&self, model: Model) -> (Host, Arc<Probe>) {
        let probe = model.probe.clone();
        let mut host = self.start_run(Box::new(model));
        host.probe = Some(probe.clone());
        (host, probe)
    }

    /// The same with a draft model, whose probe is the second one.
    pub fn start_drafting(
        &self,
        ahead: bool,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
        draft: impl FnMut(&History, &mut [f32]) + Send + 'static,
    ) -> (Host, Arc<Probe>, Arc<Probe>) {
        let model = self.model(ahead, think);
        self.start_models(model, self.model(ahead, draft).drafting())
    }

    fn model(
        &self,
        ahead: bool,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
    ) -> Model {
        match ahead {
            true => Model::ahead(self.limits(), think),
            false => Model::new(self.limits(), think),
        }
    }

    fn start_models(&self, model: Model, draft: Model) -> (Host, Arc<Probe>, Arc<Probe>) {
        let probes = (model.probe.clone(), draft.probe.clone());
        let (run, draft) = (Box::new(model), Box::new(draft));
        let log = Arc::new(Log::new(None));
        let engine =
            Engine::with_draft(run, Some(draft), Arc::new(Toy), self.options(), log).unwrap();
        let limits = engine.request_limits();
        let mut host = Host::new(engine, limits);
        host.probe = Some(probes.0.clone());
        (host, probes.0, probes.1)
    }

    /// The same with so many Medusa heads, which think what `heads` thinks.
    pub fn start_with_heads(
        &self,
        ahead: bool,
        think: impl FnMut(&History, &mut [f32]) + Send + 'static,
        (n, heads): (usize, Box<Think>),
    ) -> (Host, Arc<Probe>) {
        let model = self.model(ahead, think).with_heads(n, heads);
        let probe = model.probe.clone();
        let mut host = self.start_run(Box::new(model));
        host.probe = Some(probe.clone());
        (host, probe)
    }

    /// A model that is a hash, perhaps with a draft model that agrees with it so often of 16 times,
    /// and then every second time with Medusa heads, too, which agree as often.
    pub fn start_perhaps_drafting(&self, ahead: bool, agrees: Option<usize>) -> Host {
        let Some(agrees) = agrees else {
            return self.start_ahead(ahead, hash_think).0;
        };
        let model = self.model(ahead, hash_think);
        let model = match agrees % 2 {
            0 => model,
            _ => model.with_heads(1 + agrees % 4, Box::new(half_hash_think(agrees))),
        };
        let draft = self.model(ahead, half_hash_think(agrees)).drafting();
        self.start_models(model, draft).0
    }

    pub fn start_run(&self, run: Box<dyn Run>) -> Host {
        let engine =
            Engine::new(run, Arc::new(Toy), self.options(), Arc::new(Log::new(None))).unwrap();
        let limits = engine.request_limits();
        Host::new(engine, limits)
    }
}

pub struct Host {
    pub engine: Engine,
    pub limits: RequestLimits,
    probe: Option<Arc<Probe>>,
}

/// A test that fails while it holds the model must end, not wait for the engine's thread.
impl Drop for Host {
    fn drop(&mut self) {
        if let Some(probe) = &self.probe {
            probe.release();
        }
    }
}

impl Host {
    pub fn new(engine: Engine, limits: RequestLimits) -> Self {
        Self {
            engine,
            limits,
            probe: None,
        }
    }

    pub fn submit(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Result<Stream> {
        self.engine
            .submit(Request::new(prompts, options, &self.limits)?)
    }

    pub fn run(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Vec<Output> {
        let n = prompts.len() * options.num_return_sequences;
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

/// Greedy, with at most so many tokens.
pub fn length(n: usize) -> GenerateOptions {
    GenerateOptions {
        max_gen_len: Some(n),
        ..greedy()
    }
}

/// A text that goes on past EOS, so that the queue of a reader who is behind fills.
pub fn long(n: usize) -> GenerateOptions {
    GenerateOptions {
        max_gen_len: Some(n),
        ignore_eos: true,
        temperature: 1.0,
        seed: 5,
        ..GenerateOptions::default()
    }
}

/// What a call on one prompt gives on a handle that has nothing else to do.
pub fn alone(max_seq_len: usize, tokens: &[Token], options: &GenerateOptions) -> Vec<Output> {
    let setup = Setup {
        max_seq_len,
        n_pages: 4 * max_seq_len,
        ..Setup::default()
    };
    let (host, _) = setup.start(hash_think);
    host.run(vec![Prompt::Tokens(tokens.to_vec())], options.clone())
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub tokens: Vec<Token>,
    pub logprobs: Vec<f32>,
    pub text: String,
    pub top: Vec<Vec<Alternative>>,
    pub finish: Option<FinishReason>,
    pub sum_logprob: f32,
    pub score: f32,
    /// What became of the guess at each token.
    pub drafts: Vec<Drafted>,
    /// Of the prompt's first sequence.
    pub beams: Vec<BeamEvent>,
    pub stats: RequestStats,
}

impl Output {
    pub fn reason(&self) -> FinishReason {
        self.finish.unwrap()
    }
}

/// Waits until `is` holds of the handle.
pub fn until(host: &Host, what: &str, is: impl Fn(&Host) -> bool) {
    let start = Instant::now();
    while !is(host) {
        let late = start.elapsed() > PATIENCE;
        assert!(!late, "{what}: {:?}", host.engine.timings());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Adds an event to the output of its sequence. Nothing may follow a sequence's end, whose figures
/// are those of its tokens.
pub fn add(outputs: &mut [Output], event: Event) {
    let out = &mut outputs[event.index() as usize];
    assert_eq!(out.finish, None, "{event:?} follows the end of a sequence");
    match event {
        Event::Token(e) => {
            out.tokens.push(e.token);
            out.logprobs.push(e.logprob);
            out.text.push_str(&e.text);
            out.top.push(e.top);
            out.drafts.push(e.draft);
        }
        Event::Finish(e) => {
            out.text.push_str(&e.text);
            (out.finish, out.stats) = (Some(e.reason), e.stats);
            (out.sum_logprob, out.score) = (e.sum_logprob, e.score);
            let count = |what| out.drafts.iter().filter(|one| **one == what).count() as u32;
            let (accepted, rejected) = (count(Drafted::Accepted), count(Drafted::Rejected));
            assert_eq!(accepted, e.stats.accepted_tokens, "{e}");
            assert!(accepted + rejected <= e.stats.drafted_tokens, "{e}");
        }
        Event::Beam(e) => out.beams.push(e),
    }
}

/// All events of a stream, per sequence, and whether it ended as cancelled. Fails the test where it
/// hangs, or where an event follows the end.
pub fn collect(stream: &Stream, n: usize) -> Result<(Vec<Output>, bool)> {
    collect_answering(stream, n, |question| panic!("nobody answers {question:?}"))
}

/// The same of a call whose caller answers questions.
pub fn collect_answering(
    stream: &Stream,
    n: usize,
    mut answer: impl FnMut(Question),
) -> Result<(Vec<Output>, bool)> {
    let mut outputs = vec![Output::default(); n];
    loop {
        match stream.next(Some(PATIENCE))? {
            Next::Event(event) => add(&mut outputs, event),
            Next::Timeout => panic!("nothing within {PATIENCE:?}"),
            Next::Question(question) => answer(question),
            end => {
                assert!(outputs.iter().all(|out| out.finish.is_some()));
                assert_eq!(stream.next(None).unwrap(), end, "the end is for ever");
                return Ok((outputs, end == Next::Cancelled));
            }
        }
    }
}
