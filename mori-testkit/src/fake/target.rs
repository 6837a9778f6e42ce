//! The fake as a target: what it checks before a byte moves, and what keeps it from vanishing meanwhile.

use std::sync::Arc;

use mori_core::{Error, ErrorKind, Op, Pin, Region, Result};

use super::core::{Core, Phase};
use super::fabric::Gate;
use super::job::{Copying, lost};
use super::locked;
use crate::mutants::Flaw;

/// A region of a target while a transfer uses it. The target does not finish its shutdown before it is dropped.
pub(super) struct Served {
    node: Arc<Core>,
    region: Region,
    engine: mori_core::EngineKey,
    /// Held, never read.
    pin: Option<Pin>,
}

impl Core {
    /// Checks everything that the other side could have wrong, and pins the region.
    pub(super) fn serve(self: &Arc<Self>, copying: &Copying) -> Result<Served> {
        let region = {
            let mut state = locked(&self.state);
            if state.phase != Phase::Attached {
                return Err(lost(&copying.target.engine, "has shut down"));
            }
            let region = state.by_key.get(&copying.key).cloned().ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    "the target knows no region of this key (any more); ask it for a fresh descriptor",
                )
            })?;
            state.serving += 1;
            region
        };
        // From here on the count is given back when `served` is dropped.
        let mut served =
            Served { node: Arc::clone(self), region, engine: copying.target.engine.clone(), pin: None };
        if !self.has(Flaw::KeepsStaleKeys) {
            served.pin = Some(served.region.pin()?);
        }
        let access = served.region.access();
        let granted = match copying.op {
            Op::Read => access.remote_read,
            Op::Write => access.remote_write,
        };
        if !granted && !self.has(Flaw::IgnoresAccess) {
            return Err(Error::new(
                ErrorKind::AccessDenied,
                format!("{:?} is not among the rights of the target's region", copying.op),
            ));
        }
        if !self.has(Flaw::IgnoresRanges) {
            for piece in &copying.pieces {
                served
                    .region
                    .piece(piece.remote, piece.length)
                    .map_err(|error| error.context("at the target"))?;
            }
        }
        Ok(served)
    }
}

impl Served {
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Looked at between two chunks: a target that has gone meanwhile gets no further byte.
    pub(super) fn still_answers(&self) -> Result<()> {
        let state = locked(&self.node.state);
        if state.phase != Phase::Attached {
            return Err(lost(&self.engine, "has shut down"));
        }
        if state.gate == Gate::Cut {
            return Err(lost(&self.engine, "is cut off"));
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.pin.take());
        locked(&self.node.state).serving -= 1;
        self.node.changed.notify_all();
    }
}
