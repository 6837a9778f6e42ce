//! A link as the watching thread sees it: connecting, the handshake or the step down to the protocol of existing peers,
//! answers, signs of life.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::{EngineKey, Error, ErrorKind, Nonce, Result, Secret};

use super::handshake::{self, Nonces};
use super::link::Inner;
use super::message::{Frame, Request, legacy_answer, malformed, request, to_initiator};
use super::pool::Job;
use super::stream::{Look, Stream, TURN_FRAMES, dial, ended, stalled};
use super::watch::{Shared, Turn};
use super::{Identity, LinkId, Peer, Protocol};

/// The number of the watching thread's own pings; requests count from one.
const PING: u64 = 0;
/// How long a link to an existing peer that closed a connection on which nothing was asked waits before it connects anew.
const PAUSE: Duration = Duration::from_secs(1);

/// Who is to be at the other end.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) key: EngineKey,
    /// The incarnation, if it is known to have one, which means that it speaks the own protocol.
    pub(super) instance: Option<[u8; 16]>,
}

impl Expected {
    /// Whether the engine that answered is this one.
    fn check(&self, who: &Identity, address: SocketAddr) -> Result<()> {
        if who.key != self.key {
            return Err(lost(format!(
                "the engine at {address} is {}, not {}; exchange descriptors again",
                who.key, self.key
            )));
        }
        if self.instance.is_some_and(|instance| instance != who.instance) {
            return Err(lost(format!(
                "engine {} was restarted; descriptors of its earlier incarnation are stale, exchange them again",
                self.key
            )));
        }
        Ok(())
    }
}

fn lost(what: String) -> Error {
    Error::new(ErrorKind::PeerLost, what)
}

enum Step {
    Challenge(Nonce),
    Accept(Nonces),
}

enum State {
    /// Nothing stands, and nothing is tried; until when, if not until something is asked.
    Resting(Option<Instant>),
    Connecting {
        stream: Stream,
        protocol: Protocol,
    },
    Greeting {
        stream: Stream,
        step: Step,
    },
    Own {
        stream: Stream,
        heard: Instant,
        pinged: bool,
    },
    Legacy {
        stream: Stream,
        exchanged: bool,
    },
}

/// A request to an existing peer, which is under way or waits for a connection.
struct Asked {
    id: u64,
    kind: u8,
    bytes: Vec<u8>,
    /// Whether it has been sent on the present connection.
    sent: bool,
}

pub(super) struct Dialed {
    link: Arc<Inner>,
    expected: Expected,
    /// Addresses that have not been tried.
    addresses: VecDeque<SocketAddr>,
    address: Option<SocketAddr>,
    state: State,
    /// Until when the present try may take.
    until: Instant,
    /// Until when all of them may.
    give_up: Instant,
    /// Why the best try so far has failed, and whether the other side had said something.
    failure: Option<(bool, Error)>,
    asked: Option<Asked>,
}

impl Dialed {
    pub(super) fn new(
        link: Arc<Inner>,
        expected: Expected,
        addresses: VecDeque<SocketAddr>,
        give_up: Instant,
    ) -> Self {
        Self {
            link,
            expected,
            addresses,
            address: None,
            state: State::Resting(Some(give_up)),
            until: give_up,
            give_up,
            failure: None,
            asked: None,
        }
    }

    pub(super) fn token(&self) -> usize {
        self.link.token
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.state {
            State::Resting(_) => None,
            State::Connecting { stream, .. }
            | State::Greeting { stream, .. }
            | State::Own { stream, .. }
            | State::Legacy { stream, .. } => Some(stream),
        }
    }

    pub(super) fn readable(&mut self) {
        if let Some(stream) = self.stream() {
            stream.readable();
        }
    }

    /// Gets on; an error ends the link.
    pub(super) fn turn(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        match &self.state {
            State::Resting(_) if self.address.is_none() || self.asked.is_some() => {
                self.next_address(turn)?;
                Ok(true)
            }
            State::Resting(_) => Ok(false),
            State::Connecting { .. } => self.connecting(turn),
            State::Greeting { .. } => self.greeting(turn),
            State::Own { .. } => self.own(turn),
            State::Legacy { .. } => self.legacy(turn),
        }
    }

    pub(super) fn deadline(&self, shared: &Shared) -> Option<Instant> {
        let frame =
            |stream: &Stream| stream.begun().and_then(|at| at.checked_add(shared.config.frame_timeout));
        match &self.state {
            State::Resting(until) => *until,
            State::Connecting { .. } | State::Greeting { .. } => Some(self.until),
            State::Own { stream, heard, pinged } => {
                let ping = heard.checked_add(shared.config.peer_timeout / 4).filter(|_| !pinged);
                match (frame(stream), ping) {
                    (Some(frame), Some(ping)) => Some(frame.min(ping)),
                    (frame, ping) => frame.or(ping),
                }
            }
            State::Legacy { stream, .. } => frame(stream),
        }
    }

