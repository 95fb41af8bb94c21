//! Functions of a caller's that decide: which token is a sequence's last, and what its logits are.
//! They run on the thread that reads the events, and are asked in the order of these.

use super::event::{Event, TokenEvent};
use super::question::Question;
use super::request::{GenerateOptions, Prompt};
use super::stream::{Next, Stream};
use crate::{Error, Result, Token, reserve};
use std::time::{Duration, Instant};

/// Told the number of a sequence in its call, its prompt and output so far, and how many tokens of
/// these are the prompt's. Whether the last of them ends it.
pub type StopFn<'a> = dyn FnMut(u32, &[Token], usize) -> bool + 'a;

/// May change the logits of a question. False stops the call.
pub type LogitsFn<'a> = dyn FnMut(&mut Question) -> bool + 'a;

/// What a caller decides.
#[derive(Default)]
pub struct Deciders<'a> {
    /// Asked at every generated token, before anybody hears of it.
    pub on_stop: Option<&'a mut StopFn<'a>>,
    /// Asked before every token is drawn; with [`GenerateOptions::ask_logits`].
    pub on_logits: Option<&'a mut LogitsFn<'a>>,
}

/// The reader of a stream that asks the caller.
pub struct Decider {
    /// Of each prompt its tokens, where they are needed.
    prompts: Vec<Vec<Token>>,
    /// Of each sequence prompt and output so far, as far as any has been told.
    texts: Vec<Vec<Token>>,
    width: usize,
    echo: bool,
    /// What was taken and could not be given, for lack of memory.
    pending: Option<Event>,
}

const WHAT: &str = "the tokens that a caller is told (on_stop)";

impl Decider {
    /// For a call with these prompts. `stops`: whether there is a [`Deciders::on_stop`].
    pub fn new(prompts: &[Prompt], options: &GenerateOptions, stops: bool) -> Result<Self> {
        if stops && options.has_beams() {
            let expected = "NULL with beams (num_beams above 1)";
            return Err(Error::invalid("on_stop", expected, "given"));
        }
        let width = options.num_return_sequences;
        let n = if stops { prompts.len() } else { 0 };
        let mut copies = reserve::room(WHAT, n)?;
        for prompt in &prompts[..n] {
            copies.push(match prompt {
                Prompt::Tokens(tokens) => reserve::copy(WHAT, tokens)?,
                Prompt::Refused(_) => Vec::new(),
            });
        }
        Ok(Self {
            prompts: copies,
            // How many there are is not checked yet.
            texts: Vec::new(),
            width,
            echo: options.echo,
            pending: None,
        })
    }

    /// [`Stream::next`], of a stream that is read in no other way. Questions are answered, and the
    /// wait goes on for what is left of `timeout`.
    pub fn next(
        &mut self,
        stream: &Stream,
        timeout: Option<Duration>,
        deciders: &mut Deciders<'_>,
    ) -> Result<Next> {
        // A deadline that the clock cannot express is no deadline.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let next = match self.pending.take() {
                Some(event) => Next::Event(event),
                None => stream.next(left)?,
            };
            match next {
                Next::Question(mut question) => {
                    let decided = match &mut deciders.on_logits {
                        Some(decide) => decide(&mut question),
                        None => true,
                    };
                    stream.check_process()?;
                    // One that is not answered cancels the call.
                    if decided {
                        question.answer();
                    }
                }
                Next::Event(event) => {
                    if let Some(decide) = &mut deciders.on_stop
                        && let Err(error) = self.hear(stream, &event, &mut **decide)
                    {
                        self.pending = Some(event);
                        return Err(error);
                    }
                    return Ok(Next::Event(event));
                }
                end => return Ok(end),
            }
        }
    }

    fn hear(&mut self, stream: &Stream, event: &Event, decide: &mut StopFn<'_>) -> Result<()> {
        match event {
            Event::Token(TokenEvent { index, token, .. }) => {
                let at = *index as usize;
                if at >= self.texts.len() {
                    let more = at + 1 - self.texts.len();
                    reserve::vec(WHAT, &mut self.texts, more)?;
                    self.texts.resize(at + 1, Vec::new());
                }
                let prompt = &self.prompts[at / self.width];
                let text = &mut self.texts[at];
                if text.is_empty() && !self.echo {
                    reserve::vec(WHAT, text, prompt.len() + 1)?;
                    text.extend_from_slice(prompt);
                }
                reserve::push(WHAT, text, *token)?;
                let ends = text.len() > prompt.len() && decide(*index, text, prompt.len());
                // Nobody is to hear of the event in a child that the function has forked.
                stream.check_process()?;
                if ends && let Err(error) = stream.stop(at) {
                    // It is asked about this token again.
                    text.pop();
                    return Err(error);
                }
            }
            Event::Beam(_) => {}
            Event::Finish(end) => {
                if let Some(text) = self.texts.get_mut(end.index as usize) {
                    *text = Vec::new();
                }
            }
        }
        Ok(())
    }
}
