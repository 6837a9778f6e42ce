//! The sessions that [`Engine::read`](crate::Engine::read) and its relatives have opened, for the next call of the same pair.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use lru::LruCache;
use mori_core::{EngineKey, MemoryDesc, RegionId};

use crate::session::Session;
use crate::sync;

/// The pair of regions by their numbers, with a hash of the remote engine's key. Two incarnations of one engine may give
/// out the same number; the descriptor beside the session tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    local: RegionId,
    remote: u64,
    engine: u64,
}

struct Entry {
    remote: MemoryDesc,
    session: Session,
}

/// A bounded table; the pair that was used least recently makes room.
pub(crate) struct SessionCache {
    capacity: usize,
    hasher: RandomState,
    entries: Mutex<LruCache<Pair, Entry>>,
}

impl SessionCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, hasher: RandomState::new(), entries: Mutex::new(LruCache::unbounded()) }
    }

    fn pair(&self, local: RegionId, remote: &MemoryDesc) -> Pair {
        Pair { local, remote: remote.id, engine: self.hasher.hash_one(&remote.engine_key) }
    }

    /// The session of the pair, if it was opened with an equal descriptor.
    pub(crate) fn get(&self, local: RegionId, remote: &MemoryDesc) -> Option<Session> {
        let pair = self.pair(local, remote);
        let mut entries = sync::lock(&self.entries);
        entries.get(&pair).filter(|entry| entry.remote == *remote).map(|entry| entry.session.clone())
    }

    /// Keeps a session, if `still_valid` says so under the table's lock. Whoever makes a session invalid does so first and
    /// purges second, so that a session opened meanwhile is either refused here or purged there.
    pub(crate) fn put(
        &self,
        local: RegionId,
        remote: &MemoryDesc,
        session: Session,
        still_valid: impl FnOnce() -> bool,
    ) {
        let pair = self.pair(local, remote);
        let mut entries = sync::lock(&self.entries);
        if !still_valid() {
            return;
        }
        let replaced = entries.push(pair, Entry { remote: remote.clone(), session });
        let oldest = if entries.len() > self.capacity { entries.pop_lru() } else { None };
        // Sessions are dropped after the lock: a backend may take its time to close one.
        drop(entries);
        drop((replaced, oldest));
    }

    pub(crate) fn purge_region(&self, region: RegionId) {
        self.purge(|pair, _| pair.local == region);
    }

    pub(crate) fn purge_peer(&self, peer: &EngineKey) {
        self.purge(|_, entry| entry.remote.engine_key == *peer);
    }

    pub(crate) fn purge_backend(&self, backend: &str) {
        self.purge(|_, entry| entry.session.backend() == backend);
    }

    pub(crate) fn purge_all(&self) {
        self.purge(|_, _| true);
    }

    fn purge(&self, invalid: impl Fn(&Pair, &Entry) -> bool) {
        let mut entries = sync::lock(&self.entries);
        let pairs: Vec<Pair> =
            entries.iter().filter(|(pair, entry)| invalid(pair, entry)).map(|(pair, _)| *pair).collect();
        let purged: Vec<Option<Entry>> = pairs.iter().map(|pair| entries.pop(pair)).collect();
        drop(entries);
        drop(purged);
    }
}
