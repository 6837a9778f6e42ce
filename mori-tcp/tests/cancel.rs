//! Ending early (contract E1, E2): no byte lands after the end, what has finished stays finished, and the message says what the
//! transfer was waiting for.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mori_core::{Access, Backend, ErrorKind, Op, Piece, Status, StatusCode};
use mori_tcp::TcpConfig;
use support::raw::Stage;
use support::relay::{Relay, Way};
use support::{Link, Node, PATIENCE, bytes, deadline, fail, finish, pair, pattern, submit, succeed, until};

/// One connection and one thread, so that what was submitted first is looked at first.
fn single() -> TcpConfig {
    TcpConfig {
        connections: 1,
        io_threads: 1,
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        chunk_bytes: 64 << 10,
        ..TcpConfig::default()
    }
}

/// Several of each, with transfers striped over them.
fn striped() -> TcpConfig {
    TcpConfig { connections: 4, io_threads: 2, stripe_bytes: 64 << 10, ..single() }
}

const LENGTH: usize = 4 << 20;

/// Marks the destination of a transfer that has ended, lets everything flow, and wants the marks to stay.
fn no_late_byte(link: &Link, op: Op) {
    let destination = link.destination(op);
    let marks = pattern(destination.len(), 42);
    destination.write_at(0, &marks).unwrap();
    link.relay.flow();
    // On every connection something comes after whatever was still under way; it carries the marks themselves.
    let source = if op == Op::Read { &link.remote } else { &link.local };
    source.write_at(0, &marks).unwrap();
    for _ in 0..3 {
        succeed(&link.whole(op));
    }
    assert!(bytes(destination) == marks, "bytes landed after the end");
    assert_eq!(link.local.pins(), 0);
    until("the target is quiet", || link.remote.pins() == 0);
}

/// E1: a read that is cancelled in the middle of its bytes is quiet when its status says so.
#[test]
fn e1_a_read_cancelled_midway_lands_no_byte_after_its_end() {
    for (config, passed) in [
        (single(), 0),
        (single(), 1),
        (single(), 64),
        (single(), 100_000),
        (single(), 3 << 20),
        (striped(), 1 << 20),
    ] {
        let link = Link::new(&config, LENGTH);
        link.relay.allow(Way::Down, passed);
        let status = link.whole(Op::Read);
        link.relay.wait_held(Way::Down);
        status.cancel().unwrap();
        let error = fail(&status, ErrorKind::Cancelled);
        assert!(error.message().contains("on request"), "{error}");
        assert_eq!(link.local.pins(), 0);
        no_late_byte(&link, Op::Read);
        link.works();
    }
}

/// E1: a write that is cancelled in the middle stays in progress until the target has said that it is over; what had
/// landed is part of the write.
#[test]
fn e1_a_write_cancelled_midway_ends_when_the_target_says_so() {
    for (config, passed) in
        [(single(), 0), (single(), 64), (single(), 100_000), (single(), 3 << 20), (striped(), 1 << 20)]
    {
        let link = Link::new(&config, LENGTH);
        link.relay.allow(Way::Up, passed);
        let status = link.whole(Op::Write);
        link.relay.wait_held(Way::Up);
        status.cancel().unwrap();
        // A read that is cancelled after it ends at once, and shows that the request to stop was looked at.
        if config.io_threads == 1 {
            let after = link.whole(Op::Read);
            after.cancel().unwrap();
            fail(&after, ErrorKind::Cancelled);
            assert_eq!(status.code(), StatusCode::InProgress, "the target may still write");
        }
        link.relay.flow();
        fail(&status, ErrorKind::Cancelled);
        let (got, old, new) = (bytes(&link.remote), pattern(LENGTH, 2), pattern(LENGTH, 1));
        let landed = got.iter().zip(&new).take_while(|(got, new)| got == new).count();
        if config.connections == 1 {
            assert!(got[landed..] == old[landed..], "bytes of neither side");
        }
        no_late_byte(&link, Op::Write);
        link.works();
    }
}

/// E1: what waits behind others is cancelled at once, whatever holds those up.
#[test]
fn e1_what_was_not_sent_is_cancelled_at_once() {
    let link = Link::new(&single(), LENGTH);
    link.relay.hold();
    // More than the buffers in between take.
    let first: Vec<Status> = (0..12).map(|_| link.whole(Op::Write)).collect();
    let queued: Vec<Status> = (0..20)
        .map(|at| {
            submit(&link.session, if at % 2 == 0 { Op::Read } else { Op::Write }, &[Piece::new(0, 0, 100)])
        })
        .collect();
    for status in &queued {
        status.cancel().unwrap();
        status.cancel().unwrap();
    }
    queued.iter().for_each(|status| drop(fail(status, ErrorKind::Cancelled)));
    assert!(first.iter().any(|status| status.code() == StatusCode::InProgress));
    link.relay.flow();
    first.iter().for_each(succeed);
    assert_eq!(link.local.pins(), 0);
    link.works();
}

