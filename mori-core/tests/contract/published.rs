//! The published behaviours of existing users' interface, each as one test, on a backend like theirs: without a notifier
//! and with a blocking hook, where nothing else is said.

use std::thread::scope;
use std::time::Duration;

use mori_core::{Clock, ErrorKind, ManualClock, Status, StatusCode, Tag, Timeout, WaitPolicy, wait_all};

use crate::support::{BOUND, Fake, KINDS, Kind, PEER_LOST, TICK, TRANSPORT, Waiter, broken, error, on};

fn in_progress() -> (std::sync::Arc<Fake>, Status) {
    let fake = Fake::new(Kind::Hooked);
    let status = fake.submit();
    (fake, status)
}

/// W1, W2: on a clock moved by hand; a wait that does not return at once would sleep there and be counted.
fn at_once(status: &Status, expected: StatusCode) {
    let clock = ManualClock::new();
    for timeout in [Timeout::from_millis(-1), Timeout::from_millis(0), Timeout::from_millis(1000)] {
        assert_eq!(status.wait_with(timeout, &on(&clock)), expected);
    }
    assert_eq!(clock.sleeps(), 0);
}

/// W1.
#[test]
fn single_preset_success_returns_at_once() {
    at_once(&Status::succeeded(Tag(0)), StatusCode::Success);
}

/// W1.
#[test]
fn single_preset_failure_returns_at_once() {
    at_once(&Status::failed(Tag(0), broken()), TRANSPORT);
}

/// W6.
#[test]
fn single_zero_timeout_only_polls_and_leaves_the_hook_alone() {
    let (fake, status) = in_progress();
    assert_eq!(status.wait(Timeout::from_millis(0)), StatusCode::InProgress);
    assert_eq!((fake.polls(&status), fake.hooks(&status)), (1, 0));
}

/// W6.
#[test]
fn single_zero_timeout_runs_progress_once_and_sees_its_result() {
    let (fake, status) = in_progress();
    fake.ready(&status, Ok(()));
    assert_eq!(status.wait(Timeout::from_millis(0)), StatusCode::Success);
    assert_eq!((fake.polls(&status), fake.hooks(&status)), (1, 0));
}

/// W6, W9, W3.
#[test]
fn single_bounded_wait_leaves_the_hook_alone_and_times_out_in_progress() {
    let (fake, status) = in_progress();
    assert_eq!(status.wait(Timeout::from_millis(2)), StatusCode::InProgress);
    assert_eq!((fake.polls(&status), fake.hooks(&status)), (2, 0));
}

/// W10.
#[test]
fn single_unbounded_wait_uses_the_hook() {
    let (fake, status) = in_progress();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait(Timeout::from_millis(-1)));
        fake.await_blocked(1);
        fake.ready(&status, Ok(()));
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(fake.hooks(&status), 1);
}

/// W8, W10.
#[test]
fn single_unbounded_wait_wakes_on_an_update() {
    for kind in [Kind::Notifier, Kind::Polled] {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(Timeout::from_millis(-1), &on(&clock)));
            waiter.asleep(&clock, 1);
            fake.finish(&status, Err(broken()));
            assert_eq!(waiter.end(), TRANSPORT);
        });
    }
}

/// W2, W3, W5.
#[test]
fn single_bounded_wait_without_update_times_out_neither_early_nor_late() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(Timeout::from_millis(50), &on(&clock)));
            waiter.asleep(&clock, 1);
            clock.advance(Duration::from_millis(50) - TICK);
            waiter.asleep(&clock, 2);
            clock.advance(TICK);
            assert_eq!(waiter.end(), StatusCode::InProgress);
        });
        assert_eq!(clock.sleeps(), 2, "it slept on after the bound");
        let system = Clock::system();
        let start = system.now();
        assert_eq!(status.wait(Timeout::from_millis(5)), StatusCode::InProgress);
        assert!(system.now() - start >= Duration::from_millis(5));
    }
}

/// W3.
#[test]
fn single_timed_out_wait_can_be_followed_by_an_update_and_another_wait() {
    let (fake, status) = in_progress();
    assert_eq!(status.wait(Timeout::from_millis(1)), StatusCode::InProgress);
    fake.finish(&status, Err(broken()));
    assert_eq!(status.wait(Timeout::from_millis(1)), TRANSPORT);
    assert_eq!(status.message(), "the wire broke");
}

/// W7.
#[test]
fn single_two_waiters_are_both_released() {
    let (fake, status) = in_progress();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiters = [(); 2].map(|()| Waiter::start(scope, || status.wait_with(BOUND, &on(&clock))));
        waiters[0].asleep(&clock, 2);
        fake.succeed(&status);
        assert_eq!(waiters.map(Waiter::end), [StatusCode::Success; 2]);
    });
}

