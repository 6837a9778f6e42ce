//! The engine: its parts, its life, its backends and its peers.
//!
//! # Protocol
//!
//! 1. *Membership* is a lock without data. Adding and removing a backend and shutting down take it for writing; everything
//!    that must reach every backend (registering, deregistering, peers) takes it for reading. So a region that
//!    is registered while a backend is added ends up at that backend exactly once, whichever came first.
//! 2. Transfers, routes and sessions never take it. They read the list of backends, which is replaced as a
//!    whole, and a backend that leaves is marked before it is shut down.
//! 3. Whatever makes a cached session invalid (deregistering, a peer described anew, a backend that leaves) is
//!    done first and the cache is purged second; a session enters the cache only if it is still valid under the cache's
//!    lock.
//! 4. Order of the locks: membership, changes of peers, cache, then the tables, which are held for a look-up each. Backends are
//!    called under the first two only.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use mori_core::{
    Backend, BackendContext, CapabilitySet, EngineDesc, EngineKey, Error, ErrorKind, NotificationQueue,
    Result, TransportBlob, WaitPolicy,
};

use crate::attached::{Attached, BackendInfo, sort};
use crate::backends::{Carrier, Slot};
use crate::builder::EngineBuilder;
use crate::cache::SessionCache;
use crate::memory::Memory;
use crate::peers::{Peer, Peers};
use crate::{identity, sync};

/// An engine: registered memory, peers, and the backends that move bytes between them.
///
/// A small handle; clones are handles to the same engine, and any thread may use any of them. When the last handle is
/// dropped, or on [`Engine::shutdown`], every transfer in progress ends with a failure that says so, waiters are
/// released, and the backends are closed, in bounded time. Statuses, sessions and memory handles outlive the engine
/// harmlessly. Do not leave the last handle to an [`Observe`](crate::Observe) or a waker: they are called on the backends' own
/// threads, which the engine waits for when it ends.
///
/// ```
/// use mori_engine::{Access, Engine, ErrorKind, TransferOptions};
/// let engine = Engine::builder("decode-0").build()?;
/// let memory = engine.allocate(4096, Access::READ_WRITE)?;
/// // No backend was added, and the status says so.
/// let status = engine.read(&memory, 0, &memory.desc(), 0, 16, TransferOptions::default());
/// assert_eq!(status.error().unwrap().kind(), ErrorKind::BadState);
/// # Ok::<(), mori_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Core>);

/// What the handles share.
pub(crate) struct Core {
    pub(crate) key: EngineKey,
    instance: [u8; 16],
    node_id: String,
    hostname: String,
    prefer: Vec<String>,
    pub(crate) policy: WaitPolicy,
    pub(crate) default_deadline: Option<Duration>,
    notifications: NotificationQueue,
    closed: AtomicBool,
    membership: RwLock<()>,
    backends: RwLock<Arc<[Arc<Attached>]>>,
    /// By the numbers that stand in descriptors.
    pub(crate) regions: RwLock<HashMap<u64, Memory>>,
    pub(crate) peers: Peers,
    pub(crate) cache: SessionCache,
    /// For sessions, which do not keep the engine.
    pub(crate) me: Weak<Core>,
}

impl Engine {
    /// Starts an engine of this name, which is unique among the engines that talk to each other.
    pub fn builder(key: impl Into<EngineKey>) -> EngineBuilder {
        EngineBuilder::new(key.into())
    }

    pub(crate) fn assemble(builder: EngineBuilder) -> Result<Self> {
        let hostname = builder.hostname.unwrap_or_else(identity::hostname);
        let instance = identity::instance()?;
        let core = Arc::new_cyclic(|me| Core {
            key: builder.key,
            instance,
            node_id: identity::node_id(builder.node_id, &hostname),
            hostname,
            prefer: builder.prefer,
            policy: builder.policy,
            default_deadline: builder.default_deadline,
            notifications: builder
                .notifications
                .unwrap_or_else(|| NotificationQueue::new(builder.notification_capacity)),
            closed: AtomicBool::new(false),
            membership: RwLock::new(()),
            backends: RwLock::new(Arc::new([])),
            regions: RwLock::new(HashMap::new()),
            peers: Peers::default(),
            cache: SessionCache::new(builder.session_cache),
            me: Weak::clone(me),
        });
        // An engine is its own first peer, so that transfers between two of its own regions are ordinary ones.
        core.peers.put(Peer::new(core.desc()));
        Ok(Self(core))
    }

    /// The engine's name.
    #[must_use]
    pub fn key(&self) -> &EngineKey {
        &self.0.key
    }

    /// The descriptor, for peers to know this engine by: send it to them, and let them call [`Engine::add_peer`]. It has the
    /// addresses and ports that the backends really listen on, so take it after they are added.
    #[must_use]
    pub fn desc(&self) -> EngineDesc {
        self.0.desc()
    }

    /// How the engine's waits behave.
    #[must_use]
    pub fn wait_policy(&self) -> &WaitPolicy {
        &self.0.policy
    }

