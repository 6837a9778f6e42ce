//! A scripted backend, waiters on threads, and observers that count.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use mori_core::{
    Attachment, Backend, BackendContext, BlockOn, Capabilities, Completer, EngineDesc, EngineKey, Error,
    ErrorKind, ManualClock, MemoryDesc, Observe, Origin, Region, RegionId, Repoll, Result, Session, Status,
    StatusCode, Tag, TransferId, TransportBlob, WaitPolicy,
};

/// The bound that most tests wait with, on a hand-moved clock.
pub(crate) const BOUND: Duration = Duration::from_secs(10);
/// The smallest step of the clock.
pub(crate) const TICK: Duration = Duration::from_nanos(1);

pub(crate) const TRANSPORT: StatusCode = StatusCode::Failure(ErrorKind::Transport);
pub(crate) const PEER_LOST: StatusCode = StatusCode::Failure(ErrorKind::PeerLost);
pub(crate) const BAD_STATE: StatusCode = StatusCode::Failure(ErrorKind::BadState);

pub(crate) fn error(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, message)
}

/// A transport failure, as most tests use it.
pub(crate) fn broken() -> Error {
    error(ErrorKind::Transport, "the wire broke")
}

/// The default policy on a clock that is moved by hand.
pub(crate) fn on(clock: &ManualClock) -> WaitPolicy {
    WaitPolicy { clock: clock.clock(), ..WaitPolicy::DEFAULT }
}

/// A policy that re-polls after `first`, then after twice as long up to `most`, on a hand-moved clock.
pub(crate) fn repolling(clock: &ManualClock, first: Duration, most: Duration) -> WaitPolicy {
    WaitPolicy { repoll: Repoll::Backoff { first, most }, ..on(clock) }
}

/// What kind of backend the fake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Completes statuses by itself.
    Notifier,
    /// Has to be polled, and has no blocking hook.
    Polled,
    /// Has to be polled, and has a blocking hook, which waits until a transfer is [`Fake::ready`].
    Hooked,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Notifier, Kind::Polled, Kind::Hooked];

type Action = Box<dyn FnOnce(&Fake) + Send>;
/// What a backend does in its busy window; it is handed the question whether the wait is over.
type Window = Box<dyn FnOnce(&Fake, &dyn Fn() -> bool) + Send>;

#[derive(Default)]
struct Transfer {
    completer: Option<Completer>,
    /// What the next poll finds.
    ready: Option<Result<()>>,
    polls: usize,
    hooks: usize,
    cancels: usize,
    on_poll: HashMap<usize, Action>,
    lingers: usize,
    on_linger: Option<Window>,
}

#[derive(Default)]
struct State {
    transfers: HashMap<TransferId, Transfer>,
    /// How many threads are in the hook.
    blocked: usize,
    /// How many calls of the hook return at once without anything having happened.
    early: usize,
    /// Whether the hook stays blocked whatever happens.
    held: bool,
}

