//! The backend: what the engine sees.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    Region, RegionId, Result, Session, TransferId, TransportBlob,
};

use crate::blob::{EngineBlob, MemoryBlob, NAME, boot_id, find};
use crate::config::{ShmConfig, Tracers};
use crate::control::Loop;
use crate::handshake::{self, Identity};
use crate::obstacle::{HostFacts, Obstacle};
use crate::peer::Peer;
use crate::session::ShmSession;
use crate::shared::Shared;
use crate::sync::RwLock;
use crate::sys;
use crate::waiter::{Ticket, Waiter};
use crate::wire::MAX_KEY;

/// The transport between processes of one host; see the [crate's documentation](crate).
///
/// ```
/// use mori_core::{Backend, BackendContext, ErrorKind, NotificationQueue};
/// use mori_shm::{ShmBackend, ShmConfig};
/// let backend = ShmBackend::new(ShmConfig::default())?;
/// let attached = backend.attach(BackendContext {
///     engine: "prefill-0".into(),
///     instance: [7; 16],
///     node_id: "node".into(),
///     notifications: NotificationQueue::new(16),
/// });
/// // Where the system has no such calls, that is an answer.
/// if let Err(error) = attached {
///     assert_eq!(error.kind(), ErrorKind::Unavailable);
/// }
/// # Ok::<(), mori_core::Error>(())
/// ```
pub struct ShmBackend {
    shared: Arc<Shared>,
    own: Weak<Self>,
}

impl ShmBackend {
    /// A backend with this configuration, which does nothing until it is attached to an engine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a configuration that [`ShmConfig::check`] refuses.
    pub fn new(config: ShmConfig) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new_cyclic(|own| Self { shared: Shared::new(config), own: Weak::clone(own) }))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &ShmConfig {
        &self.shared.config
    }

    /// What stood between this process and a peer's memory when it was last looked for. `None` if nothing did, or if nobody has
    /// asked for a route yet.
    #[must_use]
    pub fn obstacle(&self, peer: &EngineKey) -> Option<Obstacle> {
        self.shared.peers.read().get(peer).and_then(|peer| peer.obstacle())
    }

    /// Makes all peers wait that want to copy from or to this engine's memory, and returns when nobody is copying any more:
    /// for a consistent look at the memory, or before the process is stopped for long. Transfers that peers have
    /// in progress, or submit meanwhile, stay in progress until [`resume`](ShmBackend::resume); peers can cancel them, and
    /// their deadlines are kept. Engines that this one reads from are not touched.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if a peer is still in the middle of a step after `bound`, which means that it is stopped there. Later
    /// steps wait all the same.
    pub fn suspend(&self, bound: Duration) -> Result<()> {
        self.shared.check_open()?;
        self.shared.regions.pause(true);
        if self.shared.regions.wait_quiet(bound, &self.shared.clock) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            format!("after {bound:?} a peer is still in the middle of a copy; it may be stopped"),
        ))
    }

    /// Lets the peers go on that [`suspend`](ShmBackend::suspend) makes wait.
    pub fn resume(&self) {
        self.shared.regions.pause(false);
        self.shared.control.resumed();
    }

    fn start(&self, context: BackendContext, blob: &EngineBlob) -> Result<()> {
        let shared = &self.shared;
        let control = Loop::new(shared, &blob.socket())?;
        shared.attach(context, blob.boot)?;
        // From here on the backend is this engine's: what fails must leave no threads behind.
        let run = || {
            shared.spawn("mori-shm".to_owned(), move |_| control.run())?;
            (0..shared.config.threads).try_for_each(|index| {
                shared.spawn(format!("mori-shm-{index}"), |shared| shared.pool.work(shared))
            })?;
            // A shutdown that came meanwhile may have missed the threads.
            shared.check_open().map(|_| ())
        };
        run().inspect_err(|_| shared.shut_down())
    }

    fn peer(&self, remote: &MemoryDesc) -> Result<(Arc<Peer>, MemoryBlob)> {
        let blob = MemoryBlob::decode(find(&remote.transports)?)?;
        let peer = self.shared.peers.read().get(&remote.engine_key).map(Arc::clone).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("engine {} is not known here; add it as a peer first", remote.engine_key),
            )
        })?;
        if peer.identity.instance != blob.instance {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the memory descriptor belongs to another incarnation of engine {}; it is stale, exchange descriptors again",
                    remote.engine_key
                ),
            ));
        }
        Ok((peer, blob))
    }
}