    pub(super) fn expired(&mut self, turn: &mut Turn<'_>) -> Result<()> {
        // What has arrived in time may not have been looked at.
        self.turn(turn)?;
        if self.deadline(turn.shared).is_none_or(|at| at > turn.now) {
            return Ok(());
        }
        let stalled_frame = self.stream().is_some_and(|stream| {
            let limit = turn.shared.config.frame_timeout;
            stream.begun().and_then(|at| at.checked_add(limit)).is_some_and(|at| at <= turn.now)
        });
        match &mut self.state {
            State::Resting(_) => self.next_address(turn),
            State::Connecting { .. } | State::Greeting { .. } => {
                let spoke = matches!(self.state, State::Greeting { .. });
                let what = if spoke { "did not answer" } else { "could not be reached" };
                let why = Error::new(ErrorKind::TimedOut, format!("{} {what} in time", self.name()));
                self.failed(turn, spoke, why)
            }
            State::Own { .. } | State::Legacy { .. } if stalled_frame => Err(stalled("the rest of a frame")),
            State::Own { stream, pinged, .. } => {
                *pinged = true;
                let bytes = request(PING, &Request::Ping);
                self.link.queued(bytes.len());
                stream.push(&bytes);
                self.flush()
            }
            State::Legacy { .. } => Ok(()),
        }
    }

    fn name(&self) -> String {
        match self.address {
            Some(address) => format!("engine {} at {address}", self.expected.key),
            None => format!("engine {}", self.expected.key),
        }
    }

    /// Sends what the socket takes.
    fn flush(&mut self) -> Result<()> {
        let link = Arc::clone(&self.link);
        let Some(stream) = self.stream() else { return Ok(()) };
        let before = stream.unsent();
        let flushed = stream.flush();
        link.sent(before - stream.unsent());
        flushed
    }

    /// Tries the next address.
    ///
    /// # Errors
    ///
    /// Why the best of the tries failed, if there is none left.
    fn next_address(&mut self, turn: &mut Turn<'_>) -> Result<()> {
        if self.addresses.is_empty()
            && let (State::Resting(_), Some(address)) = (&self.state, self.address)
        {
            // Once more to where the link stood.
            self.addresses.push_back(address);
            self.give_up = turn.now + turn.shared.config.peer_timeout;
            self.failure = None;
        }
        while let Some(address) = self.addresses.pop_front() {
            self.address = Some(address);
            let share = u32::try_from(self.addresses.len() + 1).unwrap_or(u32::MAX);
            self.until = turn.now + self.give_up.saturating_duration_since(turn.now) / share;
            let legacy = self.may_step_down(turn.shared) && turn.shared.is_legacy(address, turn.now);
            let protocol = if legacy || self.link_is_legacy() { Protocol::Legacy } else { Protocol::Own };
            match self.dial(turn, address, protocol) {
                Ok(()) => return Ok(()),
                Err(why) => self.keep(false, why),
            }
        }
        let none = || lost(format!("engine {} has no address", self.expected.key));
        Err(self.failure.take().map_or_else(none, |(_, why)| why))
    }

    fn dial(&mut self, turn: &Turn<'_>, address: SocketAddr, protocol: Protocol) -> Result<()> {
        let stream =
            dial(turn.registry, address, self.link.token).map_err(|error| self.unreachable(&error))?;
        stream.tune(turn.shared.config.peer_timeout);
        self.state = State::Connecting { stream, protocol };
        Ok(())
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        // A limit of this machine says nothing about the peer.
        let own = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
        let exhausted = error.raw_os_error().is_some_and(|number| own.contains(&number));
        let kind = if exhausted { ErrorKind::ResourceExhausted } else { ErrorKind::PeerLost };
        Error::io(kind, format!("cannot connect to {}", self.name()), error)
    }

    /// Whether the protocol of existing peers may be spoken.
    fn may_step_down(&self, shared: &Shared) -> bool {
        self.expected.instance.is_none() && shared.config.secret.is_none()
    }

    /// Whether it has been spoken already.
    fn link_is_legacy(&self) -> bool {
        self.link.protocol() == Some(Protocol::Legacy)
    }

    fn keep(&mut self, spoke: bool, why: Error) {
        if self.failure.as_ref().is_none_or(|(before, _)| spoke || !before) {
            self.failure = Some((spoke, why));
        }
    }

