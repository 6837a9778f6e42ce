//! The peer's end of a connection to a target: getting in, regions that are open, messages under way.
//!
//! The control thread reads the answers; any thread sends. A connection that is closed stays closed; the next transfer makes
//! another one.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use mori_core::{Deadline, Error, ErrorKind, Nonce, Result, Side};

use crate::blob::EngineBlob;
use crate::handshake::{self, Identity};
use crate::obstacle::{Obstacle, yama};
use crate::outbox::Outbox;
use crate::page::{Entry, Page};
use crate::shared::Shared;
use crate::socket::{self, Received, broke};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::{self, Credentials};
use crate::target::Turn;
use crate::transfer::Transfer;
use crate::waiter::{Broken, Waiter};
use crate::wire::{MAX_PACKET, Message, Note, VERSIONS, malformed};

/// The most answers that a connection may owe us at a time.
const MAX_REQUESTS: usize = 1 << 16;
/// How many packets a turn has at most.
const TURN: usize = 64;

/// What a target lets this side do with one of its regions.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) conn: Arc<Conn>,
    pub(crate) key: u128,
    pub(crate) terms: Terms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    slot: u32,
    generation: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rights: u8,
}

impl Grant {
    /// Enters the region for one step of a copy; with the process to copy with.
    pub(crate) fn enter(&self) -> (i32, Entry<'_>) {
        match self.conn.way.get() {
            Some(way) if !self.conn.is_dead() => {
                (way.process.0, way.page.enter(self.terms.slot, self.terms.generation))
            }
            _ => (0, Entry::Closed),
        }
    }

    /// Whether the target makes everybody wait.
    pub(crate) fn is_paused(&self) -> bool {
        let way = self.conn.way.get().filter(|_| !self.conn.is_dead());
        way.is_some_and(|way| way.page.is_paused(self.terms.slot, self.terms.generation))
    }

    /// Why the region could not be entered.
    pub(crate) fn closed(&self) -> Error {
        if self.conn.way.get().is_some_and(|way| way.page.ended()) {
            return self.conn.failure().unwrap_or_else(|| self.conn.lost("it has closed the connection"));
        }
        match self.conn.failure() {
            Some(failure) => failure,
            None => {
                self.conn.forget(self.key, self.terms);
                crate::regions::unknown()
            }
        }
    }
}

/// The way into the target's memory.
#[derive(Debug)]
struct Way {
    /// The process: its number, and what keeps that from being taken for another's.
    process: (i32, OwnedFd),
    page: Page,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) token: u64,
    /// Who is expected there.
    target: Identity,
    socket: OwnedFd,
    credentials: Credentials,
    way: std::sync::OnceLock<Way>,
    dead: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    shared: Weak<Shared>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    out: Outbox,
    next: u64,
    granted: HashMap<u128, Terms>,
    /// Regions that are asked for, or will be once the connection is open, with who waits for them.
    opens: HashMap<u128, Vec<Waiter>>,
    requests: HashMap<u64, Request>,
    /// Transfers that the target makes wait.
    parked: Vec<Arc<Transfer>>,
    /// Since when the target owes an answer without a sign of life.
    waiting_since: Option<Instant>,
    /// Whether the control thread will look at that.
    watched: bool,
}

#[derive(Debug)]
enum Phase {
    Welcome { own: Nonce },
    Place { own: Nonce, theirs: Nonce },
    Ready { process: OwnedFd },
    Open,
    Closed { why: Error, obstacle: Option<Obstacle>, at: Instant },
}

#[derive(Debug)]
enum Request {
    Open(u128),
    Note(Arc<Transfer>),
}

