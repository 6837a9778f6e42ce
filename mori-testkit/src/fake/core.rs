//! What all handles of one fake share: the table of jobs, the peers, the regions, and the thread that advances jobs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mori_core::{
    Attachment, Backend, BackendContext, BlockOn, Capabilities, Clock, EngineDesc, EngineKey, Error,
    ErrorKind, MemoryDesc, NotificationQueue, Op, Origin, Piece, Region, RegionId, Result, Session, Status,
    Tag, TransferId, TransferOptions, TransportBlob, merge,
};

use super::fabric::{FakeFabric, Gate};
use super::job::{Copying, Halt, Job, PeerAt, Reach, Step, Work, lost};
use super::{FakeConfig, locked};
use crate::mutants::Flaw;

/// The version of the blobs' layout.
const BLOB: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    New,
    Attached,
    Shut,
}

/// A job that somebody is advancing right now.
struct Running {
    halt: Halt,
    engine: Option<EngineKey>,
}

pub(super) struct State {
    pub(super) phase: Phase,
    context: Option<BackendContext>,
    address: u64,
    pub(super) by_key: HashMap<u128, Region>,
    keys: HashMap<RegionId, u128>,
    peers: HashMap<EngineKey, PeerAt>,
    pub(super) lost_once: HashSet<EngineKey>,
    jobs: BTreeMap<TransferId, Job>,
    running: HashMap<TransferId, Running>,
    pub(super) gate: Gate,
    pub(super) serving: usize,
    epoch: u64,
    worker: Option<thread::JoinHandle<()>>,
}

pub(super) struct Core {
    pub(super) config: FakeConfig,
    pub(super) fabric: FakeFabric,
    me: Weak<dyn Backend>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    hook: Mutex<()>,
    polls: AtomicU64,
    polls_of: Mutex<HashMap<TransferId, u64>>,
    hooks: AtomicU64,
    asked: AtomicU64,
    shared_number: OnceLock<TransferId>,
}

impl Core {
    pub(super) fn new(me: Weak<dyn Backend>, fabric: FakeFabric, config: FakeConfig) -> Self {
        let state = State {
            phase: Phase::New,
            context: None,
            address: 0,
            by_key: HashMap::new(),
            keys: HashMap::new(),
            peers: HashMap::new(),
            lost_once: HashSet::new(),
            jobs: BTreeMap::new(),
            running: HashMap::new(),
            gate: Gate::Open,
            serving: 0,
            epoch: 0,
            worker: None,
        };
        Self {
            config,
            fabric,
            me,
            state: Mutex::new(state),
            changed: Condvar::new(),
            hook: Mutex::new(()),
            polls: AtomicU64::new(0),
            polls_of: Mutex::new(HashMap::new()),
            hooks: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            shared_number: OnceLock::new(),
        }
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.config.flaw == Some(flaw)
    }

