//! The flow of transfers to one peer: a state machine without devices, threads or clocks.
//!
//! Submissions, completions, connections, answers of the control plane and the passing of time go in; requests are posted through
//! [`Wire`], and what else has to be done comes out as [`Actions`], which the caller carries out when it no longer holds the
//! peer's lock.
//!
//! # Rules
//!
//! 1. A transfer ends exactly once (S7), when none of its requests is outstanding: each has completed, or its queue pair has
//!    given back everything that was posted, or is destroyed (E1).
//! 2. A request that a failed lane did not carry out stays outstanding until the lane is quiet. For a write that includes the peer's
//!    side: only when the peer says that its end takes nothing more is the request posted again, or the transfer ended.
//! 3. The first completion of a lane that is no flush is its cause. If it is one transfer's fault, that one fails, and the
//!    others' requests are posted again. If it is the way's fault, transfers go another way, or fail with it.
//! 4. Nothing is posted without a credit, and nobody sleeps for one: transfers with requests to post take turns, a chain each.
//! 5. A transfer that makes no progress for `admission_timeout` while it has requests to post fails, as does one that is submitted beyond
//!    `max_transfers`: `SQ full`.
//! 6. A message is sent after the last byte, once. Its transfer ends when the target has answered that it is in its queue.

mod complete;
mod drain;
mod lane;
mod message;
mod post;
#[cfg(test)]
mod tests;
mod timer;
mod transfer;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::{Completer, EngineKey, Error, ErrorKind, Pin, Result};

use crate::plan::Chain;
use crate::send_queue::{Progress, WorkId};
use crate::verbs::WcStatus;

use lane::{Blame, DrainPhase, Work};
pub(crate) use lane::{Lane, Message, Posting, Refused, Wire};
use transfer::{Phase, Stop, Transfer};
pub(crate) use transfer::{RemoteKey, Submission, Ways};

/// What the flow must know of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) max_chain: usize,
    pub(crate) chain_bytes: u64,
    pub(crate) max_transfers: usize,
    pub(crate) lanes_per_path: usize,
    pub(crate) admission_timeout: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) peer_timeout: Duration,
}

/// A transfer that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) completer: Completer,
    pub(crate) pin: Pin,
    pub(crate) result: Result<()>,
}

/// A failure that the target is to learn of, and that no lane can tell.
#[derive(Debug)]
pub(crate) struct LateNote {
    pub(crate) transfer: u64,
    pub(crate) tag: u64,
    pub(crate) message: Vec<u8>,
    pub(crate) error: Error,
}

/// What is to be done when the peer's lock is free.
#[derive(Default)]
pub(crate) struct Actions {
    /// Transfers to complete.
    pub(crate) finished: Vec<Finished>,
    /// Queue pairs to move to their error state.
    pub(crate) fail: Vec<Arc<dyn Wire>>,
    /// Queue pairs to destroy; then [`Flow::destroyed`].
    pub(crate) destroy: Vec<(u32, Arc<dyn Wire>)>,
    /// Queue pairs that are not needed any more.
    pub(crate) garbage: Vec<Arc<dyn Wire>>,
    /// Lanes that are no more.
    pub(crate) gone: Vec<u32>,
    /// Paths to connect; then [`Flow::connected`].
    pub(crate) connect: Vec<usize>,
    /// Lanes of which the peer has to end its side; then [`Flow::retired`].
    pub(crate) retire: Vec<u32>,
    /// Failures to report over the link.
    pub(crate) notes: Vec<LateNote>,
}

/// A completion of a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) id: WorkId,
    pub(crate) status: WcStatus,
    pub(crate) vendor: u32,
}

/// The lanes between one device of ours and one of the peer's.
#[derive(Debug)]
struct Path {
    remote: usize,
    connecting: bool,
    /// Why it does not work, and until when it is not tried again.
    penalty: Option<(Instant, Error)>,
    backoff: Duration,
}

/// The first pause before a path that did not work is tried again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

