//! One status: waiters, readers, writers and the clock.

use std::sync::Arc;
use std::time::Duration;

use super::fake::{Fake, submitted};
use super::{BOUND, Bytes, FAILED, bound, error, in_progress, policy};
use crate::error::ErrorKind;
use crate::status::StatusCode;
use crate::sync::{Mutex, model, thread};
use crate::time::ManualClock;

/// W7, S4: whenever the success comes, the waiter is released and sees the bytes.
#[test]
fn waiter_and_success() {
    model(|| {
        let (completer, status) = in_progress();
        let bytes = Bytes::new();
        let landed = bytes.clone();
        let waiter = thread::spawn(move || {
            assert_eq!(status.wait(None), StatusCode::Success);
            assert!(landed.have_landed());
        });
        bytes.land();
        assert!(completer.succeed().applied());
        waiter.join().unwrap();
    });
}

/// S4: also a reader that only ever loads the code sees the bytes when it sees the success.
#[test]
fn reader_without_lock_sees_the_bytes() {
    model(|| {
        let (completer, status) = in_progress();
        let bytes = Bytes::new();
        let landed = bytes.clone();
        let reader = thread::spawn(move || {
            if status.is_success() {
                assert!(landed.have_landed());
            }
        });
        bytes.land();
        completer.succeed();
        reader.join().unwrap();
    });
}

/// S3: who sees the failure finds its message, whether it waits or only looks.
#[test]
fn code_and_message_are_one_fact() {
    model(|| {
        let (completer, status) = in_progress();
        let seen = status.clone();
        let reader = thread::spawn(move || {
            if seen.is_failure() {
                assert_eq!(seen.message(), "link down");
            }
        });
        let waiter = thread::spawn(move || {
            assert_eq!(status.wait(None), FAILED);
            assert_eq!(status.error().unwrap().message(), "link down");
        });
        assert!(completer.fail(error("link down")).applied());
        reader.join().unwrap();
        waiter.join().unwrap();
    });
}

/// S2: of a success and a failure one is applied, the other one is told that it was ignored, and a reader never
/// sees the code change.
#[test]
fn first_terminal_state_wins() {
    model(|| {
        let (completer, status) = in_progress();
        let completer = Arc::new(completer);
        let other = Arc::clone(&completer);
        let failing = thread::spawn(move || other.fail(error("late")).applied());
        let succeeded = completer.succeed().applied();
        let seen = status.code();
        let failed = failing.join().unwrap();
        assert!(succeeded != failed);
        assert_eq!(status.code(), if succeeded { StatusCode::Success } else { FAILED });
        assert_eq!(status.error().is_some(), failed);
        assert_eq!(seen, status.code());
    });
}

/// S2, S3: of two failures the first one's code and message stay together.
#[test]
fn first_failure_keeps_its_message() {
    model(|| {
        let (completer, status) = in_progress();
        let completer = Arc::new(completer);
        let other = Arc::clone(&completer);
        let first = thread::spawn(move || other.fail(error("one")).applied());
        let second = completer.fail(crate::Error::new(ErrorKind::PeerLost, "two")).applied();
        let first = first.join().unwrap();
        assert!(first != second);
        let error = status.error().unwrap();
        assert_eq!(status.code(), StatusCode::Failure(error.kind()));
        assert_eq!(error.message(), if first { "one" } else { "two" });
    });
}

/// W7: waiters with different bounds are all released by the terminal state.
#[test]
fn two_waiters_are_both_released() {
    model(|| {
        let manual = ManualClock::new();
        let (completer, status) = in_progress();
        let other = status.clone();
        let unbounded = thread::spawn(move || other.wait(None));
        let bounded = thread::spawn(move || status.wait_with(bound(), &policy(&manual)));
        completer.succeed();
        assert_eq!(unbounded.join().unwrap(), StatusCode::Success);
        assert_eq!(bounded.join().unwrap(), StatusCode::Success);
    });
}

/// W7: one who comes after another has slept and gone, and after the end, is not held.
#[test]
fn a_late_waiter_returns() {
    model(|| {
        let (completer, status) = in_progress();
        let writer = thread::spawn(move || completer.succeed());
        assert_eq!(status.wait(None), StatusCode::Success);
        let late = status.clone();
        let late = thread::spawn(move || late.wait(None));
        assert_eq!(status.wait(None), StatusCode::Success);
        assert_eq!(late.join().unwrap(), StatusCode::Success);
        writer.join().unwrap();
    });
}

