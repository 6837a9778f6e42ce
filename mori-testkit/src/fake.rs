//! The scripted fake: a backend without any device or network, for tests of waits and of engines.
//!
//! # What it is
//!
//! [`FakeBackend`] keeps the whole contract of [`Backend`]: it moves bytes between regions of one process, over a
//! [`FakeFabric`], and passes the conformance suite in all its forms: with and without a notifier
//! ([`FakeConfig::notifier`]), with and without a blocking hook ([`FakeConfig::hook`]), with and without each capability. It
//! counts what waits ask of it ([`FakeBackend::polls`], [`FakeBackend::hooks`]).
//!
//! Beside real transfers it starts *scripted* ones ([`FakeBackend::start`]), which carry no bytes and end exactly when and how a
//! test says: at once ([`FakeBackend::complete`]), or when somebody next polls or blocks ([`FakeBackend::ready`],
//! [`FakeBackend::ready_after`]).
//!
//! # Protocol
//!
//! 1. A transfer is a *job* in the table of its backend. Whoever advances it, the worker thread or a poll, takes
//!    it out of the table first, so that there is one at a time and nobody waits for it (W6).
//! 2. A job looks at its target through the network. Held: it goes back into the table. Lost: it ends. Else the target checks
//!    key, rights and ranges of every piece before a byte moves.
//! 3. Copying looks at the job's *halt* between chunks. Cancelling, losing the peer and shutting down set it, or end the
//!    job themselves if it is in the table; so a job ends after its last byte, and once.
//! 4. No lock is taken under another.
//!
//! The places where it can be told to go wrong ([`FakeConfig::flaw`]) are the mutants of the suite; see
//! [`Flaw`].

mod core;
mod fabric;
mod job;
mod peers;
mod target;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use mori_core::{
    Attachment, Backend, BackendContext, BlockOn, Capabilities, Clock, EngineDesc, EngineKey, MemoryDesc,
    Region, RegionId, Result, Session, Status, Tag, TransferId, TransportBlob,
};

pub use fabric::FakeFabric;

use self::core::Core;
use fabric::Gate;

use crate::mutants::Flaw;

/// Locks; a thread that panicked with the lock held leaves the data as it is, which is what tests of panics want.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What kind of backend a [`FakeBackend`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeConfig {
    /// Its name; two backends talk only if theirs is the same.
    pub name: &'static str,
    /// Whether it completes transfers on a thread of its own (W8). If not, polls complete them.
    pub notifier: bool,
    /// Whether it has a blocking hook (W10). Asked only without a notifier.
    pub hook: bool,
    /// What it can do.
    pub capabilities: Capabilities,
    /// How long a peer may be silent before it is lost (E4).
    pub silence: Duration,
    /// The one thing that it does wrong, if any.
    pub flaw: Option<Flaw>,
}

impl FakeConfig {
    /// Every capability but device memory.
    pub const CAPABILITIES: Capabilities =
        Capabilities { host_memory: true, device_memory: false, cancel: true, notify: true, peer_loss: true };

    /// A backend that completes transfers by itself.
    #[must_use]
    pub const fn notified() -> Self {
        Self {
            name: "fake",
            notifier: true,
            hook: false,
            capabilities: Self::CAPABILITIES,
            silence: Duration::from_millis(500),
            flaw: None,
        }
    }

    /// A backend that has to be polled, with a blocking hook or without.
    #[must_use]
    pub const fn polled(hook: bool) -> Self {
        Self { notifier: false, hook, ..Self::notified() }
    }