    /// The messages that peers' transfers leave here, in the order of their arrival.
    #[must_use]
    pub fn notifications(&self) -> NotificationQueue {
        self.0.notifications.clone()
    }

    /// Adds a backend at run time. Memory that is already registered is registered with it as well, and it is told of every
    /// peer; what it cannot carry or reach is skipped, and the reason stands in [`Engine::explain`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] if the engine has a backend of this name, [`ErrorKind::BadState`] if it is shut down, and
    /// what the backend says if it cannot be attached.
    pub fn add_backend(&self, backend: Arc<dyn Backend>) -> Result<()> {
        self.add_slot(Slot::from(backend))
    }

    pub(crate) fn add_slot(&self, slot: Slot) -> Result<()> {
        self.0.add_backend(slot)
    }

    /// Removes a backend: its transfers in progress end as failures, its sessions answer that it is gone, and it leaves the
    /// descriptors. Returns in bounded time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the engine has no backend of this name.
    pub fn remove_backend(&self, name: &str) -> Result<()> {
        self.0.remove_backend(name)
    }

    /// The backends, the preferred one first.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendInfo> {
        self.0.backends().iter().map(|attached| attached.info()).collect()
    }

    /// Makes a peer known, by the descriptor that it sent. Described again, the later descriptor counts; one of another
    /// incarnation (the peer was restarted) ends the transfers with the earlier one as *peer lost*.
    ///
    /// Nothing is connected yet. A backend that cannot reach the peer is skipped, and the reason stands in
    /// [`Engine::explain`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] for another engine with this engine's own key, [`ErrorKind::BadState`] if the engine is
    /// shut down, and a backend's error (as [`ErrorKind::Malformed`]) if there is one and no backend takes the descriptor;
    /// the peer then stays as it was.
    pub fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.0.add_peer(peer)
    }

    /// Forgets a peer. Transfers in progress with it end as failures.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if it is not known, [`ErrorKind::InvalidArgument`] for the engine's own key,
    /// [`ErrorKind::BadState`] if the engine is shut down.
    pub fn remove_peer(&self, key: &EngineKey) -> Result<()> {
        self.0.remove_peer(key)
    }

    /// The descriptor of a peer, as it was added.
    #[must_use]
    pub fn peer(&self, key: &EngineKey) -> Option<EngineDesc> {
        let peer = self.0.peers.get(key).filter(|peer| peer.desc.key != self.0.key)?;
        Some(peer.desc.clone())
    }

    /// The descriptors of all peers, in no order.
    #[must_use]
    pub fn peers(&self) -> Vec<EngineDesc> {
        let others = self.0.peers.all().into_iter().filter(|peer| peer.desc.key != self.0.key);
        others.map(|peer| peer.desc.clone()).collect()
    }

    /// Ends every transfer in progress with a failure, releases the waiters, closes the backends, and returns in bounded
    /// time. Afterwards every call that needs the engine is answered with [`ErrorKind::BadState`]. Shutting down twice is
    /// fine; the second call returns when the first is done.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }

    /// Whether the engine is shut down.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.0.check_open().is_err()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends: Vec<&str> = self.0.backends().iter().map(|attached| attached.name).collect();
        f.debug_struct("Engine")
            .field("key", &self.0.key)
            .field("backends", &backends)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// # Errors
    ///
    /// [`ErrorKind::BadState`] when the engine is shut down.
    pub(crate) fn check_open(&self) -> Result<()> {
        // Relaxed: whoever must not overlap the shutdown holds the membership as well.
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::BadState,
                format!("engine {} is shut down; build another one", self.key),
            ));
        }
        Ok(())
    }

    /// Keeps the set of backends as it is while the guard lives. Not taken twice by one thread.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let member = sync::read(&self.membership);
        self.check_open()?;
        Ok(member)
    }

    pub(crate) fn backends(&self) -> Arc<[Arc<Attached>]> {
        Arc::clone(&sync::read(&self.backends))
    }

    pub(crate) fn memories(&self) -> Vec<Memory> {
        sync::read(&self.regions).values().cloned().collect()
    }

    pub(crate) fn is_registered(&self, memory: &Memory) -> bool {
        sync::read(&self.regions).contains_key(&memory.id().get())
    }

    pub(crate) fn desc(&self) -> EngineDesc {
        let backends = self.backends();
        let listening = backends.iter().find(|attached| attached.attachment.port.is_some());
        EngineDesc {
            key: self.key.clone(),
            node_id: self.node_id.clone(),
            hostname: self.hostname.clone(),
            host: listening.and_then(|attached| attached.attachment.host.clone()).unwrap_or_default(),
            port: listening.and_then(|attached| attached.attachment.port).unwrap_or_default(),
            pid: std::process::id(),
            capabilities: backends
                .iter()
                .fold(CapabilitySet::NONE, |set, attached| set.union(attached.capabilities.into())),
            transports: backends.iter().filter_map(|attached| attached.attachment.blob.clone()).collect(),
        }
    }

    fn add_backend(&self, slot: Slot) -> Result<()> {
        let _member = sync::write(&self.membership);
        self.check_open()?;
        let name = slot.name();
        if self.backends().iter().any(|attached| attached.name == name) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("engine {} has a {name} backend already; remove it first", self.key),
            ));
        }
        let context = BackendContext {
            engine: self.key.clone(),
            instance: self.instance,
            node_id: self.node_id.clone(),
            notifications: self.notifications.clone(),
        };
        let attachment = slot
            .attach(context)
            .map_err(|error| error.context(format_args!("cannot add the {name} backend")))?;
        let attached = Arc::new(Attached::new(slot, attachment));
        for memory in self.memories() {
            if let Err(error) = memory.enrol(&attached) {
                tracing::warn!(engine = %self.key, backend = name, region = %memory.id(), %error, "memory not registered");
            }
        }
        for peer in self.peers.all().iter().filter(|peer| peer.desc.key != self.key) {
            self.introduce(peer, &attached, &peer.desc);
        }
        let mut backends = self.backends().to_vec();
        backends.push(Arc::clone(&attached));
        sort(&mut backends, &self.prefer);
        *sync::write(&self.backends) = backends.into();
        if let Some(own) = self.peers.get(&self.key) {
            self.introduce(&own, &attached, &self.desc());
        }
        tracing::info!(engine = %self.key, backend = name, at = %attached.info(), "backend added");
        Ok(())
    }

    fn remove_backend(&self, name: &str) -> Result<()> {
        let _member = sync::write(&self.membership);
        let (leaving, staying): (Vec<_>, Vec<_>) =
            self.backends().iter().cloned().partition(|attached| attached.name == name);
        let Some(leaving) = leaving.first() else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("engine {} has no {name} backend", self.key),
            ));
        };
        *sync::write(&self.backends) = staying.into();
        self.dismiss(leaving);
        self.memories().iter().for_each(|memory| memory.strike(name));
        self.peers.all().iter().for_each(|peer| peer.strike(name));
        tracing::info!(engine = %self.key, backend = name, "backend removed");
        Ok(())
    }

    /// Shuts a backend down that is in the list no more.
    fn dismiss(&self, leaving: &Attached) {
        leaving.presence.end();
        self.cache.purge_backend(leaving.name);
        leaving.slot.shutdown();
    }

    fn add_peer(&self, desc: &EngineDesc) -> Result<()> {
        let _member = self.enter()?;
        let _change = sync::lock(&self.peers.changes);
        if desc.key == self.key {
            return self.check_own(desc);
        }
        let peer = Peer::new(desc.clone());
        let backends = self.backends();
        backends.iter().for_each(|attached| self.introduce(&peer, attached, desc));
        if let Some(mistake) = peer.mistake() {
            return Err(mistake.context(format_args!("cannot add engine {}", desc.key)));
        }
        let known = self.peers.get(&desc.key);
        self.peers.put(peer);
        if known.is_some_and(|known| known.desc != *desc) {
            self.cache.purge_peer(&desc.key);
        }
        tracing::debug!(engine = %self.key, peer = %desc.key, "peer added");
        Ok(())
    }

    /// Tells a backend of a peer. What it answers is kept with the peer; only surprises are worth a line in the log.
    fn introduce(&self, peer: &Peer, attached: &Attached, desc: &EngineDesc) {
        if let Err(error) = peer.introduce(attached, desc) {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(engine = %self.key, backend = attached.name, peer = %desc.key, %error, "peer not added");
            }
        }
    }

    /// The engine's own descriptor is known already; anything else under its key is another engine's.
    fn check_own(&self, desc: &EngineDesc) -> Result<()> {
        let own = self.desc();
        let agrees = |blob: &TransportBlob| own.blob(&blob.transport).is_none_or(|ours| ours == blob);
        let same = desc.pid == own.pid && desc.transports.iter().all(agrees);
        if same {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{} is this engine's own key, and the descriptor is another engine's; give one of them another key",
                self.key
            ),
        ))
    }

    fn remove_peer(&self, key: &EngineKey) -> Result<()> {
        let _member = self.enter()?;
        let _change = sync::lock(&self.peers.changes);
        if *key == self.key {
            return Err(Error::new(ErrorKind::InvalidArgument, "an engine cannot forget itself"));
        }
        if self.peers.take(key).is_none() {
            return Err(Error::new(ErrorKind::NotFound, format!("engine {key} is not known here")));
        }
        self.cache.purge_peer(key);
        self.backends().iter().for_each(|attached| attached.slot.remove_peer(key));
        tracing::debug!(engine = %self.key, peer = %key, "peer removed");
        Ok(())
    }

    fn shutdown(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _member = sync::write(&self.membership);
        let leaving = std::mem::replace(&mut *sync::write(&self.backends), Arc::new([]));
        leaving.iter().for_each(|attached| self.dismiss(attached));
        self.notifications.close();
        self.cache.purge_all();
        self.peers.clear();
        sync::write(&self.regions).clear();
        if !leaving.is_empty() {
            tracing::info!(engine = %self.key, "engine shut down");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shutdown();
    }
}
