//! The handle: a checkpoint, its tokenizer and its engine, put together.
//!
//! | file | what it knows |
//! |---|---|
//! | `options` | the options that a handle is built with, and what it reports of itself |
//! | `adapters` | the adapters that requests may choose |
//! | `build` | from a checkpoint to a handle: which device, whether it fits, the loading |
//! | `load` | the loading of a model, and of a draft model, onto one device |
//! | `setting` | the settings that a backend is made for, and the memory that it takes with them |
//! | `draft` | the checkpoint of a draft model |
//! | `ranks` | the loading of several ranks of this process |
//! | `kinds` | the devices that these ranks have: NUMA nodes, GPUs |
//! | `processes` | the loading of ranks in separate processes |
//! | `tokens` | the tokenizer that fits a model, and what ends its sequences |
//! | `chat` | which chat template a checkpoint has |
//! | `plan` | the memory a handle takes, counted beforehand |
//! | [`inspect`] | what a checkpoint is and needs, without loading its weights |
//! | [`quantise`] | a checkpoint of floats, written anew with quantised weights |
//! | `completion` | the outcome of a call, collected from its events |
//! | `compress`, `shorten` | prompt compression: its calls, and which tokens stay |

mod adapters;
mod build;
mod chat;
mod completion;
mod compress;
mod draft;
pub mod inspect;
mod kinds;
mod load;
mod options;
mod plan;
mod processes;
pub mod quantise;
mod ranks;
mod setting;
mod shorten;
mod tokens;

pub use completion::{Completion, Sequence};
pub use compress::{CompressOptions, Segment};
pub use options::{BuildOptions, Device, Info, RankInfo};
pub use shorten::SegmentKind;

use adapters::Adapters;

use crate::chat::{Chat, ChatRequest, Encoding, Turn, UNSAFE_ERROR};
use crate::engine::request::RequestLimits;
use crate::engine::{
    Decider, Deciders, Engine, Event, GenerateOptions, Prompt, Request, Stream, Timings,
};
use crate::grammar::{Grammar, Grammars, Source};
use crate::ranks::figures::Figures;
use crate::tokenizer::{Bound, Encoded, Tokenizer};
use crate::{Cancel, Error, Result, reserve};
use std::sync::Arc;

/// A loaded model. Every method may be called from any thread; concurrent calls share batches.
/// Dropping it cancels what runs.
pub struct Llama {
    engine: Engine,
    tokenizer: Arc<dyn Tokenizer>,
    chat: Chat,
    adapters: Adapters,
    info: Info,
    grammars: Grammars,
    figures: Arc<Figures>,
}

