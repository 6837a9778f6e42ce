//! The thread that watches the sockets: the listening one, the connections that peers have made, and the links to peers.
//!
//! It sleeps in the system's poll until a socket, a command of another thread or the earliest deadline wakes it, and never
//! calls what may block. Each connection gets a bounded turn.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use mori_core::{Clock, Error, ErrorKind};

use super::accepted::Accepted;
use super::dialed::Dialed;
use super::handshake;
use super::pool::Pool;
use super::stream::SCRATCH;
use super::{ControlConfig, Identity, Service};
use crate::sync::Mutex;

const WAKER: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);
/// How many connections are accepted before those that stand get their turn.
const ACCEPTS: usize = 64;
/// How long accepting pauses when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most addresses that are remembered to speak only the protocol of existing peers.
const MAX_REMEMBERED: usize = 1024;

/// What other threads ask of the thread that watches.
pub(super) enum Command {
    /// Make a link.
    Dial(Box<Dialed>),
    /// Send a request over a link.
    Ask { token: usize, id: u64, kind: u8, bytes: Vec<u8> },
    /// Send over a link what has no answer.
    Tell { token: usize, bytes: Vec<u8> },
    /// Nobody waits for the answer any more.
    Abandon { token: usize, id: u64 },
    /// End a link.
    Close(usize),
    /// A job for a connection is done; `None`: it failed, and the peer cannot be told but by the end of the connection.
    Answer { token: usize, bytes: Option<Vec<u8>> },
    /// End everything.
    Shutdown,
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    stopped: bool,
}

/// The watching thread as other threads see it.
pub(super) struct Handle {
    waker: Waker,
    inbox: Mutex<Inbox>,
    next: AtomicUsize,
}

impl Handle {
    pub(super) fn new(registry: &Registry) -> io::Result<Self> {
        Ok(Self { waker: Waker::new(registry, WAKER)?, inbox: Mutex::default(), next: AtomicUsize::new(1) })
    }

    /// The next number of a connection or link; never zero, never used again.
    pub(super) fn fresh(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Leaves a command; `false` if the thread has ended, and nobody will carry it out.
    pub(super) fn send(&self, command: Command) -> bool {
        {
            let mut inbox = self.inbox.lock();
            if inbox.stopped {
                return false;
            }
            inbox.commands.push(command);
        }
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the thread of the control connections");
        }
        true
    }
}

/// What the threads of one control plane share.
pub(super) struct Shared {
    pub(super) config: ControlConfig,
    pub(super) identity: Identity,
    pub(super) service: Weak<dyn Service>,
    pub(super) clock: Clock,
    pub(super) handle: Arc<Handle>,
    pub(super) pool: Arc<Pool>,
    /// Addresses that speak only the protocol of existing peers, and until when that is believed.
    legacy: Mutex<HashMap<SocketAddr, Instant>>,
}

impl Shared {
    pub(super) fn new(
        config: ControlConfig,
        identity: Identity,
        service: Weak<dyn Service>,
        handle: Arc<Handle>,
        pool: Arc<Pool>,
    ) -> Arc<Self> {
        let clock = Clock::system();
        Arc::new(Self { config, identity, service, clock, handle, pool, legacy: Mutex::default() })
    }

    /// The address has answered in the protocol of existing peers.
    pub(super) fn remember_legacy(&self, address: SocketAddr, now: Instant) {
        let Some(until) = now.checked_add(self.config.remember_legacy) else { return };
        let mut legacy = self.legacy.lock();
        if legacy.len() >= MAX_REMEMBERED {
            legacy.retain(|_, until| *until > now);
        }
        if legacy.len() < MAX_REMEMBERED || legacy.contains_key(&address) {
            legacy.insert(address, until);
        }
    }

    /// Whether the address is known to speak only the protocol of existing peers.
    pub(super) fn is_legacy(&self, address: SocketAddr, now: Instant) -> bool {
        self.legacy.lock().get(&address).is_some_and(|until| *until > now)
    }
}

/// What a connection needs to get on.
pub(super) struct Turn<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) registry: &'a Registry,
    pub(super) scratch: &'a mut [u8],
    pub(super) now: Instant,
}

enum Conn {
    Accepted(Box<Accepted>),
    Dialed(Box<Dialed>),
}

impl Conn {
    fn readable(&mut self) {
        match self {
            Self::Accepted(conn) => conn.readable(),
            Self::Dialed(conn) => conn.readable(),
        }
    }

    /// Gets on; `true`: there is more to do at once.
    fn turn(&mut self, turn: &mut Turn<'_>) -> Result<bool, Error> {
        match self {
            Self::Accepted(conn) => conn.turn(turn),
            Self::Dialed(conn) => conn.turn(turn),
        }
    }

    fn deadline(&self, shared: &Shared) -> Option<Instant> {
        match self {
            Self::Accepted(conn) => conn.deadline(shared),
            Self::Dialed(conn) => conn.deadline(shared),
        }
    }

