//! What lies beside the weights: configuration, tokenizer, chat template.

use super::partial::Partial;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::hugging_face::TOOL_USE;
use crate::file::{open_regular, read_small};
use crate::quant::Quant;
use crate::{Error, Result, tokenizer};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Files that are copied as they are, beside [`tokenizer::FILES`].
const COPIED: [&str; 4] = [
    "generation_config.json",
    "chat_template.jinja",
    TOOL_USE,
    TEMPLATE_ALONE,
];

/// The file that may have both a tokenizer and a chat template, and the key of the template.
const BOTH: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template";

/// The file that may have a chat template alone. It is read after [`BOTH`].
const TEMPLATE_ALONE: &str = "chat_template.json";

/// The largest configuration file that is read; [`BOTH`] may list every added token.
const MAX_CONFIG: u64 = 16 << 20;

/// Writes all these files. `tokenizer` replaces the checkpoint's own.
pub(super) fn write(
    partial: &Partial,
    checkpoint: &dyn Checkpoint,
    tokenizer: Option<&Path>,
    quant: Quant,
) -> Result<()> {
    let path = checkpoint.config_path();
    let mut keys = read_keys(path)?;
    let config = json!({"quant_method": "llamabi", "format": quant.dtype().name()});
    keys.insert("quantization_config".into(), config);
    let name = path.file_name().and_then(|name| name.to_str());
    write_keys(partial, name.unwrap_or_default(), path, &keys)?;

    let dir = checkpoint.tokenizer().directory();
    let dir = dir.expect("a GGUF file becomes one");
    let from_dir = |name: &'static str| (name, dir.join(name));
    let mut sources: Vec<(&str, PathBuf)> = COPIED.map(from_dir).into();
    match tokenizer {
        Some(path) => sources.extend(tokenizer::files(path)?),
        None => sources.extend(tokenizer::FILES.map(from_dir)),
    }
    for name in COPIED.into_iter().chain(tokenizer::FILES) {
        let source = sources.iter().find(|(of, _)| *of == name);
        match source.filter(|(_, path)| path.symlink_metadata().is_ok()) {
            Some((_, path)) => partial.write_beside(name, open_regular(path)?.0)?,
            // An earlier run may have used another tokenizer.
            None => partial.leave_out(name)?,
        }
    }
    match tokenizer {
        Some(_) => keep_template(partial, dir, &sources),
        None => Ok(()),
    }
}

/// Writes the checkpoint's chat template into the file beside another tokenizer, because a template
/// belongs to the model. So the file that is read first has no template of another model.
fn keep_template(partial: &Partial, dir: &Path, sources: &[(&str, PathBuf)]) -> Result<()> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let own = match is_there(BOTH) {
        true => read_keys(&dir.join(BOTH))?.remove(TEMPLATE),
        false => None,
    };
    let beside = sources.iter().find(|(name, _)| *name == BOTH);
    let beside = beside.filter(|(_, path)| path.symlink_metadata().is_ok());
    let mut keys = match beside {
        Some((_, path)) => read_keys(path)?,
        None => Map::new(),
    };
    let other = keys.remove(TEMPLATE);
    match own {
        Some(own) => keys.insert(TEMPLATE.into(), own),
        // A model without a template may use that of its tokenizer.
        None if other.is_none() || !is_there(TEMPLATE_ALONE) => return Ok(()),
        None => None,
    };
    write_keys(partial, BOTH, dir, &keys)
}

fn read_keys(path: &Path) -> Result<Map<String, Value>> {
    let json = read_small(path, "a configuration file", MAX_CONFIG)?;
    let keys = serde_json::from_slice(&json);
    keys.map_err(|e| Error::format(path, format!("not valid JSON: {e}")))
}

fn write_keys(partial: &Partial, name: &str, from: &Path, keys: &Map<String, Value>) -> Result<()> {
    let json = serde_json::to_string_pretty(keys);
    let json = json.map_err(|e| Error::format(from, format!("not valid JSON: {e}")))? + "\n";
    partial.write_beside(name, json.as_bytes())
}