impl Llama {
    /// What was loaded.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.tokenizer
    }

    /// Compile a grammar for this handle. The first one takes longer than others, up to a second
    /// for a large vocabulary. Fails as [`Grammars::compile`].
    pub fn grammar(&self, source: Source<'_>) -> Result<Grammar> {
        self.grammars.compile(&*self.tokenizer, source)
    }

    /// Totals of the handle.
    pub fn timings(&self) -> Timings {
        self.engine.timings()
    }

    /// How long the ranks' exchanges took, and how long ranks have been silent.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Whether requests can still be run. Fails with [`Error::Poisoned`] and the reason.
    pub fn health(&self) -> Result<()> {
        self.engine.health()
    }

    /// What requests are checked against.
    pub fn request_limits(&self) -> RequestLimits {
        self.engine.request_limits()
    }

    /// Start a call and pull its events.
    pub fn stream(&self, prompts: Vec<Prompt>, options: GenerateOptions) -> Result<Stream> {
        if let Some(grammar) = &options.grammar
            && !self.grammars.made(grammar)
        {
            let expected = "one that was made for this handle";
            return Err(Error::invalid("grammar", expected, "another handle's"));
        }
        let adapter = self.adapters.get(options.adapter)?;
        let limits = self.request_limits();
        let request = Request::with_adapter(prompts, options, adapter, &limits)?;
        self.engine.submit(request)
    }

    /// Run a call to its end on the calling thread. `on_event` sees every event as it comes and
    /// stops the whole call by returning `false`.
    pub fn generate(
        &self,
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Completion> {
        self.generate_deciding(prompts, options, Deciders::default(), on_event)
    }

    /// The same, with functions that decide. Whether one of them gets logits sets
    /// [`GenerateOptions::ask_logits`].
    pub fn generate_deciding(
        &self,
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        deciders: Deciders<'_>,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Completion> {
        let options = GenerateOptions {
            ask_logits: deciders.on_logits.is_some(),
            ..options
        };
        let (logprobs, top) = (options.logprobs, options.top_logprobs > 0);
        let n = prompts.len().saturating_mul(options.num_return_sequences);
        let decider = Decider::new(&prompts, &options, deciders.on_stop.is_some())?;
        let stream = self.stream(prompts, options)?;
        completion::collect(&stream, n, logprobs, top, decider, deciders, on_event)
    }

    /// Prompts for [`Llama::generate`] from texts: BOS, if the tokenizer begins texts with it, and
    /// the text's tokens.
    ///
    /// [`Error::TextTooLong`] as soon as that is certain; [`Error::Cancelled`].
    pub fn text_prompts(&self, texts: &[&str], cancel: Option<&Cancel>) -> Result<Vec<Prompt>> {
        let encode = |(index, text): (usize, &&str)| {
            let mut tokens = reserve::room("the tokens of a text", 1)?;
            if self.tokenizer.adds_bos() {
                tokens.push(self.tokenizer.bos_id());
            }
            match self
                .tokenizer
                .encode_onto(text, &mut tokens, self.bound(cancel))?
            {
                Encoded::Whole if tokens.is_empty() => {
                    let name = format!("prompt {index}");
                    let got = "none: the tokenizer begins no text with BOS";
                    Err(Error::invalid(name, "at least one token", got))
                }
                Encoded::Whole => Ok(Prompt::Tokens(tokens)),
                Encoded::TooLong(least) => Err(self.too_long(index, text.len(), least)),
            }
        };
        all(texts, encode)
    }

    /// How dialogs become prompts.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// Prompts for [`Llama::generate`] from dialogs of plain texts, with the model's chat template
    /// or in Meta's format. In the Llama 2 format, a dialog with a special tag in a message is
    /// answered with the reference's sentence. Errors are those of [`Llama::text_prompts`] and
    /// [`Chat::encode`].
    pub fn chat_prompts(
        &self,
        dialogs: &[&[Turn<'_>]],
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Prompt>> {
        let encode = |(index, dialog): (usize, &&[Turn<'_>])| {
            let bound = self.bound(cancel);
            let encoding = self.chat.encode_turns(&*self.tokenizer, dialog, bound)?;
            self.prompt(index, encoding)
        };
        all(dialogs, encode)
    }

    /// Prompts for [`Llama::generate`] from messages as JSON. Fails as [`Llama::chat_prompts`].
    pub fn message_prompts(
        &self,
        requests: &[ChatRequest<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Prompt>> {
        let encode = |(index, request): (usize, &ChatRequest<'_>)| {
            let bound = self.bound(cancel);
            let encoding = self.chat.encode(&*self.tokenizer, request, bound)?;
            self.prompt(index, encoding)
        };
        all(requests, encode)
    }

    fn prompt(&self, index: usize, encoding: Encoding) -> Result<Prompt> {
        match encoding {
            Encoding::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
            Encoding::Unsafe => Ok(Prompt::Refused(UNSAFE_ERROR)),
            Encoding::TooLong { bytes, least } => Err(self.too_long(index, bytes, least)),
        }
    }

    /// The bound for encoding: a text that cannot fit is not encoded to its end.
    fn bound<'a>(&self, cancel: Option<&'a Cancel>) -> Bound<'a> {
        Bound {
            max_tokens: Some(self.request_limits().max_seq_len),
            cancel,
        }
    }

    fn too_long(&self, index: usize, bytes: usize, least: usize) -> Error {
        Error::TextTooLong {
            index,
            bytes,
            least,
            max: self.request_limits().max_seq_len,
        }
    }

    /// Cancel all calls that run or wait, and refuse new ones.
    pub fn shutdown(&self) {
        self.engine.shutdown();
    }

    /// Make every later call fail, as after a panic in the library.
    pub fn poison(&self, reason: &str) {
        self.engine.poison(reason);
    }
}

/// Makes a prompt of each element.
fn all<T>(from: &[T], encode: impl Fn((usize, &T)) -> Result<Prompt>) -> Result<Vec<Prompt>> {
    let mut prompts = reserve::room("the prompts", from.len())?;
    for each in from.iter().enumerate() {
        prompts.push(encode(each)?);
    }
    Ok(prompts)
}
