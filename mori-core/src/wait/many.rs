//! Waiting for many transfers (contract A1–A12): the outcome, and the gate that a waiter sleeps on.
//!
//! # Protocol
//!
//! A waiter for many makes one *gate* and subscribes it to every member that is still in progress. The gate counts
//! down; the completion that takes the count to zero opens it and wakes the one thread that sleeps on it. Completions
//! before that cost their thread one decrement, no lock and no system call (A10).
//!
//! 1. One pass of loads over the members. If nothing has to be waited for: the outcome (A1, A10).
//! 2. Zero timeout: each unfinished member is polled once, then the outcome (A6).
//! 3. Members without a notifier are polled once (W9).
//! 4. The gate starts with the number of completions it needs plus one; that one is the waiter's own and is taken
//!    away when every subscription is made, so that completions during the subscribing cannot open it too
//!    early. A member that turns out to be terminal while it is being subscribed counts down on the spot (arm, then check).
//! 5. The waiter sleeps until the gate is open or the deadline; members without a notifier are polled in between as the
//!    policy says (A7), and once more at the deadline, wherever they stand (A5).
//! 6. Subscriptions at members that are still in progress are taken back; then the outcome is read off in one pass,
//!    failure first (A3).

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::{WaitPolicy, busy, is_poll};
use crate::error::Error;
use crate::id::{Tag, TransferId};
use crate::status::{Observe, Status, StatusCode};
use crate::sync::{AtomicIsize, Condvar, Mutex, Ordering, mutant};
use crate::time::{Clock, Deadline, Sleeper, Timeout};

/// One member of a batch that is not a success, in an [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its place in the list that was waited for.
    pub index: usize,
    /// Its transfer's number.
    pub id: TransferId,
    /// The caller's own mark for it.
    pub tag: Tag,
    /// Where it stands.
    pub code: StatusCode,
    /// Why it failed, if it has.
    pub error: Option<Error>,
}

/// What a wait for many found (contract A3, A8, A9).
///
/// ```
/// use mori_core::{wait_all, Error, ErrorKind, Status, StatusCode, Tag};
/// let good = Status::succeeded(Tag(1));
/// let bad = Status::failed(Tag(2), Error::new(ErrorKind::NotFound, "no such region"));
/// let outcome = wait_all(&[good, bad], None);
/// assert_eq!(outcome.code(), StatusCode::Failure(ErrorKind::NotFound));
/// assert_eq!(outcome.failed()[0].index, 1);
/// assert_eq!(outcome.failed()[0].tag, Tag(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    code: StatusCode,
    members: usize,
    failed: Vec<Member>,
    unfinished: Vec<Member>,
}

impl Outcome {
    /// Of a batch whose members have all succeeded.
    fn success(members: usize) -> Self {
        Self { code: StatusCode::Success, members, failed: Vec::new(), unfinished: Vec::new() }
    }

    /// The code of the whole batch: the code of the earliest member in the list that failed; else *init* if a
    /// member was never submitted; else *in progress* if one is; else *success*.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        self.code
    }

    /// Whether every member has succeeded. An empty batch has.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.code.is_success()
    }

    /// The members that failed, in the order of the list.
    #[must_use]
    pub fn failed(&self) -> &[Member] {
        &self.failed
    }

    /// The members that are in progress or were never submitted, in the order of the list.
    #[must_use]
    pub fn unfinished(&self) -> &[Member] {
        &self.unfinished
    }

    /// Whether no member can change any more: none is in progress or waits to be submitted (contract A4).
    #[must_use]
    pub fn all_quiet(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// How many members have succeeded.
    #[must_use]
    pub fn succeeded(&self) -> usize {
        self.members - self.failed.len() - self.unfinished.len()
    }

    /// How many members the batch has; a status that stands in the list twice counts twice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members
    }

    /// Whether the batch has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// `Ok` if every member has succeeded, the earliest member's failure if one has failed, `Err(None)` if the
    /// time ran out (or a member was never submitted).
    ///
    /// # Errors
    ///
    /// As said above.
    pub fn result(&self) -> Result<(), Option<Error>> {
        if self.is_success() {
            return Ok(());
        }
        Err(self.failed.first().and_then(|member| member.error.clone()))
    }
}

fn member(index: usize, status: &Status, code: StatusCode) -> Member {
    let error = if code.is_failure() { status.error() } else { None };
    Member { index, id: status.id(), tag: status.tag(), code, error }
}

