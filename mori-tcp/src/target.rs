//! The target's end of a connection: greeting, serving reads and writes of registered regions, notifications.
//!
//! The application takes no part in it. Everything that comes in is untrusted: keys, ranges and rights are checked for every
//! request; what contradicts the protocol ends the connection with one log line and touches nothing else.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Registry, Token};
use mori_core::{Error, ErrorKind, Nonce, Notification, Result, Secret, StatusCode, Tag};

use crate::config::MAX_PIECES;
use crate::handshake::{self, Identity};
use crate::outgoing::{Flush, Outgoing, Queue, Stopped};
use crate::reader::Reader;
use crate::shared::Shared;
use crate::sys::Scatter;
use crate::wire::{
    AFTER_WRITE, ANNOUNCE, FAILED, Fields, HEADER, Header, Kind, MAX_TEXT, ON_FAILURE, cut, decode_pieces,
    malformed,
};
use crate::worker::TURN_BUDGET;

/// A connection with more answers queued than this is not read until some are sent.
const MAX_QUEUED: usize = 256;
/// The same for the pieces of memory that the answers keep.
const MAX_QUEUED_PIECES: usize = 4 * MAX_PIECES as usize;
/// The most writes of a connection that may be begun and not ended. An initiator ends one before it begins the next; those that
/// it stops overlap with what follows for a moment.
const MAX_WRITES: usize = 64;
/// The most pieces of memory that they may have together.
const MAX_WRITE_PIECES: usize = 4 * MAX_PIECES as usize;
/// How many steps a turn has at most: small frames cost time rather than bytes.
const TURN_STEPS: usize = 4096;
/// The most transfers of a connection that may be announced at a time.
const MAX_ANNOUNCED: usize = 1 << 16;

pub(crate) struct Target {
    token: usize,
    socket: TcpStream,
    phase: Phase,
    reader: Reader,
    rx: Rx,
    queue: Queue,
    writes: HashMap<u64, Incoming>,
    /// The last write that ended, for the notification that follows it.
    last_write: Option<(u64, Option<Error>)>,
    announced: HashMap<u128, Announced>,
    /// The last progress in either direction, as long as something is under way.
    progress: Instant,
    paused: bool,
}

enum Phase {
    Greeting { step: Step, received: Vec<u8>, out: Vec<u8>, give_up: Instant },
    Open { peer: Identity },
}

enum Step {
    Hello,
    Proof { initiator: Nonce, own: Nonce },
    Identity,
}

enum Rx {
    Head,
    Body { header: Header, body: Vec<u8> },
    Payload { id: u64, left: u64 },
}

/// A write that is coming in. Without a scatter it has been refused, and its bytes are thrown away.
struct Incoming {
    scatter: Option<Scatter>,
    left: u64,
    refusal: Option<Error>,
}

struct Announced {
    tag: Tag,
    message: Vec<u8>,
}

