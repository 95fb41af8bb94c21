//! The tokenizer that a GGUF's metadata describe.

/// The keys `tokenizer.ggml.*` of a GGUF, as they stand there. What they mean is checked when a
/// tokenizer is made of them; the reader of the file only bounds their sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `model`: `llama` (SentencePiece) or `gpt2` (byte-level BPE); others are not supported.
    pub model: String,
    /// `pre`: how texts are split before `gpt2` merges them.
    pub pre: Option<String>,
    /// `tokens`: the text of every id, in the spelling of its model.
    pub tokens: Vec<String>,
    /// `scores`: one for each token, of `llama`; empty where the key is missing.
    pub scores: Vec<f32>,
    /// `token_type`: one for each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6
    /// byte); empty where the key is missing.
    pub types: Vec<i32>,
    /// `merges`: of `gpt2`, two tokens with a space between them; the first has the lowest rank.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_id: Option<u32>,
    /// `eot_token_id`: end of a turn.
    pub eot_id: Option<u32>,
    /// `eom_token_id`: end of a message.
    pub eom_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}
