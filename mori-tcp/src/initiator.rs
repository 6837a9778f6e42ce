//! The initiator's end of a connection, as its I/O thread sees it: connecting, greeting, reading answers, stopping
//! requests, noticing that the peer is gone.

mod greet;
mod lend;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use mori_core::{Error, ErrorKind, Nonce, Result, Secret, StatusCode};

use crate::config::MAX_PIECES;
use crate::handshake;
use crate::lane::{Lane, Request};
use crate::outgoing::{Flush, Stopped};
use crate::peer::Peer;
use crate::reader::Reader;
use crate::shared::Shared;
use crate::sys::Scatter;
use crate::transfer::Transfer;
use crate::wire::{HEADER, Header, Kind, LAST, malformed};
use crate::worker::TURN_BUDGET;

pub(crate) struct Initiator {
    pub(crate) lane: Arc<Lane>,
    peer: Arc<Peer>,
    phase: Phase,
    reader: Reader,
    rx: Rx,
    /// The last sign of life.
    heard: Instant,
    pinged: bool,
    was_busy: bool,
    give_up: Instant,
    /// A second descriptor of the open connection, by which the system tells of room to write. The first one, by which it
    /// tells of bytes to read, can then be taken off its list while a waiting thread reads.
    room: Option<TcpStream>,
    /// Reading has failed: the connection is about to be closed.
    broken: bool,
}

enum Phase {
    Resolving,
    Connecting { socket: TcpStream, address: SocketAddr, rest: VecDeque<SocketAddr> },
    Greeting { socket: TcpStream, step: Step, received: Vec<u8>, out: Vec<u8> },
    Open,
}

enum Step {
    Challenge { own: Nonce },
    Accept { own: Nonce, target: Nonce },
}

/// What is being read.
enum Rx {
    Head,
    Text { header: Header, body: Vec<u8> },
    Payload { id: u64, read: Reading, left: u64, last: bool },
    Discard { id: u64, left: u64, last: bool },
}

struct Reading {
    transfer: Arc<Transfer>,
    scatter: Scatter,
    bytes: u64,
}

impl Reading {
    fn into_request(self) -> Request {
        Request::Read { transfer: self.transfer, scatter: self.scatter, bytes: self.bytes }
    }
}

impl Initiator {
    pub(crate) fn new(lane: Arc<Lane>, peer: Arc<Peer>, now: Instant, timeout: Duration) -> Self {
        Self {
            lane,
            peer,
            phase: Phase::Resolving,
            reader: Reader::new(),
            rx: Rx::Head,
            heard: now,
            pinged: false,
            was_busy: false,
            give_up: now + timeout,
            room: None,
            broken: false,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match &self.phase {
            Phase::Resolving => None,
            Phase::Connecting { socket, .. } | Phase::Greeting { socket, .. } => Some(socket),
            Phase::Open => self.lane.socket(),
        }
    }

    /// The peer's addresses are known: starts connecting to the first.
    pub(crate) fn connect(&mut self, registry: &Registry, mut addresses: VecDeque<SocketAddr>) -> Result<()> {
        let mut last = None;
        while let Some(address) = addresses.pop_front() {
            match dial(registry, address, Token(self.lane.token)) {
                Ok(socket) => {
                    self.phase = Phase::Connecting { socket, address, rest: addresses };
                    return Ok(());
                }
                Err(error) => last = Some(self.unreachable(address, &error)),
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::new(ErrorKind::PeerLost, format!("engine {} has no address", self.lane.peer))
        }))
    }

    fn unreachable(&self, address: SocketAddr, error: &io::Error) -> Error {
        // A limit of this machine says nothing about the peer.
        let own = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
        let exhausted = error.raw_os_error().is_some_and(|number| own.contains(&number));
        let kind = if exhausted { ErrorKind::ResourceExhausted } else { ErrorKind::PeerLost };
        Error::io(kind, format!("cannot connect to engine {} at {address}", self.lane.peer), error)
    }

    /// The socket has something for us.
    pub(crate) fn event(
        &mut self,
        shared: &Shared,
        registry: &Registry,
        readable: Option<bool>,
        writable: bool,
    ) -> Result<()> {
        if let Some(closed) = readable {
            self.reader.readable(closed);
        }
        if let Phase::Connecting { .. } = &self.phase {
            return self.connected(shared, registry);
        }
        if writable {
            self.writable(shared)?;
        }
        Ok(())
    }

