//! Adapters of requests on the ranks of one process. An adapter of the engine's is what rank 0 has
//! of it, and holds on to what the others have: so all of it is freed at once, when nobody uses it
//! any more.

use crate::backend::Adapter;
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// What all ranks but the first have of an adapter, in order.
struct Parts(Vec<Arc<Adapter>>);

/// The adapter of which each rank has one of these parts.
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

/// Puts into `to`, which is empty, what rank `rank`, which is not the first, has of a step's
/// adapters.
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
