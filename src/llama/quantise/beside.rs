//! What lies beside the weights: configuration, tokenizer, chat template.

use super::partial::Partial;
use crate::checkpoint::Checkpoint;
use crate::file::{open_regular, read_small};
use crate::quant::Quant;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// What is copied as it is.
const COPIED: [&str; 7] = [
    "generation_config.json",
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Writes all of it.
pub(super) fn write(partial: &Partial, checkpoint: &dyn Checkpoint, quant: Quant) -> Result<()> {
    let path = checkpoint.config_path();
    let bad = |e| Error::format(path, format!("not valid JSON: {e}"));
    let json = read_small(path, "a configuration file", 1 << 20)?;
    let mut keys: Map<String, Value> = serde_json::from_slice(&json).map_err(bad)?;
    let config = json!({"quant_method": "llamabi", "format": quant.dtype().name()});
    keys.insert("quantization_config".into(), config);
    let json = serde_json::to_string_pretty(&keys).map_err(bad)? + "\n";
    let name = path.file_name().and_then(|name| name.to_str());
    partial.write_beside(name.unwrap_or_default(), json.as_bytes())?;

    let dir = path.parent().unwrap_or(Path::new(""));
    for name in COPIED {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok() {
            partial.write_beside(name, open_regular(&path)?.0)?;
        }
    }
    Ok(())
}
