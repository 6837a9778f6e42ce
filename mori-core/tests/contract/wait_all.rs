//! A1–A9: waiting for many, and what the outcome says.

use std::thread::scope;
use std::time::Duration;

use mori_core::{
    ErrorKind, ManualClock, Member, Outcome, Status, StatusCode, Tag, Timeout, WaitPolicy, scan, wait_all,
    wait_any, wait_first_failure, wait_some,
};

use crate::support::{
    BOUND, Fake, KINDS, Kind, PEER_LOST, TICK, TRANSPORT, Waiter, broken, error, on, repolling,
};

const TIMEOUTS: [Timeout; 3] = [Timeout::Unbounded, Timeout::Poll, Timeout::Within(BOUND)];

fn indices(members: &[Member]) -> Vec<usize> {
    members.iter().map(|member| member.index).collect()
}

/// A1: nothing to wait for succeeds at once, in every variant.
#[test]
fn a1_an_empty_batch_succeeds() {
    let none: [Status; 0] = [];
    for timeout in TIMEOUTS {
        for outcome in [
            wait_all(&none, timeout),
            wait_first_failure(&none, timeout),
            wait_some(&none, 3, timeout),
            scan(&none),
        ] {
            assert!(outcome.is_success() && outcome.all_quiet() && outcome.is_empty());
            assert_eq!(outcome.result(), Ok(()));
        }
        assert_eq!(wait_any(&none, timeout), None);
    }
}

/// A1: the same status may stand in the list more than once; it counts each time, and one completion serves all.
#[test]
fn a1_the_same_status_may_appear_twice() {
    for kind in [Kind::Notifier, Kind::Polled] {
        for result in [Ok(()), Err(broken())] {
            let fake = Fake::new(kind);
            let (twice, other) = (fake.submit(), fake.submit());
            let list = [&twice, &other, &twice, &twice];
            let clock = ManualClock::new();
            let outcome = scope(|scope| {
                let waiter = Waiter::start(scope, || on(&clock).wait_all(&list, BOUND));
                waiter.asleep(&clock, 1);
                fake.finish(&twice, result.clone());
                let before = clock.sleeps();
                clock.advance(Duration::ZERO);
                waiter.asleep(&clock, before + 1);
                fake.succeed(&other);
                waiter.end()
            });
            assert_eq!(outcome.len(), 4);
            match result {
                Ok(()) => assert_eq!((outcome.code(), outcome.succeeded()), (StatusCode::Success, 4)),
                Err(_) => assert_eq!((outcome.code(), indices(outcome.failed())), (TRANSPORT, vec![0, 2, 3])),
            }
        }
    }
}

/// A2: the batch has one deadline; members that end meanwhile neither extend nor restart it.
#[test]
fn a2_one_deadline_for_the_whole_batch() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(4);
        let clock = ManualClock::new();
        let outcome = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, 4 * TICK));
            for done in &statuses[..3] {
                let before = clock.sleeps();
                waiter.asleep(&clock, before.max(1));
                fake.succeed(done);
                let before = clock.sleeps();
                clock.advance(TICK);
                waiter.asleep(&clock, before + 1);
            }
            clock.advance(TICK);
            waiter.end()
        });
        assert_eq!((outcome.code(), outcome.succeeded()), (StatusCode::InProgress, 3), "{kind:?}");
        assert_eq!(indices(outcome.unfinished()), [3]);
    }
}

/// A3, A8, A9: for every list of four states, the code is that of the earliest failure; else init, else in progress, else
/// success; and the outcome lists every member that is not a success.
#[test]
fn a3_failure_wins_whatever_its_position() {
    let choices = 5_usize;
    for list in 0..choices.pow(4) {
        let fake = Fake::new(Kind::Notifier);
        let states: Vec<usize> = (0..4).map(|place| list / choices.pow(place) % choices).collect();
        let make = |state: usize| {
            let status = if state == 1 { fake.create(1) } else { fake.submit() };
            match state {
                2 => fake.succeed(&status),
                3 => fake.finish(&status, Err(broken())),
                4 => fake.finish(&status, Err(error(ErrorKind::PeerLost, "gone"))),
                _ => {}
            }
            status
        };
        let statuses: Vec<Status> = states.iter().map(|state| make(*state)).collect();
        let codes = [StatusCode::InProgress, StatusCode::Init, StatusCode::Success, TRANSPORT, PEER_LOST];
        let has = |wanted: StatusCode| states.iter().any(|state| codes[*state] == wanted);
        let earliest = states.iter().map(|state| codes[*state]).find(|code| code.is_failure());
        let unfinished = [StatusCode::Init, StatusCode::InProgress].into_iter().find(|code| has(*code));
        let expected = earliest.or(unfinished).unwrap_or(StatusCode::Success);
        let places = |wanted: fn(StatusCode) -> bool| -> Vec<usize> {
            (0..4).filter(|place| wanted(codes[states[*place]])).collect()
        };
        for outcome in [scan(&statuses), wait_all(&statuses, Duration::ZERO)] {
            assert_eq!(outcome.code(), expected, "{states:?}");
            assert_eq!(indices(outcome.failed()), places(StatusCode::is_failure), "{states:?}");
            assert_eq!(indices(outcome.unfinished()), places(|code| !code.is_terminal()), "{states:?}");
            assert_eq!(outcome.succeeded(), places(StatusCode::is_success).len());
            assert_eq!(outcome.all_quiet(), unfinished.is_none());
        }
    }
}

