//! A backend for engines of one process: bytes are copied from region to region.
//!
//! It is the example of `docs/adding-a-backend.md`: complete, small, and without a device or a network in the way of
//! the contract. The numbers in brackets are the rules of the wait contract.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, Completer, EngineDesc, EngineKey, Error, ErrorKind,
    MemoryDesc, Notification, Notify, Op, Origin, Piece, Pin, Region, RegionId, Result, Session, Status,
    TransferId, TransferOptions, TransportBlob, merge,
};

// [names]
/// The name in descriptors and routes: the same on both sides.
const NAME: &str = "local";

/// The version of the blobs' layout. It changes only when an older reader would misunderstand.
const VERSION: u32 = 1;

/// Every incarnation of an engine has a number of its own; here that number is the address as well.
type Address = [u8; 16];

/// The "network": the nodes that have joined an engine and not shut down, by address.
static NODES: LazyLock<Mutex<HashMap<Address, Arc<Node>>>> = LazyLock::new(Mutex::default);
// [end]

// [state]
/// The handle that engines hold. Dropping it shuts the node down (S6).
pub(crate) struct Local {
    node: Arc<Node>,
}

/// What the handle, the sessions and the worker share.
struct Node {
    /// For statuses, which keep no backend alive (S6).
    me: Weak<dyn Backend>,
    state: Mutex<State>,
    /// Whoever waits for the state to change sleeps here: the worker for work, a shutdown for quiet.
    changed: Condvar,
    shut: AtomicBool,
    /// Set by tests: as a target, this node makes everybody wait.
    paused: AtomicBool,
}

#[derive(Default)]
struct State {
    context: Option<BackendContext>,
    regions: HashMap<u64, Region>,
    keys: HashMap<RegionId, u64>,
    peers: HashMap<EngineKey, Address>,
    queue: VecDeque<Job>,
    /// How many transfers use a region of this node as their target right now.
    serving: usize,
    worker: Option<JoinHandle<()>>,
}

/// A transfer that has not ended. Whoever takes it out of the queue ends it (S7).
struct Job {
    completer: Completer,
    /// Keeps the local region open as long as the job exists (E3).
    pin: Pin,
    op: Op,
    pieces: Vec<Piece>,
    peer: EngineKey,
    target: Arc<Node>,
    key: u64,
    notify: Option<Notify>,
}
// [end]

// [construct]
impl Local {
    /// A backend that has not joined an engine yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me: Weak<dyn Backend> = Weak::<Self>::clone(me);
            Self {
                node: Arc::new(Node {
                    me,
                    state: Mutex::default(),
                    changed: Condvar::new(),
                    shut: AtomicBool::new(false),
                    paused: AtomicBool::new(false),
                }),
            }
        })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.shutdown();
    }
}
// [end]

// [errors]
fn shut() -> Error {
    Error::new(ErrorKind::BadState, "the local backend has not joined an engine, or has shut down")
}

fn lost() -> Error {
    Error::new(
        ErrorKind::PeerLost,
        "the peer has shut down or was started anew; add its new descriptor and submit again",
    )
}

fn unknown(peer: &EngineKey) -> Error {
    Error::new(ErrorKind::NotFound, format!("the engine {peer} is not known here; add it as a peer first"))
}
// [end]

// [blobs]
fn blob(bytes: &[u8]) -> TransportBlob {
    TransportBlob { transport: NAME.to_owned(), version: VERSION, bytes: bytes.to_vec() }
}

/// Reads the blob of this transport out of a descriptor. The descriptor is a stranger's; nothing in it is trusted.
fn open<const N: usize>(blob: Option<&TransportBlob>) -> Result<[u8; N]> {
    let blob =
        blob.ok_or_else(|| Error::new(ErrorKind::NotFound, "the descriptor has no `local` transport"))?;
    match blob.bytes.as_slice().try_into() {
        Ok(bytes) if blob.version == VERSION => Ok(bytes),
        _ => Err(Error::new(
            ErrorKind::Malformed,
            format!(
                "a `local` blob of version {} with {} bytes; expected version {VERSION} with {N} bytes",
                blob.version,
                blob.bytes.len()
            ),
        )),
    }
}
// [end]

