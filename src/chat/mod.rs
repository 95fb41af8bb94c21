//! Messages to prompt tokens, in the format of Meta's `chat_completion` (llama/generation.py).

use crate::tokenizer::Tokenizer;
use crate::{Result, Token};

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

/// One message of a dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who speaks.
    pub role: Role,
    /// What they say.
    pub content: &'a str,
}

/// What the reference answers when a message contains one of its special tags.
pub const UNSAFE_ERROR: &str = "Error: special tags are not allowed as part of the prompt.";

/// Whether a message contains `[INST]`, `[/INST]`, `<<SYS>>` or `<</SYS>>`.
pub fn is_unsafe(dialog: &[Message<'_>]) -> bool {
    let _ = dialog;
    todo!()
}

/// Prompt tokens of a dialog. The caller has looked at [`is_unsafe`].
pub fn encode_dialog(tokenizer: &dyn Tokenizer, dialog: &[Message<'_>]) -> Result<Vec<Token>> {
    let _ = (tokenizer, dialog);
    todo!()
}
