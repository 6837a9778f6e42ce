//! The writer's side of a status.

use std::fmt;
use std::sync::Arc;

use super::{Event, Inner, Status, StatusCode, Update};
use crate::error::{Error, ErrorKind};
use crate::id::{Tag, TransferId};
use crate::sync::mutant;

/// The writer's side of a transfer, held by the backend until the transfer is over (contract S5).
///
/// Dropping it unfinished ends the status as *bad state*, so no status stays in progress because somebody forgot it,
/// panicked or shut down. Every method tells whether it changed anything; the first terminal state is final (S2).
///
/// ```
/// use mori_core::{ErrorKind, Origin, Status, StatusCode};
/// let (completer, status) = Status::pair(Origin::detached());
/// completer.submit();
/// drop(completer);
/// assert_eq!(status.code(), StatusCode::Failure(ErrorKind::BadState));
/// ```
#[must_use = "dropping the writer's side ends the status as a failure"]
pub struct Completer(pub(super) Arc<Inner>);

impl Completer {
    /// Init → in progress: the backend has taken the transfer.
    pub fn submit(&self) -> Update {
        match self.0.set(Event::Submit) {
            Ok(_) => Update::Applied,
            Err(code) => Update::Ignored(code),
        }
    }

    /// Every byte is in place. Without a waiter: no lock, no system call.
    pub fn succeed(&self) -> Update {
        self.0.succeed()
    }

    /// The transfer failed and is quiet: none of its bytes can land any more.
    pub fn fail(&self, error: Error) -> Update {
        self.0.fail(error)
    }

    /// Leaves a note for [`Status::message`]; ends no wait (contract W5) and changes nothing on a terminal status (S2).
    pub fn note(&self, note: impl Into<String>) -> Update {
        let note = note.into().into_boxed_str();
        let early = if mutant("note_checks_before_lock") { Some(self.0.code()) } else { None };
        let mut slow = self.0.slow.lock();
        let code = early.unwrap_or_else(|| self.0.code());
        if code.is_terminal() {
            return Update::Ignored(code);
        }
        slow.note = Some(note);
        Update::Applied
    }

    /// Where the transfer stands.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        self.0.code()
    }

    /// The transfer's number.
    #[must_use]
    pub fn id(&self) -> TransferId {
        self.0.id
    }

    /// The caller's own mark for the transfer.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.0.tag
    }

    /// One more handle for readers.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.0))
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if !self.0.code().is_terminal() && !mutant("drop_leaves_in_progress") {
            let why = if std::thread::panicking() { " by a thread that panicked" } else { "" };
            self.0.fail(Error::new(
                ErrorKind::BadState,
                format!("the transfer was dropped unfinished{why}; its backend gave it up without a result"),
            ));
        }
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer")
            .field("id", &self.0.id)
            .field("code", &self.code())
            .finish_non_exhaustive()
    }
}
