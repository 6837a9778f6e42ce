//! How often waits ask the device, and when they return (contract W6, W8–W10).

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Backend, Clock, Op, Piece, Region, Session, Status, StatusCode, TransferOptions, WaitPolicy,
};
use mori_xgmi::{Completion, XgmiConfig};
use support::{Engine, LONG, MACHINE, PATIENT, alone, bytes_of, config, filled, pattern};

const LENGTH: usize = 4096;

struct Pair {
    session: Arc<dyn Session>,
    local: Region,
    remote: Region,
    expected: Vec<u8>,
    _engines: [Engine; 2],
}

/// Two engines on two devices whose copies take three milliseconds. The housekeeping is out of the way.
fn pair(completion: Completion) -> Pair {
    MACHINE.0.set("latency_us", "3000").unwrap();
    let config = XgmiConfig {
        housekeeping: Duration::from_secs(3600),
        grace: Duration::from_secs(3600),
        ..config(completion)
    };
    let engines = [Engine::join("a", config.clone()).unwrap(), Engine::join("b", config).unwrap()];
    engines[0].backend.add_peer(&engines[1].desc).unwrap();
    let expected = pattern(7, LENGTH);
    let (local, remote) = (filled(0, &[0; LENGTH]).unwrap(), filled(1, &expected).unwrap());
    let desc = engines[1].register(&remote).unwrap();
    let session = engines[0].backend.session(&local, &desc).unwrap();
    Pair { session, local, remote, expected, _engines: engines }
}

impl Pair {
    fn read(&self) -> Status {
        self.session.submit(Op::Read, &[Piece::new(0, 0, LENGTH as u64)], &TransferOptions::default())
    }

    fn arrived(&self) {
        assert_eq!(bytes_of(&self.local).unwrap(), self.expected);
    }
}

fn calls(name: &str) -> u64 {
    MACHINE.0.report().unwrap().calls_of(name)
}

#[test]
fn a_bounded_wait_polls_exactly_twice_and_is_right_at_its_deadline() {
    let _alone = alone();
    let pair = pair(Completion::EventQuery);
    let bound = Duration::from_millis(500);
    let (queries, clock) = (calls("hipEventQuery"), Clock::system());
    let status = pair.read();
    let before = clock.now();
    assert_eq!(status.wait(bound), StatusCode::Success);
    assert!(clock.now() - before >= bound, "the wait has polled before its deadline");
    assert_eq!(calls("hipEventQuery") - queries, 2);
    assert_eq!(calls("hipEventSynchronize"), 0);
    pair.arrived();
}

#[test]
fn a_wait_of_zero_polls_once() {
    let _alone = alone();
    let pair = pair(Completion::EventQuery);
    MACHINE.0.hold(pair.remote.address(), true).unwrap();
    let status = pair.read();
    let queries = calls("hipEventQuery");
    for round in 1..4 {
        assert_eq!(status.wait(Duration::ZERO), StatusCode::InProgress);
        assert_eq!(calls("hipEventQuery") - queries, round);
    }
    MACHINE.0.hold(pair.remote.address(), false).unwrap();
    assert_eq!(status.wait_with(LONG, &PATIENT), StatusCode::Success);
    pair.arrived();
}

#[test]
fn with_back_off_or_callbacks_a_bounded_wait_returns_long_before_its_deadline() {
    let _alone = alone();
    for (completion, policy) in
        [(Completion::EventQuery, &PATIENT), (Completion::HostCallback, &WaitPolicy::DEFAULT)]
    {
        let pair = pair(completion);
        let (queries, clock) = (calls("hipEventQuery"), Clock::system());
        let status = pair.read();
        assert_eq!(status.has_notifier(), completion == Completion::HostCallback);
        let before = clock.now();
        assert_eq!(status.wait_with(LONG, policy), StatusCode::Success);
        assert!(clock.now() - before < LONG / 2, "{completion:?}");
        if completion == Completion::HostCallback {
            // The waiter's one up front, and the notifier's.
            assert_eq!(calls("hipEventQuery") - queries, 2);
        }
        pair.arrived();
    }
}

#[test]
fn an_unbounded_wait_synchronises_and_lets_others_poll() {
    let _alone = alone();
    let pair = pair(Completion::EventQuery);
    let synchronised = calls("hipEventSynchronize");
    MACHINE.0.hold(pair.remote.address(), true).unwrap();
    let status = pair.read();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| status.wait(None));
        support::until("the waiter synchronises", || calls("hipEventSynchronize") > synchronised);
        // With the waiter inside the runtime, polls return.
        for _ in 0..3 {
            assert_eq!(status.poll(), StatusCode::InProgress);
            assert_eq!(status.wait(Duration::from_millis(1)), StatusCode::InProgress);
        }
        assert!(!waiter.is_finished());
        MACHINE.0.hold(pair.remote.address(), false).unwrap();
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    });
    assert_eq!(calls("hipEventSynchronize") - synchronised, 1);
    pair.arrived();
}

#[test]
fn the_older_way_of_calling_back_serves_as_well() {
    let _alone = alone();
    let pair = pair(Completion::HostCallback);
    let (older, queries) = (calls("hipStreamAddCallback"), calls("hipEventQuery"));
    MACHINE.0.fault("hipLaunchHostFunc", 1, 801).unwrap();
    let status = pair.read();
    assert_eq!(status.wait(LONG), StatusCode::Success);
    assert_eq!((calls("hipStreamAddCallback") - older, calls("hipEventQuery") - queries), (1, 2));
    pair.arrived();
}

#[test]
fn a_callback_that_is_refused_costs_only_time() {
    let _alone = alone();
    let pair = pair(Completion::HostCallback);
    // With a failing callback nothing is lost but time; here the keeper is far away, so a poll finds the end.
    MACHINE.0.fault("hipLaunchHostFunc", 1, 999).unwrap();
    let status = pair.read();
    support::until("a transfer whose callback was refused ends by polls", || status.poll().is_terminal());
    assert!(status.is_success(), "{}", status.message());
    pair.arrived();
}
