//! `llama_chat`, `llama_stream_open_messages`, `llama_render_chat`, `llama_encode_chat`.
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::object::Handle;
use super::types::*;
use super::{args, generate, layout, stream};
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

/// Fill `o` with defaults: no tools, no variables, the handle's template; lengths are SIZE_MAX.
/// Pass `sizeof(llama_chat_options)`, which is kept in it.
///
/// Writes nothing if `o` is NULL or `struct_size` above 4096. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_chat_options_init(o: *mut llama_chat_options, struct_size: usize) {
    guard!(else (), {
        let defaults = llama_chat_options { struct_size: struct_size as u32, ..default_options() };
        // SAFETY: the contract is that `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// What is around messages, as a request without them. NULL: defaults.
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

/// Prompts from messages.
///
/// # Safety
/// `messages`, and `lens` unless NULL, have `n` elements that are as the header demands; so is `c`.
unsafe fn prompts(
    handle: &Handle,
    messages: *const *const c_char,
    lens: *const usize,
    n: usize,
    c: *const llama_chat_options,
    cancel: Option<&Cancel>,
) -> Outcome<Vec<Prompt>> {
    generate::check_batch(n)?;
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

/// Answer `n` dialogs of messages as JSON, by the chat template of `c`, else of the handle, else in
/// Meta's format for its tokenizer. Given to `llama_generate`, of which everything else holds here
/// too.
///
/// `messages[i]` is a JSON array in OpenAI's shape, UTF-8 of `lens[i]` bytes; `lens` NULL, or a
/// length of SIZE_MAX, means NUL-terminated. A message has `role`, `content` (a string, null, or an
/// array of `{"type": "text", "text": ...}`), and perhaps `tool_calls` (whose `arguments` may be a
/// string of JSON), `tool_call_id`, `name`, `reasoning_content`; other keys are given to the
/// template as they are. `c` NULL: no tools, no variables. It is one for all dialogs.
///
/// What a template writes may be special tokens, what messages hold never is (unless
/// `LLAMA_CHAT_PARSE_SPECIAL`); no BOS is added but what the template writes. A template ends
/// within 5 million steps and 64 MiB + 16 bytes for each byte of messages, tools and variables.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` also where JSON cannot be read (naming line and column),
/// where a template refuses the dialog (with its sentence) or has no value for it; with
/// `LLAMA_E_UNSUPPORTED` where there is no template, or it asks for what is not there; with
/// `LLAMA_E_FORMAT` where a template cannot be read or passes a limit.
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
        // SAFETY: the contract of the header is that of the functions called.
        unsafe {
            generate::run("llama_chat", scope, l, o, n, out, |handle, cancel| {
                prompts(handle, messages, lens, n, c, cancel)
            })
        }
    })
}

/// Start a call on messages as JSON and pull its events: the prompts of `llama_chat`, and
/// `llama_stream_open` in all else.
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
        // SAFETY: the contract of the header is that of the functions called.
        unsafe {
            stream::open("llama_stream_open_messages", scope, l, o, out, |handle| {
                prompts(handle, messages, lens, n, c, None)
            })
        }
    })
}

/// One dialog as the text that the template makes of it. Arguments and errors as in `llama_chat`; a
/// model in the Llama 2 format has no such text (`LLAMA_E_UNSUPPORTED`).
///
/// `buf` has room for `cap` bytes, `*n` is how many there are, without the NUL that follows them
/// where `cap` is larger. A `cap` that is too small: as in `llama_encode_text`. Any thread, also
/// from inside a callback.
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
        // SAFETY: the contract is that they are NULL or writable, `buf` for `cap` bytes.
        let out = unsafe { args::buffer("buf", buf.cast::<u8>(), cap, "n", n) }?;
        // SAFETY: the contract is `len` readable bytes, or NUL-terminated; `c` as the header
        // demands.
        let (messages, around) = unsafe { (args::text("messages", messages, len)?, request(c)?) };
        let request = ChatRequest { messages, ..around };
        let rendered = handle.llama.chat().render(&request, None)?;
        out.fill(rendered.text.as_bytes(), Some(0))?;
        Ok(LLAMA_OK)
    })
}

/// Tokens of one dialog, as `llama_chat` gives them to the model. Arguments and errors as there.
///
/// `buf`, `cap`, `*n` (in tokens): as in `llama_encode_text`. Any thread, also from inside a
/// callback.
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
        // SAFETY: the contract is that they are NULL or writable, `buf` for `cap` tokens.
        let out = unsafe { args::buffer("buf", buf, cap, "n", n) }?;
        // SAFETY: the contract is `len` readable bytes, or NUL-terminated; `c` as the header
        // demands.
        let (messages, around) = unsafe { (args::text("messages", messages, len)?, request(c)?) };
        let request = ChatRequest { messages, ..around };
        let (chat, tokenizer) = (handle.llama.chat(), handle.llama.tokenizer());
        match chat.encode(tokenizer, &request, Bound::default())? {
            Encoding::Tokens(tokens) => out.fill(&tokens, None)?,
            Encoding::Unsafe => return Err(Failure::invalid(UNSAFE_ERROR)),
            Encoding::TooLong(least) => unreachable!("{least} tokens and no bound"),
        }
        Ok(LLAMA_OK)
    })
}