/// W5: neither a wake without reason nor a redundant or message-only update ends a wait.
#[test]
fn a_wake_without_reason_ends_no_wait() {
    model(|| {
        let manual = ManualClock::new();
        let (completer, status) = in_progress();
        let policy = policy(&manual);
        let waiter = thread::spawn(move || status.wait_with(bound(), &policy));
        manual.advance(Duration::ZERO);
        assert!(!completer.submit().applied());
        completer.note("half of it is there");
        completer.succeed();
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    });
}

/// Runs `then` on a thread of its own once a wait on the returned status has fixed its deadline: when it polls.
fn after_the_deadline_is_fixed(
    then: impl FnOnce(crate::Completer) + Send + 'static,
) -> (Arc<Fake>, crate::Status) {
    let start = Arc::new(Mutex::new(None));
    let begin = Arc::clone(&start);
    let fake = Fake::new(true, move |_| {
        let task = begin.lock().take();
        if let Some((completer, then)) = task {
            let then: Box<dyn FnOnce(crate::Completer) + Send> = then;
            thread::spawn(move || then(completer));
        }
    })
    .start();
    let (completer, status) = submitted(&fake);
    let then: Box<dyn FnOnce(crate::Completer) + Send> = Box::new(then);
    *start.lock() = Some((completer, then));
    (fake, status)
}

/// W4: the status is terminal before the clock reaches the deadline, so the terminal code is the answer; also if the
/// writer has not come to waking its waiters yet.
#[test]
fn completion_beats_the_clock() {
    model(|| {
        let manual = ManualClock::new();
        let clock = manual.clock();
        let deadline = clock.deadline(BOUND);
        let (completer, status) = in_progress();
        let seen = status.clone();
        thread::spawn(move || completer.succeed());
        thread::spawn(move || {
            if seen.is_success() {
                manual.advance(BOUND);
            }
        });
        assert_eq!(status.sleep(&clock, deadline), StatusCode::Success);
    });
}

/// W4 for a failure, with its message.
#[test]
fn failure_beats_the_clock() {
    model(|| {
        let manual = ManualClock::new();
        let clock = manual.clone();
        let (_fake, status) = after_the_deadline_is_fixed(move |completer| {
            completer.fail(error("link down"));
            clock.advance(BOUND);
        });
        assert_eq!(status.wait_with(bound(), &policy(&manual)), FAILED);
        assert_eq!(status.message(), "link down");
    });
}

/// W3: a bound that runs out ends the wait as *in progress*; the status goes on, and can be waited for again.
#[test]
fn a_wait_that_ran_out_can_be_repeated() {
    model(|| {
        let manual = ManualClock::new();
        let clock = manual.clone();
        let (_fake, status) = after_the_deadline_is_fixed(move |completer| {
            clock.advance(BOUND);
            completer.succeed();
        });
        let code = status.wait_with(bound(), &policy(&manual));
        assert!(matches!(code, StatusCode::InProgress | StatusCode::Success));
        assert_eq!(status.wait(None), StatusCode::Success);
    });
}

/// S2, S3: a note either comes before the end, or changes nothing.
#[test]
fn a_note_after_the_end_changes_nothing() {
    model(|| {
        let (completer, status) = in_progress();
        let completer = Arc::new(completer);
        let other = Arc::clone(&completer);
        let noting = thread::spawn(move || other.note("half").applied());
        completer.succeed();
        let message = status.message();
        let applied = noting.join().unwrap();
        assert_eq!(status.message(), message);
        assert_eq!(status.message(), if applied { "half" } else { "" });
    });
}

/// S5: nobody waits for a writer that is gone.
#[test]
fn dropping_the_writer_releases_the_waiter() {
    model(|| {
        let (completer, status) = in_progress();
        let waiter = thread::spawn(move || {
            assert_eq!(status.wait(None), StatusCode::Failure(ErrorKind::BadState));
            assert!(status.message().contains("dropped unfinished"));
        });
        drop(completer);
        waiter.join().unwrap();
    });
}

/// S6: readers may go while the writer writes, with and without somebody else asleep.
#[test]
fn dropping_a_reader_disturbs_nobody() {
    model(|| {
        let (completer, status) = in_progress();
        let other = status.clone();
        let waiter = thread::spawn(move || other.wait(None));
        let writer = thread::spawn(move || completer.succeed().applied());
        drop(status);
        assert!(writer.join().unwrap());
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    });
}