/// A3: whatever the order in time, a failure among the members is the result: also at the deadline, and of several the one
/// that is earliest in the list, not in time.
#[test]
fn a3_failure_wins_whatever_the_order_in_time() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(4);
        let clock = ManualClock::new();
        let outcome = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
            waiter.asleep(&clock, 1);
            fake.finish(&statuses[2], Err(broken()));
            fake.succeed(&statuses[3]);
            fake.finish(&statuses[1], Err(error(ErrorKind::PeerLost, "gone")));
            clock.advance(BOUND);
            waiter.end()
        });
        assert_eq!(outcome.code(), PEER_LOST, "{kind:?}");
        assert_eq!((indices(outcome.failed()), indices(outcome.unfinished())), (vec![1, 2], vec![0]));
        assert_eq!(outcome.result(), Err(Some(error(ErrorKind::PeerLost, "gone"))));
    }
}

/// A4: the plain wait does not end at the first failure, because the others' buffers may still be written to.
#[test]
fn a4_wait_all_does_not_end_at_the_first_failure() {
    for bound in [None, Some(BOUND)] {
        let fake = Fake::new(Kind::Notifier);
        let statuses = fake.submit_many(3);
        let clock = ManualClock::new();
        let outcome = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, bound));
            waiter.asleep(&clock, 1);
            fake.finish(&statuses[0], Err(broken()));
            let before = clock.sleeps();
            clock.advance(TICK);
            waiter.asleep(&clock, before + 1);
            fake.succeed(&statuses[1]);
            let before = clock.sleeps();
            clock.advance(TICK);
            waiter.asleep(&clock, before + 1);
            fake.succeed(&statuses[2]);
            waiter.end()
        });
        assert_eq!(outcome.code(), TRANSPORT);
        assert!(outcome.all_quiet());
    }
}

/// A4: the explicit variant returns at the first failure and says which members are still running.
#[test]
fn a4_wait_first_failure_says_who_is_still_running() {
    for kind in KINDS {
        for bound in [None, Some(BOUND)] {
            let fake = Fake::new(kind);
            let statuses = fake.submit_many(4);
            let clock = ManualClock::new();
            let outcome = scope(|scope| {
                let waiter = Waiter::start(scope, || on(&clock).wait_first_failure(&statuses, bound));
                waiter.asleep(&clock, 1);
                fake.succeed(&statuses[0]);
                fake.finish(&statuses[2], Err(broken()));
                waiter.end()
            });
            assert_eq!(outcome.code(), TRANSPORT, "{kind:?} {bound:?}");
            assert_eq!((indices(outcome.unfinished()), outcome.all_quiet()), (vec![1, 3], false));
        }
    }
}

/// A4: with a failure there already, the explicit variant neither sleeps nor polls; without any, it waits for all.
#[test]
fn a4_wait_first_failure_ends_at_once_or_with_all() {
    let fake = Fake::new(Kind::Polled);
    let statuses = fake.submit_many(2);
    let clock = ManualClock::new();
    let bad = Status::failed(Tag(0), broken());
    let outcome = on(&clock).wait_first_failure(&[&statuses[0], &bad], None);
    assert_eq!((outcome.code(), fake.polls(&statuses[0]), clock.sleeps()), (TRANSPORT, 0, 0));
    let outcome = scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_first_failure(&statuses, BOUND));
        waiter.asleep(&clock, 1);
        statuses.iter().for_each(|status| fake.succeed(status));
        waiter.end()
    });
    assert!(outcome.is_success());
}

/// A5, W9: at the deadline every unfinished member is polled once more, wherever it stands; two polls each in all.
#[test]
fn a5_at_the_deadline_every_unfinished_member_is_polled() {
    for kind in [Kind::Polled, Kind::Hooked] {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(5);
        let clock = ManualClock::new();
        let outcome = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
            waiter.asleep(&clock, 1);
            // The first never ends; the others are over, but nobody has looked.
            fake.ready(&statuses[1], Ok(()));
            fake.ready(&statuses[2], Err(broken()));
            fake.ready(&statuses[4], Ok(()));
            clock.advance(BOUND);
            waiter.end()
        });
        assert_eq!(outcome.code(), TRANSPORT, "{kind:?}");
        assert_eq!((indices(outcome.unfinished()), outcome.succeeded()), (vec![0, 3], 2));
        for status in &statuses {
            assert_eq!((fake.polls(status), fake.hooks(status)), (2, 0));
        }
    }
}

