//! `llamabi-info DIR|FILE [TOKENIZER]`: what a checkpoint is, what it needs, or why it would be
//! refused. Loads no weights.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let (path, tokenizer) = match &args[..] {
        [path] => (path, None),
        [path, tokenizer] => (path, Some(Path::new(tokenizer))),
        _ => {
            eprintln!("usage: llamabi-info DIR|FILE [TOKENIZER]");
            return ExitCode::from(2);
        }
    };
    let mut text = String::new();
    let outcome = llamabi::llama::inspect::report(Path::new(path), tokenizer, &mut text);
    print!("{text}");
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refused: {error}");
            ExitCode::FAILURE
        }
    }
}
