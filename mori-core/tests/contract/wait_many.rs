//! A7, A10–A12: mixed batches, cost, scanning, waiting for any; several waiters at once.

use std::sync::Barrier;
use std::thread::scope;
use std::time::Duration;

use mori_core::{ManualClock, Status, StatusCode, Tag, Timeout, WaitPolicy, scan, wait_all, wait_any};

use crate::support::{BAD_STATE, BOUND, Fake, KINDS, Kind, TICK, TRANSPORT, Told, Waiter, broken, on};

/// A7: a member without a notifier, blocked in its hook or not, does not delay the release by one with a notifier.
#[test]
fn a7_a_member_without_notifier_delays_no_release() {
    for kind in [Kind::Polled, Kind::Hooked] {
        for bound in [None, Some(BOUND)] {
            let (polled, notifying) = (Fake::new(kind), Fake::new(Kind::Notifier));
            let list = [polled.submit(), notifying.submit(), polled.submit()];
            let clock = ManualClock::new();
            scope(|scope| {
                let any = Waiter::start(scope, || on(&clock).wait_any(&list, bound));
                let first_failure = Waiter::start(scope, || on(&clock).wait_first_failure(&list, bound));
                let some = Waiter::start(scope, || on(&clock).wait_some(&list, 1, bound));
                any.asleep(&clock, 3);
                first_failure.asleep(&clock, 3);
                some.asleep(&clock, 3);
                notifying.finish(&list[1], Err(broken()));
                assert_eq!(any.end(), Some(1), "{kind:?} {bound:?}");
                assert_eq!(first_failure.end().code(), TRANSPORT);
                assert_eq!(some.end().unfinished().len(), 2);
            });
            assert!(list.iter().all(|status| status.code() != StatusCode::Success));
        }
    }
}

/// A7: a mixed batch with a bound: the members without a notifier are polled up front and at the deadline, the others at
/// most once.
#[test]
fn a7_a_mixed_batch_keeps_every_backends_rules() {
    let fakes = KINDS.map(Fake::new);
    let list = [0, 1, 2, 0, 1, 2].map(|fake: usize| fakes[fake].submit());
    let clock = ManualClock::new();
    let outcome = scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&list, BOUND));
        waiter.asleep(&clock, 1);
        fakes[0].succeed(&list[0]);
        fakes[1].ready(&list[1], Ok(()));
        fakes[2].ready(&list[2], Err(broken()));
        clock.advance(BOUND);
        waiter.end()
    });
    assert_eq!((outcome.code(), outcome.succeeded(), outcome.unfinished().len()), (TRANSPORT, 2, 3));
    for (place, status) in list.iter().enumerate() {
        let fake = &fakes[place % 3];
        assert_eq!(fake.hooks(status), 0);
        let polls = fake.polls(status);
        assert!(if place % 3 == 0 { polls <= 1 } else { polls == 2 }, "{place}: {polls}");
    }
}

/// A7, W10: a mixed batch without a bound ends when all have ended: by notifier, by hook, and by re-polling.
#[test]
fn a7_a_mixed_batch_without_a_bound_ends() {
    let fakes = KINDS.map(Fake::new);
    let list = [2, 1, 0].map(|fake: usize| fakes[fake].submit());
    let clock = ManualClock::new();
    let outcome = scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&list, None));
        fakes[2].await_blocked(1);
        fakes[2].ready(&list[0], Ok(()));
        waiter.asleep(&clock, 1);
        fakes[1].ready(&list[1], Err(broken()));
        clock.advance(Duration::from_millis(1));
        waiter.asleep(&clock, 2);
        fakes[0].succeed(&list[2]);
        waiter.end()
    });
    assert_eq!((outcome.code(), outcome.succeeded()), (TRANSPORT, 2));
}

/// A10: a batch that sleeps is woken once, by the completion that ends the wait.
#[test]
fn a10_a_sleeping_batch_is_woken_once() {
    for bound in [None, Some(BOUND)] {
        let fake = Fake::new(Kind::Notifier);
        let statuses = fake.submit_many(1000);
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, bound));
            waiter.asleep(&clock, 1);
            for status in &statuses {
                assert!(!waiter.is_finished());
                fake.succeed(status);
                // Time for a waiter that was woken to go back to sleep, and be counted.
                std::thread::yield_now();
            }
            assert_eq!(waiter.end().succeeded(), 1000);
        });
        assert_eq!(clock.sleeps(), 1, "{bound:?}");
    }
}

/// A10: members that are terminal already are not polled, and a batch of nothing else is neither polled nor slept on.
#[test]
fn a10_terminal_members_are_not_polled() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(4);
        statuses[..3].iter().for_each(|status| fake.succeed(status));
        let clock = ManualClock::new();
        for timeout in [Timeout::Unbounded, Timeout::Poll, Timeout::Within(BOUND)] {
            assert!(on(&clock).wait_all(&statuses[..3], timeout).is_success());
        }
        assert_eq!(clock.sleeps(), 0);
        fake.ready(&statuses[3], Ok(()));
        on(&clock).wait_all(&statuses, Duration::ZERO);
        let polls: Vec<_> = statuses.iter().map(|status| fake.polls(status)).collect();
        assert_eq!(polls, [0, 0, 0, 1], "{kind:?}");
    }
}

