//! The exit statuses of the program, each with one meaning.

use std::process::ExitCode;

/// How the program ends. The numbers are an interface: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything arrived and was right.
    Ok = 0,
    /// Something that none of the others names: a bug of ours, or output that cannot be written.
    Internal = 1,
    /// The command line is wrong, or asks for what this program or machine does not have.
    Usage = 2,
    /// The trace is missing or malformed.
    BadTrace = 3,
    /// A block arrived with wrong bytes.
    WrongBytes = 4,
    /// A peer was lost, and it did not come back in time or nobody waited for it.
    PeerLost = 5,
    /// Transfers failed in other ways, or were late.
    Failed = 6,
    /// The serving process cannot be started or reached, or does not fit.
    NoServer = 7,
    /// Bytes changed after their transfer had ended.
    LateBytes = 8,
    /// A comparison found a row that got worse.
    Worse = 9,
    /// Stopped by a signal before the end.
    Interrupted = 130,
}

impl Exit {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Internal,
        Self::Usage,
        Self::BadTrace,
        Self::WrongBytes,
        Self::PeerLost,
        Self::Failed,
        Self::NoServer,
        Self::LateBytes,
        Self::Worse,
        Self::Interrupted,
    ];

    /// The number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name that the JSON report uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Internal => "internal",
            Self::Usage => "usage",
            Self::BadTrace => "bad_trace",
            Self::WrongBytes => "wrong_bytes",
            Self::PeerLost => "peer_lost",
            Self::Failed => "failed",
            Self::NoServer => "no_server",
            Self::LateBytes => "late_bytes",
            Self::Worse => "worse",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}
