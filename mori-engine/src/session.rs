//! Sessions: a local and a remote region with a way between them.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mori_core::{
    Capabilities, Error, ErrorKind, MemoryDesc, Messenger, Op, Piece, RegionId, Result, Status,
    TransferOptions, check,
};

use crate::attached::{Attached, Presence};
use crate::engine::Core;
use crate::{Memory, noted};

/// A pair of regions, one here and one at a peer, with a way between them; a handle, clones are handles to the same session.
///
/// [`Engine::session`](crate::Engine::session) opens one. It stays usable when the peer is lost and comes back: transfers
/// fail meanwhile, later ones work. Once its memory is deregistered, its peer removed or its engine shut down, every transfer
/// fails with a message that says so. Dropping a session disturbs no transfer in progress.
///
/// A submission never waits for the peer, and whatever is wrong with it is in the status that it returns.
///
/// A message for the target ([`TransferOptions::notify`]) goes with the transfer if the backend can take it along. Else another
/// backend of both engines delivers it when every byte is in place, and the transfer ends after that.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    carrier: Arc<dyn mori_core::Session>,
    backend: &'static str,
    capabilities: Capabilities,
    presence: Presence,
    local: RegionId,
    local_size: u64,
    remote: MemoryDesc,
    default_deadline: Option<Duration>,
    /// Knows the other backends, for messages that the carrier does not take along.
    core: Weak<Core>,
}

impl Session {
    pub(crate) fn new(
        carrier: Arc<dyn mori_core::Session>,
        attached: &Attached,
        local: &Memory,
        remote: &MemoryDesc,
        core: &Core,
    ) -> Self {
        Self(Arc::new(Inner {
            carrier,
            backend: attached.name,
            capabilities: attached.capabilities,
            presence: attached.presence.clone(),
            local: local.id(),
            local_size: local.len() as u64,
            remote: remote.clone(),
            default_deadline: core.default_deadline,
            core: Weak::clone(&core.me),
        }))
    }

    /// Reads `length` bytes at `remote_offset` of the remote region into the local one at `local_offset`.
    ///
    /// The status fails as [`ErrorKind::InvalidArgument`] if the bytes are not wholly inside both regions. Zero bytes succeed
    /// at once.
    pub fn read(
        &self,
        local_offset: u64,
        remote_offset: u64,
        length: u64,
        options: TransferOptions,
    ) -> Status {
        self.submit(Op::Read, &[Piece::new(local_offset, remote_offset, length)], options)
    }

    /// Writes `length` bytes at `local_offset` of the local region into the remote one at `remote_offset`; else as
    /// [`Session::read`].
    pub fn write(
        &self,
        local_offset: u64,
        remote_offset: u64,
        length: u64,
        options: TransferOptions,
    ) -> Status {
        self.submit(Op::Write, &[Piece::new(local_offset, remote_offset, length)], options)
    }

    /// Reads many pieces as one transfer with one status. One bad piece fails all of it, before anything moves.
    pub fn read_batch(&self, pieces: &[Piece], options: TransferOptions) -> Status {
        self.submit(Op::Read, pieces, options)
    }

    /// Writes many pieces as one transfer with one status. One bad piece fails all of it, before anything moves.
    pub fn write_batch(&self, pieces: &[Piece], options: TransferOptions) -> Status {
        self.submit(Op::Write, pieces, options)
    }

    /// Submits a transfer of `pieces` in either direction.
    pub fn submit(&self, op: Op, pieces: &[Piece], mut options: TransferOptions) -> Status {
        let inner = &*self.0;
        match self.admit(op, pieces, &options) {
            Err(error) => Status::failed(options.tag, error),
            Ok((0, _)) if options.notify.is_none() => Status::succeeded(options.tag),
            Ok((_, messenger)) => {
                // The default is for transports that can keep it; it makes no transfer fail that would work without.
                if options.deadline.is_none() && inner.capabilities.cancel {
                    options.deadline = inner.default_deadline;
                }
                match (messenger, options.notify.take_if(|_| !inner.capabilities.notify)) {
                    (Some(messenger), Some(notify)) => {
                        noted::follow(inner.carrier.submit(op, pieces, &options), messenger, notify)
                    }
                    _ => inner.carrier.submit(op, pieces, &options),
                }
            }
        }
    }

    /// Whether the transfer may be submitted, how many bytes it has, and who carries its message if the carrier does not.
    fn admit(
        &self,
        op: Op,
        pieces: &[Piece],
        options: &TransferOptions,
    ) -> Result<(u64, Option<Arc<dyn Messenger>>)> {
        let inner = &*self.0;
        inner.presence.check(inner.backend)?;
        let bytes = check(pieces, options, inner.local_size, inner.remote.size)?;
        if bytes > 0 {
            // The peer checks this itself; here it is a clear answer early.
            grants(&inner.remote, op)?;
        }
        if options.deadline.is_some() && !inner.capabilities.cancel {
            return Err(Capabilities::unsupported(
                inner.backend,
                "deadlines of transfers; give the wait a bound instead",
            ));
        }
        let messenger = match options.notify {
            Some(_) if !inner.capabilities.notify => Some(self.messenger()?),
            _ => None,
        };
        Ok((bytes, messenger))
    }

    fn messenger(&self) -> Result<Arc<dyn Messenger>> {
        let inner = &*self.0;
        // An engine that is gone has marked its backends, so this is a race that was lost just now.
        let core = inner.core.upgrade().ok_or_else(|| {
            Error::new(ErrorKind::BadState, "the engine of this session is gone; build another one")
        })?;
        core.messenger(inner.backend, &inner.remote.engine_key)
    }

    /// Whether a transfer submitted now can be expected to work: the backend is there, and the peer is connected or not known
    /// to be lost.
    #[must_use]
    pub fn alive(&self) -> bool {
        !self.0.presence.ended() && self.0.carrier.alive()
    }

    /// The name of the backend that carries the session.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// The number of the local region.
    #[must_use]
    pub fn local(&self) -> RegionId {
        self.0.local
    }

    /// The remote region.
    #[must_use]
    pub fn remote(&self) -> &MemoryDesc {
        &self.0.remote
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("backend", &self.0.backend)
            .field("local", &self.0.local)
            .field("remote", &format_args!("{}/{}", self.0.remote.engine_key, self.0.remote.id))
            .finish_non_exhaustive()
    }
}

/// Whether the peer lets us do this with its memory.
fn grants(remote: &MemoryDesc, op: Op) -> Result<()> {
    let (granted, what) = match op {
        Op::Read => (remote.access.remote_read, "read"),
        Op::Write => (remote.access.remote_write, "written"),
    };
    if granted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AccessDenied,
        format!("region {} of engine {} may not be {what} by peers", remote.id, remote.engine_key),
    ))
}

/// The error for memory that is not registered with the engine that is asked to use it.
pub(crate) fn unregistered(memory: &Memory) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("region {} is not registered with this engine (any more); register it first", memory.id()),
    )
}
