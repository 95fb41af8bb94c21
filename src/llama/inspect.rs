//! What a checkpoint is and what it needs, without loading its weights: `llamabi-info`.

use super::BuildOptions;
use super::build::{check_vocabulary, tokenizer_of};
use super::setting::cpu_memory;
use crate::backend::cpu::{Cpu, available_bytes};
use crate::checkpoint::{self, Plan};
use crate::model::Config;
use crate::{Dtype, Result, sentence};
use std::fmt::Write as _;
use std::path::Path;

/// Formats of weights that the report compares; `None`: as stored.
const DTYPES: [Option<Dtype>; 4] = [
    None,
    Some(Dtype::Bf16),
    Some(Dtype::Int8),
    Some(Dtype::Int4),
];

/// Lengths of a context that the report compares.
const CONTEXTS: [usize; 4] = [2048, 8192, 32_768, 131_072];

/// Writes a report in lines to `text`. Files are opened and every tensor is found and checked, as
/// when the model is built; no weights are read.
///
/// # Errors
/// Those of [`crate::Llama::build`] that come before weights are read: why the checkpoint would be
/// refused. What the report could say then is written.
pub fn report(path: &Path, tokenizer: Option<&Path>, text: &mut String) -> Result<()> {
    let checkpoint = checkpoint::open(path)?;
    let tokenizer = tokenizer_of(&*checkpoint, tokenizer);
    let n_tokens = tokenizer
        .as_ref()
        .map_or(0, |(_, tokenizer)| tokenizer.vocab_size());
    let config = match checkpoint.config(n_tokens) {
        Ok(config) => config,
        // Some have the size of their vocabulary from the tokenizer, which is opened first.
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
    line("model", shape(&config));
    line("tokenizer", format!("{n_tokens} tokens"));
    let template = match checkpoint.chat_template()? {
        Some(template) => format!("{} bytes", template.default.len()),
        None => "none".into(),
    };
    line("template", template);
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
    let (path, tokenizer) = tokenizer?;
    check_vocabulary(path, &*tokenizer, &config)
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

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64 / 1e3, 0);
    while value >= 1000.0 && unit < 3 {
        (value, unit) = (value / 1e3, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}
