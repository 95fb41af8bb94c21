//! Writes a quantised copy of a checkpoint, which loads without being quantised again.
//!
//!     cargo run --release --example quantize -- <source directory> <new directory> <int8|int4|nf4>
//!
//! The source is Meta's or Hugging Face's directory; `llamabi::checkpoint::llamabi` describes the
//! result.

use llamabi::llama::quantise;
use llamabi::quant::Quant;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quant = arguments.get(2).and_then(|name| Quant::named(name));
    let ([from, to, _], Some(quant)) = (&arguments[..], quant) else {
        eprintln!("usage: quantize <source directory> <new directory> <int8|int4|nf4>");
        return ExitCode::from(2);
    };
    match quantise::write(Path::new(from), Path::new(to), quant) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
