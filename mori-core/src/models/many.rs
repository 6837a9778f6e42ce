//! Waiting for many: the gate against completions in any order, failures, the clock and the waiter's own arming.

use std::sync::Arc;
use std::time::Duration;

use super::fake::{Fake, submitted};
use super::{BOUND, Bytes, FAILED, bound, error, in_progress, policy};
use crate::status::{Completer, Status, StatusCode};
use crate::sync::{Mutex, model, thread};
use crate::time::{ManualClock, Timeout};
use crate::wait::{WaitPolicy, wait_all, wait_any, wait_first_failure, wait_some};

/// A3, A10, S4: two writers in any order; the waiter returns once both have finished, and sees the bytes of both.
#[test]
fn completions_in_any_order() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let bytes = [Bytes::new(), Bytes::new()];
        let landing = bytes.clone();
        let writers =
            [(first, landing[0].clone()), (second, landing[1].clone())].map(|(completer, bytes)| {
                thread::spawn(move || {
                    bytes.land();
                    completer.succeed();
                })
            });
        let outcome = wait_all(&[one, two], None);
        assert_eq!(outcome.code(), StatusCode::Success);
        assert!(bytes.iter().all(Bytes::have_landed));
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// A3, A4: a failure at any place and time does not end the plain wait, and decides it.
#[test]
fn a_failure_wins_after_all_are_quiet() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let failing = thread::spawn(move || second.fail(error("link down")));
        let succeeding = thread::spawn(move || first.succeed());
        let outcome = wait_all(&[one, two], None);
        assert_eq!(outcome.code(), FAILED);
        assert!(outcome.all_quiet());
        assert_eq!(outcome.failed()[0].index, 1);
        assert_eq!(outcome.failed()[0].error.as_ref().unwrap().message(), "link down");
        failing.join().unwrap();
        succeeding.join().unwrap();
    });
}

/// A1: the same status may stand in the list more than once.
#[test]
fn the_same_status_twice() {
    model(|| {
        let (completer, status) = in_progress();
        let writer = thread::spawn(move || completer.succeed());
        assert!(wait_all(&[status.clone(), status], None).is_success());
        writer.join().unwrap();
    });
}

/// W7, A7: two waiters for many and one for one share a member.
#[test]
fn waiters_share_a_member() {
    model(|| {
        let (completer, status) = in_progress();
        let other = status.clone();
        let all = thread::spawn(move || wait_all(&[other], None).is_success());
        let writer = thread::spawn(move || completer.succeed());
        assert_eq!(status.wait(None), StatusCode::Success);
        assert!(all.join().unwrap());
        writer.join().unwrap();
    });
}

/// A4: the explicit variant ends at the first failure and says who is still running.
#[test]
fn first_failure_ends_the_wait() {
    model(|| {
        let (running, one) = in_progress();
        let (completer, two) = in_progress();
        let writer = thread::spawn(move || completer.fail(error("link down")));
        let outcome = wait_first_failure(&[one, two], None);
        assert_eq!(outcome.code(), FAILED);
        assert_eq!(outcome.unfinished()[0].index, 0);
        writer.join().unwrap();
        running.succeed();
    });
}

/// A4: a success and a failure race; the variant ends with the failure whichever comes first.
#[test]
fn first_failure_and_a_success() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let succeeding = thread::spawn(move || first.succeed());
        let failing = thread::spawn(move || second.fail(error("link down")));
        assert_eq!(wait_first_failure(&[one, two], None).code(), FAILED);
        succeeding.join().unwrap();
        failing.join().unwrap();
    });
}

/// A12: one terminal member ends the wait; the subscription at the other one is taken back while it completes.
#[test]
fn any_one_ends_the_wait() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let writers = [first, second].map(|completer| thread::spawn(move || completer.succeed()));
        let any = wait_any(&[one.clone(), two.clone()], None);
        assert!(any.is_some());
        assert!([one, two][any.unwrap()].is_success());
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// A12: two of three are enough.
#[test]
fn some_of_them_end_the_wait() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let (_running, three) = in_progress();
        let writer = thread::spawn(move || {
            second.succeed();
            first.succeed();
        });
        let outcome = wait_some(&[one, two, three], 2, None);
        assert_eq!(outcome.unfinished().len(), 1);
        writer.join().unwrap();
    });
}

