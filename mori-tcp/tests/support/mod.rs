//! Two or more backends connected over loopback, without an engine.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses its own part; a test may panic"
)]

pub(crate) mod harness;
pub(crate) mod play;
pub(crate) mod raw;
pub(crate) mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mori_core::{
    Access, Attachment, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Notify, Op, Piece, Region, Session, Status, StatusCode, Tag, TransferOptions,
};
use mori_tcp::{TcpBackend, TcpConfig};
use relay::Relay;

/// One engine's worth of backend.
pub(crate) struct Node {
    pub(crate) key: EngineKey,
    pub(crate) backend: Arc<TcpBackend>,
    pub(crate) attachment: Attachment,
    pub(crate) notifications: NotificationQueue,
}

pub(crate) fn instance() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut instance = [0; 16];
    instance[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    instance
}

impl Node {
    pub(crate) fn new(key: &str, config: TcpConfig) -> Self {
        Self::try_new(key, config).unwrap()
    }

    pub(crate) fn try_new(key: &str, config: TcpConfig) -> Result<Self, Error> {
        Self::with_queue(key, config, 1024)
    }

    pub(crate) fn with_queue(key: &str, config: TcpConfig, messages: usize) -> Result<Self, Error> {
        let backend = TcpBackend::new(config)?;
        let notifications = NotificationQueue::new(messages);
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

    /// What peers are told that are to come through a relay. The port stands behind the 16 bytes of the instance.
    pub(crate) fn behind(&self, relay: &Relay) -> EngineDesc {
        let mut desc = self.desc();
        desc.port = relay.port();
        desc.transports[0].bytes[16..18].copy_from_slice(&relay.port().to_le_bytes());
        desc
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

/// Two nodes with a relay between them, a region at each, and a session from the first to the second.
pub(crate) struct Link {
    pub(crate) relay: Relay,
    pub(crate) session: Arc<dyn Session>,
    pub(crate) local: Region,
    pub(crate) remote: Region,
    pub(crate) desc: MemoryDesc,
    pub(crate) near: Node,
    pub(crate) far: Node,
}

impl Link {
    pub(crate) fn new(config: &TcpConfig, length: usize) -> Self {
        Self::between(Node::new("near", config.clone()), Node::new("far", config.clone()), length)
    }

    pub(crate) fn between(near: Node, far: Node, length: usize) -> Self {
        let relay = Relay::new(far.port()).unwrap();
        near.backend.add_peer(&far.behind(&relay)).unwrap();
        let (local, _) = near.region(length, Access::LOCAL);
        let (remote, desc) = far.region(length, Access::READ_WRITE);
        local.write_at(0, &pattern(length, 1)).unwrap();
        remote.write_at(0, &pattern(length, 2)).unwrap();
        let session = near.session(&local, &desc);
        Self { relay, session, local, remote, desc, near, far }
    }

    /// Starts a transfer of everything.
    pub(crate) fn whole(&self, op: Op) -> Status {
        submit(&self.session, op, &[Piece::new(0, 0, self.local.len() as u64)])
    }

    /// The region that bytes of such a transfer land in.
    pub(crate) fn destination(&self, op: Op) -> &Region {
        if op == Op::Read { &self.local } else { &self.remote }
    }

    /// Wants a transfer of everything to work, both ways.
    pub(crate) fn works(&self) {
        for (op, from, to) in [(Op::Read, &self.remote, &self.local), (Op::Write, &self.local, &self.remote)]
        {
            let content = pattern(from.len(), 1000 + op as u64);
            from.write_at(0, &content).unwrap();
            succeed(&self.whole(op));
            assert!(bytes(to) == content, "{op:?}");
        }
    }
}

/// How long a test waits for what must happen before it calls that a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the end of a transfer.
pub(crate) fn finish(status: &Status) -> StatusCode {
    let code = status.wait(PATIENCE);
    assert!(code.is_terminal(), "the transfer hangs: {status:?}");
    code
}

pub(crate) fn succeed(status: &Status) {
    assert_eq!(finish(status), StatusCode::Success, "{status:?}");
}

/// Waits for the end of a transfer and wants a failure of this kind.
pub(crate) fn fail(status: &Status, kind: ErrorKind) -> Error {
    assert_eq!(finish(status), StatusCode::Failure(kind), "{status:?}");
    status.error().unwrap()
}

/// Waits until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::system();
    let limit = clock.deadline(PATIENCE);
    while !done() {
        assert!(!limit.passed(clock.now()), "{what}: not after {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

pub(crate) fn notify(tag: u64, message: &[u8], on_failure: bool) -> TransferOptions {
    TransferOptions {
        tag: Tag(tag),
        notify: Some(Notify { message: message.to_vec(), on_failure }),
        ..TransferOptions::default()
    }
}

pub(crate) fn deadline(after: Duration) -> TransferOptions {
    TransferOptions { deadline: Some(after), ..TransferOptions::default() }
}

/// Bytes that differ by position and seed.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(crate) fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn submit(session: &Arc<dyn Session>, op: Op, pieces: &[Piece]) -> Status {
    session.submit(op, pieces, &TransferOptions::default())
}
