//! Batches: many transfers between many pairs of regions, at several peers, in one call.
//!
//! Opening a session may block for as long as connecting takes, so a batch does not open them one after the other:
//!
//! 1. Every item that needs no session, is refused, or has an open session is done first, in the order of the list.
//! 2. The others are put together by peers. Each peer's items have a thread of their own for the rest of the call (the caller's,
//!    if there is one peer), so that a peer that does not answer holds up its own items only.
//! 3. A peer that could not be connected to is not tried again for the further items of the same batch over the same
//!    backend; they fail with the same error.

use std::collections::HashMap;

use mori_core::{EngineKey, Error, ErrorKind, MemoryDesc, Op, Piece, Result, Status, TransferOptions};

use crate::session::Session;
use crate::transfer::{Keep, Start};
use crate::{Engine, Memory};

/// The most threads that open sessions for one batch; more peers than that share them.
const OPENERS: usize = 32;

/// One transfer of a batch: pieces between one local and one remote region.
#[derive(Clone, Debug)]
pub struct BatchItem<'a> {
    /// The memory on this side.
    pub local: &'a Memory,
    /// The memory on the peer's side.
    pub remote: &'a MemoryDesc,
    /// What to move.
    pub pieces: &'a [Piece],
    /// What else to say about the transfer.
    pub options: TransferOptions,
}

impl Engine {
    /// Submits one transfer for each item, over whatever backend carries its pair, and returns their statuses in the order
    /// of the items. A bad item fails alone; the others are submitted. In which order is not promised.
    ///
    /// As with [`Engine::read`], the first transfer of a pair opens a session. Sessions with several peers are opened at the
    /// same time, so that the call blocks for as long as connecting to one peer may take, and a peer that does not
    /// answer keeps no transfer with another from starting.
    ///
    /// ```
    /// use mori_engine::{Access, BatchItem, Engine, ErrorKind, Op, Piece, TransferOptions};
    /// let engine = Engine::builder("decode-0").build()?;
    /// let memory = engine.allocate(64, Access::READ_WRITE)?;
    /// let desc = memory.desc();
    /// let item = |pieces| BatchItem { local: &memory, remote: &desc, pieces, options: TransferOptions::default() };
    /// let statuses = engine.batch(Op::Read, &[item(&[]), item(&[Piece::new(60, 0, 8)])]);
    /// assert!(statuses[0].is_success());
    /// assert_eq!(statuses[1].error().unwrap().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), mori_engine::Error>(())
    /// ```
    #[must_use = "each status says what became of its transfer"]
    pub fn batch(&self, op: Op, items: &[BatchItem<'_>]) -> Vec<Status> {
        let mut unopened: HashMap<&EngineKey, Group<'_>> = HashMap::new();
        let mut statuses: Vec<Option<Status>> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            statuses.push(match self.0.prepare(item.local, item.remote, item.pieces, &item.options) {
                Ok(Start::On(session)) => Some(item.submit(op, &session)),
                Ok(Start::Nothing) => Some(Status::succeeded(item.options.tag)),
                Ok(Start::Unopened) => {
                    unopened.entry(&item.remote.engine_key).or_default().push((index, item));
                    None
                }
                Err(error) => Some(self.0.refuse(item.options.tag, error)),
            });
        }
        for (index, status) in self.open_all(op, unopened.into_values().collect()) {
            if let Some(place) = statuses.get_mut(index) {
                *place = Some(status);
            }
        }
        let lost = |item: &BatchItem<'_>| {
            Status::failed(
                item.options.tag,
                Error::new(ErrorKind::BadState, "the thread that opens sessions panicked"),
            )
        };
        statuses.into_iter().zip(items).map(|(status, item)| status.unwrap_or_else(|| lost(item))).collect()
    }

    /// Opens sessions for each peer's items, and submits them.
    fn open_all(&self, op: Op, groups: Vec<Group<'_>>) -> Vec<(usize, Status)> {
        let threads = groups.len().min(OPENERS);
        if threads < 2 {
            return groups.iter().flat_map(|group| self.open_group(op, group)).collect();
        }
        let mut shares: Vec<Vec<Group<'_>>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, group) in groups.into_iter().enumerate() {
            shares[index % threads].push(group);
        }
        let work = |share: &[Group<'_>]| -> Vec<_> {
            share.iter().flat_map(|group| self.open_group(op, group)).collect()
        };
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            let mut statuses = Vec::new();
            let mut here = Vec::new();
            for share in &shares {
                let builder = std::thread::Builder::new().name("mori-open".into());
                match builder.spawn_scoped(scope, || work(share)) {
                    Ok(handle) => handles.push(handle),
                    // No thread is to be had: this one does it, after the others have begun.
                    Err(_) => here.push(share),
                }
            }
            here.into_iter().for_each(|share| statuses.extend(work(share)));
            handles.into_iter().for_each(|handle| statuses.extend(handle.join().unwrap_or_default()));
            statuses
        })
    }

    fn open_group(&self, op: Op, group: &[(usize, &BatchItem<'_>)]) -> Vec<(usize, Status)> {
        let mut unreachable = Unreachable::new();
        let submit = |&(index, item): &(usize, &BatchItem<'_>)| {
            let status = match self.session_for(item, &mut unreachable) {
                Ok(session) => item.submit(op, &session),
                Err(error) => self.0.refuse(item.options.tag, error),
            };
            (index, status)
        };
        group.iter().map(submit).collect()
    }

    fn session_for(&self, item: &BatchItem<'_>, unreachable: &mut Unreachable) -> Result<Session> {
        // An earlier item of the same pair may have opened it.
        if let Some(session) = self.0.cache.get(item.local.id(), item.remote) {
            return Ok(session);
        }
        let (attached, peer) = self.0.route(item.local, item.remote)?;
        if let Some(error) = unreachable.get(attached.name) {
            return Err(error.clone());
        }
        let session = self.0.connect(item.local, item.remote, &attached, &peer, Keep::Yes);
        if let Err(error) = &session {
            if is_the_peers(error.kind()) {
                unreachable.insert(attached.name, error.clone());
            }
        }
        session
    }
}

/// The items of one peer with their places in the batch.
type Group<'a> = Vec<(usize, &'a BatchItem<'a>)>;

/// Why a peer could not be connected to, by backends.
type Unreachable = HashMap<&'static str, Error>;

impl BatchItem<'_> {
    fn submit(&self, op: Op, session: &Session) -> Status {
        session.submit(op, self.pieces, self.options.clone())
    }
}

/// Whether such an error of connecting is about the peer, and not about one pair of regions.
fn is_the_peers(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PeerLost
            | ErrorKind::TimedOut
            | ErrorKind::AccessDenied
            | ErrorKind::Unavailable
            | ErrorKind::Transport
    )
}
