//! Two or more backends connected over loopback, without an engine.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part; a test may panic")]

pub(crate) mod harness;
pub(crate) mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mori_core::{
    Access, Attachment, Backend, BackendContext, EngineDesc, EngineKey, MemoryDesc, NotificationQueue, Op,
    Piece, Region, Session, Status, TransferOptions,
};
use mori_tcp::{TcpBackend, TcpConfig};

/// One engine's worth of backend.
pub(crate) struct Node {
    pub(crate) key: EngineKey,
    pub(crate) backend: Arc<TcpBackend>,
    pub(crate) attachment: Attachment,
    pub(crate) notifications: NotificationQueue,
}

pub(crate) fn instance() -> [u8; 16] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    [NEXT.fetch_add(1, Ordering::Relaxed); 16]
}

impl Node {
    pub(crate) fn new(key: &str, config: TcpConfig) -> Self {
        Self::try_new(key, config).unwrap()
    }

    pub(crate) fn try_new(key: &str, config: TcpConfig) -> Result<Self, mori_core::Error> {
        let backend = TcpBackend::new(config)?;
        let notifications = NotificationQueue::new(1024);
        let attachment = backend.attach(BackendContext {
            engine: key.into(),
            instance: instance(),
            node_id: "test".into(),
            notifications: notifications.clone(),
        })?;
        Ok(Self { key: key.into(), backend, attachment, notifications })
    }

    pub(crate) fn port(&self) -> u16 {
        self.attachment.port.unwrap()
    }

    pub(crate) fn desc(&self) -> EngineDesc {
        EngineDesc {
            key: self.key.clone(),
            host: self.attachment.host.clone().unwrap(),
            port: self.port(),
            transports: self.attachment.blob.clone().into_iter().collect(),
            ..EngineDesc::default()
        }
    }

    pub(crate) fn register(&self, region: &Region) -> MemoryDesc {
        let blob = self.backend.register(region).unwrap().unwrap();
        let mut desc = MemoryDesc::for_region(&self.key, region);
        desc.transports.push(blob);
        desc
    }

    pub(crate) fn region(&self, length: usize, access: Access) -> (Region, MemoryDesc) {
        let region = Region::zeroed(length, access).unwrap();
        let desc = self.register(&region);
        (region, desc)
    }

    pub(crate) fn session(&self, local: &Region, remote: &MemoryDesc) -> Arc<dyn Session> {
        self.backend.session(local, remote).unwrap()
    }
}

/// Two nodes, the first knows the second.
pub(crate) fn pair(config: &TcpConfig) -> (Node, Node) {
    let (near, far) = (Node::new("near", config.clone()), Node::new("far", config.clone()));
    near.backend.add_peer(&far.desc()).unwrap();
    (near, far)
}

/// Bytes that differ by position and seed.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

pub(crate) fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn submit(session: &Arc<dyn Session>, op: Op, pieces: &[Piece]) -> Status {
    session.submit(op, pieces, &TransferOptions::default())
}
