//! What the backend, its sessions and its own thread share.
//!
//! # Protocol
//!
//! 1. A submission holds the state's read lock from its first look at the state until its transfer is in the table. A shutdown takes
//!    the write lock first, so it finds every transfer in the table.
//! 2. The table's lock is never held across a call of the runtime.
//! 3. Whoever finds a transfer over removes it from the table; doing so twice is harmless.
//! 4. The keeper's thread says under the table's lock that it sleeps without a timer; whoever inserts the first transfer sees it there
//!    and wakes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use mori_core::{
    Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, Result, TransferId,
    TransportBlob,
};

use crate::blob::{EngineBlob, Key, NAME, random_key};
use crate::config::XgmiConfig;
use crate::device::{Device, Limits};
use crate::exports::Exports;
use crate::hip::{Hip, Landings};
use crate::lease::Board;
use crate::peer::{Peer, lost};
use crate::sync::lock;
use crate::transfer::{Looker, Transfer};

/// The attached backends of this process by their incarnations, so that peers in one process find each other.
static HERE: Mutex<Option<HashMap<Key, Weak<Inner>>>> = Mutex::new(None);

/// The inside of a backend.
pub(crate) struct Inner {
    pub(crate) config: XgmiConfig,
    /// The backend itself, for statuses.
    pub(crate) outer: OnceLock<Weak<dyn Backend>>,
    pub(crate) exports: Exports,
    pub(crate) landings: Arc<Landings>,
    pub(crate) table: Mutex<Table>,
    state: RwLock<State>,
    open: AtomicBool,
    ended: AtomicBool,
    peers: Mutex<HashMap<EngineKey, Arc<Peer>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The transfers under way.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) transfers: HashMap<TransferId, Arc<Transfer>>,
    /// The keeper sleeps without a timer.
    pub(crate) idle: bool,
}

enum State {
    New,
    Open(Arc<Joined>),
    Closed,
}

/// What the backend has while it is part of an engine.
pub(crate) struct Joined {
    pub(crate) context: BackendContext,
    pub(crate) incarnation: Key,
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) board: Board,
}

/// Keeps the backend from shutting down.
pub(crate) struct Gate<'a> {
    _state: RwLockReadGuard<'a, State>,
    pub(crate) joined: Arc<Joined>,
}

