//! The contract between the engine and a transport: [`Backend`] and [`Session`].

use std::fmt;
use std::sync::Arc;

use crate::desc::{EngineDesc, MemoryDesc, TransportBlob};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EngineKey, RegionId, TransferId};
use crate::memory::Region;
use crate::notify::{Message, NotificationQueue};
use crate::status::Status;
use crate::transfer::{Op, Piece, TransferOptions};

/// What a backend can do beside carrying reads and writes between two regions of host memory.
///
/// A declared capability works; an undeclared one answers [`ErrorKind::Unsupported`]. The conformance suite tests both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Carries host memory.
    pub host_memory: bool,
    /// Carries device memory.
    pub device_memory: bool,
    /// A transfer in progress can be cancelled, and its own deadline is kept (contract E1, E2).
    pub cancel: bool,
    /// Transfers may carry a message for their target.
    pub notify: bool,
    /// A silent or dead peer is noticed and its transfers fail as *peer lost* (contract E4).
    pub peer_loss: bool,
}

impl Capabilities {
    /// The error for something that is not among the capabilities.
    #[must_use]
    pub fn unsupported(backend: &str, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("the {backend} backend does not support {what}"))
    }
}

/// What the blocking hook did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOn {
    /// The backend has no blocking hook; the wait polls with back-off.
    Unsupported,
    /// The hook has waited. The wait looks at the status, and polls once if it is not terminal.
    Returned,
}

/// What an engine tells a backend that joins it.
#[derive(Clone, Debug)]
pub struct BackendContext {
    /// The engine's name.
    pub engine: EngineKey,
    /// This incarnation of the engine: 128 random bits. A restarted engine has another one.
    pub instance: [u8; 16],
    /// The node's name; engines on one host share it.
    pub node_id: String,
    /// Where messages from peers go.
    pub notifications: NotificationQueue,
}

/// What a backend that has joined puts into the engine's descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The host that peers connect to, if the backend listens.
    pub host: Option<String>,
    /// The port that it really listens on, if it does.
    pub port: Option<u16>,
    /// What the backend of a peer must know to reach this one.
    pub blob: Option<TransportBlob>,
}

