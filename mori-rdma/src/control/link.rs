//! A link as the data path sees it: requests with deadlines, from any number of threads at once.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mori_core::{Clock, Deadline, EngineKey, Error, ErrorKind, Result};

use super::message::{Answer, Request, kind, legacy_region, legacy_register, note, request};
use super::watch::{Command, Handle};
use super::{Endpoint, EndpointRequest, FailureNote, LinkId, Peer, Protocol, RegionKeys};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The most requests that may be under way at a time.
const MAX_PENDING: usize = 1024;
/// The most bytes that may wait for the peer to take them.
const MAX_UNSENT: usize = 1 << 20;

enum Phase {
    Connecting,
    Open,
    Closed(Error),
}

struct State {
    phase: Phase,
    /// Requests under way, and the answers that nobody has taken yet.
    pending: HashMap<u64, Option<Result<Answer>>>,
    next: u64,
    /// Whether somebody has the turn that requests to existing peers take.
    turn: bool,
    heard: Instant,
}

/// What the link's users and the watching thread share.
pub(super) struct Inner {
    pub(super) token: usize,
    target: EngineKey,
    own: EngineKey,
    clock: Clock,
    peer: OnceLock<Peer>,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that users have given to the watching thread and the system has not taken.
    unsent: AtomicUsize,
}

impl Inner {
    pub(super) fn new(token: usize, target: EngineKey, own: EngineKey, clock: Clock) -> Arc<Self> {
        let heard = clock.now();
        let state = State { phase: Phase::Connecting, pending: HashMap::new(), next: 1, turn: false, heard };
        Arc::new(Self {
            token,
            target,
            own,
            clock,
            peer: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            unsent: AtomicUsize::new(0),
        })
    }

    /// The connection stands.
    pub(super) fn opened(&self, peer: Peer, now: Instant) {
        let _ = self.peer.set(peer);
        let mut state = self.state.lock();
        state.heard = now;
        if matches!(state.phase, Phase::Connecting) {
            state.phase = Phase::Open;
        }
        self.changed.notify_all();
    }

    /// Which protocol the link speaks, if it has ever stood.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        self.peer.get().map(Peer::protocol)
    }

    /// The peer has sent something.
    pub(super) fn heard(&self, now: Instant) {
        self.state.lock().heard = now;
    }

    /// A request is answered, or has failed; nothing if nobody waits for it any more.
    pub(super) fn answer(&self, id: u64, answer: Result<Answer>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.pending.get_mut(&id) {
            *slot = Some(answer);
            self.changed.notify_all();
        }
    }

    /// The link has ended; returns whether it was open.
    pub(super) fn close(&self, why: &Error) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed(_)) {
            return false;
        }
        let before = std::mem::replace(&mut state.phase, Phase::Closed(why.clone()));
        self.changed.notify_all();
        matches!(before, Phase::Open)
    }

    /// Bytes are on their way to the watching thread.
    pub(super) fn queued(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The system has taken bytes.
    pub(super) fn sent(&self, bytes: usize) {
        // A legacy link throws away what it had for a connection that ended.
        let less = |unsent: usize| Some(unsent.saturating_sub(bytes));
        let _ = self.unsent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Waits until the connection stands.
    pub(super) fn wait_open(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Open => return Ok(()),
                Phase::Closed(why) => return Err(why.clone()),
                Phase::Connecting if deadline.passed(self.clock.now()) => {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        format!("connecting to engine {} took too long", self.target),
                    ));
                }
                Phase::Connecting => self.sleep(&mut state, deadline),
            }
        }
    }

    fn sleep(&self, state: &mut MutexGuard<'_, State>, deadline: Deadline) {
        match deadline {
            Deadline::At(point) => drop(self.changed.wait_until(state, point)),
            Deadline::Never => self.changed.wait(state),
        }
    }

    fn check_open(&self, state: &State) -> Result<()> {
        match &state.phase {
            Phase::Open => Ok(()),
            Phase::Closed(why) => Err(why.clone()),
            Phase::Connecting => {
                Err(Error::new(ErrorKind::BadState, format!("the link to {} is not open yet", self.target)))
            }
        }
    }

    /// Enters a request; its number.
    fn enter(&self, deadline: Deadline, one_at_a_time: bool) -> Result<u64> {
        let mut state = self.state.lock();
        loop {
            self.check_open(&state)?;
            if !one_at_a_time || !state.turn {
                break;
            }
            if deadline.passed(self.clock.now()) {
                return Err(self.late(&state));
            }
            self.sleep(&mut state, deadline);
        }
        if state.pending.len() >= MAX_PENDING || self.unsent.load(Ordering::Relaxed) > MAX_UNSENT {
            return Err(self.full());
        }
        let id = state.next;
        state.next += 1;
        state.pending.insert(id, None);
        state.turn |= one_at_a_time;
        Ok(id)
    }

    /// Waits for the answer. The outer error: none has come in time.
    fn wait(&self, id: u64, deadline: Deadline) -> Result<Result<Answer>> {
        let mut state = self.state.lock();
        loop {
            if let Some(Some(_)) = state.pending.get(&id) {
                return Ok(state.pending.remove(&id).flatten().unwrap_or_else(|| Err(self.late(&state))));
            }
            if let Phase::Closed(why) = &state.phase {
                return Ok(Err(why.clone()));
            }
            if deadline.passed(self.clock.now()) {
                return Err(self.late(&state));
            }
            self.sleep(&mut state, deadline);
        }
    }

    fn leave(&self, id: u64, had_turn: bool) {
        let mut state = self.state.lock();
        state.pending.remove(&id);
        if had_turn {
            state.turn = false;
            self.changed.notify_all();
        }
    }

    fn late(&self, state: &State) -> Error {
        let silent = self.clock.now().saturating_duration_since(state.heard);
        Error::new(
            ErrorKind::TimedOut,
            format!("engine {} did not answer in time; nothing heard of it for {silent:.1?}", self.target),
        )
    }

    fn full(&self) -> Error {
        Error::new(
            ErrorKind::ResourceExhausted,
            format!("engine {} takes nothing from its control connection; try again later", self.target),
        )
    }
}