    fn connected(&mut self, shared: &Shared, registry: &Registry) -> Result<()> {
        let Phase::Connecting { socket, address, .. } = &self.phase else { return Ok(()) };
        let address = *address;
        let failed = match socket.take_error() {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => match socket.peer_addr() {
                // Where nobody listens, a connection to a port that the system also hands out may have met itself.
                Ok(peer) if socket.local_addr().is_ok_and(|own| own == peer) => {
                    io::ErrorKind::ConnectionRefused.into()
                }
                Ok(_) => return self.greet(shared),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => error,
            },
        };
        let error = self.unreachable(address, &failed);
        let Phase::Connecting { mut socket, rest, .. } = std::mem::replace(&mut self.phase, Phase::Resolving)
        else {
            return Ok(());
        };
        let _ = registry.deregister(&mut socket);
        if rest.is_empty() {
            return Err(error);
        }
        self.connect(registry, rest)
    }

    fn greet(&mut self, shared: &Shared) -> Result<()> {
        let Phase::Connecting { socket, .. } = std::mem::replace(&mut self.phase, Phase::Resolving) else {
            return Ok(());
        };
        crate::tune(&socket);
        let own = Secret::nonce()?;
        let out = handshake::hello(&own);
        self.phase = Phase::Greeting { socket, step: Step::Challenge { own }, received: Vec::new(), out };
        self.writable(shared)
    }

    fn writable(&mut self, shared: &Shared) -> Result<()> {
        match &mut self.phase {
            Phase::Greeting { socket, out, .. } => {
                crate::send_all(socket, out).map_err(|error| closed_by(&self.lane, &error))
            }
            Phase::Open => self.send(shared),
            Phase::Resolving | Phase::Connecting { .. } => Ok(()),
        }
    }

    /// Sends what waits, up to this turn's budget.
    pub(crate) fn send(&mut self, shared: &Shared) -> Result<()> {
        let (flushed, drained) = self.lane.write_some(TURN_BUDGET);
        if drained {
            self.alive(shared.clock.now());
        }
        match flushed {
            Ok(Flush::Empty | Flush::Blocked) => Ok(()),
            Ok(Flush::More) => {
                self.lane.worker.again(self.lane.token);
                Ok(())
            }
            Err(error) => Err(closed_by(&self.lane, &error)),
        }
    }

    fn alive(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = false;
    }

    /// Reads until the socket is empty or the turn is over; `true`: there is more.
    pub(crate) fn turn(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        if self.broken {
            return Ok(false);
        }
        let before = self.reader.read;
        let result = loop {
            match self.step(shared) {
                Ok(true) if self.reader.read - before < TURN_BUDGET => {}
                Ok(more) => break Ok(more),
                Err(error) => break Err(error),
            }
        };
        if self.reader.read > before {
            self.alive(shared.clock.now());
        }
        result
    }

    /// Reads one thing; `false`: the socket is empty.
    fn step(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        if let Phase::Greeting { .. } = &self.phase {
            return self.greeting(shared);
        }
        if !matches!(self.phase, Phase::Open) {
            return Ok(false);
        }
        let lane = Arc::clone(&self.lane);
        let Some(socket) = lane.socket() else { return Ok(false) };
        let gone = |error: io::Error| closed_by(&lane, &error);
        match std::mem::replace(&mut self.rx, Rx::Head) {
            Rx::Head => match self.reader.header(socket).map_err(gone)? {
                None => return Ok(false),
                Some(bytes) => self.head(&bytes)?,
            },
            Rx::Text { header, mut body } => {
                let whole = self.reader.body(socket, &mut body, header.body as usize);
                if whole.map_err(gone)? {
                    self.failed(&header, &body)?;
                } else {
                    self.rx = Rx::Text { header, body };
                }
            }
            Rx::Payload { id, mut read, mut left, last } => {
                let before = left;
                let whole = self.reader.payload(socket, &mut read.scatter, &mut left);
                read.transfer.moved(before - left);
                match whole {
                    Ok(true) => self.arrived(id, read, last),
                    Ok(false) => self.rx = Rx::Payload { id, read, left, last },
                    Err(error) => {
                        self.rx = Rx::Payload { id, read, left, last };
                        return Err(gone(error));
                    }
                }
            }
            Rx::Discard { id, mut left, last } => {
                if self.reader.discard(socket, &mut left).map_err(gone)? {
                    if last {
                        self.lane.leave(id);
                    }
                } else {
                    self.rx = Rx::Discard { id, left, last };
                }
            }
        }
        Ok(!self.reader.is_drained())
    }

    fn head(&mut self, bytes: &[u8; HEADER]) -> Result<()> {
        let header = Header::decode(bytes, MAX_PIECES)?;
        let id = header.id;
        match header.kind {
            Kind::Pong => {}
            Kind::Fail => self.rx = Rx::Text { header, body: Vec::new() },
            Kind::Chunk => self.chunk(&header)?,
            Kind::Done => self.done(id)?,
            Kind::Read | Kind::Write | Kind::Data | Kind::Cancel | Kind::Ping | Kind::Note => {
                return Err(malformed("a request where answers come"));
            }
        }
        Ok(())
    }

