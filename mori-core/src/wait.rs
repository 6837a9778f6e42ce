//! Waiting for one transfer (contract W1–W10).
//!
//! # Protocol
//!
//! 1. A status that is not in progress answers at once; no poll, no sleep (W1, in [`Status::wait_with`]).
//! 2. The deadline is computed once, before anything else (W2, W5).
//! 3. Zero timeout: one poll, and the answer (W6).
//! 4. Otherwise one poll up front (W8, W9), and no lock is held while the backend runs.
//! 5. With a notifier: an optional short busy window, the backend's and then the policy's, then sleep until the terminal
//!    state or the deadline (W8).
//! 6. Without one and with a bound: sleep until the terminal state, the deadline, or the next step of the re-poll
//!    policy; at the deadline poll once more, unless the status is terminal (W4, W9).
//! 7. Without one and without a bound: the backend's blocking hook waits (W10). A backend that has no hook, or whose
//!    hook returns too early, is polled again with back-off. Nobody sleeps for good on a backend that needs polling.

mod future;
mod many;
mod repoll;

use std::time::Duration;

pub use future::{Completion, Gathering};
#[cfg(test)]
pub(crate) use many::model_wakes;
pub use many::{Member, Outcome, scan, wait_all, wait_any, wait_first_failure, wait_some};

use crate::backend::BlockOn;
use crate::status::{Status, StatusCode};
use crate::sync::{self, mutant};
use crate::time::{Clock, Deadline, Timeout};

/// What a wait does between its first poll and its deadline on a backend without a notifier (contract W9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repoll {
    /// Nothing: one poll up front and one at the deadline. The right answer, possibly late. An unbounded wait that
    /// has to poll uses [`Repoll::BACKOFF`].
    AtDeadline,
    /// Polls again after `first`, then after twice as long each time, up to `most`.
    Backoff {
        /// The first pause; less than one microsecond is taken as one.
        first: Duration,
        /// The longest pause.
        most: Duration,
    },
}

impl Repoll {
    /// From ten microseconds to one millisecond.
    pub const BACKOFF: Self =
        Self::Backoff { first: Duration::from_micros(10), most: Duration::from_millis(1) };

    pub(crate) fn steps(self) -> Option<Backoff> {
        match self {
            Self::AtDeadline => None,
            Self::Backoff { first, most } => {
                let next = first.max(Duration::from_micros(1));
                Some(Backoff { next, most: most.max(next) })
            }
        }
    }

    /// The pauses for a wait that has to poll whatever the policy says.
    pub(crate) fn forced_steps(self) -> Backoff {
        self.steps().unwrap_or(Backoff { next: Duration::from_micros(10), most: Duration::from_millis(1) })
    }
}

/// Pauses that double up to a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.next.saturating_mul(2).min(self.most);
        pause
    }
}

/// How waits behave: re-polling, busy window, clock. An engine has one, and each call may bring its own.
///
/// ```
/// use mori_core::{Origin, Repoll, Status, WaitPolicy};
/// use std::time::Duration;
/// let policy = WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT };
/// let (completer, status) = Status::pair(Origin::detached());
/// completer.succeed();
/// assert!(status.wait_with(Duration::from_secs(1), &policy).is_success());
/// ```
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    /// What to do between the first poll and the deadline on a backend without a notifier.
    pub repoll: Repoll,
    /// How long a waiter looks at the status before it sleeps on a backend with a notifier (contract W8). Tens of
    /// microseconds at most; zero, the default, sleeps at once.
    pub busy_window: Duration,
    /// Where the time comes from.
    pub clock: Clock,
}

impl WaitPolicy {
    /// Two polls, no busy window, the system's clock.
    pub const DEFAULT: Self =
        Self { repoll: Repoll::AtDeadline, busy_window: Duration::ZERO, clock: Clock::system() };

    pub(crate) fn deadline(&self, timeout: Timeout) -> Deadline {
        match timeout {
            Timeout::Unbounded => Deadline::Never,
            Timeout::Poll => Deadline::At(self.clock.now()),
            Timeout::Within(bound) => self.clock.deadline(bound),
        }
    }
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

pub(crate) fn is_poll(timeout: Timeout) -> bool {
    match timeout {
        Timeout::Poll => true,
        Timeout::Within(bound) => bound.is_zero(),
        Timeout::Unbounded => false,
    }
}

/// Waits for a status that was in progress a moment ago.
pub(crate) fn one(status: &Status, timeout: Timeout, policy: &WaitPolicy) -> StatusCode {
    if is_poll(timeout) {
        return status.poll();
    }
    let deadline = policy.deadline(timeout);
    let code = status.poll();
    if code != StatusCode::InProgress {
        return code;
    }
    if status.has_notifier() {
        let over = || status.code() != StatusCode::InProgress;
        status.linger(&|| over() || deadline.passed(policy.clock.now()));
        busy(policy, deadline, over);
        return status.sleep(&policy.clock, deadline);
    }
    match deadline {
        Deadline::Never => blocking(status, policy),
        Deadline::At(_) => repolling(status, deadline, policy),
    }
}

/// Looks at `done` for the policy's busy window, but not beyond the deadline.
pub(crate) fn busy(policy: &WaitPolicy, deadline: Deadline, done: impl Fn() -> bool) {
    if policy.busy_window.is_zero() {
        return;
    }
    let until = policy.clock.deadline(policy.busy_window).min(deadline);
    while !done() && !until.passed(policy.clock.now()) {
        sync::spin_loop();
    }
}

/// W9: sleeps to the deadline, with the policy's polls in between, and polls once more at the deadline.
fn repolling(status: &Status, deadline: Deadline, policy: &WaitPolicy) -> StatusCode {
    let mut steps = policy.repoll.steps();
    loop {
        let next = match &mut steps {
            Some(steps) => policy.clock.deadline(steps.pause()).min(deadline),
            None => deadline,
        };
        if status.sleep(&policy.clock, next) != StatusCode::InProgress {
            return status.code();
        }
        // Whether this is the last poll is settled before it, so that a poll that takes long adds no further one.
        let last = next == deadline;
        if last && mutant("no_last_poll") {
            return status.code();
        }
        if status.poll() != StatusCode::InProgress || last {
            return status.code();
        }
    }
}

/// W10: the backend's blocking hook waits; where there is none, polls with back-off.
fn blocking(status: &Status, policy: &WaitPolicy) -> StatusCode {
    let mut steps = policy.repoll.forced_steps();
    loop {
        match status.block() {
            // The backend is gone. It has ended its transfers, or drops their writers' sides just now (S5).
            None => return status.sleep(&policy.clock, Deadline::Never),
            Some(BlockOn::Returned) => {
                if status.poll() != StatusCode::InProgress {
                    return status.code();
                }
            }
            Some(BlockOn::Unsupported) => {}
        }
        let pause = if mutant("no_repoll") { Deadline::Never } else { policy.clock.deadline(steps.pause()) };
        if status.sleep(&policy.clock, pause) != StatusCode::InProgress
            || status.poll() != StatusCode::InProgress
        {
            return status.code();
        }
    }
}
