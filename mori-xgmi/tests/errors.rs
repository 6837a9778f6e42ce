//! Every call of the runtime fails once, in turn, and every copy: clear failures, nothing leaked, nothing stuck.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::sync::Arc;

use mori_core::{Backend, Error, ErrorKind, Op, Piece, Region, Result, Session, Status, TransferOptions};
use mori_xgmi::{Completion, XgmiConfig};
use support::{Engine, LONG, MACHINE, PATIENT, alone, bytes_of, config, filled, pattern};

const LENGTH: usize = 4096;
/// Three pieces that do not touch.
const PIECES: [Piece; 3] = [Piece::new(0, 0, 1000), Piece::new(1000, 2000, 1000), Piece::new(3000, 3000, 96)];

/// The memory of a workload, which is made and freed outside of it.
struct Memory {
    local: Region,
    remote: Region,
    expected: Vec<u8>,
}

fn memory() -> Memory {
    let expected = pattern(11, LENGTH);
    Memory { local: filled(1, &[0; LENGTH]).unwrap(), remote: filled(2, &expected).unwrap(), expected }
}

fn whole_run(memory: &Memory, config: &XgmiConfig) -> Result<Vec<Status>> {
    let (a, b) = (Engine::join("a", config.clone())?, Engine::join("b", config.clone())?);
    a.backend.add_peer(&b.desc)?;
    let desc = b.register(&memory.remote)?;
    let session: Arc<dyn Session> = a.backend.session(&memory.local, &desc)?;
    let mut statuses = Vec::new();
    for op in [Op::Read, Op::Write, Op::Read] {
        let status = session.submit(op, &PIECES, &TransferOptions::default());
        let code = status.wait_with(LONG, &PATIENT);
        assert!(code.is_terminal(), "a transfer is {code} after {LONG:?}");
        statuses.push(status);
    }
    if statuses.iter().all(Status::is_success) {
        let (local, remote) = (bytes_of(&memory.local)?, bytes_of(&memory.remote)?);
        for piece in PIECES {
            let range = |at: u64| usize::try_from(at).unwrap()..usize::try_from(at + piece.length).unwrap();
            assert_eq!(local[range(piece.local)], memory.expected[range(piece.remote)]);
        }
        assert_eq!(remote, memory.expected);
    }
    b.backend.deregister(memory.remote.id());
    a.backend.shutdown();
    b.backend.shutdown();
    Ok(statuses)
}

fn clear(error: &Error) {
    assert!(!error.message().is_empty());
    assert!(error.message().contains("999"), "the failure does not say what the runtime said: {error}");
    assert_eq!(error.cause().map(|cause| (cause.domain, cause.number)), Some(("hip", 999)), "{error}");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
}

fn nothing_is_left(after: &str) {
    let report = MACHINE.0.report().unwrap();
    assert_eq!((report.streams, report.events, report.mappings), (0, 0, 0), "after {after}");
    assert!(report.misuse.is_empty(), "after {after}: {:?}", report.misuse);
    assert_eq!(MACHINE.0.current_device().unwrap(), 3, "after {after} the caller's device is another one");
}

fn sweep(config: &XgmiConfig) {
    let _alone = alone();
    MACHINE.0.set_current_device(3).unwrap();
    let memory = memory();
    let before = MACHINE.0.report().unwrap().all_calls();
    assert!(whole_run(&memory, config).unwrap().iter().all(Status::is_success));
    let calls = MACHINE.0.report().unwrap().all_calls() - before;
    nothing_is_left("a run without failures");
    let mut failed = 0;
    for nth in 1..=calls {
        MACHINE.0.fault("*", nth, 999).unwrap();
        let outcome = whole_run(&memory, config);
        // The number of polls differs from run to run, so the last failures may not have come.
        MACHINE.0.clear().unwrap();
        let errors: Vec<Error> = match outcome {
            Err(error) => vec![error],
            Ok(statuses) => statuses.iter().filter_map(Status::error).collect(),
        };
        assert!(errors.len() <= 1, "one failing call, {nth}, made {errors:?}");
        failed += errors.len();
        errors.iter().for_each(clear);
        nothing_is_left(&format!("the failure of call {nth}"));
        assert!(memory.local.pins() == 0 && memory.remote.pins() == 0, "pins are left after call {nth}");
    }
    assert!(failed as u64 > calls / 4, "only {failed} of {calls} failing calls were noticed");
    assert!(whole_run(&memory, config).unwrap().iter().all(Status::is_success));
}

#[test]
fn every_call_fails_once_without_a_notifier() {
    sweep(&config(Completion::EventQuery));
}

#[test]
fn every_call_fails_once_with_callbacks() {
    sweep(&config(Completion::HostCallback));
}

#[test]
fn every_call_fails_once_with_pieces_in_one_call() {
    sweep(&XgmiConfig { batch_threshold: 2, ..config(Completion::EventQuery) });
}

#[test]
fn a_copy_that_fails_on_the_device_fails_its_transfer() {
    let _alone = alone();
    MACHINE.0.set_current_device(3).unwrap();
    let memory = memory();
    for completion in [Completion::EventQuery, Completion::HostCallback] {
        for nth in 1..=9 {
            MACHINE.0.fault_later(nth, 999).unwrap();
            let statuses = whole_run(&memory, &config(completion)).unwrap();
            let errors: Vec<_> = statuses.iter().map(Status::error).collect();
            for (index, error) in (0..).zip(&errors) {
                // Three copies make one transfer; a write that failed leaves its target as it was, which is what it had.
                assert_eq!(error.is_some(), index == (nth - 1) / 3, "{completion:?}, copy {nth}: {errors:?}");
                error.iter().for_each(clear);
            }
            nothing_is_left(&format!("the failure of copy {nth}"));
        }
    }
}

#[test]
fn a_failure_in_the_middle_ends_when_the_queued_copies_are_over() {
    let _alone = alone();
    let memory = memory();
    let (a, b) = (
        Engine::join("a", config(Completion::EventQuery)).unwrap(),
        Engine::join("b", config(Completion::EventQuery)).unwrap(),
    );
    a.backend.add_peer(&b.desc).unwrap();
    let desc = b.register(&memory.remote).unwrap();
    let session = a.backend.session(&memory.local, &desc).unwrap();
    MACHINE.0.hold(memory.remote.address(), true).unwrap();
    MACHINE.0.fault("hipMemcpyAsync", 3, 999).unwrap();
    let status = session.submit(Op::Read, &PIECES, &TransferOptions::default());
    for _ in 0..20 {
        // Two copies are on their way, so it has not failed yet, and the memory is in use.
        assert!(!status.poll().is_terminal());
        std::thread::yield_now();
    }
    assert_eq!((memory.local.pins(), memory.remote.pins()), (1, 1));
    MACHINE.0.hold(memory.remote.address(), false).unwrap();
    assert!(status.wait_with(LONG, &PATIENT).is_terminal());
    let error = status.error().unwrap();
    clear(&error);
    assert!(error.message().contains("copy 2 of 3"), "{error}");
    assert_eq!(
        bytes_of(&memory.local).unwrap()[..1000],
        memory.expected[..1000],
        "the first copy was under way"
    );
    assert_eq!((memory.local.pins(), memory.remote.pins()), (0, 0));
}