    fn done(&mut self, id: u64) -> Result<()> {
        match self.lane.leave(id) {
            Some(Request::Write { transfer, bytes, sending }) => {
                // The thread that sent the last bytes may still hold them.
                self.lane.settle();
                if sending.is_under_way() {
                    self.lane.table.lock().requests.insert(id, Request::Write { transfer, bytes, sending });
                    return Err(malformed(format!("write {id} is said to be done before it was sent")));
                }
                transfer.moved(bytes);
                transfer.quiet(Ok(()));
            }
            Some(Request::Note { transfer }) => transfer.quiet(Ok(())),
            other => {
                // Back into the table, so that it ends with the connection.
                if let Some(request) = other {
                    self.lane.table.lock().requests.insert(id, request);
                }
                return Err(malformed(format!(
                    "an answer to request {id}, which is none that could be done"
                )));
            }
        }
        Ok(())
    }

    fn chunk(&mut self, header: &Header) -> Result<()> {
        let (id, left, last) = (header.id, header.payload, header.flags & LAST != 0);
        let mut table = self.lane.table.lock();
        match table.requests.remove(&id) {
            Some(Request::Read { transfer, scatter, bytes }) => {
                let expected = scatter.left();
                if left > expected || last != (left == expected) {
                    table.requests.insert(id, Request::Read { transfer, scatter, bytes });
                    return Err(malformed(format!("a chunk of {left} bytes where {expected} are missing")));
                }
                self.rx = Rx::Payload { id, read: Reading { transfer, scatter, bytes }, left, last };
            }
            Some(drain @ Request::Drain) => {
                table.requests.insert(id, drain);
                self.rx = Rx::Discard { id, left, last };
            }
            other => {
                if let Some(request) = other {
                    table.requests.insert(id, request);
                }
                return Err(malformed(format!("bytes for request {id}, which is no read")));
            }
        }
        Ok(())
    }

    fn arrived(&mut self, id: u64, read: Reading, last: bool) {
        let request = read.into_request();
        if !last {
            self.lane.table.lock().requests.insert(id, request);
            return;
        }
        self.lane.unload(&request);
        if let Request::Read { transfer, scatter, .. } = request {
            // The scatter holds the region's pin.
            drop(scatter);
            transfer.quiet(Ok(()));
        }
    }

    fn failed(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let id = header.id;
        let Some(request) = self.lane.leave(id) else {
            return Err(malformed(format!("a failure of request {id}, which is not in progress")));
        };
        let kind = match StatusCode::from_number(header.count) {
            Some(StatusCode::Failure(kind)) => kind,
            _ => ErrorKind::Transport,
        };
        let error = Error::new(kind, format!("engine {}: {}", self.lane.peer, String::from_utf8_lossy(body)));
        match request {
            Request::Write { transfer, .. } => {
                self.lane.abandon(id);
                transfer.quiet(Err(error));
            }
            Request::Read { transfer, scatter, .. } => {
                drop(scatter);
                transfer.quiet(Err(error));
            }
            Request::Note { transfer } => transfer.quiet(Err(error)),
            Request::Drain => {}
        }
        Ok(())
    }

