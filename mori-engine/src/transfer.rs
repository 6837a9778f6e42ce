//! Submitting transfers by pairs of regions, and waiting with the engine's policy.

use std::sync::Arc;

use mori_core::{
    MemoryDesc, Op, Outcome, Piece, Result, Status, StatusCode, Timeout, TransferOptions, check, scan,
};

use crate::backends::Carrier;
use crate::engine::Core;
use crate::session::Session;
use crate::{Engine, Memory, RouteReport};

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
    /// Opens a session between two regions, over the preferred backend that can carry the pair.
    ///
    /// May block for as long as that backend's configured time for connecting.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadState`](crate::ErrorKind::BadState) if no backend can, with every backend's reason (see
    /// [`Engine::explain`]); and what connecting can say: [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost),
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), [`ErrorKind::AccessDenied`](crate::ErrorKind::AccessDenied).
    /// Another backend is not tried then: a route that falls back in silence is one that is slow in silence.
    pub fn session(&self, local: &Memory, remote: &MemoryDesc) -> Result<Session> {
        let session = self.0.open(local, remote, false);
        if let Err(error) = &session {
            tracing::debug!(engine = %self.0.key, %error, "no session");
        }
        session
    }

    /// Says which backend carries transfers between the two regions, and why the others do not.
    #[must_use]
    pub fn explain(&self, local: &Memory, remote: &MemoryDesc) -> RouteReport {
        self.0.explain(local, remote)
    }

    /// Reads `length` bytes at `remote_offset` of the remote memory into the local one at `local_offset`.
    ///
    /// Whatever is wrong is in the status. The first transfer of a pair opens a session, as [`Engine::session`] does, and keeps
    /// it for the next one; callers with many pairs and nothing to lose keep sessions of their own. Zero bytes succeed at
    /// once, over no route at all.
    pub fn read(
        &self,
        local: &Memory,
        local_offset: u64,
        remote: &MemoryDesc,
        remote_offset: u64,
        length: u64,
        options: TransferOptions,
    ) -> Status {
        self.submit(Op::Read, local, remote, &[Piece::new(local_offset, remote_offset, length)], options)
    }

    /// Writes `length` bytes at `local_offset` of the local memory into the remote one at `remote_offset`; else as
    /// [`Engine::read`].
    pub fn write(
        &self,
        local: &Memory,
        local_offset: u64,
        remote: &MemoryDesc,
        remote_offset: u64,
        length: u64,
        options: TransferOptions,
    ) -> Status {
        self.submit(Op::Write, local, remote, &[Piece::new(local_offset, remote_offset, length)], options)
    }

    /// Submits one transfer of many pieces between one pair of regions; else as [`Engine::read`]. One bad piece fails all
    /// of it, before anything moves.
    pub fn submit(
        &self,
        op: Op,
        local: &Memory,
        remote: &MemoryDesc,
        pieces: &[Piece],
        options: TransferOptions,
    ) -> Status {
        let tag = options.tag;
        match self.0.prepare(local, remote, pieces, &options) {
            Ok(Some(session)) => session.submit(op, pieces, options),
            Ok(None) => Status::succeeded(tag),
            Err(error) => {
                tracing::debug!(engine = %self.0.key, %tag, %error, "transfer refused");
                Status::failed(tag, error)
            }
        }
    }

    /// Submits one transfer for each item, over whatever backend carries its pair, and returns their statuses in the same
    /// order. A bad item fails alone; the others are submitted.
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
        let submit = |item: &BatchItem<'_>| {
            self.submit(op, item.local, item.remote, item.pieces, item.options.clone())
        };
        items.iter().map(submit).collect()
    }

    /// Waits for one transfer with the engine's policy; `None` waits without a bound, `Duration::ZERO` polls once.
    pub fn wait(&self, status: &Status, timeout: impl Into<Timeout>) -> StatusCode {
        status.wait_with(timeout, &self.0.policy)
    }

    /// Waits with the engine's policy until every transfer is terminal or `timeout` runs out; see
    /// [`wait_all`](crate::wait_all). The transfers may run over different backends, and belong to other engines.
    pub fn wait_all<S: AsRef<Status>>(&self, statuses: &[S], timeout: impl Into<Timeout>) -> Outcome {
        self.0.policy.wait_all(statuses, timeout)
    }

    /// Waits with the engine's policy until every transfer is terminal, the first one fails, or `timeout` runs out.
    pub fn wait_first_failure<S: AsRef<Status>>(
        &self,
        statuses: &[S],
        timeout: impl Into<Timeout>,
    ) -> Outcome {
        self.0.policy.wait_first_failure(statuses, timeout)
    }

    /// Waits with the engine's policy until one transfer is terminal, and says which; `None` if `timeout` runs out first.
    pub fn wait_any<S: AsRef<Status>>(&self, statuses: &[S], timeout: impl Into<Timeout>) -> Option<usize> {
        self.0.policy.wait_any(statuses, timeout)
    }

    /// Waits with the engine's policy until `count` transfers are terminal, or `timeout` runs out.
    pub fn wait_some<S: AsRef<Status>>(
        &self,
        statuses: &[S],
        count: usize,
        timeout: impl Into<Timeout>,
    ) -> Outcome {
        self.0.policy.wait_some(statuses, count, timeout)
    }

    /// Where the transfers stand, without calling into any backend.
    #[must_use]
    pub fn scan<S: AsRef<Status>>(&self, statuses: &[S]) -> Outcome {
        scan(statuses)
    }
}

impl Core {
    /// The session to submit on, or nothing if there is nothing to do.
    fn prepare(
        &self,
        local: &Memory,
        remote: &MemoryDesc,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Result<Option<Session>> {
        self.check_open()?;
        if let Some(session) = self.cache.get(local.id(), remote) {
            return Ok(Some(session));
        }
        // A wrong argument is the caller's mistake whether or not there is a route, and nothing needs none.
        if check(pieces, options, local.len() as u64, remote.size)? == 0 && options.notify.is_none() {
            return Ok(None);
        }
        self.open(local, remote, true).map(Some)
    }

    fn open(&self, local: &Memory, remote: &MemoryDesc, keep: bool) -> Result<Session> {
        let (attached, peer) = self.route(local, remote)?;
        let carrier = attached.slot.session(local.region(), remote).map_err(|error| {
            error.context(format_args!("cannot reach engine {} over {}", remote.engine_key, attached.name))
        })?;
        let session = Session::new(carrier, &attached, local, remote, self.default_deadline);
        if keep {
            let known = || self.peers.get(&remote.engine_key).is_some_and(|now| Arc::ptr_eq(&now, &peer));
            let still_valid = || !attached.presence.ended() && self.is_registered(local) && known();
            self.cache.put(local.id(), remote, session.clone(), still_valid);
        }
        Ok(session)
    }
}
