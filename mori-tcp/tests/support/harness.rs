//! The harness of the conformance suite: backends over loopback, with a relay in front of every node that can be held, cut
//! and silenced.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mori_core::{Backend, EngineDesc, Error, ErrorKind, Result};
use mori_tcp::{Secret, TcpBackend, TcpConfig};
use mori_testkit::{Abilities, Bounds, Harness, Node};

use super::relay::Relay;

pub(crate) struct TcpHarness(pub(crate) TcpConfig);

struct TcpNode {
    backend: Arc<TcpBackend>,
    relay: Mutex<Option<Relay>>,
}

/// A silent peer is lost after this long; what is held for less than that goes on.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);

impl Harness for TcpHarness {
    fn name(&self) -> String {
        format!("mori-tcp, {} connections, {} I/O threads", self.0.connections, self.0.io_threads)
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Ok(Box::new(TcpNode { backend: TcpBackend::new(self.0.clone())?, relay: Mutex::new(None) }))
    }

    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }

    fn bounds(&self) -> Bounds {
        Bounds { silence: PEER_TIMEOUT * 2, ..Bounds::default() }
    }
}

impl TcpNode {
    fn relay(&self, act: impl FnOnce(&Relay)) {
        if let Some(relay) = &*self.relay.lock().unwrap_or_else(PoisonError::into_inner) {
            act(relay);
        }
    }
}

impl Node for TcpNode {
    fn backend(&self) -> Arc<dyn Backend> {
        let backend: Arc<TcpBackend> = Arc::clone(&self.backend);
        backend
    }

    fn publish(&self, mut desc: EngineDesc) -> Result<EngineDesc> {
        let mut slot = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        // The port stands behind the 16 bytes of the instance; the host is loopback already.
        let port = desc
            .transports
            .iter_mut()
            .find(|blob| blob.transport == "tcp")
            .and_then(|blob| blob.bytes.get_mut(16..18))
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the descriptor has no tcp blob"))?;
        if slot.is_none() {
            let real = u16::from_le_bytes([port[0], port[1]]);
            *slot = Some(Relay::new(real).map_err(|e| Error::io(ErrorKind::Unavailable, "no relay", &e))?);
        }
        if let Some(relay) = &*slot {
            port.copy_from_slice(&relay.port().to_le_bytes());
            desc.port = relay.port();
        }
        Ok(desc)
    }

    fn hold(&self) {
        self.relay(Relay::hold);
    }

    fn release(&self) {
        self.relay(Relay::flow);
    }

    fn cut(&self) {
        self.relay(Relay::cut);
    }

    fn silence(&self) {
        self.relay(Relay::hold);
    }

    fn heal(&self) {
        self.relay(Relay::flow);
    }
}

/// Small stripes and chunks, so that every transfer of more than a few kilobytes takes all paths.
pub(crate) fn config() -> TcpConfig {
    TcpConfig {
        peer_timeout: PEER_TIMEOUT,
        stripe_bytes: 16 << 10,
        chunk_bytes: 64 << 10,
        secret: Some(Secret::new(*b"conformance")),
        ..TcpConfig::default()
    }
}
