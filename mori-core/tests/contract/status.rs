//! S1–S7: the states, and the two sides of a status.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, spawn};

use mori_core::{
    Access, Backend, Completer, ErrorKind, Event, ManualClock, Observe, Origin, Region, Status, StatusCode,
    Tag, Transition, Update, scan, transition, wait_all,
};

use crate::support::{
    BAD_STATE, BOUND, Fake, KINDS, Kind, Lockstep, PEER_LOST, TRANSPORT, Told, Waiter, broken, error, on,
    spin_until,
};

fn apply(completer: &Completer, event: Event) -> Update {
    match event {
        Event::Submit => completer.submit(),
        Event::Succeed => completer.succeed(),
        Event::Fail(kind) => completer.fail(error(kind, &format!("message of {kind}"))),
    }
}

/// S1, S2: every sequence of up to four updates moves a real status as the pure function says, and no other way; each update
/// says whether it moved it.
#[test]
fn s1_only_the_three_moves_exist() {
    let events =
        [Event::Submit, Event::Succeed, Event::Fail(ErrorKind::Transport), Event::Fail(ErrorKind::PeerLost)];
    for sequence in 0..events.len().pow(4) {
        let (completer, status) = Status::pair(Origin::detached());
        let mut expected = StatusCode::Init;
        let mut message = String::new();
        for step in 0..4 {
            let event = events[sequence / events.len().pow(step) % events.len()];
            let update = apply(&completer, event);
            match transition(expected, event) {
                Transition::Move(next) => {
                    expected = next;
                    if let Event::Fail(kind) = event {
                        message = format!("message of {kind}");
                    }
                    assert_eq!(update, Update::Applied);
                }
                Transition::Ignored(code) => assert_eq!(update, Update::Ignored(code)),
            }
            assert_eq!((status.code(), status.message()), (expected, message.clone()), "{sequence} {step}");
        }
    }
}

/// S2: after a terminal state, no update of any kind changes code or message, and each says that it was ignored.
#[test]
fn s2_the_first_terminal_state_is_final() {
    for first in [Event::Succeed, Event::Fail(ErrorKind::Transport)] {
        let (completer, status) = Status::pair(Origin::detached());
        completer.submit();
        completer.note("halfway");
        assert!(apply(&completer, first).applied());
        let (code, message, failure) = (status.code(), status.message(), status.error());
        for update in [
            completer.submit(),
            completer.succeed(),
            completer.fail(broken()),
            completer.fail(error(ErrorKind::PeerLost, "too late")),
            completer.note("too late"),
        ] {
            assert_eq!(update, Update::Ignored(code));
            assert!(!update.applied());
            assert_eq!(
                (status.code(), status.message(), status.error()),
                (code, message.clone(), failure.clone())
            );
        }
        drop(completer);
        assert_eq!((status.code(), status.message()), (code, message));
    }
}

/// Submitted statuses for many rounds of a race.
fn pairs(rounds: usize) -> Vec<(Completer, Status)> {
    let pairs: Vec<_> = (0..rounds).map(|_| Status::pair(Origin::detached())).collect();
    pairs.iter().for_each(|(completer, _)| assert!(completer.submit().applied()));
    pairs
}

/// S2, S3: of updates that race, exactly one applies, and the status ends with that one's code and message.
#[test]
fn s2_of_racing_updates_exactly_one_applies() {
    let pairs = pairs(500);
    let told: Vec<_> = pairs.iter().map(|(_, status)| Told::of(status)).collect();
    let kinds = [None, Some(ErrorKind::Transport), Some(ErrorKind::PeerLost)];
    let start = Lockstep::new(kinds.len());
    let applied = scope(|scope| {
        let racers = kinds.map(|kind| {
            let (pairs, start) = (&pairs, &start);
            scope.spawn(move || {
                let race = |(round, (completer, _)): (usize, &(Completer, Status))| {
                    start.meet(round);
                    apply(completer, kind.map_or(Event::Succeed, Event::Fail)).applied()
                };
                pairs.iter().enumerate().map(race).collect::<Vec<_>>()
            })
        });
        racers.map(|racer| racer.join().unwrap())
    });
    for (round, (_, status)) in pairs.iter().enumerate() {
        let winners: Vec<_> = (0..kinds.len()).filter(|racer| applied[*racer][round]).collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let winner = kinds[winners[0]];
        assert_eq!(status.code(), winner.map_or(StatusCode::Success, StatusCode::Failure));
        assert_eq!(status.message(), winner.map_or(String::new(), |kind| format!("message of {kind}")));
        assert_eq!((told[round].count(), told[round].last()), (1, Some(status.code())));
    }
}

