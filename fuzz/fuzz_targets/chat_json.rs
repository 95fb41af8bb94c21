#![no_main]
//! Messages as JSON, through a template that shows all of them.
use llamabi::chat::{Chat, ChatRequest, Sources};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(messages) = std::str::from_utf8(data) else { return };
    let path = std::path::Path::new("tests/data/small-tokenizer.model");
    let Ok(tokenizer) = llamabi::tokenizer::open(path) else { return };
    let default = "{% for m in messages %}{{ m | tojson }}{{ m.content }}{% endfor %}".into();
    let sources = Sources { default, tool_use: None };
    let chat = Chat::new(Some(Ok(sources)), Vec::new(), &*tokenizer, Some(0));
    for continue_final in [false, true] {
        let request = ChatRequest { messages, continue_final, ..ChatRequest::default() };
        if let Ok(done) = chat.render(&request, None) {
            assert_eq!(done.runs.iter().map(|run| run.len).sum::<usize>(), done.text.len());
        }
    }
});