/// A10: however the completions fall, the waiter is woken at most once.
#[test]
fn one_wake_for_all_completions() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let writers = [first, second].map(|completer| thread::spawn(move || completer.succeed()));
        let wakes = crate::wait::model_wakes(&[one, two]);
        assert!(wakes <= 1, "woken {wakes} times");
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// W5 for many: a wake without reason ends no wait.
#[test]
fn a_wake_without_reason_ends_no_wait() {
    model(|| {
        let manual = ManualClock::new();
        let (completer, status) = in_progress();
        let policy = policy(&manual);
        let writer = thread::spawn(move || {
            manual.advance(Duration::ZERO);
            completer.succeed();
        });
        assert!(policy.wait_all(&[status], bound()).is_success());
        writer.join().unwrap();
    });
}

/// Waits for two members while another thread, which begins when the deadline is fixed, does `then` and moves the clock to
/// the deadline.
fn until_the_deadline(then: fn(Completer, Completer)) -> crate::Outcome {
    let manual = ManualClock::new();
    let start: Arc<Mutex<Option<(Completer, Completer)>>> = Arc::default();
    let (begin, clock) = (Arc::clone(&start), manual.clone());
    // Without a notifier, so that it is polled; whether it is polled again is no matter.
    let fake = Fake::new(false, move |_| {
        let writers = begin.lock().take();
        if let Some((first, second)) = writers {
            let clock = clock.clone();
            thread::spawn(move || {
                then(first, second);
                clock.advance(BOUND);
            });
        }
    })
    .start();
    let (first, one) = submitted(&fake);
    let (second, two) = in_progress();
    *start.lock() = Some((first, second));
    policy(&manual).wait_all(&[one, two], bound())
}

/// A2, W4 for many: what has ended by the deadline has ended.
#[test]
fn completions_beat_the_clock() {
    model(|| {
        let outcome = until_the_deadline(|first, second| {
            second.succeed();
            first.succeed();
        });
        assert!(outcome.is_success());
    });
}

/// A3: a failure before the deadline decides, also if others are in progress at the deadline.
#[test]
fn a_failure_beats_the_clock() {
    model(|| {
        let outcome = until_the_deadline(|first, second| {
            second.fail(error("link down"));
            // It runs on past the deadline.
            std::mem::forget(first);
        });
        assert_eq!(outcome.code(), FAILED);
        assert_eq!(outcome.unfinished()[0].index, 0);
    });
}

/// A5: what the backend has finished by the deadline is polled for at the deadline, at any place in the list.
#[test]
fn every_unfinished_member_is_polled_at_the_deadline() {
    model(|| {
        let manual = ManualClock::new();
        let writers: Arc<Mutex<Vec<Completer>>> = Arc::default();
        let (polled, clock) = (Arc::clone(&writers), manual.clone());
        let fake = Fake::new(false, move |number| {
            // The first polls find nothing; the deadline passes after them.
            if number == 2 {
                let clock = clock.clone();
                thread::spawn(move || clock.advance(BOUND));
            } else if number > 2 {
                let completer = polled.lock().pop();
                if let Some(completer) = completer {
                    completer.succeed();
                }
            }
        })
        .start();
        let (first, one) = submitted(&fake);
        let (second, two) = submitted(&fake);
        writers.lock().extend([second, first]);
        assert!(policy(&manual).wait_all(&[one, two], bound()).is_success());
        assert_eq!(fake.polls(), 4);
    });
}

/// A7: a member whose backend has no notifier does not delay the release by one that has.
#[test]
fn a_polled_member_does_not_delay_the_others() {
    model(|| {
        let manual = ManualClock::new();
        let fake = Fake::new(false, |_| {}).start();
        let (_running, one) = submitted(&fake);
        let (completer, two) = in_progress();
        let writer = thread::spawn(move || completer.succeed());
        // The clock stands still: only the completion can end this.
        let any = WaitPolicy { clock: manual.clock(), ..WaitPolicy::DEFAULT }.wait_any(&[one, two], bound());
        assert_eq!(any, Some(1));
        writer.join().unwrap();
    });
}

/// A6: zero timeout takes what is there, whatever the writers do meanwhile, and sleeps on nothing.
#[test]
fn zero_timeout_never_sleeps() {
    model(|| {
        let (completer, status) = in_progress();
        let writer = thread::spawn(move || completer.succeed());
        let members: [Status; 2] = [status.clone(), status];
        let code = wait_all(&members, Timeout::Poll).code();
        assert!(matches!(code, StatusCode::InProgress | StatusCode::Success));
        writer.join().unwrap();
    });
}