    fn expired(&mut self, turn: &mut Turn<'_>) -> Result<(), Error> {
        match self {
            Self::Accepted(conn) => conn.expired(turn),
            Self::Dialed(conn) => conn.expired(turn),
        }
    }
}

struct Entry {
    conn: Conn,
    timer: Option<Instant>,
    queued: bool,
}

/// The thread's own state.
pub(super) struct Watch {
    poll: Poll,
    shared: Arc<Shared>,
    listener: TcpListener,
    accept_again: Option<Instant>,
    /// Whether the last try to accept failed, so that it is logged once.
    accept_failed: bool,
    conns: HashMap<usize, Entry>,
    /// How many connections there are from each address.
    addresses: HashMap<IpAddr, usize>,
    accepted: usize,
    /// Connections that may be in the handshake, oldest first.
    greeting: VecDeque<usize>,
    ready: VecDeque<usize>,
    timers: BTreeSet<(Instant, usize)>,
    scratch: Vec<u8>,
    running: bool,
}

impl Watch {
    pub(super) fn new(poll: Poll, shared: Arc<Shared>, mut listener: TcpListener) -> io::Result<Self> {
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            shared,
            listener,
            accept_again: None,
            accept_failed: false,
            conns: HashMap::new(),
            addresses: HashMap::new(),
            accepted: 0,
            greeting: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            scratch: vec![0; SCRATCH],
            running: true,
        })
    }

    pub(super) fn run(mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            tracing::error!("the thread of the control connections panicked; they end");
        }
        self.end();
        self.shared.pool.finish();
    }

    fn work(&mut self) {
        let mut events = Events::with_capacity(256);
        while self.running {
            if let Err(error) = self.poll.poll(&mut events, self.timeout())
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the thread of the control connections cannot wait for them; it ends");
                return;
            }
            for event in &events {
                self.event(event);
            }
            self.commands();
            self.turns();
            self.expire();
        }
    }

    /// How long to sleep: not at all with work at hand, else until the earliest deadline.
    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let until = match (timer, self.accept_again) {
            (Some(one), Some(other)) => one.min(other),
            (one, other) => one.or(other)?,
        };
        // The poll counts in whole milliseconds; rounding up avoids looking too early, again and again.
        let left = until.saturating_duration_since(self.shared.clock.now());
        Some(left.saturating_add(Duration::from_micros(999)))
    }

    fn event(&mut self, event: &mio::event::Event) {
        match event.token() {
            WAKER => {}
            LISTENER => self.accept(),
            Token(token) => {
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                if readable && let Some(entry) = self.conns.get_mut(&token) {
                    entry.conn.readable();
                }
                self.queue(token);
            }
        }
    }

    /// The connection gets a turn.
    fn queue(&mut self, token: usize) {
        if let Some(entry) = self.conns.get_mut(&token)
            && !entry.queued
        {
            entry.queued = true;
            self.ready.push_back(token);
        }
    }

    fn turns(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { return };
            let Some(entry) = self.conns.get_mut(&token) else { continue };
            entry.queued = false;
            let mut turn = Turn {
                shared: &self.shared,
                registry: self.poll.registry(),
                scratch: &mut self.scratch,
                now: self.shared.clock.now(),
            };
            match entry.conn.turn(&mut turn) {
                Ok(more) => {
                    if more {
                        self.queue(token);
                    }
                    self.rearm(token);
                }
                Err(why) => self.close(token, &why, false),
            }
        }
    }

    /// Notes when the connection has to be looked at.
    fn rearm(&mut self, token: usize) {
        let Some(entry) = self.conns.get_mut(&token) else { return };
        let at = entry.conn.deadline(&self.shared);
        if entry.timer == at {
            return;
        }
        if let Some(before) = std::mem::replace(&mut entry.timer, at) {
            self.timers.remove(&(before, token));
        }
        if let Some(at) = at {
            self.timers.insert((at, token));
        }
    }

    fn expire(&mut self) {
        let now = self.shared.clock.now();
        if self.accept_again.is_some_and(|again| now >= again) {
            self.accept();
        }
        while let Some((at, token)) = self.timers.first().copied() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let Some(entry) = self.conns.get_mut(&token) else { continue };
            entry.timer = None;
            let mut turn = Turn {
                shared: &self.shared,
                registry: self.poll.registry(),
                scratch: &mut self.scratch,
                now,
            };
            match entry.conn.expired(&mut turn) {
                Ok(()) => {
                    self.rearm(token);
                    self.queue(token);
                }
                Err(why) => self.close(token, &why, false),
            }
        }
    }

    fn accept(&mut self) {
        self.accept_again = None;
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((socket, address)) => {
                    self.accept_failed = false;
                    self.adopt(socket, address.ip().to_canonical());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.accept_failed, true) {
                        tracing::warn!(%error, "cannot accept control connections now; trying again and again");
                    }
                    self.accept_again = Some(self.shared.clock.now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_again = Some(self.shared.clock.now());
    }

    fn adopt(&mut self, mut socket: TcpStream, address: IpAddr) {
        let (most, most_of_one) = self.shared.config.max_connections;
        let of_one = self.addresses.get(&address).copied().unwrap_or(0);
        if self.accepted >= most || of_one >= most_of_one {
            let why = Error::new(
                ErrorKind::ResourceExhausted,
                format!("too many control connections: {} in all, {of_one} from {address}", self.accepted),
            );
            tracing::info!(%why, "refused a control connection");
            // The socket's own buffer takes it, or the peer finds a closed connection.
            let _ = socket.write(&handshake::refusal(&why));
            return;
        }
        let token = self.shared.handle.fresh();
        let now = self.shared.clock.now();
        let conn = match Accepted::new(token, socket, address, self.poll.registry(), &self.shared, now) {
            Ok(conn) => conn,
            Err(error) => {
                tracing::warn!(%error, "cannot serve a control connection");
                return;
            }
        };
        self.accepted += 1;
        *self.addresses.entry(address).or_default() += 1;
        self.insert(token, Conn::Accepted(Box::new(conn)));
        self.greeting.push_back(token);
        if self.greeting.len() > self.shared.config.max_greeting {
            self.thin_greeting();
        }
    }

    /// Forgets who is done with the handshake; if too many are not, the oldest goes.
    fn thin_greeting(&mut self) {
        let conns = &self.conns;
        self.greeting.retain(|token| {
            matches!(conns.get(token), Some(Entry { conn: Conn::Accepted(conn), .. }) if conn.greeting())
        });
        if self.greeting.len() > self.shared.config.max_greeting
            && let Some(oldest) = self.greeting.pop_front()
        {
            let why =
                Error::new(ErrorKind::ResourceExhausted, "too many control connections in the handshake");
            self.close(oldest, &why, false);
        }
    }

    fn insert(&mut self, token: usize, conn: Conn) {
        self.conns.insert(token, Entry { conn, timer: None, queued: false });
        self.queue(token);
        self.rearm(token);
    }

    fn commands(&mut self) {
        let commands = std::mem::take(&mut self.shared.handle.inbox.lock().commands);
        for command in commands {
            match command {
                Command::Dial(conn) => self.insert(conn.token(), Conn::Dialed(conn)),
                Command::Ask { token, id, kind, bytes } => {
                    self.dialed(token, |conn| conn.ask(id, kind, bytes));
                }
                Command::Tell { token, bytes } => self.dialed(token, |conn| conn.tell(&bytes)),
                Command::Abandon { token, id } => self.dialed(token, |conn| conn.abandon(id)),
                Command::Close(token) => {
                    let why = Error::new(ErrorKind::BadState, "the control link was closed on this side");
                    self.close(token, &why, true);
                }
                Command::Answer { token, bytes } => self.accepted(token, |conn| conn.answer(bytes)),
                Command::Shutdown => self.running = false,
            }
        }
    }

    fn dialed(&mut self, token: usize, act: impl FnOnce(&mut Dialed)) {
        if let Some(Entry { conn: Conn::Dialed(conn), .. }) = self.conns.get_mut(&token) {
            act(conn);
            self.queue(token);
        }
    }

    fn accepted(&mut self, token: usize, act: impl FnOnce(&mut Accepted)) {
        if let Some(Entry { conn: Conn::Accepted(conn), .. }) = self.conns.get_mut(&token) {
            act(conn);
            self.queue(token);
        }
    }

    /// Ends a connection; `own`: because this side wants it.
    fn close(&mut self, token: usize, why: &Error, own: bool) {
        let Some(entry) = self.conns.remove(&token) else { return };
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, token));
        }
        match entry.conn {
            Conn::Accepted(conn) => {
                self.accepted -= 1;
                let address = conn.address();
                if let Some(count) = self.addresses.get_mut(&address) {
                    *count -= 1;
                    if *count == 0 {
                        self.addresses.remove(&address);
                    }
                }
                conn.close(&self.shared, why);
            }
            Conn::Dialed(conn) => conn.close(&self.shared, why, own),
        }
    }

    fn end(&mut self) {
        let why = Error::new(ErrorKind::BadState, "the rdma backend is shut down");
        let tokens: Vec<_> = self.conns.keys().copied().collect();
        for token in tokens {
            self.close(token, &why, true);
        }
        let left = {
            let mut inbox = self.shared.handle.inbox.lock();
            inbox.stopped = true;
            std::mem::take(&mut inbox.commands)
        };
        for command in left {
            // Everything else was for connections that have ended above.
            if let Command::Dial(conn) = command {
                conn.close(&self.shared, &why, true);
            }
        }
    }
}