/// How many members from the start on have succeeded: one load for each, which is all that the common case costs (A10).
#[inline]
fn successes<S: AsRef<Status>>(members: &[S]) -> usize {
    let mut first = 0;
    // Eight loads for one branch.
    for eight in members.chunks_exact(8) {
        if !eight.iter().fold(true, |all, status| all & status.as_ref().is_success()) {
            break;
        }
        first += 8;
    }
    while members.get(first).is_some_and(|status| status.as_ref().is_success()) {
        first += 1;
    }
    first
}

/// The first member that is terminal.
fn first_terminal<S: AsRef<Status>>(members: &[S]) -> Option<usize> {
    members.iter().position(|status| status.as_ref().code().is_terminal())
}

/// Reads the outcome off without calling into any backend (contract A11).
///
/// ```
/// use mori_core::{scan, Origin, Status, StatusCode};
/// let (completer, status) = Status::pair(Origin::detached());
/// completer.submit();
/// assert_eq!(scan(&[&status]).code(), StatusCode::InProgress);
/// ```
#[must_use]
pub fn scan<S: AsRef<Status>>(members: &[S]) -> Outcome {
    let first = successes(members);
    let mut outcome = Outcome::success(members.len());
    if first == members.len() {
        return outcome;
    }
    let unfinished = members.iter().skip(first).filter(|status| !status.as_ref().code().is_terminal());
    outcome.unfinished.reserve(unfinished.count());
    for (index, status) in members.iter().enumerate().skip(first) {
        let status = status.as_ref();
        match status.code() {
            StatusCode::Success => {}
            code @ StatusCode::Failure(_) => outcome.failed.push(member(index, status, code)),
            code @ (StatusCode::Init | StatusCode::InProgress) => {
                outcome.unfinished.push(member(index, status, code));
            }
        }
    }
    // A3: failure wins; A8: init hides no failure, and wins over in progress.
    outcome.code = match (outcome.failed.first(), outcome.unfinished.first()) {
        (Some(failed), _) => failed.code,
        (None, None) => StatusCode::Success,
        (None, Some(_)) if outcome.unfinished.iter().any(|member| member.code == StatusCode::Init) => {
            StatusCode::Init
        }
        (None, Some(_)) => StatusCode::InProgress,
    };
    outcome
}

/// Waits until every member is terminal, or `timeout` runs out, with the default policy.
///
/// It does not end at the first failure, because the buffers of the others may still be written to (contract A4); see
/// [`wait_first_failure`] for that. The same status may stand in the list more than once. An empty list succeeds.
///
/// ```
/// use mori_core::{wait_all, Origin, Status, StatusCode};
/// use std::time::Duration;
/// let pairs: Vec<_> = (0..4).map(|_| Status::pair(Origin::detached())).collect();
/// let statuses: Vec<_> = pairs.iter().map(|(_, status)| status.clone()).collect();
/// for (completer, _) in &pairs { completer.submit(); }
/// assert_eq!(wait_all(&statuses, Duration::from_millis(1)).code(), StatusCode::InProgress);
/// for (completer, _) in &pairs { completer.succeed(); }
/// assert!(wait_all(&statuses, None).is_success());
/// ```
pub fn wait_all<S: AsRef<Status>>(members: &[S], timeout: impl Into<Timeout>) -> Outcome {
    wait_many(members, timeout.into(), &WaitPolicy::DEFAULT, Until::All)
}

/// Waits until every member is terminal, the first one fails, or `timeout` runs out (contract A4).
///
/// [`Outcome::unfinished`] says which members are still running; their buffers may still be written to.
pub fn wait_first_failure<S: AsRef<Status>>(members: &[S], timeout: impl Into<Timeout>) -> Outcome {
    wait_many(members, timeout.into(), &WaitPolicy::DEFAULT, Until::FirstFailure)
}

/// Waits until one member is terminal and gives its index (contract A12), or `None` if `timeout` runs out first, or the
/// list has no member that is, or can become, terminal.
///
/// ```
/// use mori_core::{wait_any, Origin, Status, Tag};
/// let (completer, slow) = Status::pair(Origin::detached());
/// completer.submit();
/// assert_eq!(wait_any(&[slow, Status::succeeded(Tag(0))], None), Some(1));
/// ```
pub fn wait_any<S: AsRef<Status>>(members: &[S], timeout: impl Into<Timeout>) -> Option<usize> {
    WaitPolicy::DEFAULT.wait_any(members, timeout)
}

/// Waits until `count` members are terminal (all of them, if there are fewer), or `timeout` runs out.
pub fn wait_some<S: AsRef<Status>>(members: &[S], count: usize, timeout: impl Into<Timeout>) -> Outcome {
    wait_many(members, timeout.into(), &WaitPolicy::DEFAULT, Until::Some(count))
}

