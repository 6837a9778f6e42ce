//! What cases are made of: peers, areas of registered memory, and transfers whose every byte is compared.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, ErrorKind, MemoryDesc, NotificationQueue,
    Op, Piece, Region, Repoll, Session, Status, StatusCode, TransferOptions, WaitPolicy,
};

use crate::check::{CaseResult, Doing, Problem, ensure};
use crate::harness::{Abilities, Bounds, Harness, Node};

/// Numbers that no two engines of a process share: names and instances are made of them.
static SERIAL: AtomicU64 = AtomicU64::new(1);

fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// How the suite itself waits: a backend without a notifier is polled often, so that no case waits for a deadline.
pub(crate) const PATIENT: WaitPolicy =
    WaitPolicy { repoll: Repoll::BACKOFF, busy_window: Duration::ZERO, clock: Clock::system() };

/// Where one case takes its nodes and its bounds from.
pub struct Bench {
    harness: Arc<dyn Harness>,
    case: &'static str,
    /// How long things may take.
    pub(crate) bounds: Bounds,
}

impl Bench {
    pub(super) fn new(harness: Arc<dyn Harness>, case: &'static str) -> Self {
        let bounds = harness.bounds();
        Self { harness, case, bounds }
    }

    /// What the harness can do to its nodes.
    pub(crate) fn abilities(&self) -> Abilities {
        self.harness.abilities()
    }

    /// A node that has not joined an engine.
    pub(crate) fn node(&self) -> CaseResult<Arc<dyn Node>> {
        self.harness.node().map(Arc::from).doing("making a node")
    }

    /// A name that no other engine has.
    pub(crate) fn key(&self, role: &str) -> EngineKey {
        EngineKey::new(format!("{}-{role}-{}", self.case, serial()))
    }

    /// A node that has joined an engine of a fresh name.
    pub(crate) fn peer(&self, role: &str) -> CaseResult<Peer> {
        Peer::start(self.node()?, self.key(role), 64)
    }

    /// Two peers that know each other.
    pub(crate) fn pair(&self) -> CaseResult<(Peer, Peer)> {
        let (a, b) = (self.peer("a")?, self.peer("b")?);
        a.meet(&b)?;
        b.meet(&a)?;
        Ok((a, b))
    }

    /// Two peers that know each other, an area of `length` bytes at each, and a session from the first to the second.
    pub(crate) fn link(&self, length: usize) -> CaseResult<Link> {
        let (a, b) = self.pair()?;
        let (local, remote) = (a.area(length)?, b.area(length)?);
        let session = a.session(&local, &remote)?;
        Ok(Link { session, local, remote, a, b })
    }

    /// Two links from one peer to two others, with areas of `length` bytes.
    pub(crate) fn fork(&self, length: usize) -> CaseResult<Fork> {
        let link = self.link(length)?;
        let c = self.peer("c")?;
        link.a.meet(&c)?;
        c.meet(&link.a)?;
        let (local, remote) = (link.a.area(length)?, c.area(length)?);
        let session = link.a.session(&local, &remote)?;
        Ok(Fork { session, local, remote, c, link })
    }

    /// Waits for the end of a transfer that nothing is in the way of.
    pub(crate) fn finish(&self, status: &Status) -> CaseResult<StatusCode> {
        let code = status.wait_with(self.bounds.transfer, &PATIENT);
        ensure!(
            code.is_terminal(),
            "transfer {} is {code} after {:?}, with nothing in its way",
            status.id(),
            self.bounds.transfer
        );
        Ok(code)
    }

    /// Waits for the end of a transfer and wants a success.
    pub(crate) fn succeed(&self, status: &Status) -> CaseResult {
        let code = self.finish(status)?;
        ensure!(code.is_success(), "transfer {} failed: {code}: {}", status.id(), status.message());
        Ok(())
    }

    /// Waits for the end of a transfer and wants a failure of one of these kinds, with words.
    pub(crate) fn fail(&self, status: &Status, kinds: &[ErrorKind]) -> CaseResult {
        let code = self.finish(status)?;
        failed_as(status, code, kinds)
    }

    /// Waits until `done`, for at most `bound`.
    pub(crate) fn until(&self, bound: Duration, what: &str, mut done: impl FnMut() -> bool) -> CaseResult {
        let watch = Stopwatch::start();
        while !done() {
            ensure!(watch.elapsed() < bound, "{what}: not after {bound:?}");
            pause();
        }
        Ok(())
    }

    /// Runs a call on a thread of its own.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> CaseResult<Running<T>> {
        Running::start(what, self.case, call)
    }

    /// Runs a call that must return within `bound`, and gives what it returns.
    pub(crate) fn within<T: Send + 'static>(
        &self,
        bound: Duration,
        what: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> CaseResult<T> {
        self.spawn(what, call)?.join(bound)
    }

    /// Runs a call that must not block, and gives what it returns.
    pub(crate) fn prompt<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> CaseResult<T> {
        self.within(self.bounds.prompt, what, call)
    }

    /// Looks for the whole of [`Bounds::settle`] that `holds` goes on to hold.
    pub(crate) fn settled(&self, mut holds: impl FnMut() -> CaseResult) -> CaseResult {
        let watch = Stopwatch::start();
        loop {
            holds()?;
            if watch.elapsed() >= self.bounds.settle {
                return Ok(());
            }
            pause();
        }
    }
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench")
            .field("case", &self.case)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

