//! The target's end of a connection: letting a peer in, opening regions for it, taking its messages.
//!
//! Everything that comes in is untrusted. What contradicts the protocol ends the connection with one log line and touches
//! nothing else. Copies themselves never pass here.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mori_core::{EngineKey, Error, ErrorKind, Nonce, Notification, Result, Side, Tag};

use crate::config::Tracers;
use crate::handshake::{self, Identity};
use crate::obstacle::{Obstacle, yama};
use crate::outbox::Outbox;
use crate::page::Page;
use crate::regions::User;
use crate::shared::Shared;
use crate::socket::{self, Received, broke};
use crate::sys::{self, Credentials};
use crate::wire::{MAX_PACKET, Message, Note, VERSIONS, malformed};

/// A connection with more answers waiting than this is not read until some are sent.
const MAX_QUEUED: usize = 256;
/// How many packets a turn has at most.
const TURN: usize = 64;
/// The most transfers of a connection that may be announced at a time.
const MAX_ANNOUNCED: usize = 1 << 16;

pub(crate) struct Target {
    pub(crate) token: u64,
    pub(crate) socket: OwnedFd,
    credentials: Credentials,
    phase: Phase,
    out: Outbox,
    announced: HashMap<u64, (Tag, Vec<u8>)>,
}

enum Phase {
    Hello,
    Proof { peer: Nonce, own: Nonce },
    Found { who: Identity, place: Box<Nonce> },
    Open { who: Identity, user: Arc<User> },
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is nothing to read now.
    Idle,
    /// There may be more to read.
    More,
}

impl Target {
    /// Takes a connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccessDenied`] for another user; the connection is not to be kept.
    pub(crate) fn new(token: u64, socket: OwnedFd) -> Result<Self> {
        let credentials = sys::credentials(socket.as_fd())
            .map_err(|error| Error::io(ErrorKind::Transport, "cannot tell who connects", &error))?;
        let ours = rustix::process::geteuid().as_raw();
        let mut target = Self {
            token,
            socket,
            credentials,
            phase: Phase::Hello,
            out: Outbox::default(),
            announced: HashMap::new(),
        };
        // The superuser may read this process's memory anyway.
        if credentials.uid != ours && credentials.uid != 0 {
            let theirs = credentials.uid;
            // In the words of the one who is refused.
            let error = Obstacle::OtherUser { ours: theirs, theirs: ours }.error();
            target.refuse(&error);
            return Err(error);
        }
        Ok(target)
    }

    pub(crate) fn greeting(&self) -> bool {
        !matches!(self.phase, Phase::Open { .. })
    }

    /// Tells the peer why before the connection is closed.
    pub(crate) fn refuse(&mut self, why: &Error) {
        let _ = self.out.send(&self.socket, &Message::Refused(why.clone()));
    }

    /// Sends what waits, and reads what has come.
    ///
    /// # Errors
    ///
    /// The connection is to be closed.
    pub(crate) fn turn(&mut self, shared: &Shared, buffer: &mut [u8; MAX_PACKET]) -> Result<Turn> {
        self.out.flush(&self.socket).map_err(|error| broke(&error))?;
        for _ in 0..TURN {
            if self.out.len() >= MAX_QUEUED {
                // It is read on when the socket takes answers again, which is an event.
                return Ok(Turn::Idle);
            }
            match socket::receive(&self.socket, buffer).map_err(|error| broke(&error))? {
                Received::Nothing => return Ok(Turn::Idle),
                Received::Closed => {
                    return Err(Error::new(ErrorKind::PeerLost, "the peer closed the connection"));
                }
                Received::Packet(length, _) => {
                    let message = Message::decode(buffer.get(..length).unwrap_or_default())?;
                    self.message(shared, message)?;
                }
            }
        }
        Ok(Turn::More)
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        self.out.send(&self.socket, message).map_err(|error| broke(&error))
    }

    fn message(&mut self, shared: &Shared, message: Message) -> Result<()> {
        let phase = std::mem::replace(&mut self.phase, Phase::Hello);
        self.phase = match (phase, message) {
            (Phase::Hello, Message::Hello { lowest, highest, nonce }) => {
                self.hello(shared, (lowest, highest), nonce)?
            }
            (Phase::Proof { peer, own }, Message::Proof { mac, instance, key }) => {
                let secret = shared.config.secret.as_ref();
                handshake::verify(secret, Side::Initiator, &peer, &own, &mac)?;
                let who = Identity { key: EngineKey::from(key), instance };
                self.place(shared, who, handshake::prove(secret, Side::Target, &peer, &own))?
            }
            (Phase::Found { who, place }, Message::Found(found)) => self.found(who, &place, &found)?,
            (Phase::Open { who, user }, message) => {
                self.request(shared, &who, &user, message)?;
                Phase::Open { who, user }
            }
            (_, message) => return Err(malformed(format!("{} out of turn", name(&message)))),
        };
        Ok(())
    }

    fn hello(&mut self, shared: &Shared, range: (u8, u8), peer: Nonce) -> Result<Phase> {
        let own = handshake::random()?;
        let version = handshake::common_version(range.0, range.1);
        let locked = shared.config.secret.is_some();
        self.send(&Message::Welcome { version: version.unwrap_or(0), range: VERSIONS, locked, nonce: own })?;
        match version {
            Some(_) => Ok(Phase::Proof { peer, own }),
            None => Err(handshake::no_version(range)),
        }
    }

