//! W1–W8: waiting for one transfer.

use std::thread::scope;
use std::time::Duration;

use mori_core::{Clock, ManualClock, Status, StatusCode, Tag, Timeout, WaitPolicy, wait_all};

use crate::support::{
    BOUND, Fake, KINDS, Kind, PEER_LOST, TICK, TRANSPORT, Told, Waiter, broken, error, on, repolling,
};

const TIMEOUTS: [Timeout; 3] = [Timeout::Unbounded, Timeout::Poll, Timeout::Within(BOUND)];

/// W1: a status that is not in progress answers at once, whatever the timeout: no sleep, no poll, no hook.
#[test]
fn w1_a_status_that_is_not_in_progress_answers_at_once() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let (good, bad, init) = (fake.submit(), fake.submit(), fake.create(0));
        fake.succeed(&good);
        fake.finish(&bad, Err(broken()));
        for timeout in TIMEOUTS {
            let clock = ManualClock::new();
            assert_eq!(good.wait_with(timeout, &on(&clock)), StatusCode::Success);
            assert_eq!(bad.wait_with(timeout, &on(&clock)), TRANSPORT);
            assert_eq!(init.wait_with(timeout, &on(&clock)), StatusCode::Init);
            assert_eq!(clock.sleeps(), 0);
        }
        for status in [&good, &bad, &init] {
            assert_eq!((fake.polls(status), fake.hooks(status)), (0, 0), "{kind:?} {status:?}");
        }
    }
}

/// W2: milliseconds, as the compatibility interface takes them: negative is no bound, zero polls, else the bound.
#[test]
fn w2_the_three_kinds_of_timeout() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    assert_eq!(status.wait_with(Timeout::from_millis(0), &on(&clock)), StatusCode::InProgress);
    assert_eq!(clock.sleeps(), 0);
    scope(|scope| {
        let unbounded = Waiter::start(scope, || status.wait_with(Timeout::from_millis(-1), &on(&clock)));
        unbounded.asleep(&clock, 1);
        let bounded = Waiter::start(scope, || status.wait_with(Timeout::from_millis(3), &on(&clock)));
        bounded.asleep(&clock, 2);
        clock.advance(Duration::from_millis(3) - TICK);
        bounded.asleep(&clock, 4);
        clock.advance(TICK);
        assert_eq!(bounded.end(), StatusCode::InProgress);
        unbounded.asleep(&clock, 5);
        fake.succeed(&status);
        assert_eq!(unbounded.end(), StatusCode::Success);
    });
}

/// W2: a bound of zero polls, in whatever form it comes.
#[test]
fn w2_every_form_of_zero_polls() {
    let zeros =
        [Timeout::Poll, Timeout::Within(Duration::ZERO), Duration::ZERO.into(), Some(Duration::ZERO).into()];
    for timeout in zeros {
        let fake = Fake::new(Kind::Polled);
        let status = fake.submit();
        let clock = ManualClock::new();
        assert_eq!(status.wait_with(timeout, &on(&clock)), StatusCode::InProgress);
        assert_eq!((fake.polls(&status), clock.sleeps()), (1, 0), "{timeout:?}");
    }
}

/// W2: a bound that the clock cannot express means none; the wait neither fails nor ends at once.
#[test]
fn w2_a_bound_too_large_for_the_clock_means_none() {
    for bound in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(bound, &on(&clock)));
            waiter.asleep(&clock, 1);
            clock.advance(Duration::from_secs(1 << 30));
            waiter.asleep(&clock, 2);
            fake.succeed(&status);
            assert_eq!(waiter.end(), StatusCode::Success);
        });
        let hooked = Fake::new(Kind::Hooked);
        let status = hooked.submit();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(bound, &on(&clock)));
            hooked.await_blocked(1);
            hooked.ready(&status, Ok(()));
            assert_eq!(waiter.end(), StatusCode::Success);
        });
    }
}

/// W2: the smallest bound sleeps; it is not rounded to a poll.
#[test]
fn w2_a_bound_is_never_rounded_to_zero() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(TICK, &on(&clock)));
            waiter.asleep(&clock, 1);
            clock.advance(TICK);
            assert_eq!(waiter.end(), StatusCode::InProgress);
        });
    }
}

/// W2, W5: the deadline is one point in time; wakes in between neither restart the bound nor end the wait.
#[test]
fn w2_a_bound_never_restarts_after_a_wake() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(10 * TICK, &on(&clock)));
            for step in 1..10 {
                waiter.asleep(&clock, step);
                clock.advance(TICK);
            }
            waiter.asleep(&clock, 10);
            clock.advance(TICK);
            assert_eq!(waiter.end(), StatusCode::InProgress, "{kind:?}");
        });
    }
}

