//! Whole models on the CPU, from their directory to their tokens, most through the C API.

#[path = "../support/adapted.rs"]
mod adapted;
mod adapters;
#[path = "../support/aloud.rs"]
mod aloud;
#[path = "../support/checkpoints/mod.rs"]
mod checkpoints;
#[path = "../support/common.rs"]
mod common;
mod compressed;
mod decoding;
mod demo;
mod drafts;
mod failures;
mod finite;
mod forced;
mod gguf_families;
mod grammar;
mod grammar_masks;
mod invariance;
mod llama3;
mod many_streams;
mod medusa;
#[path = "../support/medusa_cases.rs"]
mod medusa_cases;
mod ranks;
mod reference;
#[path = "../support/reference_cases/mod.rs"]
mod reference_cases;
mod samples;
mod schema_suite;
mod sentences;
#[path = "../support/small_model.rs"]
mod small_model;
mod smollm2;
#[path = "../support/span_cases.rs"]
mod span_cases;
mod spans;
mod stored;
#[path = "../support/tokenizers.rs"]
mod tokenizers;
mod unread;
