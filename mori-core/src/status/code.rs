//! Codes and the pure transition function: every change of a status goes through [`transition`].

use std::fmt;

use crate::error::ErrorKind;

/// Where a transfer stands.
///
/// The numbers ([`StatusCode::number`]) are an interface to existing users and never change meaning.
///
/// ```
/// use mori_core::{ErrorKind, StatusCode};
/// assert_eq!(StatusCode::Success.number(), 0);
/// assert_eq!(StatusCode::from_number(2), Some(StatusCode::InProgress));
/// assert!(StatusCode::Failure(ErrorKind::PeerLost).is_failure());
/// assert!(!StatusCode::Init.is_terminal());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// 0: every byte is in place.
    Success,
    /// 1: created, never submitted.
    Init,
    /// 2: submitted, bytes may still move.
    InProgress,
    /// The kind's number (11 and up): the transfer failed, and none of its bytes can move any more.
    Failure(ErrorKind),
}

impl StatusCode {
    /// The number that stands for this code wherever statuses are numbers.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Success => 0,
            Self::Init => 1,
            Self::InProgress => 2,
            Self::Failure(kind) => kind.number(),
        }
    }

    /// The code with this number, if there is one. Ten is not a code, only the border to the failures.
    #[must_use]
    #[inline]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Success),
            1 => Some(Self::Init),
            2 => Some(Self::InProgress),
            _ => ErrorKind::from_number(number).map(Self::Failure),
        }
    }

    /// Whether the code is final (contract S2).
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Init | Self::InProgress)
    }

    /// Whether the code is a failure (its number is greater than 10).
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Failure(_))
    }

    /// Whether every byte is in place.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::Init => f.write_str("init"),
            Self::InProgress => f.write_str("in progress"),
            Self::Failure(kind) => kind.fmt(f),
        }
    }
}

/// What can happen to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The transfer was handed to its backend.
    Submit,
    /// Every byte is in place.
    Succeed,
    /// It failed, and is quiet.
    Fail(ErrorKind),
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Transition {
    /// The status moves to this code.
    Move(StatusCode),
    /// The event changes nothing: the status stays at this code.
    Ignored(StatusCode),
}

/// The state machine (contract S1, S2): init → in progress, init → terminal, in progress → terminal, and
/// nothing else. The first terminal state is final.
///
/// ```
/// use mori_core::{transition, Event, StatusCode, Transition};
/// assert_eq!(transition(StatusCode::Init, Event::Submit), Transition::Move(StatusCode::InProgress));
/// assert_eq!(transition(StatusCode::Success, Event::Submit), Transition::Ignored(StatusCode::Success));
/// ```
pub const fn transition(from: StatusCode, event: Event) -> Transition {
    match (from, event) {
        (StatusCode::Init, Event::Submit) => Transition::Move(StatusCode::InProgress),
        (StatusCode::Init | StatusCode::InProgress, Event::Succeed) => Transition::Move(StatusCode::Success),
        (StatusCode::Init | StatusCode::InProgress, Event::Fail(kind)) => {
            Transition::Move(StatusCode::Failure(kind))
        }
        (StatusCode::InProgress, Event::Submit) | (StatusCode::Success | StatusCode::Failure(_), _) => {
            Transition::Ignored(from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes() -> Vec<StatusCode> {
        let mut codes = vec![StatusCode::Success, StatusCode::Init, StatusCode::InProgress];
        codes.extend(ErrorKind::ALL.map(StatusCode::Failure));
        codes
    }

    #[test]
    fn numbers_go_both_ways_and_the_border_is_no_code() {
        for code in codes() {
            assert_eq!(StatusCode::from_number(code.number()), Some(code));
            assert_eq!(code.is_failure(), code.number() > 10);
        }
        for gap in (3..=10).chain(16..=31).chain(42..300) {
            assert_eq!(StatusCode::from_number(gap), None);
        }
    }

    /// S1, S2: the whole table, every state against every event.
    #[test]
    fn transition_table() {
        let mut events = vec![Event::Submit, Event::Succeed];
        events.extend(ErrorKind::ALL.map(Event::Fail));
        for from in codes() {
            for event in events.iter().copied() {
                let target = match event {
                    Event::Submit => StatusCode::InProgress,
                    Event::Succeed => StatusCode::Success,
                    Event::Fail(kind) => StatusCode::Failure(kind),
                };
                let moves = match from {
                    StatusCode::Init => true,
                    StatusCode::InProgress => event != Event::Submit,
                    _ => false,
                };
                let expected = if moves { Transition::Move(target) } else { Transition::Ignored(from) };
                assert_eq!(transition(from, event), expected, "{from:?} {event:?}");
            }
        }
    }
}