/// W3: a wait that runs out is no error and cancels nothing; the transfer goes on, and the wait can be repeated.
#[test]
fn w3_a_wait_that_ran_out_can_be_repeated() {
    for kind in KINDS {
        let fake = Fake::cancelling(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        for round in 1..=3 {
            scope(|scope| {
                let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
                waiter.asleep(&clock, round);
                clock.advance(BOUND);
                assert_eq!(waiter.end(), StatusCode::InProgress);
            });
        }
        assert_eq!((fake.cancels(&status), status.error(), status.message()), (0, None, String::new()));
        fake.succeed(&status);
        assert_eq!(status.wait_with(BOUND, &on(&clock)), StatusCode::Success);
    }
}

/// W4: a transfer that is over when the deadline is seen gives its own code, not *in progress*.
#[test]
fn w4_completion_beats_the_clock() {
    for kind in [Kind::Notifier, Kind::Polled] {
        for _ in 0..200 {
            let fake = Fake::new(kind);
            let status = fake.submit();
            let clock = ManualClock::new();
            scope(|scope| {
                let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
                waiter.asleep(&clock, 1);
                fake.succeed(&status);
                clock.advance(2 * BOUND);
                assert_eq!(waiter.end(), StatusCode::Success);
            });
        }
    }
}

/// W4: the deadline has long passed when the wait first looks at the clock again, and the transfer is over by then.
#[test]
fn w4_a_first_poll_that_outlasts_the_bound_still_counts() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        let moved = clock.clone();
        fake.on_poll(&status, 1, move |_| moved.advance(2 * BOUND));
        fake.ready(&status, Err(broken()));
        assert_eq!(status.wait_with(BOUND, &on(&clock)), TRANSPORT);
        assert_eq!(clock.sleeps(), 0);
    }
}

/// W5: a wake without a reason ends no wait.
#[test]
fn w5_a_spurious_wake_ends_no_wait() {
    for kind in KINDS {
        for bound in [Some(BOUND), None] {
            if (kind, bound) == (Kind::Hooked, None) {
                continue; // Waits in the hook.
            }
            let fake = Fake::new(kind);
            let status = fake.submit();
            let clock = ManualClock::new();
            scope(|scope| {
                let waiter = Waiter::start(scope, || status.wait_with(bound, &on(&clock)));
                for wake in 1..20 {
                    waiter.asleep(&clock, wake);
                    clock.advance(Duration::ZERO);
                }
                waiter.asleep(&clock, 20);
                fake.finish(&status, Err(broken()));
                assert_eq!(waiter.end(), TRANSPORT);
            });
        }
    }
}

/// W5: neither a redundant "in progress" nor a message ends a wait, and the message is there for whoever asks.
#[test]
fn w5_redundant_and_message_updates_end_no_wait() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let told = Told::of(&status);
    let clock = ManualClock::new();
    scope(|scope| {
        let one = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        let many = Waiter::start(scope, || on(&clock).wait_all(&[&status], None));
        one.asleep(&clock, 2);
        many.asleep(&clock, 2);
        for count in 0..50 {
            fake.update(&status, |completer| {
                assert!(!completer.submit().applied());
                assert!(completer.note(format!("{count} of 50")).applied());
            });
        }
        // Whatever woke them has sent them back to sleep by the time that they have seen this move of the clock.
        let before = clock.sleeps();
        clock.advance(BOUND - TICK);
        one.asleep(&clock, before + 2);
        many.asleep(&clock, before + 2);
        assert_eq!((status.message().as_str(), told.count()), ("49 of 50", 0));
        fake.succeed(&status);
        assert_eq!((one.end(), many.end().code()), (StatusCode::Success, StatusCode::Success));
    });
}

/// W5: on the system's clock too, a bounded wait does not end before its bound.
#[test]
fn w5_a_bounded_wait_is_not_early_on_the_systems_clock() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        for bound in [Duration::from_micros(300), Duration::from_millis(5)] {
            let clock = Clock::system();
            let start = clock.now();
            assert_eq!(status.wait(bound), StatusCode::InProgress);
            assert!(clock.now() - start >= bound, "{kind:?}");
        }
    }
}