/// E1: the others of a batch are not touched.
#[test]
fn e1_cancelling_one_leaves_its_neighbours() {
    let link = Link::new(&single(), 1 << 20);
    link.relay.hold();
    let content = bytes(&link.remote);
    let share = 1 << 18;
    let statuses: Vec<Status> = (0..4)
        .map(|at| submit(&link.session, Op::Read, &[Piece::new(at * share, at * share, share)]))
        .collect();
    statuses[1].cancel().unwrap();
    statuses[2].cancel().unwrap();
    fail(&statuses[1], ErrorKind::Cancelled);
    fail(&statuses[2], ErrorKind::Cancelled);
    let marks = bytes(&link.local);
    link.relay.flow();
    succeed(&statuses[0]);
    succeed(&statuses[3]);
    let got = bytes(&link.local);
    let share = 1 << 18;
    assert!(got[..share] == content[..share] && got[3 * share..] == content[3 * share..]);
    assert!(got[share..3 * share] == marks[share..3 * share]);
}

/// E1, S2: what has finished keeps its result, and cancelling it again is harmless.
#[test]
fn e1_what_has_finished_keeps_its_result() {
    let link = Link::new(&single(), 1000);
    for op in [Op::Read, Op::Write] {
        let status = link.whole(op);
        succeed(&status);
        status.cancel().unwrap();
        link.near.backend.cancel(status.id()).unwrap();
        assert_eq!(status.code(), StatusCode::Success);
    }
    link.relay.cut();
    let status = link.whole(Op::Read);
    let error = fail(&status, ErrorKind::PeerLost);
    status.cancel().unwrap();
    assert_eq!(status.error(), Some(error));
}

/// E1, E4: a write whose stop nobody confirms ends with its connection.
#[test]
fn e1_a_cancelled_write_ends_when_its_peer_is_lost() {
    let config = TcpConfig { peer_timeout: Duration::from_millis(600), ..single() };
    let link = Link::new(&config, LENGTH);
    link.relay.allow(Way::Up, 100_000);
    let status = link.whole(Op::Write);
    link.relay.wait_held(Way::Up);
    status.cancel().unwrap();
    fail(&status, ErrorKind::PeerLost);
    assert_eq!(link.local.pins(), 0);
}

/// E1: transfers that wait for a connection are cancelled at once.
#[test]
fn e1_what_waits_for_the_connection_is_cancelled_at_once() {
    let link = Link::new(&single(), 1000);
    link.relay.cut();
    fail(&link.whole(Op::Read), ErrorKind::PeerLost);
    link.relay.hold();
    for op in [Op::Read, Op::Write] {
        let status = link.whole(op);
        assert_eq!(status.wait(Duration::from_millis(20)), StatusCode::InProgress);
        status.cancel().unwrap();
        fail(&status, ErrorKind::Cancelled);
        assert_eq!(link.local.pins(), 0);
    }
    no_late_byte(&link, Op::Read);
}

