//! Turns messages into prompt tokens: with the model's template, or in one of Meta's formats.
//!
//! | file | what it knows |
//! |---|---|
//! | `mod` | Meta's Llama 2 format: `chat_completion` of llama/generation.py |
//! | `llama3` | Meta's Llama 3 format |
//! | `template` | which format a model has, what a template sees, how its text becomes tokens |
//! | `messages` | messages as JSON in OpenAI's shape |
//! | `jinja` | the language of templates |
//! | `clock`, `python` | local time (U); Python's white space |

mod clock;
pub mod jinja;
mod llama3;
mod messages;
pub(crate) mod python;
mod template;

pub use messages::{MAX_JSON, Turn};
pub use template::{Chat, ChatRequest, Format, Sources};

use crate::tokenizer::{Bound, Encoded, Joining, Tokenizer};
use crate::{Error, Result, Token, reserve};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions; only as the first message.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::System, Role::User, Role::Assistant];

    /// The role's name, as messages spell it.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }

    /// The role with that name.
    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// One message of a dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who speaks.
    pub role: Role,
    /// What they say.
    pub content: &'a str,
}

const B_INST: &str = "[INST]";
const E_INST: &str = "[/INST]";
const B_SYS: &str = "<<SYS>>";
const E_SYS: &str = "<</SYS>>";

/// The reference's answer when a message contains one of its special tags.
pub const UNSAFE_ERROR: &str = "Error: special tags are not allowed as part of the prompt.";

/// Whether a message, of whatever role, contains `[INST]`, `[/INST]`, `<<SYS>>` or `<</SYS>>`.
fn is_unsafe(dialog: &[Message<'_>]) -> bool {
    dialog.iter().any(|m| {
        [B_INST, E_INST, B_SYS, E_SYS]
            .iter()
            .any(|tag| m.content.contains(tag))
    })
}

/// The outcome of encoding a dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The tokens of its prompt.
    Tokens(Vec<Token>),
    /// A message contains a special tag; the reference answers [`UNSAFE_ERROR`].
    Unsafe,
    /// The prompt has more tokens than [`Bound::max_tokens`].
    TooLong {
        /// How many bytes the text has. This is the text that a template has rendered or, in Meta's
        /// Llama 2 format, the contents of the messages.
        bytes: usize,
        /// The prompt has at least this many tokens.
        least: usize,
    },
}

/// Whether messages are encoded in Meta's Llama 2 format with this tokenizer. They are if it is
/// SentencePiece's.
fn has_llama2_format(tokenizer: &dyn Tokenizer) -> bool {
    tokenizer.joining() == Joining::SentencePiece
        && tokenizer.bos_id() >= 0
        && tokenizer.eos_id() >= 0
}

