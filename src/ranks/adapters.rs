//! Adapters of requests on the ranks of one process. The engine's adapter is rank 0's part, and it
//! keeps the parts of the other ranks alive. So all parts are freed together, when nobody uses the
//! adapter any more.

use crate::backend::Adapter;
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// The parts that all ranks except the first have of an adapter, in order.
struct Parts(Vec<Arc<Adapter>>);

/// The adapter that consists of the ranks' parts.
///
/// # Panics
/// If there are none.
pub fn whole(parts: Vec<Adapter>, id: u32) -> Adapter {
    let mut parts = parts.into_iter().map(|part| Adapter { id, ..part });
    let mut first = parts.next().expect("at least one rank");
    let others: Vec<_> = parts.map(Arc::new).collect();
    if !others.is_empty() {
        first.on_ranks = Some(Box::new(Parts(others)));
    }
    first
}

/// Fills `to`, which is empty, with the parts that rank `rank` has of a step's adapters. `rank` is
/// not the first.
pub(super) fn put_parts(
    adapters: &[Option<Arc<Adapter>>],
    rank: usize,
    to: &mut Vec<Option<Arc<Adapter>>>,
) -> Result<()> {
    reserve::vec("the adapters of a step", to, adapters.len())?;
    for adapter in adapters {
        to.push(match adapter {
            None => None,
            Some(adapter) => Some(part(adapter, rank)?),
        });
    }
    Ok(())
}

fn part(adapter: &Adapter, rank: usize) -> Result<Arc<Adapter>> {
    let parts = adapter.on_ranks.as_ref();
    let parts = parts.and_then(|parts| parts.downcast_ref::<Parts>());
    let part = parts.and_then(|Parts(others)| others.get(rank - 1));
    let lacking = || Error::Internal(format!("{adapter:?} is not on rank {rank}"));
    part.cloned().ok_or_else(lacking)
}
