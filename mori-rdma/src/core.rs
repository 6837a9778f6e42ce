//! What an attached backend, its sessions and its threads share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mori_core::{BackendContext, Clock, Deadline, EngineKey, Error, ErrorKind, Result};
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

use crate::config::{Completion, RdmaConfig};
use crate::control::{ConnectionId, LinkId, Server};
use crate::flow::Settings;
use crate::memory::Regions;
use crate::nic::Nic;
use crate::passive::Passive;
use crate::peer::Peer;
use crate::send_queue::MAX_QUEUE;
use crate::sync::{Condvar, Mutex, RwLock};
use crate::wire::Active;

/// Whose completions a queue's number stands for.
#[derive(Clone)]
pub(crate) enum Owner {
    Active(Arc<Peer>, Arc<Active>),
    Passive(Arc<Passive>),
}

/// The passive ends: those of a connection, and those of existing peers, whose connections end without a meaning.
#[derive(Default)]
pub(crate) struct Passives {
    pub(crate) by_connection: HashMap<ConnectionId, Vec<Arc<Passive>>>,
    pub(crate) of_existing: HashMap<EngineKey, Vec<Arc<Passive>>>,
}

pub(crate) struct Core {
    /// For what is called through it and has to hand itself on.
    pub(crate) own: Weak<Self>,
    pub(crate) config: RdmaConfig,
    pub(crate) clock: Clock,
    pub(crate) context: BackendContext,
    pub(crate) nics: Vec<Arc<Nic>>,
    pub(crate) regions: Regions,
    pub(crate) peers: RwLock<HashMap<EngineKey, Arc<Peer>>>,
    /// Peers that were removed or replaced, whose lanes may still be ending.
    former: Mutex<Vec<Weak<Peer>>>,
    pub(crate) links: Mutex<HashMap<LinkId, Weak<Peer>>>,
    pub(crate) owners: RwLock<HashMap<u32, Owner>>,
    pub(crate) passives: Mutex<Passives>,
    pub(crate) server: OnceLock<Server>,
    pub(crate) shut: AtomicBool,
    numbers: AtomicU32,
    bell: Bell,
    pub(crate) busy: AtomicUsize,
    errands: Mutex<usize>,
    no_errands: Condvar,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// Wakes the notifier: at a time, or now.
struct Bell {
    fd: OwnedFd,
    base: Instant,
    /// The time for which somebody wants to be looked at, in nanoseconds since `base`.
    earliest: AtomicU64,
    stop: AtomicBool,
}

impl Core {
    pub(crate) fn new(config: RdmaConfig, context: BackendContext, nics: Vec<Arc<Nic>>) -> Result<Arc<Self>> {
        let clock = Clock::system();
        let fd =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                Error::io(ErrorKind::ResourceExhausted, "cannot make an eventfd", &error.into())
            })?;
        let bell =
            Bell { fd, base: clock.now(), earliest: AtomicU64::new(u64::MAX), stop: AtomicBool::new(false) };
        Ok(Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            config,
            clock,
            context,
            nics,
            regions: Regions::default(),
            peers: RwLock::default(),
            former: Mutex::default(),
            links: Mutex::default(),
            owners: RwLock::default(),
            passives: Mutex::default(),
            server: OnceLock::new(),
            shut: AtomicBool::new(false),
            numbers: AtomicU32::new(1),
            bell,
            busy: AtomicUsize::new(0),
            errands: Mutex::new(0),
            no_errands: Condvar::new(),
            thread: Mutex::default(),
        }))
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            max_chain: self.config.max_chain,
            chain_bytes: u64::from(self.config.chunk_bytes),
            max_transfers: self.config.max_transfers,
            lanes_per_path: self.config.qps_per_path,
            admission_timeout: self.config.admission_timeout,
            cancel_grace: self.config.cancel_grace,
            peer_timeout: self.config.peer_timeout,
        }
    }

    pub(crate) fn slots(&self) -> u16 {
        u16::try_from(self.config.notify_slots).unwrap_or(u16::MAX)
    }

    pub(crate) fn polls(&self) -> bool {
        self.config.completion == Completion::Polling
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed)
    }

    pub(crate) fn server(&self) -> Result<&Server> {
        self.server.get().filter(|_| !self.is_shut()).ok_or_else(shut)
    }

    /// A number for a queue that no queue of now has.
    pub(crate) fn fresh_number(&self) -> u32 {
        loop {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed) & MAX_QUEUE;
            if number != 0 && !self.owners.read().contains_key(&number) {
                return number;
            }
        }
    }

    /// The owner of a queue, unless the queue is gone.
    pub(crate) fn owner(&self, number: u32) -> Option<Owner> {
        self.owners.read().get(&number).cloned()
    }

    pub(crate) fn forget_queue(&self, number: u32) {
        let owner = self.owners.write().remove(&number);
        // Without the lock: it may be the last handle of a queue pair.
        drop(owner);
    }

    /// Every peer, those included that are being left.
    pub(crate) fn all_peers(&self) -> Vec<Arc<Peer>> {
        let mut all: Vec<Arc<Peer>> = self.peers.read().values().cloned().collect();
        let mut former = self.former.lock();
        former.retain(|peer| peer.strong_count() > 0);
        all.extend(former.iter().filter_map(Weak::upgrade));
        all
    }

    /// Keeps a peer that was removed in sight until its lanes have ended.
    pub(crate) fn leave(&self, peer: &Arc<Peer>) {
        self.former.lock().push(Arc::downgrade(peer));
    }

    pub(crate) fn deadline(&self, bound: Duration) -> Deadline {
        self.clock.deadline(bound)
    }

    /// Has the notifier look at everybody's timers at that time.
    pub(crate) fn wake_by(&self, at: Option<Instant>) {
        let Some(at) = at else { return };
        let nanos = at.saturating_duration_since(self.bell.base).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        // AcqRel pairs with the swap in `due` and the load in `next_look`: a notifier that does not see this time has not gone to
        // sleep yet when the bell rings.
        if self.bell.earliest.fetch_min(nanos, Ordering::AcqRel) > nanos {
            self.ring();
        }
    }

    /// Wakes the notifier now.
    pub(crate) fn ring(&self) {
        // The counter is full only if it rings already.
        let _ = rustix::io::write(&self.bell.fd, &1_u64.to_ne_bytes());
    }

    pub(crate) fn bell_fd(&self) -> &OwnedFd {
        &self.bell.fd
    }

    /// Silences the bell.
    pub(crate) fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell.fd, &mut count);
    }

    /// When the notifier has to look at the timers; `None`: nobody wants it.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        // Acquire pairs with the AcqRel in `wake_by`.
        match self.bell.earliest.load(Ordering::Acquire) {
            u64::MAX => None,
            nanos => self.bell.base.checked_add(Duration::from_nanos(nanos)),
        }
    }

    /// Whether the time has come; the wish is taken back with that.
    pub(crate) fn due(&self, now: Instant) -> bool {
        let due = self.next_look().is_some_and(|at| at <= now);
        if due {
            // AcqRel pairs with `wake_by`: whoever wants something later than this finds no wish, and rings.
            self.bell.earliest.swap(u64::MAX, Ordering::AcqRel);
        }
        due
    }

    /// Ends the notifier.
    pub(crate) fn stop_notifier(&self) {
        self.bell.stop.store(true, Ordering::Relaxed);
        self.ring();
    }

    pub(crate) fn notifier_stops(&self) -> bool {
        self.bell.stop.load(Ordering::Relaxed)
    }

    /// Runs something that may block on a thread of its own.
    pub(crate) fn errand(self: &Arc<Self>, run: impl FnOnce(&Arc<Self>) + Send + 'static) -> Result<()> {
        *self.errands.lock() += 1;
        let core = Arc::clone(self);
        let started = std::thread::Builder::new().name("mori-rdma-errand".into()).spawn(move || {
            // A panic must not leave the count behind.
            let done = crate::guarded(|| run(&core));
            core.errand_done();
            done.unwrap_or(());
        });
        match started {
            Ok(_) => Ok(()),
            Err(error) => {
                self.errand_done();
                Err(Error::io(ErrorKind::ResourceExhausted, "cannot start a thread", &error))
            }
        }
    }

    fn errand_done(&self) {
        let mut errands = self.errands.lock();
        *errands -= 1;
        if *errands == 0 {
            self.no_errands.notify_all();
        }
    }

    /// Waits until no errand runs, or for `bound`.
    pub(crate) fn await_errands(&self, bound: Duration) {
        let until = self.clock.now() + bound;
        let mut errands = self.errands.lock();
        while *errands > 0 {
            if self.no_errands.wait_until(&mut errands, until).timed_out() {
                break;
            }
        }
    }

    pub(crate) fn peer(&self, key: &EngineKey) -> Result<Arc<Peer>> {
        self.peers.read().get(key).cloned().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("engine {key} is not known here; add it as a peer first"))
        })
    }
}

pub(crate) fn shut() -> Error {
    Error::new(ErrorKind::BadState, "the rdma backend is shut down, or not attached to an engine yet")
}
