//! The one module that reads the clock.
//!
//! Every deadline of the crate is an absolute point on the monotonic clock ([`Deadline`]), computed once from
//! a [`Timeout`] when a wait begins (contract W2: a bound never restarts after a wake). Waits take their time
//! from a [`Clock`], so that tests and models move it by hand ([`ManualClock`]) instead of sleeping.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// How long a wait may take (contract W2).
///
/// ```
/// use mori_core::Timeout;
/// use std::time::Duration;
/// assert_eq!(Timeout::from(Duration::ZERO), Timeout::Poll);
/// assert_eq!(Timeout::from(Duration::from_millis(5)), Timeout::Within(Duration::from_millis(5)));
/// assert_eq!(Timeout::from_millis(-1), Timeout::Unbounded);
/// assert_eq!(Timeout::from_millis(0), Timeout::Poll);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timeout {
    /// Without a bound.
    Unbounded,
    /// Zero: ask the backend once, never sleep.
    Poll,
    /// At most this long. `Within(Duration::ZERO)` is the same as [`Timeout::Poll`].
    Within(Duration),
}

impl Timeout {
    /// The compatibility form in milliseconds: negative is no bound, zero polls, else the bound.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        match u64::try_from(millis) {
            Err(_) => Self::Unbounded,
            Ok(0) => Self::Poll,
            Ok(millis) => Self::Within(Duration::from_millis(millis)),
        }
    }
}

impl From<Duration> for Timeout {
    fn from(bound: Duration) -> Self {
        if bound.is_zero() { Self::Poll } else { Self::Within(bound) }
    }
}

impl From<Option<Duration>> for Timeout {
    fn from(bound: Option<Duration>) -> Self {
        bound.map_or(Self::Unbounded, Self::from)
    }
}

/// An absolute point on the monotonic clock, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// There is no bound.
    Never,
    /// At this point the bound is used up.
    At(Instant),
}

impl Deadline {
    /// Whether the bound is used up at `now`.
    #[must_use]
    pub fn passed(self, now: Instant) -> bool {
        matches!(self, Self::At(point) if now >= point)
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.min(b)),
            (Self::Never, other) => other,
            (own, Self::Never) => own,
        }
    }
}

/// Where waits take their time from: the system's monotonic clock, or one that a test moves by hand.
///
/// A clock is a small value and cheap to clone.
///
/// ```
/// use mori_core::{Clock, Deadline, Timeout};
/// let clock = Clock::system();
/// // A bound too large for the clock means none.
/// assert_eq!(clock.deadline(std::time::Duration::MAX), Deadline::Never);
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Hand>>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(manual)" } else { "Clock(system)" })
    }
}

impl Clock {
    /// The system's monotonic clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(None)
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(hand) => hand.state.lock().now,
        }
    }

    /// The point at which `bound`, counted from now, is used up; a bound too large for the clock means none.
    #[must_use]
    pub fn deadline(&self, bound: Duration) -> Deadline {
        self.now().checked_add(bound).map_or(Deadline::Never, Deadline::At)
    }

    /// Makes a hand-moved clock wake `sleeper` whenever it moves; the system's clock needs no such thing.
    /// Call it before the sleeper takes its lock.
    pub(crate) fn enroll(&self, sleeper: impl FnOnce() -> Weak<dyn Sleeper>) {
        if let Some(hand) = &self.0 {
            let sleeper = sleeper();
            let sleepers = &mut hand.state.lock().sleepers;
            // Once each, so that a move of the clock wakes everybody once.
            if !sleepers.iter().any(|known| known.ptr_eq(&sleeper)) {
                sleepers.push(sleeper);
            }
        }
    }

    /// Sleeps on `condvar` until it is notified, until `deadline`, or for no reason at all.
    pub(crate) fn sleep<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Deadline) {
        match (&self.0, deadline) {
            (None, Deadline::At(point)) => condvar.wait_until(guard, point),
            (None, Deadline::Never) => condvar.wait(guard),
            (Some(hand), _) => {
                // Release pairs with the acquire in `ManualClock::sleeps`. The sleeper's lock is held, so whoever
                // has seen the count and takes that lock finds the sleeper asleep.
                hand.sleeps.fetch_add(1, std::sync::atomic::Ordering::Release);
                condvar.wait(guard);
            }
        }
    }
}

