//! `llama_chat`, `llama_stream_open_messages`, `llama_render_chat`, `llama_encode_chat`.
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::object::Handle;
use super::types::*;
use super::{args, generate, layout, prompts, stream};
use crate::chat::{ChatRequest, Encoding, UNSAFE_ERROR};
use crate::engine::Prompt;
use crate::tokenizer::Bound;
use crate::{Cancel, reserve};
use std::ffi::c_char;
use std::ptr;

const KNOWN_FLAGS: u32 =
    LLAMA_CHAT_NO_GENERATION_PROMPT | LLAMA_CHAT_CONTINUE_FINAL | LLAMA_CHAT_PARSE_SPECIAL;

fn default_options() -> llama_chat_options {
    llama_chat_options {
        struct_size: size_of::<llama_chat_options>() as u32,
        flags: 0,
        tools: ptr::null(),
        tools_len: usize::MAX,
        variables: ptr::null(),
        variables_len: usize::MAX,
        chat_template: ptr::null(),
        chat_template_len: usize::MAX,
    }
}

// Section: Chat templates

/// Fill `o` with defaults: no tools, no variables, the handle's template, and SIZE_MAX for lengths.
/// Pass `sizeof(llama_chat_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_chat_options_init(o: *mut llama_chat_options, struct_size: usize) {
    guard!(else (), {
        let defaults = llama_chat_options { struct_size: struct_size as u32, ..default_options() };
        // SAFETY: by contract `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// Makes a chat request of the caller's options, still without messages. NULL means defaults.
///
/// # Safety
/// `c` is NULL or as the header demands, and its texts stay unchanged for `'a`.
unsafe fn request<'a>(c: *const llama_chat_options) -> Outcome<ChatRequest<'a>> {
    let mut given = default_options();
    if !c.is_null() {
        // SAFETY: by this function's contract.
        given = unsafe { layout::read("c", c, given) }?;
    }
    if given.flags & !KNOWN_FLAGS != 0 {
        return Err(Failure::invalid(format!(
            "c->flags is {:#x}, known LLAMA_CHAT_* bits are {KNOWN_FLAGS:#x}",
            given.flags
        )));
    }
    let text = |name: &str, p: *const c_char, len: usize| match p.is_null() {
        true => Ok(None),
        // SAFETY: by this function's contract.
        false => unsafe { args::text(name, p, len) }.map(Some),
    };
    Ok(ChatRequest {
        messages: "",
        tools: text("tools", given.tools, given.tools_len)?,
        variables: text("variables", given.variables, given.variables_len)?,
        template: text(
            "chat_template",
            given.chat_template,
            given.chat_template_len,
        )?,
        no_generation_prompt: given.flags & LLAMA_CHAT_NO_GENERATION_PROMPT != 0,
        continue_final: given.flags & LLAMA_CHAT_CONTINUE_FINAL != 0,
        parse_special: given.flags & LLAMA_CHAT_PARSE_SPECIAL != 0,
    })
}

/// Makes prompts of messages.
///
/// # Safety
/// `messages` has `n` elements that are as the header demands, and so has `lens` unless it is NULL.
/// `c` is as the header demands, too.
unsafe fn prompts(
    handle: &Handle,
    messages: *const *const c_char,
    lens: *const usize,
    n: usize,
    c: *const llama_chat_options,
    cancel: Option<&Cancel>,
) -> Outcome<Vec<Prompt>> {
    prompts::check_batch(n)?;
    // SAFETY: by this function's contract.
    let messages = unsafe { args::slice("messages", messages, n) }?;
    // SAFETY: as above.
    let lens = match lens.is_null() {
        true => None,
        false => Some(unsafe { args::slice("lens", lens, n) }?),
    };
    // SAFETY: as above.
    let around = unsafe { request(c) }?;
    let mut requests = reserve::room("the dialogs", n)?;
    for (i, &text) in messages.iter().enumerate() {
        let len = lens.map_or(usize::MAX, |lens| lens[i]);
        // SAFETY: as above.
        let messages = unsafe { args::text(format_args!("messages[{i}]"), text, len) }?;
        requests.push(ChatRequest { messages, ..around });
    }
    Ok(handle.llama.message_prompts(&requests, cancel)?)
}

/// Answer `n` dialogs, whose messages are JSON. The prompts are made by the chat template of `c`,
/// or else of the handle, or else in Meta's format for its tokenizer. Everything else is as in
/// `llama_generate`.
///
/// `messages[i]` is a JSON array in OpenAI's shape, UTF-8 of `lens[i]` bytes. It is NUL-terminated
/// if `lens` is NULL or its length is SIZE_MAX. A message has `role`, `content` (a string, null, or
/// an array of `{"type": "text", "text": ...}`), and perhaps `tool_calls` (whose `arguments` may be
/// a string of JSON), `tool_call_id`, `name` and `reasoning_content`. Other keys are given to the
/// template as they are. `c` holds for all dialogs; it may be NULL, which means no tools and no
/// variables.
///
/// Text that a template writes may become special tokens. Text in messages never does, unless
/// `LLAMA_CHAT_PARSE_SPECIAL` is given. A prompt has a BOS only if the template writes it. A
/// template ends within 5 million steps and within 64 MiB + 16 bytes for each byte of messages,
/// tools and variables.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` also if JSON cannot be read (the message names line and
/// column), if a template refuses the dialog (the message has its sentence), or if a template has
/// no value for the dialog. Fails with `LLAMA_E_UNSUPPORTED` if there is no template or if it asks
/// for something that does not exist, and with `LLAMA_E_FORMAT` if a template cannot be read or
/// exceeds a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_chat(
    l: *mut llama_t,
    messages: *const *const c_char,
    lens: *const usize,
    n: usize,
    c: *const llama_chat_options,
    o: *const llama_generate_options,
    out: *mut *mut llama_result_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            generate::run("llama_chat", scope, l, o, n, out, |handle, cancel| {
                prompts(handle, messages, lens, n, c, cancel)
            })
        }
    })
}

