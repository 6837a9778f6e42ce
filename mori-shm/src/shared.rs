//! What the backend, its sessions and its threads share.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use mori_core::{
    BackendContext, Clock, EngineKey, Error, ErrorKind, Notification, RegionId, Result, Tenant, TransferId,
};

use crate::config::ShmConfig;
use crate::control::Control;
use crate::handshake::Identity;
use crate::peer::Peer;
use crate::pool::Pool;
use crate::regions::Regions;
use crate::sync::{Mutex, RwLock};
use crate::transfer::Transfer;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ShmConfig,
    pub(crate) clock: Clock,
    pub(crate) regions: Regions,
    pub(crate) peers: RwLock<HashMap<EngineKey, Arc<Peer>>>,
    pub(crate) pool: Pool,
    pub(crate) control: Control,
    /// The connection, and its process, that may trace this one because we let it.
    pub(crate) tracer: Mutex<Option<(u64, i32)>>,
    joined: OnceLock<Joined>,
    /// Attached and not shut down.
    open: AtomicBool,
    shut_down: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    transfers: Mutex<HashMap<TransferId, Weak<Transfer>>>,
}

#[derive(Debug)]
struct Joined {
    context: BackendContext,
    boot: [u8; 16],
    process: u32,
}

thread_local! {
    /// Whose thread this is.
    static OWNER: Cell<usize> = const { Cell::new(0) };
}

impl Shared {
    pub(crate) fn new(config: ShmConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            clock: Clock::system(),
            regions: Regions::default(),
            peers: RwLock::default(),
            pool: Pool::default(),
            control: Control::default(),
            tracer: Mutex::default(),
            joined: OnceLock::new(),
            open: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            threads: Mutex::default(),
            transfers: Mutex::default(),
        })
    }

    /// Whether it has neither been attached nor shut down.
    pub(crate) fn check_fresh(&self) -> Result<()> {
        if self.shut_down.load(Ordering::Relaxed) {
            return Err(self.shut_down_error());
        }
        if self.joined.get().is_some() {
            return Err(attached());
        }
        Ok(())
    }

    /// Joins an engine; once.
    pub(crate) fn attach(&self, context: BackendContext, boot: [u8; 16]) -> Result<()> {
        let joined = Joined { context, boot, process: std::process::id() };
        self.joined.set(joined).map_err(|_| attached())?;
        self.open.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn joined(&self) -> Result<&Joined> {
        self.joined.get().ok_or_else(|| self.shut_down_error())
    }

    /// Whether it is attached, not shut down, and in the process that attached it.
    pub(crate) fn check_open(&self) -> Result<&BackendContext> {
        let joined = self.joined()?;
        if !self.open.load(Ordering::Relaxed) {
            return Err(self.shut_down_error());
        }
        if joined.process != std::process::id() {
            return Err(Error::new(
                ErrorKind::BadState,
                "this process was forked off the one that the shm backend was attached in; build an engine of its own",
            ));
        }
        Ok(&joined.context)
    }

    pub(crate) fn boot(&self) -> Result<[u8; 16]> {
        Ok(self.joined()?.boot)
    }

    pub(crate) fn identity(&self) -> Result<Identity> {
        let context = &self.joined()?.context;
        Ok(Identity { key: context.engine.clone(), instance: context.instance })
    }

    pub(crate) fn notify(&self, notification: Notification) -> Result<()> {
        let queue = &self.joined()?.context.notifications;
        // Readers are woken when the message is in the queue already.
        crate::guarded(|| queue.push(notification)).unwrap_or(Ok(()))
    }

    pub(crate) fn shut_down_error(&self) -> Error {
        Error::new(ErrorKind::BadState, "the shm backend is shut down, or not attached to an engine yet")
    }

    /// Starts a thread of ours.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            OWNER.set(Arc::as_ptr(&shared).addr());
            work(&shared);
        });
        let thread = thread.map_err(|error| {
            Error::io(ErrorKind::ResourceExhausted, "cannot start the shm backend's threads", &error)
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Takes note of a transfer, so that it can be stopped.
    pub(crate) fn remember(&self, transfer: &Arc<Transfer>) -> Result<()> {
        let mut transfers = self.transfers.lock();
        // Under the lock under which the shutdown looks for transfers, so that none slips in behind it.
        self.check_open()?;
        transfers.insert(transfer.id, Arc::downgrade(transfer));
        drop(transfers);
        if let Some(deadline) = transfer.deadline {
            self.control.deadline(deadline.at, transfer);
        }
        Ok(())
    }

    pub(crate) fn forget(&self, transfer: &Transfer) {
        self.transfers.lock().remove(&transfer.id);
        if let Some(deadline) = transfer.deadline {
            self.control.undo_deadline(deadline.at, transfer.id);
        }
    }

    pub(crate) fn transfer(&self, id: TransferId) -> Option<Arc<Transfer>> {
        self.transfers.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Refuses new transfers, ends those in progress, takes every region back and ends the threads. Every call returns only
    /// after that, except one by a thread of ours, in an observer: it must not wait for itself.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        let first = !self.shut_down.swap(true, Ordering::Relaxed);
        let own = OWNER.get() == Arc::as_ptr(self).addr();
        let mut ending = None;
        if first {
            let stopped: Vec<_> = {
                let transfers = self.transfers.lock();
                self.open.store(false, Ordering::Relaxed);
                transfers.values().filter_map(Weak::upgrade).collect()
            };
            let why = self.shut_down_error();
            stopped.iter().for_each(|transfer| transfer.stop(why.clone()));
            ending = Some(self.regions.end());
            for transfer in self.pool.close() {
                transfer.fail(why.clone());
                transfer.release();
            }
            let peers = std::mem::take(&mut *self.peers.write());
            peers.values().for_each(|peer| peer.retire(self, &why));
            self.control.shut_down();
        }
        if !own {
            // The lock is held meanwhile, so that a second caller waits as well.
            let mut threads = self.threads.lock();
            for thread in threads.drain(..) {
                let _ = thread.join();
            }
            if let Some(ending) = ending {
                ending.wait(self.config.drain, &self.clock);
            }
        }
    }
}

impl Tenant for Shared {
    fn evict(&self, region: RegionId) -> bool {
        self.regions.evict(region)
    }

    fn readmit(&self, region: RegionId) {
        if self.regions.readmit(region) {
            self.control.resumed();
        }
    }
}

fn attached() -> Error {
    Error::new(ErrorKind::BadState, "the shm backend is attached to an engine already; make another one")
}