/// W6: a zero timeout runs one poll, never the hook, never sleeps, and sees what its poll found.
#[test]
fn w6_zero_timeout_polls_exactly_once() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        for poll in 1..=3 {
            assert_eq!(status.wait_with(Duration::ZERO, &on(&clock)), StatusCode::InProgress);
            assert_eq!((fake.polls(&status), fake.hooks(&status), clock.sleeps()), (poll, 0, 0), "{kind:?}");
        }
        fake.ready(&status, Err(error(mori_core::ErrorKind::PeerLost, "gone")));
        assert_eq!(status.wait_with(Duration::ZERO, &on(&clock)), PEER_LOST);
        assert_eq!((fake.polls(&status), fake.hooks(&status)), (4, 0));
    }
}

/// W6: nothing that looks, polls, updates or waits with a bound stands behind a thread that is blocked in the hook, on the
/// same status or another of the same backend.
#[test]
fn w6_a_poll_never_waits_behind_a_blocked_waiter() {
    let fake = Fake::new(Kind::Hooked);
    let (status, other) = (fake.submit(), fake.submit());
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait(None));
        fake.await_blocked(1);
        for looked_at in [&status, &other] {
            let polls = fake.polls(looked_at);
            assert_eq!(
                (looked_at.code(), looked_at.poll()),
                (StatusCode::InProgress, StatusCode::InProgress)
            );
            assert_eq!(looked_at.wait(Duration::ZERO), StatusCode::InProgress);
            assert_eq!(fake.polls(looked_at), polls + 2);
            assert_eq!((looked_at.error(), looked_at.tag()), (None, Tag(0)));
            fake.update(looked_at, |completer| assert!(completer.note("still there").applied()));
            assert_eq!(looked_at.message(), "still there");
            let before = clock.sleeps();
            let bounded = Waiter::start(scope, || looked_at.wait_with(BOUND, &on(&clock)));
            bounded.asleep(&clock, before + 1);
            clock.advance(BOUND);
            assert_eq!(bounded.end(), StatusCode::InProgress);
        }
        assert_eq!((fake.blocked(), fake.hooks(&status), fake.hooks(&other)), (1, 1, 0));
        fake.ready(&status, Ok(()));
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// W7: every waiter is released by the terminal state, whatever its bound and its way of waiting.
#[test]
fn w7_all_waiters_are_released() {
    for kind in [Kind::Notifier, Kind::Polled] {
        let fake = Fake::new(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let bounds = [None, Some(BOUND), Some(2 * BOUND), Some(Duration::MAX)];
            let (status, clock) = (&status, &clock);
            let waiters: Vec<_> = (0..16)
                .map(|n| Waiter::start(scope, move || status.wait_with(bounds[n % 4], &on(clock))))
                .collect();
            waiters[0].asleep(clock, 16);
            fake.finish(status, Err(broken()));
            for waiter in waiters {
                assert_eq!(waiter.end(), TRANSPORT, "{kind:?}");
            }
        });
    }
}

/// W7: one waiter's bound is its own: it ends there, the others wait on, and a late waiter finds the result.
#[test]
fn w7_each_waiter_has_its_own_bound() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let short = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        let long = Waiter::start(scope, || status.wait_with(3 * BOUND, &on(&clock)));
        let unbounded = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        short.asleep(&clock, 3);
        clock.advance(BOUND);
        assert_eq!(short.end(), StatusCode::InProgress);
        long.asleep(&clock, 5);
        unbounded.asleep(&clock, 5);
        fake.succeed(&status);
        assert_eq!((long.end(), unbounded.end()), (StatusCode::Success, StatusCode::Success));
    });
    assert_eq!(status.wait_with(None, &on(&clock)), StatusCode::Success);
}

/// W8: with a notifier, a waiter polls at most once, up front, then sleeps once until it is notified; the hook is left alone.
#[test]
fn w8_with_a_notifier_a_waiter_polls_at_most_once() {
    for bound in [Some(BOUND), None] {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        let clock = ManualClock::new();
        let policy = repolling(&clock, TICK, TICK);
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(bound, &policy));
            waiter.asleep(&clock, 1);
            for woken in 2..100 {
                clock.advance(TICK);
                waiter.asleep(&clock, woken);
            }
            fake.succeed(&status);
            assert_eq!(waiter.end(), StatusCode::Success);
        });
        assert!(fake.polls(&status) <= 1, "{}", fake.polls(&status));
        assert_eq!((fake.hooks(&status), clock.sleeps()), (0, 99));
    }
}

/// W8: a waiter that is notified has slept once; it does not wake up to look.
#[test]
fn w8_a_waiter_sleeps_until_it_is_notified() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        waiter.asleep(&clock, 1);
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    assert_eq!(clock.sleeps(), 1);
}

