//! What all handles of one fake share: the table of jobs, the peers, the regions, and the thread that advances jobs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mori_core::{
    Backend, BackendContext, BlockOn, Capabilities, Clock, Completer, EngineKey, Error, ErrorKind,
    NotificationQueue, Op, Origin, Piece, Region, RegionId, Result, Status, StatusCode, Tag, TransferId,
    TransferOptions, merge,
};

use super::fabric::{FakeFabric, Gate};
use super::job::{Copying, Halt, Job, PeerAt, Reach, Step, Work, lost};
use super::peers::{FakeSession, shut, unknown};
use super::{FakeConfig, locked};
use crate::mutants::Flaw;

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
    pub(super) context: Option<BackendContext>,
    pub(super) address: u64,
    pub(super) by_key: HashMap<u128, Region>,
    pub(super) keys: HashMap<RegionId, u128>,
    pub(super) peers: HashMap<EngineKey, PeerAt>,
    pub(super) lost_once: HashSet<EngineKey>,
    jobs: BTreeMap<TransferId, Job>,
    running: HashMap<TransferId, Running>,
    pub(super) gate: Gate,
    pub(super) serving: usize,
    epoch: u64,
    pub(super) worker: Option<thread::JoinHandle<()>>,
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
        self.polls.load(Ordering::Relaxed)
    }

    pub(super) fn polls_of(&self, transfer: TransferId) -> u64 {
        locked(&self.polls_of).get(&transfer).copied().unwrap_or_default()
    }

    pub(super) fn hooks(&self) -> u64 {
        self.hooks.load(Ordering::Relaxed)
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

    pub(super) fn submit(
        &self,
        session: &FakeSession,
        op: Op,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Status {
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
        while self.has(Flaw::SubmitBlocks) && status.code() == StatusCode::InProgress {
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
        completer: Completer,
    ) -> Result<(), (Completer, Error)> {
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
            // A scripted job that goes on waiting stays in the table, where the script finds it.
            match &mut state.jobs.get_mut(&transfer)?.work {
                Work::Script(None) => return None,
                Work::Script(Some((polls, _))) if *polls > 1 || !polled => {
                    *polls -= u64::from(polled);
                    return None;
                }
                _ => {}
            }
            let job = state.jobs.remove(&transfer)?;
            let engine = job.target().map(|target| target.engine.clone());
            state.running.insert(transfer, Running { halt: Arc::clone(&job.halt), engine });
            job
        };
        let step = self.advance(job);
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
                state.jobs.insert(transfer, *job);
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
    pub(super) fn work(&self) {
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
        self.polls.fetch_add(1, Ordering::Relaxed);
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
        self.hooks.fetch_add(1, Ordering::Relaxed);
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
    pub(super) fn halt(&self, choose: impl Fn(TransferId, Option<&EngineKey>) -> bool, error: &Error) {
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