impl Backend for ShmBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, device_memory: false, cancel: true, notify: true, peer_loss: true }
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {
        // The threads make all the progress there is.
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        if let Some(transfer) = self.shared.transfer(transfer) {
            transfer.stop(Error::new(ErrorKind::Cancelled, "cancelled on request"));
        }
        Ok(())
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        if context.engine.as_str().len() > MAX_KEY {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the engine's key is longer than {MAX_KEY} bytes"),
            ));
        }
        self.shared.check_fresh()?;
        let facts = HostFacts::look();
        if let Some(obstacle) = facts.obstacle {
            return Err(obstacle.error());
        }
        let blob = EngineBlob { instance: context.instance, boot: boot_id()?, name: handshake::random()? };
        if self.shared.config.tracers == Tracers::Anyone && facts.yama == Some(1) {
            sys::allow_tracer(None);
        }
        tracing::info!(engine = %context.engine, yama = facts.yama, "shm backend listens for processes on this host");
        self.start(context, &blob)?;
        Ok(Attachment { host: None, port: None, blob: Some(blob.encode()) })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let instance = self.shared.check_open()?.instance;
        if !region.location().is_host() {
            return Ok(None);
        }
        // Peers copy by themselves, so they are asked before the region is closed.
        let tenant: Weak<Shared> = Arc::downgrade(&self.shared);
        region.let_to(tenant)?;
        let key = self.shared.regions.add(region)?;
        Ok(Some(MemoryBlob { key, instance }.encode()))
    }

    fn deregister(&self, region: RegionId) {
        if self.shared.regions.remove(region, self.shared.config.drain, &self.shared.clock) {
            // Who waits for the region learns that it is gone.
            self.shared.control.resumed();
        }
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.shared.check_open()?;
        let blob = EngineBlob::decode(find(&peer.transports)?)?;
        let identity = Identity { key: peer.key.clone(), instance: blob.instance };
        let mut peers = self.shared.peers.write();
        if let Some(known) = peers.get(&peer.key)
            && known.identity.instance == blob.instance
        {
            known.moved_to(blob);
            return Ok(());
        }
        let earlier = peers.insert(peer.key.clone(), Peer::new(identity, blob));
        drop(peers);
        if let Some(earlier) = earlier {
            let why = format!("engine {} was replaced by a new incarnation; open a new session", peer.key);
            earlier.retire(&self.shared, &Error::new(ErrorKind::PeerLost, why));
        }
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        let removed = self.shared.peers.write().remove(peer);
        if let Some(removed) = removed {
            let why = format!("engine {peer} was removed from the peers; add it again to use it");
            removed.retire(&self.shared, &Error::new(ErrorKind::BadState, why));
        }
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        self.shared.check_open()?;
        if !local.location().is_host() {
            return Err(Error::new(ErrorKind::Unsupported, "the local memory is not in the host's memory"));
        }
        // Only a handshake that went well proves that there is a way; it is kept for the session.
        self.peer(remote)?.0.reach(&self.shared).map(drop)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        self.route(local, remote)?;
        let (peer, remote) = self.peer(remote)?;
        let conn = peer.reach(&self.shared)?;
        let ticket = Arc::new(Ticket::default());
        if let Err((why, _)) = conn.ask(remote.key, Waiter::Session(Arc::clone(&ticket))) {
            return Err(why);
        }
        let answer = ticket.wait(self.shared.clock.deadline(self.shared.config.connect_timeout));
        let grant = match answer {
            Ok(grant) => Some(grant),
            // The peer is there; that it refuses this region is the transfers' affair.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceExhausted) => None,
            Err(error) => return Err(error),
        };
        let own: Weak<Self> = Weak::clone(&self.own);
        Ok(Arc::new(ShmSession {
            shared: Arc::clone(&self.shared),
            backend: own,
            peer,
            local: local.clone(),
            remote,
            grant: RwLock::new(grant),
        }))
    }

    fn shutdown(&self) {
        self.shared.shut_down();
    }
}

impl Drop for ShmBackend {
    fn drop(&mut self) {
        self.shared.shut_down();
    }
}

impl fmt::Debug for ShmBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBackend").field("config", &self.shared.config).finish_non_exhaustive()
    }
}
