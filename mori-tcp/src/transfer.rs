//! A transfer in progress at its initiator: the requests it was split into, and its end.
//!
//! A transfer becomes one or more requests on one or more connections. It ends when the last of them is quiet: no byte of
//! it can land in local memory any more, and for a write the target has said so or its connection is gone (contract E1,
//! E4). The first failure is kept, and stops the other requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use mori_core::{Completer, Error, ErrorKind, Message, Notify, Op, Pin, Tag, TransferId};

use crate::lane::Lane;
use crate::shared::Shared;

/// A deadline of a transfer's own, for its message and its moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferDeadline {
    pub(crate) after: Duration,
    pub(crate) at: Instant,
}

pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) tag: Tag,
    pub(crate) op: Op,
    pub(crate) bytes: u64,
    pub(crate) deadline: Option<TransferDeadline>,
    /// Requests that are not quiet yet, plus one while the transfer is being submitted.
    left: AtomicUsize,
    moved: AtomicU64,
    state: Mutex<State>,
    shared: Weak<Shared>,
}

struct State {
    completer: Option<Completer>,
    pin: Option<Arc<Pin>>,
    /// Why the transfer has failed: the first request that did not do all it should.
    failure: Option<Error>,
    /// Why a stop was asked for before the end.
    reason: Option<Error>,
    /// Whether the message was sent on the condition that everything before it went well. The target then decides how the
    /// transfer ended, and a stop that comes too late there changes nothing: both sides must tell the same story.
    committed: bool,
    stopping: bool,
    requests: Vec<(Arc<Lane>, u64)>,
    /// The message for the target, as long as it has not been sent.
    note: Option<Notify>,
    /// What the message says of the transfer of another backend that it is about.
    about: Option<Error>,
}

impl Transfer {
    pub(crate) fn new(
        completer: Completer,
        op: Op,
        bytes: u64,
        pin: Arc<Pin>,
        deadline: Option<TransferDeadline>,
        note: Option<Notify>,
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        Self::build(completer, (op, bytes, Some(pin)), deadline, (note, None), shared)
    }

    /// A message about a transfer of another backend: no bytes, no memory.
    pub(crate) fn message(completer: Completer, message: &Message, shared: &Arc<Shared>) -> Arc<Self> {
        let note = (Some(message.notify.clone()), message.failure.clone());
        Self::build(completer, (Op::Write, 0, None), None, note, shared)
    }

