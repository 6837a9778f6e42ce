//! The backend on systems that have no such calls: it says so.

use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, MemoryDesc, Op, Piece, Region,
    RegionId, Result, Session, TransferId, TransportBlob,
};

use crate::config::ShmConfig;
use crate::obstacle::Obstacle;

/// The transport between processes of one host, on a system that cannot have it: every call answers
/// [`ErrorKind::Unavailable`](mori_core::ErrorKind::Unavailable).
#[derive(Debug)]
pub struct ShmBackend(ShmConfig);

impl ShmBackend {
    /// A backend with this configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](mori_core::ErrorKind::InvalidArgument) for a configuration that [`ShmConfig::check`]
    /// refuses.
    pub fn new(config: ShmConfig) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new(Self(config)))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &ShmConfig {
        &self.0
    }

    /// What stands between this process and a peer's memory.
    #[must_use]
    pub fn obstacle(&self, _peer: &EngineKey) -> Option<Obstacle> {
        Some(Obstacle::NotLinux)
    }

    /// Would make peers wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](mori_core::ErrorKind::Unavailable).
    pub fn suspend(&self, _bound: Duration) -> Result<()> {
        Err(Obstacle::NotLinux.error())
    }

    /// Does nothing.
    pub fn resume(&self) {}
}

/// Another process, where its memory cannot be copied.
#[derive(Clone, Copy, Debug)]
pub struct BareProcess(());

impl BareProcess {
    /// Would name a process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](mori_core::ErrorKind::Unavailable).
    pub fn new(_process: u32) -> Result<Self> {
        Err(Obstacle::NotLinux.error())
    }

    /// Would copy.
    ///
    /// # Errors
    ///
    /// As [`BareProcess::new`].
    pub fn copy(&self, _op: Op, _local: &Region, _address: u64, _pieces: &[Piece]) -> Result<()> {
        Err(Obstacle::NotLinux.error())
    }
}

impl Backend for ShmBackend {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, device_memory: false, cancel: true, notify: true, peer_loss: true }
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {}

    fn cancel(&self, _transfer: TransferId) -> Result<()> {
        Ok(())
    }

    fn attach(&self, _context: BackendContext) -> Result<Attachment> {
        Err(Obstacle::NotLinux.error())
    }

    fn register(&self, _region: &Region) -> Result<Option<TransportBlob>> {
        Err(Obstacle::NotLinux.error())
    }

    fn deregister(&self, _region: RegionId) {}

    fn add_peer(&self, _peer: &EngineDesc) -> Result<()> {
        Err(Obstacle::NotLinux.error())
    }

    fn remove_peer(&self, _peer: &EngineKey) {}

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Err(Obstacle::NotLinux.error())
    }

    fn session(&self, _local: &Region, _remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Err(Obstacle::NotLinux.error())
    }

    fn shutdown(&self) {}
}