fn nodes() -> MutexGuard<'static, HashMap<Address, Arc<Node>>> {
    NODES.lock().unwrap_or_else(PoisonError::into_inner)
}

// [wake]
/// Has every worker look at its queue again, because a node has gone or serves again.
fn wake_everybody() {
    let all: Vec<Arc<Node>> = nodes().values().cloned().collect();
    for node in all {
        // Under the lock, so that the worker is either before its look or asleep, and misses nothing.
        let _state = node.lock();
        node.changed.notify_all();
    }
}

impl Local {
    /// For tests: as a target, this node makes everybody wait, or serves again.
    pub(crate) fn pause(&self, paused: bool) {
        self.node.paused.store(paused, Ordering::Relaxed);
        wake_everybody();
    }
}
// [end]

impl Node {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed)
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    // [submit]
    fn submit(&self, session: &LocalSession, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let (completer, status) = Status::pair(Origin::backend(&self.me, true, options.tag));
        if let Err((completer, error)) = self.enqueue(completer, session, op, pieces, options) {
            completer.fail(error);
        }
        status
    }

    /// Puts a job into the queue, or gives the writer's side back with the reason.
    fn enqueue(
        &self,
        completer: Completer,
        session: &LocalSession,
        op: Op,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Result<(), (Completer, Error)> {
        if options.deadline.is_some() {
            // Not among our capabilities, so it is refused and not ignored.
            return Err((completer, Capabilities::unsupported(NAME, "deadlines of transfers")));
        }
        let address = self.lock().peers.get(&session.peer).copied();
        let Some(address) = address else { return Err((completer, unknown(&session.peer))) };
        let Some(target) = nodes().get(&address).cloned() else { return Err((completer, lost())) };
        let pin = match session.local.pin() {
            Ok(pin) => pin,
            Err(error) => return Err((completer, error)),
        };
        let mut state = self.lock();
        if self.is_shut() {
            return Err((completer, shut()));
        }
        // It leaves *init* before anybody else can see the job, and so before `submit` returns.
        completer.submit();
        let (peer, key) = (session.peer.clone(), session.key);
        let (pieces, notify) = (merge(pieces), options.notify.clone());
        state.queue.push_back(Job { completer, pin, op, pieces, peer, target, key, notify });
        self.changed.notify_all();
        Ok(())
    }
    // [end]

    // [worker]
    /// The one thread of a node that has joined: completes transfers with nobody polling (W8).
    fn work(&self) {
        let mut buffer = vec![0; 64 << 10];
        while let Some(job) = self.next_job() {
            let result = self.carry(&job, &mut buffer);
            self.finish(job, result);
        }
    }

    /// The first job whose target answers, so that one peer does not delay another (E4). Without one, it sleeps.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        while !self.is_shut() {
            let answers = |job: &Job| job.target.is_shut() || !job.target.paused.load(Ordering::Relaxed);
            let ready = state.queue.iter().position(answers);
            match ready {
                Some(place) => return state.queue.remove(place),
                None => state = self.sleep(state),
            }
        }
        None
    }
    // [end]

    // [carry]
    /// Moves the bytes of a job, then tells the target. When it returns, no byte of the job moves any more.
    fn carry(&self, job: &Job, buffer: &mut [u8]) -> Result<()> {
        let served = job.target.serve(job)?;
        let local = job.pin.region();
        for piece in &job.pieces {
            let mut done = 0;
            while done < piece.length {
                // The shutdown of either side waits for one chunk, not for a whole transfer.
                if self.is_shut() {
                    return Err(shut());
                }
                if job.target.is_shut() {
                    return Err(lost());
                }
                let length = usize::try_from(piece.length - done).unwrap_or(usize::MAX).min(buffer.len());
                let chunk = buffer.get_mut(..length).unwrap_or_default();
                let (here, there) = (piece.local + done, piece.remote + done);
                match job.op {
                    Op::Read => {
                        served.region.read_at(there, chunk)?;
                        local.write_at(here, chunk)?;
                    }
                    Op::Write => {
                        local.read_at(here, chunk)?;
                        served.region.write_at(there, chunk)?;
                    }
                }
                done += length as u64;
            }
        }
        self.tell(job, None)
    }

    /// Puts the job's message into the target's queue: after the last byte, before the status, once.
    fn tell(&self, job: &Job, error: Option<&Error>) -> Result<()> {
        let Some(notify) = job.notify.as_ref().filter(|notify| error.is_none() || notify.on_failure) else {
            return Ok(());
        };
        let peer = self.lock().context.as_ref().map(|context| context.engine.clone()).ok_or_else(shut)?;
        let queue = job.target.lock().context.as_ref().map(|context| context.notifications.clone());
        queue.ok_or_else(lost)?.push(Notification {
            peer,
            transfer: job.completer.id().get(),
            tag: job.completer.tag(),
            message: notify.message.clone(),
            error: error.cloned(),
        })
    }
    // [end]

    // [serve]
    /// As the target: checks everything that the other side could have wrong, before a byte moves.
    fn serve(self: &Arc<Self>, job: &Job) -> Result<Served> {
        let region = {
            let mut state = self.lock();
            if self.is_shut() {
                return Err(lost());
            }
            let region = state.regions.get(&job.key).cloned().ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    "the peer has no such region (any more); ask it for a new descriptor",
                )
            })?;
            state.serving += 1;
            region
        };
        // From here on dropping `served` takes the count back, whatever else is found to be wrong.
        let mut served = Served { node: Arc::clone(self), region, pin: None };
        served.pin = Some(served.region.pin()?);
        let access = served.region.access();
        let granted = if job.op == Op::Read { access.remote_read } else { access.remote_write };
        if !granted {
            let words = format!("the peer's region does not grant a {:?} to others", job.op);
            return Err(Error::new(ErrorKind::AccessDenied, words));
        }
        for piece in &job.pieces {
            served.region.piece(piece.remote, piece.length)?;
        }
        Ok(served)
    }
    // [end]

    // [finish]
    /// Ends a job: the memory is given back first, the status comes last (E3).
    fn finish(&self, job: Job, result: Result<()>) {
        if let Err(error) = &result {
            // The transfer has failed already; that its message finds no room changes nothing.
            let _ = self.tell(&job, Some(error));
        }
        let Job { completer, pin, .. } = job;
        drop(pin);
        match result {
            Ok(()) => completer.succeed(),
            Err(error) => completer.fail(error),
        };
    }

    /// Ends the jobs in the queue that `choose` picks. The one that the worker is at ends by itself.
    fn drop_jobs(&self, choose: impl Fn(&Job) -> bool, error: &Error) {
        let chosen: Vec<Job> = {
            let mut state = self.lock();
            let (chosen, kept) = std::mem::take(&mut state.queue).into_iter().partition(choose);
            state.queue = kept;
            Vec::from(chosen)
        };
        chosen.into_iter().for_each(|job| self.finish(job, Err(error.clone())));
    }
    // [end]
}