impl WaitPolicy {
    /// [`wait_all`] with this policy.
    pub fn wait_all<S: AsRef<Status>>(&self, members: &[S], timeout: impl Into<Timeout>) -> Outcome {
        wait_many(members, timeout.into(), self, Until::All)
    }

    /// [`wait_first_failure`] with this policy.
    pub fn wait_first_failure<S: AsRef<Status>>(
        &self,
        members: &[S],
        timeout: impl Into<Timeout>,
    ) -> Outcome {
        wait_many(members, timeout.into(), self, Until::FirstFailure)
    }

    /// [`wait_any`] with this policy.
    pub fn wait_any<S: AsRef<Status>>(&self, members: &[S], timeout: impl Into<Timeout>) -> Option<usize> {
        if let Some(index) = first_terminal(members) {
            return Some(index);
        }
        wait_many(members, timeout.into(), self, Until::Some(1));
        first_terminal(members)
    }

    /// [`wait_some`] with this policy.
    pub fn wait_some<S: AsRef<Status>>(
        &self,
        members: &[S],
        count: usize,
        timeout: impl Into<Timeout>,
    ) -> Outcome {
        wait_many(members, timeout.into(), self, Until::Some(count))
    }
}

/// When a wait for many is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    All,
    FirstFailure,
    Some(usize),
}

/// What one pass of loads finds.
struct Tally<'a> {
    terminal: usize,
    failed: bool,
    pending: Vec<&'a Status>,
}

/// `first` members are known to have succeeded.
fn tally<S: AsRef<Status>>(members: &[S], first: usize) -> Tally<'_> {
    let mut tally = Tally { terminal: first, failed: false, pending: Vec::new() };
    for status in members.iter().skip(first).map(AsRef::as_ref) {
        match status.code() {
            StatusCode::Success => tally.terminal += 1,
            StatusCode::Failure(_) => {
                tally.terminal += 1;
                tally.failed = true;
            }
            StatusCode::InProgress => tally.pending.push(status),
            // W1, A8: a member that was never submitted is not waited for.
            StatusCode::Init => {}
        }
    }
    tally
}

impl Until {
    /// How many of the pending members must still complete; zero: the wait is over.
    pub(super) fn needed(self, terminal: usize, failed: bool, pending: usize) -> usize {
        match self {
            Self::All => pending,
            Self::FirstFailure if failed => 0,
            Self::FirstFailure => pending,
            Self::Some(count) => count.saturating_sub(terminal).min(pending),
        }
    }
}

fn wait_many<S: AsRef<Status>>(
    members: &[S],
    timeout: Timeout,
    policy: &WaitPolicy,
    until: Until,
) -> Outcome {
    let first = successes(members);
    if first == members.len() {
        return Outcome::success(members.len());
    }
    let tally = tally(members, first);
    if until.needed(tally.terminal, tally.failed, tally.pending.len()) == 0 {
        return scan(members);
    }
    let pending = tally.pending;
    if is_poll(timeout) {
        pending.iter().for_each(|status| {
            status.poll();
        });
        return scan(members);
    }
    let deadline = policy.deadline(timeout);
    // The members that somebody has to poll, and a poll up front for each.
    let poll_driven: Vec<&Status> = pending.iter().copied().filter(|s| !s.has_notifier()).collect();
    poll_driven.iter().for_each(|status| {
        status.poll();
    });
    let needed = until.needed(tally.terminal, tally.failed, pending.len());
    let gate = Gate::over(&pending, needed, until);
    let stale = if mutant("stale_verdict") { Some(scan(members)) } else { None };
    linger(&gate, &pending, deadline, policy);
    sleep(&gate, &poll_driven, deadline, policy, until);
    let observer: Arc<dyn Observe> = gate;
    for status in pending {
        if !status.code().is_terminal() {
            status.unsubscribe(&observer);
        }
    }
    stale.unwrap_or_else(|| scan(members))
}

/// W8: the backends' busy window. It ends with the first member that does not complete in it, so that a long batch takes no
/// longer than a single transfer; and a member that somebody has to poll is not kept waiting by it.
fn linger(gate: &Gate, pending: &[&Status], deadline: Deadline, policy: &WaitPolicy) {
    let over = || gate.is_open() || deadline.passed(policy.clock.now());
    for status in pending {
        if !status.has_notifier() || over() {
            return;
        }
        status.linger(&|| status.code() != StatusCode::InProgress || over());
        if status.code() == StatusCode::InProgress {
            return;
        }
    }
}

