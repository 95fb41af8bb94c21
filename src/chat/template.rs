//! A model's chat template: which template it is, what the template sees, and how its text becomes
//! tokens.

use super::jinja::{Fault, Kind, Meter, Rendered, Template, Text, Value};
use super::messages::{self, TAG, Turn, View};
use super::{Encoding, Message, Role, clock, llama3, python};
use crate::tokenizer::{Bound, Encoded, Joining, Tokenizer};
use crate::{Cancel, Error, Result, Token, reserve, thread};

/// A stack that is larger than what the deepest nesting takes that a template's limits allow. A
/// level costs the parser 5 KiB, and the evaluator 1 KiB. Without optimisation, frames are several
/// times as large.
const STACK: usize = if cfg!(any(debug_assertions, llamabi_planted)) {
    6 << 20
} else {
    3 << 19
};

/// Does work whose stack use depends on how deep templates and messages are nested.
fn deep<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::with_stack("llamabi-template", STACK, work)?
}

/// How dialogs become prompts. Numbered as `LLAMA_CHAT_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Format {
    /// There is no template, so dialogs cannot become prompts.
    None = 0,
    /// Meta's Llama 2 format.
    Llama2 = 1,
    /// Meta's Llama 3 format.
    Llama3 = 2,
    /// A template.
    Template = 3,
}

/// What is to be rendered.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatRequest<'a> {
    /// A JSON array of messages in OpenAI's shape.
    pub messages: &'a str,
    /// A JSON array of tools.
    pub tools: Option<&'a str>,
    /// A JSON object of variables beside those that templates always have.
    pub variables: Option<&'a str>,
    /// A template instead of the model's.
    pub template: Option<&'a str>,
    /// Without the beginning of an answer.
    pub no_generation_prompt: bool,
    /// Cut after the last message's content, for the model to continue it.
    pub continue_final: bool,
    /// Texts of special tokens in messages become these tokens, as in transformers.
    pub parse_special: bool,
}

/// A model's templates as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The template for every dialog without tools.
    pub default: String,
    /// The template for dialogs with tools, if it is a different one.
    pub tool_use: Option<String>,
}

/// How a handle renders dialogs.
#[derive(Debug)]
pub struct Chat {
    format: Format,
    default: Option<Result<Template>>,
    tool_use: Option<Result<Template>>,
    /// Names and texts of special tokens: `bos_token`, ...
    tokens: Vec<(String, String)>,
    /// The time that `strftime_now` sees, in seconds since 1970; `None`: that of the clock.
    now: Option<i64>,
}

impl Chat {
    /// For a model with this tokenizer, and with this template, with none, or with one that is not
    /// readable. `tokens` are the special tokens that the model's configuration names, or says it
    /// does not have. If the configuration says nothing about any of them, BOS and EOS are those of
    /// the tokenizer. A template that cannot be read fails when it is used.
    pub fn new(
        template: Option<Result<Sources>>,
        tokens: Vec<(String, Option<String>)>,
        tokenizer: &dyn Tokenizer,
        now: Option<i64>,
    ) -> Chat {
        let (format, default) = match &template {
            Some(Err(error)) => (Format::Template, Some(Err(error.clone()))),
            Some(Ok(template)) => (Format::Template, Some(read(&template.default))),
            None if tokenizer.added_id("<|start_header_id|>").is_some() => {
                (Format::Llama3, Some(read(llama3::TEMPLATE)))
            }
            None if tokenizer.joining() == Joining::SentencePiece => (Format::Llama2, None),
            None => (Format::None, None),
        };
        let tool_use = template.and_then(|template| template.ok()?.tool_use);
        Chat {
            format,
            default,
            tool_use: tool_use.map(|source| read(&source)),
            tokens: with_own(tokens, tokenizer),
            now,
        }
    }

    /// Removes the formats that are built in: they are Meta's, and mean nothing to models of
    /// others.
    #[must_use]
    pub fn without_metas(self) -> Chat {
        match self.format {
            Format::Llama2 | Format::Llama3 => Chat {
                format: Format::None,
                default: None,
                ..self
            },
            Format::Template | Format::None => self,
        }
    }

    /// How dialogs become prompts.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What is wrong with the model's template.
    pub fn broken(&self) -> Option<&Error> {
        let templates = [&self.default, &self.tool_use];
        let mut errors = templates.into_iter().flatten();
        errors.find_map(|template| template.as_ref().err())
    }

