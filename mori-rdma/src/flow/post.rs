//! Posting: which transfer is next, which lane takes its chain, and what happens if the device does not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mori_core::{Error, ErrorKind};

use super::lane::{Blame, Work};
use super::{Actions, Flow, Posting, Ways};
use crate::plan::Span;

/// Where a chain can go.
pub(super) enum Choice {
    /// To this lane.
    Lane(usize),
    /// Nowhere yet: a lane is full, or being made.
    Wait,
    /// Nowhere.
    Never(Error),
}

/// What became of a transfer's turn.
enum Turn {
    /// It has more to post, and may be able to.
    Again,
    /// It has more to post, and cannot now.
    Waits,
    /// It has nothing more to post.
    Done,
}

/// How long nothing is posted on a queue that said it was full although it had nothing left to complete, and how long
/// otherwise, if no completion comes before.
const FULL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

impl Flow {
    /// Gives every transfer with requests to post its turns, until nothing can be posted.
    pub(super) fn post(&mut self, now: Instant, out: &mut Actions) {
        if !self.ready.is_empty() {
            self.complete_paths(now, out);
        }
        let mut waiting = VecDeque::new();
        while let Some(key) = self.ready.pop_front() {
            let full =
                self.lanes.iter().any(|lane| lane.is_up()) && !self.lanes.iter().any(|lane| lane.has_room());
            if full {
                // Nobody else's turn can go better.
                waiting.push_back(key);
                break;
            }
            match self.post_chain(key, now, out) {
                Turn::Again => self.ready.push_back(key),
                Turn::Waits => waiting.push_back(key),
                Turn::Done => {
                    if let Some(transfer) = self.transfers.get_mut(&key) {
                        transfer.queued = false;
                        self.settle(key, now, out);
                    }
                }
            }
        }
        // Those that waited come first, in their order.
        for key in waiting.into_iter().rev() {
            self.ready.push_front(key);
        }
    }

    /// Makes lanes that are missing while others carry. Without any, whoever chooses one asks for those that it can use.
    fn complete_paths(&mut self, now: Instant, out: &mut Actions) {
        if !self.has_lane() {
            return;
        }
        for path in 0..self.paths.len() {
            if self.wants(path, now) {
                out.connect.push(path);
            }
        }
    }

    /// The lane for a chain of somebody with these keys; asks for a connection if there is none.
    pub(super) fn choose(&mut self, ways: Option<&Ways>, now: Instant, out: &mut Actions) -> Choice {
        let usable =
            |path: usize, remote: usize| ways.is_none_or(|ways| ways.between(path, remote).is_some());
        let rank = |path: usize| ways.map_or(0, |ways| ways.rank(path));
        // A near lane that is full is waited for, rather than a far one taken.
        let up = self.lanes.iter().filter(|lane| lane.is_up() && usable(lane.path, lane.remote));
        let nearest = up.map(|lane| rank(lane.path)).min();
        let mut best: Option<(u64, usize)> = None;
        for (at, lane) in self.lanes.iter().enumerate() {
            let serves = usable(lane.path, lane.remote) && Some(rank(lane.path)) == nearest;
            if lane.has_room() && serves && best.is_none_or(|(load, _)| lane.load < load) {
                best = Some((lane.load, at));
            }
        }
        if let Some((_, at)) = best {
            return Choice::Lane(at);
        }
        if nearest.is_some() {
            return Choice::Wait;
        }
        let paths: Vec<usize> = (0..self.paths.len())
            .filter(|&at| self.remote_of(at).is_some_and(|remote| usable(at, remote)))
            .collect();
        let mut wait = false;
        for &path in &paths {
            if self.wants(path, now) {
                out.connect.push(path);
            }
            wait |= self.paths.get(path).is_some_and(|path| path.connecting);
        }
        if wait {
            return Choice::Wait;
        }
        let penalty = paths.iter().filter_map(|&path| self.paths.get(path)?.penalty.as_ref()).next();
        Choice::Never(match penalty {
            Some((_, cause)) => cause.clone(),
            None => Error::new(
                ErrorKind::NotFound,
                format!("no device here and device of engine {} have both regions registered", self.peer),
            ),
        })
    }

