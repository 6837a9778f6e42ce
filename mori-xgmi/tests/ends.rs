//! Transfers whose device does not move: they end as failures only when it has (contract E1, E4), except by a shutdown, which
//! says so.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::time::Duration;

use mori_core::{
    Backend, Clock, ErrorKind, MemoryDesc, Op, Piece, Region, Status, StatusCode, Timeout, TransferOptions,
};
use mori_xgmi::{Completion, XgmiConfig};
use support::{Engine, LONG, MACHINE, PATIENT, alone, bytes_of, config, filled, until};

struct Held {
    a: Engine,
    b: Engine,
    local: Region,
    remote: Region,
    desc: MemoryDesc,
    status: Status,
}

/// A read that waits on its stream.
fn held(config: &XgmiConfig) -> Held {
    let (a, b) = (Engine::join("a", config.clone()).unwrap(), Engine::join("b", config.clone()).unwrap());
    a.backend.add_peer(&b.desc).unwrap();
    let (local, remote) = (filled(0, &[1; 64]).unwrap(), filled(1, &[2; 64]).unwrap());
    let desc = b.register(&remote).unwrap();
    MACHINE.0.hold(remote.address(), true).unwrap();
    let session = a.backend.session(&local, &desc).unwrap();
    let status = session.submit(Op::Read, &[Piece::new(0, 0, 64)], &TransferOptions::default());
    Held { a, b, local, remote, desc, status }
}

impl Held {
    /// Nothing has ended, and the memory is in use.
    fn goes_on(&self) {
        for _ in 0..5 {
            assert_eq!(self.status.poll(), StatusCode::InProgress);
            std::thread::yield_now();
        }
        assert_eq!((self.local.pins(), self.remote.pins()), (1, 1));
        let busy = self.remote.close(Timeout::Poll, &Clock::system()).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
    }

    fn release(&self) {
        MACHINE.0.hold(self.remote.address(), false).unwrap();
    }

    fn fails_as(&self, kind: ErrorKind) {
        assert_eq!(
            self.status.wait_with(LONG, &PATIENT),
            StatusCode::Failure(kind),
            "{}",
            self.status.message()
        );
        assert_eq!((self.local.pins(), self.remote.pins()), (0, 0));
    }
}

#[test]
fn an_event_that_answers_with_an_error_does_not_end_copies_that_run() {
    let _alone = alone();
    for call in ["hipEventQuery", "hipEventSynchronize"] {
        let held = held(&XgmiConfig { housekeeping: LONG, ..config(Completion::EventQuery) });
        MACHINE.0.fault(call, 1, 999).unwrap();
        if call == "hipEventSynchronize" {
            held.a.backend.block_on(held.status.id());
        }
        held.goes_on();
        held.release();
        held.fails_as(ErrorKind::Device);
        assert_eq!(held.status.error().unwrap().cause().map(|cause| cause.number), Some(999));
        assert!(!MACHINE.0.clear().unwrap(), "the failure has not come");
    }
}

