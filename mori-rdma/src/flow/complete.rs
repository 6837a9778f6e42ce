//! What completions say.

use std::time::Instant;

use mori_core::{Error, Result};

use super::lane::{Blame, Work, blame, kind};
use super::{Actions, Completed, Flow};
use crate::plan::Span;
use crate::send_queue::Progress;

impl Flow {
    /// Completions of one lane, in their order. Those of a lane that is no more are ignored.
    pub(crate) fn complete(&mut self, number: u32, completed: &[Completed], now: Instant, out: &mut Actions) {
        let Some(at) = self.at(number) else { return };
        for completion in completed {
            let mut progress = std::mem::take(&mut self.progress);
            if let Some(lane) = self.lanes.get_mut(at) {
                lane.full_until = None;
                lane.queue
                    .complete(completion.id, completion.status.is_success(), |step| progress.push(step));
            }
            for step in progress.drain(..) {
                self.account(at, &step, completion, now, out);
            }
            self.progress = progress;
        }
        self.drain_all(now, out);
        self.turn(now, out);
    }

    fn account(
        &mut self,
        at: usize,
        step: &Progress<Work>,
        completion: &Completed,
        now: Instant,
        out: &mut Actions,
    ) {
        match step.work {
            Work::Data { key, span, bytes } => {
                if !step.good.is_empty() {
                    self.carried(at, key, (span, bytes), &step.good, now);
                }
                if let Some(index) = step.bad {
                    self.broken(at, step.work, index, completion, now, out);
                }
                self.settle(key, now, out);
            }
            Work::Message { slot, .. } => match step.bad {
                None => self.message_sent(at, slot, now, out),
                Some(index) => self.broken(at, step.work, index, completion, now, out),
            },
            Work::Nothing => {
                if let Some(index) = step.bad {
                    self.broken(at, step.work, index, completion, now, out);
                }
            }
        }
    }

    fn carried(
        &mut self,
        at: usize,
        key: u64,
        (span, bytes): (Span, u64),
        good: &std::ops::Range<usize>,
        now: Instant,
    ) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let whole = good.len() == span.count;
        if whole {
            lane.load = lane.load.saturating_sub(bytes);
        }
        let path = lane.path;
        if let Some(transfer) = self.transfers.get_mut(&key) {
            transfer.outstanding = transfer.outstanding.saturating_sub(good.len());
            transfer.progress = now;
            transfer.moved += if whole {
                bytes
            } else {
                transfer.plan.bytes_of(span, good.end) - transfer.plan.bytes_of(span, good.start)
            };
        }
        self.forgive(path);
    }

    /// A request has failed, or was flushed because another one had.
    fn broken(
        &mut self,
        at: usize,
        work: Work,
        index: usize,
        completion: &Completed,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(lane) = self.lanes.get(at) else { return };
        if lane.is_up() {
            let blame =
                if completion.status.is_flush() { Blame::Path } else { blame(completion.status, work) };
            let cause = self.cause(work, index, completion);
            if let Blame::Transfer(key) = blame
                && let Some(transfer) = self.transfers.get_mut(&key)
            {
                transfer.cut = true;
                transfer.fail(cause.clone());
                if completion.status == crate::verbs::WcStatus::RemoteAccess {
                    let _ = transfer.ways.dead.set(cause.clone());
                }
            }
            if matches!(blame, Blame::Path) {
                let path = lane.path;
                self.punish(path, cause.clone(), now);
            }
            self.fail_lane(at, blame, cause, now, out);
        } else if let Some(drain) = self.lanes.get_mut(at).and_then(|lane| lane.drain.as_mut()) {
            drain.flushed += 1;
        }
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.unfinished(work, index, index + 1);
        }
    }

    /// The first cause of a lane's failure, in words.
    fn cause(&self, work: Work, index: usize, completion: &Completed) -> Error {
        let status = completion.status;
        let what = match work {
            Work::Data { key, span, .. } => match self.transfers.get(&key) {
                Some(transfer) => format!("{:?} of {}", transfer.op, transfer.plan.describe(span, index)),
                None => "a request".to_owned(),
            },
            Work::Message { .. } => "the message to the target".to_owned(),
            Work::Nothing => "an empty request".to_owned(),
        };
        let hint = if status == crate::verbs::WcStatus::RemoteAccess {
            "; the region was deregistered, or belongs to an earlier incarnation of the engine; exchange descriptors again"
        } else {
            ""
        };
        let words = format!(
            "{what} with engine {} failed: {status} ({}, vendor error {:#x}){hint}",
            self.peer,
            status.name(),
            completion.vendor
        );
        let number = i64::from(status.number());
        Error::with_cause(kind(status), words, mori_core::Cause { domain: "ibv_wc_status", number })
    }

    /// The target has answered a message: it is in its queue, or why it is not.
    pub(crate) fn answered(
        &mut self,
        number: u32,
        slot: u16,
        transfer: u64,
        answer: Result<()>,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(at) = self.at(number) else { return };
        let Some(lane) = self.lanes.get_mut(at) else { return };
        if let Some(sent) = lane.messages.get_mut(&slot).filter(|sent| sent.key == transfer) {
            sent.answer.get_or_insert(answer);
            self.message_over(at, slot, now, out);
        }
        self.turn(now, out);
    }
}