    fn post_chain(&mut self, key: u64, now: Instant, out: &mut Actions) -> Turn {
        let Some(transfer) = self.transfers.get(&key) else { return Turn::Done };
        if !transfer.plan.pending() {
            return Turn::Done;
        }
        let ways = std::sync::Arc::clone(&transfer.ways);
        let choice = match ways.dead.get() {
            Some(dead) => Choice::Never(dead.clone()),
            None => self.choose(Some(&ways), now, out),
        };
        let at = match choice {
            Choice::Lane(at) => at,
            Choice::Wait => return Turn::Waits,
            Choice::Never(error) => {
                if let Some(transfer) = self.transfers.get_mut(&key) {
                    transfer.fail(error);
                }
                return Turn::Done;
            }
        };
        let (Some(transfer), Some(lane)) = (self.transfers.get_mut(&key), self.lanes.get_mut(at)) else {
            return Turn::Done;
        };
        let Some(keys) = ways.between(lane.path, lane.remote) else { return Turn::Done };
        let Some(wire) = lane.wire.clone() else { return Turn::Done };
        let count = self.settings.max_chain.min(lane.queue.credits());
        let Some(span) = transfer.plan.take(count, self.settings.chain_bytes, &mut self.chain) else {
            return Turn::Done;
        };
        let bytes = self.chain.bytes();
        let Some(ticket) = lane.queue.reserve(Work::Data { key, span, bytes }, span.count) else {
            transfer.plan.give_back(span, 0);
            return Turn::Waits;
        };
        let posting =
            Posting { op: transfer.op, chain: &self.chain, keys, first_id: lane.queue.id(ticket, 0) };
        let Err(refused) = wire.post(&posting) else {
            lane.queue.posted(ticket, span.count);
            lane.load += bytes;
            transfer.outstanding += span.count;
            transfer.progress = now;
            return if transfer.plan.pending() { Turn::Again } else { Turn::Done };
        };
        // Some are posted, the others are not.
        let accepted = refused.accepted.min(span.count);
        let part = Span { start: span.start, count: accepted };
        let carried = transfer.plan.bytes_of(part, accepted);
        lane.queue.amend(ticket, Work::Data { key, span: part, bytes: carried });
        lane.queue.posted(ticket, accepted);
        lane.load += carried;
        transfer.outstanding += accepted;
        if accepted > 0 {
            transfer.progress = now;
        }
        if refused.full {
            transfer.plan.give_back(span, accepted);
            let pause = if lane.queue.used() == 0 || lane.queue.has_silent_tail() { FULL.0 } else { FULL.1 };
            lane.full_until = Some(now + pause);
            // Another lane may have room.
            return Turn::Again;
        }
        let what = transfer.plan.describe(span, accepted.min(span.count.saturating_sub(1)));
        transfer.cut = true;
        transfer.fail(refused.error.context(format!("the request for {what} could not be posted")));
        Turn::Done
    }

    /// A chain that was accepted in part has no signal at its end; something has to follow that has one.
    pub(super) fn follow_silent_tails(&mut self, now: Instant, out: &mut Actions) {
        for at in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(at) else { break };
            if !lane.is_up() || !lane.queue.has_silent_tail() || lane.full_until.is_some() {
                continue;
            }
            let Some(wire) = lane.wire.clone() else { continue };
            let refused = match lane.queue.reserve(Work::Nothing, 1) {
                Some(ticket) => {
                    let posted = wire.post_nothing(lane.queue.id(ticket, 0));
                    lane.queue.posted(ticket, usize::from(posted.is_ok()));
                    match posted {
                        Ok(()) => continue,
                        Err(refused) => refused,
                    }
                }
                None => super::Refused {
                    accepted: 0,
                    full: false,
                    error: Error::new(
                        ErrorKind::ResourceExhausted,
                        "the send queue is full of requests without a signal",
                    ),
                },
            };
            if refused.full {
                lane.full_until = Some(now + FULL.0);
            } else {
                self.fail_lane(at, Blame::Nobody, refused.error, now, out);
            }
        }
        self.drain_all(now, out);
    }
}
