//! Many transfers, from many threads, with handles dropped at random: nothing leaks, nothing deadlocks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests, and what they found"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mori_core::{Backend, Clock, ErrorKind, Op, Piece, Session, Status, TransferOptions};
use mori_xgmi::Completion;
use support::{Engine, LONG, MACHINE, PATIENT, alone, config, filled};

const THREADS: u64 = 4;

fn many(completion: Completion, transfers: u64) {
    let _alone = alone();
    let (local, remote) = (filled(0, &[1; 4096]).unwrap(), filled(1, &[2; 4096]).unwrap());
    let (a, b) =
        (Engine::join("a", config(completion)).unwrap(), Engine::join("b", config(completion)).unwrap());
    a.backend.add_peer(&b.desc).unwrap();
    let desc = b.register(&remote).unwrap();
    let session: Arc<dyn Session> = a.backend.session(&local, &desc).unwrap();
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (session, refused) = (&session, &refused);
            scope.spawn(move || {
                let mut kept: Vec<Status> = Vec::new();
                for number in 0..transfers / THREADS {
                    let mixed = (number * THREADS + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                    let op = if mixed & 1 == 0 { Op::Read } else { Op::Write };
                    let piece = Piece::new(mixed % 4000, mixed % 3000, 1 + mixed % 90);
                    let status = session.submit(op, &[piece], &TransferOptions::default());
                    match status.error() {
                        // The table of events is full for the moment, which is an answer.
                        Some(error) if error.kind() == ErrorKind::ResourceExhausted => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Some(error) => panic!("{error}"),
                        None if mixed.is_multiple_of(3) => kept.push(status),
                        None if mixed.is_multiple_of(7) => {
                            status.poll();
                        }
                        // Dropped, in whatever state it is.
                        None => {}
                    }
                    if kept.len() > 64 {
                        for status in kept.drain(..) {
                            assert!(status.wait_with(LONG, &PATIENT).is_success(), "{}", status.message());
                        }
                    }
                }
            });
        }
    });
    assert!(refused.load(Ordering::Relaxed) < transfers / 2);
    support::until("the pins come back with nobody polling", || local.pins() == 0 && remote.pins() == 0);
    local.close(LONG, &Clock::system()).unwrap();
    drop(session);
    a.backend.shutdown();
    b.backend.shutdown();
    drop((local, remote));
    let report = MACHINE.0.report().unwrap();
    assert_eq!(
        (report.streams, report.events, report.mappings, report.allocations),
        (0, 0, 0, 0),
        "{report:?}"
    );
    assert!(report.misuse.is_empty(), "{:?}", report.misuse);
}

#[test]
fn a_hundred_thousand_transfers_leak_nothing() {
    many(Completion::EventQuery, 100_000);
}

#[test]
fn with_callbacks_too() {
    many(Completion::HostCallback, 20_000);
}

#[test]
fn regions_go_while_first_transfers_start() {
    let _alone = alone();
    let clock = Clock::system();
    let end = clock.deadline(support::stress());
    let (read, gone) = (AtomicU64::new(0), AtomicU64::new(0));
    let (a, b) = (
        Engine::join("a", config(Completion::EventQuery)).unwrap(),
        Engine::join("b", config(Completion::EventQuery)).unwrap(),
    );
    a.backend.add_peer(&b.desc).unwrap();
    let local = filled(2, &[0; 256]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 * THREADS {
            scope.spawn(|| {
                while !end.passed(clock.now()) {
                    let remote = filled(3, &[9; 256]).unwrap();
                    let desc = b.register(&remote).unwrap();
                    std::thread::scope(|inner| {
                        let users: Vec<_> = (0..2)
                            .map(|_| {
                                inner.spawn(|| {
                                    let session = a.backend.session(&local, &desc)?;
                                    let status = session.submit(
                                        Op::Read,
                                        &[Piece::new(0, 0, 256)],
                                        &TransferOptions::default(),
                                    );
                                    assert!(status.wait_with(LONG, &PATIENT).is_terminal());
                                    status.error().map_or(Ok(()), Err)
                                })
                            })
                            .collect();
                        remote.close(LONG, &Clock::system()).unwrap();
                        b.backend.deregister(remote.id());
                        for user in users {
                            match user.join().unwrap() {
                                Ok(()) => read.fetch_add(1, Ordering::Relaxed),
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                                    gone.fetch_add(1, Ordering::Relaxed)
                                }
                            };
                        }
                    });
                }
            });
        }
    });
    let (read, gone) = (read.into_inner(), gone.into_inner());
    println!("{read} first transfers came before the end of their region, {gone} after it");
    assert!(read > 0 && gone > 0, "no race: {read} before, {gone} after");
    drop((a, b, local));
    let report = MACHINE.0.report().unwrap();
    assert_eq!((report.streams, report.events, report.allocations), (0, 0, 0), "{report:?}");
    assert!(report.misuse.is_empty(), "{:?}", report.misuse);
}