    /// A dialog as text, with the origin of each part.
    ///
    /// [`Error::InvalidArgument`] if messages, tools or variables do not have their shape, or if
    /// the template raises an exception or has no value for them; [`Error::Unsupported`] if there
    /// is no template, or if it asks for something that does not exist here; [`Error::Format`] if
    /// it is not a template or exceeds a limit; [`Error::Cancelled`].
    pub fn render(&self, request: &ChatRequest<'_>, cancel: Option<&Cancel>) -> Result<Rendered> {
        deep(|| self.render_here(request, cancel))
    }

    fn render_here(&self, request: &ChatRequest<'_>, cancel: Option<&Cancel>) -> Result<Rendered> {
        let mut drops_nulls = true;
        let rendered = self.attempt(request, cancel, &mut drops_nulls);
        match &rendered {
            // One template may need the null that makes another one fail.
            Err(Error::InvalidArgument { .. }) if drops_nulls => {
                drops_nulls = false;
                let kept = self.attempt(request, cancel, &mut drops_nulls);
                kept.or(rendered)
            }
            _ => rendered,
        }
    }

    /// On entry, `drops_nulls` says whether to drop nulls from messages; afterwards, whether any
    /// were dropped.
    fn attempt(
        &self,
        request: &ChatRequest<'_>,
        cancel: Option<&Cancel>,
        drops_nulls: &mut bool,
    ) -> Result<Rendered> {
        let own = request.template.map(read_here).transpose()?;
        let template = match &own {
            Some(own) => own,
            None => self.model_template(request.tools.is_some())?,
        };
        let input = [Some(request.messages), request.tools, request.variables];
        let input: usize = input.iter().flatten().map(|text| text.len()).sum();
        let mut meter = Meter::new(input, cancel);
        let view = View {
            drops_nulls: std::mem::take(drops_nulls),
            keeps_lists: template.goes_through("content"),
            continued: request.continue_final,
        };
        let messages;
        (messages, *drops_nulls) = messages::read(&mut meter, request.messages, view)?;
        let last = match request.continue_final {
            true => last_content(&messages),
            false => None,
        };
        let tools = match request.tools {
            None => Value::None,
            Some(json) => match messages::parse(&mut meter, "tools", json)? {
                Value::List(list) if list.items.is_empty() => Value::None,
                tools @ Value::List(_) => tools,
                _ => return Err(Error::invalid("tools", "an array", "another value")),
            },
        };
        let variables = match request.variables {
            None => None,
            Some(json) => match messages::parse(&mut meter, "variables", json)? {
                Value::Dict(variables) => Some(variables),
                _ => return Err(Error::invalid("variables", "an object", "another value")),
            },
        };
        let generate = !request.no_generation_prompt && !request.continue_final;
        let mut extra: Vec<(&str, Value)> = Vec::new();
        if let Some(variables) = &variables {
            for (name, value) in variables.entries() {
                let Value::Text(name) = name else { continue };
                if matches!(name.as_str(), "messages" | "tools") {
                    let name = format!("variables.{}", name.as_str());
                    return Err(Error::invalid(
                        name,
                        "absent: it has its own argument",
                        "there",
                    ));
                }
                extra.push((name.as_str(), value.clone()));
            }
        }
        let rendered = self.run(template, meter, messages, tools, generate, extra)?;
        match last {
            Some(last) => cut(rendered, last.as_str().trim_end_matches(TAG)),
            None => Ok(rendered),
        }
    }

    fn model_template(&self, tools: bool) -> Result<&Template> {
        let chosen = match (&self.tool_use, &self.default) {
            (Some(template), _) if tools => template,
            (_, Some(template)) => template,
            (_, None) if self.format == Format::Llama2 => {
                return Err(Error::Unsupported(
                    "this model has no chat template, and Meta's Llama 2 format has neither tools, \
                     variables nor text: use llama_chat_completion, or give chat_template"
                        .into(),
                ));
            }
            (_, None) => {
                return Err(Error::Unsupported(
                    "this model has no chat template: give chat_template".into(),
                ));
            }
        };
        chosen.as_ref().map_err(Error::clone)
    }

