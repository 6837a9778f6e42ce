//! The backend: what the engine sees.

use std::net::ToSocketAddrs;
use std::sync::{Arc, Weak};

use mio::Poll;
use mio::net::TcpListener;
use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    Messenger, Region, RegionId, Result, Session, TransferId, TransportBlob,
};

use crate::config::TcpConfig;
use crate::handshake::{Identity, MAX_KEY};
use crate::messenger::TcpMessenger;
use crate::peer::Peer;
use crate::regions::{EngineBlob, MemoryBlob, NAME, find};
use crate::session::TcpSession;
use crate::shared::Shared;
use crate::worker::{Worker, WorkerHandle};

/// The TCP transport; see the [crate's documentation](crate).
///
/// ```
/// use mori_core::{Backend, BackendContext, NotificationQueue};
/// use mori_tcp::{TcpBackend, TcpConfig};
/// let backend = TcpBackend::new(TcpConfig::default())?;
/// let attached = backend.attach(BackendContext {
///     engine: "prefill-0".into(),
///     instance: [7; 16],
///     node_id: "node".into(),
///     notifications: NotificationQueue::new(16),
/// })?;
/// assert!(attached.port.is_some_and(|port| port > 0));
/// # Ok::<(), mori_core::Error>(())
/// ```
pub struct TcpBackend {
    shared: Arc<Shared>,
    own: Weak<Self>,
}

