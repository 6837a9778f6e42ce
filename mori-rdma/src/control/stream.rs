//! A socket with frames: reading in bounded turns, keeping what cannot be sent yet, the system's own watch for vanished hosts.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use mori_core::{Error, ErrorKind, Result};

use super::message::{Frame, HEAD, MAX_BODY, head, malformed};

/// How many bytes are read at a time.
pub(super) const SCRATCH: usize = 16 << 10;
/// How many frames a connection gets read in a turn.
pub(super) const TURN_FRAMES: usize = 64;
/// A connection with more than this unsent is not read meanwhile.
pub(super) const MAX_UNSENT: usize = 64 << 10;

/// What has arrived and not been looked at.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    start: usize,
    /// When the frame that has not wholly arrived began to.
    begun: Option<Instant>,
}

impl Frames {
    /// Appends what was read.
    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
        if !self.bytes.is_empty() {
            self.begun.get_or_insert(now);
        }
    }

    /// The next frame that has wholly arrived.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`] for a frame that is too long.
    pub(super) fn next(&mut self, now: Instant) -> Result<Option<Frame>> {
        let rest = self.bytes.get(self.start..).unwrap_or_default();
        let Some((first, rest)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (kind, length) = head(*first)?;
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, body: body.to_vec() };
        self.start += HEAD + length;
        if self.start == self.bytes.len() {
            // A connection that waits for the next frame keeps no memory for it.
            *self = Self::default();
        } else {
            self.begun = Some(now);
        }
        Ok(Some(frame))
    }

    /// When the frame that has not wholly arrived began to, if there is one.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.begun
    }
}

/// What a look for a frame has found.
#[derive(Debug)]
pub(super) enum Look {
    Frame(Frame),
    /// Nothing more until the socket is readable again.
    Empty,
    /// The peer has closed the connection.
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    frames: Frames,
    out: Vec<u8>,
    sent: usize,
    readable: bool,
}

impl Stream {
    /// Takes the socket and has its events reported under `token`.
    pub(super) fn new(mut socket: TcpStream, registry: &Registry, token: usize) -> io::Result<Self> {
        registry.register(&mut socket, Token(token), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { socket, frames: Frames::default(), out: Vec::new(), sent: 0, readable: false })
    }

    /// Whether the connection has been made; an error if it cannot be.
    pub(super) fn connected(&self) -> io::Result<bool> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        let there = match self.socket.peer_addr() {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error),
        };
        // A port that nobody listens on can meet itself.
        if self.socket.local_addr()? == there {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(true)
    }

    /// The socket has something for us.
    pub(super) fn readable(&mut self) {
        self.readable = true;
    }

    /// The next frame, reading if none has wholly arrived.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`] for a frame that is too long, [`ErrorKind::PeerLost`] for a connection that broke.
    pub(super) fn look(&mut self, scratch: &mut [u8], now: Instant) -> Result<Look> {
        loop {
            if let Some(frame) = self.frames.next(now)? {
                return Ok(Look::Frame(frame));
            }
            if !self.readable {
                return Ok(Look::Empty);
            }
            match self.socket.read(scratch) {
                Ok(0) => return Ok(Look::End),
                Ok(count) => self.frames.push(scratch.get(..count).unwrap_or_default(), now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broke(&error)),
            }
        }
    }

    /// When the frame that has not wholly arrived began to, if there is one.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.frames.begun()
    }

    /// Queues bytes; [`Stream::flush`] sends them.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// How many bytes are queued.
    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerLost`] for a connection that broke.
    pub(super) fn flush(&mut self) -> Result<()> {
        while self.sent < self.out.len() {
            match self.socket.write(self.out.get(self.sent..).unwrap_or_default()) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.out.drain(..self.sent);
                    self.sent = 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broke(&error)),
            }
        }
        self.out = Vec::new();
        self.sent = 0;
        Ok(())
    }

    /// Has the system notice a host that does not acknowledge any more, within `peer_timeout` if something is sent at least
    /// four times in it, else as soon as its probes allow, which are a second apart at least. A host that does acknowledge
    /// keeps the connection, whatever its process does.
    pub(super) fn tune(&self, peer_timeout: Duration) {
        let quarter = (peer_timeout / 4).max(Duration::from_secs(1));
        let reference = socket2::SockRef::from(&self.socket);
        let keepalive =
            socket2::TcpKeepalive::new().with_time(quarter).with_interval(quarter).with_retries(3);
        let settings = self
            .socket
            .set_nodelay(true)
            .and_then(|()| reference.set_tcp_keepalive(&keepalive))
            .and_then(|()| reference.set_tcp_user_timeout(Some(acknowledge_within(peer_timeout))));
        if let Err(error) = settings {
            tracing::debug!(%error, "a control connection keeps the system's settings");
        }
    }
}

/// How long the peer's system may take to acknowledge what was sent: together with a quarter of the timeout until something is
/// sent, less than the whole.
fn acknowledge_within(peer_timeout: Duration) -> Duration {
    (peer_timeout * 5 / 8).max(Duration::from_millis(1))
}

/// Starts connecting.
pub(super) fn dial(registry: &Registry, address: SocketAddr, token: usize) -> io::Result<Stream> {
    Stream::new(TcpStream::connect(address)?, registry, token)
}

/// The error for a connection that broke.
pub(super) fn broke(error: &io::Error) -> Error {
    Error::io(ErrorKind::PeerLost, "the control connection broke", error)
}

/// The error for a peer that has closed the connection.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::PeerLost, "the peer closed the control connection")
}

/// The error for a frame that took too long.
pub(super) fn stalled(what: &str) -> Error {
    malformed(format!("{what} did not arrive in time"))
}

const _: () = assert!(SCRATCH > MAX_BODY + HEAD);
