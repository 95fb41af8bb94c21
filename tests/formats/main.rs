//! What files hold: configurations, tensors, tokenizers, dialogs. And every lie that is refused.

mod account;
mod adapter_cuts;
mod adapter_merges;
#[path = "../support/aloud.rs"]
mod aloud;
mod chat;
mod chat_templates;
#[path = "../support/checkpoints/mod.rs"]
mod checkpoints;
mod config;
mod config_refused;
mod cuts;
mod files;
mod fingerprint;
mod foreign_files;
mod foreign_fused;
mod foreign_slabs;
mod forms;
mod fuzz;
mod gguf;
mod gguf_config;
mod info;
mod jinja;
mod kept;
mod limits;
mod peers;
mod pth_files;
mod quantise;
mod quantised;
mod rng;
mod rope;
mod tokenizer;
mod tokenizer_beside;
mod tokenizer_gguf;
mod tokenizer_parts;
mod tokenizer_random;
mod tokenizer_ranks;
mod tokenizer_real;
mod tokenizer_refused;
mod tokenizer_tekken;
mod tokenizer_words;
#[path = "../support/tokenizers.rs"]
mod tokenizers;
mod torch_bin;
mod weights;
mod weights_made;
