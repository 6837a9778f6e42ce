//! The backend: what the engine sees.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mori_core::{
    Access, Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, Error, ErrorKind,
    MemoryDesc, Region, RegionId, Result, Session, TransferId, TransportBlob,
};

use crate::blob::{EngineBlob, MemoryBlob, NAME, find};
use crate::config::RdmaConfig;
use crate::control::{ControlConfig, Identity, Protocol, Server, Service};
use crate::core::{Core, shut};
use crate::devices;
use crate::memory::Registered;
use crate::notifier::Notifier;
use crate::peer::Peer;
use crate::plan::Limits;
use crate::session::{RdmaSession, ways};
use crate::stats::RdmaStats;
use crate::sync::Mutex;

/// How long a shutdown waits for devices to give back what they have; then their queue pairs are destroyed.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The RDMA transport; see the [crate's documentation](crate).
///
/// ```
/// use mori_core::{Backend, BackendContext, ErrorKind, NotificationQueue};
/// use mori_rdma::{RdmaBackend, RdmaConfig};
/// let backend = RdmaBackend::new(RdmaConfig::default())?;
/// let attached = backend.attach(BackendContext {
///     engine: "prefill-0".into(),
///     instance: [7; 16],
///     node_id: "node".into(),
///     notifications: NotificationQueue::new(16),
/// });
/// // Without a library or a device, that is an answer.
/// assert!(attached.map_or_else(|error| error.kind() == ErrorKind::Unavailable, |attached| attached.port.is_some()));
/// # Ok::<(), mori_core::Error>(())
/// ```
pub struct RdmaBackend {
    config: RdmaConfig,
    state: Mutex<State>,
    own: Weak<Self>,
}

enum State {
    Fresh,
    /// Somebody is attaching it right now.
    Attaching,
    Attached(Arc<Core>),
    Shut,
}

impl RdmaBackend {
    /// A backend with this configuration, which does nothing until it is attached to an engine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a configuration that [`RdmaConfig::check`] refuses.
    pub fn new(config: RdmaConfig) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new_cyclic(|own| Self { config, state: Mutex::new(State::Fresh), own: Weak::clone(own) }))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &RdmaConfig {
        &self.config
    }

    /// What it holds right now: transfers, queue pairs, credits, registrations. All zero but the registrations and the idle queue
    /// pairs when nothing is in progress.
    #[must_use]
    pub fn stats(&self) -> RdmaStats {
        self.core().map(|core| RdmaStats::of(&core)).unwrap_or_default()
    }

    fn core(&self) -> Result<Arc<Core>> {
        match &*self.state.lock() {
            State::Attached(core) if !core.is_shut() => Ok(Arc::clone(core)),
            _ => Err(shut()),
        }
    }

    fn start(&self, context: BackendContext) -> Result<(Arc<Core>, Attachment)> {
        let nics = devices::open(&self.config)?;
        let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        tracing::info!(engine = %context.engine, devices = ?names, "rdma backend opens devices");
        let identity = Identity { key: context.engine.clone(), instance: context.instance };
        let core = Core::new(self.config.clone(), context, nics)?;
        let own: Weak<Core> = Arc::downgrade(&core);
        let service: Weak<dyn Service> = own;
        let control = ControlConfig {
            bind: self.config.bind.clone(),
            secret: self.config.secret.clone(),
            peer_timeout: self.config.peer_timeout,
            frame_timeout: self.config.connect_timeout,
            ..ControlConfig::default()
        };
        let server = Server::bind(control, identity, service)?;
        let local = server.local_addr();
        let host = match &self.config.advertise {
            Some(host) => without_brackets(host).to_owned(),
            None if local.ip().is_unspecified() => hostname()?,
            None => local.ip().to_string(),
        };
        let _ = core.server.set(server);
        let notifier = Notifier::new(&core)?;
        let thread = std::thread::Builder::new()
            .name("mori-rdma-notify".into())
            .spawn(move || notifier.run())
            .map_err(|error| {
                Error::io(ErrorKind::ResourceExhausted, "cannot start the notifier's thread", &error)
            });
        match thread {
            Ok(thread) => *core.thread.lock() = Some(thread),
            Err(error) => {
                end(&core);
                return Err(error);
            }
        }
        let blob = EngineBlob {
            instance: core.context.instance,
            port: local.port(),
            devices: u8::try_from(core.nics.len()).unwrap_or(u8::MAX),
            host: host.clone(),
        };
        let attachment = Attachment { host: Some(host), port: Some(local.port()), blob: Some(blob.encode()) };
        Ok((core, attachment))
    }

    /// The peer and the region that a memory descriptor names.
    fn remote(core: &Core, remote: &MemoryDesc) -> Result<(Arc<Peer>, Option<MemoryBlob>)> {
        let blob = find(&remote.transports).map(MemoryBlob::decode).transpose()?;
        let peer = core.peer(&remote.engine_key)?;
        match &blob {
            None if peer.instance.is_some() => Err(Error::new(
                ErrorKind::NotFound,
                "the memory's descriptor has no rdma part; register the memory with the rdma backend there",
            )),
            Some(blob) if peer.instance != Some(blob.instance) => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the memory descriptor belongs to another incarnation of engine {}; it is stale, exchange descriptors again",
                    remote.engine_key
                ),
            )),
            _ => Ok((peer, blob)),
        }
    }
}