pub(crate) struct Flow {
    peer: EngineKey,
    settings: Settings,
    transfers: HashMap<u64, Transfer>,
    /// Those with requests to post.
    ready: VecDeque<u64>,
    /// Those with a message to send.
    messages: VecDeque<u64>,
    lanes: Vec<Lane>,
    paths: Vec<Path>,
    /// When which transfer is looked at; each has one entry at most.
    timers: BTreeSet<(Instant, u64)>,
    /// Why nothing is taken any more.
    closed: Option<Error>,
    /// Why the peer was lost, until it is reached again.
    lost: Option<Error>,
    /// When the peer's process last said something on its control connection.
    heard: Option<Instant>,
    chain: Chain,
    progress: Vec<Progress<Work>>,
}

/// What a flow holds right now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) transfers: usize,
    pub(crate) lanes: usize,
    pub(crate) draining: usize,
    pub(crate) credits: usize,
    pub(crate) records: usize,
    pub(crate) messages: usize,
}

impl Flow {
    /// The flow to `peer`, with a path for each of our devices: `remotes` names the peer's device at the other end.
    pub(crate) fn new(peer: EngineKey, settings: Settings, remotes: impl Iterator<Item = usize>) -> Self {
        let path = |remote| Path { remote, connecting: false, penalty: None, backoff: BACKOFF.0 };
        Self {
            peer,
            settings,
            transfers: HashMap::new(),
            ready: VecDeque::new(),
            messages: VecDeque::new(),
            lanes: Vec::new(),
            paths: remotes.map(path).collect(),
            timers: BTreeSet::new(),
            closed: None,
            lost: None,
            heard: None,
            chain: Chain::default(),
            progress: Vec::new(),
        }
    }

    pub(crate) fn held(&self) -> Held {
        Held {
            transfers: self.transfers.len(),
            lanes: self.lanes.len(),
            draining: self.lanes.iter().filter(|lane| !lane.is_up()).count(),
            credits: self.lanes.iter().map(|lane| lane.queue.used()).sum(),
            records: self.lanes.iter().map(|lane| lane.queue.records()).sum(),
            messages: self.lanes.iter().map(|lane| lane.messages.len()).sum(),
        }
    }

