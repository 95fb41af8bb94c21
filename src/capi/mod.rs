//! The C API. It has no logic: an export converts its arguments, calls [`crate::Llama`] and
//! converts the answer, within a guard.
//!
//! `include/llamabi.h` is generated from these files (`make header`); the doc comments here are the
//! documentation there. A map:
//!
//! | file | what it holds |
//! |---|---|
//! | `types` | every constant and struct of the header, a file for some sections |
//! | `failure.rs` | why a call fails: its status and its sentence |
//! | `guard.rs` | what surrounds each export: panics, `llama_error`, log lines |
//! | `callback.rs` | whether a thread is inside a callback |
//! | `layout.rs` | `struct_size`: what is read of a caller's struct and written to it |
//! | `layout/fields.rs` | the fields of each of those structs, in order |
//! | `args.rs` | pointers and lengths to slices and text |
//! | `table.rs` | the live objects: what an opaque pointer means, or that it means nothing |
//! | `object.rs`, `cells.rs` | what is behind `llama_t`, and behind cancel flags |
//! | `handle.rs` | `llama_build`, `llama_free`, versions |
//! | `building.rs` | what `llama_build` is told: options and paths |
//! | `options.rs`, `prompts.rs` | a generation's options and prompts, from C's terms to the engine's |
//! | `generate.rs` | `llama_generate`, `llama_text_completion`, `llama_chat_completion` |
//! | `chat.rs` | `llama_chat` and its like: messages as JSON, templates |
//! | `stream.rs`, `result.rs`, `cancel.rs`, `tokens.rs` | the functions of these names |
//! | `grammar.rs`, `info.rs`, `adapter.rs`, `compress.rs` | the functions of these names |
//! | `ranks.rs` | ranks in several processes: `llama_worker_run`, `llama_get_rank`, `llama_health` |
//!
//! An opaque pointer is no address. It is a number that is never given out twice, which is looked
//! up and never followed. So a stale or foreign pointer, or one that is freed twice, is an error
//! message; a function that frees ignores it. The use of a handle after `fork` is noticed before
//! any lock is touched.
//!
//! Nothing here calls an export, because another library of the process may have an export of the
//! same name. Messages of panics go where the panic hook of the process sends them: to standard
//! error, unless the host is a Rust program that has changed the hook. The hook belongs to the
//! process, so this library does not change it, but for one thing: panics of the parser of grammars
//! are answers, and are kept from the hook while somebody works with a grammar.

// The doc comments of the exports are written for the header. They state in C's terms what a caller
// must hold to, and the contract fixes the parameters.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

#[macro_use]
mod guard;
mod adapter;
mod args;
mod building;
mod callback;
mod cancel;
mod cells;
mod chat;
mod compress;
mod failure;
mod generate;
mod grammar;
mod handle;
mod info;
mod layout;
mod object;
mod options;
mod prompts;
mod ranks;
mod result;
mod stream;
mod table;
mod tokens;
mod types;

pub use adapter::*;
pub use cancel::*;
pub use chat::*;
pub use failure::status_of;
pub use generate::*;
pub use grammar::*;
pub use handle::*;
pub use info::*;
pub use options::*;
pub use ranks::*;
pub use result::*;
pub use stream::*;
pub use tokens::*;
pub use types::*;
