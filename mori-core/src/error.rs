//! Errors: one type for a call that is refused and for a transfer that has failed.
//!
//! An [`Error`] says what went wrong ([`ErrorKind`]), in words for a person (the message), and, where an
//! operating system, a device or a library gave a number, which number that was ([`Cause`]). It is one
//! reference-counted pointer, so that it is cheap to keep in a status and to hand to every reader.

use std::fmt;
use std::sync::Arc;

/// Result of a call that can be refused.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong.
///
/// The numbers are an interface: 11–15 are those that existing users of the status codes know, the kinds
/// that are new here count from 32 up, so that "greater than 10 means failed" holds for all of them.
///
/// ```
/// use mori_core::ErrorKind;
/// assert_eq!(ErrorKind::NotFound.number(), 12);
/// assert_eq!(ErrorKind::from_number(33), Some(ErrorKind::PeerLost));
/// assert_eq!(ErrorKind::from_number(10), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum ErrorKind {
    /// An argument is wrong: out of range, of the wrong length, overflowing. Correct the call.
    InvalidArgument = 11,
    /// The thing named does not exist (any more): a stale key, an unknown peer, a missing file.
    NotFound = 12,
    /// The transport failed to carry the transfer.
    Transport = 13,
    /// The object is in a state in which this cannot be done: shut down, dropped unfinished, never submitted.
    BadState = 14,
    /// A device (GPU) operation failed.
    Device = 15,
    /// The transfer was stopped on request or by its own deadline (contract E1, E2).
    Cancelled = 32,
    /// The peer died, was cut off or stopped answering (contract E4).
    PeerLost = 33,
    /// The access is not among those that the region grants.
    AccessDenied = 34,
    /// A bounded resource is used up: a queue, a table, a limit of the operating system. Try again later, or raise the limit.
    ResourceExhausted = 35,
    /// This backend cannot do that at all; its capabilities say so.
    Unsupported = 36,
    /// A call (not a wait) ran out of its time: connecting, registering, resolving a name.
    TimedOut = 37,
    /// What it needs is not on this machine: a library, a device, a permission.
    Unavailable = 38,
    /// The object is in use by transfers in progress (contract E3). Wait for them, then try again.
    Busy = 39,
    /// Bytes that do not decode: cut off, oversized, of another version or byte order.
    Malformed = 40,
    /// The name is taken already.
    AlreadyExists = 41,
}

impl ErrorKind {
    /// Every kind, in the order of the numbers.
    pub const ALL: [Self; 15] = [
        Self::InvalidArgument,
        Self::NotFound,
        Self::Transport,
        Self::BadState,
        Self::Device,
        Self::Cancelled,
        Self::PeerLost,
        Self::AccessDenied,
        Self::ResourceExhausted,
        Self::Unsupported,
        Self::TimedOut,
        Self::Unavailable,
        Self::Busy,
        Self::Malformed,
        Self::AlreadyExists,
    ];

    /// The number that stands for this kind wherever statuses are numbers.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The kind in a few words, as it opens an error's text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::NotFound => "not found",
            Self::Transport => "transport operation failed",
            Self::BadState => "bad state",
            Self::Device => "device operation failed",
            Self::Cancelled => "cancelled",
            Self::PeerLost => "peer lost",
            Self::AccessDenied => "access denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::Unsupported => "unsupported",
            Self::TimedOut => "timed out",
            Self::Unavailable => "unavailable",
            Self::Busy => "busy",
            Self::Malformed => "malformed",
            Self::AlreadyExists => "already exists",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The number that a lower layer gave for a failure.
///
/// `domain` names the numbering (for example `errno`, or a library's own result type), so that a caller
/// never compares numbers of two numberings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// Which numbering `number` belongs to.
    pub domain: &'static str,
    /// The number as the lower layer gave it.
    pub number: i64,
}

/// What went wrong, in a form for programs (kind, cause) and for people (message).
///
/// ```
/// use mori_core::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::NotFound, "region 7 is not registered here; register it first");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "not found: region 7 is not registered here; register it first");
/// ```
#[derive(Clone, thiserror::Error)]
#[error("{}: {}", .0.kind, .0.message)]
pub struct Error(Arc<Body>);

#[derive(Debug)]
struct Body {
    kind: ErrorKind,
    message: Box<str>,
    cause: Option<Cause>,
}

impl Error {
    /// An error of `kind` whose message says what happened and what the caller can do.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Body { kind, message: message.into().into_boxed_str(), cause: None }))
    }

    /// Like [`Error::new`], keeping the lower layer's number.
    #[must_use]
    pub fn with_cause(kind: ErrorKind, message: impl Into<String>, cause: Cause) -> Self {
        Self(Arc::new(Body { kind, message: message.into().into_boxed_str(), cause: Some(cause) }))
    }

    /// An error of `kind` that came out of an [`std::io::Error`]; `doing` says what was tried
    /// ("cannot bind 127.0.0.1:80"). The error's number, if it has one, is kept as an `errno` [`Cause`].
    #[must_use]
    pub fn io(kind: ErrorKind, doing: impl fmt::Display, error: &std::io::Error) -> Self {
        let message = format!("{doing}: {error}");
        match error.raw_os_error() {
            Some(number) => {
                Self::with_cause(kind, message, Cause { domain: "errno", number: i64::from(number) })
            }
            None => Self::new(kind, message),
        }
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The words for a person, without the kind.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The lower layer's number, where there was one.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.0.cause
    }

    /// The same error with `context` and a colon before its message.
    #[must_use]
    pub fn context(&self, context: impl fmt::Display) -> Self {
        Self(Arc::new(Body {
            kind: self.0.kind,
            message: format!("{context}: {}", self.0.message).into_boxed_str(),
            cause: self.0.cause,
        }))
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.0.kind == other.0.kind && self.0.message == other.0.message && self.0.cause == other.0.cause
    }
}

impl Eq for Error {}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(cause) = &self.0.cause {
            out.field("cause", cause);
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_above_the_border() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert!(kind.number() > 10, "{kind:?}");
            assert!(!ErrorKind::ALL[..index].contains(&kind), "{kind:?} stands twice");
            assert_eq!(ErrorKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(ErrorKind::from_number(0), None);
        assert_eq!(ErrorKind::from_number(16), None);
    }

    #[test]
    fn an_io_error_keeps_its_number() {
        let io = std::io::Error::from_raw_os_error(98);
        let error = Error::io(ErrorKind::Unavailable, "cannot bind", &io);
        assert_eq!(error.cause(), Some(Cause { domain: "errno", number: 98 }));
        assert!(error.message().starts_with("cannot bind: "));
    }
}