    /// Shows the peer a place in this process's memory.
    fn place(&mut self, shared: &Shared, who: Identity, mac: [u8; 32]) -> Result<Phase> {
        self.let_in(shared)?;
        let place: Box<Nonce> = Box::new(handshake::random()?);
        let identity = shared.identity()?;
        self.send(&Message::Place {
            mac,
            address: place.as_ptr().expose_provenance() as u64,
            instance: identity.instance,
            key: identity.key.as_str().to_owned(),
        })?;
        Ok(Phase::Found { who, place })
    }

    /// Lets the peer at this process's memory where Yama leaves that to this process.
    fn let_in(&self, shared: &Shared) -> Result<()> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        if shared.config.tracers != Tracers::Peer || self.credentials.pid == own || yama() != Some(1) {
            return Ok(());
        }
        let mut tracer = shared.tracer.lock();
        match *tracer {
            Some((token, pid)) if token != self.token && pid != self.credentials.pid => Err(Error::new(
                ErrorKind::ResourceExhausted,
                "with kernel.yama.ptrace_scope at 1 a process lets in one other process, and there is one already; set `tracers` to `Anyone` at the target, or the scope to 0",
            )),
            _ => {
                if sys::allow_tracer(Some(self.credentials.pid)) {
                    *tracer = Some((self.token, self.credentials.pid));
                }
                Ok(())
            }
        }
    }

    fn found(&mut self, who: Identity, place: &Nonce, found: &Nonce) -> Result<Phase> {
        if place != found {
            return Err(Error::new(ErrorKind::AccessDenied, "the peer read other bytes than are there"));
        }
        let process = sys::process(self.socket.as_fd(), self.credentials.pid)
            .map_err(|error| Error::io(ErrorKind::Unavailable, "cannot watch the peer's process", &error))?;
        let (page, file) = Page::create().map_err(|error| {
            Error::io(
                ErrorKind::ResourceExhausted,
                "cannot make the page that is shared with the peer",
                &error,
            )
        })?;
        self.out.send_with(&self.socket, &Message::Ready, Some(file)).map_err(|error| broke(&error))?;
        tracing::debug!(peer = %who.key, pid = self.credentials.pid, "a peer on this host is let in");
        Ok(Phase::Open { user: User::new(who.key.clone(), page, process), who })
    }

    fn request(&mut self, shared: &Shared, who: &Identity, user: &Arc<User>, message: Message) -> Result<()> {
        match message {
            Message::Open { request, key } => {
                let answer = match shared.regions.grant(user, key) {
                    Ok(granted) => Message::Grant {
                        request,
                        slot: granted.slot,
                        generation: granted.generation,
                        address: granted.address,
                        length: granted.length,
                        rights: granted.rights,
                    },
                    Err(error) => Message::Failed { request, error },
                };
                self.send(&answer)
            }
            Message::Note { note, .. } if note.announced => {
                if self.announced.len() >= MAX_ANNOUNCED {
                    return Err(malformed("too many transfers announced at once"));
                }
                self.announced.insert(note.transfer, (Tag(note.tag), note.message));
                Ok(())
            }
            Message::Note { request, note } => {
                self.announced.remove(&note.transfer);
                let answer = match shared.notify(notification(who, note)) {
                    Ok(()) => Message::Done { request },
                    Err(error) => Message::Failed { request, error },
                };
                self.send(&answer)
            }
            other => Err(malformed(format!("{} where requests come", name(&other)))),
        }
    }

    /// Tells the peer that waiting is over.
    pub(crate) fn resumed(&mut self) -> Result<()> {
        if self.greeting() { Ok(()) } else { self.send(&Message::Resumed) }
    }

    /// The connection is over: the peer's slots are closed, and announced transfers fail.
    pub(crate) fn close(mut self, shared: &Shared, why: &Error) {
        match why.kind() {
            ErrorKind::PeerLost | ErrorKind::BadState => {}
            _ => {
                tracing::warn!(pid = self.credentials.pid, error = %why, "a connection of a process on this host ends");
                self.refuse(why);
            }
        }
        let mut tracer = shared.tracer.lock();
        if tracer.is_some_and(|(token, _)| token == self.token) {
            *tracer = None;
        }
        drop(tracer);
        let Phase::Open { who, user } = &self.phase else { return };
        shared.regions.leave(user);
        for (transfer, (tag, message)) in self.announced.drain() {
            let error =
                Some(Error::new(ErrorKind::PeerLost, "the submitter is gone before its transfer was over"));
            let note = Note { transfer, tag: tag.0, message, announced: false, error };
            // The submitter is gone; whether there was room changes nothing for it.
            let _ = shared.notify(notification(who, note));
        }
    }
}

fn notification(who: &Identity, note: Note) -> Notification {
    Notification {
        peer: who.key.clone(),
        transfer: note.transfer,
        tag: Tag(note.tag),
        message: note.message,
        error: note.error,
    }
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Hello { .. } => "a hello",
        Message::Proof { .. } => "a proof",
        Message::Found(_) => "an answer to a place",
        Message::Open { .. } => "a request for a region",
        Message::Note { .. } => "a note",
        _ => "an answer",
    }
}
