//! Fault injection: any backend, with what can go wrong going wrong by script.
//!
//! [`Faulty`] stands before another backend. Bytes still move there; what the caller learns of it is under the script's
//! control. A script names transfers by their place in the order of submission, counted from zero over all sessions, so
//! that a run is the same every time: no clock and no chance is involved.
//!
//! # Protocol
//!
//! 1. A submission takes the next place. Its fault, if it has one, is settled here: not submitted at all, submitted in
//!    part, or submitted as it is.
//! 2. The caller's status is of this backend and has the inner transfer's number, so that polls, cancellations and
//!    notifications name the same transfer on both levels.
//! 3. When the inner status ends, on whatever thread, the entry is *due*. The fault says whether it is delivered now, after
//!    another one, by hand, or never. A delivery takes the entry out of the table first; so there is one.
//! 4. The local region stays pinned until the delivery, because for the caller the transfer is in progress until then (E3).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use mori_core::{
    Attachment, Backend, BackendContext, BlockOn, Capabilities, Completer, EngineDesc, EngineKey, Error,
    ErrorKind, MemoryDesc, Observe, Op, Origin, Piece, Pin, Region, RegionId, Result, Session, Status,
    StatusCode, TransferId, TransferOptions, TransportBlob, Update,
};

use crate::fake::locked;

/// What goes wrong with one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its end is kept back until [`Faulty::release`]; the bytes move as always. A delay.
    Hold,
    /// Its end is kept back until the end of the transfer at this place has been delivered. A reordering.
    Behind(u64),
    /// It fails with this error, and no byte moves.
    Fail(Error),
    /// The pieces before this one move, then it fails with this error. No message goes to the target.
    FailAtPiece(usize, Error),
    /// Its end is lost: it stays in progress until the backend shuts down or is dropped.
    Drop,
    /// Its end is delivered, and then once more as a failure; [`Faulty::second_results`] says what became of that.
    Duplicate,
    /// Its peer is lost when it is submitted, as by [`Faulty::lose_peer`].
    LosePeer,
}

/// A backend with faults by script before another backend. The module's documentation tells how it works.
///
/// Without a script it is as good as the backend behind it, and passes the same suite.
///
/// ```
/// use mori_core::{Backend, Error, ErrorKind};
/// use mori_testkit::{FakeConfig, FakeFabric, Fault, Faulty};
/// let faulty = Faulty::new(FakeFabric::new().backend(FakeConfig::default()));
/// faulty.inject(2, Fault::Fail(Error::new(ErrorKind::Transport, "by script")));
/// faulty.inject(4, Fault::Hold);
/// assert!(faulty.has_notifier());
/// assert_eq!(faulty.submitted(), 0);
/// ```
pub struct Faulty {
    core: Arc<Core>,
}

struct Core {
    me: Weak<dyn Backend>,
    inner: Arc<dyn Backend>,
    state: Mutex<State>,
    delivered: Condvar,
}

#[derive(Default)]
struct State {
    submitted: u64,
    shut: bool,
    script: HashMap<u64, Fault>,
    entries: BTreeMap<u64, Entry>,
    order: Vec<u64>,
    second_results: Vec<(u64, Update)>,
    peers: HashMap<EngineKey, EngineDesc>,
    lost: HashSet<EngineKey>,
}

/// A transfer whose end has not been delivered.
struct Entry {
    completer: Completer,
    inner: Option<Status>,
    pin: Option<Pin>,
    peer: EngineKey,
    fault: Option<Fault>,
    due: bool,
    released: bool,
}

impl Faulty {
    /// Puts a script before `inner`. Nothing goes wrong until something is injected.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me: Weak<dyn Backend> = Weak::<Self>::clone(me);
            let core = Core { me, inner, state: Mutex::default(), delivered: Condvar::new() };
            Self { core: Arc::new(core) }
        })
    }

    /// The backend behind the script.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Backend> {
        &self.core.inner
    }

    /// Lets this go wrong with the transfer at `place` in the order of submission, counted from zero. It must not have
    /// been submitted yet; the last word on a place counts.
    pub fn inject(&self, place: u64, fault: Fault) {
        locked(&self.core.state).script.insert(place, fault);
    }

    /// Lets this go wrong with the next transfer, and returns its place.
    pub fn inject_next(&self, fault: Fault) -> u64 {
        let mut state = locked(&self.core.state);
        let place = state.submitted;
        state.script.insert(place, fault);
        place
    }

    /// How many transfers have been submitted, which is the place of the next one.
    #[must_use]
    pub fn submitted(&self) -> u64 {
        locked(&self.core.state).submitted
    }

    /// Delivers the end of a transfer that is held, now or as soon as it comes.
    pub fn release(&self, place: u64) {
        if let Some(entry) = locked(&self.core.state).entries.get_mut(&place) {
            entry.released = true;
        }
        self.core.deliver_what_may();
    }

    /// Delivers the ends of all transfers that are held, in the order of their submission.
    pub fn release_all(&self) {
        locked(&self.core.state).entries.values_mut().for_each(|entry| entry.released = true);
        self.core.deliver_what_may();
    }

    /// The places of the transfers whose ends have been delivered, in the order of delivery.
    #[must_use]
    pub fn deliveries(&self) -> Vec<u64> {
        locked(&self.core.state).order.clone()
    }

    /// What became of the second results of transfers with [`Fault::Duplicate`]: place and answer.
    #[must_use]
    pub fn second_results(&self) -> Vec<(u64, Update)> {
        locked(&self.core.state).second_results.clone()
    }

    /// Loses a peer: its transfers end as *peer lost* as soon as the backend behind has brought them to rest, and later
    /// ones fail at once, until [`Faulty::restore_peer`]. Unknown peers are ignored.
    pub fn lose_peer(&self, peer: &EngineKey) {
        self.core.lose(peer);
    }

    /// Ends [`Faulty::lose_peer`].
    ///
    /// # Errors
    ///
    /// As [`Backend::add_peer`] of the backend behind.
    pub fn restore_peer(&self, peer: &EngineKey) -> Result<()> {
        let desc = {
            let mut state = locked(&self.core.state);
            if !state.lost.remove(peer) {
                return Ok(());
            }
            state.peers.get(peer).cloned()
        };
        desc.map_or(Ok(()), |desc| self.core.inner.add_peer(&desc))
    }
}

