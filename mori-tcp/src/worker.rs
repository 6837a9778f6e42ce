//! The I/O threads: a fixed number of them serves every connection of the engine.
//!
//! A thread sleeps in the system's poll until a socket, another thread's command or its clock wakes it. While something is
//! under way it looks at its clock a few times per peer timeout; with nothing under way it sleeps without a bound and uses no
//! processor time. Each connection gets a bounded turn, so that none holds up the others.
//!
//! Waking rule. A submitting thread enters its request first and looks at `ticking` second; the I/O thread that wants to sleep
//! without a bound clears `ticking` first and looks for requests second. One of the two sees the other.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use mori_core::{Error, ErrorKind, Result};

use crate::driven::Driven;
use crate::lane::Lane;
use crate::peer::Peer;
use crate::shared::Shared;
use crate::target::Target;

/// How many bytes a connection may move in one turn.
pub(crate) const TURN_BUDGET: u64 = 4 << 20;

const WAKER: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);
/// The most connections per thread that have not completed the handshake; beyond that the oldest goes.
const MAX_GREETING: usize = 512;
/// How many quiet looks at the clock it takes until a thread sleeps without a bound.
const QUIET_TICKS: u32 = 2;
/// How many connections are accepted before those that stand get their turn.
const ACCEPTS: u32 = 64;
/// How long accepting pauses when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What other threads ask of an I/O thread.
pub(crate) enum Command {
    /// Make a connection for this lane.
    Dial { lane: Arc<Lane>, peer: Arc<Peer> },
    /// The addresses of a lane's peer are known.
    Resolved { token: usize, addresses: Result<VecDeque<SocketAddr>> },
    /// Read on where a waiting thread has left off.
    Read(usize),
    /// Serve this connection.
    Adopt(TcpStream),
    /// Send what waits on this lane.
    Write(usize),
    /// Stop a request.
    Cancel { token: usize, request: u64 },
    /// End a connection.
    Close { token: usize, why: Error },
    /// End everything.
    Shutdown,
}

/// An I/O thread as other threads see it.
pub(crate) struct WorkerHandle {
    waker: Waker,
    /// The list of sockets that the thread is told about.
    pub(crate) registry: Registry,
    commands: Mutex<Vec<Command>>,
    /// Tokens whose turn was cut short.
    again: Mutex<Vec<usize>>,
    /// Whether the thread looks at its clock.
    ticking: AtomicBool,
    /// The earliest deadline of a transfer, in nanoseconds after `base`.
    earliest: AtomicU64,
    base: Instant,
    next_token: AtomicUsize,
    pub(crate) thread: OnceLock<ThreadId>,
    stopped: AtomicBool,
}

impl WorkerHandle {
    pub(crate) fn new(registry: &Registry, base: Instant) -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new(registry, WAKER)?,
            registry: registry.try_clone()?,
            commands: Mutex::default(),
            again: Mutex::default(),
            ticking: AtomicBool::new(false),
            earliest: AtomicU64::new(u64::MAX),
            base,
            next_token: AtomicUsize::new(0),
            thread: OnceLock::new(),
            stopped: AtomicBool::new(false),
        })
    }

    pub(crate) fn fresh_token(&self) -> usize {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Leaves a command; `false` if the thread has ended, and nobody will carry it out.
    pub(crate) fn send(&self, command: Command) -> bool {
        {
            let mut commands = self.commands.lock();
            if self.stopped.load(Ordering::Relaxed) {
                return false;
            }
            commands.push(command);
        }
        self.wake();
        true
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake an I/O thread");
        }
    }

    /// A connection's turn was cut short; for the I/O thread itself.
    pub(crate) fn again(&self, token: usize) {
        self.again.lock().push(token);
    }

    /// A request was entered: makes sure that somebody looks at the clock, and at `deadline` at the latest.
    pub(crate) fn busy(&self, deadline: Option<Instant>) {
        let mut wake = false;
        if let Some(deadline) = deadline {
            let nanos = self.nanos(deadline);
            // AcqRel pairs with the swap in `Worker::expire`: the request that was entered is seen there, or this minimum.
            wake = self.earliest.fetch_min(nanos, Ordering::AcqRel) > nanos;
        }
        // Pairs with the fence in `Worker::may_sleep_long`: the request above, or the cleared flag there, is seen.
        fence(Ordering::SeqCst);
        if !self.ticking.load(Ordering::Relaxed) && !self.ticking.swap(true, Ordering::Relaxed) {
            wake = true;
        }
        if wake {
            self.wake();
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl std::fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerHandle").finish_non_exhaustive()
    }
}

enum Conn {
    Initiator(Arc<Driven>),
    Target(Box<Target>),
}

