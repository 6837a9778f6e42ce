//! The backend's own thread: it gives back what finished transfers hold while nobody polls them, completes statuses that were
//! called back or that nobody polls, and closes mappings of regions that their owners have taken back.
//!
//! It sleeps without a timer while nothing is under way and nothing is mapped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::Clock;

use crate::shared::Inner;
use crate::sync::lock;
use crate::transfer::Looker;

/// How often mappings are looked at.
const PRUNING: Duration = Duration::from_secs(1);

/// Runs until the backend is shut down and every transfer is over.
pub(crate) fn run(inner: &Arc<Inner>) {
    let clock = Clock::system();
    let mut swept = clock.now();
    let mut pruned = swept;
    loop {
        let now = clock.now();
        let mut mapped = true;
        if now.saturating_duration_since(pruned) >= PRUNING {
            pruned = now;
            mapped = prune(inner);
        }
        let (busy, idle) = {
            let mut table = lock(&inner.table);
            let busy = !table.transfers.is_empty();
            table.idle = !busy && !mapped;
            (busy, table.idle)
        };
        if !busy && inner.has_ended() {
            return;
        }
        let most = match (busy, idle) {
            (true, _) => Some(inner.config.housekeeping),
            (false, true) => None,
            (false, false) => Some(PRUNING),
        };
        for id in inner.landings.wait(most) {
            if let Some(transfer) = inner.transfer(id) {
                inner.look(&transfer, Looker::Waiter);
            }
        }
        let now = clock.now();
        // Kicks come from removals and shutdowns, whose transfers are doomed and end as soon as they are quiet.
        if now.saturating_duration_since(swept) >= inner.config.housekeeping {
            swept = now;
            inner.sweep(Looker::Keeper(horizon(now, inner.config.grace)));
        }
    }
}

/// Statuses of transfers that were quiet by then are completed. Before the clock's own beginning there were none.
fn horizon(now: Instant, grace: Duration) -> Instant {
    now.checked_sub(grace).unwrap_or(now)
}

/// Returns whether anything is mapped.
fn prune(inner: &Inner) -> bool {
    let mut mapped = false;
    for peer in inner.peers() {
        mapped |= peer.prune();
    }
    mapped
}
