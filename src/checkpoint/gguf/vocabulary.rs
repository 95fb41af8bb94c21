//! The keys of a GGUF file's tokenizer -> [`GgufVocabulary`].

use crate::Result;
use crate::format::gguf::Gguf;
use crate::tokenizer::GgufVocabulary;

/// Reads the vocabulary, from which the tokenizer is made.
///
/// # Errors
/// [`crate::Error::Config`] for a key that is missing or has a value of another type.
pub fn vocabulary(file: &Gguf) -> Result<GgufVocabulary> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let required = |name: &str| file.wrong(&key(name), "a tokenizer", "missing");
    let id = |name: &str| {
        let (key, expected) = (key(name), "the id of a token, or -1");
        // Some converters write -1 if there is no such token.
        match file.i64(&key)? {
            None | Some(-1) => Ok(None),
            Some(id) => match u32::try_from(id) {
                // -1 as an unsigned 32-bit integer.
                Ok(u32::MAX) => Ok(None),
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(file.wrong(&key, expected, id)),
            },
        }
    };
    Ok(GgufVocabulary {
        model: file.text(&key("model"))?.ok_or_else(|| required("model"))?,
        pre: file.text(&key("pre"))?,
        tokens: file
            .texts(&key("tokens"))?
            .ok_or_else(|| required("tokens"))?,
        scores: file.f32s(&key("scores"))?.unwrap_or_default(),
        types: file.i32s(&key("token_type"))?.unwrap_or_default(),
        merges: file.texts(&key("merges"))?.unwrap_or_default(),
        bos_id: id("bos_token_id")?,
        eos_id: id("eos_token_id")?,
        eot_id: id("eot_token_id")?,
        eom_id: id("eom_token_id")?,
        pad_id: id("padding_token_id")?,
        unk_id: id("unknown_token_id")?,
        add_bos: file.bool(&key("add_bos_token"))?,
        add_space_prefix: file.bool(&key("add_space_prefix"))?,
        is_phi3: file.text("general.architecture")?.as_deref() == Some("phi3"),
    })
}