    fn run(
        &self,
        template: &Template,
        mut meter: Meter<'_>,
        messages: Value,
        tools: Value,
        generate: bool,
        extra: Vec<(&str, Value)>,
    ) -> Result<Rendered> {
        let mut variables = vec![
            ("messages", messages),
            ("tools", tools),
            ("documents", Value::None),
            ("add_generation_prompt", Value::Bool(generate)),
        ];
        for (name, text) in &self.tokens {
            let text = Text::copy(&mut meter, text, true).map_err(|fault| of_run(&fault))?;
            variables.push((name, Value::Text(text)));
        }
        for (name, value) in extra {
            match variables.iter_mut().find(|(other, _)| *other == name) {
                Some((_, old)) => *old = value,
                None => variables.push((name, value)),
            }
        }
        let now = clock::moment(self.now)?;
        let rendered = template.render(meter, now, variables);
        rendered.map_err(|fault| of_run(&fault))
    }

    /// The tokens of a dialog. Errors are those of [`Chat::render`], and a lack of memory.
    pub fn encode(
        &self,
        tokenizer: &dyn Tokenizer,
        request: &ChatRequest<'_>,
        bound: Bound<'_>,
    ) -> Result<Encoding> {
        let plain = request.template.is_none()
            && request.tools.is_none()
            && request.variables.is_none()
            && !request.no_generation_prompt
            && !request.continue_final;
        if self.format == Format::Llama2 && plain {
            return deep(|| {
                let mut meter = Meter::new(request.messages.len(), bound.cancel);
                let view = View {
                    drops_nulls: false,
                    keeps_lists: false,
                    continued: false,
                };
                let (messages, _) = messages::read(&mut meter, request.messages, view)?;
                let turns = turns(&messages)?;
                self.encode_turns(tokenizer, &turns, bound)
            });
        }
        let rendered = self.render(request, bound.cancel)?;
        tokens(tokenizer, &rendered, request.parse_special, bound)
    }

    /// The tokens of a dialog of plain texts. Errors are those of [`Chat::encode`].
    pub fn encode_turns(
        &self,
        tokenizer: &dyn Tokenizer,
        turns: &[Turn<'_>],
        bound: Bound<'_>,
    ) -> Result<Encoding> {
        if self.format == Format::Llama2 {
            let mut dialog = reserve::room("the messages of a dialog", turns.len())?;
            for (i, turn) in turns.iter().enumerate() {
                let Some(role) = Role::named(turn.role) else {
                    let [a, b, c] = Role::ALL.map(Role::name);
                    let shown: String = turn.role.chars().take(40).collect();
                    return Err(Error::invalid(
                        format!("the role of message {i}"),
                        format!("{a:?}, {b:?} or {c:?}"),
                        format!("{shown:?}"),
                    ));
                };
                let content = turn.content;
                dialog.push(Message { role, content });
            }
            return super::encode_dialog(tokenizer, &dialog, bound);
        }
        let template = self.model_template(false)?;
        let rendered = deep(|| {
            let input = turns.iter().map(|t| t.role.len() + t.content.len()).sum();
            let mut meter = Meter::new(input, bound.cancel);
            let messages = messages::of_turns(&mut meter, turns)?;
            self.run(template, meter, messages, Value::None, true, Vec::new())
        })?;
        tokens(tokenizer, &rendered, false, bound)
    }
}

/// Special tokens by name: those of a configuration, and the tokenizer's own. A configuration names
/// all tokens there are; a token that it leaves out is undefined. But, as in transformers, a
/// SentencePiece model also names its own.
fn with_own(
    named: Vec<(String, Option<String>)>,
    tokenizer: &dyn Tokenizer,
) -> Vec<(String, String)> {
    let sentencepiece = tokenizer.joining() == Joining::SentencePiece;
    let mut own = Vec::new();
    if sentencepiece || named.is_empty() {
        for (name, id, usual) in [
            ("bos_token", tokenizer.bos_id(), "<s>"),
            ("eos_token", tokenizer.eos_id(), "</s>"),
            ("unk_token", tokenizer.unk_id(), "<unk>"),
        ] {
            let usual = usual.to_owned();
            let usual = (sentencepiece && id >= 0).then_some(usual);
            let text = tokenizer.special_text(id).map(str::to_owned).or(usual);
            if let (Some(text), false) = (text, named.iter().any(|(other, _)| other == name)) {
                own.push((name.to_owned(), text));
            }
        }
    }
    let text = |(name, text): (String, Option<String>)| Some((name, text?));
    own.extend(named.into_iter().filter_map(text));
    own
}

fn read(source: &str) -> Result<Template> {
    deep(|| read_here(source))
}

fn read_here(source: &str) -> Result<Template> {
    Template::read(source).map_err(|fault| of_template(&fault))
}

fn tokens(
    tokenizer: &dyn Tokenizer,
    rendered: &Rendered,
    parse_special: bool,
    bound: Bound<'_>,
) -> Result<Encoding> {
    let mut tokens: Vec<Token> = Vec::new();
    let (text, runs) = (&rendered.text, &rendered.runs);
    match tokenizer.encode_rendered_onto(text, runs, parse_special, &mut tokens, bound)? {
        Encoded::Whole => Ok(Encoding::Tokens(tokens)),
        Encoded::TooLong(least) => {
            let bytes = text.len();
            Ok(Encoding::TooLong { bytes, least })
        }
    }
}

/// The messages as plain texts, for a format that supports nothing else.
fn turns(messages: &Value) -> Result<Vec<Turn<'_>>> {
    let Value::List(messages) = messages else {
        return Ok(Vec::new());
    };
    let mut turns = reserve::room("the messages of a dialog", messages.items.len())?;
    for (i, message) in messages.items.iter().enumerate() {
        let Value::Dict(keys) = message else { continue };
        match (keys.get_text("role"), keys.get_text("content")) {
            (Some(Value::Text(role)), Some(Value::Text(content))) => turns.push(Turn {
                role: role.as_str(),
                content: content.as_str(),
            }),
            _ => {
                let name = format!("messages[{i}].content");
                return Err(Error::invalid(name, "a text", "none"));
            }
        }
    }
    Ok(turns)
}