impl Inner {
    pub(crate) fn new(config: XgmiConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            outer: OnceLock::new(),
            exports: Exports::default(),
            landings: Arc::default(),
            table: Mutex::default(),
            state: RwLock::new(State::New),
            open: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            peers: Mutex::default(),
            thread: Mutex::default(),
        })
    }

    /// Whether it is attached and not shut down.
    pub(crate) fn is_open(&self) -> bool {
        // Acquire pairs with the release in `shutdown`: whoever sees the end sees what came before it.
        self.open.load(Ordering::Acquire)
    }

    /// Whether it was shut down, and the keeper has only to wait for what is left.
    pub(crate) fn has_ended(&self) -> bool {
        // Relaxed: the kick that follows the store goes through a lock.
        self.ended.load(Ordering::Relaxed)
    }

    /// Enters the backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadState`] before attaching and after the shutdown.
    pub(crate) fn enter(&self) -> Result<Gate<'_>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let joined = match &*state {
            State::Open(joined) => Arc::clone(joined),
            State::New => return Err(bad_state("is not attached to an engine yet")),
            State::Closed => return Err(bad_state("is shut down")),
        };
        Ok(Gate { _state: state, joined })
    }

    /// Joins an engine.
    pub(crate) fn attach(self: &Arc<Self>, context: BackendContext) -> Result<TransportBlob> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::New => {}
            State::Open(_) => return Err(bad_state("is attached to an engine already")),
            State::Closed => return Err(bad_state("is shut down")),
        }
        let hip = Hip::load(self.config.library.as_deref())?;
        let limits =
            Limits { streams: self.config.streams_per_device, events: self.config.events_per_device };
        let devices = (0..)
            .zip(hip.devices())
            .map(|(id, bus_id)| Device::new(&hip, id, bus_id.clone(), limits))
            .collect();
        let incarnation = random_key()?;
        let board = Board::create(&self.config.lease_dir, &incarnation)?;
        let folder = board.folder().to_str().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "XgmiConfig::lease_dir must be UTF-8, for it is told to peers",
            )
        })?;
        let blob = EngineBlob { incarnation, process: std::process::id(), leases: folder.to_owned() }.pack();
        let keeper = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("mori-xgmi".to_owned())
            .spawn(move || crate::keeper::run(&keeper))
            .map_err(|error| Error::io(ErrorKind::ResourceExhausted, "cannot start a thread", &error))?;
        *lock(&self.thread) = Some(thread);
        tracing::info!(library = %hip.path().display(), devices = ?hip.devices(), "attached");
        lock(&HERE).get_or_insert_default().insert(incarnation, Arc::downgrade(self));
        *state = State::Open(Arc::new(Joined { context, incarnation, devices, board }));
        // Release pairs with the acquire in `is_open`.
        self.open.store(true, Ordering::Release);
        Ok(blob)
    }

    /// Makes a peer known, or known again.
    pub(crate) fn add_peer(&self, desc: &EngineDesc) -> Result<()> {
        let gate = self.enter()?;
        let blob = desc.blob(NAME).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("engine {} has no {NAME} transport", desc.key))
        })?;
        let blob = EngineBlob::unpack(blob)?;
        let here = lock(&HERE).get_or_insert_default().get(&blob.incarnation).cloned();
        let ours = &gate.joined.context.node_id;
        let elsewhere = (here.is_none() && desc.node_id != *ours).then(|| desc.node_id.clone());
        if let Some(known) = self.peer(&desc.key) {
            if known.instance == blob && known.elsewhere == elsewhere {
                return Ok(());
            }
        }
        let peer = Arc::new(Peer::new(desc.key.clone(), blob, elsewhere, here));
        let before = lock(&self.peers).insert(desc.key.clone(), peer);
        if let Some(before) = before {
            self.part(&before, &lost(&before.key).context("the peer was restarted"));
        }
        Ok(())
    }

    /// Forgets a peer.
    pub(crate) fn remove_peer(&self, key: &EngineKey) {
        let before = lock(&self.peers).remove(key);
        if let Some(before) = before {
            self.part(
                &before,
                &Error::new(ErrorKind::PeerLost, format!("engine {key} was removed from this one")),
            );
        }
    }

    /// Ends a peer and, when they are quiet, its transfers.
    fn part(&self, peer: &Arc<Peer>, why: &Error) {
        peer.leave();
        self.doom(why, |transfer| Arc::ptr_eq(&transfer.peer, peer));
    }

    fn doom(&self, why: &Error, which: impl Fn(&Transfer) -> bool) {
        for transfer in self.transfers().iter().filter(|transfer| which(transfer)) {
            transfer.doom(why.clone());
        }
        self.landings.kick();
    }

    /// The peer of this name.
    pub(crate) fn peer(&self, key: &EngineKey) -> Option<Arc<Peer>> {
        lock(&self.peers).get(key).cloned()
    }

    /// Every peer.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        lock(&self.peers).values().cloned().collect()
    }

    /// Every transfer under way.
    pub(crate) fn transfers(&self) -> Vec<Arc<Transfer>> {
        lock(&self.table).transfers.values().cloned().collect()
    }

    /// The transfer of this number, if it is under way.
    pub(crate) fn transfer(&self, id: TransferId) -> Option<Arc<Transfer>> {
        lock(&self.table).transfers.get(&id).cloned()
    }

    /// Puts a transfer into the table, and wakes the keeper if it sleeps without a timer.
    pub(crate) fn insert(&self, transfer: &Arc<Transfer>) {
        let was_idle = {
            let mut table = lock(&self.table);
            table.transfers.insert(transfer.id(), Arc::clone(transfer));
            std::mem::replace(&mut table.idle, false)
        };
        if was_idle {
            self.landings.kick();
        }
    }

    /// Looks at a transfer and removes it if it is over.
    pub(crate) fn look(&self, transfer: &Transfer, looker: Looker) -> bool {
        let over = transfer.look(looker);
        if over {
            let removed = lock(&self.table).transfers.remove(&transfer.id());
            drop(removed);
        }
        over
    }

    /// Looks at every transfer.
    pub(crate) fn sweep(&self, looker: Looker) {
        for transfer in self.transfers() {
            self.look(&transfer, looker);
        }
    }

    /// Ends everything.
    pub(crate) fn shutdown(&self) {
        let joined = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *state, State::Closed) {
                State::Open(joined) => joined,
                State::New | State::Closed => return,
            }
        };
        // Release pairs with the acquire in `is_open`.
        self.open.store(false, Ordering::Release);
        lock(&HERE).get_or_insert_default().remove(&joined.incarnation);
        let peers: Vec<Arc<Peer>> = std::mem::take(&mut *lock(&self.peers)).into_values().collect();
        peers.iter().for_each(|peer| peer.leave());
        self.doom(&bad_state("was shut down while the transfer was under way"), |_| true);
        let finished = self.drain();
        if !finished {
            for transfer in self.transfers() {
                tracing::error!(transfer = %transfer.id(), "the device does not finish a transfer's copies");
                transfer.give_up();
            }
        }
        self.exports.clear();
        self.ended.store(true, Ordering::Relaxed);
        self.landings.kick();
        let thread = lock(&self.thread).take();
        // A device that does not finish keeps the thread, which gives everything back when it does.
        // Nor does the thread wait for itself, if it was it that dropped the last handle.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| finished && other(thread)) {
            // A keeper that has panicked has nothing left to do either.
            let _ = thread.join();
        }
    }

    /// Waits for the end of every transfer, for at most the configured time. Returns whether none is left.
    fn drain(&self) -> bool {
        let clock = Clock::system();
        let deadline = clock.deadline(self.config.shutdown);
        let mut pause = Duration::from_micros(20);
        loop {
            self.sweep(Looker::Waiter);
            if lock(&self.table).transfers.is_empty() {
                return true;
            }
            if deadline.passed(clock.now()) {
                return false;
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

fn bad_state(what: &str) -> Error {
    Error::new(ErrorKind::BadState, format!("the {NAME} backend {what}"))
}
