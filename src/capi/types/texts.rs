//! Tokens, chat templates and grammars.

#![allow(non_camel_case_types)]

use std::ffi::c_char;

// Section: Tokens

/// `llama_encode_text`: begin with the BOS token.
pub const LLAMA_ENC_BOS: u32 = 1;
/// `llama_encode_text`: end with the EOS token.
pub const LLAMA_ENC_EOS: u32 = 2;
/// `llama_encode_text`: read the texts of special and added tokens (`<|eot_id|>`) as these tokens.
/// Without this flag they are ordinary text, whoever wrote them.
pub const LLAMA_ENC_SPECIAL: u32 = 4;

// Section: Chat templates

/// `llama_chat_options.flags`: do not begin the answer.
pub const LLAMA_CHAT_NO_GENERATION_PROMPT: u32 = 1;
/// End the prompt behind the last message's content, so that the model continues this message.
pub const LLAMA_CHAT_CONTINUE_FINAL: u32 = 2;
/// Texts of special tokens in messages become these tokens. Without this flag only texts that the
/// template itself writes do, and a message cannot end its own turn.
pub const LLAMA_CHAT_PARSE_SPECIAL: u32 = 4;

/// What surrounds the messages of `llama_chat`. Fill with `llama_chat_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_chat_options {
    /// `sizeof(llama_chat_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_CHAT_*`.
    pub flags: u32,
    /// A JSON array of tools, `{"type": "function", "function": {...}}`. NULL: none.
    pub tools: *const c_char,
    /// Bytes of `tools`. SIZE_MAX means that it is NUL-terminated.
    pub tools_len: usize,
    /// A JSON object of variables for the template (`enable_thinking`, `date_string`). NULL: none.
    pub variables: *const c_char,
    /// Bytes of `variables`. SIZE_MAX means that it is NUL-terminated.
    pub variables_len: usize,
    /// A Jinja template. NULL means the handle's.
    pub chat_template: *const c_char,
    /// Bytes of `chat_template`. SIZE_MAX means that it is NUL-terminated.
    pub chat_template_len: usize,
}

// Section: Grammars

/// A compiled grammar.
pub struct llama_grammar {
    _opaque: [u8; 0],
}
/// A compiled grammar.
pub type llama_grammar_t = llama_grammar;

/// The language of the JSON values that a JSON Schema allows.
/// Between the parts of a value there is at most one space; `whitespace_pattern` or
/// `whitespace_flexible` of the schema's `x-guidance` says something else.
pub const LLAMA_GRAMMAR_JSON_SCHEMA: i32 = 1;
/// The language of all JSON objects, with at most one space between their parts. It takes no
/// source.
pub const LLAMA_GRAMMAR_JSON: i32 = 2;
/// The language of the texts that a regular expression matches as a whole. The syntax is that of
/// Rust's regex crate.
pub const LLAMA_GRAMMAR_REGEX: i32 = 3;
/// A grammar in llguidance's dialect of Lark.
pub const LLAMA_GRAMMAR_LARK: i32 = 4;
/// The language of the strings of a JSON array. They are distinct, and none is empty.
pub const LLAMA_GRAMMAR_CHOICE: i32 = 5;