    fn build(
        completer: Completer,
        (op, bytes, pin): (Op, u64, Option<Arc<Pin>>),
        deadline: Option<TransferDeadline>,
        (note, about): (Option<Notify>, Option<Error>),
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: completer.id(),
            tag: completer.tag(),
            op,
            bytes,
            deadline,
            left: AtomicUsize::new(1),
            moved: AtomicU64::new(0),
            state: Mutex::new(State {
                completer: Some(completer),
                pin,
                failure: None,
                reason: None,
                committed: false,
                stopping: false,
                requests: Vec::new(),
                note,
                about,
            }),
            shared: Arc::downgrade(shared),
        })
    }

    /// Adds a request that has to become quiet before the transfer can end.
    pub(crate) fn add(&self, lane: &Arc<Lane>, request: u64) {
        self.left.fetch_add(1, Ordering::Relaxed);
        self.state.lock().requests.push((Arc::clone(lane), request));
    }

    /// Adds the request that carries its message, which is never stopped.
    pub(crate) fn add_note(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Where the message goes if there is no request that it could follow.
    pub(crate) fn route_note(&self, lane: &Arc<Lane>) {
        self.state.lock().requests.push((Arc::clone(lane), 0));
    }

    /// Tells the target beforehand, if it is to learn of a failure even when this side dies.
    pub(crate) fn announce(&self, lane: &Arc<Lane>) {
        let mut state = self.state.lock();
        if let Some(note) = state.note.as_ref().filter(|note| note.on_failure) {
            lane.announce(self, note);
            // The outcome must follow on the same connection, also if no request ever does.
            state.requests.push((Arc::clone(lane), 0));
        }
    }

    /// Takes the message to send it now.
    pub(crate) fn take_note(&self) -> Option<Notify> {
        let mut state = self.state.lock();
        let note = state.note.take();
        state.committed |= note.is_some();
        note
    }

    /// Counts bytes that have arrived or been acknowledged.
    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One request is quiet.
    pub(crate) fn quiet(self: &Arc<Self>, result: Result<(), Error>) {
        if let Err(error) = result {
            self.fail(error);
        }
        self.release();
    }

    /// One request is quiet because it was stopped.
    pub(crate) fn stopped(self: &Arc<Self>) {
        self.quiet(Err(Error::new(ErrorKind::Cancelled, "stopped")));
    }

    /// Keeps the failure, if it is the first, and stops the other requests.
    pub(crate) fn fail(&self, error: Error) {
        {
            let mut state = self.state.lock();
            // That a request was stopped is explained by why it was asked to stop.
            let error = match &state.reason {
                Some(reason) if error.kind() == ErrorKind::Cancelled => reason.clone(),
                _ => error,
            };
            state.failure.get_or_insert(error);
        }
        self.stop_requests();
    }

    /// Takes the submitter's own count, or a request's, away; the last one ends the transfer.
    pub(crate) fn release(self: &Arc<Self>) {
        // AcqRel pairs with the other releases: the last one has seen what the others did to memory and state (S4).
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    /// The connections that answers to it come on, with one of its requests on each.
    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        let state = self.state.lock();
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        for (lane, _) in &state.requests {
            if !lanes.iter().any(|known| Arc::ptr_eq(known, lane)) {
                lanes.push(Arc::clone(lane));
            }
        }
        lanes
    }

    /// Asks for a stop (contract E1).
    pub(crate) fn stop(&self, why: Error) {
        self.state.lock().reason.get_or_insert(why);
        self.stop_requests();
    }

    fn stop_requests(&self) {
        let requests = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.stopping, true) { Vec::new() } else { state.requests.clone() }
        };
        for (lane, request) in requests {
            lane.cancel(request);
        }
    }

    /// Stops the transfer because its own deadline has passed (contract E2). `waiting_for` says what it was waiting for.
    pub(crate) fn expire(&self, waiting_for: impl fmt::Display) {
        let Some(deadline) = self.deadline else { return };
        let moved = self.moved.load(Ordering::Relaxed);
        self.stop(Error::new(
            ErrorKind::Cancelled,
            format!(
                "the transfer's deadline of {:?} has passed; {moved} of {} bytes done; waiting for {waiting_for}",
                deadline.after, self.bytes
            ),
        ));
    }

    /// Whether it is being stopped.
    pub(crate) fn stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Every request is quiet: sends the message, if there is one to send, and completes the status otherwise.
    fn end(self: &Arc<Self>) {
        let (note, lane, failure, about) = {
            let mut state = self.state.lock();
            if state.failure.is_none() && !state.committed {
                state.failure = state.reason.clone();
            }
            let failure = state.failure.clone();
            state.committed = true;
            let lane = state.requests.first().map(|(lane, _)| Arc::clone(lane));
            let wanted = state.note.as_ref().is_some_and(|note| failure.is_none() || note.on_failure);
            (if wanted { state.note.take() } else { None }, lane, failure, state.about.take())
        };
        if let (Some(note), Some(lane)) = (note, lane) {
            self.left.fetch_add(1, Ordering::Relaxed);
            // Refused only if the connection is gone; its target then learns of the failure from that.
            match lane.note(self, &note, failure.as_ref().or(about.as_ref()), None) {
                Ok(()) => return,
                Err(error) => {
                    let mut state = self.state.lock();
                    if state.failure.is_none() {
                        state.failure = Some(error);
                    }
                }
            }
        }
        let (completer, pin, failure) = {
            let mut state = self.state.lock();
            state.requests.clear();
            (state.completer.take(), state.pin.take(), state.failure.take())
        };
        if let Some(shared) = self.shared.upgrade() {
            shared.forget(self.id);
        }
        // The pin first: whoever sees the end may deregister the region at once (E3).
        drop(pin);
        if let Some(completer) = completer {
            crate::guarded(|| match failure {
                None => completer.succeed(),
                Some(error) => completer.fail(error),
            });
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("id", &self.id)
            .field("op", &self.op)
            .field("bytes", &self.bytes)
            .field("left", &self.left.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