/// S3: a reader that sees a failure's code sees its message, however soon it looks.
#[test]
fn s3_whoever_sees_the_code_sees_its_message() {
    let pairs = pairs(1000);
    let start = Lockstep::new(2);
    scope(|scope| {
        let reader = Waiter::start(scope, || {
            for (round, (_, status)) in pairs.iter().enumerate() {
                start.meet(round);
                spin_until(|| status.code().is_terminal());
                assert_eq!((status.error(), status.message()), (Some(broken()), "the wire broke".to_owned()));
            }
        });
        for (round, (completer, _)) in pairs.iter().enumerate() {
            start.meet(round);
            completer.fail(broken());
        }
        reader.end();
    });
}

/// S3: a failure that comes too late leaves no message on a success, also for a reader that looks meanwhile.
#[test]
fn s3_a_failure_that_was_overtaken_leaves_no_message() {
    let pairs = pairs(200);
    let start = Lockstep::new(3);
    scope(|scope| {
        for succeeds in [true, false] {
            let (pairs, start) = (&pairs, &start);
            scope.spawn(move || {
                for (round, (completer, _)) in pairs.iter().enumerate() {
                    start.meet(round);
                    if succeeds {
                        completer.succeed()
                    } else {
                        completer.fail(broken())
                    };
                }
            });
        }
        for (round, (_, status)) in pairs.iter().enumerate() {
            start.meet(round);
            let mut running = true;
            while running {
                running = !status.code().is_terminal();
                std::thread::yield_now();
                let failure = status.error();
                match status.code() {
                    StatusCode::Success => assert_eq!(failure, None),
                    TRANSPORT => assert!(failure.is_none_or(|failure| failure == broken())),
                    code => assert_eq!((code, failure), (StatusCode::InProgress, None)),
                }
            }
            assert_eq!(status.error().is_some(), status.is_failure());
            assert_eq!(status.message().is_empty(), status.is_success());
        }
    });
}

/// S2: a note that races with the end of its transfer is either there before, or ignored; it never replaces a failure's
/// message, and says which it was.
#[test]
fn s2_a_note_that_races_with_the_end_is_ignored_or_came_before() {
    let pairs = pairs(1000);
    let start = Lockstep::new(2);
    let noted = scope(|scope| {
        let writer = Waiter::start(scope, || {
            let mut noted = Vec::new();
            for (round, (completer, _)) in pairs.iter().enumerate() {
                start.meet(round);
                noted.push(completer.note("nearly done").applied());
            }
            noted
        });
        for (round, (completer, _)) in pairs.iter().enumerate() {
            start.meet(round);
            if round % 2 == 0 {
                completer.succeed()
            } else {
                completer.fail(broken())
            };
        }
        writer.end()
    });
    for (round, (_, status)) in pairs.iter().enumerate() {
        let expected = match (round % 2 == 0, noted[round]) {
            (false, _) => "the wire broke",
            (true, true) => "nearly done",
            (true, false) => "",
        };
        assert_eq!(status.message(), expected, "round {round}");
    }
}

/// S4: bytes written before the success are read after it, by readers that look, sleep, or wait for many.
#[test]
fn s4_data_is_visible_before_the_status() {
    for round in 0..100_u64 {
        let fake = Fake::new(Kind::Notifier);
        let statuses = fake.submit_many(2);
        let region = Region::zeroed(64, Access::LOCAL).unwrap();
        let bytes = round.to_le_bytes().repeat(8);
        let read = || {
            let mut bytes = [0; 64];
            region.read_at(0, &mut bytes).unwrap();
            bytes
        };
        scope(|scope| {
            let spinning = Waiter::start(scope, || {
                spin_until(|| statuses.iter().all(Status::is_success));
                read()
            });
            let sleeping = Waiter::start(scope, || {
                assert!(statuses.iter().all(|status| status.wait(None).is_success()));
                read()
            });
            let for_many = Waiter::start(scope, || {
                assert!(wait_all(&statuses, None).is_success());
                read()
            });
            for (half, status) in statuses.iter().enumerate() {
                region.write_at(32 * half as u64, &bytes[32 * half..32 * (half + 1)]).unwrap();
                fake.succeed(status);
            }
            for waiter in [spinning, sleeping, for_many] {
                assert_eq!(waiter.end().as_slice(), bytes);
            }
        });
    }
}