/// Lets other threads run for a moment.
pub(crate) fn pause() {
    thread::park_timeout(Duration::from_micros(500));
}

/// Wants `code` to be a failure of one of these kinds, that code and error agree (S3), and that there are words.
pub(crate) fn failed_as(status: &Status, code: StatusCode, kinds: &[ErrorKind]) -> CaseResult {
    let StatusCode::Failure(kind) = code else {
        return Err(Problem::new(format!("transfer {} is {code}, not one of {kinds:?}", status.id())));
    };
    let Some(error) = status.error() else {
        return Err(Problem::new(format!("transfer {} is {code} without an error", status.id())));
    };
    ensure!(error.kind() == kind, "the code says {kind:?}, the error {error:?}");
    ensure!(!error.message().is_empty(), "the failure {kind:?} has no words");
    ensure!(kinds.contains(&kind), "transfer {} failed as {error}; expected one of {kinds:?}", status.id());
    Ok(())
}

/// A call on a thread of its own. Dropping it leaves the thread behind, so that a case never hangs on it.
pub(crate) struct Running<T> {
    what: &'static str,
    thread: thread::JoinHandle<()>,
    receiver: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Running<T> {
    /// Starts the call on a thread of this name.
    pub(super) fn start(
        what: &'static str,
        name: &str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> CaseResult<Self> {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // The receiver is gone only when the call has been given up.
                let _ = sender.send(call());
            })
            .map_err(|error| Problem::new(format!("no thread for {what}: {error}")))?;
        Ok(Self { what, thread, receiver })
    }

    /// Whether the call goes on.
    pub(crate) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// What the call returns, if it does within `bound`.
    pub(crate) fn join(self, bound: Duration) -> CaseResult<T> {
        match self.receiver.recv_timeout(bound) {
            Ok(value) => Ok(value),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Problem::new(format!("{} hangs: it has not returned after {bound:?}", self.what)))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(super::panicked(self.thread.join()).context(self.what))
            }
        }
    }
}

/// Measures on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Clock::system().now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Clock::system().now().saturating_duration_since(self.0)
    }
}

/// A node that has joined an engine.
pub(crate) struct Peer {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) key: EngineKey,
    pub(crate) desc: EngineDesc,
    pub(crate) inbox: NotificationQueue,
    abandoned: bool,
}

impl Peer {
    /// Joins `node` to an engine of this name, in an incarnation of its own.
    pub(crate) fn start(node: Arc<dyn Node>, key: EngineKey, inbox: usize) -> CaseResult<Self> {
        let backend = node.backend();
        let inbox = NotificationQueue::new(inbox);
        let context = context(&key, &inbox);
        let attachment = backend.attach(context).doing("attaching")?;
        let desc = EngineDesc {
            key: key.clone(),
            node_id: "conformance".to_owned(),
            host: attachment.host.unwrap_or_default(),
            port: attachment.port.unwrap_or_default(),
            pid: std::process::id(),
            capabilities: backend.capabilities().into(),
            transports: attachment.blob.into_iter().collect(),
            ..EngineDesc::default()
        };
        let desc = node.publish(desc).doing("publishing the node")?;
        Ok(Self { node, backend, key, desc, inbox, abandoned: false })
    }

    /// Drops the node and the backend without a shutdown.
    pub(crate) fn abandon(mut self) {
        self.abandoned = true;
    }

    /// Makes `other` known to this peer.
    pub(crate) fn meet(&self, other: &Self) -> CaseResult {
        self.backend.add_peer(&other.desc).doing(format!("making {} known to {}", other.key, self.key))
    }

    /// Registered memory that peers may read and write.
    pub(crate) fn area(&self, length: usize) -> CaseResult<Area> {
        self.area_for(length, Access::READ_WRITE)
    }

    /// Registered memory with these rights.
    pub(crate) fn area_for(&self, length: usize, access: Access) -> CaseResult<Area> {
        let region = self.node.memory(length, access).doing("making memory")?;
        let mut desc = MemoryDesc::for_region(&self.key, &region);
        let blob = self.backend.register(&region).doing("registering memory")?;
        desc.transports.extend(blob);
        Ok(Area { region, desc })
    }

    /// Puts bytes that depend on `seed` and on the place into an area, and returns them.
    pub(crate) fn fill(&self, area: &Area, seed: u64) -> CaseResult<Vec<u8>> {
        let bytes = pattern(seed, area.region.len());
        self.node.store(&area.region, 0, &bytes).doing("filling memory")?;
        Ok(bytes)
    }