// [served]
/// A region of a target in use. Closing the region waits for the pin, the target's shutdown for the count.
struct Served {
    node: Arc<Node>,
    region: Region,
    pin: Option<Pin>,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.pin.take());
        self.node.lock().serving -= 1;
        self.node.changed.notify_all();
    }
}
// [end]

// [session]
/// A pair of regions. It knows the peer by name, so that it goes on working when the peer was started anew.
struct LocalSession {
    node: Arc<Node>,
    local: Region,
    peer: EngineKey,
    key: u64,
}

impl Session for LocalSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        self.node.submit(self, op, pieces, options)
    }

    fn alive(&self) -> bool {
        let address = self.node.lock().peers.get(&self.peer).copied();
        !self.node.is_shut() && address.is_some_and(|address| nodes().contains_key(&address))
    }
}
// [end]

impl Backend for Local {
    // [describe]
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, notify: true, peer_loss: true, ..Capabilities::default() }
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {
        // The worker needs no help.
    }
    // [end]

    // [attach]
    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        let address = context.instance;
        let mut state = self.node.lock();
        if state.context.is_some() || self.node.is_shut() {
            let words = "the local backend has joined an engine already, or has shut down; make another one";
            return Err(Error::new(ErrorKind::BadState, words));
        }
        let worker = Arc::clone(&self.node);
        let thread = thread::Builder::new().name("mori-local".into()).spawn(move || worker.work());
        let thread = thread.map_err(|error| {
            Error::io(ErrorKind::ResourceExhausted, "cannot start the local backend's thread", &error)
        })?;
        state.worker = Some(thread);
        state.context = Some(context);
        drop(state);
        nodes().insert(address, Arc::clone(&self.node));
        Ok(Attachment { blob: Some(blob(&address)), ..Attachment::default() })
    }
    // [end]

    // [regions]
    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        if !region.location().is_host() {
            return Ok(None);
        }
        let mut state = self.node.lock();
        if state.context.is_none() || self.node.is_shut() {
            return Err(shut());
        }
        // A key that nobody guesses or hits by mistake. Against strangers it has 128 bits from the system's randomness.
        let key = || RandomState::new().build_hasher().finish();
        let key = *state.keys.entry(region.id()).or_insert_with(key);
        state.regions.insert(key, region.clone());
        Ok(Some(blob(&key.to_le_bytes())))
    }

    fn deregister(&self, region: RegionId) {
        let mut state = self.node.lock();
        if let Some(key) = state.keys.remove(&region) {
            state.regions.remove(&key);
        }
    }
    // [end]

    // [peers]
    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let address: Address = open(peer.blob(NAME))?;
        let before = {
            let mut state = self.node.lock();
            if state.context.is_none() || self.node.is_shut() {
                return Err(shut());
            }
            state.peers.insert(peer.key.clone(), address)
        };
        if before.is_some_and(|before| before != address) {
            // The same name in another incarnation: what was meant for the earlier one is lost (E4).
            self.node.drop_jobs(|job| job.peer == peer.key, &lost());
        }
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        self.node.lock().peers.remove(peer);
        self.node.drop_jobs(|job| job.peer == *peer, &lost());
    }
    // [end]

    // [route]
    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        if !local.location().is_host() {
            return Err(Capabilities::unsupported(NAME, "device memory"));
        }
        open::<8>(remote.blob(NAME))?;
        let state = self.node.lock();
        if state.context.is_none() || self.node.is_shut() {
            return Err(shut());
        }
        let known = state.peers.contains_key(&remote.engine_key);
        known.then_some(()).ok_or_else(|| unknown(&remote.engine_key))
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        self.route(local, remote)?;
        Ok(Arc::new(LocalSession {
            node: Arc::clone(&self.node),
            local: local.clone(),
            peer: remote.engine_key.clone(),
            key: u64::from_le_bytes(open(remote.blob(NAME))?),
        }))
    }
    // [end]

    // [shutdown]
    fn shutdown(&self) {
        let node = &self.node;
        let (address, worker) = {
            let mut state = node.lock();
            node.shut.store(true, Ordering::Relaxed);
            node.changed.notify_all();
            state.regions.clear();
            (state.context.as_ref().map(|context| context.instance), state.worker.take())
        };
        if let Some(address) = address {
            nodes().remove(&address);
        }
        // What others have in their queues for this node ends now, as lost.
        let others: Vec<Arc<Node>> = nodes().values().cloned().collect();
        others.iter().for_each(|other| other.drop_jobs(|job| Arc::ptr_eq(&job.target, node), &lost()));
        if let Some(worker) = worker {
            // A worker that panicked has dropped its job, which ended it (S5).
            let _ = worker.join();
        }
        node.drop_jobs(|_| true, &shut());
        let mut state = node.lock();
        while state.serving > 0 {
            state = node.sleep(state);
        }
    }
    // [end]
}
