//! The control thread: connections in both directions, the ends of processes, deadlines. It moves no bytes of transfers.
//!
//! It sleeps without a timer while nothing is owed by anybody. Connections get turns of bounded length, so none delays another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use mori_core::{Error, ErrorKind, Result, TransferId};
use rustix::event::{EventfdFlags, Timespec, epoll};

use crate::conn::Conn;
use crate::obstacle::Obstacle;
use crate::shared::Shared;
use crate::socket;
use crate::sync::Mutex;
use crate::target::{Target, Turn};
use crate::transfer::Transfer;
use crate::waiter::Broken;
use crate::wire::MAX_PACKET;

/// Connections in the handshake; a further one ends the oldest.
const MAX_GREETING: usize = 64;
/// Connections of peers altogether.
const MAX_TARGETS: usize = 4096;
/// Connections that are taken at a time.
const ACCEPTS: usize = 64;
/// How long nothing is accepted when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_TOKEN: u64 = 2;

/// The lowest bit of an event's number: it is about the process, not the socket.
const PROCESS: u64 = 1;

/// What other threads use of it.
#[derive(Debug, Default)]
pub(crate) struct Control {
    commands: Mutex<Commands>,
    timers: Mutex<BTreeMap<(Instant, u64), Timer>>,
    waker: OnceLock<OwnedFd>,
    tokens: AtomicU64,
}

#[derive(Debug, Default)]
struct Commands {
    queue: Vec<Command>,
    stopped: bool,
}

#[derive(Debug)]
enum Command {
    Dial(Arc<Conn>),
    Forget(u64),
    Resumed,
    Shutdown,
}

#[derive(Debug)]
enum Timer {
    /// A handshake that should be over.
    Greeting(u64),
    /// A target that may be silent.
    Silence(u64),
    Deadline(Weak<Transfer>),
    Accept,
}

impl Control {
    pub(crate) fn fresh_token(&self) -> u64 {
        FIRST_TOKEN + self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            // A counter that is full has woken it already.
            let _ = rustix::io::write(waker, &1_u64.to_ne_bytes());
        }
    }

    fn command(&self, command: Command) -> bool {
        let mut commands = self.commands.lock();
        if commands.stopped {
            return false;
        }
        commands.queue.push(command);
        drop(commands);
        self.wake();
        true
    }

    /// Hands over a connection that is being made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadState`] after the end.
    pub(crate) fn dial(&self, shared: &Shared, conn: &Arc<Conn>) -> Result<()> {
        self.timer(
            shared.clock.now() + shared.config.connect_timeout,
            conn.token,
            Timer::Greeting(conn.token),
        );
        if self.command(Command::Dial(Arc::clone(conn))) { Ok(()) } else { Err(shared.shut_down_error()) }
    }

    /// A connection is closed already, and need not be watched any more.
    pub(crate) fn forget(&self, token: u64) {
        self.command(Command::Forget(token));
    }

    /// Peers may go on.
    pub(crate) fn resumed(&self) {
        self.command(Command::Resumed);
    }

    pub(crate) fn shut_down(&self) {
        self.command(Command::Shutdown);
    }

    /// Has the thread look whether a target is silent, at that time.
    pub(crate) fn watch(&self, at: Instant, token: u64) {
        self.timer(at, token, Timer::Silence(token));
    }

    pub(crate) fn deadline(&self, at: Instant, transfer: &Arc<Transfer>) {
        self.timer(at, transfer.id.get(), Timer::Deadline(Arc::downgrade(transfer)));
    }

    pub(crate) fn undo_deadline(&self, at: Instant, transfer: TransferId) {
        self.timers.lock().remove(&(at, transfer.get()));
    }

    /// The number keeps entries of one moment apart. Tokens and numbers of transfers may be equal; then one is a moment later.
    fn timer(&self, at: Instant, number: u64, timer: Timer) {
        let mut at = at;
        let mut timers = self.timers.lock();
        while !matches!(timer, Timer::Deadline(_)) && timers.contains_key(&(at, number)) {
            at += Duration::from_nanos(1);
        }
        let first = timers.first_key_value().is_none_or(|((earliest, _), _)| at < *earliest);
        timers.insert((at, number), timer);
        drop(timers);
        if first {
            self.wake();
        }
    }

    /// Takes a timer that has run out.
    fn due(&self, now: Instant) -> Option<Timer> {
        let mut timers = self.timers.lock();
        let entry = timers.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    fn next(&self) -> Option<Instant> {
        self.timers.lock().first_key_value().map(|((at, _), _)| *at)
    }
}