/// The last message's content, including the tag.
fn last_content(messages: &Value) -> Option<Text> {
    let Value::List(messages) = messages else {
        return None;
    };
    let Value::Dict(last) = messages.items.last()? else {
        return None;
    };
    let content = match last.get_text("content")? {
        Value::List(parts) => match parts.items.last()? {
            Value::Dict(part) => part.get_text("text")?,
            _ => return None,
        },
        content => content,
    };
    match content {
        Value::Text(content) => Some(content.clone()),
        _ => None,
    }
}

/// Cuts the rendered text at the end of the last content, as transformers does.
fn cut(mut rendered: Rendered, content: &str) -> Result<Rendered> {
    let found = rendered.text.rfind(TAG.trim_end());
    let Some(at) = found.filter(|_| {
        rendered
            .text
            .contains(content.trim_matches(python::is_whitespace))
    }) else {
        return Err(Error::invalid(
            "the last message",
            "one that the template shows, to be continued",
            "left out or changed",
        ));
    };
    let end = match rendered.text[at..].starts_with(TAG) {
        true => at,
        false => rendered.text[..at]
            .trim_end_matches(python::is_whitespace)
            .len(),
    };
    rendered.text.truncate(end);
    let mut left = end;
    rendered.runs.retain_mut(|run| {
        run.len = run.len.min(left);
        left -= run.len;
        run.len > 0
    });
    Ok(rendered)
}

/// The error for a template that could not be read.
fn of_template(fault: &Fault) -> Error {
    let Fault {
        kind,
        line,
        message,
        bytes,
    } = fault;
    match kind {
        Kind::Unsupported => {
            Error::Unsupported(format!("the chat template, line {line}: {message}"))
        }
        Kind::Memory => Error::refused("the chat template", *bytes),
        _ => Error::format("the chat template", format!("line {line}: {message}")),
    }
}

/// The error for a dialog that a template did not render.
fn of_run(fault: &Fault) -> Error {
    let Fault {
        kind,
        line,
        message,
        ..
    } = fault;
    match kind {
        Kind::Raised => Error::invalid(
            "the dialog",
            "as the chat template wants it",
            format!("refused by it: {message}"),
        ),
        Kind::Evaluation => Error::invalid(
            "the dialog",
            "one that the chat template can render",
            format!("refused by line {line} ({message})"),
        ),
        Kind::Cancelled => Error::Cancelled,
        _ => of_template(fault),
    }
}
