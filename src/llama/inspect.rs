//! What a checkpoint is and what it needs, without loading its weights: `llamabi-info`.

use super::BuildOptions;
use super::setting::cpu_memory;
use super::tokens::{eos_ids, fitting, tokenizer_of};
use crate::backend::cpu::{Cpu, available_bytes};
use crate::chat::Format;
use crate::checkpoint::{self, Checkpoint, Plan};
use crate::model::Config;
use crate::model::config::RopeScaling;
use crate::tokenizer::Tokenizer;
use crate::{Dtype, Result, Token, sentence};
use std::fmt::Write as _;
use std::path::Path;

/// Formats of weights that the report compares; `None`: as stored.
const DTYPES: [Option<Dtype>; 7] = [
    None,
    Some(Dtype::F32),
    Some(Dtype::Bf16),
    Some(Dtype::F16),
    Some(Dtype::Int8),
    Some(Dtype::Int4),
    Some(Dtype::Nf4),
];

/// Lengths of a context that the report compares.
const CONTEXTS: [usize; 4] = [2048, 8192, 32_768, 131_072];

/// Writes a report in lines to `text`. As in a build, files are opened, and every tensor is found
/// and checked; no weights are read.
///
/// # Errors
/// Those of [`crate::Llama::build`] that come before weights are read: why the checkpoint would be
/// refused. The part of the report that was possible is written then.
pub fn report(path: &Path, tokenizer: Option<&Path>, text: &mut String) -> Result<()> {
    let checkpoint = checkpoint::open(path)?;
    let tokenizer = tokenizer_of(&*checkpoint, tokenizer);
    let n_tokens = tokenizer
        .as_ref()
        .map_or(0, |(_, tokenizer)| tokenizer.vocab_size());
    let config = match checkpoint.config(n_tokens) {
        Ok(config) => config,
        // Some checkpoints take the size of their vocabulary from the tokenizer, which is opened
        // first.
        Err(error) => return Err(tokenizer.err().unwrap_or(error)),
    };
    let files = checkpoint.open(None)?;
    let mut line = |name: &str, value: String| {
        writeln!(*text, "{name:<12} {value}").expect("a String takes all text");
    };
    line("checkpoint", sentence::path(path));
    let stored = match checkpoint.quantised() {
        Some(stored) => stored.to_owned(),
        None => format!("floats, most of them {}", files.most_floats()),
    };
    line("form", format!("{}, {stored}", checkpoint.form()));
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, None, &[])?;
    let bytes = plan.read_bytes();
    line(
        "files",
        format!("{} with {} of weights", files.files.len(), size(bytes)),
    );
    line("family", config.family.model_type.into());
    line("model", shape(&config));
    line("rope", rope(&config));
    line("window", window(&config));
    let trained = checkpoint.trained_context();
    line(
        "trained for",
        trained.map_or("not said".into(), |n| format!("{n} positions")),
    );
    line("tokenizer", format!("{n_tokens} tokens"));
    // A tokenizer that does not fit is an error, after lines that say what it is.
    let fit = tokenizer
        .as_ref()
        .map(|found| fitting(found.clone(), &config));
    let opened = match (&fit, &tokenizer) {
        (Ok(Ok((fits, warning))), _) => {
            if let Some(warning) = warning {
                line("warning", warning.clone());
            }
            Some(&**fits)
        }
        (_, Ok((_, found))) => Some(&**found),
        (_, Err(_)) => None,
    };
    line("ends with", ends(path, &config, opened)?);
    line("chat", chat(&*checkpoint, &config, opened));
    let kept: Vec<&str> = plan
        .layer_dtypes()
        .iter()
        .map(|dtype| dtype.name())
        .collect();
    line("kept as", kept.join(", "));
    line("memory here", size(available_bytes()));
    text.push_str("\nmemory on the CPU for one sequence, by weights_dtype and max_seq_len\n");
    write!(text, "{:<8}", "").expect("a String takes all text");
    for context in CONTEXTS {
        write!(text, "{context:>11}").expect("a String takes all text");
    }
    for asked in DTYPES {
        let name = asked.map_or("auto", Dtype::name);
        write!(text, "\n{name:<8}").expect("a String takes all text");
        let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, asked, &[]);
        for max_seq_len in CONTEXTS {
            let options = BuildOptions {
                max_seq_len,
                max_batch_size: 1,
                ..BuildOptions::default()
            };
            let needed = match &plan {
                Ok(plan) => size(cpu_memory(&options, &config, plan)),
                Err(_) => "-".into(),
            };
            write!(text, "{needed:>11}").expect("a String takes all text");
        }
    }
    text.push('\n');
    match fit {
        Ok(fit) => fit.map(|_| ()),
        Err(_) => tokenizer.map(|_| ()),
    }
}

