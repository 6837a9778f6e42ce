//! The status of one transfer: the reader's side ([`Status`]) and the writer's side ([`Completer`]).
//!
//! # Protocol
//!
//! A status is one word and one lock. The word holds the code and one bit, *observed*, which says that
//! somebody sleeps on the status or has subscribed to it. The lock guards the failure, the note and the list of
//! subscribers; the condition variable beside it is what single waiters sleep on.
//!
//! 1. A reader that only wants the code loads the word (acquire). Terminal: done, no lock.
//! 2. A waiter or subscriber takes the lock, sets *observed* with a read-modify-write, and looks at the code
//!    which that same operation returned. Terminal: it does not sleep. Else it enters the list or sleeps on the
//!    condition variable, which gives up the lock in the same step.
//! 3. A success is one compare-and-swap of the code (release). It keeps the *observed* bit it found. If the bit was
//!    clear, nobody can be asleep: done, no lock and no system call.
//! 4. If the bit was set, the writer takes the lock, takes the list, notifies, gives the lock back and only then
//!    calls the subscribers.
//! 5. A failure does the same with the lock held from the start: it stores the failure first and the code
//!    second, so that whoever sees the code finds the failure that came with it (contract S3).
//!
//! What that excludes. *Lost wake-up:* steps 2 and 3 are read-modify-writes of one word, so one comes first: either the
//! writer sees the bit and takes the lock, which it gets only after the waiter sleeps, or the waiter sees the
//! terminal code and does not sleep. *Code without message:* step 5's order, and a success that overtakes it
//! makes the failure withdraw what it stored before the lock is given back. *Two terminal states:* the
//! compare-and-swap starts from a code that is not terminal, or is not done (S2).

mod code;
mod completer;
mod observe;

use std::fmt;
use std::sync::{Arc, Weak};

pub use code::{Event, StatusCode, Transition, transition};
pub use completer::Completer;
pub use observe::Observe;
use observe::Observers;

use crate::backend::{Backend, BlockOn};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Tag, TransferId};
use crate::sync::{AtomicU32, Condvar, Mutex, MutexGuard, Ordering, mutant};
use crate::time::{Clock, Deadline, Sleeper, Timeout};
use crate::wait::{self, WaitPolicy};

/// The low bits of the word: the code's number.
const CODE: u32 = 0xff;
/// Somebody sleeps on the status or has subscribed to it, or did so earlier.
const OBSERVED: u32 = 0x100;

#[inline]
fn code_of(word: u32) -> StatusCode {
    // The word only ever holds numbers of codes, so the fallback is never taken; it keeps this free of panics.
    StatusCode::from_number(word & CODE).unwrap_or(StatusCode::Failure(ErrorKind::BadState))
}

#[derive(Default)]
struct Slow {
    failure: Option<Error>,
    note: Option<Box<str>>,
    observers: Observers,
}

struct Inner {
    word: AtomicU32,
    notifier: bool,
    id: TransferId,
    tag: Tag,
    backend: Option<Weak<dyn Backend>>,
    slow: Mutex<Slow>,
    terminal: Condvar,
}

impl Inner {
    #[inline]
    fn code(&self) -> StatusCode {
        // Acquire pairs with the release of the writer's compare-and-swap in `set`: data before status (S4).
        code_of(self.word.load(Ordering::Acquire))
    }