/// A connection to a peer, over which its ends of queue pairs and its keys are asked for.
///
/// Any thread may ask, several at once. Dropping it closes it, without waiting.
pub(crate) struct Link {
    inner: Arc<Inner>,
    handle: Arc<Handle>,
    /// For a link that is not open, which nobody gets to see.
    nobody: Peer,
}

impl Link {
    pub(super) fn new(inner: Arc<Inner>, handle: Arc<Handle>) -> Self {
        let nobody =
            Peer { key: inner.target.clone(), instance: None, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        Self { inner, handle, nobody }
    }

    /// Its number, by which the service is told of its loss.
    pub(crate) fn id(&self) -> LinkId {
        LinkId(self.inner.token as u64)
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> &Peer {
        self.inner.peer.get().unwrap_or(&self.nobody)
    }

    /// Whether neither side has ended it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.inner.state.lock().phase, Phase::Open)
    }

    /// When the peer's process last sent something.
    pub(crate) fn heard(&self) -> Instant {
        self.inner.state.lock().heard
    }

    /// Has the peer make the passive end for an endpoint.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] at the deadline, after which the peer may still do it; [`ErrorKind::PeerLost`] if the link
    /// ends; or what the peer says.
    pub(crate) fn register_endpoint(
        &self,
        request: &EndpointRequest,
        deadline: Deadline,
    ) -> Result<Endpoint> {
        match self.ask(&Request::Register(*request), deadline)? {
            // An existing peer has no other way to say no.
            Answer::Endpoint(endpoint) if endpoint.qpn == 0 => Err(Error::new(
                ErrorKind::Transport,
                format!("engine {} did not make its end of a queue pair; see its log", self.inner.target),
            )),
            Answer::Endpoint(endpoint) => Ok(endpoint),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The keys of the peer's region `memory` for its device with this index.
    ///
    /// # Errors
    ///
    /// As [`Link::register_endpoint`]; [`ErrorKind::NotFound`] for a region that the peer does not know.
    pub(crate) fn region(&self, device: u32, memory: u64, deadline: Deadline) -> Result<RegionKeys> {
        match self.ask(&Request::Region { device, memory }, deadline)? {
            // An existing peer has no other way to say no.
            Answer::Keys(keys) if keys.length == 0 => Err(Error::new(
                ErrorKind::NotFound,
                format!("engine {} does not know memory {memory} on its device {device}", self.inner.target),
            )),
            Answer::Keys(keys) => Ok(keys),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the peer make sure that no byte that came over `lane` lands there any more.
    ///
    /// # Errors
    ///
    /// As [`Link::register_endpoint`]; [`ErrorKind::Unsupported`] with an existing peer.
    pub(crate) fn retire_endpoint(&self, lane: u64, deadline: Deadline) -> Result<()> {
        self.check_own("retire a lane")?;
        self.ask(&Request::Retire { lane }, deadline).map(|_| ())
    }

    /// Whether the peer's process answers. One that is stopped does not, and keeps the link.
    ///
    /// # Errors
    ///
    /// As [`Link::register_endpoint`]; [`ErrorKind::Unsupported`] with an existing peer.
    #[cfg(test)]
    pub(crate) fn ping(&self, deadline: Deadline) -> Result<()> {
        self.check_own("answer a ping")?;
        self.ask(&Request::Ping, deadline).map(|_| ())
    }

    /// Sends a note of a failed transfer, without waiting for it to arrive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] with an existing peer, [`ErrorKind::ResourceExhausted`] if the peer takes nothing,
    /// [`ErrorKind::InvalidArgument`] for a message that is too long, or why the link has ended.
    pub(crate) fn note_failure(&self, failure: &FailureNote) -> Result<()> {
        self.check_own("take notes")?;
        let bytes = note(failure)?;
        self.inner.check_open(&self.inner.state.lock())?;
        if self.inner.unsent.load(Ordering::Relaxed) > MAX_UNSENT {
            return Err(self.inner.full());
        }
        self.inner.queued(bytes.len());
        self.send(Command::Tell { token: self.inner.token, bytes })
    }

    /// Ends the link. Who waits for an answer gets [`ErrorKind::BadState`]; the service is not told.
    pub(crate) fn close(&self) {
        let why = Error::new(ErrorKind::BadState, "the control link was closed on this side");
        self.inner.close(&why);
        self.handle.send(Command::Close(self.inner.token));
    }

    fn check_own(&self, what: &str) -> Result<()> {
        if self.peer().protocol() == Protocol::Own {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("engine {} speaks an older protocol and cannot {what}; update it", self.inner.target),
        ))
    }

    fn send(&self, command: Command) -> Result<()> {
        if self.handle.send(command) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::BadState, "the rdma backend is shut down"))
    }

    fn ask(&self, what: &Request, deadline: Deadline) -> Result<Answer> {
        let token = self.inner.token;
        let legacy = self.peer().protocol() == Protocol::Legacy;
        let id = self.inner.enter(deadline, legacy)?;
        let (kind, bytes) = if legacy { legacy_bytes(&self.inner.own, what) } else { (0, request(id, what)) };
        self.inner.queued(bytes.len());
        let outcome =
            self.send(Command::Ask { token, id, kind, bytes }).and_then(|()| self.inner.wait(id, deadline));
        if outcome.is_err() && legacy {
            // Answers have no numbers there: whatever comes must not be taken for the next request's.
            self.handle.send(Command::Abandon { token, id });
        }
        self.inner.leave(id, legacy);
        match outcome?? {
            Answer::Failed(error) => Err(error.context(format_args!("engine {} says", self.inner.target))),
            answer => Ok(answer),
        }
    }

    fn unexpected(&self, answer: &Answer) -> Error {
        super::message::malformed(format!(
            "engine {} answers another question: {answer:?}",
            self.inner.target
        ))
    }
}

/// A request to an existing peer; what cannot be asked there has been refused before.
fn legacy_bytes(own: &EngineKey, what: &Request) -> (u8, Vec<u8>) {
    match what {
        Request::Register(request) => (kind::LEGACY_REGISTER, legacy_register(own, request)),
        Request::Region { device, memory } => {
            (kind::LEGACY_REGION, legacy_region(own, *device, *memory, &RegionKeys::default()))
        }
        Request::Retire { .. } | Request::Ping => (kind::PING, Vec::new()),
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("id", &self.id())
            .field("peer", self.peer())
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}
