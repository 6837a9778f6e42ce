//! A transfer in progress at its submitter: where it stands, who may go on with it, and its end.
//!
//! # Protocol
//!
//! 1. There is one *ticket* for each transfer: the right to take its next step. The ticket is in the pool's queue, in a
//!    thread's hands, or *parked* (the region is not open yet, or the target makes everybody wait).
//! 2. Whoever takes a parked ticket does so by turning the mark off under the lock; of a grant, a stop and the loss of the
//!    target that come at the same time, one gets it.
//! 3. A thread with the ticket enters the region first and takes the step second; then it puts the ticket back, so that other
//!    threads can take further steps, and copies.
//! 4. `left` counts the ticket and the steps under way. Whoever takes the last one away ends the transfer: nothing of it
//!    moves any more (contract E1, E4).

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use mori_core::{
    Completer, Error, ErrorKind, Notify, Op, Piece, Pin, Result, Tag, TransferId, check as check_pieces,
};

use crate::conn::{Conn, Grant};
use crate::page::Entry;
use crate::regions::may;
use crate::shared::Shared;
use crate::sync::Mutex;
use crate::sys::{self, Copied, MAX_IOVECS, Span};
use crate::waiter::Waiter;
use crate::wire::Note;

/// Steps are not made smaller than this to share a transfer among threads.
const MIN_STEP: u64 = 256 << 10;

/// A deadline of a transfer's own, for its message and its moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferDeadline {
    pub(crate) after: Duration,
    pub(crate) at: Instant,
}

pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    tag: Tag,
    op: Op,
    bytes: u64,
    pub(crate) deadline: Option<TransferDeadline>,
    pieces: Box<[Piece]>,
    conn: OnceLock<Arc<Conn>>,
    grant: OnceLock<Grant>,
    left: AtomicUsize,
    moved: AtomicU64,
    state: Mutex<State>,
    shared: Weak<Shared>,
}

struct State {
    completer: Option<Completer>,
    pin: Option<Arc<Pin>>,
    /// The piece that the next step begins in, and where in it.
    next: usize,
    offset: u64,
    remaining: u64,
    /// Why it has failed: the first step that did not do all it should.
    failure: Option<Error>,
    /// Why a stop was asked for before the end.
    reason: Option<Error>,
    /// The message was sent: the target decides now how the transfer has ended, and a stop comes too late.
    committed: bool,
    parked: bool,
    /// The message for the target, as long as it has not been sent.
    note: Option<Notify>,
}

/// A step: `bytes` from `offset` in the piece `first`, over piece ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    first: usize,
    offset: u64,
    bytes: u64,
}

/// What a transfer is made of.
pub(crate) struct Parts {
    pub(crate) completer: Completer,
    pub(crate) op: Op,
    /// Merged.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) pin: Pin,
    pub(crate) deadline: Option<TransferDeadline>,
    pub(crate) note: Option<Notify>,
}

impl Transfer {
    /// A transfer whose ticket is parked until it is [granted](Transfer::granted) a region.
    pub(crate) fn new(parts: Parts, shared: &Arc<Shared>) -> Arc<Self> {
        let Parts { completer, op, pieces, pin, deadline, note } = parts;
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        Arc::new(Self {
            id: completer.id(),
            tag: completer.tag(),
            op,
            bytes,
            deadline,
            pieces: pieces.into_boxed_slice(),
            conn: OnceLock::new(),
            grant: OnceLock::new(),
            left: AtomicUsize::new(1),
            moved: AtomicU64::new(0),
            state: Mutex::new(State {
                completer: Some(completer),
                pin: Some(Arc::new(pin)),
                next: 0,
                offset: 0,
                remaining: bytes,
                failure: None,
                reason: None,
                committed: false,
                parked: true,
                note,
            }),
            shared: Arc::downgrade(shared),
        })
    }

    /// Asks for the region; the transfer goes on when it is open.
    pub(crate) fn ask(self: &Arc<Self>, conn: &Arc<Conn>, key: u128) {
        let _ = self.conn.set(Arc::clone(conn));
        if let Err((why, _)) = conn.ask(key, Waiter::Transfer(Arc::clone(self))) {
            self.give_up(why);
        }
    }

    /// The target's answer.
    pub(crate) fn granted(self: &Arc<Self>, shared: &Arc<Shared>, result: Result<Grant>) {
        let admitted = result.and_then(|grant| self.admit(grant));
        if !self.unpark() {
            return;
        }
        match admitted {
            Ok(()) if self.pieces.is_empty() => self.release(),
            Ok(()) => shared.pool.push(shared, self),
            Err(error) => {
                self.fail(error);
                self.release();
            }
        }
    }

