//! What the backend, its sessions and its I/O threads share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use crate::sync::{Mutex, RwLock};
use mio::net::TcpStream;
use mori_core::{BackendContext, Clock, EngineKey, Error, ErrorKind, Notification, Result, TransferId};

use crate::config::TcpConfig;
use crate::handshake::Identity;
use crate::lane::Lane;
use crate::peer::Peer;
use crate::regions::Regions;
use crate::transfer::Transfer;
use crate::worker::{Command, WorkerHandle};

pub(crate) struct Shared {
    pub(crate) config: TcpConfig,
    pub(crate) clock: Clock,
    pub(crate) regions: Regions,
    pub(crate) peers: RwLock<HashMap<EngineKey, Arc<Peer>>>,
    context: OnceLock<BackendContext>,
    workers: OnceLock<Vec<Arc<WorkerHandle>>>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    next_worker: AtomicUsize,
    transfers: Mutex<Transfers>,
}

#[derive(Default)]
struct Transfers {
    in_progress: HashMap<TransferId, Weak<Transfer>>,
    shut_down: bool,
}

impl Shared {
    pub(crate) fn new(config: TcpConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            clock: Clock::system(),
            regions: Regions::default(),
            peers: RwLock::default(),
            context: OnceLock::new(),
            workers: OnceLock::new(),
            threads: Mutex::default(),
            next_worker: AtomicUsize::new(0),
            transfers: Mutex::default(),
        })
    }

    /// Joins an engine; once.
    pub(crate) fn attach(&self, context: BackendContext, workers: Vec<Arc<WorkerHandle>>) -> Result<()> {
        self.context.set(context).map_err(|_| {
            Error::new(ErrorKind::BadState, "the tcp backend is attached to an engine already")
        })?;
        let _ = self.workers.set(workers);
        Ok(())
    }

    pub(crate) fn context(&self) -> Result<&BackendContext> {
        self.context.get().ok_or_else(|| {
            Error::new(
                ErrorKind::BadState,
                "the tcp backend is not attached to an engine yet; attach it first",
            )
        })
    }

    /// Whether it has neither been attached nor shut down.
    pub(crate) fn check_fresh(&self) -> Result<()> {
        if self.transfers.lock().shut_down {
            return Err(shut_down());
        }
        if self.context.get().is_some() {
            return Err(attached());
        }
        Ok(())
    }

    /// Whether it is attached and not shut down.
    pub(crate) fn check_open(&self) -> Result<&BackendContext> {
        if self.transfers.lock().shut_down {
            return Err(shut_down());
        }
        self.context()
    }

    pub(crate) fn identity(&self) -> Result<Identity> {
        let context = self.context()?;
        Ok(Identity { key: context.engine.clone(), instance: context.instance })
    }

    pub(crate) fn notify(&self, notification: Notification) -> Result<()> {
        let queue = &self.context()?.notifications;
        // Readers are woken when the message is in the queue already.
        crate::guarded(|| queue.push(notification)).unwrap_or(Ok(()))
    }

    pub(crate) fn workers(&self) -> &[Arc<WorkerHandle>] {
        self.workers.get().map_or(&[], Vec::as_slice)
    }

    fn next_worker(&self) -> Result<&Arc<WorkerHandle>> {
        let workers = self.workers();
        let next = self.next_worker.fetch_add(1, Ordering::Relaxed);
        workers.get(next % workers.len().max(1)).ok_or_else(shut_down)
    }

    /// Starts making a connection; the lane takes requests at once.
    pub(crate) fn dial(&self, peer: &Arc<Peer>) -> Result<Arc<Lane>> {
        if self.transfers.lock().shut_down {
            return Err(shut_down());
        }
        let worker = Arc::clone(self.next_worker()?);
        let lane = Lane::new(worker.fresh_token(), worker, peer.key.clone());
        // The thread may have ended since the look above; the lane would then never open, nor close.
        let sent = lane.worker.send(Command::Dial { lane: Arc::clone(&lane), peer: Arc::clone(peer) });
        if sent { Ok(lane) } else { Err(shut_down()) }
    }

    /// Hands an accepted connection to one of the I/O threads.
    pub(crate) fn adopt(&self, socket: TcpStream) {
        if let Ok(worker) = self.next_worker() {
            worker.send(Command::Adopt(socket));
        }
    }

    /// Takes note of a transfer, so that it can be cancelled.
    pub(crate) fn remember(&self, transfer: &Arc<Transfer>) -> Result<()> {
        let mut transfers = self.transfers.lock();
        if transfers.shut_down {
            return Err(shut_down());
        }
        transfers.in_progress.insert(transfer.id, Arc::downgrade(transfer));
        Ok(())
    }

    pub(crate) fn forget(&self, transfer: TransferId) {
        self.transfers.lock().in_progress.remove(&transfer);
    }

    pub(crate) fn transfer(&self, id: TransferId) -> Option<Arc<Transfer>> {
        self.transfers.lock().in_progress.get(&id).and_then(Weak::upgrade)
    }

    /// Refuses new transfers, ends those in progress, and ends the I/O threads. Every call returns only after that, except one
    /// by an I/O thread itself, or by one that reads in its place, in an observer: it must not wait for the others, which may
    /// wait for it.
    pub(crate) fn shut_down(&self) {
        self.transfers.lock().shut_down = true;
        for worker in self.workers() {
            worker.send(Command::Shutdown);
        }
        let own = std::thread::current().id();
        if !crate::driven::is_driving()
            && !self.workers().iter().any(|worker| worker.thread.get() == Some(&own))
        {
            // The lock is held meanwhile, so that a second caller waits as well.
            let mut threads = self.threads.lock();
            for thread in threads.drain(..) {
                let _ = thread.join();
            }
        }
        self.regions.clear();
        self.peers.write().clear();
    }
}

fn attached() -> Error {
    Error::new(ErrorKind::BadState, "the tcp backend is attached to an engine already; make another one")
}

pub(crate) fn shut_down() -> Error {
    Error::new(ErrorKind::BadState, "the tcp backend is shut down, or not attached to an engine yet")
}
