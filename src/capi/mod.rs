//! The C API. No logic: guard, convert, call [`crate::Llama`], convert.
//!
//! `include/llamabi.h` is generated from these files (`make header`); the doc comments here are the
//! documentation there. A map:
//!
//! | file | what it holds |
//! |---|---|
//! | `types.rs` | every constant and struct of the header, by its sections |
//! | `failure.rs` | why a call fails: its status and its sentence |
//! | `guard.rs` | what surrounds each export: panics, `llama_error`, log lines |
//! | `callback.rs` | whether a thread is inside a callback |
//! | `layout.rs` | `struct_size`: what is read of a caller's struct and written to it |
//! | `args.rs` | pointers and lengths to slices and text |
//! | `table.rs` | the live objects: what an opaque pointer means, or that it means nothing |
//! | `object.rs`, `cells.rs` | what is behind `llama_t`, and behind cancel flags |
//! | `handle.rs` | `llama_build`, `llama_free`, versions |
//! | `generate.rs` | `llama_generate`, `llama_text_completion`, `llama_chat_completion` |
//! | `chat.rs` | `llama_chat` and its like: messages as JSON, templates |
//! | `stream.rs`, `result.rs`, `cancel.rs`, `tokens.rs`, `grammar.rs`, `info.rs`, `adapter.rs` | the functions of these names |
//!
//! Opaque pointers are numbers that are never given out twice, not addresses: they are looked up,
//! never followed. So a stale, foreign or doubly freed one is an error message (or, where it is to
//! be freed, nothing at all), and use after `fork` is noticed before any lock is touched.
//!
//! Nothing here calls an export: another library of the process may have one of the same name.
//! Panic messages go where the process's panic hook sends them (standard error, unless the host is
//! a Rust program that changed it): the hook is the process's, not this library's to change.

// The doc comments of the exports are written for the header: what a caller must hold to is said
// there in C's terms, and the contract fixes the parameters.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

#[macro_use]
mod guard;
mod adapter;
mod args;
mod callback;
mod cancel;
mod cells;
mod chat;
mod failure;
mod generate;
mod grammar;
mod handle;
mod info;
mod layout;
mod object;
mod result;
mod stream;
mod table;
mod tokens;
mod types;

pub use adapter::*;
pub use cancel::*;
pub use chat::*;
pub use generate::*;
pub use grammar::*;
pub use handle::*;
pub use info::*;
pub use result::*;
pub use stream::*;
pub use tokens::*;
pub use types::*;