/// A transport.
///
/// # For callers
///
/// - [`attach`](Backend::attach) comes first and once. Afterwards every method may be called from any thread at any time,
///   also after [`shutdown`](Backend::shutdown), when all of them answer with an error.
/// - The engine has checked pieces and options ([`check`](crate::check)) before it submits; the target checks again,
///   because it trusts nobody.
/// - That a submission returned says nothing about bytes; the status does.
///
/// # For backend authors
///
/// You must
///
/// - end every transfer exactly once, also on peer death, on shutdown, and when a batch fails half-way (S7); dropping
///   the [`Completer`](crate::Completer) is the net, not the plan (S5);
/// - end it as failed or cancelled only when no byte of it can land any more on this side (E1, E4);
/// - make a read's bytes visible before its success (S4): an ordinary store or system call on the completing thread does;
/// - have moved a status out of *init* when [`submit`](Session::submit) returns;
/// - hold a [`Pin`](crate::Pin) on every local region that a transfer uses, on the initiator and on the target (E3);
/// - answer the same [`has_notifier`](Backend::has_notifier) for ever.
///
/// You must not
///
/// - call into the engine, or a status's waits, from your own threads;
/// - hold a lock in [`block_on`](Backend::block_on) that [`poll_progress`](Backend::poll_progress), an update or another
///   waiter needs (W6, W10);
/// - let one peer, however slow, silent or hostile, delay another (E4).
///
/// # Threads
///
/// All methods take `&self` and may be called concurrently. `poll_progress` is called by waiters, any number at a time.
///
/// # Errors
///
/// Refused calls return an [`Error`] whose message says what the caller can do. Failed transfers end with an error of
/// the kinds that [`ErrorKind`] describes, with the lower layer's number kept as its cause.
pub trait Backend: Send + Sync + 'static {
    /// The transport's name in descriptors, routes and logs: short, lower case, the same on both sides.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether it completes statuses with nobody polling (W8). If not, waits poll it (W9, W10).
    fn has_notifier(&self) -> bool;

    /// Makes what progress there is on `transfer`, completing its status if it is over. Never blocks, never waits behind a
    /// thread that is blocked in a wait (W6). A backend with a notifier may do nothing. Unknown and finished
    /// transfers are ignored.
    fn poll_progress(&self, transfer: TransferId);

    /// Blocks until `transfer` is over, or some progress was made, or the backend shuts down (W10). Only called by unbounded
    /// waits, only on backends without a notifier.
    fn block_on(&self, transfer: TransferId) -> BlockOn {
        let _ = transfer;
        BlockOn::Unsupported
    }

    /// Looks for progress on `transfer` on the calling thread for a short while, before a wait sleeps (the busy window of
    /// W8): whoever reads the answer itself need not be woken. Only called on backends with a notifier, by waits that may
    /// sleep, with no lock held; never by a zero timeout (W6).
    ///
    /// Returns as soon as `over` says so, which it must ask between any two bounded steps, and when the backend's own
    /// configured window has passed without work; at once if that is zero, if the transfer is over, if another thread
    /// already looks, or if there is nothing that this thread could do. Transfers that end here end on the calling thread.
    fn linger(&self, transfer: TransferId, over: &dyn Fn() -> bool) {
        let _ = (transfer, over);
    }

    /// Asks for a stop of `transfer` and returns at once (E1). Unknown and finished transfers are ignored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the capability is not declared.
    fn cancel(&self, transfer: TransferId) -> Result<()> {
        let _ = transfer;
        Err(Capabilities::unsupported(self.name(), "cancelling transfers"))
    }

    /// Joins an engine: opens what it needs (a listening port, a device) and says how peers reach it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if what it needs is not on this machine, with what was looked for;
    /// [`ErrorKind::BadState`] if it is attached already.
    fn attach(&self, context: BackendContext) -> Result<Attachment>;

    /// Makes `region` known, and returns what a peer's backend of the same name must know to reach it: the blob travels in
    /// the memory descriptor. `None` if the backend cannot carry this kind of memory.
    ///
    /// # Errors
    ///
    /// As the transport requires, for example [`ErrorKind::ResourceExhausted`] at a limit, naming it.
    fn register(&self, region: &Region) -> Result<Option<TransportBlob>>;

    /// Forgets the region; new requests of peers for it fail. Called when the region is closed ([`Region::close`]), so no
    /// transfer uses it any more. Unknown regions are ignored.
    fn deregister(&self, region: RegionId);

    /// Makes a peer known. A descriptor of the same engine with another instance replaces the earlier one, whose transfers
    /// end as *peer lost*.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`] if the descriptor's blob does not decode; [`ErrorKind::NotFound`] if the peer has no
    /// backend of this name.
    fn add_peer(&self, peer: &EngineDesc) -> Result<()>;

    /// Forgets a peer; transfers in progress with it end as failures. Unknown peers are ignored.
    fn remove_peer(&self, peer: &EngineKey);

    /// Whether it can carry transfers between the two regions; if not, the error says why.
    ///
    /// # Errors
    ///
    /// The reason, in a form for the explanation of a route.
    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()>;

    /// Opens a session between two regions. May block for as long as the backend's configured time for connecting.
    ///
    /// # Errors
    ///
    /// As [`route`](Backend::route), and what connecting can say: [`ErrorKind::PeerLost`], [`ErrorKind::TimedOut`],
    /// [`ErrorKind::AccessDenied`] (wrong secret).
    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>>;

    /// A way to tell `peer` about transfers that another backend carries. Connects nothing yet; asking is cheap.
    ///
    /// A backend that has connections to its peers offers one, so that backends which write to a peer's memory without its
    /// taking part can notify all the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the backend carries messages with its own transfers only, [`ErrorKind::NotFound`] for an
    /// unknown peer.
    fn messenger(&self, peer: &EngineKey) -> Result<Arc<dyn Messenger>> {
        let _ = peer;
        Err(Capabilities::unsupported(self.name(), "messages about transfers of other backends"))
    }

    /// Ends every transfer in progress with a clear failure, closes everything, and returns in bounded time. Called once or
    /// more.
    fn shutdown(&self);
}

/// A pair of regions with a way between them.
///
/// A session stays usable when its peer is lost and comes back: transfers fail meanwhile, later ones work (E4). Dropping
/// it does not disturb transfers in progress.
pub trait Session: Send + Sync + 'static {
    /// Starts a transfer of all `pieces` and returns its status, which is in progress or terminal, never *init*.
    ///
    /// The pieces and options have been checked against both regions. No pieces, or only empty ones: success (with the
    /// notification delivered, if one is asked for). Whatever goes wrong is in the status.
    ///
    /// Does not wait for the peer; it may block for a short time on a lock that moving bytes does not hold.
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status;

    /// Whether a transfer submitted now can be expected to work: the peer is connected, or not known to be lost.
    fn alive(&self) -> bool;
}

/// A way to one incarnation of a peer, for messages without bytes.
pub trait Messenger: Send + Sync + 'static {
    /// Sends a message, and returns a status that succeeds when the message is in the peer's queue of notifications.
    ///
    /// The status has the transfer's number and needs no polling. It fails as [`ErrorKind::ResourceExhausted`] when the queue is
    /// full, as [`ErrorKind::PeerLost`] when the peer is. Does not wait for the peer, and may be called on a backend's own
    /// thread.
    fn send(&self, message: &Message) -> Status;
}

impl fmt::Debug for dyn Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messenger")
    }
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name())
    }
}

impl fmt::Debug for dyn Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(alive: {})", self.alive())
    }
}