    /// Moves the code if the state machine allows it; says whether the move was made and what the word was before.
    fn set(&self, event: Event) -> Result<u32, StatusCode> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = match transition(code_of(word), event) {
                Transition::Move(next) => next,
                Transition::Ignored(code) => return Err(code),
            };
            let new = (word & !CODE) | next.number();
            // Release pairs with the acquire of every reader's load (S3, S4); acquire pairs with the waiter's
            // read-modify-write in `observe`, so that this thread sees what the waiter did before.
            let order = if mutant("relaxed_code") { Ordering::Relaxed } else { Ordering::AcqRel };
            if mutant("later_state_wins") {
                return Ok(self.word.swap(new, order));
            }
            match self.word.compare_exchange_weak(word, new, order, Ordering::Relaxed) {
                Ok(before) => return Ok(before),
                Err(now) => word = now,
            }
        }
    }

    /// Step 2 of the protocol; the caller holds the lock.
    fn observe(&self) -> StatusCode {
        let earlier = if mutant("looks_before_arming") { Some(self.code()) } else { None };
        // AcqRel pairs with the compare-and-swap in `set`: one of the two comes first and the other sees it.
        let now = code_of(self.word.fetch_or(OBSERVED, Ordering::AcqRel));
        earlier.unwrap_or(now)
    }

    fn succeed(&self) -> Update {
        if mutant("notifies_before_store") {
            self.terminal.notify_all();
        }
        match self.set(Event::Succeed) {
            Err(code) => Update::Ignored(code),
            Ok(before) => {
                if before & OBSERVED != 0 && !mutant("notifies_before_store") {
                    if mutant("store_outside_lock") {
                        self.terminal.notify_all();
                        return Update::Applied;
                    }
                    self.release(self.slow.lock(), StatusCode::Success);
                }
                Update::Applied
            }
        }
    }

    fn fail(&self, error: Error) -> Update {
        let kind = error.kind();
        if mutant("message_after_code") && self.set(Event::Fail(kind)).is_ok() {
            self.slow.lock().failure = Some(error);
            self.release(self.slow.lock(), StatusCode::Failure(kind));
            return Update::Applied;
        }
        let mut slow = self.slow.lock();
        // Only one failure at a time gets here, and it finds a failure of an earlier one only if the status is
        // terminal already, in which case that one stays.
        let code = self.code();
        if code.is_terminal() {
            return Update::Ignored(code);
        }
        slow.failure = Some(error);
        match self.set(Event::Fail(kind)) {
            Err(code) => {
                slow.failure = None;
                Update::Ignored(code)
            }
            Ok(_) => {
                self.release(slow, StatusCode::Failure(kind));
                Update::Applied
            }
        }
    }

    /// Step 4 of the protocol: releases everybody who sleeps or has subscribed.
    fn release(&self, mut slow: MutexGuard<'_, Slow>, code: StatusCode) {
        let observers = std::mem::take(&mut slow.observers);
        self.terminal.notify_all();
        drop(slow);
        observers.tell(code);
    }
}

impl Sleeper for Inner {
    fn look_again(&self) {
        let _slow = self.slow.lock();
        self.terminal.notify_all();
    }
}

/// What became of an update (contract S2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The status moved.
    Applied,
    /// Nothing changed: the status was already at this code, which such an update cannot change.
    Ignored(StatusCode),
}

impl Update {
    /// Whether the status moved.
    #[must_use]
    pub fn applied(self) -> bool {
        matches!(self, Self::Applied)
    }
}

/// What a status is told about its transfer when it is made.
#[derive(Clone)]
pub struct Origin {
    /// The transfer's number, unique in this process and never reused.
    pub id: TransferId,
    /// The caller's own mark for the transfer.
    pub tag: Tag,
    /// Who makes progress on it. Kept weakly: a status keeps no backend alive (contract S6).
    pub backend: Option<Weak<dyn Backend>>,
    /// What the backend's [`Backend::has_notifier`] says; without a backend, `true`.
    pub notifier: bool,
}

impl Origin {
    /// The origin of a transfer on `backend`, with a fresh id.
    #[must_use]
    pub fn backend(backend: &Weak<dyn Backend>, notifier: bool, tag: Tag) -> Self {
        Self { id: TransferId::fresh(), tag, backend: Some(Weak::clone(backend)), notifier }
    }

    /// An origin without a backend: the status is completed by whoever holds its writer's side, and a wait on it
    /// polls nothing.
    #[must_use]
    pub fn detached() -> Self {
        Self { id: TransferId::fresh(), tag: Tag::default(), backend: None, notifier: true }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("id", &self.id)
            .field("tag", &self.tag)
            .field("notifier", &self.notifier)
            .finish_non_exhaustive()
    }
}

/// The reader's side of a transfer: where it stands, and the waits for it.
///
/// A small handle; clones are handles to the same status. It outlives the engine, the session and the backend that made
/// it (contract S6), and dropping it cancels nothing.
///
/// ```
/// use mori_core::{Origin, Status, StatusCode};
/// let (completer, status) = Status::pair(Origin::detached());
/// assert_eq!(status.code(), StatusCode::Init);
/// completer.submit();
/// let other = std::thread::spawn(move || completer.succeed());
/// assert_eq!(status.wait(None), StatusCode::Success);
/// # assert!(other.join().unwrap().applied());
/// ```
#[derive(Clone)]
pub struct Status(Arc<Inner>);

