//! Two or more backends on one host, without an engine.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses its own part; a test may panic"
)]

pub(crate) mod child;
pub(crate) mod harness;
pub(crate) mod parent;
pub(crate) mod proxy;
pub(crate) mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, MemoryDesc, NotificationQueue, Op, Piece,
    Region, Result, Session, TransferOptions,
};
use mori_shm::{ShmBackend, ShmConfig};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// An attached backend of this process.
pub(crate) struct Engine {
    pub(crate) backend: Arc<ShmBackend>,
    pub(crate) desc: EngineDesc,
    pub(crate) inbox: NotificationQueue,
}

impl Engine {
    pub(crate) fn join(key: &str, config: ShmConfig) -> Result<Self> {
        static SERIAL: AtomicU8 = AtomicU8::new(100);
        let backend = ShmBackend::new(config)?;
        let key = EngineKey::from(key);
        let inbox = NotificationQueue::new(64);
        let attachment = backend.attach(BackendContext {
            engine: key.clone(),
            instance: [SERIAL.fetch_add(1, Ordering::Relaxed); 16],
            node_id: "node".to_owned(),
            notifications: inbox.clone(),
        })?;
        let transports = attachment.blob.into_iter().collect();
        Ok(Self { backend, desc: EngineDesc { key, transports, ..EngineDesc::default() }, inbox })
    }

    /// Registers a region.
    pub(crate) fn register(&self, region: &Region) -> Result<MemoryDesc> {
        let mut desc = MemoryDesc::for_region(&self.desc.key, region);
        desc.transports.extend(self.backend.register(region)?);
        Ok(desc)
    }

    /// Registered memory of `length` bytes.
    pub(crate) fn memory(&self, length: usize) -> Result<(Region, MemoryDesc)> {
        let region = Region::from_vec(vec![0; length], Access::READ_WRITE)?;
        let desc = self.register(&region)?;
        Ok((region, desc))
    }
}

/// One transfer, waited for.
pub(crate) fn transfer(session: &dyn Session, op: Op, pieces: &[Piece]) -> Result<()> {
    let status = session.submit(op, pieces, &TransferOptions::default());
    assert!(status.wait(LONG).is_terminal(), "not over after {LONG:?}");
    status.error().map_or(Ok(()), Err)
}

/// All bytes of a region.
pub(crate) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Waits until `done`; what is waited for comes by itself.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::system();
    let deadline = clock.deadline(LONG);
    while !done() {
        assert!(!deadline.passed(clock.now()), "not after {LONG:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
