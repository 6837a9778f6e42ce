//! The end of a lane: from the first failure until nothing of it can move a byte any more.

use std::time::Instant;

use mori_core::{Error, ErrorKind, Op, Result};

use super::lane::{Blame, Drain, DrainPhase, Unfinished, Work};
use super::{Actions, Flow};
use crate::plan::Span;

/// How often a transfer goes another way before it fails with the last cause.
const DETOURS: u32 = 4;

impl Flow {
    /// Begins the end of a lane, unless it has begun. A later loss of the peer only ends it sooner.
    pub(super) fn fail_lane(
        &mut self,
        at: usize,
        blame: Blame,
        cause: Error,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        match &mut lane.drain {
            Some(drain) if matches!(blame, Blame::Everybody) => {
                drain.blame = blame;
                drain.cause = cause;
            }
            Some(_) => {}
            None => {
                lane.drain = Some(Drain {
                    blame,
                    cause,
                    until: now + self.settings.peer_timeout,
                    unfinished: Vec::new(),
                    phase: DrainPhase::Flushing,
                    flushed: 0,
                });
                out.fail.extend(lane.wire.clone());
            }
        }
    }

    /// Looks at every lane that is ending.
    pub(super) fn drain_all(&mut self, now: Instant, out: &mut Actions) {
        let mut at = 0;
        while at < self.lanes.len() {
            // A lane that is over leaves its place to another one.
            if !self.drain_lane(at, now, out) {
                at += 1;
            }
        }
    }

    /// Goes on with the end of a lane; `true` if it is over and removed.
    fn drain_lane(&mut self, at: usize, now: Instant, out: &mut Actions) -> bool {
        let Some(lane) = self.lanes.get_mut(at) else { return false };
        let (number, used) = (lane.number, lane.queue.used());
        let Some(drain) = &mut lane.drain else { return false };
        match drain.phase {
            DrainPhase::Flushing if used > 0 => {
                if now >= drain.until {
                    drain.phase = DrainPhase::Destroying;
                    out.destroy.extend(lane.wire.take().map(|wire| (number, wire)));
                }
                false
            }
            DrainPhase::Flushing => self.quiet_here(at, now, out),
            DrainPhase::Destroying => false,
            DrainPhase::Retiring if matches!(drain.blame, Blame::Everybody) => {
                self.resolve(at, &Ok(()), |_| true, now, out);
                self.remove(at, out);
                true
            }
            DrainPhase::Retiring => false,
        }
    }