/// Steps 5: sleeps on the gate, polling those that need it.
fn sleep(gate: &Arc<Gate>, poll_driven: &[&Status], deadline: Deadline, policy: &WaitPolicy, until: Until) {
    if poll_driven.is_empty() {
        busy(policy, deadline, || gate.is_open());
        gate.sleep(&policy.clock, deadline);
        return;
    }
    // Without a bound somebody has to make progress: the blocking hooks one after the other if all are wanted, since
    // the wait cannot end before the last one anyway; else polls with back-off, since a hook of one would
    // hold up the release by another.
    if deadline == Deadline::Never && until == Until::All {
        for status in poll_driven {
            status.wait_with(Timeout::Unbounded, policy);
        }
        gate.sleep(&policy.clock, deadline);
        return;
    }
    let mut steps = match deadline {
        Deadline::Never => Some(policy.repoll.forced_steps()),
        Deadline::At(_) => policy.repoll.steps(),
    };
    loop {
        let next = match &mut steps {
            Some(steps) => policy.clock.deadline(steps.pause()).min(deadline),
            None => deadline,
        };
        if gate.sleep(&policy.clock, next) {
            return;
        }
        let last = next == deadline;
        if last && mutant("no_last_poll") {
            return;
        }
        // A5: every unfinished member, wherever it stands in the list.
        poll_driven.iter().for_each(|status| {
            status.poll();
        });
        if last || gate.is_open() {
            return;
        }
    }
}

/// What a waiter for many sleeps on.
pub(super) struct Gate {
    left: AtomicIsize,
    first_failure: bool,
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default)]
struct GateState {
    open: bool,
    waker: Option<Waker>,
}

impl Gate {
    /// A gate that opens when `needed` of `pending` have completed (or the first has failed, if that is what is
    /// waited for).
    pub(super) fn over<S: AsRef<Status>>(pending: &[S], needed: usize, until: Until) -> Arc<Self> {
        let needed = isize::try_from(needed).unwrap_or(isize::MAX - 1);
        let gate = Arc::new(Self {
            left: AtomicIsize::new(needed + 1),
            first_failure: until == Until::FirstFailure || mutant("all_ends_at_failure"),
            state: Mutex::new(GateState::default()),
            opened: Condvar::new(),
        });
        for status in pending {
            let status = status.as_ref();
            let observer: Arc<dyn Observe> = Arc::<Self>::clone(&gate);
            if !status.subscribe(observer) && !mutant("gate_skips_terminal") {
                gate.on_terminal(status.code());
            }
        }
        gate.count_down();
        gate
    }

    fn count_down(&self) {
        // AcqRel pairs with the other countdowns: the one that takes the count to zero has seen what all the others
        // did before, and hands it on through the lock to the waiter (S4 for many).
        let order = if mutant("relaxed_countdown") { Ordering::Relaxed } else { Ordering::AcqRel };
        let one = if mutant("counts_twice") { 2 } else { 1 };
        let before = self.left.fetch_sub(one, order);
        if (1..=one).contains(&before) {
            self.open();
        } else if mutant("wakes_per_completion") {
            self.look_again();
        }
    }

    fn open(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.open = true;
            self.opened.notify_all();
            state.waker.take()
        };
        if let Some(waker) = waker.filter(|_| !mutant("waker_forgotten")) {
            waker.wake();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().open
    }

    /// Sleeps until the gate is open (`true`) or the deadline has passed (`false`).
    fn sleep(self: &Arc<Self>, clock: &Clock, deadline: Deadline) -> bool {
        clock.enroll(|| {
            let weak: Weak<Self> = Arc::downgrade(self);
            weak
        });
        let mut state = self.state.lock();
        while !state.open {
            if deadline != Deadline::Never && deadline.passed(clock.now()) {
                break;
            }
            clock.sleep(&self.opened, &mut state, deadline);
            if mutant("gate_if_for_while") {
                break;
            }
        }
        state.open
    }

    /// Leaves a waker for the opening; `true` if the gate is open already.
    pub(super) fn arm(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if !state.open {
            match &mut state.waker {
                Some(_) if mutant("first_waker_stays") => {}
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        state.open && !mutant("arms_without_looking")
    }
}

impl Observe for Gate {
    fn on_terminal(&self, code: StatusCode) {
        if self.first_failure && code.is_failure() && !mutant("first_failure_waits") {
            self.open();
        }
        self.count_down();
    }
}

impl Sleeper for Gate {
    fn look_again(&self) {
        let _state = self.state.lock();
        self.opened.notify_all();
    }
}

/// How often a waiter for all of `members` is woken; only the models count, elsewhere it is zero.
#[cfg(test)]
pub(crate) fn model_wakes(members: &[Status]) -> usize {
    let gate = Gate::over(members, members.len(), Until::All);
    assert!(gate.sleep(&Clock::system(), Deadline::Never));
    gate.opened.wakes()
}
