//! The harness of the conformance suite over the simulated library: nodes in one process, whose target ends can be held, with a
//! relay in front of every node's control connection that can be held and cut.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mori_core::{Backend, EngineDesc, Error, ErrorKind, Result, Secret};
use mori_rdma::{Completion, RdmaBackend, RdmaConfig};
use mori_testkit::{Abilities, Bounds, Harness, Node};
use mori_verbs_sim::Simulation;

use super::relay::Relay;

pub(crate) struct RdmaHarness(pub(crate) RdmaConfig);

struct RdmaNode {
    backend: Arc<RdmaBackend>,
    simulation: Simulation,
    relay: Mutex<Option<Relay>>,
}

/// A peer that does not answer what needs its processor is lost after this long; what is held for less than that goes on.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);

fn absent(words: String) -> Error {
    Error::new(ErrorKind::Unavailable, words)
}

impl Harness for RdmaHarness {
    fn name(&self) -> String {
        let RdmaConfig { qps_per_path, max_devices, completion, .. } = &self.0;
        format!(
            "mori-rdma over the simulation, {max_devices} devices, {qps_per_path} queue pairs, {completion:?}"
        )
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        let simulation = Simulation::open().map_err(absent)?;
        let config = RdmaConfig { library: Some(simulation.library().to_owned()), ..self.0.clone() };
        Ok(Box::new(RdmaNode { backend: RdmaBackend::new(config)?, simulation, relay: Mutex::new(None) }))
    }

    fn abilities(&self) -> Abilities {
        // What a silent device does is the device's to say; the guest's tests show it with a real driver.
        Abilities { hold: true, cut: true, silence: false }
    }

    fn bounds(&self) -> Bounds {
        Bounds { silence: PEER_TIMEOUT * 2, ..Bounds::default() }
    }
}

impl RdmaNode {
    fn relay(&self, act: impl FnOnce(&Relay)) {
        if let Some(relay) = &*self.relay.lock().unwrap_or_else(PoisonError::into_inner) {
            act(relay);
        }
    }

    /// Holds everything that reaches this node's queue pairs, or lets it go on.
    fn hold_pairs(&self, held: bool) {
        for passive in self.backend.stats().passive {
            // One that has gone meanwhile holds nothing.
            let _ = self.simulation.hold_pair(&passive.device, passive.queue_pair, held);
        }
    }
}

impl Node for RdmaNode {
    fn backend(&self) -> Arc<dyn Backend> {
        let backend: Arc<RdmaBackend> = Arc::clone(&self.backend);
        backend
    }

    fn publish(&self, mut desc: EngineDesc) -> Result<EngineDesc> {
        let mut slot = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        // The port stands behind the 16 bytes of the instance; the host is loopback already.
        let port = desc
            .transports
            .iter_mut()
            .find(|blob| blob.transport == "rdma")
            .and_then(|blob| blob.bytes.get_mut(16..18))
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the descriptor has no rdma blob"))?;
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
        self.hold_pairs(true);
    }

    fn release(&self) {
        self.hold_pairs(false);
        self.relay(Relay::flow);
    }

    fn cut(&self) {
        // A link that is cut carries nothing on either plane; only the control plane says so at once.
        self.hold_pairs(true);
        self.relay(Relay::cut);
    }

    fn heal(&self) {
        self.release();
    }
}

/// Small chunks and short queues, so that transfers take all lanes and wait for places.
pub(crate) fn config(devices: usize, qps_per_path: usize, completion: Completion) -> RdmaConfig {
    RdmaConfig {
        max_devices: devices,
        qps_per_path,
        completion,
        chunk_bytes: 64 << 10,
        max_chain: 16,
        send_queue: 64,
        notify_slots: 8,
        // Shorter than the suite holds a transfer that it cancels.
        cancel_grace: Duration::from_millis(5),
        peer_timeout: PEER_TIMEOUT,
        secret: Some(Secret::new(*b"conformance")),
        ..RdmaConfig::default()
    }
}