    /// Begins with a grant that is there already, on this thread.
    pub(crate) fn begin(self: &Arc<Self>, shared: &Arc<Shared>, grant: &Grant, here: bool) {
        let _ = self.conn.set(Arc::clone(&grant.conn));
        let admitted = self.admit(grant.clone());
        if !self.unpark() {
            return;
        }
        match admitted {
            Ok(()) if self.pieces.is_empty() => self.release(),
            Ok(()) if here => self.turn(shared),
            Ok(()) => shared.pool.push(shared, self),
            Err(error) => {
                self.fail(error);
                self.release();
            }
        }
    }

    /// Checks rights and ranges against what the target says.
    fn admit(self: &Arc<Self>, grant: Grant) -> Result<()> {
        let terms = grant.terms;
        if !self.pieces.is_empty() {
            may(terms.rights, self.op == Op::Write)?;
            check_pieces(&self.pieces, &mori_core::TransferOptions::default(), u64::MAX, terms.length)?;
        }
        self.announce(&grant.conn);
        let _ = self.grant.set(grant);
        Ok(())
    }

    /// Tells the target beforehand, if it is to learn of a failure even when this side dies.
    fn announce(self: &Arc<Self>, conn: &Arc<Conn>) {
        let note = self.state.lock().note.clone().filter(|note| note.on_failure);
        if let Some(note) = note {
            // If it cannot be sent, the outcome cannot either, which is where it is reported.
            let _ = conn.note(self, self.note_of(&note, None, true));
        }
    }

    fn note_of(&self, note: &Notify, error: Option<Error>, announced: bool) -> Note {
        let (transfer, tag) = (self.id.get(), self.tag.0);
        Note { transfer, tag, message: note.message.clone(), announced, error }
    }

    /// Takes the ticket if it is parked.
    fn unpark(&self) -> bool {
        std::mem::replace(&mut self.state.lock().parked, false)
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.state.lock().parked
    }

    /// The wait is over.
    pub(crate) fn go_on(self: &Arc<Self>, shared: &Arc<Shared>) {
        if self.unpark() {
            shared.pool.push(shared, self);
        }
    }

    /// The wait is over, and in vain.
    pub(crate) fn give_up(self: &Arc<Self>, why: Error) {
        if self.unpark() {
            self.fail(why);
            self.release();
        }
    }

    /// Goes on with the ticket in hand: one step, or parking, or the end.
    pub(crate) fn turn(self: &Arc<Self>, shared: &Arc<Shared>) {
        let Some(grant) = self.grant.get().filter(|_| !self.stopping()) else { return self.release() };
        match grant.enter() {
            (_, Entry::Paused) => self.park(shared, grant),
            (_, Entry::Closed) => {
                self.fail(grant.closed());
                self.release();
            }
            (pid, Entry::Inside(inside)) => {
                let Some((step, pin, more)) = self.take(shared) else {
                    drop(inside);
                    return self.release();
                };
                if more {
                    // The ticket goes on; this step is counted by itself.
                    self.left.fetch_add(1, Ordering::Relaxed);
                    shared.pool.push(shared, self);
                }
                let result = self.copy(grant, pid, &pin, step);
                drop(inside);
                drop(pin);
                self.quiet(result);
            }
        }
    }

    /// Parks the ticket until the target lets its peers go on.
    fn park(self: &Arc<Self>, shared: &Arc<Shared>, grant: &Grant) {
        let stopped = {
            let mut state = self.state.lock();
            state.parked = state.reason.is_none() && state.failure.is_none();
            !state.parked
        };
        if stopped {
            return self.release();
        }
        if let Err(why) = grant.conn.park(self) {
            return self.give_up(why);
        }
        // The target's word may have come before the ticket was there to be found.
        if !grant.is_paused() {
            self.go_on(shared);
        }
    }

    /// Takes the next step; and whether there are more.
    fn take(&self, shared: &Shared) -> Option<(Step, Arc<Pin>, bool)> {
        let mut state = self.state.lock();
        if state.failure.is_some() || state.reason.is_some() || state.remaining == 0 {
            return None;
        }
        let pin = state.pin.clone()?;
        let share = state.remaining / (2 * shared.config.threads as u64);
        let room = share.clamp(MIN_STEP.min(shared.config.chunk_bytes), shared.config.chunk_bytes);
        let step = Step { first: state.next, offset: state.offset, bytes: 0 };
        let (bytes, next, offset) = walk(&self.pieces, step.first, step.offset, room);
        (state.next, state.offset) = (next, offset);
        state.remaining = state.remaining.saturating_sub(bytes);
        let more = state.remaining > 0 && bytes > 0;
        Some((Step { bytes, ..step }, pin, more))
    }