/// Prompt tokens of a dialog.
///
/// A system message becomes a prefix of the first user message, before that message is stripped. A
/// turn with an answer is `[INST] {user} [/INST] {answer} ` between BOS and EOS. The last turn is
/// `[INST] {user} [/INST]` after BOS. Contents are stripped as Python's `str.strip` does it.
///
/// [`Error::InvalidArgument`] unless the roles are (system) user assistant user ..., ending with
/// user. It names the first message that has the wrong role, and is reported before all other
/// errors. [`Error::Unsupported`] unless the tokenizer is SentencePiece's with BOS and EOS. All
/// other errors are those of [`Tokenizer::encode_onto`].
pub fn encode_dialog(
    tokenizer: &dyn Tokenizer,
    dialog: &[Message<'_>],
    bound: Bound<'_>,
) -> Result<Encoding> {
    let (system, turns) = match dialog {
        [
            Message {
                role: Role::System,
                content,
            },
            turns @ ..,
        ] => (Some(*content), turns),
        turns => (None, turns),
    };
    check_roles(turns, dialog.len() - turns.len())?;
    if !has_llama2_format(tokenizer) {
        let why = "no chat template: the model has none that is known";
        return Err(Error::Unsupported(why.into()));
    }
    if is_unsafe(dialog) {
        return Ok(Encoding::Unsafe);
    }

    let mut tokens = Vec::new();
    for (i, turn) in turns.chunks(2).enumerate() {
        let text = match system {
            Some(system) if i == 0 => {
                let user = join(&[B_SYS, "\n", system, "\n", E_SYS, "\n\n", turn[0].content])?;
                turn_text(&user, turn.get(1))?
            }
            _ => turn_text(turn[0].content, turn.get(1))?,
        };
        reserve::vec("the tokens of a dialog", &mut tokens, 1)?;
        tokens.push(tokenizer.bos_id());
        if let Encoded::TooLong(least) = tokenizer.encode_onto(&text, &mut tokens, bound)? {
            let bytes = dialog.iter().map(|m| m.content.len()).sum();
            return Ok(Encoding::TooLong { bytes, least });
        }
        if turn.len() == 2 {
            reserve::vec("the tokens of a dialog", &mut tokens, 1)?;
            tokens.push(tokenizer.eos_id());
        }
    }
    Ok(Encoding::Tokens(tokens))
}

fn turn_text(user: &str, answer: Option<&Message<'_>>) -> Result<String> {
    let user = strip(user);
    match answer {
        Some(answer) => join(&[
            B_INST,
            " ",
            user,
            " ",
            E_INST,
            " ",
            strip(answer.content),
            " ",
        ]),
        None => join(&[B_INST, " ", user, " ", E_INST]),
    }
}

fn join(parts: &[&str]) -> Result<String> {
    let mut text = String::new();
    reserve::string(
        "the text of a dialog",
        &mut text,
        parts.iter().map(|p| p.len()).sum(),
    )?;
    parts.iter().for_each(|part| text.push_str(part));
    Ok(text)
}

/// `turns` are the messages from index `first` on.
fn check_roles(turns: &[Message<'_>], first: usize) -> Result<()> {
    for (i, message) in turns.iter().enumerate() {
        let expected = if i % 2 == 0 {
            Role::User
        } else {
            Role::Assistant
        };
        if message.role != expected {
            return Err(Error::invalid(
                format!("the role of message {}", first + i),
                expected.name(),
                message.role.name(),
            ));
        }
    }
    match turns.last() {
        Some(Message {
            role: Role::User, ..
        }) => Ok(()),
        Some(last) => Err(Error::invalid(
            format!("the role of message {}, the last,", first + turns.len() - 1),
            Role::User.name(),
            last.role.name(),
        )),
        None if first > 0 => Err(Error::invalid(
            "the role of message 0, the only one,",
            Role::User.name(),
            Role::System.name(),
        )),
        None => Err(Error::invalid(
            "the dialog",
            "at least one message, from user",
            "empty",
        )),
    }
}

/// Python's `str.strip`.
fn strip(text: &str) -> &str {
    text.trim_matches(python::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_is_pythons() {
        // [c for c in range(0x110000) if chr(c).isspace()], Python 3.11
        #[rustfmt::skip]
        let python = [
            0x9, 0xa, 0xb, 0xc, 0xd, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x85, 0xa0, 0x1680, 0x2000,
            0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028,
            0x2029, 0x202f, 0x205f, 0x3000,
        ];
        let ours: Vec<u32> = ('\0'..=char::MAX)
            .filter(|&c| python::is_whitespace(c))
            .map(u32::from)
            .collect();
        assert_eq!(ours, python);
    }

    #[test]
    fn strip_leaves_the_inside_alone() {
        assert_eq!(strip("\u{1c}\n a \u{1f} b\u{3000}\u{85}"), "a \u{1f} b");
        assert_eq!(strip(" \u{1d}\t"), "");
        assert_eq!(strip("\u{200b}a\u{feff}"), "\u{200b}a\u{feff}");
    }
}
