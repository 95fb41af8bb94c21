#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = std::path::Path::new("tokenizer.model");
    if let Ok(tokenizer) = llamabi::tokenizer::from_bytes(path, data) {
        for text in ["", " a  b", "\u{e9}\u{4f60}\u{1f600}", "aaaaaaaaaaaaaaaa"] {
            if let Ok(tokens) = tokenizer.encode(text) {
                tokenizer.decode(&tokens).unwrap();
            }
        }
    }
});
