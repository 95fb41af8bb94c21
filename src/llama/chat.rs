//! Which chat template a checkpoint has, and the special tokens that its configuration names.

use super::BuildOptions;
use crate::Error;
use crate::chat::{Chat, Sources};
use crate::checkpoint::Checkpoint;
use crate::log::Level;
use crate::model::{Config, family};
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// How a handle renders dialogs. If a template has an error, the log says so in one line, and calls
/// that need the template fail.
pub(super) fn chat(
    options: &BuildOptions,
    checkpoint: &dyn Checkpoint,
    config: &Config,
    tokenizer: &dyn Tokenizer,
) -> Chat {
    let warn = |error: &Error| {
        let line = || format!("chat: {error}; calls that need a template will say so");
        options.log.write(Level::Warn, line);
    };
    let template = match &options.chat_template {
        Some(text) => Some(Ok(Sources {
            default: text.clone(),
            tool_use: None,
        })),
        None => checkpoint.chat_template().transpose().map(|found| {
            found.map(|template| Sources {
                default: template.default,
                tool_use: template.tool_use,
            })
        }),
    };
    // Without a directory, the tokenizer's own ids say which tokens are special.
    let directory = checkpoint.tokenizer().directory();
    let tokens = directory.map_or_else(|| Ok(SpecialTokens::default()), SpecialTokens::read);
    let tokens = tokens.unwrap_or_else(|error| {
        warn(&error);
        SpecialTokens::default()
    });
    let tokens = tokens.named.into_iter().collect();
    let chat = Chat::new(template, tokens, tokenizer, options.chat_now);
    let chat = match config.family.model_type == family::LLAMA.model_type {
        true => chat,
        false => chat.without_metas(),
    };
    if let Some(error) = chat.broken() {
        warn(error);
    }
    chat
}