impl Conn {
    /// Connects, and begins the handshake; never waits.
    ///
    /// # Errors
    ///
    /// What stands in the way already.
    pub(crate) fn dial(
        shared: &Arc<Shared>,
        token: u64,
        target: &Identity,
        blob: &EngineBlob,
    ) -> Result<Arc<Self>, Broken> {
        let socket = socket::connect(&blob.socket()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Broken::from(Obstacle::Silent),
            io::ErrorKind::ConnectionRefused => Broken::from(Obstacle::NobodyThere),
            _ => Error::io(ErrorKind::Transport, "cannot connect to a process on this host", &error).into(),
        })?;
        let credentials = sys::credentials(socket.as_fd())
            .map_err(|error| Error::io(ErrorKind::Transport, "cannot tell who listens", &error))?;
        let ours = rustix::process::geteuid().as_raw();
        if credentials.uid != ours && ours != 0 {
            return Err(Obstacle::OtherUser { ours, theirs: credentials.uid }.into());
        }
        if credentials.pid == 0 {
            return Err(Obstacle::OtherPidNamespace.into());
        }
        let own = handshake::random()?;
        let mut state = State {
            phase: Phase::Welcome { own },
            out: Outbox::default(),
            next: 1,
            granted: HashMap::new(),
            opens: HashMap::new(),
            requests: HashMap::new(),
            parked: Vec::new(),
            waiting_since: None,
            watched: false,
        };
        let hello = Message::Hello { lowest: VERSIONS.0, highest: VERSIONS.1, nonce: own };
        state.out.send(&socket, &hello).map_err(|error| broke(&error))?;
        Ok(Arc::new(Self {
            token,
            target: target.clone(),
            socket,
            credentials,
            way: std::sync::OnceLock::new(),
            dead: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
            shared: Arc::downgrade(shared),
        }))
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The descriptor of the target's process, once the connection is open.
    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.way.get().map(|way| &way.process.1)
    }

    /// Whether it is over. A copy that began before may still be under way.
    pub(crate) fn is_dead(&self) -> bool {
        // Relaxed: it orders nothing; whoever needs to know more takes the lock.
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.way.get().is_some() && !self.is_dead()
    }

    /// Asks the system whether the process and the connection are still there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerLost`] if not. The number of the process may mean another one by now.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(way) = self.way.get() else { return Ok(()) };
        if self.is_dead() || sys::gone(&way.process.1, &self.socket) {
            return Err(self
                .failure()
                .unwrap_or_else(|| self.lost("its process has ended, or the connection is closed")));
        }
        Ok(())
    }

    /// The error for a target that is gone.
    pub(crate) fn lost(&self, how: &str) -> Error {
        Error::new(
            ErrorKind::PeerLost,
            format!("engine {} on this host is lost: {how}; submit again when it is back", self.target.key),
        )
    }

    /// Why it is over, if it is.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.state.lock().phase {
            Phase::Closed { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// What stood in the way, and when that was seen, if the connection is over because of something like it.
    pub(crate) fn obstacle(&self) -> Option<(Obstacle, Instant)> {
        match &self.state.lock().phase {
            Phase::Closed { obstacle: Some(obstacle), at, .. } => Some((obstacle.clone(), *at)),
            _ => None,
        }
    }

    /// Waits until the handshake is over.
    ///
    /// # Errors
    ///
    /// Why the connection is not open.
    pub(crate) fn wait_open(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Open => return Ok(()),
                Phase::Closed { why, .. } => return Err(why.clone()),
                _ => {}
            }
            if !crate::sleep(&self.changed, &mut state, deadline) {
                return Err(Obstacle::Silent.error());
            }
        }
    }

    /// Gets a grant, at once if the region is open already; else `waiter` will be told.
    ///
    /// # Errors
    ///
    /// Why the connection is over, with the waiter, who is not told.
    pub(crate) fn ask(self: &Arc<Self>, key: u128, waiter: Waiter) -> Result<(), (Error, Waiter)> {
        let mut state = self.state.lock();
        if let Phase::Closed { why, .. } = &state.phase {
            return Err((why.clone(), waiter));
        }
        if let Some(terms) = state.granted.get(&key).copied() {
            drop(state);
            self.tell(waiter, Ok(Grant { conn: Arc::clone(self), key, terms }));
            return Ok(());
        }
        let waiters = state.opens.entry(key).or_default();
        waiters.push(waiter);
        let first = waiters.len() == 1;
        if first && matches!(state.phase, Phase::Open) {
            self.send_open(&mut state, key);
        }
        Ok(())
    }

    /// The grant for a region that is open already.
    pub(crate) fn known(self: &Arc<Self>, key: u128) -> Option<Grant> {
        let terms = self.state.lock().granted.get(&key).copied()?;
        Some(Grant { conn: Arc::clone(self), key, terms })
    }

    fn tell(&self, waiter: Waiter, result: Result<Grant>) {
        match waiter {
            Waiter::Session(ticket) => ticket.fill(result),
            Waiter::Transfer(transfer) => {
                if let Some(shared) = self.shared.upgrade() {
                    transfer.granted(&shared, result);
                }
            }
        }
    }

    /// Forgets a grant that the target has taken back.
    fn forget(&self, key: u128, terms: Terms) {
        let mut state = self.state.lock();
        if state.granted.get(&key) == Some(&terms) {
            state.granted.remove(&key);
        }
    }

    fn send_open(&self, state: &mut State, key: u128) {
        let request = self.request(state, Request::Open(key));
        self.send(state, &Message::Open { request, key });
    }

    /// Sends; what breaks the socket shows when it is read.
    fn send(&self, state: &mut State, message: &Message) {
        if let Err(error) = state.out.send(&self.socket, message) {
            tracing::debug!(peer = %self.target.key, %error, "a message could not be sent");
        }
    }

    /// Enters a request that the target has to answer.
    fn request(&self, state: &mut State, request: Request) -> u64 {
        let number = state.next;
        state.next += 1;
        state.requests.insert(number, request);
        if state.waiting_since.is_none()
            && let Some(shared) = self.shared.upgrade()
        {
            let now = shared.clock.now();
            state.waiting_since = Some(now);
            if !std::mem::replace(&mut state.watched, true) {
                shared.control.watch(now + shared.config.peer_timeout, self.token);
            }
        }
        number
    }

    /// Sends a transfer's message. Unless it is only announced, the transfer is told of the answer.
    ///
    /// # Errors
    ///
    /// Why it cannot be sent; the transfer is not told then.
    pub(crate) fn note(&self, transfer: &Arc<Transfer>, note: Note) -> Result<()> {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::Open => {}
            Phase::Closed { why, .. } => return Err(why.clone()),
            _ => return Err(self.lost("the connection is not open yet")),
        }
        if state.requests.len() >= MAX_REQUESTS || state.out.len() >= MAX_REQUESTS {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                format!(
                    "engine {} has {MAX_REQUESTS} messages to answer already; submit fewer at a time",
                    self.target.key
                ),
            ));
        }
        let request =
            if note.announced { 0 } else { self.request(&mut state, Request::Note(Arc::clone(transfer))) };
        self.send(&mut state, &Message::Note { request, note });
        Ok(())
    }

    /// Keeps a transfer until the target lets its peers go on.
    ///
    /// # Errors
    ///
    /// Why the connection is over.
    pub(crate) fn park(&self, transfer: &Arc<Transfer>) -> Result<()> {
        let mut state = self.state.lock();
        if let Phase::Closed { why, .. } = &state.phase {
            return Err(why.clone());
        }
        state.parked.retain(|parked| parked.is_parked());
        state.parked.push(Arc::clone(transfer));
        Ok(())
    }

    /// Sends what waits, and reads what has come; for the control thread.
    ///
    /// # Errors
    ///
    /// The connection is to be closed.
    pub(crate) fn turn(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        buffer: &mut [u8; MAX_PACKET],
    ) -> Result<Turn, Broken> {
        self.state.lock().out.flush(&self.socket).map_err(|error| broke(&error))?;
        for _ in 0..TURN {
            match socket::receive(&self.socket, buffer).map_err(|error| broke(&error))? {
                Received::Nothing => return Ok(Turn::Idle),
                Received::Closed => return Err(self.lost("it closed the connection").into()),
                Received::Packet(length, descriptor) => {
                    let message = Message::decode(buffer.get(..length).unwrap_or_default())?;
                    self.message(shared, message, descriptor)?;
                }
            }
        }
        Ok(Turn::More)
    }

    fn message(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        message: Message,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Broken> {
        let mut state = self.state.lock();
        match message {
            Message::Refused(why) if !matches!(state.phase, Phase::Open) => {
                let obstacle = Obstacle::Refused(why.message().to_owned());
                return Err(Broken { why: why.context("the peer refuses"), obstacle: Some(obstacle) });
            }
            Message::Welcome { version, range, locked, nonce } => {
                let Phase::Welcome { own } = state.phase else { return Err(out_of_turn().into()) };
                if version == 0 || handshake::common_version(version, version).is_none() {
                    return Err(handshake::no_version(range).into());
                }
                let secret = shared.config.secret.as_ref();
                handshake::same_lock(secret.is_some(), locked)?;
                let mac = handshake::prove(secret, Side::Initiator, &own, &nonce);
                let Identity { key, instance } = shared.identity()?;
                self.send(&mut state, &Message::Proof { mac, instance, key: key.as_str().to_owned() });
                state.phase = Phase::Place { own, theirs: nonce };
            }
            Message::Place { mac, address, instance, key } => {
                let Phase::Place { own, theirs } = state.phase else { return Err(out_of_turn().into()) };
                handshake::verify(shared.config.secret.as_ref(), Side::Target, &own, &theirs, &mac)?;
                if key != self.target.key.as_str() || instance != self.target.instance {
                    return Err(self
                        .lost(&format!("engine {key} answers there, which is another one"))
                        .into());
                }
                let process = sys::process(self.socket.as_fd(), self.credentials.pid)
                    .map_err(|_| self.lost("its process has ended"))?;
                let found = sys::peek(self.credentials.pid, address).map_err(|error| self.probed(&error))?;
                self.send(&mut state, &Message::Found(found));
                state.phase = Phase::Ready { process };
            }
            Message::Ready => {
                let phase = std::mem::replace(&mut state.phase, Phase::Open);
                let (Phase::Ready { process }, Some(file)) = (phase, descriptor) else {
                    return Err(out_of_turn().into());
                };
                self.opened(&mut state, process, &file)?;
                drop(state);
                self.changed.notify_all();
            }
            Message::Grant { request, slot, generation, address, length, rights } => {
                let terms = Terms { slot, generation, address, length, rights };
                self.grant(state, request, &Ok(terms))?;
            }
            Message::Failed { request, error } => match state.requests.get(&request) {
                Some(Request::Open(_)) => self.grant(state, request, &Err(error))?,
                _ => self.noted(state, request, Err(error))?,
            },
            Message::Done { request } => self.noted(state, request, Ok(()))?,
            Message::Resumed if matches!(state.phase, Phase::Open) => {
                let parked = std::mem::take(&mut state.parked);
                drop(state);
                parked.iter().for_each(|transfer| transfer.go_on(shared));
            }
            _ => return Err(out_of_turn().into()),
        }
        Ok(())
    }

    /// What a failed look into the target's memory means.
    fn probed(&self, error: &io::Error) -> Broken {
        let errno = error.raw_os_error().unwrap_or(0);
        match errno {
            libc::ESRCH => Broken::from(self.lost("its process has ended")),
            libc::ENOSYS => Obstacle::NoCalls { errno }.into(),
            libc::EFAULT => Error::new(
                ErrorKind::Unavailable,
                "the peer's memory is not where it says; it is not the process that the system names",
            )
            .into(),
            _ => Obstacle::NotPermitted { yama: yama(), errno }.into(),
        }
    }

    fn opened(&self, state: &mut State, process: OwnedFd, file: &OwnedFd) -> Result<()> {
        let page = Page::map(file.as_fd()).map_err(|error| {
            Error::io(ErrorKind::Malformed, "the page that the peer shares cannot be used", &error)
        })?;
        if self.way.set(Way { process: (self.credentials.pid, process), page }).is_err() {
            return Err(out_of_turn());
        }
        let keys: Vec<u128> = state.opens.keys().copied().collect();
        keys.into_iter().for_each(|key| self.send_open(state, key));
        Ok(())
    }

    /// Takes an answered request out of the table.
    fn answered(&self, state: &mut State, request: u64) -> Result<Request> {
        let found = state.requests.remove(&request).ok_or_else(|| malformed("an answer to nothing"))?;
        let now = self.shared.upgrade().map(|shared| shared.clock.now());
        state.waiting_since = now.filter(|_| !state.requests.is_empty());
        Ok(found)
    }

    fn grant(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        request: u64,
        result: &Result<Terms>,
    ) -> Result<()> {
        let Request::Open(key) = self.answered(&mut state, request)? else {
            return Err(malformed("a grant for a message"));
        };
        if let Ok(terms) = result {
            if terms.address.checked_add(terms.length).is_none() {
                return Err(malformed("a grant past the end of the address space"));
            }
            state.granted.insert(key, *terms);
        }
        let waiters = state.opens.remove(&key).unwrap_or_default();
        drop(state);
        for waiter in waiters {
            let grant = |terms| Grant { conn: Arc::clone(self), key, terms };
            self.tell(waiter, result.clone().map(grant));
        }
        Ok(())
    }

    fn noted(&self, mut state: MutexGuard<'_, State>, request: u64, result: Result<()>) -> Result<()> {
        let Request::Note(transfer) = self.answered(&mut state, request)? else {
            return Err(malformed("an answer of another kind than the request"));
        };
        drop(state);
        transfer.quiet(result);
        Ok(())
    }

    /// Whether the target owes an answer for too long; if not, when to look again.
    pub(crate) fn silent(&self, shared: &Shared, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.watched = false;
        let Some(since) = state.waiting_since else { return false };
        let until = since + shared.config.peer_timeout;
        if now >= until {
            return true;
        }
        state.watched = true;
        drop(state);
        shared.control.watch(until, self.token);
        false
    }

    /// Ends the connection and everything that waits for it. What a copying thread is in the middle of ends by itself.
    pub(crate) fn close(&self, broken: &Broken, now: Instant) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed { .. }) {
            return;
        }
        self.dead.store(true, Ordering::Relaxed);
        let Broken { why, obstacle } = broken;
        state.phase = Phase::Closed { why: why.clone(), obstacle: obstacle.clone(), at: now };
        state.waiting_since = None;
        let opens = std::mem::take(&mut state.opens);
        let requests = std::mem::take(&mut state.requests);
        let parked = std::mem::take(&mut state.parked);
        state.granted.clear();
        drop(state);
        // The other side learns of it at once, also while copies or forked processes keep the socket.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.changed.notify_all();
        for waiter in opens.into_values().flatten() {
            match waiter {
                Waiter::Session(ticket) => ticket.fill(Err(why.clone())),
                Waiter::Transfer(transfer) => transfer.give_up(why.clone()),
            }
        }
        for request in requests.into_values() {
            if let Request::Note(transfer) = request {
                transfer.quiet(Err(why.clone()));
            }
        }
        parked.iter().for_each(|transfer| transfer.give_up(why.clone()));
    }
}

fn out_of_turn() -> Error {
    malformed("a message out of turn")
}
