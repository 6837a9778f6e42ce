//! The fake: what waits ask of it is counted, and scripted transfers end when the script says.

use std::thread;
use std::time::Duration;

use mori_core::{Error, ErrorKind, ManualClock, Repoll, StatusCode, Tag, Timeout, WaitPolicy, wait_all};
use mori_testkit::{FakeConfig, FakeFabric};

fn kinds() -> [FakeConfig; 3] {
    [FakeConfig::notified(), FakeConfig::polled(false), FakeConfig::polled(true)]
}

/// W6: a wait of zero polls once and leaves the hook alone, on every kind of backend.
#[test]
fn a_wait_of_zero_polls_once() {
    for config in kinds() {
        let backend = FakeFabric::new().backend(config);
        let status = backend.start(Tag(0));
        assert_eq!(status.wait(Duration::ZERO), StatusCode::InProgress);
        assert_eq!((backend.polls(), backend.hooks()), (1, 0));
        assert_eq!(status.wait(Timeout::from_millis(0)), StatusCode::InProgress);
        assert_eq!((backend.polls_of(status.id()), backend.hooks()), (2, 0));
    }
}

/// W9: two polls, one up front and one at the deadline, which sees what has become ready in between. W8: one poll.
#[test]
fn a_bounded_wait_polls_up_front_and_at_its_deadline() {
    for (config, polls, code) in [
        (FakeConfig::polled(true), 2, StatusCode::Success),
        (FakeConfig::polled(false), 2, StatusCode::Success),
        (FakeConfig::notified(), 1, StatusCode::InProgress),
    ] {
        let backend = FakeFabric::new().backend(config);
        let status = backend.start(Tag(0));
        backend.ready_after(status.id(), 2, Ok(()));
        let clock = ManualClock::new();
        let policy = WaitPolicy { clock: clock.clock(), ..WaitPolicy::DEFAULT };
        let waited = thread::scope(|scope| {
            let waiter = scope.spawn(|| status.wait_with(Duration::from_secs(5), &policy));
            while !waiter.is_finished() {
                clock.advance(Duration::from_secs(1));
                thread::yield_now();
            }
            waiter.join().unwrap()
        });
        assert_eq!((waited, backend.polls(), backend.hooks()), (code, polls, 0));
    }
}

/// W9: another policy polls in between.
#[test]
fn a_policy_with_back_off_polls_in_between() {
    let backend = FakeFabric::new().backend(FakeConfig::polled(false));
    let status = backend.start(Tag(0));
    backend.ready_after(status.id(), 5, Ok(()));
    let policy = WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT };
    assert_eq!(status.wait_with(Duration::from_secs(3600), &policy), StatusCode::Success);
    assert_eq!((backend.polls(), backend.hooks()), (5, 0));
}

/// W10: an unbounded wait uses the hook where there is one, and polls where there is none.
#[test]
fn an_unbounded_wait_uses_the_hook() {
    let backend = FakeFabric::new().backend(FakeConfig::polled(true));
    let status = backend.start(Tag(0));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| status.wait(None));
        while backend.hooks() == 0 {
            thread::yield_now();
        }
        // The poll up front; the hook does the rest.
        assert_eq!(backend.polls(), 1);
        backend.ready(status.id(), Ok(()));
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    });
    assert_eq!((backend.polls(), backend.hooks()), (2, 1));

    let backend = FakeFabric::new().backend(FakeConfig::polled(false));
    let status = backend.start(Tag(0));
    backend.ready_after(status.id(), 4, Ok(()));
    assert_eq!(status.wait(None), StatusCode::Success);
    assert_eq!(backend.polls(), 4);
    assert!(backend.hooks() > 0, "the hook is asked before it is known that there is none");
}

/// W7, S3: a completion by the script's thread releases every waiter, with its error.
#[test]
fn a_scripted_failure_reaches_every_waiter() {
    for config in kinds() {
        let backend = FakeFabric::new().backend(config);
        let status = backend.start(Tag(9));
        let error = Error::new(ErrorKind::Device, "by script");
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| status.wait(None))).collect();
            backend.complete(status.id(), Err(error.clone()));
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), StatusCode::Failure(ErrorKind::Device));
            }
        });
        assert_eq!(status.error(), Some(error));
        assert_eq!(backend.in_progress(), 0);
    }
}

/// A5, A6: every unfinished member is polled, once by a wait of zero, and once more at the deadline.
#[test]
fn a_batch_polls_every_unfinished_member() {
    let backend = FakeFabric::new().backend(FakeConfig::polled(true));
    let statuses: Vec<_> = (0..10).map(|tag| backend.start(Tag(tag))).collect();
    backend.complete(statuses[3].id(), Ok(()));
    assert_eq!(wait_all(&statuses, Duration::ZERO).unfinished().len(), 9);
    assert_eq!(backend.polls(), 9);
    assert_eq!(backend.polls_of(statuses[3].id()), 0);
    for status in &statuses {
        backend.ready_after(status.id(), 2, Ok(()));
    }
    assert!(wait_all(&statuses, Duration::from_millis(1)).is_success());
    assert_eq!((backend.polls(), backend.hooks()), (27, 0));
}

/// S5, S6: scripted transfers end with their backend.
#[test]
fn dropping_the_fake_ends_what_it_started() {
    for config in kinds() {
        let backend = FakeFabric::new().backend(config);
        let status = backend.start(Tag(0));
        drop(backend);
        assert_eq!(status.wait(None), StatusCode::Failure(ErrorKind::BadState));
    }
}