impl Status {
    /// The two sides of a new status, which is *init*.
    pub fn pair(origin: Origin) -> (Completer, Self) {
        let inner = Arc::new(Inner {
            word: AtomicU32::new(StatusCode::Init.number()),
            notifier: origin.notifier,
            id: origin.id,
            tag: origin.tag,
            backend: origin.backend,
            slow: Mutex::new(Slow::default()),
            terminal: Condvar::new(),
        });
        (Completer(Arc::clone(&inner)), Self(inner))
    }

    /// A status that has failed already: the answer to a submission that is refused.
    #[must_use]
    pub fn failed(tag: Tag, error: Error) -> Self {
        let (completer, status) = Self::pair(Origin { tag, ..Origin::detached() });
        completer.fail(error);
        status
    }

    /// A status that has succeeded already: the answer to a submission without bytes.
    #[must_use]
    pub fn succeeded(tag: Tag) -> Self {
        let (completer, status) = Self::pair(Origin { tag, ..Origin::detached() });
        completer.succeed();
        status
    }

    /// Both sides of a second status of the same transfer: same number, tag and backend, and *init*. For whoever does
    /// something more when the transfer is over, and hands out the second status in place of the first: polling and
    /// cancelling the second one reach the transfer as before.
    ///
    /// ```
    /// use mori_core::{Origin, Status};
    /// let (transfer, first) = Status::pair(Origin::detached());
    /// let (completer, second) = first.sequel();
    /// assert_eq!(second.id(), first.id());
    /// transfer.succeed();
    /// assert!(!second.is_success());
    /// completer.succeed();
    /// assert!(second.is_success());
    /// ```
    pub fn sequel(&self) -> (Completer, Self) {
        let first = &*self.0;
        let (id, tag) = (first.id, first.tag);
        Self::pair(Origin { id, tag, backend: first.backend.clone(), notifier: first.notifier })
    }

    /// Where the transfer stands. One load, never blocks. After *success*, the bytes of a read are visible to the
    /// calling thread (contract S4).
    #[must_use]
    #[inline]
    pub fn code(&self) -> StatusCode {
        self.0.code()
    }

    /// Whether the transfer has succeeded. As [`Status::code`], and cheaper, because there is nothing to decode.
    #[must_use]
    #[inline]
    pub fn is_success(&self) -> bool {
        // Acquire pairs with the release of the writer's compare-and-swap in `set`: data before status (S4).
        self.0.word.load(Ordering::Acquire) & CODE == StatusCode::Success.number()
    }