    /// The present try has failed; `spoke`: after the connection was made. Some failures are final.
    fn failed(&mut self, turn: &mut Turn<'_>, spoke: bool, why: Error) -> Result<()> {
        if matches!(why.kind(), ErrorKind::AccessDenied | ErrorKind::Unsupported) {
            return Err(why.context(self.name()));
        }
        self.keep(spoke, why);
        self.next_address(turn)
    }

    fn connecting(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        let State::Connecting { stream, .. } = &self.state else { return Ok(false) };
        match stream.connected() {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                let why = self.unreachable(&error);
                return self.failed(turn, false, why).map(|()| false);
            }
        }
        let State::Connecting { mut stream, protocol } =
            std::mem::replace(&mut self.state, State::Resting(None))
        else {
            return Ok(false);
        };
        if protocol == Protocol::Legacy {
            self.state = State::Legacy { stream, exchanged: false };
            self.open(None, turn);
            return Ok(true);
        }
        let own = Secret::nonce()?;
        let hello = handshake::hello(&own);
        self.link.queued(hello.len());
        stream.push(&hello);
        self.state = State::Greeting { stream, step: Step::Challenge(own) };
        // What goes wrong here shows when the answer is looked for.
        let _ = self.flush();
        Ok(true)
    }

    fn open(&mut self, instance: Option<[u8; 16]>, turn: &Turn<'_>) {
        self.addresses.clear();
        if let Some(address) = self.address {
            let peer =
                Peer { key: self.expected.key.clone(), instance, address: address.ip().to_canonical() };
            self.link.opened(peer, turn.now);
        }
    }

    fn greeting(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        let State::Greeting { stream, .. } = &mut self.state else { return Ok(false) };
        let looked = match stream.look(turn.scratch, turn.now) {
            Ok(Look::Empty) => return self.flush_greeting(turn),
            Ok(Look::Frame(frame)) => self.step(turn.shared, &frame, turn),
            Ok(Look::End) => Err(ended()),
            Err(why) => Err(why),
        };
        match looked {
            Ok(()) => Ok(true),
            Err(why) => self.refused(turn, &why).map(|()| true),
        }
    }

    fn flush_greeting(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        match self.flush() {
            Ok(()) => Ok(false),
            Err(why) => self.refused(turn, &why).map(|()| true),
        }
    }

    /// The handshake has failed. An existing peer closes, or answers something else, before any other step.
    fn refused(&mut self, turn: &mut Turn<'_>, why: &Error) -> Result<()> {
        let first = matches!(self.state, State::Greeting { step: Step::Challenge(_), .. });
        let foreign = first && matches!(why.kind(), ErrorKind::PeerLost | ErrorKind::Malformed);
        if foreign && turn.shared.config.secret.is_some() && self.expected.instance.is_none() {
            let what = format!(
                "it does not speak the protocol that proves the shared secret ({}); update it, or take the secret out of \
                 the configuration",
                why.message()
            );
            return self.failed(turn, true, Error::new(ErrorKind::AccessDenied, what));
        }
        if foreign
            && self.may_step_down(turn.shared)
            && let Some(address) = self.address
        {
            tracing::info!(peer = %self.expected.key, %address, %why, "trying the protocol of existing peers");
            return match self.dial(turn, address, Protocol::Legacy) {
                Ok(()) => Ok(()),
                Err(why) => self.failed(turn, false, why),
            };
        }
        let why = why.context(self.name());
        self.failed(turn, true, why)
    }

    fn step(&mut self, shared: &Arc<Shared>, frame: &Frame, turn: &Turn<'_>) -> Result<()> {
        if let Some(refusal) = handshake::refused(frame)? {
            return Err(refusal);
        }
        let secret = shared.config.secret.as_ref();
        let State::Greeting { mut stream, step } = std::mem::replace(&mut self.state, State::Resting(None))
        else {
            return Ok(());
        };
        match step {
            Step::Challenge(own) => {
                let proved = handshake::prove(frame, own, secret);
                let proved = proved.map(|(nonces, bytes)| {
                    self.link.queued(bytes.len());
                    stream.push(&bytes);
                    Step::Accept(nonces)
                });
                let (step, outcome) = match proved {
                    Ok(step) => (step, Ok(())),
                    Err(why) => (Step::Challenge(own), Err(why)),
                };
                self.state = State::Greeting { stream, step };
                outcome
            }
            Step::Accept(nonces) => {
                let identified = handshake::identify(frame, &nonces, secret, &shared.identity);
                let checked = identified.and_then(|(who, bytes)| {
                    self.address.map_or(Ok(()), |address| self.expected.check(&who, address))?;
                    Ok((who, bytes))
                });
                let (who, bytes) = match checked {
                    Ok(checked) => checked,
                    Err(why) => {
                        self.state = State::Greeting { stream, step: Step::Accept(nonces) };
                        return Err(why);
                    }
                };
                self.link.queued(bytes.len());
                stream.push(&bytes);
                self.state = State::Own { stream, heard: turn.now, pinged: false };
                self.open(Some(who.instance), turn);
                Ok(())
            }
        }
    }

    fn own(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        let mut more = true;
        for _ in 0..TURN_FRAMES {
            let State::Own { stream, heard, pinged } = &mut self.state else { return Ok(false) };
            let frame = match stream.look(turn.scratch, turn.now)? {
                Look::Frame(frame) => frame,
                Look::Empty => {
                    more = false;
                    break;
                }
                Look::End => return Err(ended()),
            };
            *heard = turn.now;
            match to_initiator(&frame)? {
                (PING, _) => *pinged = false,
                (id, answer) => self.link.answer(id, Ok(answer)),
            }
            self.link.heard(turn.now);
        }
        self.flush()?;
        Ok(more)
    }

    fn legacy(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        let State::Legacy { stream, .. } = &mut self.state else { return Ok(false) };
        if let Some(asked) = &mut self.asked
            && !asked.sent
        {
            asked.sent = true;
            stream.push(&asked.bytes);
        }
        let looked = match stream.look(turn.scratch, turn.now) {
            Ok(Look::Empty) => self.flush().map(|()| None),
            Ok(Look::Frame(frame)) => Ok(Some(frame)),
            Ok(Look::End) => Err(ended()),
            Err(why) => Err(why),
        };
        match looked {
            Ok(None) => Ok(false),
            Ok(Some(frame)) => self.exchanged(turn, &frame).map(|()| true),
            Err(why) if why.kind() == ErrorKind::PeerLost => self.connect_anew(turn, &why).map(|()| true),
            Err(why) => Err(why),
        }
    }

    /// An existing peer has answered.
    fn exchanged(&mut self, turn: &Turn<'_>, frame: &Frame) -> Result<()> {
        let State::Legacy { exchanged, .. } = &mut self.state else { return Ok(()) };
        let Some(asked) = self.asked.take() else {
            return Err(malformed("an answer to no question"));
        };
        let answer = legacy_answer(asked.kind, frame)?;
        *exchanged = true;
        if let Some(address) = self.address {
            turn.shared.remember_legacy(address, turn.now);
        }
        self.link.heard(turn.now);
        self.link.answer(asked.id, Ok(answer));
        Ok(())
    }

    /// An existing peer has closed the connection, as it may after each exchange: whether it is gone shows when another one
    /// is tried. One that closes instead of answering refuses.
    fn connect_anew(&mut self, turn: &mut Turn<'_>, why: &Error) -> Result<()> {
        let State::Legacy { exchanged, .. } = std::mem::replace(&mut self.state, State::Resting(None)) else {
            return Ok(());
        };
        if !exchanged && self.asked.is_some() {
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!("{} closed the connection instead of answering: {}", self.name(), why.message()),
            ));
        }
        if let Some(asked) = &mut self.asked {
            asked.sent = false;
        }
        if exchanged {
            return self.next_address(turn);
        }
        self.state = State::Resting(Some(turn.now + PAUSE));
        Ok(())
    }

    /// A request is to be sent.
    pub(super) fn ask(&mut self, id: u64, kind: u8, bytes: Vec<u8>) {
        match &mut self.state {
            State::Own { stream, .. } => stream.push(&bytes),
            // One at a time, so that there is none before it.
            _ => self.asked = Some(Asked { id, kind, bytes, sent: false }),
        }
    }

    /// Something is to be sent that has no answer.
    pub(super) fn tell(&mut self, bytes: &[u8]) {
        if let State::Own { stream, .. } = &mut self.state {
            stream.push(bytes);
        }
    }

    /// Nobody waits for the answer any more. An existing peer's may still come, so that the connection is of no use.
    pub(super) fn abandon(&mut self, id: u64) {
        if let Some(asked) = self.asked.take_if(|asked| asked.id == id)
            && asked.sent
        {
            self.link.sent(asked.bytes.len());
            // Due at once: another connection is what shows whether the peer is there.
            self.state = State::Resting(Some(self.until));
        }
    }

    pub(super) fn close(self, shared: &Arc<Shared>, why: &Error, own: bool) {
        let was_open = self.link.close(why);
        if !was_open || own {
            return;
        }
        tracing::info!(peer = %self.expected.key, %why, "lost the control link to a peer");
        let Some(address) = self.address else { return };
        let (link, why, shared_of_job) = (LinkId(self.link.token as u64), why.clone(), Arc::clone(shared));
        let run = move || {
            if let Some(service) = shared_of_job.service.upgrade() {
                service.link_lost(link, &why);
            }
        };
        shared.pool.submit(link.0, address.ip(), Job { urgent: true, droppable: false, run: Box::new(run) });
    }
}