pub(crate) struct Worker {
    poll: Poll,
    handle: Arc<WorkerHandle>,
    shared: Arc<Shared>,
    listener: Option<TcpListener>,
    accept_again: Option<Instant>,
    /// Whether the last try to accept failed, so that it is logged once.
    accept_failed: bool,
    conns: HashMap<usize, Conn>,
    /// Connections in the handshake, oldest first.
    greeting: VecDeque<usize>,
    ready: VecDeque<usize>,
    next_tick: Instant,
    was_ticking: bool,
    quiet_ticks: u32,
    busy_until: Option<Instant>,
    running: bool,
}

impl Worker {
    pub(crate) fn new(
        poll: Poll,
        handle: Arc<WorkerHandle>,
        shared: Arc<Shared>,
        mut listener: Option<TcpListener>,
    ) -> io::Result<Self> {
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        let now = shared.clock.now();
        Ok(Self {
            poll,
            handle,
            shared,
            listener,
            accept_again: None,
            accept_failed: false,
            conns: HashMap::new(),
            greeting: VecDeque::new(),
            ready: VecDeque::new(),
            next_tick: now,
            was_ticking: false,
            quiet_ticks: 0,
            busy_until: None,
            running: true,
        })
    }

    pub(crate) fn run(mut self) {
        let _ = self.handle.thread.set(std::thread::current().id());
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            tracing::error!("an I/O thread panicked; its connections end");
        }
        // However the work ended: no transfer stays in progress (S5, S7).
        self.end();
    }

    fn work(&mut self) {
        let mut events = Events::with_capacity(256);
        while self.running {
            let timeout = self.timeout();
            if timeout == Some(Duration::ZERO) && self.ready.is_empty() {
                // A busy look must not keep a thread from running that has the work.
                std::thread::yield_now();
            }
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "an I/O thread cannot wait for its sockets; it ends");
                break;
            }
            let mut worked = false;
            for event in &events {
                worked |= self.event(event);
            }
            self.commands();
            worked |= self.turns();
            self.clock(worked);
        }
    }

    /// How long to sleep: not at all with work at hand or within the busy window, else until the clock has to be looked at.
    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() || self.busy_until.is_some() {
            return Some(Duration::ZERO);
        }
        let ticking = self.handle.ticking.load(Ordering::Relaxed);
        // Acquire pairs with the minimum in `WorkerHandle::busy`.
        let earliest = self.handle.earliest.load(Ordering::Acquire);
        if !ticking && earliest == u64::MAX && self.accept_again.is_none() {
            return None;
        }
        let now = self.shared.clock.now();
        let mut until = now + Duration::from_secs(3600);
        if ticking {
            until = until.min(self.next_tick);
        }
        if earliest != u64::MAX {
            until = until.min(self.handle.base + Duration::from_nanos(earliest));
        }
        if let Some(again) = self.accept_again {
            until = until.min(again);
        }
        // The poll counts in whole milliseconds; rounding up avoids looking too early, again and again.
        Some(until.saturating_duration_since(now) + Duration::from_micros(999))
    }

    fn event(&mut self, event: &mio::event::Event) -> bool {
        match event.token() {
            WAKER => false,
            LISTENER => {
                self.accept();
                false
            }
            Token(token) => {
                let closed = event.is_read_closed() || event.is_error();
                let readable = (event.is_readable() || closed).then_some(closed);
                self.touch(token, readable, event.is_writable() || event.is_error());
                true
            }
        }
    }

    fn touch(&mut self, token: usize, readable: Option<bool>, writable: bool) {
        let result = match self.conns.get_mut(&token) {
            None => return,
            Some(Conn::Initiator(conn)) => {
                let registry = self.poll.registry();
                conn.with(|conn| conn.event(&self.shared, registry, readable, writable))
            }
            Some(Conn::Target(conn)) => conn.event(&self.shared, readable, writable),
        };
        match result {
            Ok(()) => {
                if !self.ready.contains(&token) {
                    self.ready.push_back(token);
                }
            }
            Err(why) => self.close(token, &why),
        }
    }

    /// One turn for each connection that was ready at the beginning; those with more to do get another after the next poll.
    fn turns(&mut self) -> bool {
        let count = self.ready.len();
        for _ in 0..count {
            let Some(token) = self.ready.pop_front() else { break };
            let result = match self.conns.get_mut(&token) {
                None => continue,
                Some(Conn::Initiator(conn)) => conn.with(|conn| conn.turn(&self.shared)),
                Some(Conn::Target(conn)) => conn.turn(&self.shared),
            };
            match result {
                Ok(true) => self.ready.push_back(token),
                Ok(false) => {}
                Err(why) => self.close(token, &why),
            }
        }
        let again = std::mem::take(&mut *self.handle.again.lock());
        for token in again {
            self.touch(token, None, true);
        }
        count > 0
    }

    fn close(&mut self, token: usize, why: &Error) {
        match self.conns.remove(&token) {
            None => {}
            Some(Conn::Initiator(conn)) => conn.with(|conn| conn.close(self.poll.registry(), why)),
            Some(Conn::Target(mut conn)) => conn.close(&self.shared, self.poll.registry(), why),
        }
    }

    fn accept(&mut self) {
        self.accept_again = None;
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((socket, _)) => {
                    self.accept_failed = false;
                    self.shared.adopt(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.accept_failed, true) {
                        tracing::warn!(%error, "cannot accept connections now; trying again and again");
                    }
                    self.accept_again = Some(self.shared.clock.now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_again = Some(self.shared.clock.now());
    }

    fn commands(&mut self) {
        let commands = std::mem::take(&mut *self.handle.commands.lock());
        for command in commands {
            match command {
                Command::Dial { lane, peer } => self.dial(lane, peer),
                Command::Resolved { token, addresses } => self.resolved(token, addresses),
                Command::Adopt(socket) => self.serve(socket),
                Command::Write(token) => self.touch(token, None, true),
                Command::Read(token) => self.touch(token, Some(false), false),
                Command::Cancel { token, request } => {
                    if let Some(Conn::Initiator(conn)) = self.conns.get(&token) {
                        conn.with(|conn| conn.cancel(request));
                    }
                }
                Command::Close { token, why } => self.close(token, &why),
                Command::Shutdown => self.running = false,
            }
        }
    }

    fn dial(&mut self, lane: Arc<Lane>, peer: Arc<Peer>) {
        let token = lane.token;
        let now = self.shared.clock.now();
        let (host, port) = peer.address();
        let conn = Driven::new(lane, peer, now, self.shared.config.connect_timeout);
        self.conns.insert(token, Conn::Initiator(conn));
        self.handle.ticking.store(true, Ordering::Relaxed);
        // A deadline on this lane may have come before the lane, and passed with nobody to look at it: look now. AcqRel
        // pairs with the minimum in `WorkerHandle::busy`.
        self.handle.earliest.fetch_min(self.handle.nanos(now), Ordering::AcqRel);
        match host.parse() {
            Ok(address) => self.resolved(token, Ok([SocketAddr::new(address, port)].into())),
            Err(_) => resolve(&self.handle, token, host, port),
        }
    }

    fn resolved(&mut self, token: usize, addresses: Result<VecDeque<SocketAddr>>) {
        let Some(Conn::Initiator(conn)) = self.conns.get(&token) else { return };
        let registry = self.poll.registry();
        let started = addresses.and_then(|addresses| conn.with(|conn| conn.connect(registry, addresses)));
        if let Err(why) = started {
            self.close(token, &why);
        }
    }

    fn serve(&mut self, socket: TcpStream) {
        let token = self.handle.fresh_token();
        let now = self.shared.clock.now();
        let mut conn = Target::new(token, socket, now, self.shared.config.connect_timeout);
        if let Err(error) = conn.register(self.poll.registry()) {
            tracing::warn!(%error, "cannot serve a connection");
            return;
        }
        self.conns.insert(token, Conn::Target(Box::new(conn)));
        self.handle.ticking.store(true, Ordering::Relaxed);
        let conns = &self.conns;
        self.greeting.retain(|token| matches!(conns.get(token), Some(Conn::Target(conn)) if conn.greeting()));
        self.greeting.push_back(token);
        if self.greeting.len() > MAX_GREETING
            && let Some(oldest) = self.greeting.pop_front()
        {
            let why = Error::new(ErrorKind::ResourceExhausted, "too many connections in the handshake");
            self.close(oldest, &why);
        }
    }

    /// Looks at the clock: the busy window, the ticks, the deadlines of transfers.
    fn clock(&mut self, worked: bool) {
        let window = self.shared.config.busy_window;
        let now = self.shared.clock.now();
        if worked && !window.is_zero() {
            self.busy_until = Some(now + window);
        } else if self.busy_until.is_some_and(|until| now >= until) {
            self.busy_until = None;
        }
        if self.accept_again.is_some_and(|again| now >= again) {
            self.accept();
        }
        if worked {
            // A connection may have stopped in the middle of something, which only the clock shows.
            self.handle.ticking.store(true, Ordering::Relaxed);
        }
        let ticking = self.handle.ticking.load(Ordering::Relaxed);
        if ticking && !self.was_ticking {
            self.next_tick = now + self.shared.config.tick();
            self.quiet_ticks = 0;
        }
        self.was_ticking = ticking;
        // Acquire pairs with the minimum in `WorkerHandle::busy`.
        let earliest = self.handle.earliest.load(Ordering::Acquire);
        if earliest != u64::MAX && self.handle.nanos(now) >= earliest {
            self.expire(now);
        }
        if self.was_ticking && now >= self.next_tick {
            self.tick(now);
        }
    }

    fn expire(&mut self, now: Instant) {
        // Cleared before the look, so that a deadline entered meanwhile is either seen or lowers it again. AcqRel pairs with
        // the minimum in `WorkerHandle::busy`.
        self.handle.earliest.swap(u64::MAX, Ordering::AcqRel);
        let mut earliest = u64::MAX;
        for conn in self.conns.values() {
            if let Conn::Initiator(conn) = conn
                && let Some(at) = conn.with(|conn| conn.expire(now))
            {
                earliest = earliest.min(self.handle.nanos(at));
            }
        }
        // AcqRel: a partner of the minimum in `WorkerHandle::busy`, as above.
        self.handle.earliest.fetch_min(earliest, Ordering::AcqRel);
    }

    fn tick(&mut self, now: Instant) {
        let every = self.shared.config.tick();
        let late = now.saturating_duration_since(self.next_tick);
        // Far too late: this process was stopped, or the machine was asleep.
        let excuse = (late > every * 2).then_some(late);
        self.next_tick = now + every;
        let mut lost = Vec::new();
        let mut busy = false;
        for (token, conn) in &mut self.conns {
            let result = match conn {
                Conn::Initiator(conn) => conn.with(|conn| {
                    excuse.into_iter().for_each(|by| conn.excuse(by, now));
                    busy |= conn.busy();
                    conn.tick(&self.shared, now)
                }),
                Conn::Target(conn) => {
                    excuse.into_iter().for_each(|by| conn.excuse(by, now));
                    busy |= conn.busy();
                    conn.tick(&self.shared, now)
                }
            };
            if let Err(why) = result {
                lost.push((*token, why));
            }
        }
        for (token, why) in lost {
            self.close(token, &why);
        }
        self.quiet_ticks = if busy { 0 } else { self.quiet_ticks + 1 };
        if self.quiet_ticks >= QUIET_TICKS {
            self.may_sleep_long();
        }
    }

    /// Stops looking at the clock, unless a request has come in meanwhile.
    fn may_sleep_long(&mut self) {
        self.handle.ticking.store(false, Ordering::Relaxed);
        // Pairs with the fence in `WorkerHandle::busy`.
        fence(Ordering::SeqCst);
        let busy = self.conns.values().any(|conn| match conn {
            Conn::Initiator(conn) => conn.with(|conn| conn.busy()),
            Conn::Target(conn) => conn.busy(),
        });
        if busy {
            self.handle.ticking.store(true, Ordering::Relaxed);
            self.quiet_ticks = 0;
        }
    }

    fn end(mut self) {
        let why = Error::new(ErrorKind::BadState, "the engine's tcp backend is shut down");
        let tokens: Vec<_> = self.conns.keys().copied().collect();
        for token in tokens {
            self.close(token, &why);
        }
        let left = {
            let mut commands = self.handle.commands.lock();
            self.handle.stopped.store(true, Ordering::Relaxed);
            std::mem::take(&mut *commands)
        };
        for command in left {
            if let Command::Dial { lane, .. } = command {
                for request in lane.close(&why) {
                    let transfer = request.transfer().map(Arc::clone);
                    drop(request);
                    if let Some(transfer) = transfer {
                        transfer.quiet(Err(why.clone()));
                    }
                }
            }
        }
    }
}

/// Looks a name up on a thread of its own, since the system's look-up cannot be bounded.
fn resolve(handle: &Arc<WorkerHandle>, token: usize, host: String, port: u16) {
    let weak: Weak<WorkerHandle> = Arc::downgrade(handle);
    let look_up = move || {
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port));
        let addresses = match found {
            Ok(list) => Ok(list.collect()),
            Err(error) => Err(Error::io(ErrorKind::PeerLost, format!("cannot resolve {host}"), &error)),
        };
        if let Some(handle) = weak.upgrade() {
            handle.send(Command::Resolved { token, addresses });
        }
    };
    if let Err(error) = std::thread::Builder::new().name("mori-tcp-name".into()).spawn(look_up) {
        let addresses = Err(Error::io(ErrorKind::ResourceExhausted, "cannot start a thread", &error));
        handle.send(Command::Resolved { token, addresses });
    }
}