/// A backend that does what a test tells it and counts what it is asked.
pub(crate) struct Fake {
    me: Weak<Self>,
    kind: Kind,
    cancels: bool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Fake {
    pub(crate) fn new(kind: Kind) -> Arc<Self> {
        Self::build(kind, false)
    }

    /// Like [`Fake::new`], able to cancel.
    pub(crate) fn cancelling(kind: Kind) -> Arc<Self> {
        Self::build(kind, true)
    }

    fn build(kind: Kind, cancels: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            kind,
            cancels,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn transfer<T>(&self, status: &Status, use_it: impl FnOnce(&mut Transfer) -> T) -> T {
        use_it(self.state().transfers.get_mut(&status.id()).expect("a transfer of this backend"))
    }

    /// A transfer that was made but not submitted.
    pub(crate) fn create(&self, tag: u64) -> Status {
        let me: Weak<dyn Backend> = Weak::<Self>::clone(&self.me);
        let (completer, status) = Status::pair(Origin::backend(&me, self.kind == Kind::Notifier, Tag(tag)));
        let transfer = Transfer { completer: Some(completer), ..Transfer::default() };
        self.state().transfers.insert(status.id(), transfer);
        status
    }

    /// A transfer in progress.
    pub(crate) fn submit(&self) -> Status {
        self.submit_tagged(0)
    }

    pub(crate) fn submit_tagged(&self, tag: u64) -> Status {
        let status = self.create(tag);
        self.update(&status, |completer| assert!(completer.submit().applied()));
        status
    }

    pub(crate) fn submit_many(&self, count: usize) -> Vec<Status> {
        (0..count).map(|_| self.submit()).collect()
    }

    /// Uses the writer's side of a transfer, as the backend's own thread does, without ending it.
    pub(crate) fn update<T>(&self, status: &Status, use_it: impl FnOnce(&Completer) -> T) -> T {
        self.transfer(status, |transfer| use_it(transfer.completer.as_ref().expect("unfinished")))
    }

    /// Ends a transfer, as the backend's own thread does.
    pub(crate) fn finish(&self, status: &Status, result: Result<()>) {
        let completer = self.transfer(status, |transfer| transfer.completer.take()).expect("unfinished");
        end(completer, result);
        self.changed.notify_all();
    }

    pub(crate) fn succeed(&self, status: &Status) {
        self.finish(status, Ok(()));
    }

    /// The device is done with a transfer: the hook returns, and the next poll ends it.
    pub(crate) fn ready(&self, status: &Status, result: Result<()>) {
        self.transfer(status, |transfer| transfer.ready = Some(result));
        self.changed.notify_all();
    }

    /// Runs `action` in the `count`th poll of a transfer, before the poll looks for a result.
    pub(crate) fn on_poll(&self, status: &Status, count: usize, action: impl FnOnce(&Self) + Send + 'static) {
        self.transfer(status, |transfer| transfer.on_poll.insert(count, Box::new(action)));
    }

    /// Runs `action` in the busy window of the next wait.
    pub(crate) fn on_linger(
        &self,
        status: &Status,
        action: impl FnOnce(&Self, &dyn Fn() -> bool) + Send + 'static,
    ) {
        self.transfer(status, |transfer| transfer.on_linger = Some(Box::new(action)));
    }

    /// How many waits have given it a busy window.
    pub(crate) fn lingers(&self, status: &Status) -> usize {
        self.transfer(status, |transfer| transfer.lingers)
    }

    /// Makes the next `count` calls of the hook return at once.
    pub(crate) fn return_early(&self, count: usize) {
        self.state().early = count;
    }

    /// Keeps callers of the hook blocked whatever happens, or lets them go again.
    pub(crate) fn hold(&self, held: bool) {
        self.state().held = held;
        self.changed.notify_all();
    }

    pub(crate) fn polls(&self, status: &Status) -> usize {
        self.transfer(status, |transfer| transfer.polls)
    }

    pub(crate) fn hooks(&self, status: &Status) -> usize {
        self.transfer(status, |transfer| transfer.hooks)
    }

    pub(crate) fn cancels(&self, status: &Status) -> usize {
        self.transfer(status, |transfer| transfer.cancels)
    }

    /// How many threads are in the hook.
    pub(crate) fn blocked(&self) -> usize {
        self.state().blocked
    }

    fn await_state(&self, reached: impl Fn(&State) -> bool) {
        let mut state = self.state();
        while !reached(&state) {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Blocks until a transfer has been polled `count` times. Since a wait fixes its deadline before its first poll, moving
    /// the clock afterwards counts towards that deadline.
    pub(crate) fn await_polls(&self, status: &Status, count: usize) {
        self.await_state(|state| state.transfers[&status.id()].polls >= count);
    }

    /// Blocks until `count` threads are in the hook.
    pub(crate) fn await_blocked(&self, count: usize) {
        self.await_state(|state| state.blocked >= count);
    }
}

fn end(completer: Completer, result: Result<()>) {
    let update = match result {
        Ok(()) => completer.succeed(),
        Err(error) => completer.fail(error),
    };
    assert!(update.applied());
    drop(completer);
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { cancel: self.cancels, ..Capabilities::default() }
    }

    fn has_notifier(&self) -> bool {
        self.kind == Kind::Notifier
    }

    fn poll_progress(&self, id: TransferId) {
        let action = {
            let mut state = self.state();
            let Some(transfer) = state.transfers.get_mut(&id) else { return };
            transfer.polls += 1;
            transfer.on_poll.remove(&transfer.polls)
        };
        self.changed.notify_all();
        if let Some(action) = action {
            action(self);
        }
        let over = {
            let mut state = self.state();
            let Some(transfer) = state.transfers.get_mut(&id) else { return };
            match transfer.ready.take() {
                Some(result) => transfer.completer.take().map(|completer| (result, completer)),
                None => None,
            }
        };
        if let Some((result, completer)) = over {
            end(completer, result);
            self.changed.notify_all();
        }
    }

    fn block_on(&self, id: TransferId) -> BlockOn {
        let mut state = self.state();
        if let Some(transfer) = state.transfers.get_mut(&id) {
            transfer.hooks += 1;
        }
        if self.kind == Kind::Polled {
            return BlockOn::Unsupported;
        }
        if state.early > 0 {
            state.early -= 1;
            return BlockOn::Returned;
        }
        state.blocked += 1;
        self.changed.notify_all();
        let running = |transfer: &Transfer| transfer.ready.is_none() && transfer.completer.is_some();
        while state.held || state.transfers.get(&id).is_some_and(running) {
            state = self.changed.wait(state).unwrap();
        }
        state.blocked -= 1;
        BlockOn::Returned
    }

    fn linger(&self, id: TransferId, over: &dyn Fn() -> bool) {
        let action = {
            let mut state = self.state();
            let Some(transfer) = state.transfers.get_mut(&id) else { return };
            transfer.lingers += 1;
            transfer.on_linger.take()
        };
        if let Some(action) = action {
            action(self, over);
        }
    }

    fn cancel(&self, id: TransferId) -> Result<()> {
        if !self.cancels {
            return Err(Capabilities::unsupported(self.name(), "cancelling transfers"));
        }
        if let Some(transfer) = self.state().transfers.get_mut(&id) {
            transfer.cancels += 1;
        }
        Ok(())
    }

    fn attach(&self, _context: BackendContext) -> Result<Attachment> {
        Ok(Attachment::default())
    }

    fn register(&self, _region: &Region) -> Result<Option<TransportBlob>> {
        Ok(None)
    }

    fn deregister(&self, _region: RegionId) {}

    fn add_peer(&self, _peer: &EngineDesc) -> Result<()> {
        Ok(())
    }

    fn remove_peer(&self, _peer: &EngineKey) {}

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Err(error(ErrorKind::Unsupported, "the fake carries nothing"))
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        self.route(local, remote)?;
        Err(error(ErrorKind::Unsupported, "the fake carries nothing"))
    }

    /// Ends everything, as a backend must.
    fn shutdown(&self) {
        let completers: Vec<_> =
            self.state().transfers.values_mut().filter_map(|t| t.completer.take()).collect();
        self.changed.notify_all();
        for completer in completers {
            end(completer, Err(error(ErrorKind::BadState, "the backend is shut down")));
        }
    }
}

/// A wait on a thread of its own.
pub(crate) struct Waiter<'scope, T>(ScopedJoinHandle<'scope, T>);

impl<'scope, T: Send + 'scope> Waiter<'scope, T> {
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        wait: impl FnOnce() -> T + Send + 'scope,
    ) -> Self {
        Self(scope.spawn(wait))
    }

    /// Returns when waiters have gone to sleep `count` times on the clock, and this one has not ended.
    pub(crate) fn asleep(&self, clock: &ManualClock, count: u64) {
        while clock.sleeps() < count {
            assert!(!self.0.is_finished(), "the wait has ended after {} sleeps of {count}", clock.sleeps());
            std::thread::yield_now();
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// What the wait gave.
    pub(crate) fn end(self) -> T {
        match self.0.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Brings threads to the same point again and again, close enough together to race for what comes next.
pub(crate) struct Lockstep {
    threads: usize,
    arrived: AtomicUsize,
}

impl Lockstep {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    /// Returns when every thread has come to this round, counted from zero.
    pub(crate) fn meet(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        spin_until(|| self.arrived.load(Ordering::Acquire) >= self.threads * (round + 1));
    }
}

/// Looks again and again, giving the processor away now and then so that others get there.
pub(crate) fn spin_until(reached: impl Fn() -> bool) {
    let mut looks = 0_u32;
    while !reached() {
        looks += 1;
        if looks.is_multiple_of(200) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Counts what it is told, and keeps the last code.
#[derive(Default)]
pub(crate) struct Told {
    count: AtomicUsize,
    last: Mutex<Option<StatusCode>>,
}

impl Told {
    /// Subscribed to `status`.
    pub(crate) fn of(status: &Status) -> Arc<Self> {
        let told = Arc::new(Self::default());
        assert!(status.subscribe(Arc::<Self>::clone(&told)));
        told
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn last(&self) -> Option<StatusCode> {
        *self.last.lock().unwrap()
    }
}

impl Observe for Told {
    fn on_terminal(&self, code: StatusCode) {
        *self.last.lock().unwrap() = Some(code);
        self.count.fetch_add(1, Ordering::AcqRel);
    }
}