/// A5, W9: members that end between the two polls are not polled again.
#[test]
fn a5_finished_members_are_not_polled_at_the_deadline() {
    let fake = Fake::new(Kind::Polled);
    let statuses = fake.submit_many(3);
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || on(&clock).wait_all(&statuses, BOUND));
        waiter.asleep(&clock, 1);
        fake.succeed(&statuses[1]);
        clock.advance(BOUND);
        assert_eq!(waiter.end().code(), StatusCode::InProgress);
    });
    assert_eq!(statuses.iter().map(|status| fake.polls(status)).collect::<Vec<_>>(), [2, 1, 2]);
}

/// W9, A5: a batch may re-poll with back-off; every unfinished member is polled at every step.
#[test]
fn a5_a_batch_may_repoll_with_backoff() {
    const PAUSE: Duration = Duration::from_micros(1);
    let fake = Fake::new(Kind::Polled);
    let statuses = fake.submit_many(2);
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || repolling(&clock, PAUSE, 2 * PAUSE).wait_all(&statuses, BOUND));
        for (round, step) in [1, 2, 2].into_iter().enumerate() {
            waiter.asleep(&clock, round as u64 + 1);
            assert!(statuses.iter().all(|status| fake.polls(status) == round + 1));
            clock.advance(step * PAUSE);
        }
        waiter.asleep(&clock, 4);
        statuses.iter().for_each(|status| fake.ready(status, Ok(())));
        clock.advance(2 * PAUSE);
        assert!(waiter.end().is_success());
    });
}

/// A6: zero timeout polls every unfinished member exactly once, no other, and nobody sleeps.
#[test]
fn a6_zero_timeout_polls_every_unfinished_member_once() {
    let variants: [fn(&WaitPolicy, &[Status]) -> StatusCode; 4] = [
        |policy, list| policy.wait_all(list, Duration::ZERO).code(),
        |policy, list| policy.wait_first_failure(list, Duration::ZERO).code(),
        |policy, list| policy.wait_some(list, 4, Duration::ZERO).code(),
        |policy, list| policy.wait_all(list, Timeout::Within(Duration::ZERO)).code(),
    ];
    for kind in KINDS {
        for variant in variants {
            let fake = Fake::new(kind);
            let statuses = [fake.submit(), fake.submit(), fake.create(0), fake.submit(), fake.submit()];
            fake.succeed(&statuses[1]);
            fake.ready(&statuses[4], Ok(()));
            let clock = ManualClock::new();
            assert_eq!(variant(&on(&clock), &statuses), StatusCode::Init);
            let polls: Vec<_> = statuses.iter().map(|status| fake.polls(status)).collect();
            assert_eq!((polls, clock.sleeps()), (vec![1, 0, 0, 1, 1], 0), "{kind:?}");
            assert!(statuses.iter().all(|status| fake.hooks(status) == 0));
            assert!(statuses[4].is_success());
        }
    }
}

/// A8: a member that was never submitted hides no failure; without one, the batch reports *init*, after the others have
/// ended.
#[test]
fn a8_init_hides_no_failure() {
    let fake = Fake::new(Kind::Notifier);
    for (result, expected) in [(Ok(()), StatusCode::Init), (Err(broken()), TRANSPORT)] {
        let (init, running) = (fake.create(0), fake.submit());
        let clock = ManualClock::new();
        let outcome: Outcome = scope(|scope| {
            let waiter = Waiter::start(scope, || on(&clock).wait_all(&[&init, &running], None));
            waiter.asleep(&clock, 1);
            fake.finish(&running, result);
            waiter.end()
        });
        assert_eq!(outcome.code(), expected);
        assert_eq!((indices(outcome.unfinished()), outcome.all_quiet()), (vec![0], false));
    }
    let init = fake.create(0);
    let clock = ManualClock::new();
    assert_eq!(on(&clock).wait_all(&[&init], None).code(), StatusCode::Init);
    assert_eq!(on(&clock).wait_any(&[&init], None), None);
    assert_eq!(on(&clock).wait_all(&[&init], None).result(), Err(None));
}

/// A9: the outcome names each member that is not a success: place, number, tag, code and failure.
#[test]
fn a9_the_outcome_names_every_member_that_is_not_a_success() {
    let fake = Fake::new(Kind::Notifier);
    let statuses: Vec<_> = (0..4).map(|tag| fake.submit_tagged(100 + tag)).collect();
    fake.succeed(&statuses[0]);
    fake.finish(&statuses[1], Err(broken()));
    fake.finish(&statuses[3], Err(error(ErrorKind::PeerLost, "gone")));
    let outcome = wait_all(&statuses, Duration::ZERO);
    let member = |index: usize, code, error| Member {
        index,
        id: statuses[index].id(),
        tag: Tag(100 + index as u64),
        code,
        error,
    };
    assert_eq!(
        outcome.failed(),
        [
            member(1, TRANSPORT, Some(broken())),
            member(3, PEER_LOST, Some(error(ErrorKind::PeerLost, "gone"))),
        ]
    );
    assert_eq!(outcome.unfinished(), [member(2, StatusCode::InProgress, None)]);
}
