//! W9, W10: waiting for one transfer on a backend that has to be polled.

use std::thread::scope;
use std::time::Duration;

use mori_core::{ManualClock, Repoll, StatusCode, WaitPolicy};

use crate::support::{BOUND, Fake, Kind, TICK, TRANSPORT, Waiter, broken, on, repolling};

const POLL_DRIVEN: [Kind; 2] = [Kind::Polled, Kind::Hooked];

/// W9: a bounded wait polls once up front and once at the deadline, and never uses the hook.
#[test]
fn w9_two_polls_up_front_and_at_the_deadline() {
    for kind in POLL_DRIVEN {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        assert_eq!(WaitPolicy::DEFAULT.repoll, Repoll::AtDeadline);
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
            waiter.asleep(&clock, 1);
            assert_eq!(fake.polls(&status), 1);
            clock.advance(BOUND - TICK);
            waiter.asleep(&clock, 2);
            assert_eq!(fake.polls(&status), 1);
            clock.advance(TICK);
            assert_eq!(waiter.end(), StatusCode::InProgress);
        });
        assert_eq!((fake.polls(&status), fake.hooks(&status)), (2, 0), "{kind:?}");
    }
}

/// W9, W4: what the poll at the deadline finds is the answer.
#[test]
fn w9_the_poll_at_the_deadline_finds_the_right_answer() {
    for kind in POLL_DRIVEN {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
            waiter.asleep(&clock, 1);
            fake.ready(&status, Err(broken()));
            clock.advance(BOUND);
            assert_eq!(waiter.end(), TRANSPORT, "{kind:?}");
        });
        assert_eq!(fake.polls(&status), 2);
    }
}

/// W9: a poll of another thread wakes the sleeper, which then polls no more.
#[test]
fn w9_another_threads_poll_wakes_the_waiter() {
    for kind in POLL_DRIVEN {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
            waiter.asleep(&clock, 1);
            fake.ready(&status, Ok(()));
            assert_eq!(status.poll(), StatusCode::Success);
            assert_eq!(waiter.end(), StatusCode::Success);
        });
        assert_eq!(
            (fake.polls(&status), clock.sleeps()),
            (2, 1),
            "the waiter's first poll and the other thread's"
        );
    }
}

/// W9: an update that nobody polled for wakes the sleeper, which then polls no more.
#[test]
fn w9_an_update_wakes_the_waiter() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        fake.finish(&status, Err(broken()));
        assert_eq!(waiter.end(), TRANSPORT);
    });
    assert_eq!(fake.polls(&status), 1);
}

/// W9: what the poll up front finds ends the wait before it sleeps.
#[test]
fn w9_the_poll_up_front_can_be_the_only_one() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    fake.ready(&status, Ok(()));
    assert_eq!(status.wait_with(BOUND, &on(&clock)), StatusCode::Success);
    assert_eq!((fake.polls(&status), clock.sleeps()), (1, 0));
}

/// W9: a poll at the deadline that takes long is followed by no further one.
#[test]
fn w9_a_slow_poll_at_the_deadline_is_the_last() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    let moved = clock.clone();
    fake.on_poll(&status, 2, move |_| moved.advance(BOUND));
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        clock.advance(BOUND);
        assert_eq!(waiter.end(), StatusCode::InProgress);
    });
    assert_eq!(fake.polls(&status), 2);
}

/// W9: with back-off the pauses double up to their limit, and the last poll is at the deadline.
#[test]
fn w9_a_caller_may_choose_to_repoll_with_backoff() {
    let micros = Duration::from_micros;
    for kind in POLL_DRIVEN {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        let policy = repolling(&clock, micros(10), micros(40));
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(micros(120), &policy));
            // 10, 30, 70, 110 after the start, and the deadline instead of 150.
            for (polls, pause) in [10, 20, 40, 40, 10].into_iter().enumerate() {
                waiter.asleep(&clock, 2 * polls as u64 + 1);
                assert_eq!(fake.polls(&status), polls + 1);
                clock.advance(micros(pause) - TICK);
                waiter.asleep(&clock, 2 * polls as u64 + 2);
                assert_eq!(fake.polls(&status), polls + 1);
                clock.advance(TICK);
            }
            assert_eq!(waiter.end(), StatusCode::InProgress);
        });
        assert_eq!((fake.polls(&status), fake.hooks(&status)), (6, 0));
    }
}

/// W9: a back-off that starts at nothing pauses all the same, and one whose limit is below its start keeps its start.
#[test]
fn w9_a_backoff_never_spins() {
    for (first, most, pause) in
        [(Duration::ZERO, Duration::ZERO, Duration::from_micros(1)), (BOUND / 4, TICK, BOUND / 4)]
    {
        let fake = Fake::new(Kind::Polled);
        let status = fake.submit();
        let clock = ManualClock::new();
        let policy = repolling(&clock, first, most);
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &policy));
            for polls in 1..=3 {
                waiter.asleep(&clock, polls as u64);
                assert_eq!(fake.polls(&status), polls);
                clock.advance(pause);
            }
            waiter.asleep(&clock, 4);
            fake.ready(&status, Ok(()));
            clock.advance(pause);
            assert_eq!(waiter.end(), StatusCode::Success);
        });
    }
}

