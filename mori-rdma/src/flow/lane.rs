//! A queue pair of ours as the flow sees it: its send queue's accounting, its state, and what the device does for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use mori_core::{Error, ErrorKind, Op};

use crate::plan::{Chain, Cursor, Span};
use crate::send_queue::SendQueue;
use crate::verbs::WcStatus;

/// Addresses and keys of both regions, as one pair of devices knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local_address: u64,
    pub(crate) local_key: u32,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: u32,
}

/// Requests to post.
#[derive(Debug)]
pub(crate) struct Posting<'a> {
    pub(crate) op: Op,
    pub(crate) chain: &'a Chain,
    pub(crate) keys: Keys,
    /// The number of the first request; the others count from there. The last one is signalled.
    pub(crate) first_id: u64,
}

/// A message to the target, to post.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) id: u64,
    pub(crate) slot: u16,
    pub(crate) transfer: u64,
    pub(crate) tag: u64,
    pub(crate) message: &'a [u8],
    pub(crate) error: Option<&'a Error>,
}

/// A list that the device took only in part.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) accepted: usize,
    /// Whether the queue was full, so that it is worth trying again.
    pub(crate) full: bool,
    pub(crate) error: Error,
}

/// The queue pair itself. Dropping the last handle destroys it; nothing that it had under way moves any byte afterwards.
pub(crate) trait Wire: Send + Sync {
    /// Posts a chain; its last request is signalled.
    fn post(&self, posting: &Posting<'_>) -> Result<(), Refused>;

    /// Posts a message, signalled.
    fn post_message(&self, message: &Message<'_>) -> Result<(), Refused>;

    /// Posts a signalled request that moves nothing.
    fn post_nothing(&self, id: u64) -> Result<(), Refused>;

    /// Moves the queue pair to its error state, so that everything that is posted completes. May call the kernel.
    fn fail(&self);

    /// How many messages may be on their way; zero if the peer takes none.
    fn message_slots(&self) -> u16;
}

/// What a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Bytes of a transfer.
    Data { key: u64, span: Span, bytes: u64 },
    /// The message of a transfer.
    Message { key: u64, slot: u16 },
    /// Nothing: it only tells that what was posted before is done.
    Nothing,
}

/// Whose fault it is that a lane has failed, which decides what becomes of the others' requests.
#[derive(Clone, Debug)]
pub(crate) enum Blame {
    /// A transfer's own request; the others' are posted again.
    Transfer(u64),
    /// The way to the peer; transfers go another way, if there is one.
    Path,
    /// Nobody's: this side has closed the lane, for a transfer that had to stop.
    Nobody,
    /// The peer is lost, or this side is closing: everything ends.
    Everybody,
}

/// Requests that a failed lane did not carry out, or of which nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    pub(crate) key: u64,
    pub(crate) start: Cursor,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// The end of a lane.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) blame: Blame,
    pub(crate) cause: Error,
    /// When the queue pair is destroyed if its requests have not come back by then.
    pub(crate) until: Instant,
    pub(crate) unfinished: Vec<Unfinished>,
    pub(crate) phase: DrainPhase,
    /// How many requests were flushed after the first failure.
    pub(crate) flushed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainPhase {
    /// Requests are still to come back.
    Flushing,
    /// The queue pair is being destroyed, because they did not.
    Destroying,
    /// This side is quiet; the peer is asked whether its side is.
    Retiring,
}

/// A message that is on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) key: u64,
    /// The send has completed.
    pub(crate) sent: bool,
    /// What the target has answered.
    pub(crate) answer: Option<Result<(), Error>>,
}

pub(crate) struct Lane {
    pub(crate) number: u32,
    pub(crate) path: usize,
    pub(crate) remote: usize,
    pub(crate) queue: SendQueue<Work>,
    pub(crate) wire: Option<Arc<dyn Wire>>,
    pub(crate) drain: Option<Drain>,
    /// Bytes that are posted, and how many may be.
    pub(crate) load: u64,
    pub(crate) window: u64,
    pub(crate) free_slots: Vec<u16>,
    pub(crate) messages: HashMap<u16, Sent>,
    /// Until when nothing is posted, because the device said that its queue was full.
    pub(crate) full_until: Option<Instant>,
}

impl Lane {
    pub(crate) fn new(
        number: u32,
        path: usize,
        remote: usize,
        depth: usize,
        window: u64,
        wire: Arc<dyn Wire>,
    ) -> Self {
        let free_slots = (0..wire.message_slots()).rev().collect();
        Self {
            number,
            path,
            remote,
            queue: SendQueue::new(number, depth),
            wire: Some(wire),
            drain: None,
            load: 0,
            window,
            free_slots,
            messages: HashMap::new(),
            full_until: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.drain.is_none()
    }

    /// Whether a chain can be posted now.
    pub(crate) fn has_room(&self) -> bool {
        self.can_send() && self.load < self.window
    }

    /// Whether a message can be posted now, whatever is in flight.
    pub(crate) fn can_send(&self) -> bool {
        self.is_up() && self.queue.credits() > 0 && self.full_until.is_none()
    }

    /// Takes note of requests that did not take place.
    pub(crate) fn unfinished(&mut self, work: Work, from: usize, to: usize) {
        let Some(drain) = &mut self.drain else { return };
        let Work::Data { key, span, .. } = work else { return };
        match drain.unfinished.last_mut() {
            Some(last) if last.key == key && last.start == span.start && last.to == from => last.to = to,
            _ => drain.unfinished.push(Unfinished { key, start: span.start, from, to }),
        }
    }
}

/// Whose fault a status says it is, apart from a flush.
pub(crate) fn blame(status: WcStatus, work: Work) -> Blame {
    use WcStatus as Is;
    let own = matches!(
        status,
        Is::LocalLength
            | Is::LocalProtection
            | Is::WindowBind
            | Is::BadResponse
            | Is::LocalAccess
            | Is::RemoteInvalidRequest
            | Is::RemoteAccess
            | Is::RemoteOperation
            | Is::LocalRdd
            | Is::RemoteInvalidRead
            | Is::RemoteAborted
    );
    match work {
        Work::Data { key, .. } if own => Blame::Transfer(key),
        Work::Message { key, .. } if own => Blame::Transfer(key),
        _ => Blame::Path,
    }
}

/// What kind of error a status is for a transfer.
pub(crate) fn kind(status: WcStatus) -> ErrorKind {
    match status {
        // Range and rights were checked against what the peer said of the region, so its keys are not valid any more.
        WcStatus::RemoteAccess => ErrorKind::NotFound,
        WcStatus::RetryExceeded | WcStatus::ReceiverNotReady | WcStatus::ResponseTimeout => {
            ErrorKind::PeerLost
        }
        _ => ErrorKind::Transport,
    }
}
