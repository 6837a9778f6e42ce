//! What happens because time has passed.

use std::time::Instant;

use mori_core::{Error, ErrorKind};

use super::lane::{Blame, DrainPhase, Work};
use super::transfer::{Phase, Transfer};
use super::{Actions, Flow};

impl Flow {
    /// When [`Flow::tick`] has something to do next.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let lanes = self.lanes.iter().filter_map(|lane| match &lane.drain {
            Some(drain) => Some(drain.until),
            None => lane.full_until,
        });
        let timer = self.timers.first().map(|(at, _)| *at);
        lanes.chain(timer).min()
    }

    /// Has a transfer looked at, at that time at the latest.
    pub(super) fn arm(&mut self, key: u64, at: Instant) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if transfer.timer.is_none_or(|armed| at < armed) {
            if let Some(later) = transfer.timer.replace(at) {
                self.timers.remove(&(later, key));
            }
            self.timers.insert((at, key));
        }
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut Actions) {
        while let Some((at, key)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let Some(transfer) = self.transfers.get_mut(&key) else { continue };
            transfer.timer = None;
            if let Some(next) = self.check(key, now, out) {
                self.arm(key, next);
            }
        }
        for lane in &mut self.lanes {
            lane.full_until = lane.full_until.filter(|until| *until > now);
        }
        let overdue: Vec<u32> = self
            .lanes
            .iter()
            .filter(|lane| {
                lane.drain
                    .as_ref()
                    .is_some_and(|drain| drain.phase == DrainPhase::Retiring && now >= drain.until)
            })
            .map(|lane| lane.number)
            .collect();
        for number in overdue {
            let words = format!("engine {} did not end its side of a connection in time", self.peer);
            self.retired(number, &Err(Error::new(ErrorKind::PeerLost, words)), now, out);
        }
        self.drain_all(now, out);
        self.turn(now, out);
    }

    /// Looks at a transfer, and says when to look again.
    fn check(&mut self, key: u64, now: Instant, out: &mut Actions) -> Option<Instant> {
        let expired = self
            .transfers
            .get(&key)
            .filter(|transfer| !transfer.is_ending())
            .and_then(|transfer| transfer.deadline)
            .filter(|(_, at)| *at <= now);
        if let Some((after, _)) = expired {
            let why = self.late(key, after, now);
            self.stop(key, why, now, out);
        }
        let transfer = self.transfers.get(&key)?;
        if let Phase::MessageWaits { since, .. } | Phase::MessageSent { since, .. } = &transfer.phase {
            let until = *since + self.settings.peer_timeout;
            if now < until {
                let deadline = transfer.deadline.map(|(_, at)| at).filter(|at| *at > now);
                return Some(deadline.map_or(until, |at| at.min(until)));
            }
            self.message_late(key, out);
            return None;
        }
        if let Some(stop) = &transfer.stop
            && transfer.outstanding > 0
        {
            if now < stop.grace {
                return Some(stop.grace);
            }
            self.break_off(key, now, out);
            return None;
        }
        let mut next = transfer.deadline.map(|(_, at)| at).filter(|at| *at > now);
        if transfer.queued && !transfer.is_ending() {
            let until = transfer.progress + self.settings.admission_timeout;
            if now >= until {
                let error = Error::new(ErrorKind::ResourceExhausted, self.stuck(transfer));
                if let Some(transfer) = self.transfers.get_mut(&key) {
                    transfer.fail(error);
                }
                self.settle(key, now, out);
                return None;
            }
            next = Some(next.map_or(until, |at| at.min(until)));
        }
        next
    }

    /// Tears down the lanes that carry requests of a transfer which has to stop.
    fn break_off(&mut self, key: u64, now: Instant, out: &mut Actions) {
        let cause =
            Error::new(ErrorKind::Cancelled, "the queue pair was closed because a transfer was cancelled");
        for at in 0..self.lanes.len() {
            let carries = |work: Work| matches!(work, Work::Data { key: other, .. } if other == key);
            if self.lanes.get(at).is_some_and(|lane| lane.is_up() && lane.queue.works().any(carries)) {
                self.fail_lane(at, Blame::Nobody, cause.clone(), now, out);
            }
        }
    }

    fn stuck(&self, transfer: &Transfer) -> String {
        let posted: usize = self.lanes.iter().map(|lane| lane.queue.used()).sum();
        format!(
            "SQ full: no place in a send queue to engine {} for {:?}; {posted} requests in flight, {} transfers waiting; {} of {} bytes done",
            self.peer,
            self.settings.admission_timeout,
            self.ready.len(),
            transfer.moved,
            transfer.plan.bytes()
        )
    }

    /// Why a transfer whose deadline has passed is not done (E2).
    fn late(&self, key: u64, after: std::time::Duration, now: Instant) -> Error {
        let Some(transfer) = self.transfers.get(&key) else {
            return Error::new(ErrorKind::Cancelled, "the transfer's deadline has passed");
        };
        let waiting = match &transfer.phase {
            Phase::MessageWaits { .. } => "a place to send its message".to_owned(),
            Phase::MessageSent { .. } => "the target to take its message".to_owned(),
            Phase::Data if transfer.queued && !self.has_lane() => {
                format!("the connection to engine {}", self.peer)
            }
            Phase::Data if transfer.queued => {
                format!("a place in a send queue to engine {} (SQ full)", self.peer)
            }
            Phase::Data => format!("{} requests in flight to engine {}", transfer.outstanding, self.peer),
        };
        let heard = self.heard.map_or_else(String::new, |at| {
            format!(", whose process was last heard of {:.1?} ago", now.saturating_duration_since(at))
        });
        Error::new(
            ErrorKind::Cancelled,
            format!(
                "the transfer's deadline of {after:?} has passed; {} of {} bytes done; waiting for {waiting}{heard}",
                transfer.moved,
                transfer.plan.bytes()
            ),
        )
    }

    /// The target takes no message, or does not answer it.
    fn message_late(&mut self, key: u64, out: &mut Actions) {
        let words = format!(
            "engine {} has not taken the message for {:?}; its process may be stopped",
            self.peer, self.settings.peer_timeout
        );
        let error = Error::new(ErrorKind::PeerLost, words);
        let sent = self.transfers.get(&key).is_some_and(|t| matches!(t.phase, Phase::MessageSent { .. }));
        if sent {
            self.message_ended(key, Err(error), out);
        } else {
            self.message_unsent(key, &error, out);
        }
    }
}