/// Ends everything of a backend that is attached, in bounded time.
fn end(core: &Arc<Core>) {
    core.shut.store(true, Ordering::Relaxed);
    let why = Error::new(ErrorKind::BadState, "the rdma backend was shut down");
    let peers = std::mem::take(&mut *core.peers.write());
    for peer in peers.values() {
        peer.retire(core, &why);
    }
    // The notifier goes on meanwhile: it learns that what was posted has come back.
    let own_thread =
        core.thread.lock().as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id());
    for peer in core.all_peers() {
        if own_thread {
            // Called by the notifier itself, in an observer: nothing comes back while it waits here.
            peer.drive(core, |flow, now, out| flow.give_up_waiting(now, out));
        } else {
            peer.await_end(core, LAST_WAIT);
        }
    }
    if let Some(server) = core.server.get() {
        server.shutdown();
    }
    core.end_all_passives();
    core.stop_notifier();
    if !own_thread {
        core.await_errands(core.config.connect_timeout);
        // The lock is held meanwhile, so that a second caller waits as well.
        let mut thread = core.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
    core.regions.clear();
    let owners = std::mem::take(&mut *core.owners.write());
    drop(owners);
}

impl Backend for RdmaBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            host_memory: true,
            device_memory: self.config.exporter.is_some(),
            cancel: true,
            notify: true,
            peer_loss: true,
        }
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {
        // The notifier makes all the progress there is.
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        let Ok(core) = self.core() else { return Ok(()) };
        let key = transfer.get();
        for peer in core.all_peers() {
            let found = peer.drive(&core, |flow, now, out| {
                let found = flow.has(key);
                if found {
                    let why = Error::new(ErrorKind::Cancelled, "cancelled on request");
                    flow.cancel(key, why, now, out);
                }
                found
            });
            if found {
                break;
            }
        }
        Ok(())
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        {
            let mut state = self.state.lock();
            match &*state {
                State::Fresh => *state = State::Attaching,
                State::Shut => return Err(shut()),
                State::Attaching | State::Attached(_) => {
                    let words = "the rdma backend is attached to an engine already; make another one";
                    return Err(Error::new(ErrorKind::BadState, words));
                }
            }
        }
        let started = self.start(context);
        let mut state = self.state.lock();
        let shut_meanwhile = matches!(&*state, State::Shut);
        match started {
            Ok((core, attachment)) if !shut_meanwhile => {
                *state = State::Attached(core);
                Ok(attachment)
            }
            Ok((core, _)) => {
                drop(state);
                end(&core);
                Err(shut())
            }
            Err(error) => {
                if !shut_meanwhile {
                    *state = State::Fresh;
                }
                Err(error)
            }
        }
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let core = self.core()?;
        let registered = core.regions.add(region, &core.nics, &core.config)?;
        if core.is_shut() {
            core.regions.clear();
            return Err(shut());
        }
        let Some(registered) = registered else { return Ok(None) };
        let Registered { region, keys, .. } = &*registered;
        let blob = MemoryBlob {
            instance: core.context.instance,
            access: region.access(),
            address: region.address() as u64,
            length: region.len() as u64,
            keys: keys.iter().map(|keys| keys.map(|keys| keys.remote)).collect(),
        };
        Ok(Some(blob.encode()))
    }

    fn deregister(&self, region: RegionId) {
        if let Ok(core) = self.core() {
            core.regions.remove(region);
        }
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let core = self.core()?;
        let (instance, address, devices) = match find(&peer.transports) {
            Some(blob) => {
                let blob = EngineBlob::decode(blob)?;
                (Some(blob.instance), (blob.host, blob.port), usize::from(blob.devices))
            }
            // Existing peers have no parts of transports in their descriptors, only an address.
            None if peer.transports.is_empty() && peer.port != 0 && !peer.host.is_empty() => {
                (None, (without_brackets(&peer.host).to_owned(), peer.port), 1)
            }
            None => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "the peer's descriptor has no rdma part; enable the rdma backend there",
                ));
            }
        };
        let earlier = {
            let mut peers = core.peers.write();
            if core.is_shut() {
                return Err(shut());
            }
            match peers.get(&peer.key) {
                Some(known) if known.instance == instance => {
                    known.moved_to(address);
                    return Ok(());
                }
                _ => {}
            }
            let fresh = Peer::new(&core, peer.key.clone(), instance, address, devices);
            peers.insert(peer.key.clone(), fresh)
        };
        if let Some(earlier) = earlier {
            core.end_existing(&peer.key);
            let words = format!("engine {} was replaced by a new incarnation; open a new session", peer.key);
            earlier.retire(&core, &Error::new(ErrorKind::PeerLost, words));
        }
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        let Ok(core) = self.core() else { return };
        let removed = core.peers.write().remove(peer);
        if let Some(removed) = removed {
            core.end_existing(peer);
            let words = format!("engine {peer} was removed from the peers; add it again to use it");
            removed.retire(&core, &Error::new(ErrorKind::BadState, words));
        }
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        let core = self.core()?;
        let (_, blob) = Self::remote(&core, remote)?;
        if !local.location().is_host() && core.config.exporter.is_none() {
            return Err(Capabilities::unsupported(NAME, "device memory without an exporter of dmabufs"));
        }
        let registered = core.regions.get(local.id()).ok_or_else(|| crate::session::unregistered(local))?;
        let Some(blob) = blob else { return Ok(()) };
        let common = (0..core.nics.len()).any(|device| {
            let there = blob.keys.get(device % blob.keys.len().max(1)).copied().flatten();
            registered.keys.get(device).copied().flatten().is_some() && there.is_some()
        });
        if common {
            return Ok(());
        }
        let words = "no device here and device there have both regions registered";
        Err(Error::new(ErrorKind::NotFound, words))
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        self.route(local, remote)?;
        let core = self.core()?;
        let (peer, blob) = Self::remote(&core, remote)?;
        peer.reach(&core)?;
        let link = peer.link(&core, core.config.connect_timeout)?;
        let blob = match blob {
            Some(blob) => blob,
            None => {
                let keys = link.region(0, remote.id, core.deadline(core.config.connect_timeout))?;
                MemoryBlob {
                    instance: [0; 16],
                    access: Access::READ_WRITE,
                    address: keys.address,
                    length: keys.length.min(remote.size),
                    keys: vec![Some(keys.rkey)],
                }
            }
        };
        let ways = ways(&core, local, &blob)?;
        let sge = core.nics.iter().map(|nic| nic.limits.sge).min().unwrap_or(1);
        let bytes = core.nics.iter().map(|nic| nic.limits.message).min().unwrap_or(1);
        let own: Weak<Self> = Weak::clone(&self.own);
        Ok(Arc::new(RdmaSession {
            messages: link.peer().protocol() == Protocol::Own,
            core: Arc::downgrade(&core),
            backend: own,
            peer,
            local: local.clone(),
            remote: blob,
            ways,
            limits: Limits { max_sge: usize::try_from(sge).unwrap_or(1), max_bytes: bytes },
        }))
    }

    fn shutdown(&self) {
        let core = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Shut) {
                State::Attached(core) => {
                    // Kept, so that a second caller waits for the same end.
                    *state = State::Attached(Arc::clone(&core));
                    core
                }
                State::Fresh | State::Attaching | State::Shut => return,
            }
        };
        end(&core);
        // The devices go with the last that holds them.
        let ended = std::mem::replace(&mut *self.state.lock(), State::Shut);
        drop(ended);
    }
}

impl Drop for RdmaBackend {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for RdmaBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaBackend").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Names and numeric addresses are told without the brackets that only a port behind them needs.
fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.filter(|inner| inner.contains(':')).unwrap_or(host)
}

fn hostname() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(|error| {
        let words = "cannot tell the machine's name; set `advertise` to the host that peers connect to";
        Error::io(ErrorKind::Unavailable, words, &error)
    })?;
    Ok(name.trim().to_owned())
}
