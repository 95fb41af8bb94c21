//! The KV cache's bookkeeping: which pages are whose. Host only, no tensors.
//!
//! - `pool`: pages, reference counts, reservation, fork
//! - `prefix`: full pages that prefill wrote, found again by the hash of everything before and in them