    /// Whether the transfer has failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.code().is_failure()
    }

    /// Why the transfer failed; `None` while it has not. Code and failure are one fact (contract S3).
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        // The code first: a failure that a success overtakes is stored for a moment under the lock.
        if !self.code().is_failure() {
            return None;
        }
        self.0.slow.lock().failure.clone()
    }

    /// The failure's message, or the last note of the writer's side, or nothing.
    #[must_use]
    pub fn message(&self) -> String {
        match self.error() {
            Some(error) => error.message().to_owned(),
            None => self.0.slow.lock().note.as_deref().unwrap_or_default().to_owned(),
        }
    }

    /// The transfer's number, unique in this process and never reused.
    #[must_use]
    pub fn id(&self) -> TransferId {
        self.0.id
    }

    /// The caller's own mark for the transfer.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.0.tag
    }

    /// Whether its backend completes it with nobody polling.
    #[must_use]
    pub fn has_notifier(&self) -> bool {
        self.0.notifier
    }

    /// Waits until the transfer is terminal or `timeout` runs out, with the default policy.
    ///
    /// `None` waits without a bound, `Duration::ZERO` polls once. Returns the terminal code, *in progress* if the bound
    /// ran out (which cancels nothing; wait again as you like), or *init* at once if the transfer was never
    /// submitted. The rules are W1–W10 of the wait contract.
    ///
    /// ```
    /// use mori_core::{Origin, Status, StatusCode};
    /// use std::time::Duration;
    /// let (completer, status) = Status::pair(Origin::detached());
    /// completer.submit();
    /// assert_eq!(status.wait(Duration::from_millis(1)), StatusCode::InProgress);
    /// completer.succeed();
    /// assert_eq!(status.wait(None), StatusCode::Success);
    /// ```
    #[inline]
    pub fn wait(&self, timeout: impl Into<Timeout>) -> StatusCode {
        let code = self.code();
        // W1, before anything is made for a wait.
        if code != StatusCode::InProgress {
            return code;
        }
        self.wait_with(timeout, &WaitPolicy::DEFAULT)
    }

    /// Like [`Status::wait`], with a policy of the caller's.
    #[inline]
    pub fn wait_with(&self, timeout: impl Into<Timeout>, policy: &WaitPolicy) -> StatusCode {
        let code = self.code();
        // W1: no sleep and no poll when the status is not in progress.
        if code != StatusCode::InProgress {
            return code;
        }
        wait::one(self, timeout.into(), policy)
    }

    /// Asks the backend once for progress; does nothing on a terminal status or when the backend is gone.
    pub fn poll(&self) -> StatusCode {
        if self.code() == StatusCode::InProgress {
            if let Some(backend) = self.backend() {
                backend.poll_progress(self.0.id);
            }
        }
        self.code()
    }

    /// Asks the backend to stop the transfer (contract E1).
    ///
    /// The status ends as *cancelled* only when no byte of the transfer can land any more; until then it stays in
    /// progress. A transfer that has finished keeps its result.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when the backend cannot cancel; [`ErrorKind::BadState`] when the transfer was
    /// never submitted.
    pub fn cancel(&self) -> Result<()> {
        match self.code() {
            StatusCode::Init => {
                return Err(Error::new(ErrorKind::BadState, "the transfer was never submitted"));
            }
            code if code.is_terminal() => return Ok(()),
            _ => {}
        }
        match self.backend() {
            Some(backend) => backend.cancel(self.0.id),
            // A backend that is gone has ended its transfers, or is about to (S5); a detached status has no backend.
            None if self.0.backend.is_some() => Ok(()),
            None => {
                Err(Error::new(ErrorKind::Unsupported, "this status has no backend that could cancel it"))
            }
        }
    }

    /// Subscribes `observer` to the terminal state. Returns `false`, and never calls the observer, if the status is
    /// terminal already.
    pub fn subscribe(&self, observer: Arc<dyn Observe>) -> bool {
        let mut slow = self.0.slow.lock();
        if self.0.observe().is_terminal() {
            return false;
        }
        slow.observers.push(observer);
        true
    }

    /// Takes every subscription of `observer` back. A call that is under way on another thread may still reach it.
    pub fn unsubscribe(&self, observer: &Arc<dyn Observe>) {
        // The removed observer is dropped outside of the lock by keeping the list's own copy alive here.
        let _keep = Arc::clone(observer);
        self.0.slow.lock().observers.remove(observer);
    }

    fn backend(&self) -> Option<Arc<dyn Backend>> {
        self.0.backend.as_ref().and_then(Weak::upgrade)
    }

    /// The backend's blocking hook (W10), with no lock held. `None` when the backend is gone or there is none.
    pub(crate) fn block(&self) -> Option<BlockOn> {
        let _held = if mutant("hook_under_lock") { Some(self.0.slow.lock()) } else { None };
        self.backend().map(|backend| backend.block_on(self.0.id))
    }

    /// Lets the backend look for progress on this thread for its busy window (W8), until `over`.
    pub(crate) fn linger(&self, over: &dyn Fn() -> bool) {
        if self.code() == StatusCode::InProgress
            && let Some(backend) = self.backend()
        {
            backend.linger(self.0.id, over);
        }
    }

    /// Sleeps until the status is not in progress or `deadline` has passed on `clock`.
    pub(crate) fn sleep(&self, clock: &Clock, deadline: Deadline) -> StatusCode {
        clock.enroll(|| {
            let weak: Weak<Inner> = Arc::downgrade(&self.0);
            weak
        });
        let inner = &*self.0;
        let mut slow = inner.slow.lock();
        let mut code = inner.observe();
        // W5: a wake without a terminal code sleeps on. W4: when the deadline is seen, the code has the last word.
        while code == StatusCode::InProgress {
            if deadline != Deadline::Never && deadline.passed(clock.now()) {
                // Once more: a success takes no lock, so it may have come between the two looks.
                return if mutant("clock_beats_completion") { code } else { inner.code() };
            }
            clock.sleep(&inner.terminal, &mut slow, deadline);
            code = inner.code();
            if mutant("if_for_while") {
                break;
            }
        }
        code
    }
}

impl AsRef<Self> for Status {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Status");
        out.field("id", &self.0.id).field("tag", &self.0.tag).field("code", &self.code());
        if let Some(error) = self.error() {
            out.field("message", &error.message());
        }
        out.finish()
    }
}
