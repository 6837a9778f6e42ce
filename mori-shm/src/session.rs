//! Submitting transfers: small ones are copied at once, others go to the threads.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mori_core::{
    Backend, Completer, Error, ErrorKind, Op, Origin, Piece, Pin, Region, Result, Session, Status,
    TransferOptions, merge,
};

use crate::blob::MemoryBlob;
use crate::conn::Grant;
use crate::page::Entry;
use crate::peer::Peer;
use crate::regions::may;
use crate::shared::Shared;
use crate::sync::RwLock;
use crate::sys::{self, Span};
use crate::transfer::{Parts, Transfer, TransferDeadline, failed_copy};

/// A transfer with a shorter deadline is not copied at once, since that does not look at the clock.
const LEAST_DEADLINE: Duration = Duration::from_millis(1);

pub(crate) struct ShmSession {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Weak<dyn Backend>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) local: Region,
    pub(crate) remote: MemoryBlob,
    /// What the target lets us do, as far as it is known.
    pub(crate) grant: RwLock<Option<Grant>>,
}

impl Session for ShmSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let (completer, status) = Status::pair(Origin::backend(&self.backend, true, options.tag));
        completer.submit();
        let pin = match self.shared.check_open().and_then(|_| self.local.pin()) {
            Ok(pin) => pin,
            Err(error) => {
                completer.fail(error);
                return status;
            }
        };
        let small = self.is_small(pieces, options);
        if small && options.notify.is_none() {
            match self.at_once(op, pieces, &pin) {
                Some(Ok(())) => {
                    // The pin first: whoever sees the end may deregister the region at once (E3).
                    drop(pin);
                    completer.succeed();
                    return status;
                }
                Some(Err(error)) => {
                    drop(pin);
                    completer.fail(error);
                    return status;
                }
                None => {}
            }
        }
        self.start(op, pieces, options, (completer, pin), small);
        status
    }

    fn alive(&self) -> bool {
        self.shared.check_open().is_ok() && self.peer.alive()
    }
}

impl ShmSession {
    /// Whether the submitting thread may do it itself.
    fn is_small(&self, pieces: &[Piece], options: &TransferOptions) -> bool {
        let config = &self.shared.config;
        pieces.len() <= config.inline_pieces
            && options.deadline.is_none_or(|deadline| deadline >= LEAST_DEADLINE)
            && pieces
                .iter()
                .try_fold(0, |sum: u64, piece| sum.checked_add(piece.length))
                .is_some_and(|sum| sum <= config.inline_bytes)
    }

    /// Copies on this thread. `None` if that cannot be done at once: the region is not open, or its owner makes everybody wait.
    fn at_once(&self, op: Op, pieces: &[Piece], pin: &Pin) -> Option<Result<()>> {
        if pieces.iter().all(|piece| piece.length == 0) {
            return None;
        }
        let known = self.grant.read();
        let grant = known.as_ref()?;
        match grant.enter() {
            (_, Entry::Paused) => None,
            // The slow path finds out why, and gets another grant if there is one.
            (_, Entry::Closed) => None,
            (pid, Entry::Inside(inside)) => {
                let result = copy(grant, pid, op, pieces, pin);
                drop(inside);
                Some(result)
            }
        }
    }

    fn start(
        &self,
        op: Op,
        pieces: &[Piece],
        options: &TransferOptions,
        (completer, pin): (Completer, Pin),
        small: bool,
    ) {
        let pieces = merge(pieces);
        if pieces.is_empty() && options.notify.is_none() {
            drop(pin);
            match self.peer.retired() {
                None => completer.succeed(),
                Some(retired) => completer.fail(retired),
            };
            return;
        }
        let deadline = options.deadline.and_then(|after| {
            let at = self.shared.clock.now().checked_add(after)?;
            Some(TransferDeadline { after, at })
        });
        let note = options.notify.clone();
        let parts = Parts { completer, op, pieces, pin, deadline, note };
        let transfer = Transfer::new(parts, &self.shared);
        if let Err(error) = self.shared.remember(&transfer) {
            return transfer.give_up(error);
        }
        let conn = match self.peer.conn(&self.shared) {
            Ok(conn) => conn,
            Err(error) => return transfer.give_up(lost(error)),
        };
        let known = self.grant.read().clone().filter(|grant| Arc::ptr_eq(&grant.conn, &conn));
        match known {
            Some(grant) => transfer.begin(&self.shared, &grant, small),
            None => self.renew(&transfer, &conn),
        }
    }

    /// The connection is another one than before: the region has to be opened anew, and later transfers profit from it.
    fn renew(&self, transfer: &Arc<Transfer>, conn: &Arc<crate::conn::Conn>) {
        if let Some(grant) = conn.known(self.remote.key) {
            *self.grant.write() = Some(grant.clone());
            return transfer.begin(&self.shared, &grant, false);
        }
        transfer.ask(conn, self.remote.key);
    }
}

/// A peer that cannot be reached now was reached when the session was opened.
fn lost(error: Error) -> Error {
    match error.kind() {
        ErrorKind::TimedOut => Error::new(ErrorKind::PeerLost, error.message()),
        _ => error,
    }
}

/// Copies these pieces. When it returns, none of their bytes moves any more.
fn copy(grant: &Grant, pid: i32, op: Op, pieces: &[Piece], pin: &Pin) -> Result<()> {
    let terms = grant.terms;
    may(terms.rights, op == Op::Write)?;
    for piece in pieces {
        if piece.remote.checked_add(piece.length).is_none_or(|end| end > terms.length) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "out of range: {} bytes at offset {} of the peer's region of {} bytes",
                    piece.length, piece.remote, terms.length
                ),
            ));
        }
    }
    if op == Op::Write {
        // Bytes must not go to another process that has the number by now.
        grant.conn.check()?;
    }
    let spans = pieces.iter().filter(|piece| piece.length > 0).map(|piece| Span {
        local: piece.local,
        remote: terms.address + piece.remote,
        length: piece.length,
    });
    let copied = sys::copy(pid, op, pin, spans)?;
    // For a read the same after the fact: the bytes are only those of the target if it has been there all the time.
    grant.conn.check()?;
    match &copied.failure {
        None => Ok(()),
        Some(error) => {
            let mut left = copied.bytes;
            let place = pieces.iter().find_map(|piece| {
                let here = left < piece.length;
                let place = (piece.local.wrapping_add(left), piece.remote.wrapping_add(left));
                left = left.saturating_sub(piece.length);
                here.then_some(place)
            });
            Err(failed_copy(op, place.unwrap_or_default(), Some(error)))
        }
    }
}
