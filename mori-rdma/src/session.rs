//! Submitting transfers between a region of this engine and one of a peer.

use std::sync::{Arc, OnceLock, Weak};

use mori_core::{
    Backend, Capabilities, Error, ErrorKind, Op, Origin, Piece, Region, Result, Session, Status,
    TransferOptions,
};

use crate::blob::{MemoryBlob, NAME};
use crate::core::{Core, shut};
use crate::flow::{Submission, Ways};
use crate::peer::Peer;
use crate::plan::{Limits, Plan};

pub(crate) struct RdmaSession {
    /// A session that is kept does not keep the devices open after the end of the backend.
    pub(crate) core: Weak<Core>,
    pub(crate) backend: Weak<dyn Backend>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) local: Region,
    pub(crate) remote: MemoryBlob,
    pub(crate) ways: Arc<Ways>,
    pub(crate) limits: Limits,
    /// Whether the peer takes messages.
    pub(crate) messages: bool,
}

impl RdmaSession {
    /// What the peer's device would refuse, refused before it breaks a queue pair.
    fn check(&self, op: Op, pieces: &[Piece]) -> Result<()> {
        let access = self.remote.access;
        let (granted, what) = match op {
            Op::Read => (access.remote_read, "read"),
            Op::Write => (access.remote_write, "written"),
        };
        if !granted {
            let words = format!("the region may not be {what} by peers; register it with that access");
            return Err(Error::new(ErrorKind::AccessDenied, words));
        }
        let length = self.remote.length;
        let inside = |piece: &Piece| piece.remote.checked_add(piece.length).is_some_and(|end| end <= length);
        match pieces.iter().position(|piece| !inside(piece)) {
            None => Ok(()),
            Some(index) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "remote side of piece {index} is not wholly inside the peer's region of {length} bytes"
                ),
            )),
        }
    }
}

impl Session for RdmaSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let (completer, status) = Status::pair(Origin::backend(&self.backend, true, options.tag));
        completer.submit();
        let start = || {
            let core = self.core.upgrade().filter(|core| !core.is_shut()).ok_or_else(shut)?;
            if options.notify.is_some() && !self.messages {
                return Err(Capabilities::unsupported(NAME, "messages to a peer of the older protocol"));
            }
            if let Some(gone) = self.peer.gone() {
                return Err(gone);
            }
            let pin = self.local.pin()?;
            if core.regions.get(self.local.id()).is_none() {
                return Err(unregistered(&self.local));
            }
            Ok((core, pin))
        };
        let (core, pin) = match start() {
            Ok(started) => started,
            Err(error) => {
                completer.fail(error);
                return status;
            }
        };
        let deadline = options.deadline.and_then(|after| Some((after, core.clock.now().checked_add(after)?)));
        let submission = Submission {
            completer,
            pin,
            op,
            plan: Plan::new(pieces, self.limits),
            ways: Arc::clone(&self.ways),
            note: options.notify.clone(),
            deadline,
            refusal: self.check(op, pieces).err(),
        };
        self.peer.drive(&core, |flow, now, out| flow.submit(submission, now, out));
        status
    }

    fn alive(&self) -> bool {
        self.core.upgrade().is_some_and(|core| !core.is_shut())
            && self.peer.gone().is_none()
            && self.peer.look(crate::flow::Flow::is_alive)
    }
}

/// Between a region registered here and one of a peer's.
pub(crate) fn ways(core: &Core, local: &Region, remote: &MemoryBlob) -> Result<Arc<Ways>> {
    let registered = core.regions.get(local.id()).ok_or_else(|| unregistered(local))?;
    let remote_keys = remote
        .keys
        .iter()
        .map(|key| key.map(|key| crate::flow::RemoteKey { address: remote.address, key }))
        .collect();
    Ok(Arc::new(Ways {
        local_address: local.address() as u64,
        local: registered.keys.iter().map(|keys| keys.map(|keys| keys.local)).collect(),
        near: registered.near.clone(),
        remote: remote_keys,
        dead: OnceLock::new(),
    }))
}

pub(crate) fn unregistered(region: &Region) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "region {} is not registered with the rdma backend (any more); register it first",
            region.id()
        ),
    )
}