#[test]
fn an_event_that_is_not_recorded_leaves_the_stream_to_ask() {
    let _alone = alone();
    let (a, b) = (
        Engine::join("a", config(Completion::EventQuery)),
        Engine::join("b", config(Completion::EventQuery)),
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    a.backend.add_peer(&b.desc).unwrap();
    let (local, remote) = (filled(0, &[1; 64]).unwrap(), filled(1, &[2; 64]).unwrap());
    let desc = b.register(&remote).unwrap();
    let session = a.backend.session(&local, &desc).unwrap();
    MACHINE.0.hold(remote.address(), true).unwrap();
    MACHINE.0.fault("hipEventRecord", 1, 999).unwrap();
    let status = session.submit(Op::Read, &[Piece::new(0, 0, 64)], &TransferOptions::default());
    let held = Held { a, b, local, remote, desc, status };
    held.goes_on();
    held.release();
    // An unbounded wait has no event to synchronise on, and polls.
    assert_eq!(held.status.wait(None), StatusCode::Failure(ErrorKind::Device));
}

#[test]
fn the_transfers_of_a_removed_peer_end_when_they_are_quiet() {
    let _alone = alone();
    for completion in [Completion::EventQuery, Completion::HostCallback] {
        let held = held(&config(completion));
        held.a.backend.remove_peer(&held.b.desc.key);
        held.goes_on();
        held.release();
        held.fails_as(ErrorKind::PeerLost);
        assert!(held.status.message().contains("removed"), "{}", held.status.message());
    }
}

#[test]
fn the_transfers_of_a_restarted_peer_end_when_they_are_quiet() {
    let _alone = alone();
    let held = held(&config(Completion::EventQuery));
    let again = Engine::join("b", config(Completion::EventQuery)).unwrap();
    held.a.backend.add_peer(&again.desc).unwrap();
    held.goes_on();
    held.release();
    held.fails_as(ErrorKind::PeerLost);
    let stale = held.a.backend.session(&held.local, &held.desc).err().unwrap();
    assert_eq!(stale.kind(), ErrorKind::NotFound, "{stale}");
    let fresh = filled(1, &[3; 64]).unwrap();
    let desc = again.register(&fresh).unwrap();
    let session = held.a.backend.session(&held.local, &desc).unwrap();
    let status = session.submit(Op::Read, &[Piece::new(0, 0, 64)], &TransferOptions::default());
    assert!(status.wait_with(LONG, &PATIENT).is_success());
    assert_eq!(bytes_of(&held.local).unwrap(), [3; 64]);
}

#[test]
fn a_shutdown_before_the_device_moves_says_so_and_keeps_the_memory() {
    let _alone = alone();
    for completion in [Completion::EventQuery, Completion::HostCallback] {
        let held = held(&XgmiConfig { shutdown: Duration::from_millis(20), ..config(completion) });
        held.a.backend.shutdown();
        assert_eq!(held.status.code(), StatusCode::Failure(ErrorKind::Device));
        assert!(held.status.message().contains("may still land"), "{}", held.status.message());
        let words = held.status.message();
        assert_eq!((held.local.pins(), held.remote.pins()), (1, 1), "the device may still write");
        held.release();
        until("the memory is free when the device has moved", || {
            held.local.pins() == 0 && held.remote.pins() == 0
        });
        assert_eq!(held.status.message(), words);
        drop(held);
        until("everything is given back", || {
            let report = MACHINE.0.report().unwrap();
            (report.streams, report.events, report.allocations) == (0, 0, 0)
        });
        assert!(MACHINE.0.report().unwrap().misuse.is_empty());
    }
}

#[test]
fn a_transfer_that_nobody_polls_is_given_back_at_once_and_completed_after_its_grace() {
    let _alone = alone();
    let held = held(&XgmiConfig { grace: LONG, ..config(Completion::EventQuery) });
    held.release();
    until("the pins come back", || held.local.pins() == 0 && held.remote.pins() == 0);
    assert_eq!(held.status.code(), StatusCode::InProgress, "only a poll says so");
    assert_eq!(held.status.poll(), StatusCode::Success);

    let held = self::held(&XgmiConfig { grace: Duration::ZERO, ..config(Completion::EventQuery) });
    held.release();
    until("the status completes by itself", || held.status.code() == StatusCode::Success);
}

#[test]
fn a_full_table_of_events_is_an_answer() {
    let _alone = alone();
    let held = held(&XgmiConfig { events_per_device: 3, ..config(Completion::EventQuery) });
    let session = held.a.backend.session(&held.local, &held.desc).unwrap();
    let submit = || session.submit(Op::Read, &[Piece::new(0, 0, 64)], &TransferOptions::default());
    let more = [submit(), submit()];
    let refused = submit();
    assert_eq!(refused.code(), StatusCode::Failure(ErrorKind::ResourceExhausted));
    assert!(refused.message().contains("events_per_device"), "{}", refused.message());
    held.release();
    for status in more.iter().chain([&held.status]) {
        assert!(status.wait_with(LONG, &PATIENT).is_success());
    }
    // Full of finished ones that nobody has polled is not full.
    for _ in 0..50 {
        let last = submit();
        until("the device gets there", || {
            last.poll();
            !last.code().is_failure() && last.code().is_terminal()
        });
    }
}