/// The thread itself.
pub(crate) struct Loop {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    listener: OwnedFd,
    conns: HashMap<u64, Arc<Conn>>,
    /// Connections whose process is watched as well.
    watched: HashMap<u64, ()>,
    targets: HashMap<u64, Target>,
    greeting: VecDeque<u64>,
    ready: VecDeque<u64>,
    buffer: Box<[u8; MAX_PACKET]>,
    running: bool,
}

impl Loop {
    /// Listens, and makes what the thread waits with.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] or [`ErrorKind::Unavailable`], with what the system says.
    pub(crate) fn new(shared: &Arc<Shared>, name: &[u8]) -> Result<Self> {
        let failed = |error: io::Error| {
            let kind = match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => ErrorKind::ResourceExhausted,
                _ => ErrorKind::Unavailable,
            };
            Error::io(kind, "cannot listen for processes on this host", &error)
        };
        let set_up = || -> io::Result<Self> {
            let listener = socket::listen(name)?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let waker = rustix::event::eventfd(0, flags)?;
            let number = |token: u64| epoll::EventData::new_u64(token << 1);
            epoll::add(&epoll, &waker, number(WAKER), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
            epoll::add(&epoll, &listener, number(LISTENER), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
            // A second attachment has been refused before it comes here.
            let _ = shared.control.waker.set(waker);
            Ok(Self {
                shared: Arc::clone(shared),
                epoll,
                listener,
                conns: HashMap::new(),
                watched: HashMap::new(),
                targets: HashMap::new(),
                greeting: VecDeque::new(),
                ready: VecDeque::new(),
                buffer: Box::new([0; MAX_PACKET]),
                running: true,
            })
        };
        set_up().map_err(failed)
    }

    pub(crate) fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        while self.running {
            events.clear();
            let timeout = self.timeout();
            let waited =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            match waited {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the shm backend cannot wait for its sockets; it ends");
                    break;
                }
            }
            for event in &events {
                self.event(event.data.u64());
            }
            self.commands();
            self.turns();
            self.timers();
        }
        self.end();
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.ready.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let at = self.shared.control.next()?;
        let left = at.saturating_duration_since(self.shared.clock.now());
        // Some systems count in milliseconds; rounding up avoids looking too early, again and again.
        let left = left.min(Duration::from_secs(3600)) + Duration::from_micros(999);
        Timespec::try_from(left).ok()
    }

    fn event(&mut self, number: u64) {
        let token = number >> 1;
        match token {
            WAKER => {
                let mut count = [0; 8];
                if let Some(waker) = self.shared.control.waker.get() {
                    let _ = rustix::io::read(waker, &mut count);
                }
            }
            LISTENER => self.accept(),
            _ if number & PROCESS != 0 => {
                if let Some(conn) = self.conns.get(&token) {
                    let lost = conn.lost("its process has ended");
                    self.close(token, &lost.into());
                }
            }
            _ => self.ready(token),
        }
    }

    fn ready(&mut self, token: u64) {
        if !self.ready.contains(&token) {
            self.ready.push_back(token);
        }
    }

    fn watch(&self, socket: &OwnedFd, token: u64) -> io::Result<()> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token << 1), flags)?)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match socket::accept(&self.listener) {
                Ok(Some(socket)) => self.adopt(socket),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections on this host now; trying again");
                    break;
                }
            }
        }
        let again = self.shared.clock.now() + ACCEPT_PAUSE;
        self.shared.control.timer(again, LISTENER, Timer::Accept);
    }

    fn adopt(&mut self, socket: OwnedFd) {
        let token = self.shared.control.fresh_token();
        let target = match Target::new(token, socket) {
            Ok(target) if self.targets.len() < MAX_TARGETS => target,
            Ok(mut target) => {
                let full = format!("{MAX_TARGETS} processes are connected already");
                return target.refuse(&Error::new(ErrorKind::ResourceExhausted, full));
            }
            Err(error) => {
                tracing::warn!(%error, "a process on this host is turned away");
                return;
            }
        };
        if let Err(error) = self.watch(&target.socket, token) {
            tracing::warn!(%error, "cannot serve a connection");
            return;
        }
        self.targets.insert(token, target);
        let give_up = self.shared.clock.now() + self.shared.config.connect_timeout;
        self.shared.control.timer(give_up, token, Timer::Greeting(token));
        let targets = &self.targets;
        self.greeting.retain(|token| targets.get(token).is_some_and(Target::greeting));
        self.greeting.push_back(token);
        if self.greeting.len() > MAX_GREETING
            && let Some(oldest) = self.greeting.pop_front()
        {
            let why = Error::new(ErrorKind::ResourceExhausted, "too many connections in the handshake");
            self.close(oldest, &why.into());
        }
    }

    fn commands(&mut self) {
        let commands = std::mem::take(&mut self.shared.control.commands.lock().queue);
        for command in commands {
            match command {
                Command::Dial(conn) => self.dial(&conn),
                Command::Forget(token) => self.forget(token),
                Command::Resumed => self.resumed(),
                Command::Shutdown => self.running = false,
            }
        }
    }

    fn dial(&mut self, conn: &Arc<Conn>) {
        let token = conn.token;
        if conn.is_dead() {
            return;
        }
        match self.watch(conn.socket(), token) {
            Ok(()) => {
                self.conns.insert(token, Arc::clone(conn));
            }
            Err(error) => {
                let why = Error::io(ErrorKind::ResourceExhausted, "cannot watch a connection", &error);
                conn.close(&why.into(), self.shared.clock.now());
            }
        }
    }

    fn resumed(&mut self) {
        let mut broken = Vec::new();
        for (token, target) in &mut self.targets {
            if let Err(error) = target.resumed() {
                broken.push((*token, error));
            }
        }
        broken.into_iter().for_each(|(token, error)| self.close(token, &error.into()));
    }

    /// One turn for each connection that was ready at the beginning.
    fn turns(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { break };
            let turn = if let Some(conn) = self.conns.get(&token).map(Arc::clone) {
                let turn = conn.turn(&self.shared, &mut self.buffer);
                self.watch_process(&conn);
                turn
            } else if let Some(target) = self.targets.get_mut(&token) {
                target.turn(&self.shared, &mut self.buffer).map_err(Broken::from)
            } else {
                continue;
            };
            match turn {
                Ok(Turn::Idle) => {}
                Ok(Turn::More) => self.ready.push_back(token),
                Err(broken) => self.close(token, &broken),
            }
        }
    }

    /// Has the end of a target's process wake us, as soon as it is known.
    fn watch_process(&mut self, conn: &Arc<Conn>) {
        let Some(process) = conn.process() else { return };
        if self.watched.contains_key(&conn.token) {
            return;
        }
        self.watched.insert(conn.token, ());
        let data = epoll::EventData::new_u64(conn.token << 1 | PROCESS);
        if let Err(error) = epoll::add(&self.epoll, process.as_fd(), data, epoll::EventFlags::IN) {
            tracing::warn!(%error, "cannot watch a peer's process; its end is noticed by its socket only");
        }
    }

    fn timers(&mut self) {
        let now = self.shared.clock.now();
        while let Some(timer) = self.shared.control.due(now) {
            match timer {
                Timer::Deadline(transfer) => {
                    if let Some(transfer) = transfer.upgrade() {
                        transfer.expire();
                    }
                }
                Timer::Accept => self.accept(),
                Timer::Greeting(token) => {
                    let slow = self.conns.get(&token).is_some_and(|conn| !conn.is_open())
                        || self.targets.get(&token).is_some_and(Target::greeting);
                    if slow {
                        self.close(token, &Obstacle::Silent.into());
                    }
                }
                Timer::Silence(token) => {
                    let Some(conn) = self.conns.get(&token).map(Arc::clone) else { continue };
                    if conn.silent(&self.shared, now) {
                        let bound = self.shared.config.peer_timeout;
                        let lost = conn.lost(&format!("it has owed an answer for {bound:?}"));
                        self.close(token, &lost.into());
                    }
                }
            }
        }
    }

    fn forget(&mut self, token: u64) {
        self.watched.remove(&token);
        if let Some(conn) = self.conns.remove(&token) {
            let _ = epoll::delete(&self.epoll, conn.socket());
            if let Some(process) = conn.process() {
                let _ = epoll::delete(&self.epoll, process);
            }
        }
    }

    fn close(&mut self, token: u64, broken: &Broken) {
        if let Some(conn) = self.conns.get(&token) {
            conn.close(broken, self.shared.clock.now());
            self.forget(token);
        } else if let Some(target) = self.targets.remove(&token) {
            let _ = epoll::delete(&self.epoll, &target.socket);
            target.close(&self.shared, &broken.why);
        }
    }

    fn end(mut self) {
        let left = {
            let mut commands = self.shared.control.commands.lock();
            commands.stopped = true;
            std::mem::take(&mut commands.queue)
        };
        let why = Broken::from(self.shared.shut_down_error());
        for command in left {
            if let Command::Dial(conn) = command {
                conn.close(&why, self.shared.clock.now());
            }
        }
        let tokens: Vec<u64> = self.conns.keys().chain(self.targets.keys()).copied().collect();
        tokens.into_iter().for_each(|token| self.close(token, &why));
    }
}
