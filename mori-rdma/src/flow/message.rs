//! Messages to the target: after the last byte, once.

use std::time::Instant;

use mori_core::{Error, ErrorKind, Result};

use super::lane::{Sent, Work};
use super::post::Choice;
use super::transfer::Phase;
use super::{Actions, Flow, LateNote, Message};

impl Flow {
    /// Sends the messages that wait, as long as there is room for them.
    pub(super) fn send_messages(&mut self, now: Instant, out: &mut Actions) {
        while let Some(key) = self.messages.pop_front() {
            let waits = self
                .transfers
                .get(&key)
                .is_some_and(|transfer| matches!(transfer.phase, Phase::MessageWaits { .. }));
            if waits && !self.send_message(key, now, out) {
                self.messages.push_front(key);
                break;
            }
        }
    }

    /// Sends the message of a transfer; `false` if it has to wait.
    fn send_message(&mut self, key: u64, now: Instant, out: &mut Actions) -> bool {
        let lane = self.lanes.iter().position(|lane| lane.can_send() && !lane.free_slots.is_empty());
        let Some(at) = lane else {
            // Slots come back with answers. Without any lane, one has to be made first.
            return match self.choose(None, now, out) {
                Choice::Never(error) => {
                    self.message_unsent(key, &error, out);
                    true
                }
                Choice::Lane(_) | Choice::Wait => {
                    let mute = self
                        .lanes
                        .iter()
                        .filter(|lane| lane.is_up())
                        .all(|lane| lane.wire.as_ref().is_some_and(|wire| wire.message_slots() == 0));
                    let mute = mute && self.has_lane();
                    if mute {
                        let words =
                            format!("engine {} takes no messages; it speaks an older protocol", self.peer);
                        self.message_unsent(key, &Error::new(ErrorKind::Unsupported, words), out);
                    }
                    mute
                }
            };
        };
        let (Some(lane), Some(transfer)) = (self.lanes.get_mut(at), self.transfers.get_mut(&key)) else {
            return true;
        };
        let (Some(wire), Some(slot)) = (lane.wire.clone(), lane.free_slots.pop()) else { return false };
        let Some(ticket) = lane.queue.reserve(Work::Message { key, slot }, 1) else {
            lane.free_slots.push(slot);
            return false;
        };
        let Phase::MessageWaits { verdict, .. } = std::mem::replace(&mut transfer.phase, Phase::Data) else {
            return true;
        };
        let message = Message {
            id: lane.queue.id(ticket, 0),
            slot,
            transfer: key,
            tag: transfer.completer.tag().0,
            message: transfer.note.as_ref().map_or(&[], |note| &note.message),
            error: verdict.as_ref(),
        };
        match wire.post_message(&message) {
            Ok(()) => {
                lane.queue.posted(ticket, 1);
                lane.messages.insert(slot, Sent { key, sent: false, answer: None });
                transfer.phase = Phase::MessageSent { verdict, since: now };
                self.arm(key, now + self.settings.peer_timeout);
                true
            }
            Err(refused) => {
                lane.queue.posted(ticket, 0);
                lane.free_slots.push(slot);
                transfer.phase = Phase::MessageWaits { verdict, since: now };
                if refused.full {
                    lane.full_until = Some(now + std::time::Duration::from_millis(1));
                    return false;
                }
                self.message_unsent(key, &refused.error, out);
                true
            }
        }
    }

    /// A message cannot be sent: its transfer ends, and a failure is told over the link.
    pub(super) fn message_unsent(&mut self, key: u64, why: &Error, out: &mut Actions) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        let verdict = match std::mem::replace(&mut transfer.phase, Phase::Data) {
            Phase::MessageWaits { verdict, .. } | Phase::MessageSent { verdict, .. } => verdict,
            Phase::Data => None,
        };
        let error = verdict
            .unwrap_or_else(|| why.context("the bytes are in place, but the target could not be told"));
        if let Some(note) = transfer.note.take().filter(|note| note.on_failure) {
            out.notes.push(LateNote {
                transfer: key,
                tag: transfer.completer.tag().0,
                message: note.message,
                error: error.clone(),
            });
        }
        self.finish(key, Err(error), out);
    }

    /// The send of a message has completed.
    pub(super) fn message_sent(&mut self, at: usize, slot: u16, now: Instant, out: &mut Actions) {
        if let Some(sent) = self.lanes.get_mut(at).and_then(|lane| lane.messages.get_mut(&slot)) {
            sent.sent = true;
            self.message_over(at, slot, now, out);
        }
    }

    /// Ends the transfer of a message that was both sent and answered, and frees its slot.
    pub(super) fn message_over(&mut self, at: usize, slot: u16, _now: Instant, out: &mut Actions) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let over = lane.messages.get(&slot).is_some_and(|sent| sent.sent && sent.answer.is_some());
        if !over {
            return;
        }
        if let Some(Sent { key, answer: Some(answer), .. }) = lane.messages.remove(&slot) {
            lane.free_slots.push(slot);
            self.message_ended(key, answer, out);
        }
    }

    /// The target has answered, or never will.
    pub(super) fn message_ended(&mut self, key: u64, answer: Result<()>, out: &mut Actions) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if let Phase::MessageSent { verdict, .. } = std::mem::replace(&mut transfer.phase, Phase::Data) {
            // A failure stays what it is, whatever becomes of the message about it.
            self.finish(key, verdict.map_or(answer, Err), out);
        }
    }
}
