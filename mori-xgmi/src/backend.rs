//! The backend: what the engine sees.

use std::fmt;
use std::sync::{Arc, Weak};

use mori_core::{
    Attachment, Backend, BackendContext, BlockOn, Capabilities, EngineDesc, EngineKey, MemoryDesc, Region,
    RegionId, Result, Session, TransferId, TransportBlob,
};

use crate::blob::NAME;
use crate::config::{Completion, XgmiConfig};
use crate::exports::device_of;
use crate::session::find_way;
use crate::shared::Inner;
use crate::transfer::{Looker, Probe};

/// The transport between GPUs of one node; see the [crate's documentation](crate).
///
/// ```
/// use mori_core::{Backend, BackendContext, ErrorKind, NotificationQueue};
/// use mori_xgmi::{XgmiBackend, XgmiConfig};
/// let backend = XgmiBackend::new(XgmiConfig::default())?;
/// let attached = backend.attach(BackendContext {
///     engine: "decode-0".into(),
///     instance: [7; 16],
///     node_id: "node".into(),
///     notifications: NotificationQueue::new(16),
/// });
/// // On a machine without a GPU, or without its runtime, that is an answer.
/// if let Err(error) = attached {
///     assert_eq!(error.kind(), ErrorKind::Unavailable);
/// }
/// # Ok::<(), mori_core::Error>(())
/// ```
pub struct XgmiBackend {
    inner: Arc<Inner>,
}

impl XgmiBackend {
    /// A backend with this configuration. Nothing is loaded until it is attached to an engine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](mori_core::ErrorKind::InvalidArgument) for a configuration that
    /// [`XgmiConfig::check`] refuses.
    pub fn new(config: XgmiConfig) -> Result<Arc<Self>> {
        config.check()?;
        let backend = Arc::new(Self { inner: Inner::new(config) });
        let outer: Weak<Self> = Arc::downgrade(&backend);
        // The cell is new, so it is empty.
        let _ = backend.inner.outer.set(outer);
        Ok(backend)
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &XgmiConfig {
        &self.inner.config
    }
}

impl Backend for XgmiBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            host_memory: false,
            device_memory: true,
            cancel: false,
            notify: false,
            peer_loss: true,
        }
    }

    fn has_notifier(&self) -> bool {
        self.inner.config.completion == Completion::HostCallback
    }

    fn poll_progress(&self, transfer: TransferId) {
        if let Some(transfer) = self.inner.transfer(transfer) {
            self.inner.look(&transfer, Looker::Waiter);
        }
    }

    fn block_on(&self, transfer: TransferId) -> BlockOn {
        let Some(transfer) = self.inner.transfer(transfer) else { return BlockOn::Returned };
        let probe = transfer.probe();
        match &probe {
            // No lock is held here: polls, updates and other waiters go on (W10).
            Some(Probe::Event(lent, _)) => {
                let synchronised = lent.event().map_or(Ok(()), crate::hip::Event::synchronise);
                if let (Err(failure), Some(probe)) = (synchronised, &probe) {
                    transfer.strike(probe, failure);
                }
            }
            Some(Probe::Stream(_)) => return BlockOn::Unsupported,
            None => {}
        }
        drop(probe);
        self.inner.look(&transfer, Looker::Waiter);
        BlockOn::Returned
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        let blob = self.inner.attach(context)?;
        Ok(Attachment { host: None, port: None, blob: Some(blob) })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let gate = self.inner.enter()?;
        if region.location().is_host() {
            return Ok(None);
        }
        let joined = &gate.joined;
        let device = device_of(region, &joined.devices)?;
        let blob = self.inner.exports.add(region, device, &joined.board, joined.incarnation)?;
        Ok(Some(blob.pack()))
    }

    fn deregister(&self, region: RegionId) {
        // The gate is not kept: waiting for other processes must not keep a shutdown waiting.
        let Ok(joined) = self.inner.enter().map(|gate| Arc::clone(&gate.joined)) else { return };
        self.inner.exports.remove(region, &joined.board, self.inner.config.drain);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.inner.add_peer(peer)
    }

    fn remove_peer(&self, peer: &EngineKey) {
        self.inner.remove_peer(peer);
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        let gate = self.inner.enter()?;
        find_way(&self.inner, &gate.joined, local, remote).map(drop)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        let gate = self.inner.enter()?;
        let way = find_way(&self.inner, &gate.joined, local, remote)?;
        Ok(Arc::new(way.open(&self.inner, local)?))
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

impl Drop for XgmiBackend {
    fn drop(&mut self) {
        self.inner.shutdown();
    }
}

impl fmt::Debug for XgmiBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XgmiBackend")
            .field("config", &self.inner.config)
            .field("open", &self.inner.is_open())
            .finish_non_exhaustive()
    }
}