/// S5: a writer's side that is dropped unfinished ends the status as *bad state*, and the message says so.
#[test]
fn s5_a_writer_dropped_unfinished_is_a_bad_state() {
    for submitted in [false, true] {
        let (completer, status) = Status::pair(Origin::detached());
        if submitted {
            completer.submit();
        }
        drop(completer);
        assert_eq!(status.code(), BAD_STATE);
        assert!(status.message().contains("dropped unfinished"), "{status:?}");
        assert_eq!(status.wait(None), BAD_STATE);
    }
}

/// S5: a backend's thread that panics ends its transfers, releases the waiter, and the message names the panic.
#[test]
fn s5_a_backend_thread_that_panics_ends_its_transfers() {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    let clock = ManualClock::new();
    let code = scope(|scope| {
        let waiter = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        waiter.asleep(&clock, 1);
        let backend = spawn(move || {
            let _held = completer;
            std::panic::resume_unwind(Box::new("the backend's bug"));
        });
        assert!(backend.join().is_err());
        waiter.end()
    });
    assert_eq!(code, BAD_STATE);
    assert!(status.message().contains("panicked"), "{status:?}");
}

/// S5: dropping a writer's side that has finished changes nothing.
#[test]
fn s5_a_finished_writer_is_dropped_without_effect() {
    for result in [Ok(()), Err(broken())] {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        fake.finish(&status, result.clone());
        drop(fake);
        assert_eq!(status.error(), result.err());
    }
}

/// S6: a status outlives its backend: it keeps no backend alive, every call still answers, and what had ended keeps its
/// result.
#[test]
fn s6_a_status_outlives_its_backend() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let (done, lost, never) = (fake.submit_tagged(7), fake.submit(), fake.create(9));
        fake.finish(&done, Err(broken()));
        let gone = Arc::downgrade(&fake);
        drop(fake);
        assert_eq!(gone.strong_count(), 0, "a status keeps its backend alive");
        assert_eq!(
            (done.code(), done.message(), done.tag()),
            (TRANSPORT, "the wire broke".to_owned(), Tag(7))
        );
        for status in [&lost, &never] {
            assert_eq!(
                (status.poll(), status.wait(None), status.wait(BOUND)),
                (BAD_STATE, BAD_STATE, BAD_STATE)
            );
            assert!(status.cancel().is_ok());
        }
        assert_eq!(scan(&[done, lost, never]).failed().len(), 3);
    }
}

/// S6, S5: a backend that is dropped while somebody waits releases the waiter, with and without a bound.
#[test]
fn s6_a_backend_dropped_while_somebody_waits_releases_the_waiter() {
    for kind in [Kind::Notifier, Kind::Polled] {
        for bound in [Some(BOUND), None] {
            let fake = Fake::new(kind);
            let statuses = fake.submit_many(2);
            let clock = ManualClock::new();
            scope(|scope| {
                let one = Waiter::start(scope, || statuses[0].wait_with(bound, &on(&clock)));
                let many = Waiter::start(scope, || on(&clock).wait_all(&statuses, bound));
                one.asleep(&clock, 2);
                many.asleep(&clock, 2);
                drop(fake);
                assert_eq!(one.end(), BAD_STATE, "{kind:?} {bound:?}");
                assert_eq!(many.end().failed().len(), 2, "{kind:?} {bound:?}");
            });
        }
    }
}