/// A status that `updates` reach while somebody waits; the waiter must be waiting still.
fn releases_nobody(submitted: bool, updates: impl Fn(&Fake, &Status)) {
    let fake = Fake::new(Kind::Hooked);
    let status = if submitted { fake.submit() } else { fake.create(0) };
    if !submitted {
        updates(&fake, &status);
    }
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        updates(&fake, &status);
        let before = clock.sleeps();
        clock.advance(TICK);
        waiter.asleep(&clock, before + 1);
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// W5.
#[test]
fn single_redundant_in_progress_updates_release_nobody() {
    releases_nobody(true, |fake, status| {
        for _ in 0..10 {
            fake.update(status, |completer| assert!(!completer.submit().applied()));
        }
    });
}

/// W7.
#[test]
fn single_setting_success_releases_the_waiter() {
    let (fake, status) = in_progress();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(clock.sleeps(), 1);
}

/// W5.
#[test]
fn single_setting_in_progress_releases_nobody() {
    releases_nobody(false, |fake, status| {
        fake.update(status, |completer| {
            completer.submit();
            completer.note("submitted");
        });
    });
}

/// A1.
#[test]
fn batch_empty_succeeds() {
    let none: [Status; 0] = [];
    for millis in [-1, 0, 1000] {
        assert_eq!(wait_all(&none, Timeout::from_millis(millis)).code(), StatusCode::Success);
    }
}

/// A6.
#[test]
fn batch_zero_timeout_reports_in_progress_without_waiting() {
    let fake = Fake::new(Kind::Hooked);
    let statuses = fake.submit_many(3);
    let clock = ManualClock::new();
    assert_eq!(on(&clock).wait_all(&statuses, Timeout::from_millis(0)).code(), StatusCode::InProgress);
    assert_eq!(clock.sleeps(), 0);
    assert!(statuses.iter().all(|status| (fake.polls(status), fake.hooks(status)) == (1, 0)));
}

/// A3, A6.
#[test]
fn batch_zero_timeout_scans_past_an_in_progress_member_and_returns_the_failure() {
    let fake = Fake::new(Kind::Hooked);
    let statuses = fake.submit_many(3);
    fake.succeed(&statuses[1]);
    fake.finish(&statuses[2], Err(broken()));
    assert_eq!(wait_all(&statuses, Timeout::from_millis(0)).code(), TRANSPORT);
}

/// A1, A10.
#[test]
fn batch_all_succeed_at_different_times() {
    for kind in [Kind::Notifier, Kind::Polled] {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(3);
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
            waiter.asleep(&clock, 1);
            for (step, status) in statuses.iter().rev().enumerate() {
                clock.advance(BOUND / 5);
                waiter.asleep(&clock, step as u64 + 2);
                fake.succeed(status);
            }
            assert_eq!(waiter.end().code(), StatusCode::Success);
        });
    }
}

/// A3, A4.
#[test]
fn batch_one_fails_and_an_unbounded_wait_returns_when_all_are_terminal() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(3);
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, Timeout::from_millis(-1)));
        waiter.asleep(&clock, 1);
        fake.finish(&statuses[1], Err(broken()));
        fake.succeed(&statuses[0]);
        let before = clock.sleeps();
        clock.advance(BOUND);
        waiter.asleep(&clock, before + 1);
        fake.succeed(&statuses[2]);
        let outcome = waiter.end();
        assert_eq!((outcome.code(), outcome.all_quiet()), (TRANSPORT, true));
    });
}

/// A2, W3.
#[test]
fn batch_member_that_never_ends_gives_in_progress_at_the_bound() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(3);
        let clock = ManualClock::new();
        fake.succeed(&statuses[0]);
        scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
            waiter.asleep(&clock, 1);
            fake.succeed(&statuses[2]);
            clock.advance(BOUND);
            assert_eq!(waiter.end().code(), StatusCode::InProgress, "{kind:?}");
        });
    }
}

/// A2: each of three members takes a third of the time and a little; together that is enough or too little, since the
/// bound is one.
#[test]
fn batch_bound_is_shared() {
    for (bound, expected) in [(4 * BOUND, StatusCode::Success), (2 * BOUND, StatusCode::InProgress)] {
        let fake = Fake::new(Kind::Notifier);
        let statuses = fake.submit_many(3);
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, bound));
            waiter.asleep(&clock, 1);
            for status in &statuses {
                // Each member is well within the bound, counted from the end of the one before it.
                clock.advance(BOUND);
                fake.succeed(status);
                if expected == StatusCode::InProgress && status.id() == statuses[1].id() {
                    break;
                }
            }
            assert_eq!(waiter.end().code(), expected, "{bound:?}");
        });
    }
}

/// A3.
#[test]
fn batch_failure_seen_earlier_beats_a_later_timeout() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(3);
        let clock = ManualClock::new();
        let policy: WaitPolicy = on(&clock);
        scope(|scope| {
            let waiter = Waiter::start(scope, || policy.wait_all(&statuses, BOUND));
            waiter.asleep(&clock, 1);
            fake.finish(&statuses[1], Err(error(ErrorKind::PeerLost, "gone")));
            clock.advance(BOUND);
            assert_eq!(waiter.end().code(), PEER_LOST, "{kind:?}");
        });
    }
}