fn shape(config: &Config) -> String {
    let s = &config.shape;
    format!(
        "{} layers, width {}, feed-forward {}, {} heads of {} ({} for keys), vocabulary {}{}",
        s.n_layers,
        s.dim,
        s.ffn_dim,
        s.n_heads,
        s.head_dim,
        s.n_kv_heads,
        s.vocab_size,
        if config.tied_embeddings { ", tied" } else { "" }
    )
}

/// How q and k rotate.
fn rope(config: &Config) -> String {
    let mut text = format!("theta {}", config.rope_theta);
    let scaling = match &config.rope_scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(", linear by {factor}"),
        RopeScaling::Llama3 {
            factor,
            original_context,
            ..
        } => format!(", llama3 by {factor} beyond {original_context}"),
        RopeScaling::Divided { .. } => ", a divisor for each frequency".into(),
        RopeScaling::Yarn {
            factor,
            original_context,
            ..
        } => format!(", yarn by {factor} beyond {original_context}"),
        RopeScaling::Dynamic {
            factor,
            original_context,
        } => format!(", dynamic by {factor} beyond {original_context}"),
        RopeScaling::LongRope {
            original_context, ..
        } => format!(", longrope beyond {original_context}"),
    };
    text += &scaling;
    if config.rotary_dim < config.shape.head_dim {
        text += &format!(", {} of {}", config.rotary_dim, config.shape.head_dim);
    }
    match config.unrotated.iter().filter(|&&layer| layer).count() {
        0 => text,
        n => format!("{text}, not in {n} of {} layers", config.unrotated.len()),
    }
}

/// Which keys a token sees.
fn window(config: &Config) -> String {
    let windows = || config.windows.iter().flatten();
    match (windows().next(), windows().count(), config.shape.n_layers) {
        (None, ..) => "none".into(),
        (Some(keys), n, all) if n == all => format!("{keys} keys"),
        (Some(keys), n, all) => format!("{keys} keys in {n} of {all} layers"),
    }
}

/// The tokens that end a sequence, with their texts if there is a tokenizer.
fn ends(path: &Path, config: &Config, tokenizer: Option<&dyn Tokenizer>) -> Result<String> {
    let ids = match tokenizer {
        Some(tokenizer) => eos_ids(path, config, tokenizer)?,
        None => config.eos_ids.clone(),
    };
    let token = |&id: &Token| {
        let text = tokenizer.and_then(|tokenizer| tokenizer.special_text(id));
        text.map_or(id.to_string(), |text| format!("{id} {text:?}"))
    };
    let tokens: Vec<String> = ids.iter().map(token).collect();
    Ok(match tokens.is_empty() {
        true => "no token".into(),
        false => tokens.join(", "),
    })
}

/// How messages are rendered. A template that cannot be used does not prevent a build.
fn chat(checkpoint: &dyn Checkpoint, config: &Config, tokenizer: Option<&dyn Tokenizer>) -> String {
    let own = match checkpoint.chat_template() {
        Ok(Some(template)) => format!("template of {} bytes", template.default.len()),
        Ok(None) => "no template".into(),
        Err(error) => return format!("template, which cannot be used: {error}"),
    };
    let Some(tokenizer) = tokenizer else {
        return own;
    };
    let chat = super::chat::chat(&BuildOptions::default(), checkpoint, config, tokenizer);
    let text = match chat.format() {
        Format::None => "no format: calls need a chat_template".into(),
        Format::Llama2 => "Llama 2's format, which is built in".into(),
        Format::Llama3 => "Llama 3's format, which is built in".into(),
        Format::Template => own,
    };
    match chat.broken() {
        Some(error) => format!("{text}, which cannot be used: {error}"),
        None => text,
    }
}

/// A number of bytes in a unit that people can read.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64 / 1e3, 0);
    while value >= 1000.0 && unit < 3 {
        (value, unit) = (value / 1e3, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}