impl Target {
    pub(crate) fn new(token: usize, socket: TcpStream, now: Instant, timeout: Duration) -> Self {
        crate::tune(&socket);
        Self {
            token,
            socket,
            phase: Phase::Greeting {
                step: Step::Hello,
                received: Vec::new(),
                out: Vec::new(),
                give_up: now + timeout,
            },
            reader: Reader::new(),
            rx: Rx::Head,
            queue: Queue::default(),
            writes: HashMap::new(),
            last_write: None,
            announced: HashMap::new(),
            progress: now,
            paused: false,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        registry.register(
            &mut self.socket,
            Token(self.token),
            mio::Interest::READABLE | mio::Interest::WRITABLE,
        )
    }

    pub(crate) fn greeting(&self) -> bool {
        matches!(self.phase, Phase::Greeting { .. })
    }

    /// The socket has something for us.
    pub(crate) fn event(&mut self, shared: &Shared, readable: Option<bool>, writable: bool) -> Result<()> {
        if let Some(closed) = readable {
            if closed {
                // The transfers of what came before the end and was not looked at have failed at their submitter (E4), which may
                // use the memory for something else by now.
                return Err(Error::new(ErrorKind::PeerLost, "the peer closed the connection"));
            }
            self.reader.readable(closed);
        }
        if writable {
            self.send(shared)?;
        }
        Ok(())
    }

    /// Sends what waits, up to this turn's budget; says whether the budget cut it short.
    fn send(&mut self, shared: &Shared) -> Result<bool> {
        if let Phase::Greeting { out, .. } = &mut self.phase {
            crate::send_all(&self.socket, out).map_err(|error| broke(&error))?;
            return Ok(false);
        }
        let flushed = self.queue.flush(&self.socket, TURN_BUDGET).map_err(|error| broke(&error))?;
        if std::mem::take(&mut self.queue.drained) || flushed == Flush::Empty {
            self.progress = shared.clock.now();
        }
        if self.paused && self.queue.len() <= MAX_QUEUED / 2 && self.queue.weight() <= MAX_QUEUED_PIECES / 2 {
            self.paused = false;
        }
        Ok(flushed == Flush::More)
    }

    /// Reads until the socket is empty or the turn is over, and sends the answers; `true`: there is more to do.
    pub(crate) fn turn(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let before = self.reader.read;
        let mut more = true;
        for _ in 0..TURN_STEPS {
            if !more || self.paused || self.reader.read - before >= TURN_BUDGET {
                break;
            }
            more = self.step(shared)?;
            // Whatever was asked for: answers that nobody takes must not pile up.
            self.paused = self.queue.len() >= MAX_QUEUED || self.queue.weight() >= MAX_QUEUED_PIECES;
        }
        if self.reader.read > before {
            self.progress = shared.clock.now();
        }
        let unsent = self.send(shared)?;
        Ok((more && !self.paused) || unsent)
    }

    /// Reads one thing; `false`: the socket is empty.
    fn step(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        if self.greeting() {
            return self.greet(shared);
        }
        let gone = |error: io::Error| broke(&error);
        match std::mem::replace(&mut self.rx, Rx::Head) {
            Rx::Head => match self.reader.header(&self.socket).map_err(gone)? {
                None => return Ok(false),
                Some(bytes) => self.head(shared, &bytes)?,
            },
            Rx::Body { header, mut body } => {
                let whole = self.reader.body(&self.socket, &mut body, header.body as usize).map_err(gone)?;
                if whole {
                    self.frame(shared, &header, &body)?;
                } else {
                    self.rx = Rx::Body { header, body };
                }
            }
            Rx::Payload { id, left } => self.payload(id, left)?,
        }
        Ok(!self.reader.is_drained())
    }

    fn head(&mut self, shared: &Arc<Shared>, bytes: &[u8; HEADER]) -> Result<()> {
        let header = Header::decode(bytes, MAX_PIECES)?;
        if header.body > 0 {
            self.rx = Rx::Body { header, body: Vec::new() };
            return Ok(());
        }
        self.frame(shared, &header, &[])
    }

    fn frame(&mut self, shared: &Arc<Shared>, header: &Header, body: &[u8]) -> Result<()> {
        match header.kind {
            Kind::Read => self.read(shared, header, body),
            Kind::Write => self.write(shared, header, body)?,
            Kind::Data => self.data(header)?,
            Kind::Cancel => self.cancel(header.id),
            Kind::Ping => self.queue.push_urgent(Outgoing::frame(Header::new(Kind::Pong, 0), &[])),
            Kind::Note => self.note(shared, header, body)?,
            Kind::Chunk | Kind::Done | Kind::Fail | Kind::Pong => {
                return Err(malformed("an answer where requests come"));
            }
        }
        Ok(())
    }

    fn done(&mut self, id: u64) {
        self.queue.push(Outgoing::frame(Header::new(Kind::Done, id), &[]));
    }

    fn fail(&mut self, id: u64, error: &Error) {
        let header = Header { count: error.kind().number(), ..Header::new(Kind::Fail, id) };
        self.queue.push(Outgoing::frame(header, cut(error.message(), MAX_TEXT).as_bytes()));
    }

    fn read(&mut self, shared: &Shared, header: &Header, body: &[u8]) {
        match open(shared, header, body, false) {
            Ok(scatter) => {
                self.queue.push(Outgoing::reply(header.id, scatter, shared.config.chunk_bytes));
            }
            Err(error) => self.fail(header.id, &error),
        }
    }

    fn write(&mut self, shared: &Shared, header: &Header, body: &[u8]) -> Result<()> {
        let (id, left) = (header.id, header.b);
        if header.payload > left || (header.payload == 0) != (left == 0) || self.writes.contains_key(&id) {
            return Err(malformed(format!("a write of {left} bytes with a payload of {}", header.payload)));
        }
        let pieces = |incoming: &Incoming| incoming.scatter.as_ref().map_or(0, Scatter::pieces);
        let open_pieces: usize = self.writes.values().map(pieces).sum();
        if self.writes.len() >= MAX_WRITES || open_pieces >= MAX_WRITE_PIECES {
            return Err(malformed("too many writes begun and not ended"));
        }
        let incoming = match open(shared, header, body, true) {
            Ok(scatter) => Incoming { scatter: Some(scatter), left, refusal: None },
            Err(error) => {
                self.fail(id, &error);
                Incoming { scatter: None, left, refusal: Some(error) }
            }
        };
        self.writes.insert(id, incoming);
        self.rx = Rx::Payload { id, left: header.payload };
        Ok(())
    }

    fn data(&mut self, header: &Header) -> Result<()> {
        let missing = self.writes.get(&header.id).map(|incoming| incoming.left);
        if missing.is_none_or(|left| header.payload > left) {
            return Err(malformed(format!("data for write {}, which expects none such", header.id)));
        }
        self.rx = Rx::Payload { id: header.id, left: header.payload };
        Ok(())
    }

    fn payload(&mut self, id: u64, mut left: u64) -> Result<()> {
        let Some(incoming) = self.writes.get_mut(&id) else {
            return Err(malformed("a payload of no write"));
        };
        let before = left;
        let whole = match &mut incoming.scatter {
            Some(scatter) => self.reader.payload(&self.socket, scatter, &mut left),
            None => self.reader.discard(&self.socket, &mut left),
        }
        .map_err(|error| broke(&error))?;
        incoming.left -= before - left;
        if !whole {
            self.rx = Rx::Payload { id, left };
            return Ok(());
        }
        if incoming.left == 0
            && let Some(incoming) = self.writes.remove(&id)
        {
            if incoming.scatter.is_some() {
                // The pin goes before the answer: whoever learns of the end may deregister at once.
                drop(incoming.scatter);
                self.done(id);
            }
            self.last_write = Some((id, incoming.refusal));
        }
        Ok(())
    }

    /// Stops a request of the peer's. One that is over, or that is not known, has its answer under way.
    fn cancel(&mut self, id: u64) {
        let cancelled = Error::new(ErrorKind::Cancelled, "stopped at the initiator's request");
        if let Some(incoming) = self.writes.remove(&id) {
            if incoming.scatter.is_some() {
                drop(incoming.scatter);
                self.fail(id, &cancelled);
            }
            self.last_write = Some((id, Some(incoming.refusal.unwrap_or(cancelled))));
        } else if self.queue.stop(id) != Stopped::Absent {
            self.fail(id, &cancelled);
        }
    }

    fn note(&mut self, shared: &Shared, header: &Header, body: &[u8]) -> Result<()> {
        let mut fields = Fields(body);
        let length = fields.u16().ok_or_else(|| malformed("a note that is cut off"))?;
        let message = fields
            .take(usize::from(length))
            .filter(|message| message.len() <= mori_core::MAX_NOTIFICATION)
            .ok_or_else(|| malformed("a note whose message is cut off or too long"))?
            .to_vec();
        let tag = Tag(header.a);
        if header.flags & ANNOUNCE != 0 {
            if self.announced.len() >= MAX_ANNOUNCED {
                return Err(malformed("too many transfers announced at once"));
            }
            self.announced.insert(header.key, Announced { tag, message });
            return Ok(());
        }
        self.announced.remove(&header.key);
        let error = self.outcome(header, fields.0);
        if error.is_some() && header.flags & ON_FAILURE == 0 {
            self.done(header.id);
            return Ok(());
        }
        match self.notify(shared, header.key, tag, message, error) {
            Ok(()) => self.done(header.id),
            Err(refused) => self.fail(header.id, &refused),
        }
        Ok(())
    }

    /// How the transfer of a note ended.
    fn outcome(&self, header: &Header, text: &[u8]) -> Option<Error> {
        if header.flags & FAILED != 0 {
            let kind = match StatusCode::from_number(header.count) {
                Some(StatusCode::Failure(kind)) => kind,
                _ => ErrorKind::Transport,
            };
            return Some(Error::new(kind, String::from_utf8_lossy(text)));
        }
        if header.flags & AFTER_WRITE == 0 {
            return None;
        }
        match &self.last_write {
            Some((id, error)) if *id == header.b => error.clone(),
            _ => Some(Error::new(ErrorKind::Cancelled, "the write was stopped before it was sent")),
        }
    }

    fn notify(
        &self,
        shared: &Shared,
        transfer: u128,
        tag: Tag,
        message: Vec<u8>,
        error: Option<Error>,
    ) -> Result<()> {
        let Phase::Open { peer } = &self.phase else { return Ok(()) };
        let transfer = u64::try_from(transfer).map_err(|_| malformed("a transfer's number"))?;
        shared.notify(Notification { peer: peer.key.clone(), transfer, tag, message, error })
    }

    fn greet(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let Phase::Greeting { step, received, out, .. } = &mut self.phase else { return Ok(false) };
        self.reader.some(&self.socket, received).map_err(|error| broke(&error))?;
        let Some(message) = handshake::take_message(received)? else { return Ok(!self.reader.is_drained()) };
        let secret = shared.config.secret.as_ref();
        match step {
            Step::Hello => {
                let own = Secret::nonce()?;
                let (initiator, answer, agreed) = handshake::challenge(&message, &own, secret)?;
                out.extend_from_slice(&answer);
                crate::send_all(&self.socket, out).map_err(|error| broke(&error))?;
                if !agreed {
                    return Err(Error::new(ErrorKind::Unsupported, "the peer speaks no common version"));
                }
                *step = Step::Proof { initiator, own };
            }
            Step::Proof { initiator, own } => {
                let identity = shared.identity()?;
                let answer = handshake::accept(&message, (initiator, own), secret, &identity);
                out.extend_from_slice(answer.as_ref().unwrap_or(&handshake::refusal()));
                crate::send_all(&self.socket, out).map_err(|error| broke(&error))?;
                answer?;
                *step = Step::Identity;
            }
            Step::Identity => {
                let peer = handshake::identified(&message)?;
                let rest = std::mem::take(received);
                tracing::debug!(peer = %peer.key, "peer connected");
                self.phase = Phase::Open { peer };
                self.reader.unread(&rest).map_err(|error| broke(&error))?;
            }
        }
        Ok(true)
    }

    /// Whether something is under way, so that a stand-still means something.
    pub(crate) fn busy(&self) -> bool {
        self.greeting()
            || !matches!(self.rx, Rx::Head)
            || self.reader.mid_header()
            || !self.writes.is_empty()
            || !self.queue.is_empty()
    }

    /// Looks at the clock; an error ends the connection.
    pub(crate) fn tick(&mut self, shared: &Shared, now: Instant) -> Result<()> {
        if let Phase::Greeting { give_up, .. } = &self.phase {
            if now >= *give_up {
                return Err(Error::new(ErrorKind::TimedOut, "the handshake was not completed in time"));
            }
            return Ok(());
        }
        if !self.busy() {
            self.progress = now;
            return Ok(());
        }
        let still = now.saturating_duration_since(self.progress);
        if still >= shared.config.peer_timeout {
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!("nothing has moved for {still:.1?} in the middle of a request"),
            ));
        }
        Ok(())
    }

    /// This process itself did not run for a while.
    pub(crate) fn excuse(&mut self, by: Duration, now: Instant) {
        self.progress = (self.progress + by).min(now);
        if let Phase::Greeting { give_up, .. } = &mut self.phase {
            *give_up += by;
        }
    }

    /// Ends the connection: what is queued is dropped, what is half written stays so, and announced transfers are
    /// reported as failed.
    pub(crate) fn close(&mut self, shared: &Shared, registry: &Registry, why: &Error) {
        let _ = registry.deregister(&mut self.socket);
        if !self.queue.is_empty() {
            crate::forget_unsent(&self.socket);
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let address = self.socket.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
        match &self.phase {
            Phase::Greeting { .. } if why.kind() == ErrorKind::PeerLost => {
                tracing::debug!(%address, error = %why, "a peer left during the handshake");
            }
            Phase::Greeting { .. } => tracing::warn!(%address, error = %why, "handshake refused"),
            Phase::Open { peer } if self.busy() || why.kind() != ErrorKind::PeerLost => {
                tracing::warn!(peer = %peer.key, %address, error = %why, "connection of a peer dropped");
            }
            Phase::Open { peer } => tracing::debug!(peer = %peer.key, %address, "peer disconnected"),
        }
        self.queue.clear();
        self.writes.clear();
        for (transfer, Announced { tag, message }) in std::mem::take(&mut self.announced) {
            let error = Error::new(
                ErrorKind::PeerLost,
                format!("the initiator's connection ended before the transfer did: {}", why.message()),
            );
            if let Err(error) = self.notify(shared, transfer, tag, message, Some(error)) {
                tracing::warn!(%error, "a failure could not be reported");
            }
        }
    }
}

/// Checks a request against the region it names, and pins that.
fn open(shared: &Shared, header: &Header, body: &[u8], writing: bool) -> Result<Scatter> {
    let pin = Arc::new(shared.regions.pin(header.key, writing)?);
    let scatter = if header.count == 1 {
        Scatter::new(pin, [(header.a, header.b)].into_iter())?
    } else {
        Scatter::new(pin, decode_pieces(body))?
    };
    if scatter.left() != header.b || header.b == 0 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the pieces add up to {} bytes, where {} were announced", scatter.left(), header.b),
        ));
    }
    Ok(scatter)
}

fn broke(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Error::new(ErrorKind::PeerLost, "the peer closed the connection");
    }
    Error::io(ErrorKind::PeerLost, "the connection broke", error)
}
