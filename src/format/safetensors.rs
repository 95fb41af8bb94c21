//! Hugging Face's safetensors: a JSON header, then the bytes.