/// Start a call on messages as JSON and pull its events. The prompts are as in `llama_chat`,
/// everything else is as in `llama_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_stream_open_messages(
    l: *mut llama_t,
    messages: *const *const c_char,
    lens: *const usize,
    n: usize,
    c: *const llama_chat_options,
    o: *const llama_generate_options,
    out: *mut *mut llama_stream_t,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        // SAFETY: the contract of the header includes the contracts of the functions that are
        // called.
        unsafe {
            stream::open(
                "llama_stream_open_messages",
                scope,
                l,
                o,
                n,
                out,
                |handle, cancel| prompts(handle, messages, lens, n, c, cancel),
            )
        }
    })
}

/// Give the text that the template makes of one dialog. Arguments and errors are as in
/// `llama_chat`. A model in the Llama 2 format has no such text (`LLAMA_E_UNSUPPORTED`).
///
/// `buf` has room for `cap` bytes, and `*n` is the length of the text. A NUL follows the text if
/// `cap` is larger. If `cap` is too small, this does as `llama_encode_text` does. Any thread may
/// call this, also from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_render_chat(
    l: *const llama_t,
    messages: *const c_char,
    len: usize,
    c: *const llama_chat_options,
    buf: *mut c_char,
    cap: usize,
    n: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` bytes.
        let out = unsafe { args::buffer("buf", buf.cast::<u8>(), cap, "n", n) }?;
        // SAFETY: by contract there are `len` readable bytes, or the text is NUL-terminated, and
        // `c` is as the header demands.
        let (messages, around) = unsafe { (args::text("messages", messages, len)?, request(c)?) };
        let request = ChatRequest { messages, ..around };
        let rendered = handle.llama.chat().render(&request, None)?;
        out.fill(rendered.text.as_bytes(), Some(0))?;
        Ok(LLAMA_OK)
    })
}

/// Give the tokens of one dialog, as `llama_chat` gives them to the model. Arguments and errors are
/// as there.
///
/// `buf`, `cap` and `*n` (in tokens) are as in `llama_encode_text`. Any thread may call this, also
/// from inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_encode_chat(
    l: *const llama_t,
    messages: *const c_char,
    len: usize,
    c: *const llama_chat_options,
    buf: *mut i32,
    cap: usize,
    n: *mut usize,
    err: *mut llama_error,
) -> llama_status {
    guard!(err, |scope| {
        let handle = scope.handle(l)?;
        // SAFETY: by contract both are NULL or writable, and `buf` has room for `cap` tokens.
        let out = unsafe { args::buffer("buf", buf, cap, "n", n) }?;
        // SAFETY: by contract there are `len` readable bytes, or the text is NUL-terminated, and
        // `c` is as the header demands.
        let (messages, around) = unsafe { (args::text("messages", messages, len)?, request(c)?) };
        let request = ChatRequest { messages, ..around };
        let (chat, tokenizer) = (handle.llama.chat(), handle.llama.tokenizer());
        match chat.encode(tokenizer, &request, Bound::default())? {
            Encoding::Tokens(tokens) => out.fill(&tokens, None)?,
            Encoding::Unsafe => return Err(Failure::invalid(UNSAFE_ERROR)),
            Encoding::TooLong { least, .. } => unreachable!("{least} tokens and no bound"),
        }
        Ok(LLAMA_OK)
    })
}