/// A10, W8: a batch on a notifier backend with a busy window finds its completion there, without a sleep.
#[test]
fn a10_a_batch_has_the_busy_window_too() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(2);
    let clock = ManualClock::new();
    let policy = WaitPolicy { busy_window: Duration::from_micros(50), ..on(&clock) };
    scope(|scope| {
        let waiter = Waiter::start(scope, || policy.wait_all(&statuses, None));
        statuses.iter().for_each(|status| fake.succeed(status));
        assert!(waiter.end().is_success());
    });
    assert_eq!(clock.sleeps(), 0);
}

/// A11: a scan gives the outcome without a call into any backend.
#[test]
fn a11_a_scan_calls_no_backend() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = [fake.submit_tagged(1), fake.submit_tagged(2), fake.create(3), fake.submit_tagged(4)];
        fake.finish(&statuses[1], Err(broken()));
        fake.ready(&statuses[3], Ok(()));
        let scanned = scan(&statuses);
        assert_eq!((scanned.code(), scanned.len()), (TRANSPORT, 4));
        assert_eq!(scanned.failed()[0].tag, Tag(2));
        assert_eq!(scanned.unfinished().iter().map(|member| member.tag.0).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(statuses.iter().all(|status| fake.polls(status) == 0 && fake.hooks(status) == 0));
        assert_eq!(wait_all(&statuses[1..3], Duration::ZERO), scan(&statuses[1..3]), "the same outcome");
    }
}

/// A12: the wait ends as soon as one member is terminal, a failure included, and says which.
#[test]
fn a12_wait_any_returns_the_first() {
    for kind in KINDS {
        for bound in [None, Some(BOUND)] {
            for place in 0..3 {
                let fake = Fake::new(kind);
                let statuses = fake.submit_many(3);
                let clock = ManualClock::new();
                let ended = scope(|scope| {
                    let waiter = Waiter::start(scope, || on(&clock).wait_any(&statuses, bound));
                    waiter.asleep(&clock, 1);
                    let result = if place == 0 { Err(broken()) } else { Ok(()) };
                    fake.finish(&statuses[place], result);
                    waiter.end()
                });
                assert_eq!(ended, Some(place), "{kind:?} {bound:?}");
            }
        }
    }
}

/// A12, A5: at the deadline a completion that nobody has looked for is found; without one there is none.
#[test]
fn a12_wait_any_ends_at_its_deadline() {
    let fake = Fake::new(Kind::Polled);
    let statuses = fake.submit_many(3);
    let clock = ManualClock::new();
    for (sleeps, expected) in [(1, None), (2, Some(2))] {
        let ended = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_any(&statuses, BOUND));
            waiter.asleep(&clock, sleeps);
            if expected.is_some() {
                fake.ready(&statuses[2], Ok(()));
            }
            clock.advance(BOUND);
            waiter.end()
        });
        assert_eq!(ended, expected);
    }
}

/// A12: with a terminal member there already, nobody sleeps and nobody is polled.
#[test]
fn a12_wait_any_with_a_terminal_member_returns_at_once() {
    let fake = Fake::new(Kind::Polled);
    let running = fake.submit();
    let clock = ManualClock::new();
    assert_eq!(on(&clock).wait_any(&[running.clone(), Status::succeeded(Tag(0))], None), Some(1));
    assert_eq!((fake.polls(&running), clock.sleeps()), (0, 0));
    assert_eq!(wait_any(&[Status::failed(Tag(0), broken())], None), Some(0));
}

/// A wait for some ends with the completion that makes up the number; those that had ended before count.
#[test]
fn wait_some_counts_what_has_ended() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(4);
    fake.succeed(&statuses[0]);
    let clock = ManualClock::new();
    let outcome = scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_some(&statuses, 3, None));
        waiter.asleep(&clock, 1);
        fake.finish(&statuses[1], Err(broken()));
        let before = clock.sleeps();
        clock.advance(TICK);
        waiter.asleep(&clock, before + 1);
        fake.succeed(&statuses[3]);
        waiter.end()
    });
    assert_eq!((outcome.succeeded(), outcome.failed().len(), outcome.unfinished().len()), (2, 1, 1));
    assert_eq!(on(&clock).wait_some(&statuses, 0, None).unfinished().len(), 1, "none is wanted");
    fake.succeed(&statuses[2]);
    assert!(on(&clock).wait_some(&statuses, 9, None).all_quiet(), "more are wanted than there are");
}

