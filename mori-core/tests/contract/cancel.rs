//! E1, as far as the status is concerned: what `cancel` asks of whom, and what it leaves alone.

use std::thread::scope;

use mori_core::{ErrorKind, ManualClock, Origin, Status, StatusCode};

use crate::support::{BOUND, Fake, KINDS, Kind, TRANSPORT, Waiter, broken, error, on};

/// E1: cancelling asks the backend and returns; the status stays in progress until the backend says that it is quiet.
#[test]
fn e1_a_cancelled_transfer_stays_in_progress_until_it_is_quiet() {
    for kind in [Kind::Notifier, Kind::Polled] {
        let fake = Fake::cancelling(kind);
        let status = fake.submit();
        let clock = ManualClock::new();
        scope(|scope| {
            let waiter = Waiter::start(scope, || status.wait_with(BOUND, &on(&clock)));
            waiter.asleep(&clock, 1);
            assert_eq!((status.cancel(), fake.cancels(&status)), (Ok(()), 1));
            assert_eq!(status.code(), StatusCode::InProgress);
            clock.advance(BOUND / 2);
            waiter.asleep(&clock, 2);
            let cancelled = error(ErrorKind::Cancelled, "stopped on request");
            fake.finish(&status, Err(cancelled.clone()));
            assert_eq!(waiter.end(), StatusCode::Failure(ErrorKind::Cancelled));
            assert_eq!(status.error(), Some(cancelled));
        });
    }
}

/// E1: a transfer that ends before the backend gets to it keeps its result, and so does one that had ended.
#[test]
fn e1_a_finished_transfer_keeps_its_result() {
    let fake = Fake::cancelling(Kind::Notifier);
    for (result, code) in [(Ok(()), StatusCode::Success), (Err(broken()), TRANSPORT)] {
        let status = fake.submit();
        assert_eq!(status.cancel(), Ok(()));
        fake.finish(&status, result);
        assert_eq!((status.cancel(), status.code()), (Ok(()), code));
        assert_eq!(fake.cancels(&status), 1, "a terminal status asks nobody");
    }
}

/// E1: a backend that cannot cancel says so, and the transfer goes on.
#[test]
fn e1_a_backend_that_cannot_cancel_answers_unsupported() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let status = fake.submit();
        assert_eq!(status.cancel().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(status.code(), StatusCode::InProgress);
        fake.succeed(&status);
        assert_eq!(status.cancel(), Ok(()));
    }
}

/// E1: there is nothing to stop in a transfer that was never submitted, and nobody to ask for one without a backend.
#[test]
fn e1_init_and_detached_statuses_cannot_be_cancelled() {
    let fake = Fake::cancelling(Kind::Notifier);
    let init = fake.create(0);
    assert_eq!(init.cancel().unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!((init.code(), fake.cancels(&init)), (StatusCode::Init, 0));
    let (completer, detached) = Status::pair(Origin::detached());
    completer.submit();
    assert_eq!(detached.cancel().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(detached.code(), StatusCode::InProgress);
}

/// E1, W3: the end of a wait, of its thread and of the reader's handle cancels nothing.
#[test]
fn e1_only_cancel_cancels() {
    let fake = Fake::cancelling(Kind::Polled);
    let status = fake.submit();
    let clock = ManualClock::new();
    assert_eq!(status.wait_with(std::time::Duration::ZERO, &on(&clock)), StatusCode::InProgress);
    drop(mori_core::Gathering::all([status.clone()]));
    drop(status.clone());
    assert_eq!((fake.cancels(&status), status.code()), (0, StatusCode::InProgress));
}