/// W9: back-off finds a completion at its next step, long before the deadline.
#[test]
fn w9_backoff_finds_a_completion_before_the_deadline() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    let policy = WaitPolicy { repoll: Repoll::BACKOFF, ..on(&clock) };
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &policy));
        waiter.asleep(&clock, 1);
        fake.ready(&status, Ok(()));
        clock.advance(Duration::from_micros(10));
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(fake.polls(&status), 2);
}

/// W10: an unbounded wait lets the backend's hook do the waiting; it polls up front and after the hook, and does not sleep.
#[test]
fn w10_an_unbounded_wait_uses_the_hook() {
    let fake = Fake::new(Kind::Hooked);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        fake.await_blocked(1);
        assert_eq!(fake.polls(&status), 1);
        fake.ready(&status, Err(broken()));
        assert_eq!(waiter.end(), TRANSPORT);
    });
    assert_eq!((fake.polls(&status), fake.hooks(&status), clock.sleeps()), (2, 1, 0));
}

/// W10: the hook runs with no lock held that an update or another waiter needs: all of them get through while it is stuck.
#[test]
fn w10_the_hook_runs_with_no_lock_held() {
    let fake = Fake::new(Kind::Hooked);
    let status = fake.submit();
    let clock = ManualClock::new();
    fake.hold(true);
    scope(|scope| {
        let first = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        let second = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        fake.await_blocked(2);
        let bounded = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        let many = Waiter::start(scope, || on(&clock).wait_all(&[&status], BOUND));
        bounded.asleep(&clock, 2);
        many.asleep(&clock, 2);
        fake.finish(&status, Err(broken()));
        assert_eq!((status.code(), status.message().as_str()), (TRANSPORT, "the wire broke"));
        assert_eq!((bounded.end(), many.end().code()), (TRANSPORT, TRANSPORT));
        assert_eq!(fake.blocked(), 2, "the hook is still stuck");
        fake.hold(false);
        assert_eq!((first.end(), second.end()), (TRANSPORT, TRANSPORT));
    });
}

/// W10: a hook that returns before the transfer is over is called again, with a pause in between.
#[test]
fn w10_a_hook_that_returns_early_is_called_again() {
    const PAUSE: Duration = Duration::from_micros(1);
    let fake = Fake::new(Kind::Hooked);
    let status = fake.submit();
    let clock = ManualClock::new();
    fake.return_early(3);
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &repolling(&clock, PAUSE, PAUSE)));
        for early in 1..=3 {
            waiter.asleep(&clock, early as u64);
            assert_eq!(fake.hooks(&status), early);
            clock.advance(PAUSE);
        }
        fake.await_blocked(1);
        fake.ready(&status, Ok(()));
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(fake.hooks(&status), 4);
}

/// W10: without a hook, an unbounded wait re-polls with back-off, whatever the policy says; it never sleeps for good.
#[test]
fn w10_without_a_hook_an_unbounded_wait_repolls() {
    for repoll in [Repoll::AtDeadline, Repoll::BACKOFF] {
        let fake = Fake::new(Kind::Polled);
        let status = fake.submit();
        let clock = ManualClock::new();
        let policy = WaitPolicy { repoll, ..on(&clock) };
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(None, &policy));
            for round in 1..=20 {
                waiter.asleep(&clock, round as u64);
                assert_eq!(fake.polls(&status), round);
                // The longest pause there is.
                clock.advance(Duration::from_millis(1));
            }
            waiter.asleep(&clock, 21);
            fake.ready(&status, Ok(()));
            clock.advance(Duration::from_millis(1));
            assert_eq!(waiter.end(), StatusCode::Success, "{repoll:?}");
        });
    }
}

/// W10: while it re-polls, an update wakes it at once.
#[test]
fn w10_an_update_wakes_an_unbounded_wait() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        waiter.asleep(&clock, 1);
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(fake.polls(&status), 1);
}

/// W10, S5: a shutdown releases waiters in the hook, with a failure.
#[test]
fn w10_a_shutdown_releases_waiters_in_the_hook() {
    let fake = Fake::new(Kind::Hooked);
    let status = fake.submit();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait(None));
        fake.await_blocked(1);
        mori_core::Backend::shutdown(&*fake);
        assert_eq!(waiter.end(), crate::support::BAD_STATE);
    });
}

/// A panic in the backend's poll reaches the caller that polled and nobody else; the status stays usable.
#[test]
fn a_panicking_poll_hurts_only_its_caller() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    fake.on_poll(&status, 2, |_| std::panic::resume_unwind(Box::new("the backend's bug")));
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        let poller = Waiter::start(scope, || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| status.poll())).is_err()
        });
        assert!(poller.end());
        fake.ready(&status, Ok(()));
        clock.advance(BOUND);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// W9: pauses as long as there are none longer do not overflow; the poll at the deadline comes all the same.
#[test]
fn w9_a_backoff_of_any_length_is_taken() {
    let fake = Fake::new(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    for (sleeps, first) in [(1, Duration::MAX), (2, Duration::MAX / 2 + TICK)] {
        let policy = repolling(&clock, first, Duration::MAX);
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &policy));
            waiter.asleep(&clock, sleeps);
            clock.advance(BOUND);
            assert_eq!(waiter.end(), StatusCode::InProgress);
        });
    }
    assert_eq!(fake.polls(&status), 4);
}