    /// Whether completions are expected.
    pub(crate) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.queue.used() > 0 || !lane.messages.is_empty())
    }

    pub(crate) fn has_lane(&self) -> bool {
        self.lanes.iter().any(Lane::is_up)
    }

    /// The device of the peer at the other end of a path.
    pub(crate) fn remote_of(&self, path: usize) -> Option<usize> {
        self.paths.get(path).map(|path| path.remote)
    }

    /// How many lanes a path lacks.
    pub(crate) fn missing(&self, path: usize) -> usize {
        let up = self.lanes.iter().filter(|lane| lane.path == path && lane.is_up()).count();
        self.settings.lanes_per_path.saturating_sub(up)
    }

    /// Why the last attempts to reach the peer failed, if no path works and none is being connected.
    pub(crate) fn trouble(&self) -> Option<Error> {
        if let Some(closed) = &self.closed {
            return Some(closed.clone());
        }
        if self.has_lane() || self.paths.iter().any(|path| path.connecting) {
            return None;
        }
        let penalty = self.paths.iter().find_map(|path| path.penalty.as_ref()).map(|(_, cause)| cause);
        penalty.or(self.lost.as_ref()).cloned()
    }

    /// Whether a transfer can be expected to work: a lane stands, or nothing is known to be wrong.
    pub(crate) fn is_alive(&self) -> bool {
        let wrong = self.lost.is_some() || self.paths.iter().any(|path| path.penalty.is_some());
        self.closed.is_none() && (self.has_lane() || !wrong)
    }

    /// Takes note of when the peer's process was last heard of.
    pub(crate) fn set_heard(&mut self, at: Option<Instant>) {
        self.heard = at;
    }

    /// How many paths there are.
    pub(crate) fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Each lane's number, path, and requests and chains that are posted.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (u32, usize, usize, usize)> {
        self.lanes.iter().map(|lane| (lane.number, lane.path, lane.queue.used(), lane.queue.records()))
    }

    pub(crate) fn has(&self, key: u64) -> bool {
        self.transfers.contains_key(&key)
    }

    /// Takes a transfer. Whatever is wrong comes out as its end.
    pub(crate) fn submit(&mut self, submission: Submission, now: Instant, out: &mut Actions) {
        let key = submission.completer.id().get();
        let mut transfer = Transfer::new(submission, now);
        if let Some(closed) = &self.closed {
            transfer.fail(closed.clone());
            transfer.note = None;
        } else if let Some(dead) = transfer.ways.dead.get().filter(|_| transfer.plan.pending()) {
            transfer.fail(dead.clone());
        } else if self.transfers.len() >= self.settings.max_transfers {
            let words = format!(
                "SQ full: {} transfers with engine {} are in progress, which is the limit (max_transfers); 0 of {} bytes done",
                self.transfers.len(),
                self.peer,
                transfer.plan.bytes()
            );
            transfer.fail(Error::new(ErrorKind::ResourceExhausted, words));
        }
        let pending = transfer.plan.pending();
        transfer.queued = pending;
        let deadline = transfer.deadline.map(|(_, at)| at);
        self.transfers.insert(key, transfer);
        if let Some(at) = deadline {
            self.arm(key, at);
        }
        if pending {
            self.ready.push_back(key);
        } else {
            self.settle(key, now, out);
        }
        self.turn(now, out);
        if let Some(transfer) = self.transfers.get(&key).filter(|transfer| transfer.queued) {
            let at = transfer.progress + self.settings.admission_timeout;
            self.arm(key, at);
        }
    }

    /// Asks for a stop of a transfer (E1).
    pub(crate) fn cancel(&mut self, key: u64, why: Error, now: Instant, out: &mut Actions) {
        self.stop(key, why, now, out);
        self.turn(now, out);
    }

    fn stop(&mut self, key: u64, why: Error, now: Instant, out: &mut Actions) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if transfer.is_ending() || matches!(transfer.phase, Phase::MessageSent { .. }) {
            return;
        }
        let grace = now + self.settings.cancel_grace;
        if matches!(transfer.phase, Phase::MessageWaits { verdict: None, .. }) {
            // Every byte is in place, but the target was not told and is not going to be.
            transfer.cut = true;
            transfer.phase = Phase::Data;
        }
        transfer.stop = Some(Stop { why, grace });
        transfer.drop_rest();
        if transfer.outstanding > 0 {
            self.arm(key, grace);
        }
        self.settle(key, now, out);
    }

    /// A path was connected: what it brought, and why it is not more.
    pub(crate) fn connected(
        &mut self,
        path: usize,
        lanes: Vec<Lane>,
        failure: Option<Error>,
        now: Instant,
        out: &mut Actions,
    ) {
        if let Some(state) = self.paths.get_mut(path) {
            state.connecting = false;
            match failure {
                None => state.penalty = None,
                Some(cause) => {
                    state.penalty = Some((now + state.backoff, cause));
                    state.backoff = (state.backoff * 2).min(BACKOFF.1);
                }
            }
        }
        if !lanes.is_empty() {
            self.lost = None;
        }
        for lane in lanes {
            self.lanes.push(lane);
            if let (Some(closed), Some(at)) = (self.closed.clone(), self.lanes.len().checked_sub(1)) {
                self.fail_lane(at, Blame::Everybody, closed, now, out);
            }
        }
        self.drain_all(now, out);
        self.turn(now, out);
    }

    /// Whether a path should be connected now that somebody wants it; if so, it counts as being connected from here on.
    pub(crate) fn wants(&mut self, path: usize, now: Instant) -> bool {
        let missing = self.missing(path) > 0 && self.closed.is_none();
        let Some(state) = self.paths.get_mut(path) else { return false };
        let penalised = state.penalty.as_ref().is_some_and(|(until, _)| now < *until);
        let wants = missing && !state.connecting && !penalised;
        state.connecting |= wants;
        wants
    }

    /// Forgets why a path did not work, because something has changed.
    pub(crate) fn forgive(&mut self, path: usize) {
        if let Some(state) = self.paths.get_mut(path) {
            state.penalty = None;
            state.backoff = BACKOFF.0;
        }
    }

    /// Ends everything, and takes nothing more if `for_good`.
    pub(crate) fn lose(&mut self, why: &Error, for_good: bool, now: Instant, out: &mut Actions) {
        self.lost = Some(why.clone());
        if for_good {
            self.closed.get_or_insert_with(|| why.clone());
        }
        let keys: Vec<u64> = self.transfers.keys().copied().collect();
        for key in &keys {
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.fail(why.clone());
                transfer.note = None;
                if matches!(transfer.phase, Phase::MessageWaits { .. }) {
                    transfer.phase = Phase::Data;
                }
            }
        }
        for at in 0..self.lanes.len() {
            self.fail_lane(at, Blame::Everybody, why.clone(), now, out);
        }
        self.drain_all(now, out);
        for key in keys {
            self.settle(key, now, out);
        }
        self.turn(now, out);
    }

    /// A path does not work any more: its lanes end, and what they carried goes another way, or fails. With `mute`, its device
    /// gives nothing back any more, so that nobody waits for that.
    pub(crate) fn path_down(
        &mut self,
        path: usize,
        cause: &Error,
        mute: bool,
        now: Instant,
        out: &mut Actions,
    ) {
        for at in 0..self.lanes.len() {
            if self.lanes.get(at).is_some_and(|lane| lane.path == path) {
                self.fail_lane(at, Blame::Path, cause.clone(), now, out);
            }
        }
        self.hurry(now, |lane| mute && lane.path == path);
        self.punish(path, cause.clone(), now);
        self.drain_all(now, out);
        self.turn(now, out);
    }

    /// A single lane has failed on its own.
    pub(crate) fn lane_down(&mut self, number: u32, cause: &Error, now: Instant, out: &mut Actions) {
        if let Some(at) = self.at(number) {
            self.fail_lane(at, Blame::Path, cause.clone(), now, out);
            self.drain_all(now, out);
            self.turn(now, out);
        }
    }

    /// Waits no longer for what this side's devices give back.
    pub(crate) fn give_up_waiting(&mut self, now: Instant, out: &mut Actions) {
        self.hurry(now, |_| true);
        self.drain_all(now, out);
        self.turn(now, out);
    }

    fn hurry(&mut self, now: Instant, which: impl Fn(&Lane) -> bool) {
        for lane in self.lanes.iter_mut().filter(|lane| which(lane)) {
            // What the peer has to say takes its time all the same.
            if let Some(drain) = lane.drain.as_mut().filter(|drain| drain.phase == DrainPhase::Flushing) {
                drain.until = now;
            }
        }
    }

    fn punish(&mut self, path: usize, cause: Error, now: Instant) {
        if let Some(state) = self.paths.get_mut(path) {
            state.penalty = Some((now + state.backoff, cause));
            state.backoff = (state.backoff * 2).min(BACKOFF.1);
        }
    }

    fn at(&self, number: u32) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.number == number)
    }

    /// Posts what can be posted.
    fn turn(&mut self, now: Instant, out: &mut Actions) {
        self.post(now, out);
        self.send_messages(now, out);
        self.follow_silent_tails(now, out);
    }

    /// Ends a transfer of which nothing is outstanding, or goes on to its message.
    fn settle(&mut self, key: u64, now: Instant, out: &mut Actions) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if transfer.outstanding > 0 || !matches!(transfer.phase, Phase::Data) {
            return;
        }
        let verdict = match (&transfer.failure, &transfer.stop) {
            (Some(failure), _) => Some(failure.clone()),
            (None, Some(stop)) if transfer.cut => Some(stop.why.clone()),
            _ if transfer.plan.pending() => return,
            _ => None,
        };
        let told = transfer.note.as_ref().is_some_and(|note| verdict.is_none() || note.on_failure);
        if !told {
            self.finish(key, verdict.map_or(Ok(()), Err), out);
            return;
        }
        transfer.phase = Phase::MessageWaits { verdict, since: now };
        self.messages.push_back(key);
        self.arm(key, now + self.settings.peer_timeout);
    }

    fn finish(&mut self, key: u64, result: Result<()>, out: &mut Actions) {
        if let Some(Transfer { completer, pin, timer, .. }) = self.transfers.remove(&key) {
            if let Some(at) = timer {
                self.timers.remove(&(at, key));
            }
            out.finished.push(Finished { completer, pin, result });
        }
    }
}