fn lost(peer: &EngineKey) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!("{peer} is lost, by script; what has arrived there is unknown, nothing more arrives here"),
    )
}

impl Core {
    fn lose(&self, peer: &EngineKey) {
        {
            let mut state = locked(&self.state);
            if !state.peers.contains_key(peer) || !state.lost.insert(peer.clone()) {
                return;
            }
        }
        // The backend behind brings the transfers to rest; their ends come as *peer lost* then.
        self.inner.remove_peer(peer);
    }

    fn submit(
        self: &Arc<Self>,
        session: &FaultySession,
        op: Op,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Status {
        let (place, fault, is_lost) = {
            let mut state = locked(&self.state);
            let place = state.submitted;
            state.submitted += 1;
            let fault = state.script.remove(&place);
            (place, fault, state.lost.contains(&session.peer))
        };
        let refused = match &fault {
            Some(Fault::Fail(error)) => Some(error.clone()),
            Some(Fault::LosePeer) => {
                self.lose(&session.peer);
                Some(lost(&session.peer))
            }
            _ if is_lost => Some(lost(&session.peer)),
            _ => None,
        };
        let pin = session.local.pin();
        let inner = match (&refused, &fault) {
            (Some(_), _) => None,
            (None, Some(Fault::FailAtPiece(piece, _))) => {
                let options = TransferOptions { notify: None, ..options.clone() };
                let before = pieces.get(..*piece).unwrap_or(pieces);
                Some(session.inner.submit(op, before, &options))
            }
            (None, _) => Some(session.inner.submit(op, pieces, options)),
        };
        let mut origin = Origin::backend(&self.me, self.inner.has_notifier(), options.tag);
        if let Some(inner) = &inner {
            origin.id = inner.id();
        }
        let (completer, status) = Status::pair(origin);
        completer.submit();
        if let Some(error) = refused {
            completer.fail(error);
            self.note_delivery(place);
            return status;
        }
        self.watch(
            place,
            Entry {
                completer,
                inner: inner.clone(),
                pin: pin.ok(),
                peer: session.peer.clone(),
                fault,
                due: false,
                released: false,
            },
        );
        let observer: Arc<dyn Observe> = Arc::new(Watcher { core: Arc::downgrade(self), place });
        if inner.is_some_and(|inner| !inner.subscribe(Arc::clone(&observer))) {
            self.due(place);
        }
        status
    }

    fn watch(&self, place: u64, entry: Entry) {
        let mut entry = Some(entry);
        {
            let mut state = locked(&self.state);
            if !state.shut {
                state.entries.extend(entry.take().map(|entry| (place, entry)));
            }
        }
        if let Some(entry) = entry {
            // The backend behind has shut down, or does so now; nothing moves any more.
            drop(entry.pin);
            entry.completer.fail(Error::new(ErrorKind::BadState, "the backend has shut down"));
        }
    }

    fn note_delivery(&self, place: u64) {
        locked(&self.state).order.push(place);
        self.deliver_what_may();
    }

    /// The inner transfer at `place` has ended.
    fn due(&self, place: u64) {
        if let Some(entry) = locked(&self.state).entries.get_mut(&place) {
            entry.due = true;
        }
        self.deliver_what_may();
    }

    /// Delivers every end that is due and that nothing keeps back, one after the other.
    fn deliver_what_may(&self) {
        loop {
            let (place, entry) = {
                let mut state = locked(&self.state);
                let order = &state.order;
                let free = |entry: &Entry| match &entry.fault {
                    _ if !entry.due => false,
                    _ if entry.released => true,
                    Some(Fault::Hold | Fault::Drop) => false,
                    Some(Fault::Behind(other)) => order.contains(other),
                    _ => true,
                };
                let Some(place) =
                    state.entries.iter().find(|(_, entry)| free(entry)).map(|(place, _)| *place)
                else {
                    return;
                };
                let Some(entry) = state.entries.remove(&place) else { return };
                state.order.push(place);
                (place, entry)
            };
            let is_lost = locked(&self.state).lost.contains(&entry.peer);
            let second = deliver(entry, is_lost);
            let mut state = locked(&self.state);
            state.second_results.extend(second.map(|update| (place, update)));
            self.delivered.notify_all();
        }
    }

    fn end_all(&self) {
        let entries = {
            let mut state = locked(&self.state);
            state.shut = true;
            std::mem::take(&mut state.entries)
        };
        for entry in entries.into_values() {
            drop(entry.pin);
            entry.completer.fail(Error::new(ErrorKind::BadState, "the backend has shut down"));
        }
        self.delivered.notify_all();
    }
}

/// Gives the memory back and the result to the caller. Returns what became of a second result.
fn deliver(entry: Entry, is_lost: bool) -> Option<Update> {
    let Entry { completer, inner, pin, peer, fault, .. } = entry;
    drop(pin);
    let result = match inner.as_ref().map(|inner| (inner.code(), inner.error())) {
        Some((StatusCode::Failure(_), _)) if is_lost => Err(lost(&peer)),
        Some((StatusCode::Failure(kind), error)) => {
            Err(error.unwrap_or_else(|| Error::new(kind, "the backend behind gives no reason")))
        }
        _ => Ok(()),
    };
    match (result, &fault) {
        (Ok(()), Some(Fault::FailAtPiece(_, error))) => completer.fail(error.clone()),
        (Ok(()), _) => completer.succeed(),
        (Err(error), _) => completer.fail(error),
    };
    let twice = matches!(fault, Some(Fault::Duplicate));
    twice.then(|| completer.fail(Error::new(ErrorKind::Transport, "a second result, by script")))
}

/// Learns of the end of one inner transfer.
struct Watcher {
    core: Weak<Core>,
    place: u64,
}

impl Observe for Watcher {
    fn on_terminal(&self, _code: StatusCode) {
        if let Some(core) = self.core.upgrade() {
            core.due(self.place);
        }
    }
}

struct FaultySession {
    core: Weak<Core>,
    inner: Arc<dyn Session>,
    local: Region,
    peer: EngineKey,
}

impl Session for FaultySession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        match self.core.upgrade() {
            Some(core) => core.submit(self, op, pieces, options),
            None => Status::failed(options.tag, Error::new(ErrorKind::BadState, "the backend is gone")),
        }
    }

    fn alive(&self) -> bool {
        self.core.upgrade().is_some_and(|core| !locked(&core.state).lost.contains(&self.peer))
            && self.inner.alive()
    }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        self.core.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.core.inner.capabilities()
    }

    fn has_notifier(&self) -> bool {
        self.core.inner.has_notifier()
    }

    fn poll_progress(&self, transfer: TransferId) {
        self.core.inner.poll_progress(transfer);
    }

    fn block_on(&self, transfer: TransferId) -> BlockOn {
        // While the script keeps the end back, there is nothing to wait for behind.
        let mut state = locked(&self.core.state);
        let mut waited = false;
        while !state.shut && state.entries.values().any(|e| e.completer.id() == transfer && e.due) {
            waited = true;
            state = self.core.delivered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if waited { BlockOn::Returned } else { self.core.inner.block_on(transfer) }
    }

    fn linger(&self, transfer: TransferId, over: &dyn Fn() -> bool) {
        self.core.inner.linger(transfer, over);
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        self.core.inner.cancel(transfer)
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        self.core.inner.attach(context)
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        self.core.inner.register(region)
    }

    fn deregister(&self, region: RegionId) {
        self.core.inner.deregister(region);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        {
            let mut state = locked(&self.core.state);
            if state.lost.contains(&peer.key) {
                // It is remembered for when the peer is restored.
                state.peers.insert(peer.key.clone(), peer.clone());
                return Ok(());
            }
        }
        self.core.inner.add_peer(peer)?;
        locked(&self.core.state).peers.insert(peer.key.clone(), peer.clone());
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        {
            let mut state = locked(&self.core.state);
            state.peers.remove(peer);
            state.lost.remove(peer);
        }
        self.core.inner.remove_peer(peer);
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        if locked(&self.core.state).lost.contains(&remote.engine_key) {
            return Err(lost(&remote.engine_key));
        }
        self.core.inner.route(local, remote)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        if locked(&self.core.state).lost.contains(&remote.engine_key) {
            return Err(lost(&remote.engine_key));
        }
        let inner = self.core.inner.session(local, remote)?;
        let core = Arc::downgrade(&self.core);
        Ok(Arc::new(FaultySession { core, inner, local: local.clone(), peer: remote.engine_key.clone() }))
    }

    fn shutdown(&self) {
        self.core.inner.shutdown();
        self.core.end_all();
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        // Whoever else holds the backend behind: for this one's callers it is over, and must be quiet.
        self.shutdown();
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = locked(&self.core.state);
        f.debug_struct("Faulty")
            .field("inner", &self.core.inner)
            .field("submitted", &state.submitted)
            .field("in_progress", &state.entries.len())
            .finish_non_exhaustive()
    }
}