    /// Stops a request (contract E1): a read is quiet at once, since its bytes are thrown away from now on; a write is quiet
    /// when none of it was sent, or when the target says so.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Rx::Payload { id: current, .. } = &self.rx
            && *current == id
            && let Rx::Payload { read, left, last, .. } = std::mem::replace(&mut self.rx, Rx::Head)
        {
            self.rx = Rx::Discard { id, left, last };
            self.drain(id, read);
            return;
        }
        let request = self.lane.table.lock().requests.remove(&id);
        match request {
            Some(Request::Read { transfer, scatter, bytes }) => {
                self.drain(id, Reading { transfer, scatter, bytes });
            }
            Some(request @ Request::Write { .. }) => {
                if self.lane.stop_sending(id) == Stopped::Unsent {
                    self.lane.unload(&request);
                    if let Request::Write { transfer, .. } = request {
                        transfer.stopped();
                    }
                } else {
                    self.lane.table.lock().requests.insert(id, request);
                }
            }
            Some(other) => {
                self.lane.table.lock().requests.insert(id, other);
            }
            None => {}
        }
    }

    fn drain(&mut self, id: u64, read: Reading) {
        if self.lane.stop_sending(id) != Stopped::Unsent {
            self.lane.table.lock().requests.insert(id, Request::Drain);
        }
        let request = read.into_request();
        self.lane.unload(&request);
        if let Request::Read { transfer, scatter, .. } = request {
            drop(scatter);
            transfer.stopped();
        }
    }

    /// Whether something is under way, so that silence means something.
    pub(crate) fn busy(&self) -> bool {
        !matches!(self.phase, Phase::Open)
            || !matches!(self.rx, Rx::Head)
            || !self.lane.table.lock().requests.is_empty()
            || self.lane.backlog() > 0
    }

    /// Looks at the clock; an error ends the connection.
    pub(crate) fn tick(&mut self, shared: &Shared, now: Instant) -> Result<()> {
        if !matches!(self.phase, Phase::Open) {
            if now < self.give_up {
                return Ok(());
            }
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!(
                    "engine {} did not answer within {:?} of connecting",
                    self.lane.peer, shared.config.connect_timeout
                ),
            ));
        }
        let busy = self.busy();
        if !busy || !std::mem::replace(&mut self.was_busy, busy) {
            self.was_busy = busy;
            self.alive(now);
            return Ok(());
        }
        let silent = now.saturating_duration_since(self.heard);
        let limit = shared.config.peer_timeout;
        if silent >= limit {
            let error = Error::new(
                ErrorKind::PeerLost,
                format!("engine {} has been silent for {silent:.1?} (limit {limit:?})", self.lane.peer),
            );
            self.peer.lose(&error);
            return Err(error);
        }
        if silent >= limit / 4 && !std::mem::replace(&mut self.pinged, true) {
            self.lane.urgent(Header::new(Kind::Ping, 0));
        }
        Ok(())
    }

    /// This process itself did not run for a while: that is not the peer's silence.
    pub(crate) fn excuse(&mut self, by: Duration, now: Instant) {
        self.heard = (self.heard + by).min(now);
        self.give_up += by;
    }

    /// Ends transfers whose own deadline has passed; gives the earliest of the others.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let mut earliest: Option<Instant> = None;
        let mut late = Vec::new();
        let mut look = |transfer: &Arc<Transfer>| {
            if let Some(deadline) = transfer.deadline.filter(|_| !transfer.stopping()) {
                if deadline.at <= now {
                    late.push(Arc::clone(transfer));
                } else {
                    earliest = Some(earliest.map_or(deadline.at, |other| other.min(deadline.at)));
                }
            }
        };
        if let Rx::Payload { read, .. } = &self.rx {
            look(&read.transfer);
        }
        self.lane.table.lock().requests.values().filter_map(Request::transfer).for_each(look);
        for transfer in late {
            let silent = now.saturating_duration_since(self.heard);
            let backlog = self.lane.backlog();
            let what = match (&self.phase, backlog) {
                (Phase::Open, 0) => format!("engine {}, silent since {silent:.1?}", self.lane.peer),
                (Phase::Open, waiting) => {
                    format!("engine {}, {waiting} frames queued, silent since {silent:.1?}", self.lane.peer)
                }
                _ => format!("the connection to engine {}", self.lane.peer),
            };
            transfer.expire(what);
        }
        earliest
    }

    /// Ends the connection; everything in progress on it fails with `why`.
    pub(crate) fn close(&mut self, registry: &Registry, why: &Error) {
        if let Some(socket) = self.socket() {
            if matches!(self.phase, Phase::Open) && self.busy() {
                crate::forget_unsent(socket);
            }
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        match std::mem::replace(&mut self.phase, Phase::Resolving) {
            Phase::Connecting { mut socket, .. } | Phase::Greeting { mut socket, .. } => {
                let _ = registry.deregister(&mut socket);
            }
            Phase::Open => {
                if let Some(socket) = self.lane.socket() {
                    let _ = registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
                }
                if let Some(mut room) = self.room.take() {
                    let _ = registry.deregister(&mut room);
                }
            }
            Phase::Resolving => {}
        }
        self.peer.disconnected(&self.lane);
        let mut requests = self.lane.close(why);
        if let Rx::Payload { read, .. } = std::mem::replace(&mut self.rx, Rx::Head) {
            requests.push(read.into_request());
        }
        if requests.is_empty() {
            tracing::debug!(peer = %self.lane.peer, error = %why, "connection closed");
        } else {
            tracing::warn!(peer = %self.lane.peer, transfers = requests.len(), error = %why, "connection lost");
        }
        for request in requests {
            let transfer = request.transfer().map(Arc::clone);
            drop(request);
            if let Some(transfer) = transfer {
                transfer.quiet(Err(why.clone()));
            }
        }
    }
}

fn dial(registry: &Registry, address: SocketAddr, token: Token) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
    Ok(socket)
}

/// The error for a connection that the peer, or the network, has ended.
fn closed_by(lane: &Lane, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Error::new(
            ErrorKind::PeerLost,
            format!("engine {} closed the connection; it has shut down or died", lane.peer),
        );
    }
    Error::io(ErrorKind::PeerLost, format!("the connection to engine {} broke", lane.peer), error)
}