    pub(super) fn has_notifier(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        self.config.notifier ^ (self.has(Flaw::ChangesItsNotifier) && asked > 8)
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::SeqCst)
    }

    pub(super) fn polls_of(&self, transfer: TransferId) -> u64 {
        locked(&self.polls_of).get(&transfer).copied().unwrap_or_default()
    }

    pub(super) fn hooks(&self) -> u64 {
        self.hooks.load(Ordering::SeqCst)
    }

    pub(super) fn in_progress(&self) -> usize {
        let state = locked(&self.state);
        state.jobs.len() + state.running.len()
    }

    /// How this node answers as a target, and as which incarnation.
    pub(super) fn answers(&self) -> (Gate, Option<[u8; 16]>) {
        let state = locked(&self.state);
        let attached = state.phase == Phase::Attached;
        (state.gate, state.context.as_ref().filter(|_| attached).map(|context| context.instance))
    }

    pub(super) fn engine(&self) -> Option<EngineKey> {
        locked(&self.state).context.as_ref().map(|context| context.engine.clone())
    }

    pub(super) fn inbox(&self) -> Option<NotificationQueue> {
        locked(&self.state).context.as_ref().map(|context| context.notifications.clone())
    }

    pub(super) fn set_gate(&self, gate: Gate) {
        self.change_gate(|_| gate);
    }

    pub(super) fn change_gate(&self, change: impl FnOnce(Gate) -> Gate) {
        {
            let mut state = locked(&self.state);
            state.gate = change(state.gate);
        }
        self.fabric.stir();
    }

    /// Has whoever sleeps here look again.
    pub(super) fn stir(&self) {
        self.touch(&mut locked(&self.state));
    }

    fn touch(&self, state: &mut State) {
        state.epoch += 1;
        self.changed.notify_all();
    }

    /// Sleeps until something has changed since `epoch`, or until a point in time.
    fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        epoch: u64,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        while state.epoch == epoch && state.phase != Phase::Shut {
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.saturating_duration_since(Clock::system().now()),
            };
            if left.is_zero() {
                break;
            }
            let slept = self.changed.wait_timeout(state, left);
            state = slept.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state
    }

    // Transfers.

    fn origin(&self, tag: Tag) -> Origin {
        let tag = if self.has(Flaw::LosesTags) { Tag::default() } else { tag };
        let mut origin = Origin::backend(&self.me, self.config.notifier, tag);
        if self.has(Flaw::SharesNumbers) {
            let first = *self.shared_number.get_or_init(|| origin.id);
            let state = locked(&self.state);
            if !state.jobs.contains_key(&first) && !state.running.contains_key(&first) {
                origin.id = first;
            }
        }
        origin
    }

    pub(super) fn start(&self, tag: Tag) -> Status {
        let (completer, status) = Status::pair(self.origin(tag));
        completer.submit();
        let job = Job {
            completer,
            pin: None,
            submitted: Clock::system().now(),
            halt: Halt::default(),
            work: Work::Script(None),
        };
        let mut state = locked(&self.state);
        state.jobs.insert(status.id(), job);
        self.touch(&mut state);
        drop(state);
        status
    }

    pub(super) fn complete(&self, transfer: TransferId, result: Result<()>) {
        let job = self.take_script(transfer);
        if let Some(job) = job {
            self.end(job, result);
            self.stir();
        }
    }

    fn take_script(&self, transfer: TransferId) -> Option<Job> {
        let mut state = locked(&self.state);
        match state.jobs.get(&transfer)?.work {
            Work::Script(_) => state.jobs.remove(&transfer),
            Work::Copy(_) => None,
        }
    }

    pub(super) fn ready(&self, transfer: TransferId, polls: u64, result: Result<()>) {
        if self.config.notifier && polls <= 1 {
            return self.complete(transfer, result);
        }
        let mut state = locked(&self.state);
        if let Some(Job { work: Work::Script(script), .. }) = state.jobs.get_mut(&transfer) {
            *script = Some((polls, result));
            self.touch(&mut state);
        }
    }

    fn submit(&self, session: &FakeSession, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let (completer, status) = Status::pair(self.origin(options.tag));
        let pieces = merge(pieces);
        if pieces.is_empty() && options.notify.is_none() {
            completer.submit();
            if self.has(Flaw::EmptyTransfersHang) {
                std::mem::forget(completer);
            } else {
                completer.succeed();
            }
            return status;
        }
        if let Err(error) = self.enter(session, op, pieces, options, completer) {
            // The completer of a refused transfer comes back with the reason.
            let (completer, error) = error;
            completer.fail(error);
        }
        while self.has(Flaw::SubmitBlocks) && status.code() == mori_core::StatusCode::InProgress {
            thread::park_timeout(Duration::from_millis(1));
        }
        status
    }

    fn enter(
        &self,
        session: &FakeSession,
        op: Op,
        pieces: Vec<Piece>,
        options: &TransferOptions,
        completer: mori_core::Completer,
    ) -> Result<(), (mori_core::Completer, Error)> {
        let capabilities = &self.config.capabilities;
        if options.deadline.is_some() && !capabilities.cancel {
            return Err((completer, Capabilities::unsupported(self.config.name, "deadlines of transfers")));
        }
        if options.notify.is_some() && !capabilities.notify {
            return Err((completer, Capabilities::unsupported(self.config.name, "notifications")));
        }
        let pin = match session.local.pin() {
            Ok(pin) => (!self.has(Flaw::TakesNoPins)).then_some(pin),
            Err(error) => return Err((completer, error)),
        };
        let mut state = locked(&self.state);
        let refused = match state.phase {
            Phase::Attached => None,
            Phase::Shut if self.has(Flaw::SubmitsAfterShutdown) => None,
            _ => Some(Error::new(
                ErrorKind::BadState,
                "the backend is not attached to an engine, or shut down",
            )),
        };
        let target = match (refused, state.peers.get(&session.engine)) {
            (Some(error), _) => return Err((completer, error)),
            (None, Some(peer)) => peer.clone(),
            (None, None) if self.has(Flaw::ForgetsRemovedPeers) || self.has(Flaw::AcceptsUnknownPeers) => {
                PeerAt { engine: session.engine.clone(), address: 0, instance: [0; 16] }
            }
            (None, None) => return Err((completer, unknown(&session.engine))),
        };
        if self.has(Flaw::NeverReconnects) && state.lost_once.contains(&session.engine) {
            return Err((completer, lost(&session.engine, "was lost once")));
        }
        if !self.has(Flaw::LeavesInit) {
            completer.submit();
        }
        let id = completer.id();
        let local = session.local.clone();
        let copying = Copying { op, pieces, local, target, key: session.key, options: options.clone() };
        let submitted = Clock::system().now();
        let job = Job { completer, pin, submitted, halt: Halt::default(), work: Work::Copy(copying) };
        state.jobs.insert(id, job);
        self.touch(&mut state);
        Ok(())
    }

    /// Takes a job out of the table, advances it, and puts it back if it waits. Nothing happens if somebody else is at it.
    fn drive(&self, transfer: TransferId, polled: bool) -> Option<Instant> {
        let job = {
            let mut state = locked(&self.state);
            let job = state.jobs.remove(&transfer)?;
            let engine = job.target().map(|target| target.engine.clone());
            state.running.insert(transfer, Running { halt: Arc::clone(&job.halt), engine });
            job
        };
        let step = self.advance(job, polled);
        let mut state = locked(&self.state);
        state.running.remove(&transfer);
        match step {
            Step::Ended => {
                self.touch(&mut state);
                None
            }
            Step::Waits(job, until) => {
                // What was asked for meanwhile is found at the next look, which is now.
                let halted = job.halt.get().is_some() || state.phase == Phase::Shut;
                state.jobs.insert(transfer, job);
                if halted {
                    self.touch(&mut state);
                    drop(state);
                    self.finish_halted(transfer);
                    return None;
                }
                until
            }
        }
    }

    /// Ends a job in the table whose halt is set, or whose backend is shut.
    fn finish_halted(&self, transfer: TransferId) {
        let job = locked(&self.state).jobs.remove(&transfer);
        if let Some(job) = job {
            let error = job.halt.get().cloned().unwrap_or_else(shut);
            self.end(job, Err(error));
            self.stir();
        }
    }

    /// The thread of a backend with a notifier: advances every job until none gets on, then sleeps.
    fn work(&self) {
        loop {
            let (ids, epoch) = {
                let state = locked(&self.state);
                if state.phase == Phase::Shut {
                    return;
                }
                (state.jobs.keys().copied().collect::<Vec<_>>(), state.epoch)
            };
            let mut until: Option<Instant> = None;
            for id in ids {
                if let Some(next) = self.drive(id, false) {
                    until = Some(until.map_or(next, |until| until.min(next)));
                }
                if self.has(Flaw::OnePeerDelaysAll) && locked(&self.state).jobs.contains_key(&id) {
                    break;
                }
            }
            let state = locked(&self.state);
            // Jobs that ended during the round have moved the epoch too; the next round then finds nothing new.
            drop(self.sleep(state, epoch, until));
        }
    }

    pub(super) fn poll(&self, transfer: TransferId) {
        self.polls.fetch_add(1, Ordering::SeqCst);
        *locked(&self.polls_of).entry(transfer).or_default() += 1;
        if self.has(Flaw::HookHoldsALock) {
            drop(locked(&self.hook));
        }
        if !self.config.notifier || self.has(Flaw::NotifierNeedsPolls) {
            self.drive(transfer, true);
        } else {
            self.count_script(transfer);
        }
        while self.has(Flaw::PollsBlock) && locked(&self.state).jobs.contains_key(&transfer) {
            thread::park_timeout(Duration::from_millis(1));
            self.drive(transfer, true);
        }
    }

    /// With a notifier, a poll only counts for a script that ends at a later poll.
    fn count_script(&self, transfer: TransferId) {
        let scripted =
            matches!(locked(&self.state).jobs.get(&transfer), Some(Job { work: Work::Script(Some(_)), .. }));
        if scripted {
            self.drive(transfer, true);
        }
    }

    /// Whether a poll of this transfer would get it on, and if not, until when that is so at the latest.
    fn would_wait(&self, transfer: TransferId) -> Option<Option<Instant>> {
        let (target, submitted, deadline) = {
            let state = locked(&self.state);
            if state.phase == Phase::Shut {
                return None;
            }
            match state.jobs.get(&transfer) {
                // Somebody is at it, and will say when that is over.
                None => return state.running.contains_key(&transfer).then_some(None),
                Some(job) if job.halt.get().is_some() => return None,
                Some(Job { work: Work::Script(script), .. }) => return script.is_none().then_some(None),
                Some(job) => (job.target().cloned()?, job.submitted, job.deadline()),
            }
        };
        if deadline.is_some_and(|deadline| Clock::system().now() >= deadline) {
            return None;
        }
        match self.reach(&target, submitted) {
            Reach::Ready(_) | Reach::Lost(_) => None,
            Reach::Later(until, _) => Some(match (until, deadline) {
                (Some(until), Some(deadline)) => Some(until.min(deadline)),
                (until, deadline) => until.or(deadline),
            }),
        }
    }

    pub(super) fn block_on(&self, transfer: TransferId) -> BlockOn {
        self.hooks.fetch_add(1, Ordering::SeqCst);
        if !self.config.hook {
            return BlockOn::Unsupported;
        }
        let _guard = self.has(Flaw::HookHoldsALock).then(|| locked(&self.hook));
        loop {
            let epoch = locked(&self.state).epoch;
            let Some(until) = self.would_wait(transfer) else {
                if self.has(Flaw::HookSleepsForGood) {
                    loop {
                        thread::park();
                    }
                }
                return BlockOn::Returned;
            };
            drop(self.sleep(locked(&self.state), epoch, until));
        }
    }

    pub(super) fn cancel(&self, transfer: TransferId) -> Result<()> {
        if !self.config.capabilities.cancel && !self.has(Flaw::CancelsUndeclared) {
            return Err(Capabilities::unsupported(self.config.name, "cancelling transfers"));
        }
        if self.has(Flaw::CancelIsDeclaredOnly) {
            return Err(Capabilities::unsupported(self.config.name, "cancelling transfers"));
        }
        if self.has(Flaw::CancelDoesNothing) {
            return Ok(());
        }
        let error =
            Error::new(ErrorKind::Cancelled, "cancelled on request; some of its bytes may have arrived");
        if self.has(Flaw::CancelledBytesLand) {
            if let Some(job) = locked(&self.state).jobs.get(&transfer) {
                job.completer.fail(error);
            }
            return Ok(());
        }
        if self.has(Flaw::CancelStopsOthers) {
            self.halt(|_, _| true, &error);
            return Ok(());
        }
        self.halt(|id, _| id == transfer, &error);
        Ok(())
    }

    /// Stops the jobs that `choose` picks: those in the table now, the others at their next look at the halt.
    fn halt(&self, choose: impl Fn(TransferId, Option<&EngineKey>) -> bool, error: &Error) {
        let ended: Vec<Job> = {
            let mut state = locked(&self.state);
            for (_, running) in
                state.running.iter().filter(|(id, running)| choose(**id, running.engine.as_ref()))
            {
                // Whoever came first keeps its reason.
                let _ = running.halt.set(error.clone());
            }
            let chosen: Vec<TransferId> = state
                .jobs
                .iter()
                .filter(|(id, job)| choose(**id, job.target().map(|target| &target.engine)))
                .map(|(id, _)| *id)
                .collect();
            chosen.iter().filter_map(|id| state.jobs.remove(id)).collect()
        };
        for job in ended {
            self.end(job, Err(error.clone()));
        }
        self.stir();
    }

    // Life and peers.

    pub(super) fn attach(me: &Arc<Self>, context: BackendContext) -> Result<Attachment> {
        let instance = context.instance;
        let address = me.fabric.number();
        {
            let mut state = locked(&me.state);
            if state.phase != Phase::New && !me.has(Flaw::AttachesTwice) {
                return Err(Error::new(ErrorKind::BadState, "the backend is attached already, or shut down"));
            }
            state.phase = Phase::Attached;
            state.context = Some(context);
            state.address = address;
            if me.config.notifier && !me.has(Flaw::NotifierNeedsPolls) {
                let worker = Arc::clone(me);
                let thread = thread::Builder::new().name("fake-worker".into()).spawn(move || worker.work());
                state.worker = Some(thread.map_err(|error| {
                    Error::io(ErrorKind::ResourceExhausted, "cannot start the fake's thread", &error)
                })?);
            }
        }
        me.fabric.enter(address, me);
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend_from_slice(&instance);
        Ok(Attachment { host: None, port: None, blob: Some(me.blob(bytes)) })
    }

    fn blob(&self, bytes: Vec<u8>) -> TransportBlob {
        TransportBlob { transport: self.config.name.to_owned(), version: BLOB, bytes }
    }

    fn open<const N: usize>(&self, blob: Option<&TransportBlob>, of: &str) -> Result<[u8; N]> {
        let name = self.config.name;
        let blob = blob.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{of} has no {name} transport; nothing leads there"))
        })?;
        if self.has(Flaw::PanicsOnGarbage) && blob.bytes.len() < N {
            return Ok(std::array::from_fn(|index| blob.bytes[index]));
        }
        let bytes = <[u8; N]>::try_from(blob.bytes.as_slice());
        match bytes {
            _ if self.has(Flaw::AcceptsGarbage) => Ok(bytes.unwrap_or([0; N])),
            Ok(bytes) if blob.version == BLOB => Ok(bytes),
            _ => Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "the {name} blob of {of} has version {} and {} bytes; expected version {BLOB} and {N} bytes",
                    blob.version,
                    blob.bytes.len()
                ),
            )),
        }
    }

    pub(super) fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        if !region.location().is_host() {
            return Ok(None);
        }
        let number = self.fabric.number();
        let key = (u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64) | u128::from(!number);
        let mut state = locked(&self.state);
        if state.phase != Phase::Attached {
            return Err(shut());
        }
        let key = *state.keys.entry(region.id()).or_insert(key);
        state.by_key.insert(key, region.clone());
        Ok(Some(self.blob(key.to_le_bytes().to_vec())))
    }

    pub(super) fn deregister(&self, region: RegionId) {
        let mut state = locked(&self.state);
        if self.has(Flaw::KeepsStaleKeys) {
            return;
        }
        if let Some(key) = state.keys.remove(&region) {
            state.by_key.remove(&key);
        }
    }

    pub(super) fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let bytes: [u8; 24] = self.open(peer.blob(self.config.name), peer.key.as_str())?;
        let (address, instance) = bytes.split_at(8);
        let address = u64::from_le_bytes(address.try_into().unwrap_or_default());
        let mut at = PeerAt { engine: peer.key.clone(), address, instance: [0; 16] };
        at.instance.copy_from_slice(instance);
        let replaced = {
            let mut state = locked(&self.state);
            if state.phase != Phase::Attached {
                return Err(shut());
            }
            let known = state.peers.get(&peer.key);
            let replaced = known.is_some_and(|known| known.instance != at.instance);
            if replaced && self.has(Flaw::MissesRestarts) {
                return Ok(());
            }
            state.peers.insert(peer.key.clone(), at);
            replaced
        };
        if replaced {
            self.halt(|_, engine| engine == Some(&peer.key), &lost(&peer.key, "was started anew"));
        }
        Ok(())
    }

    pub(super) fn remove_peer(&self, peer: &EngineKey) {
        locked(&self.state).peers.remove(peer);
        if !self.has(Flaw::ForgetsRemovedPeers) {
            self.halt(|_, engine| engine == Some(peer), &lost(peer, "was removed"));
        }
    }

    pub(super) fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<u128> {
        if !local.location().is_host() {
            return Err(Capabilities::unsupported(self.config.name, "device memory"));
        }
        let key: [u8; 16] = self.open(remote.blob(self.config.name), "the region")?;
        let state = locked(&self.state);
        if state.phase != Phase::Attached {
            return Err(shut());
        }
        if !state.peers.contains_key(&remote.engine_key) && !self.has(Flaw::AcceptsUnknownPeers) {
            return Err(unknown(&remote.engine_key));
        }
        Ok(u128::from_le_bytes(key))
    }

    pub(super) fn session(me: &Arc<Self>, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        let mut key = me.route(local, remote)?;
        if me.has(Flaw::MixesUpRegions) {
            let node = {
                let state = locked(&me.state);
                state.peers.get(&remote.engine_key).map(|peer| peer.address)
            };
            if let Some(node) = node.and_then(|address| me.fabric.node(address)) {
                key = locked(&node.state).by_key.keys().min().copied().unwrap_or(key);
            }
        }
        Ok(Arc::new(FakeSession {
            core: Arc::clone(me),
            local: local.clone(),
            engine: remote.engine_key.clone(),
            key,
        }))
    }

    pub(super) fn shutdown(&self) {
        if self.has(Flaw::ShutdownHangs) {
            loop {
                thread::park();
            }
        }
        let (jobs, worker, address) = {
            let mut state = locked(&self.state);
            state.phase = Phase::Shut;
            state.by_key.clear();
            state.keys.clear();
            for running in state.running.values() {
                // Whoever came first keeps its reason.
                let _ = running.halt.set(shut());
            }
            let jobs = std::mem::take(&mut state.jobs);
            self.touch(&mut state);
            (jobs, state.worker.take(), state.address)
        };
        self.fabric.leave(address);
        if self.has(Flaw::ShutdownForgets) {
            std::mem::forget(jobs);
        } else {
            for (_, job) in jobs {
                self.end(job, Err(shut()));
            }
        }
        if let Some(worker) = worker {
            // A worker that panicked has dropped its job, which ended it.
            let _ = worker.join();
        }
        let mut state = locked(&self.state);
        while !state.running.is_empty() || state.serving > 0 {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

fn unknown(engine: &EngineKey) -> Error {
    Error::new(ErrorKind::NotFound, format!("the engine {engine} is not known here; add it first"))
}

fn shut() -> Error {
    Error::new(ErrorKind::BadState, "the backend has shut down, or has not joined an engine yet")
}

/// A pair of regions with a way between them.
struct FakeSession {
    core: Arc<Core>,
    local: Region,
    engine: EngineKey,
    key: u128,
}

impl Session for FakeSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        self.core.submit(self, op, pieces, options)
    }

    fn alive(&self) -> bool {
        let peer = {
            let state = locked(&self.core.state);
            if state.phase != Phase::Attached {
                return false;
            }
            state.peers.get(&self.engine).cloned()
        };
        peer.is_some_and(|peer| !matches!(self.core.reach(&peer, Clock::system().now()), Reach::Lost(_)))
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        if self.core.has(Flaw::SessionsCancel) {
            let error = Error::new(ErrorKind::Cancelled, "the session was dropped");
            self.core.halt(|_, engine| engine == Some(&self.engine), &error);
        }
    }
}