    /// The same backend with one thing wrong.
    #[must_use]
    pub const fn flawed(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

impl Default for FakeConfig {
    fn default() -> Self {
        Self::notified()
    }
}

/// A backend that does what a test says. The module's documentation tells how it works.
///
/// ```
/// use mori_core::{StatusCode, Tag};
/// use mori_testkit::{FakeConfig, FakeFabric};
/// let backend = FakeFabric::new().backend(FakeConfig::polled(false));
/// let status = backend.start(Tag(7));
/// backend.ready(status.id(), Ok(()));
/// assert_eq!(status.code(), StatusCode::InProgress);
/// assert_eq!(status.wait(std::time::Duration::ZERO), StatusCode::Success);
/// assert_eq!(backend.polls(), 1);
/// assert_eq!(backend.hooks(), 0);
/// ```
pub struct FakeBackend {
    core: Arc<Core>,
}

impl FakeBackend {
    fn on(fabric: &FakeFabric, config: FakeConfig) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me: Weak<dyn Backend> = Weak::<Self>::clone(me);
            Self { core: Arc::new(Core::new(me, fabric.clone(), config)) }
        })
    }

    /// Starts a transfer without bytes, which ends when and how the script says. Needs no peer and no engine.
    #[must_use]
    pub fn start(&self, tag: Tag) -> Status {
        self.core.start(tag)
    }

    /// Ends a scripted transfer on the calling thread, as a notifier's thread does. Unknown ones are ignored.
    pub fn complete(&self, transfer: TransferId, result: Result<()>) {
        self.core.complete(transfer, result);
    }

    /// Lets a scripted transfer be over: the next poll of it ends it, and the blocking hook returns.
    /// Unknown ones are ignored.
    pub fn ready(&self, transfer: TransferId, result: Result<()>) {
        self.ready_after(transfer, 1, result);
    }

    /// Lets the `polls`-th poll from now end a scripted transfer.
    pub fn ready_after(&self, transfer: TransferId, polls: u64, result: Result<()>) {
        self.core.ready(transfer, polls, result);
    }

    /// How often somebody has polled.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.core.polls()
    }

    /// How often somebody has polled this transfer.
    #[must_use]
    pub fn polls_of(&self, transfer: TransferId) -> u64 {
        self.core.polls_of(transfer)
    }

    /// How often somebody has called the blocking hook.
    #[must_use]
    pub fn hooks(&self) -> u64 {
        self.core.hooks()
    }

    /// How many transfers are in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.core.in_progress()
    }

    /// From now on transfers to this backend as a target get nowhere and do not end, until [`FakeBackend::release`].
    pub fn hold(&self) {
        self.core.set_gate(Gate::Held);
    }

    /// Ends [`FakeBackend::hold`]; a broken or silent link stays as it is.
    pub fn release(&self) {
        self.core.change_gate(|gate| if gate == Gate::Held { Gate::Open } else { gate });
    }

    /// Breaks the link to this backend as a target: its transfers are lost at once.
    pub fn cut(&self) {
        self.core.set_gate(Gate::Cut);
    }

    /// This backend as a target stops answering.
    pub fn silence(&self) {
        self.core.set_gate(Gate::Silent(Clock::system().now()));
    }

    /// Ends [`FakeBackend::cut`] and [`FakeBackend::silence`].
    pub fn heal(&self) {
        self.core.change_gate(|gate| if gate == Gate::Held { gate } else { Gate::Open });
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        self.core.config.name
    }

    fn capabilities(&self) -> Capabilities {
        self.core.config.capabilities
    }

    fn has_notifier(&self) -> bool {
        self.core.has_notifier()
    }

    fn poll_progress(&self, transfer: TransferId) {
        self.core.poll(transfer);
    }

    fn block_on(&self, transfer: TransferId) -> BlockOn {
        self.core.block_on(transfer)
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        self.core.cancel(transfer)
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        Core::attach(&self.core, context)
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        self.core.register(region)
    }

    fn deregister(&self, region: RegionId) {
        self.core.deregister(region);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.core.add_peer(peer)
    }

    fn remove_peer(&self, peer: &EngineKey) {
        self.core.remove_peer(peer);
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        self.core.route(local, remote).map(drop)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Core::session(&self.core, local, remote)
    }

    fn shutdown(&self) {
        self.core.shutdown();
    }
}

impl Drop for FakeBackend {
    fn drop(&mut self) {
        if !self.core.has(Flaw::DroppingForgets) {
            self.core.shutdown();
        }
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend")
            .field("config", &self.core.config)
            .field("in_progress", &self.in_progress())
            .finish_non_exhaustive()
    }
}
