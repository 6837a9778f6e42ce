//! Shapes that are too large for every schedule, for random ones and for real threads: many waiters, many statuses.

use std::sync::Arc;

use super::{Bytes, FAILED, error, in_progress, policy};
use crate::status::{Completer, Status, StatusCode};
use crate::sync::{model, thread};
use crate::time::ManualClock;
use crate::wait::{wait_all, wait_any};

/// W7: eight waiters of all kinds on one status.
#[test]
fn eight_waiters_on_one_status() {
    model(|| {
        let (completer, status) = in_progress();
        let manual = ManualClock::new();
        let bytes = Bytes::new();
        let waiters: Vec<_> = (0..8)
            .map(|number| {
                let (status, bytes, policy) = (status.clone(), bytes.clone(), policy(&manual));
                thread::spawn(move || {
                    let code = match number % 4 {
                        0 => status.wait(None),
                        1 => status.wait_with(std::time::Duration::from_secs(number), &policy),
                        2 => wait_all(&[status], None).code(),
                        _ => policy
                            .wait_all(&[status.clone(), status], std::time::Duration::from_secs(1))
                            .code(),
                    };
                    assert_eq!(code, StatusCode::Success);
                    assert!(bytes.have_landed());
                })
            })
            .collect();
        bytes.land();
        completer.note("on its way");
        completer.succeed();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

fn many(count: usize) -> (Vec<Completer>, Arc<Vec<Status>>) {
    let (writers, statuses) = (0..count).map(|_| in_progress()).unzip();
    (writers, Arc::new(statuses))
}

/// A3, A9, A10: 64 statuses, four writers, three waiters with different ends.
#[test]
fn sixty_four_statuses_and_four_writers() {
    model(|| {
        let (mut writers, statuses) = many(64);
        let all = {
            let statuses = Arc::clone(&statuses);
            thread::spawn(move || {
                let outcome = wait_all(&statuses, None);
                assert_eq!(outcome.code(), FAILED);
                assert!(outcome.all_quiet());
                let failed: Vec<usize> = outcome.failed().iter().map(|member| member.index).collect();
                assert_eq!(failed, [13, 40]);
            })
        };
        let first_half = {
            let statuses = Arc::clone(&statuses);
            thread::spawn(move || wait_all(&statuses[..13], None).is_success())
        };
        let any = {
            let statuses = Arc::clone(&statuses);
            thread::spawn(move || wait_any(&statuses, None).is_some())
        };
        let writing: Vec<_> = (0..4)
            .map(|number| {
                let share: Vec<(usize, Completer)> =
                    writers.drain(..16).enumerate().map(|(at, writer)| (number * 16 + at, writer)).collect();
                thread::spawn(move || {
                    for (at, writer) in share {
                        if at == 13 || at == 40 {
                            writer.fail(error("link down"));
                        } else {
                            writer.succeed();
                        }
                    }
                })
            })
            .collect();
        all.join().unwrap();
        assert!(first_half.join().unwrap());
        assert!(any.join().unwrap());
        for writer in writing {
            writer.join().unwrap();
        }
    });
}
