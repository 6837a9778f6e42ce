//! The harness of the conformance suite in one process: a relay in front of every node that can be cut, and the backend's own
//! way of making peers wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mori_core::{Backend, EngineDesc, Error, ErrorKind, Result};
use mori_shm::{Secret, ShmBackend, ShmConfig};
use mori_testkit::{Abilities, Bounds, Harness, Node};

use super::relay::{Relay, socket_name};

pub(crate) struct ShmHarness(pub(crate) ShmConfig);

struct ShmNode {
    backend: Arc<ShmBackend>,
    relay: Mutex<Option<Relay>>,
}

impl Harness for ShmHarness {
    fn name(&self) -> String {
        format!("mori-shm, {} threads, {} bytes at once", self.0.threads, self.0.inline_bytes)
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Ok(Box::new(ShmNode { backend: ShmBackend::new(self.0.clone())?, relay: Mutex::new(None) }))
    }

    fn abilities(&self) -> Abilities {
        // A target takes no part in transfers, so one that falls silent loses none.
        Abilities { hold: true, cut: true, silence: false }
    }

    fn bounds(&self) -> Bounds {
        Bounds::default()
    }
}

impl ShmNode {
    fn relay(&self, act: impl FnOnce(&Relay)) {
        if let Some(relay) = &*self.relay.lock().unwrap_or_else(PoisonError::into_inner) {
            act(relay);
        }
    }
}

impl Node for ShmNode {
    fn backend(&self) -> Arc<dyn Backend> {
        let backend: Arc<ShmBackend> = Arc::clone(&self.backend);
        backend
    }

    fn publish(&self, mut desc: EngineDesc) -> Result<EngineDesc> {
        let mut slot = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        // The random part of the socket's name stands behind the instance and the boot id.
        let name = desc
            .transports
            .iter_mut()
            .find(|blob| blob.transport == "shm")
            .and_then(|blob| blob.bytes.get_mut(32..48))
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the descriptor has no shm blob"))?;
        if slot.is_none() {
            let relay = Relay::new(socket_name(name));
            *slot = Some(relay.map_err(|error| Error::io(ErrorKind::Unavailable, "no relay", &error))?);
        }
        if let Some(relay) = &*slot {
            name.copy_from_slice(&relay.name);
        }
        Ok(desc)
    }

    fn hold(&self) {
        // Before the node is attached there is nothing to hold.
        let _ = self.backend.suspend(Duration::from_secs(5));
    }

    fn release(&self) {
        self.backend.resume();
    }

    fn cut(&self) {
        self.relay(Relay::cut);
    }

    fn heal(&self) {
        self.relay(Relay::heal);
    }
}

/// Small steps, so that every transfer of more than a few kilobytes takes many, on several threads; nothing at once.
pub(crate) fn config() -> ShmConfig {
    ShmConfig {
        threads: 3,
        inline_bytes: 0,
        chunk_bytes: 16 << 10,
        connect_timeout: Duration::from_secs(5),
        peer_timeout: Duration::from_secs(5),
        secret: Some(Secret::new(*b"conformance")),
        ..ShmConfig::default()
    }
}