/// W8: a deadline ends a wait on a notifier backend without a second poll.
#[test]
fn w8_at_the_deadline_a_notifier_backend_is_not_polled_again() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        clock.advance(BOUND);
        assert_eq!(waiter.end(), StatusCode::InProgress);
    });
    assert!(fake.polls(&status) <= 1);
}

/// W8: a busy window finds a completion without a sleep, ends in a sleep, and never outlasts the bound.
#[test]
fn w8_a_busy_window_comes_before_the_sleep() {
    let window = Duration::from_micros(50);
    let busy = |clock: &ManualClock| WaitPolicy { busy_window: window, ..on(clock) };
    assert_eq!(WaitPolicy::DEFAULT.busy_window, Duration::ZERO);

    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &busy(&clock)));
        fake.await_polls(&status, 1);
        fake.succeed(&status);
        assert_eq!((waiter.end(), clock.sleeps()), (StatusCode::Success, 0));
    });

    let status = fake.submit();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(window / 2, &busy(&clock)));
        fake.await_polls(&status, 1);
        clock.advance(window / 2);
        assert_eq!((waiter.end(), clock.sleeps()), (StatusCode::InProgress, 0));
    });
}

/// W8: after its busy window a waiter sleeps.
#[test]
fn w8_a_busy_window_ends() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    let policy = WaitPolicy { busy_window: Duration::from_micros(50), ..on(&clock) };
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &policy));
        while clock.sleeps() == 0 {
            assert!(!waiter.is_finished());
            clock.advance(Duration::from_micros(50));
        }
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// A status without a backend is completed by whoever holds its writer's side; every way of waiting works on it.
#[test]
fn a_detached_status_is_waited_for_like_any_other() {
    let (completer, status) = Status::pair(mori_core::Origin::detached());
    completer.submit();
    let clock = ManualClock::new();
    assert_eq!(status.wait_with(Duration::ZERO, &on(&clock)), StatusCode::InProgress);
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        waiter.asleep(&clock, 1);
        completer.succeed();
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// W8: the backend's busy window comes once, after the poll and before the sleep; what ends in it needs no sleep.
#[test]
fn w8_the_backend_has_one_busy_window_before_the_sleep() {
    for timeout in [Timeout::Unbounded, Timeout::Within(BOUND)] {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        let clock = ManualClock::new();
        let of = status.clone();
        fake.on_linger(&status, move |fake, over| {
            assert!(fake.polls(&of) <= 1 && !over());
            fake.succeed(&of);
            assert!(over(), "the wait is over with its status");
        });
        assert_eq!(status.wait_with(timeout, &on(&clock)), StatusCode::Success);
        assert_eq!((fake.lingers(&status), clock.sleeps()), (1, 0));
    }
}

/// W8, W5: a busy window in which nothing comes neither ends the wait nor is repeated; the deadline ends both.
#[test]
fn w8_a_busy_window_without_work_is_followed_by_the_sleep() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
        waiter.asleep(&clock, 1);
        assert_eq!(fake.lingers(&status), 1);
        fake.succeed(&status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
    let late = fake.submit();
    let hand = ManualClock::new();
    let policy = on(&hand);
    fake.on_linger(&late, move |_, over| {
        assert!(!over());
        hand.advance(BOUND - TICK);
        assert!(!over());
        hand.advance(TICK);
        assert!(over(), "the deadline has passed");
    });
    assert_eq!(late.wait_with(BOUND, &policy), StatusCode::InProgress);
}

/// W6, W9: a zero timeout has no busy window, nor has a backend that must be polled.
#[test]
fn w6_a_zero_timeout_and_a_polled_backend_have_no_busy_window() {
    let clock = ManualClock::new();
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    assert_eq!(status.wait_with(Timeout::Poll, &on(&clock)), StatusCode::InProgress);
    assert!(!wait_all(std::slice::from_ref(&status), Timeout::Poll).all_quiet());
    assert_eq!(fake.lingers(&status), 0);
    for kind in [Kind::Polled, Kind::Hooked] {
        let fake = Fake::new(kind);
        let status = fake.submit();
        fake.on_poll(&status, 1, {
            let status = status.clone();
            move |fake| fake.ready(&status, Ok(()))
        });
        assert_eq!(status.wait_with(BOUND, &on(&clock)), StatusCode::Success);
        assert_eq!(fake.lingers(&status), 0, "{kind:?}");
    }
}