/// E1: cancelled by many threads while many transfers run; every one ends whole or cancelled, and nothing is kept.
#[test]
fn e1_storms_of_cancellations_leave_nothing_behind() {
    for config in [single(), striped()] {
        let (near, far) = pair(&config);
        let stop = AtomicBool::new(false);
        let (whole, cancelled) = (AtomicU64::new(0), AtomicU64::new(0));
        let length = 1 << 20;
        std::thread::scope(|scope| {
            for seed in 0..4_u64 {
                let (near, far, whole, cancelled, stop) = (&near, &far, &whole, &cancelled, &stop);
                scope.spawn(move || {
                    let (local, _) = near.region(length, Access::LOCAL);
                    let (remote, desc) = far.region(length, Access::READ_WRITE);
                    let session = near.session(&local, &desc);
                    let content = pattern(length, seed);
                    remote.write_at(0, &content).unwrap();
                    let pieces: Vec<Piece> =
                        (0..64).map(|at| Piece::new(at << 14, at << 14, (1 << 14) - (at & 1))).collect();
                    for round in 0..60 {
                        let op = if round % 3 == 0 { Op::Write } else { Op::Read };
                        if op == Op::Write {
                            local.write_at(0, &content).unwrap();
                        } else {
                            local.write_at(0, &vec![0; length]).unwrap();
                        }
                        let status = submit(&session, op, &pieces);
                        std::thread::scope(|inner| {
                            if round % 4 != 3 {
                                for _ in 0..2 {
                                    inner.spawn(|| status.cancel().unwrap());
                                }
                            }
                        });
                        match finish(&status) {
                            StatusCode::Success => {
                                whole.fetch_add(1, Ordering::Relaxed);
                                let to = if op == Op::Read { &local } else { &remote };
                                let got = bytes(to);
                                for piece in &pieces {
                                    let range = usize::try_from(piece.local).unwrap()
                                        ..usize::try_from(piece.local + piece.length).unwrap();
                                    assert!(got[range.clone()] == content[range]);
                                }
                            }
                            code => {
                                assert_eq!(code, StatusCode::Failure(ErrorKind::Cancelled));
                                cancelled.fetch_add(1, Ordering::Relaxed);
                                if op == Op::Read {
                                    // Marks stay, as long as nothing else is submitted.
                                    local.write_at(0, &vec![7; length]).unwrap();
                                    std::thread::yield_now();
                                    assert!(bytes(&local).iter().all(|&byte| byte == 7), "a late byte");
                                }
                            }
                        }
                        assert_eq!(local.pins(), 0);
                    }
                    stop.store(true, Ordering::Relaxed);
                    until("the target is quiet", || remote.pins() == 0);
                });
            }
            // A transfer that nobody cancels succeeds all the time.
            scope.spawn(|| {
                let (local, _) = near.region(100_000, Access::LOCAL);
                let (remote, desc) = far.region(100_000, Access::READ_WRITE);
                let session = near.session(&local, &desc);
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let content = pattern(100_000, round);
                    remote.write_at(0, &content).unwrap();
                    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 100_000)]));
                    assert!(bytes(&local) == content);
                }
            });
        });
        assert!(whole.load(Ordering::Relaxed) > 0, "everything was cancelled");
        assert!(cancelled.load(Ordering::Relaxed) > 0, "nothing was cancelled");
    }
}

