//! The control plane of one backend: what listens, what connects, and its end.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use mio::Poll;
use mio::net::TcpListener;
use mori_core::{Clock, Deadline, EngineKey, Error, ErrorKind, Result, Secret};

use super::dialed::{Dialed, Expected};
use super::link::{Inner, Link};
use super::message::MAX_KEY;
use super::pool::Pool;
use super::watch::{Command, Handle, Shared, Watch};
use super::{ControlConfig, Identity, Service};
use crate::sync::Mutex;

/// How long connecting may take if the caller sets no bound.
const LONG: Duration = Duration::from_secs(60);

/// Whom to connect to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) key: EngineKey,
    /// The incarnation, from what the peer's own backend says in its descriptor. It speaks the own protocol then, and nothing
    /// else is spoken with it; another incarnation is an error. `None`: an existing peer, or nobody knows.
    pub(crate) instance: Option<[u8; 16]>,
    /// Names or addresses, without brackets, and ports; tried in this order.
    pub(crate) addresses: Vec<(String, u16)>,
}

/// The control plane of one backend.
///
/// It accepts from the moment it is made. Dropping it shuts it down.
pub(crate) struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    watch: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Listens, and starts the threads. `service` is held weakly.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an address that is none, an empty secret or too long a key;
    /// [`ErrorKind::Unavailable`] for an address that cannot be had; [`ErrorKind::ResourceExhausted`] if there are not enough
    /// threads or descriptors.
    pub(crate) fn bind(
        config: ControlConfig,
        identity: Identity,
        service: Weak<dyn Service>,
    ) -> Result<Self> {
        if identity.key.as_str().len() > MAX_KEY {
            let what = format!("the engine's key is longer than {MAX_KEY} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if config.secret.as_ref().is_some_and(Secret::is_empty) {
            let what = "the secret must not be empty; leave it out to have none";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let listener = listen(&config.bind)?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::io(ErrorKind::Unavailable, "cannot tell the own address", &error))?;
        let exhausted = |error| {
            Error::io(ErrorKind::ResourceExhausted, "cannot set up the control connections' thread", &error)
        };
        let poll = Poll::new().map_err(exhausted)?;
        let handle = Arc::new(Handle::new(poll.registry()).map_err(exhausted)?);
        let pool = Pool::start(config.workers)?;
        let shared = Shared::new(config, identity, service, handle, Arc::clone(&pool));
        let started =
            Watch::new(poll, Arc::clone(&shared), TcpListener::from_std(listener)).and_then(|watch| {
                std::thread::Builder::new().name("mori-rdma-watch".into()).spawn(move || watch.run())
            });
        match started {
            Ok(thread) => {
                let watch = thread.thread().id();
                Ok(Self { shared, address, watch, thread: Mutex::new(Some(thread)) })
            }
            Err(error) => {
                pool.stop();
                Err(exhausted(error))
            }
        }
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Connects to a peer; blocks until the connection stands, has failed, or the deadline. The service may be told of the
    /// link's loss before the caller has stored it: look at [`Link::is_open`] after storing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccessDenied`] if the secrets differ or the peer cannot prove one, [`ErrorKind::Unsupported`] for
    /// versions that have nothing in common, [`ErrorKind::TimedOut`] at the deadline, [`ErrorKind::PeerLost`] if the peer
    /// cannot be reached, is another engine or another incarnation, [`ErrorKind::ResourceExhausted`] without descriptors
    /// here, [`ErrorKind::BadState`] after shutdown.
    pub(crate) fn connect(&self, target: &Target, deadline: Deadline) -> Result<Arc<Link>> {
        let now = self.shared.clock.now();
        let addresses = resolve(&self.shared.clock, &target.addresses, deadline)?;
        let give_up = match deadline {
            Deadline::At(point) => point,
            Deadline::Never => now + LONG,
        };
        let (handle, own) = (&self.shared.handle, self.shared.identity.key.clone());
        let inner = Inner::new(handle.fresh(), target.key.clone(), own, self.shared.clock.clone());
        let expected = Expected { key: target.key.clone(), instance: target.instance };
        let conn = Dialed::new(Arc::clone(&inner), expected, addresses, give_up);
        // From here on, leaving this function closes it.
        let link = Link::new(Arc::clone(&inner), Arc::clone(handle));
        if !handle.send(Command::Dial(Box::new(conn))) {
            return Err(Error::new(ErrorKind::BadState, "the rdma backend is shut down"));
        }
        inner.wait_open(deadline)?;
        Ok(Arc::new(link))
    }

    /// Ends every connection and link, lets calls of the service that run come to their end, and drops those that have not
    /// begun. When it returns, the service has been told of the end of every connection and is not called any more. Called by
    /// one of the control plane's own threads, it returns before that.
    pub(crate) fn shutdown(&self) {
        self.shared.handle.send(Command::Shutdown);
        if std::thread::current().id() == self.watch {
            // The thread ends its connections when it gets back to its loop; who waits for the pool then is nobody.
            return;
        }
        // The lock is held meanwhile, so that a second caller waits as well.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
        self.shared.pool.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Listens on the first of the addresses that `bind` stands for that can be had.
fn listen(bind: &str) -> Result<std::net::TcpListener> {
    let addresses = bind.to_socket_addrs().map_err(|error| {
        let what = format!("cannot listen on {bind:?}, which must be address:port or name:port");
        Error::io(ErrorKind::InvalidArgument, what, &error)
    })?;
    let mut failure = None;
    for address in addresses {
        let opened = std::net::TcpListener::bind(address).and_then(|listener| {
            // The standard library's backlog of 128 is too short for hundreds of peers that connect at once.
            socket2::SockRef::from(&listener).listen(4096)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = Some(error),
        }
    }
    let error = failure.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
    Err(Error::io(ErrorKind::Unavailable, format!("cannot listen on {bind}; choose another address"), &error))
}

/// The addresses that the names stand for.
fn resolve(clock: &Clock, names: &[(String, u16)], deadline: Deadline) -> Result<VecDeque<SocketAddr>> {
    let mut addresses = VecDeque::new();
    let mut failure = None;
    for (host, port) in names {
        match host.parse::<IpAddr>() {
            Ok(address) => addresses.push_back(SocketAddr::new(address, *port)),
            Err(_) => match look_up(clock, host.clone(), *port, deadline) {
                Ok(found) => addresses.extend(found),
                Err(error) => failure = Some(error),
            },
        }
    }
    if addresses.is_empty() {
        let none = || Error::new(ErrorKind::InvalidArgument, "no address to connect to; give one");
        return Err(failure.unwrap_or_else(none));
    }
    Ok(addresses)
}

/// Looks a name up on a thread of its own, since the system's look-up cannot be bounded.
fn look_up(clock: &Clock, host: String, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>> {
    let (sender, receiver) = channel();
    let name = host.clone();
    let work = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Nobody may wait for it any more.
        let _ = sender.send(found);
    };
    std::thread::Builder::new()
        .name("mori-rdma-name".into())
        .spawn(work)
        .map_err(|error| Error::io(ErrorKind::ResourceExhausted, "cannot start a thread", &error))?;
    let left = |point: Instant| point.saturating_duration_since(clock.now());
    let found = match deadline {
        Deadline::At(point) => receiver.recv_timeout(left(point)),
        Deadline::Never => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match found {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(Error::io(ErrorKind::PeerLost, format!("cannot resolve {name}"), &error)),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("looking up {name} took too long"))),
    }
}
