//! A transfer in progress at its initiator.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mori_core::{Completer, Error, Notify, Op, Pin};

use super::lane::Keys;
use crate::plan::Plan;

/// How a region of the peer is reached through one of the peer's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteKey {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// Between two regions: their keys on every device of either side. Shared by the transfers of a session.
#[derive(Debug)]
pub(crate) struct Ways {
    pub(crate) local_address: u64,
    /// By local device.
    pub(crate) local: Vec<Option<u32>>,
    /// Whether a local device is among the nearest to the memory; the others carry only when none of these does.
    pub(crate) near: Vec<bool>,
    /// By the peer's device.
    pub(crate) remote: Vec<Option<RemoteKey>>,
    /// Set when the peer's device has refused its keys: no transfer needs to try them again.
    pub(crate) dead: OnceLock<Error>,
}

impl Ways {
    fn is_near(&self, local: usize) -> bool {
        self.near.get(local).copied().unwrap_or(true)
    }

    /// How much worse than others a local device is: 0 for the nearest.
    pub(crate) fn rank(&self, local: usize) -> u8 {
        u8::from(!self.is_near(local))
    }

    /// The keys for a pair of devices, if both know their region.
    pub(crate) fn between(&self, local: usize, remote: usize) -> Option<Keys> {
        let local_key = self.local.get(local).copied().flatten()?;
        let RemoteKey { address, key } = self.remote.get(remote).copied().flatten()?;
        Some(Keys { local_address: self.local_address, local_key, remote_address: address, remote_key: key })
    }
}

/// A stop that was asked for.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) why: Error,
    /// Until when what is posted may go on.
    pub(crate) grace: Instant,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Its bytes are being carried.
    Data,
    /// Its message waits to be sent. With an error, it is about the transfer's failure.
    MessageWaits { verdict: Option<Error>, since: Instant },
    /// Its message is on its way.
    MessageSent { verdict: Option<Error>, since: Instant },
}

pub(crate) struct Transfer {
    pub(crate) completer: Completer,
    /// Keeps the local region open (E3).
    pub(crate) pin: Pin,
    pub(crate) op: Op,
    pub(crate) plan: Plan,
    pub(crate) ways: Arc<Ways>,
    pub(crate) note: Option<Notify>,
    pub(crate) deadline: Option<(Duration, Instant)>,
    /// Requests that are posted, or of which it is not known yet whether they can still take place.
    pub(crate) outstanding: usize,
    pub(crate) moved: u64,
    pub(crate) failure: Option<Error>,
    /// Whether some of its bytes will not be carried.
    pub(crate) cut: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) phase: Phase,
    /// Whether it is in the queue of those with requests to post.
    pub(crate) queued: bool,
    /// When it last made progress, or was submitted.
    pub(crate) progress: Instant,
    /// How often it went another way, and because of which lane it did last.
    pub(crate) detours: (u32, u32),
    /// The earliest time at which it is looked at anyway.
    pub(crate) timer: Option<Instant>,
}

/// What a submission brings.
pub(crate) struct Submission {
    pub(crate) completer: Completer,
    pub(crate) pin: Pin,
    pub(crate) op: Op,
    pub(crate) plan: Plan,
    pub(crate) ways: Arc<Ways>,
    pub(crate) note: Option<Notify>,
    pub(crate) deadline: Option<(Duration, Instant)>,
    /// Why it is over before it began, if it is: it then only tells its target, if that was asked for.
    pub(crate) refusal: Option<Error>,
}

impl Transfer {
    pub(crate) fn new(submission: Submission, now: Instant) -> Self {
        let Submission { completer, pin, op, plan, ways, note, deadline, refusal } = submission;
        let mut transfer = Self {
            completer,
            pin,
            op,
            plan,
            ways,
            note,
            deadline,
            outstanding: 0,
            moved: 0,
            failure: None,
            cut: false,
            stop: None,
            phase: Phase::Data,
            queued: false,
            progress: now,
            detours: (0, 0),
            timer: None,
        };
        if let Some(refusal) = refusal {
            transfer.fail(refusal);
        }
        transfer
    }

    /// Whether no more of its requests are to be posted.
    pub(crate) fn is_ending(&self) -> bool {
        self.failure.is_some() || self.stop.is_some()
    }

    /// Keeps the first failure, and posts nothing more.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.drop_rest();
    }

    /// Posts nothing more.
    pub(crate) fn drop_rest(&mut self) {
        self.cut |= self.plan.pending();
        self.plan.drop_rest();
    }
}
