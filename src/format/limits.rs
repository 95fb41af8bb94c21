//! How large a table of contents may be. Real checkpoints stay far below these numbers; what lies
//! beyond them is refused before it costs time or memory.

/// Most tensors of a checkpoint, all of its files together. A mixture of 256 experts in each of 60
/// layers, with three matrices and their scales for each expert, has 92,000.
pub const MAX_TENSORS: usize = 1 << 17;

/// Most dimensions of a tensor. The weights of a Transformer have one or two.
pub const MAX_RANK: usize = 8;

/// Most files of a checkpoint. Each stays open, and a process may have 1,024 by default.
pub const MAX_FILES: usize = 1000;

/// Most bytes of the safetensors headers of a checkpoint: 256 for each of [`MAX_TENSORS`].
pub const MAX_HEADER: u64 = 32 << 20;

/// A header that is longer than this must not be longer than its tensors' data: its entries have
/// some 100 bytes, and even the weight of an RMSNorm has thousands.
pub const FREE_HEADER: u64 = 1 << 20;

/// Most bytes of a safetensors index: 128 for each of [`MAX_TENSORS`].
pub const MAX_INDEX: u64 = 16 << 20;

/// Most bytes of the pickle of a `.pth`; Llama 2 70B's has 200 KB.
pub const MAX_PICKLE: u64 = 16 << 20;

/// Most values that the pickle of a `.pth` may make; Llama 3.1 405B's makes some 50,000.
pub const MAX_VALUES: usize = 1 << 20;

/// Most bytes of the zip directory of a `.pth`, which has one entry of about 100 bytes per tensor.
pub const MAX_DIRECTORY: u64 = 16 << 20;

/// Most tensors of a GGUF file. ggml's own limit for a model is below it.
pub const MAX_GGUF_TENSORS: u64 = 1 << 16;

/// Most keys of a GGUF file, which have some 30.
pub const MAX_GGUF_KEYS: u64 = 1 << 16;

/// Most bytes of a key, or of the name of a tensor, of a GGUF file.
pub const MAX_GGUF_KEY: u64 = 64 << 10;

/// Most bytes of one string of a GGUF file, such as a chat template.
pub const MAX_GGUF_STRING: u64 = 16 << 20;

/// Most bytes of all that lies before a GGUF file's data; a vocabulary of 256,000 tokens has some
/// 15 MB.
pub const MAX_GGUF_METADATA: u64 = 256 << 20;