impl TcpBackend {
    /// A backend with this configuration, which does nothing until it is attached to an engine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a configuration that [`TcpConfig::check`] refuses.
    pub fn new(config: TcpConfig) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new_cyclic(|own| Self { shared: Shared::new(config), own: Weak::clone(own) }))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &TcpConfig {
        &self.shared.config
    }

    /// Opens the listening socket and the threads' poll sets, and starts the threads.
    fn start(&self, context: BackendContext, listener: std::net::TcpListener) -> Result<()> {
        let base = self.shared.clock.now();
        let mut polls = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..self.shared.config.io_threads {
            let poll = Poll::new().map_err(|error| exhausted(&error))?;
            handles
                .push(Arc::new(WorkerHandle::new(poll.registry(), base).map_err(|error| exhausted(&error))?));
            polls.push(poll);
        }
        self.shared.attach(context, handles.clone())?;
        // From here on the backend is this engine's: what fails must leave no threads behind.
        self.run(polls, handles, listener).inspect_err(|_| self.shared.shut_down())
    }

    fn run(
        &self,
        polls: Vec<Poll>,
        handles: Vec<Arc<WorkerHandle>>,
        listener: std::net::TcpListener,
    ) -> Result<()> {
        let mut listener = Some(TcpListener::from_std(listener));
        for (index, (poll, handle)) in polls.into_iter().zip(handles).enumerate() {
            let shared = Arc::clone(&self.shared);
            let worker =
                Worker::new(poll, handle, shared, listener.take()).map_err(|error| exhausted(&error))?;
            let thread = std::thread::Builder::new()
                .name(format!("mori-tcp-{index}"))
                .spawn(move || worker.run())
                .map_err(|error| exhausted(&error))?;
            self.shared.threads.lock().push(thread);
        }
        // A shutdown that came meanwhile may have missed the threads.
        self.shared.check_open().map(|_| ())
    }

    fn known(&self, key: &EngineKey) -> Result<Arc<Peer>> {
        self.shared.peers.read().get(key).map(Arc::clone).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("engine {key} is not known here; add it as a peer first"))
        })
    }

    fn peer(&self, remote: &MemoryDesc) -> Result<(Arc<Peer>, MemoryBlob)> {
        let blob = MemoryBlob::decode(find(&remote.transports)?)?;
        let peer = self.known(&remote.engine_key)?;
        if peer.instance != blob.instance {
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

impl Backend for TcpBackend {
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
        // The I/O threads make all the progress there is.
    }

    fn linger(&self, transfer: TransferId, over: &dyn Fn() -> bool) {
        if self.shared.config.busy_window.is_zero() {
            return;
        }
        let Some(transfer) = self.shared.transfer(transfer) else { return };
        for lane in transfer.lanes() {
            if let Some(driven) = lane.driven() {
                driven.linger(&self.shared, over);
            }
            if over() {
                return;
            }
        }
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
        let bind = &self.shared.config.bind;
        let listener = listen(bind)?;
        let local = listener.local_addr().map_err(|error| {
            Error::io(ErrorKind::Unavailable, format!("cannot tell the address of {bind}"), &error)
        })?;
        let host = match &self.shared.config.advertise {
            Some(host) => without_brackets(host).to_owned(),
            None if local.ip().is_unspecified() => hostname()?,
            None => local.ip().to_string(),
        };
        let blob = EngineBlob { instance: context.instance, host: host.clone(), port: local.port() };
        tracing::info!(engine = %context.engine, address = %local, advertised = %host, "tcp backend listens");
        self.start(context, listener)?;
        Ok(Attachment { host: Some(host), port: Some(local.port()), blob: Some(blob.encode()) })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let instance = self.shared.check_open()?.instance;
        if !region.location().is_host() {
            return Ok(None);
        }
        let key = self.shared.regions.add(region)?;
        Ok(Some(MemoryBlob { key, instance, access: region.access() }.encode()))
    }

    fn deregister(&self, region: RegionId) {
        self.shared.regions.remove(region);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.shared.check_open()?;
        let blob = EngineBlob::decode(find(&peer.transports)?)?;
        let identity = Identity { key: peer.key.clone(), instance: blob.instance };
        let mut peers = self.shared.peers.write();
        if let Some(known) = peers.get(&peer.key)
            && known.instance == blob.instance
        {
            known.moved_to(blob.host, blob.port);
            return Ok(());
        }
        let fresh = Peer::new(identity, blob.host, blob.port, self.shared.config.connections);
        let earlier = peers.insert(peer.key.clone(), fresh);
        drop(peers);
        if let Some(earlier) = earlier {
            earlier.retire(&Error::new(
                ErrorKind::PeerLost,
                format!("engine {} was replaced by a new incarnation; open a new session", peer.key),
            ));
        }
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        let removed = self.shared.peers.write().remove(peer);
        if let Some(removed) = removed {
            removed.retire(&Error::new(
                ErrorKind::BadState,
                format!("engine {peer} was removed from the peers; add it again to use it"),
            ));
        }
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        self.shared.check_open()?;
        if !local.location().is_host() {
            return Err(Error::new(ErrorKind::Unsupported, "the local memory is not in the host's memory"));
        }
        self.peer(remote).map(|_| ())
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        self.route(local, remote)?;
        let (peer, remote) = self.peer(remote)?;
        let lanes = peer.lanes(&self.shared, true)?;
        if let Some(lane) = lanes.iter().find(|lane| lane.is_open()).or(lanes.first()) {
            // Twice the bound: the connection's own clock decides, this is the net under it.
            lane.wait_open(self.shared.config.connect_timeout.saturating_mul(2))?;
        }
        let own: Weak<Self> = Weak::clone(&self.own);
        Ok(Arc::new(TcpSession {
            shared: Arc::clone(&self.shared),
            backend: own,
            peer,
            local: local.clone(),
            remote,
        }))
    }

    fn messenger(&self, peer: &EngineKey) -> Result<Arc<dyn Messenger>> {
        self.shared.check_open()?;
        let peer = self.known(peer)?;
        Ok(Arc::new(TcpMessenger {
            shared: Arc::clone(&self.shared),
            backend: Weak::<Self>::clone(&self.own),
            peer,
        }))
    }

    fn shutdown(&self) {
        self.shared.shut_down();
    }
}

impl Drop for TcpBackend {
    fn drop(&mut self) {
        self.shared.shut_down();
    }
}

impl std::fmt::Debug for TcpBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpBackend").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

fn exhausted(error: &std::io::Error) -> Error {
    Error::io(ErrorKind::ResourceExhausted, "cannot set up the I/O threads", error)
}

/// Listens on the first of the addresses that `bind` stands for that can be had.
fn listen(bind: &str) -> Result<std::net::TcpListener> {
    let addresses = bind.to_socket_addrs().map_err(|error| {
        Error::io(
            ErrorKind::InvalidArgument,
            format!("cannot listen on {bind:?}, which must be address:port or name:port"),
            &error,
        )
    })?;
    let mut last = None;
    for address in addresses {
        let opened = std::net::TcpListener::bind(address).and_then(|listener| {
            // The standard library's backlog of 128 is too short for hundreds of peers that connect at once.
            socket2::SockRef::from(&listener).listen(4096)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
    let hint = if error.kind() == std::io::ErrorKind::AddrInUse {
        "; choose another port, or 0 for a free one"
    } else {
        ""
    };
    Err(Error::io(ErrorKind::Unavailable, format!("cannot listen on {bind}{hint}"), &error))
}

/// An IPv6 address as peers parse it, also if it is written as in front of a port.
fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.filter(|inner| inner.contains(':')).unwrap_or(host)
}

fn hostname() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(|error| {
        Error::io(
            ErrorKind::Unavailable,
            "cannot tell the machine's name; set `advertise` to the host that peers connect to",
            &error,
        )
    })?;
    Ok(name.trim().to_owned())
}
