//! The network of the fake: which nodes there are, and how each of them answers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::core::Core;
use super::{FakeBackend, FakeConfig, locked};

/// A network inside this process, for fake backends that move bytes between each other.
///
/// A handle; clones are handles to the same network. Backends of different networks do not know each other.
#[derive(Clone, Default)]
pub struct FakeFabric(Arc<Net>);

#[derive(Default)]
struct Net {
    nodes: Mutex<HashMap<u64, Weak<Core>>>,
    next: AtomicU64,
}

/// How a node answers, as a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// At once.
    Open,
    /// Not before it is released.
    Held,
    /// Not since this point, and nothing says so.
    Silent(Instant),
    /// Not at all: every connection is refused.
    Cut,
}

impl FakeFabric {
    /// A network without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new backend on this network, which has not joined an engine yet.
    #[must_use]
    pub fn backend(&self, config: FakeConfig) -> Arc<FakeBackend> {
        FakeBackend::on(self, config)
    }

    /// A number that this network gives once: an address, a key.
    pub(super) fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn enter(&self, address: u64, node: &Arc<Core>) {
        locked(&self.0.nodes).insert(address, Arc::downgrade(node));
    }

    pub(super) fn leave(&self, address: u64) {
        locked(&self.0.nodes).remove(&address);
        self.stir();
    }

    pub(super) fn node(&self, address: u64) -> Option<Arc<Core>> {
        locked(&self.0.nodes).get(&address).and_then(Weak::upgrade)
    }

    /// Has every node look again at what it waits for.
    pub(super) fn stir(&self) {
        let nodes: Vec<_> = locked(&self.0.nodes).values().filter_map(Weak::upgrade).collect();
        // Without the network's own lock: no lock is taken under another.
        nodes.iter().for_each(|node| node.stir());
    }
}

impl fmt::Debug for FakeFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeFabric").field("nodes", &locked(&self.0.nodes).len()).finish()
    }
}