    /// All bytes of an area.
    pub(crate) fn bytes(&self, area: &Area) -> CaseResult<Vec<u8>> {
        let mut bytes = vec![0; area.region.len()];
        self.node.load(&area.region, 0, &mut bytes).doing("looking at memory")?;
        Ok(bytes)
    }

    /// Wants an area to hold exactly these bytes.
    pub(crate) fn holds(&self, area: &Area, expected: &[u8], what: &str) -> CaseResult {
        same(&self.bytes(area)?, expected).doing(what)
    }

    pub(crate) fn session(&self, local: &Area, remote: &Area) -> CaseResult<Arc<dyn Session>> {
        self.session_to(local, &remote.desc)
    }

    pub(crate) fn session_to(&self, local: &Area, remote: &MemoryDesc) -> CaseResult<Arc<dyn Session>> {
        self.backend.session(&local.region, remote).doing("opening a session")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.node.release();
        self.node.heal();
        if !self.abandoned {
            self.backend.shutdown();
        }
    }
}

/// What an engine tells a backend, with an instance that no other has.
pub(crate) fn context(key: &EngineKey, inbox: &NotificationQueue) -> BackendContext {
    let mut instance = [0x5a; 16];
    instance[..8].copy_from_slice(&serial().to_le_bytes());
    BackendContext {
        engine: key.clone(),
        instance,
        node_id: "conformance".to_owned(),
        notifications: inbox.clone(),
    }
}

/// Registered memory and what peers know of it.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) region: Region,
    pub(crate) desc: MemoryDesc,
}

/// Two peers and a session between an area at each. The session goes first when it is dropped, then the peers.
pub(crate) struct Link {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) local: Area,
    pub(crate) remote: Area,
    pub(crate) a: Peer,
    pub(crate) b: Peer,
}

impl Link {
    pub(crate) fn submit(&self, op: Op, pieces: &[Piece]) -> Status {
        self.session.submit(op, pieces, &TransferOptions::default())
    }

    /// A transfer of the whole area.
    pub(crate) fn whole(&self, op: Op) -> Status {
        self.submit(op, &[Piece::new(0, 0, self.local.region.len() as u64)])
    }

    /// Runs one transfer between freshly filled areas and compares every byte of both with what it must be: the pieces
    /// at the destination, and everything else as it was.
    pub(crate) fn check(&self, bench: &Bench, op: Op, pieces: &[Piece]) -> CaseResult {
        let seed = serial();
        let mut local = self.a.fill(&self.local, seed)?;
        let mut remote = self.b.fill(&self.remote, !seed)?;
        let status = self.submit(op, pieces);
        bench.succeed(&status)?;
        apply(op, pieces, &mut local, &mut remote)?;
        self.a.holds(&self.local, &local, "at the submitter")?;
        self.b.holds(&self.remote, &remote, "at the target")
    }
}

/// Two links from one peer to two others. The one to `c` has its own fields; the one to `b` is `link`.
pub(crate) struct Fork {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) local: Area,
    pub(crate) remote: Area,
    pub(crate) c: Peer,
    pub(crate) link: Link,
}

impl Fork {
    /// A transfer of the whole area with `c`.
    pub(crate) fn whole(&self, op: Op) -> Status {
        self.session.submit(
            op,
            &[Piece::new(0, 0, self.local.region.len() as u64)],
            &TransferOptions::default(),
        )
    }
}

/// What a transfer must do to the bytes of both sides.
pub(crate) fn apply(op: Op, pieces: &[Piece], local: &mut [u8], remote: &mut [u8]) -> CaseResult {
    let outside = || Problem::new("the case itself asks for a piece outside of the area");
    let range = |offset: u64, length: u64| {
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let end = offset.checked_add(length).and_then(|end| usize::try_from(end).ok()).ok_or_else(outside)?;
        Ok::<_, Problem>(start..end)
    };
    for piece in pieces {
        let here = local.get_mut(range(piece.local, piece.length)?).ok_or_else(outside)?;
        let there = remote.get_mut(range(piece.remote, piece.length)?).ok_or_else(outside)?;
        match op {
            Op::Read => here.copy_from_slice(there),
            Op::Write => there.copy_from_slice(here),
        }
    }
    Ok(())
}

/// Wants two runs of bytes to be equal and names the first place where they are not.
pub(crate) fn same(found: &[u8], expected: &[u8]) -> CaseResult {
    if found == expected {
        return Ok(());
    }
    let differing =
        || found.iter().zip(expected).enumerate().filter(|(_, (found, expected))| found != expected);
    match differing().next() {
        Some((at, (found, expected))) => Err(Problem::new(format!(
            "{} bytes are wrong, the first at offset {at}: {found:#04x} instead of {expected:#04x}",
            differing().count()
        ))),
        None => Err(Problem::new(format!("{} bytes instead of {}", found.len(), expected.len()))),
    }
}

/// Bytes that depend on the seed and on the place, so that a byte at a wrong offset shows.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A small generator of repeatable numbers: a Weyl sequence through a mixing function.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(0);
            items.swap(last, other);
        }
    }
}