/// E2: the deadline passes, the transfer is cancelled, and its message says how long it was, how far the transfer had come, and
/// whom it was waiting for.
#[test]
fn e2_a_read_past_its_deadline_says_what_it_waited_for() {
    let link = Link::new(&single(), LENGTH);
    let after = Duration::from_millis(150);
    let whole = [Piece::new(0, 0, LENGTH as u64)];
    // Held altogether: nothing done.
    link.relay.hold();
    let status = link.session.submit(Op::Read, &whole, &deadline(after));
    let error = fail(&status, ErrorKind::Cancelled);
    for part in ["150ms", "0 of 4194304 bytes", "engine far", "silent since"] {
        assert!(error.message().contains(part), "{part:?} is not in {error}");
    }
    assert_eq!(link.local.pins(), 0);
    no_late_byte(&link, Op::Read);
    // Held in the middle: some bytes done.
    link.relay.allow(Way::Down, 1 << 20);
    let status = link.session.submit(Op::Read, &whole, &deadline(after));
    let error = fail(&status, ErrorKind::Cancelled);
    let done: u64 = error
        .message()
        .split(" of 4194304 bytes")
        .next()
        .and_then(|text| text.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap();
    assert!(done > 500_000 && done <= 1 << 20, "{error}");
    no_late_byte(&link, Op::Read);
}

/// E2, E1: a write past its deadline is told to stop, and ends when the target says so.
#[test]
fn e2_a_write_past_its_deadline_ends_when_it_is_quiet() {
    let link = Link::new(&single(), 32 << 20);
    link.relay.hold();
    let whole = [Piece::new(0, 0, 32 << 20)];
    let status = link.session.submit(Op::Write, &whole, &deadline(Duration::from_millis(100)));
    assert_eq!(status.wait(Duration::from_millis(400)), StatusCode::InProgress, "the target may still write");
    link.relay.flow();
    let error = fail(&status, ErrorKind::Cancelled);
    for part in ["100ms", "0 of 33554432 bytes", "engine far", "frames queued"] {
        assert!(error.message().contains(part), "{part:?} is not in {error}");
    }
    no_late_byte(&link, Op::Write);
}

/// E2: a deadline before the connection stands says that it waited for that.
#[test]
fn e2_a_deadline_before_the_connection_stands() {
    let link = Link::new(&single(), 1000);
    link.relay.cut();
    fail(&link.whole(Op::Read), ErrorKind::PeerLost);
    link.relay.hold();
    let options = deadline(Duration::from_millis(100));
    let status = link.session.submit(Op::Write, &[Piece::new(0, 0, 1000)], &options);
    let error = fail(&status, ErrorKind::Cancelled);
    assert!(error.message().contains("the connection to engine far"), "{error}");
}

/// E2: a deadline that does not pass changes nothing; deadlines of all sizes are taken.
#[test]
fn e2_a_deadline_that_does_not_pass_changes_nothing() {
    let link = Link::new(&striped(), LENGTH);
    let whole = [Piece::new(0, 0, LENGTH as u64)];
    for after in [PATIENCE, Duration::from_secs(u64::MAX / 1_000_000_000), Duration::MAX] {
        for op in [Op::Read, Op::Write] {
            succeed(&link.session.submit(op, &whole, &deadline(after)));
        }
    }
    // No time at all is a deadline, too.
    link.relay.hold();
    fail(&link.session.submit(Op::Read, &whole, &deadline(Duration::ZERO)), ErrorKind::Cancelled);
}

/// E2: a deadline that passes while the connection is only being asked for is seen all the same.
#[test]
fn e2_a_deadline_may_pass_before_anybody_looks() {
    let link = Link::new(&single(), 1000);
    for round in 0..200 {
        link.relay.flow();
        until("it works", || finish(&link.whole(Op::Read)).is_success());
        link.relay.cut();
        until("the loss is noticed", || !link.session.alive());
        link.relay.hold();
        let options = deadline(Duration::from_micros(round % 20));
        let status = link.session.submit(Op::Read, &[Piece::new(0, 0, 1000)], &options);
        fail(&status, ErrorKind::Cancelled);
    }
}

/// E2: many deadlines on many connections, some of which pass; the early ones are not kept waiting for the late ones.
#[test]
fn e2_deadlines_pass_in_any_order() {
    let link = Link::new(&TcpConfig { connections: 4, io_threads: 2, ..single() }, 1 << 20);
    link.relay.hold();
    let submit = |millis| {
        link.session.submit(Op::Read, &[Piece::new(0, 0, 1 << 20)], &deadline(Duration::from_millis(millis)))
    };
    let late: Vec<Status> = (0..8).map(|_| submit(3_600_000)).collect();
    let early: Vec<Status> = (0..40).map(|at| submit(200 - at * 5)).collect();
    early.iter().for_each(|status| drop(fail(status, ErrorKind::Cancelled)));
    assert!(late.iter().all(|status| status.code() == StatusCode::InProgress));
    link.relay.flow();
    late.iter().for_each(succeed);
}

/// E2: a deadline that comes while the thread sleeps without a bound wakes it, also when others came before.
#[test]
fn e2_a_deadline_is_kept_by_a_peer_that_only_keeps_alive() {
    let stage = Stage::new("far");
    let config = TcpConfig { peer_timeout: Duration::from_millis(400), ..single() };
    let near = Node::new("near", config);
    near.backend.add_peer(&stage.desc()).unwrap();
    let (local, _) = near.region(100, Access::LOCAL);
    std::thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let mut raw = stage.accept();
            let read = raw.request().unwrap();
            // Answers pings and nothing else until it is told to stop; the peer is slow, not lost.
            let stop = raw.request().unwrap();
            (read.id, stop.id)
        });
        let session = near.session(&local, &stage.memory(100));
        let options = deadline(Duration::from_millis(1500));
        let status = session.submit(Op::Read, &[Piece::new(0, 0, 100)], &options);
        let error = fail(&status, ErrorKind::Cancelled);
        assert!(error.message().contains("1.5s"), "{error}");
        let (read, stop) = playing.join().unwrap();
        assert_eq!(read, stop);
    });
}

/// E1: reads through a relay that lets a little through at a time, cancelled at every stage.
#[test]
fn e1_cancelled_at_every_stage() {
    let link = Link::new(&striped(), 256 << 10);
    for round in 0..60 {
        for op in [Op::Read, Op::Write] {
            let way = if op == Op::Read { Way::Down } else { Way::Up };
            link.relay.allow(way, round * 7000);
            let status = link.whole(op);
            let ended = status.wait(Duration::from_micros(round * 50)).is_terminal();
            status.cancel().unwrap();
            link.relay.flow();
            match finish(&status) {
                StatusCode::Success => {}
                code => assert_eq!(code, StatusCode::Failure(ErrorKind::Cancelled)),
            }
            assert!(!ended || status.code() == StatusCode::Success);
            let destination = link.destination(op);
            let marks = pattern(destination.len(), round);
            destination.write_at(0, &marks).unwrap();
            // In the other direction, so that nothing but late bytes could change the marks.
            let other = if op == Op::Read { Op::Write } else { Op::Read };
            succeed(&link.whole(other));
            assert!(bytes(destination) == marks, "round {round}, {op:?}");
        }
    }
    assert_eq!(link.local.pins(), 0);
    until("the target is quiet", || link.remote.pins() == 0);
}

/// The relay of a test is what its name says: without it, nothing is held.
#[test]
fn a_relay_that_is_dropped_cuts() {
    let Link { relay, session, local, remote, desc, near, far } = Link::new(&single(), 1000);
    drop::<Relay>(relay);
    fail(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]), ErrorKind::PeerLost);
    drop((local, remote, desc, near, far));
}