/// S6: dropping every reader's handle while the transfer runs is harmless; its writer goes on and ends it.
#[test]
fn s6_dropping_every_reader_is_harmless() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let told = Told::of(&status);
    let (completer, other) = Status::pair(Origin::detached());
    drop((status.clone(), other));
    assert!(completer.submit().applied());
    assert!(completer.note("nobody reads this").applied());
    assert!(completer.succeed().applied());
    assert_eq!(completer.status().code(), StatusCode::Success);
    fake.succeed(&status);
    drop(status);
    assert_eq!(told.count(), 1);
}

/// S6: the reader's side is dropped by one thread while another waits on its own handle.
#[test]
fn s6_dropping_other_handles_does_not_disturb_a_waiter() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    scope(|scope| {
        let own = status.clone();
        let policy = on(&clock);
        let waiter = Waiter::start(scope, move || own.wait_with(None, &policy));
        waiter.asleep(&clock, 1);
        let (first, second) = (status.clone(), status.clone());
        drop((first, second));
        fake.succeed(&status);
        drop(status);
        assert_eq!(waiter.end(), StatusCode::Success);
    });
}

/// S7: however a transfer ends, it ends once: each subscription is told once, and a shutdown afterwards adds nothing.
#[test]
fn s7_a_transfer_ends_exactly_once() {
    let gone = error(ErrorKind::PeerLost, "gone");
    let ends = [
        (Some(Ok(())), StatusCode::Success),
        (Some(Err(broken())), TRANSPORT),
        (Some(Err(gone)), PEER_LOST),
        // By the shutdown itself.
        (None, BAD_STATE),
    ];
    for (result, code) in ends {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        let told = [Told::of(&status), Told::of(&status), Told::of(&status)];
        if let Some(result) = result {
            fake.finish(&status, result);
        }
        fake.shutdown();
        fake.shutdown();
        drop(fake);
        for told in told {
            assert_eq!((told.count(), told.last()), (1, Some(code)));
        }
        assert!(
            !status.subscribe(Arc::new(Told::default())),
            "a subscription to a terminal status is refused"
        );
    }
}

/// S7, S5: a batch that fails half-way through its submission has no member that stays in progress.
#[test]
fn s7_a_batch_that_fails_half_way_leaves_nobody_in_progress() {
    let mut statuses = Vec::new();
    let submitted = AtomicUsize::new(0);
    let pairs: Vec<_> = (0..5).map(|_| Status::pair(Origin::detached())).collect();
    statuses.extend(pairs.iter().map(|(_, status)| status.clone()));
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        for (completer, _) in pairs {
            completer.submit();
            if submitted.fetch_add(1, Ordering::Relaxed) == 2 {
                std::panic::resume_unwind(Box::new("out of descriptors"));
            }
            completer.succeed();
        }
    }));
    assert!(attempt.is_err());
    let outcome = wait_all(&statuses, None);
    assert!(outcome.all_quiet());
    assert_eq!(outcome.succeeded(), 2);
    assert_eq!(outcome.failed().iter().map(|member| member.index).collect::<Vec<_>>(), [2, 3, 4]);
}

/// S7, W7: an observer that panics keeps nobody else from being told; the panic reaches the completing thread.
#[test]
fn s7_a_panicking_observer_keeps_nobody_from_being_told() {
    struct Panics;
    impl Observe for Panics {
        fn on_terminal(&self, _code: StatusCode) {
            std::panic::resume_unwind(Box::new("the observer's bug"));
        }
    }
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    let clock = ManualClock::new();
    let before = Told::of(&status);
    assert!(status.subscribe(Arc::new(Panics)));
    scope(|scope| {
        let many = Waiter::start(scope, || on(&clock).wait_all(&[&status], None));
        many.asleep(&clock, 1);
        let completing = Waiter::start(scope, || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| completer.succeed())).is_err()
        });
        assert!(completing.end());
        assert!(many.end().is_success());
    });
    assert_eq!((before.count(), status.code()), (1, StatusCode::Success));
}

/// S7: a subscription that is taken back is not told; the others are.
#[test]
fn an_unsubscribed_observer_is_not_told() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let told: Vec<_> = (0..3).map(|_| Told::of(&status)).collect();
    let second: Arc<dyn Observe> = Arc::<Told>::clone(&told[1]);
    status.unsubscribe(&second);
    fake.succeed(&status);
    assert_eq!(told.iter().map(|told| told.count()).collect::<Vec<_>>(), [1, 0, 1]);
}