/// Something that sleeps on a condition variable and must look at a hand-moved clock again when it moves.
pub(crate) trait Sleeper: Send + Sync {
    /// Takes the lock that the sleep is under, and notifies. The lock matters: the sleeper looked at the
    /// clock with the lock held, so a move falls either before that look or after the sleep has begun.
    fn look_again(&self);
}

struct Hand {
    state: Mutex<HandState>,
    /// Outside of the models' world on purpose: only tests look at it, and it must not add to what a model explores.
    sleeps: std::sync::atomic::AtomicU64,
}

struct HandState {
    now: Instant,
    sleepers: Vec<Weak<dyn Sleeper>>,
}

/// A clock that stands still until it is moved by hand, for tests and models.
///
/// ```
/// use mori_core::ManualClock;
/// use std::time::Duration;
/// let manual = ManualClock::new();
/// let before = manual.clock().now();
/// manual.advance(Duration::from_secs(60));
/// assert_eq!(manual.clock().now() - before, Duration::from_secs(60));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Hand>);

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.0.state.lock().now).finish()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that stands at an arbitrary point.
    #[must_use]
    pub fn new() -> Self {
        let state = HandState { now: Instant::now(), sleepers: Vec::new() };
        let sleeps = std::sync::atomic::AtomicU64::new(0);
        Self(Arc::new(Hand { state: Mutex::new(state), sleeps }))
    }

    /// The clock to hand to what is tested.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(Some(Arc::clone(&self.0)))
    }

    /// How many times a wait has gone to sleep on this clock; going back to sleep after a wake counts again.
    ///
    /// A test that has seen the count rise knows, without sleeping itself, that the waiter is asleep: every later move of the
    /// clock and every later update reaches it there.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        // Acquire pairs with the release in `Clock::sleep`.
        self.0.sleeps.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Moves the clock forward and makes every sleeper look at it. Sleepers whose deadline has passed end
    /// their wait; the others sleep on.
    pub fn advance(&self, by: Duration) {
        let sleepers = {
            let mut state = self.0.state.lock();
            if let Some(later) = state.now.checked_add(by) {
                state.now = later;
            }
            state.sleepers.retain(|sleeper| sleeper.strong_count() > 0);
            state.sleepers.clone()
        };
        // Without the clock's own lock: no lock is taken under another.
        for sleeper in sleepers {
            if let Some(sleeper) = sleeper.upgrade() {
                sleeper.look_again();
            }
        }
    }
}

#[cfg(all(test, not(mori_loom)))]
mod tests {
    use super::*;

    #[test]
    fn compatibility_milliseconds_map_to_the_three_kinds() {
        assert_eq!(Timeout::from_millis(i64::MIN), Timeout::Unbounded);
        assert_eq!(Timeout::from_millis(1), Timeout::Within(Duration::from_millis(1)));
        assert_eq!(Timeout::from(None), Timeout::Unbounded);
        assert_eq!(Timeout::from(Some(Duration::ZERO)), Timeout::Poll);
        // W2: never shortened to zero by rounding.
        assert_eq!(Timeout::from(Duration::from_nanos(1)), Timeout::Within(Duration::from_nanos(1)));
    }

    #[test]
    fn a_bound_too_large_for_the_clock_is_no_bound() {
        let clock = ManualClock::new().clock();
        assert_eq!(clock.deadline(Duration::MAX), Deadline::Never);
        assert!(matches!(clock.deadline(Duration::from_secs(1)), Deadline::At(_)));
    }

    #[test]
    fn the_earlier_deadline_wins() {
        let now = Clock::system().now();
        let later = now + Duration::from_secs(1);
        assert_eq!(Deadline::At(later).min(Deadline::At(now)), Deadline::At(now));
        assert_eq!(Deadline::Never.min(Deadline::At(now)), Deadline::At(now));
        assert_eq!(Deadline::At(now).min(Deadline::Never), Deadline::At(now));
        assert!(Deadline::At(now).passed(now));
        assert!(!Deadline::At(later).passed(now));
        assert!(!Deadline::Never.passed(later));
    }
}