/// W7, A10: any number of batches and single waits may share members; each is released by its own condition.
#[test]
fn batches_may_share_members() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(3);
    let clock = ManualClock::new();
    scope(|scope| {
        let (left, right) = (&statuses[..2], &statuses[1..]);
        let all: Vec<_> = [left, right, left, right]
            .map(|list| Waiter::start(scope, || on(&clock).wait_all(list, None)))
            .into_iter()
            .collect();
        let any = Waiter::start(scope, || on(&clock).wait_any(&statuses, None));
        let one = Waiter::start(scope, || statuses[1].wait_with(None, &on(&clock)));
        any.asleep(&clock, 6);
        fake.succeed(&statuses[1]);
        assert_eq!((any.end(), one.end()), (Some(1), StatusCode::Success));
        fake.succeed(&statuses[0]);
        fake.finish(&statuses[2], Err(broken()));
        let codes: Vec<_> = all.into_iter().map(|waiter| waiter.end().code()).collect();
        assert_eq!(codes, [StatusCode::Success, TRANSPORT, StatusCode::Success, TRANSPORT]);
    });
}

/// W3: a wait for many that ends by its bound disturbs neither its members nor later waits for them.
#[test]
fn w3_a_batch_that_ran_out_can_be_waited_for_again() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(2);
    let clock = ManualClock::new();
    let told = Told::of(&statuses[0]);
    for round in 1..=3 {
        scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
            waiter.asleep(&clock, round);
            clock.advance(BOUND);
            assert_eq!(waiter.end().code(), StatusCode::InProgress);
        });
    }
    statuses.iter().for_each(|status| fake.succeed(status));
    assert_eq!(told.count(), 1);
    assert!(on(&clock).wait_all(&statuses, None).is_success());
}

/// S5, S6: the writers of a batch are dropped, one after the other, while somebody waits for all of them.
#[test]
fn writers_dropped_while_somebody_waits_for_many() {
    let pairs: Vec<_> = (0..3).map(|_| Status::pair(mori_core::Origin::detached())).collect();
    let (completers, statuses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    completers.iter().for_each(|completer| assert!(completer.submit().applied()));
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, None));
        waiter.asleep(&clock, 1);
        drop(completers);
        let outcome = waiter.end();
        assert_eq!((outcome.code(), outcome.failed().len()), (BAD_STATE, 3));
    });
}

/// A10, W7: completions that race with the subscribing are neither lost nor counted twice.
#[test]
fn completions_that_race_with_the_subscribing_are_counted_once() {
    for round in 0..300 {
        let fake = Fake::new(Kind::Notifier);
        let statuses = fake.submit_many(8);
        let start = Barrier::new(3);
        scope(|scope| {
            let all = Waiter::start(scope, || {
                start.wait();
                wait_all(&statuses, None)
            });
            let some = Waiter::start(scope, || {
                start.wait();
                on(&ManualClock::new()).wait_some(&statuses, 5, None)
            });
            start.wait();
            for place in 0..8 {
                fake.succeed(&statuses[(place + round) % 8]);
            }
            assert_eq!(all.end().succeeded(), 8);
            assert!(some.end().succeeded() >= 5);
        });
    }
}

/// W8, A10: a batch has one busy window: it goes on while members end in it, stops at the first that does not, and ends with
/// the wait.
#[test]
fn w8_a_batch_lingers_up_to_its_first_member_that_stays() {
    let fake = Fake::new(Kind::Notifier);
    let list = fake.submit_many(4);
    let clock = ManualClock::new();
    for status in &list[..2] {
        let of = status.clone();
        fake.on_linger(status, move |fake, over| {
            fake.succeed(&of);
            assert!(over());
        });
    }
    scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&list, BOUND));
        waiter.asleep(&clock, 1);
        let lingers: Vec<_> = list.iter().map(|status| fake.lingers(status)).collect();
        assert_eq!(lingers, [1, 1, 1, 0]);
        fake.succeed(&list[2]);
        fake.succeed(&list[3]);
        assert!(waiter.end().all_quiet());
    });
}

/// A4, A12: the busy window of a wait that others can end is over when they do.
#[test]
fn w8_the_busy_window_ends_with_the_wait() {
    let fake = Fake::new(Kind::Notifier);
    let list = fake.submit_many(3);
    let other = list[2].clone();
    fake.on_linger(&list[0], move |fake, over| {
        assert!(!over());
        fake.finish(&other, Err(broken()));
        assert!(over());
    });
    let clock = ManualClock::new();
    assert_eq!(on(&clock).wait_first_failure(&list, BOUND).code(), TRANSPORT);
    let lingers: Vec<_> = list.iter().map(|status| fake.lingers(status)).collect();
    assert_eq!((lingers.as_slice(), clock.sleeps()), ([1, 0, 0].as_slice(), 0));
}

/// A7, W9: a batch with a member that has to be polled lingers at no member after it.
#[test]
fn w8_a_member_without_notifier_ends_the_busy_window() {
    let (polled, notifying) = (Fake::new(Kind::Polled), Fake::new(Kind::Notifier));
    let list = [polled.submit(), notifying.submit()];
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&list, BOUND));
        waiter.asleep(&clock, 1);
        notifying.succeed(&list[1]);
        polled.ready(&list[0], Ok(()));
        clock.advance(BOUND);
        assert!(waiter.end().all_quiet());
    });
    assert_eq!((polled.lingers(&list[0]), notifying.lingers(&list[1])), (0, 0));
}
