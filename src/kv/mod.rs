//! The KV cache's bookkeeping: which pages are whose. Host only, no tensors.
//!
//! - [`pool`]: pages and their reference counts; least recently used cached pages are reclaimed
//! - [`table`]: the pages that a sequence has and may take
//! - [`prefix`]: full pages that prefill wrote, found again by everything before and in them

pub mod pool;
pub mod prefix;
pub mod table;

pub use pool::Pool;
pub use prefix::{Hit, NodeId, Root};
pub use table::Table;
