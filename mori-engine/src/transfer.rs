//! Submitting transfers by pairs of regions, and waiting with the engine's policy.

use std::sync::Arc;

use mori_core::{
    Error, MemoryDesc, Op, Outcome, Piece, Result, Status, StatusCode, Tag, Timeout, TransferOptions, check,
    scan,
};

use crate::attached::Attached;
use crate::backends::Carrier;
use crate::engine::Core;
use crate::peers::Peer;
use crate::session::Session;
use crate::{Engine, Memory, RouteReport};

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
        let session = self.0.open(local, remote, Keep::No);
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
        let session = match self.0.prepare(local, remote, pieces, &options) {
            Ok(Start::Nothing) => return Status::succeeded(options.tag),
            Ok(Start::On(session)) => Ok(session),
            Ok(Start::Unopened) => self.0.open(local, remote, Keep::Yes),
            Err(error) => Err(error),
        };
        match session {
            Ok(session) => session.submit(op, pieces, options),
            Err(error) => self.0.refuse(options.tag, error),
        }
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

/// What a submission needs.
pub(crate) enum Start {
    /// Nothing: there is nothing to do.
    Nothing,
    /// This session, which is open.
    On(Session),
    /// A session that has to be opened.
    Unopened,
}

/// Whether a session is kept for the next transfer of its pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    No,
}

impl Core {
    /// Checks a submission and looks for an open session.
    pub(crate) fn prepare(
        &self,
        local: &Memory,
        remote: &MemoryDesc,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Result<Start> {
        self.check_open()?;
        if let Some(session) = self.cache.get(local.id(), remote) {
            return Ok(Start::On(session));
        }
        // A wrong argument is the caller's mistake whether or not there is a route, and nothing needs none.
        let bytes = check(pieces, options, local.len() as u64, remote.size)?;
        Ok(if bytes == 0 && options.notify.is_none() { Start::Nothing } else { Start::Unopened })
    }

    /// The status of a submission that is refused.
    pub(crate) fn refuse(&self, tag: Tag, error: Error) -> Status {
        tracing::debug!(engine = %self.key, %tag, %error, "transfer refused");
        Status::failed(tag, error)
    }

    fn open(&self, local: &Memory, remote: &MemoryDesc, keep: Keep) -> Result<Session> {
        let (attached, peer) = self.route(local, remote)?;
        self.connect(local, remote, &attached, &peer, keep)
    }

    /// Opens a session over a backend that was chosen.
    pub(crate) fn connect(
        &self,
        local: &Memory,
        remote: &MemoryDesc,
        attached: &Attached,
        peer: &Arc<Peer>,
        keep: Keep,
    ) -> Result<Session> {
        let carrier = attached.slot.session(local.region(), remote).map_err(|error| {
            error.context(format_args!("cannot reach engine {} over {}", remote.engine_key, attached.name))
        })?;
        let session = Session::new(carrier, attached, local, remote, self);
        if keep == Keep::Yes {
            let known = || self.peers.get(&remote.engine_key).is_some_and(|now| Arc::ptr_eq(&now, peer));
            let still_valid = || !attached.presence.ended() && self.is_registered(local) && known();
            self.cache.put(local.id(), remote, session.clone(), still_valid);
        }
        Ok(session)
    }
}