    /// Copies a step. When it returns, no byte of the step moves any more.
    fn copy(&self, grant: &Grant, pid: i32, pin: &Pin, step: Step) -> Result<()> {
        if self.op == Op::Write {
            // Bytes must not go to another process that has the number by now.
            grant.conn.check()?;
        }
        let address = grant.terms.address;
        let spans = spans(self.pieces.get(step.first..).unwrap_or_default(), step, address);
        let copied = sys::copy(pid, self.op, pin, spans)?;
        self.moved.fetch_add(copied.bytes, Ordering::Relaxed);
        // For a read the same after the fact: the bytes are only those of the target if it has been there all the time.
        grant.conn.check()?;
        match copied.failure {
            None => Ok(()),
            Some(_) => Err(self.failed(step, &copied)),
        }
    }

    fn failed(&self, step: Step, copied: &Copied) -> Error {
        let place = locate(&self.pieces, step, copied.bytes);
        let error = copied.failure.as_ref();
        failed_copy(self.op, place, error)
    }

    /// A step is over, or the message is answered.
    pub(crate) fn quiet(self: &Arc<Self>, result: Result<()>) {
        if let Err(error) = result {
            self.fail(error);
        }
        self.release();
    }

    /// Keeps the failure if it is the first.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().failure.get_or_insert(error);
    }

    /// Takes the ticket or a step away; the last one ends the transfer.
    pub(crate) fn release(self: &Arc<Self>) {
        // AcqRel pairs with the other releases: the last one has seen what the others did to memory and state (S4).
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    /// Asks for a stop (contract E1).
    pub(crate) fn stop(self: &Arc<Self>, why: Error) {
        let parked = {
            let mut state = self.state.lock();
            state.reason.get_or_insert(why);
            std::mem::replace(&mut state.parked, false)
        };
        if parked {
            self.release();
        }
    }

    /// Stops the transfer because its own deadline has passed (contract E2).
    pub(crate) fn expire(self: &Arc<Self>) {
        let Some(deadline) = self.deadline else { return };
        let moved = self.moved.load(Ordering::Relaxed);
        let waiting_for = if self.grant.get().is_none() {
            "the target to open the region"
        } else if self.is_parked() {
            "the target, which makes its peers wait"
        } else if moved >= self.bytes {
            "the target to take the message"
        } else {
            "a thread that copies"
        };
        self.stop(Error::new(
            ErrorKind::Cancelled,
            format!(
                "the transfer's deadline of {:?} has passed; {moved} of {} bytes done; waiting for {waiting_for}",
                deadline.after, self.bytes
            ),
        ));
    }

    fn stopping(&self) -> bool {
        let state = self.state.lock();
        state.reason.is_some() || state.failure.is_some()
    }

    /// Nothing moves any more: sends the message, if there is one to send, and completes the status otherwise.
    fn end(self: &Arc<Self>) {
        let (note, failure) = {
            let mut state = self.state.lock();
            if state.failure.is_none() && !state.committed {
                state.failure = state.reason.clone();
            }
            let failure = state.failure.clone();
            state.committed = true;
            let wanted = state.note.as_ref().is_some_and(|note| failure.is_none() || note.on_failure);
            (if wanted { state.note.take() } else { None }, failure)
        };
        if let (Some(note), Some(conn)) = (note, self.conn.get()) {
            self.left.fetch_add(1, Ordering::Relaxed);
            match conn.note(self, self.note_of(&note, failure, false)) {
                Ok(()) => return,
                // The target learns of the failure from the connection's end.
                Err(error) => self.fail(error),
            }
        }
        let (completer, pin, failure) = {
            let mut state = self.state.lock();
            (state.completer.take(), state.pin.take(), state.failure.take())
        };
        if let Some(shared) = self.shared.upgrade() {
            shared.forget(self);
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

/// How many bytes from a place fit one step, and the place after them.
fn walk(pieces: &[Piece], first: usize, offset: u64, room: u64) -> (u64, usize, u64) {
    let (mut bytes, mut at, mut offset) = (0, first, offset);
    for piece in pieces.get(first..).unwrap_or_default().iter().take(MAX_IOVECS) {
        let rest = piece.length - offset;
        if rest > room - bytes {
            return (room, at, offset + room - bytes);
        }
        bytes += rest;
        offset = 0;
        at += 1;
    }
    (bytes, at, offset)
}

/// The spans of a step; `pieces` begins with its first.
fn spans(pieces: &[Piece], step: Step, address: u64) -> impl Iterator<Item = Span> + '_ {
    let (mut offset, mut left) = (step.offset, step.bytes);
    pieces.iter().map_while(move |piece| {
        let length = (piece.length - offset).min(left);
        // The ranges have been checked, so nothing wraps.
        let local = piece.local.wrapping_add(offset);
        let remote = address.wrapping_add(piece.remote).wrapping_add(offset);
        (offset, left) = (0, left - length);
        (length > 0).then_some(Span { local, remote, length })
    })
}

/// The offsets, local and remote, of a byte of a step.
fn locate(pieces: &[Piece], step: Step, mut bytes: u64) -> (u64, u64) {
    let mut offset = step.offset;
    for piece in pieces.get(step.first..).unwrap_or_default() {
        let rest = piece.length - offset;
        if bytes < rest {
            return (piece.local + offset + bytes, piece.remote + offset + bytes);
        }
        bytes -= rest;
        offset = 0;
    }
    (0, 0)
}

/// The error for a copy that stopped at these offsets.
pub(crate) fn failed_copy(op: Op, (local, remote): (u64, u64), error: Option<&std::io::Error>) -> Error {
    let os = std::io::Error::from_raw_os_error(libc::EFAULT);
    let error = error.unwrap_or(&os);
    let verb = if op == Op::Read { "read" } else { "written" };
    let place = format!("local offset {local} and remote offset {remote}");
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::io(
            ErrorKind::PeerLost,
            "the target's process has ended; submit again when it is back",
            error,
        ),
        Some(libc::EPERM) => Error::io(
            ErrorKind::AccessDenied,
            "the system does not let this process at the target's memory any more",
            error,
        ),
        Some(libc::ENOMEM) => Error::io(
            ErrorKind::ResourceExhausted,
            format!("the system has no memory for a copy at {place}; try again with fewer at a time"),
            error,
        ),
        Some(libc::EFAULT) => Error::io(
            ErrorKind::Transport,
            format!(
                "memory could not be {verb} at {place}: on one of the two sides it is not there, or not writable; keep memory mapped while it is registered"
            ),
            error,
        ),
        _ => Error::io(ErrorKind::Transport, format!("the copy failed at {place}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_every_byte_once_and_have_bounds() {
        let mut pieces =
            vec![Piece::new(10, 1000, 5000), Piece::new(9000, 0, 1), Piece::new(20_000, 7000, 12_345)];
        pieces.extend((0..3000).map(|index| Piece::new(40_000 + index * 8, 50_000 + index * 16, 8)));
        let expected: u64 = pieces.iter().map(|piece| piece.length).sum();
        for room in [1000, 4096, 1 << 30] {
            let (mut next, mut offset, mut found) = (0, 0, Vec::new());
            loop {
                let (bytes, after, within) = walk(&pieces, next, offset, room);
                if bytes == 0 {
                    break;
                }
                let step = Step { first: next, offset, bytes };
                let taken: Vec<Span> = spans(&pieces[next..], step, 1 << 20).collect();
                assert!(taken.len() <= MAX_IOVECS && bytes <= room);
                assert_eq!(taken.iter().map(|span| span.length).sum::<u64>(), bytes);
                found.extend(taken);
                (next, offset) = (after, within);
            }
            assert_eq!(found.iter().map(|span| span.length).sum::<u64>(), expected, "room {room}");
            let merged: Vec<Piece> = found
                .iter()
                .map(|span| Piece::new(span.local, span.remote - (1 << 20), span.length))
                .collect();
            assert_eq!(mori_core::merge(&merged), mori_core::merge(&pieces), "room {room}");
        }
    }

    #[test]
    fn the_place_of_a_failure_is_named() {
        let pieces = [Piece::new(0, 100, 10), Piece::new(50, 200, 10)];
        let step = Step { first: 0, offset: 4, bytes: 16 };
        assert_eq!(locate(&pieces, step, 0), (4, 104));
        assert_eq!(locate(&pieces, step, 6), (50, 200));
        assert_eq!(locate(&pieces, step, 9), (53, 203));
        let error = failed_copy(Op::Read, (53, 203), Some(&std::io::Error::from_raw_os_error(libc::EFAULT)));
        assert!(error.message().contains("local offset 53 and remote offset 203"), "{error}");
        for (errno, kind) in [
            (libc::ESRCH, ErrorKind::PeerLost),
            (libc::EPERM, ErrorKind::AccessDenied),
            (libc::ENOMEM, ErrorKind::ResourceExhausted),
            (libc::EIO, ErrorKind::Transport),
        ] {
            let error = failed_copy(Op::Write, (0, 0), Some(&std::io::Error::from_raw_os_error(errno)));
            assert_eq!(error.kind(), kind);
            assert_eq!(error.cause().unwrap().number, i64::from(errno));
        }
    }
}
