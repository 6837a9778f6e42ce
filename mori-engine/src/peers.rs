//! The engines that this one knows, itself among them, and what each backend said about them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use mori_core::{EngineDesc, EngineKey, Error, ErrorKind, Result};

use crate::attached::Attached;
use crate::backends::Carrier;
use crate::sync;

/// One engine, as last described.
pub(crate) struct Peer {
    pub(crate) desc: EngineDesc,
    verdicts: RwLock<Vec<(&'static str, Result<()>)>>,
}

impl Peer {
    pub(crate) fn new(desc: EngineDesc) -> Arc<Self> {
        Arc::new(Self { desc, verdicts: RwLock::new(Vec::new()) })
    }

    /// Makes the peer known to a backend and keeps the answer.
    pub(crate) fn introduce(&self, attached: &Attached, desc: &EngineDesc) -> Result<()> {
        let verdict = attached.slot.add_peer(desc);
        let mut verdicts = sync::write(&self.verdicts);
        verdicts.retain(|(backend, _)| *backend != attached.name);
        verdicts.push((attached.name, verdict.clone()));
        verdict
    }

    /// Forgets what a backend that leaves has said.
    pub(crate) fn strike(&self, backend: &str) {
        sync::write(&self.verdicts).retain(|(name, _)| *name != backend);
    }

    /// What is wrong with the descriptor, if no backend takes it. A transport that the peer does not have is no mistake; bytes
    /// that nobody understands are one.
    pub(crate) fn mistake(&self) -> Option<Error> {
        let verdicts = sync::read(&self.verdicts);
        let refusals: Vec<&Error> =
            verdicts.iter().filter_map(|(_, verdict)| verdict.as_ref().err()).collect();
        if refusals.len() < verdicts.len() {
            return None;
        }
        refusals.into_iter().find(|error| error.kind() != ErrorKind::NotFound).cloned()
    }

    /// Whether the backend can reach the peer; if not, why.
    pub(crate) fn reachable_over(&self, backend: &str) -> Result<()> {
        let verdicts = sync::read(&self.verdicts);
        match verdicts.iter().find(|(name, _)| *name == backend) {
            Some((_, verdict)) => verdict.clone(),
            None => {
                Err(Error::new(ErrorKind::NotFound, format!("engine {} is not known to it", self.desc.key)))
            }
        }
    }
}

/// Every known engine by its key.
#[derive(Default)]
pub(crate) struct Peers {
    known: RwLock<HashMap<EngineKey, Arc<Peer>>>,
    /// Held while a peer is introduced to the backends or withdrawn from them, so that all of them end with the same
    /// descriptor when two threads describe one engine differently.
    pub(crate) changes: Mutex<()>,
}

impl Peers {
    pub(crate) fn get(&self, key: &EngineKey) -> Option<Arc<Peer>> {
        sync::read(&self.known).get(key).cloned()
    }

    pub(crate) fn put(&self, peer: Arc<Peer>) {
        sync::write(&self.known).insert(peer.desc.key.clone(), peer);
    }

    pub(crate) fn take(&self, key: &EngineKey) -> Option<Arc<Peer>> {
        sync::write(&self.known).remove(key)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        sync::read(&self.known).values().cloned().collect()
    }

    pub(crate) fn clear(&self) {
        sync::write(&self.known).clear();
    }
}
