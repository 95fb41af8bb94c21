//! Which chat template a checkpoint has, and the special tokens that its configuration names.

use super::BuildOptions;
use crate::chat::{Chat, Sources};
use crate::checkpoint::{Checkpoint, TokenizerSource};
use crate::file::read_small;
use crate::log::Level;
use crate::model::{Config, family};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, reserve};
use serde_json::Value;
use std::path::Path;

/// A tokenizer_config.json lists every added token: some MB at most.
const MAX_CONFIG: u64 = 16 << 20;
/// As for other configuration files.
const WORK_PER_BYTE: usize = 100;

/// How a handle renders dialogs. What is wrong with a template is a line of the log; it fails the
/// calls that need it.
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
    let tokens = match checkpoint.tokenizer() {
        TokenizerSource::Directory(dir) => special_tokens(&dir.join("tokenizer_config.json")),
        // The tokenizer's own ids say it.
        TokenizerSource::Gguf(_) => Ok(Vec::new()),
    };
    let tokens = tokens.unwrap_or_else(|error| {
        warn(&error);
        Vec::new()
    });
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

/// `bos_token` and its like: a text, or an object with `content`. None where there is no file.
fn special_tokens(path: &Path) -> Result<Vec<(String, String)>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let json = read_small(path, "a tokenizer's configuration", MAX_CONFIG)?;
    reserve::headroom("reading tokenizer_config.json", json.len() * WORK_PER_BYTE)?;
    let config: Value = serde_json::from_slice(&json)
        .map_err(|e| Error::format(path, format!("not valid JSON: {e}")))?;
    let mut tokens = Vec::new();
    for (name, value) in config.as_object().into_iter().flatten() {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        if let (true, Some(text)) = (name.ends_with("_token"), text) {
            tokens.push((name.clone(), text.to_owned()));
        }
    }
    Ok(tokens)
}