    /// The queue pair of a lane is destroyed, so that nothing of it moves any more.
    pub(crate) fn destroyed(&mut self, number: u32, now: Instant, out: &mut Actions) {
        let Some(at) = self.at(number) else { return };
        let mut lost: Vec<(Work, usize, usize)> = Vec::new();
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.queue.give_up(|work, range| lost.push((work, range.start, range.end)));
            for (work, from, to) in lost {
                lane.unfinished(work, from, to);
            }
        }
        self.quiet_here(at, now, out);
        self.drain_all(now, out);
        self.turn(now, out);
    }

    /// Nothing of the lane moves a byte of this side any more. Reads are over with that, writes when the peer's side is quiet, too.
    fn quiet_here(&mut self, at: usize, now: Instant, out: &mut Actions) -> bool {
        let Some(lane) = self.lanes.get_mut(at) else { return false };
        let Some(drain) = &mut lane.drain else { return false };
        drain.phase = DrainPhase::Retiring;
        drain.until = now + self.settings.peer_timeout;
        let (number, cause) = (lane.number, drain.cause.clone());
        let lost = matches!(drain.blame, Blame::Everybody);
        for (_, sent) in std::mem::take(&mut lane.messages) {
            let unknown = || {
                let words = "the bytes are in place; whether the message to the target arrived is not known";
                Err(cause.context(words))
            };
            self.message_ended(sent.key, sent.answer.unwrap_or_else(unknown), out);
        }
        if lost {
            self.resolve(at, &Ok(()), |_| true, now, out);
        } else {
            out.retire.push(number);
            self.resolve(at, &Ok(()), |op| op == Op::Read, now, out);
        }
        let over = self
            .lanes
            .get(at)
            .and_then(|lane| lane.drain.as_ref())
            .is_none_or(|drain| drain.unfinished.is_empty());
        if over {
            self.remove(at, out);
        }
        over
    }

    /// The peer has ended its side of a lane, or will not say.
    pub(crate) fn retired(&mut self, number: u32, answer: &Result<()>, now: Instant, out: &mut Actions) {
        if let Some(at) = self.at(number) {
            self.resolve(at, answer, |_| true, now, out);
            self.remove(at, out);
        }
        self.turn(now, out);
    }

    fn remove(&mut self, at: usize, out: &mut Actions) {
        let lane = self.lanes.swap_remove(at);
        debug_assert!(lane.queue.used() == 0, "a lane was removed with requests posted");
        out.gone.push(lane.number);
        out.garbage.extend(lane.wire);
    }

    /// Decides what becomes of the requests that a lane did not carry out, of transfers in the directions that `which` names.
    fn resolve(
        &mut self,
        at: usize,
        remote: &Result<()>,
        which: impl Fn(Op) -> bool,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let whose = (lane.path, lane.number);
        let Some(drain) = &mut lane.drain else { return };
        let (blame, cause, flushed) = (drain.blame.clone(), drain.cause.clone(), drain.flushed);
        let all = std::mem::take(&mut drain.unfinished);
        let op =
            |entry: &Unfinished| self.transfers.get(&entry.key).is_none_or(|transfer| which(transfer.op));
        let (now_over, later): (Vec<Unfinished>, Vec<Unfinished>) = all.into_iter().partition(op);
        drain.unfinished = later;
        let cause = match flushed {
            0 => cause,
            1 => suffixed(&cause, " (and one more request was flushed)"),
            more => suffixed(&cause, &format!(" (and {more} more requests were flushed)")),
        };
        for entry in now_over {
            self.resolve_one(whose, entry, (&blame, &cause, remote), now, out);
        }
    }

    fn resolve_one(
        &mut self,
        (path, lane): (usize, u32),
        entry: Unfinished,
        (blame, cause, remote): (&Blame, &Error, &Result<()>),
        now: Instant,
        out: &mut Actions,
    ) {
        let Unfinished { key, start, from, to } = entry;
        let Some(transfer) = self.transfers.get(&key) else { return };
        let elsewhere = transfer.detours.0 < DETOURS && self.works_elsewhere(path, key);
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        transfer.outstanding = transfer.outstanding.saturating_sub(to - from);
        let again = match (blame, remote) {
            _ if transfer.is_ending() => {
                transfer.cut = true;
                // With the peer gone, nothing can be said of its side.
                if let Err(error) = remote
                    && error.kind() == ErrorKind::PeerLost
                {
                    transfer.fail(error.clone());
                }
                if let (Blame::Transfer(guilty), Some(_)) = (blame, &transfer.failure)
                    && *guilty == key
                {
                    transfer.failure = Some(cause.clone());
                }
                false
            }
            (Blame::Everybody, _) => {
                transfer.cut = true;
                transfer.fail(cause.clone());
                false
            }
            (Blame::Path, remote) if !elsewhere || remote.is_err() => {
                transfer.cut = true;
                transfer.fail(cause.clone());
                false
            }
            (_, Err(error)) => {
                transfer.cut = true;
                transfer
                    .fail(error.context(
                        "the way to the peer failed, and the peer did not confirm that it is quiet",
                    ));
                false
            }
            (Blame::Path, _) => {
                if transfer.detours.1 != lane {
                    transfer.detours = (transfer.detours.0 + 1, lane);
                }
                true
            }
            (Blame::Transfer(_) | Blame::Nobody, _) => match transfer.ways.dead.get().cloned() {
                Some(dead) => {
                    transfer.cut = true;
                    transfer.fail(dead);
                    false
                }
                None => true,
            },
        };
        if again {
            transfer.plan.give_back(Span { start, count: to }, from);
            if !transfer.queued {
                transfer.queued = true;
                self.ready.push_back(key);
                let at = now + self.settings.admission_timeout;
                self.arm(key, at);
            }
        } else {
            self.settle(key, now, out);
        }
    }

    /// Whether a transfer can go over another path than this one: one that works, or that nothing is known to be wrong with.
    fn works_elsewhere(&self, path: usize, key: u64) -> bool {
        let Some(transfer) = self.transfers.get(&key) else { return false };
        self.paths.iter().enumerate().any(|(other, state)| {
            let up = || self.lanes.iter().any(|lane| lane.path == other && lane.is_up());
            other != path
                && transfer.ways.between(other, state.remote).is_some()
                && (state.penalty.is_none() || up())
        })
    }
}

/// The same error with more words at its end.
fn suffixed(error: &Error, words: &str) -> Error {
    let message = format!("{}{words}", error.message());
    match error.cause() {
        Some(cause) => Error::with_cause(error.kind(), message, cause),
        None => Error::new(error.kind(), message),
    }
}
