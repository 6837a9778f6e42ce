//! Many pieces: in one call of the runtime's where it has the function, piece by piece where it has not, and right in both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use mori_core::{Access, Backend, ErrorKind, Op, Piece, Region, Status, TransferOptions};
use mori_hip_sim::client::Simulation;
use mori_xgmi::{Completion, Runtime, XgmiConfig};
use support::{Engine, LONG, MACHINE, PATIENT, alone, config, pattern};

const BATCH: &str = "hipMemcpyBatchAsync";
const SINGLE: &str = "hipMemcpyAsync";

/// Two engines on a machine, with memory that many pieces fit.
struct Pair {
    simulation: Simulation,
    runtime: Runtime,
    a: Engine,
    _b: Engine,
    local: Region,
    remote: Region,
    desc: mori_core::MemoryDesc,
    pieces: Vec<Piece>,
}

impl Pair {
    /// With `count` pieces that do not touch, the remote ones in the opposite order.
    fn new((simulation, runtime): &(Simulation, Runtime), count: u64, threshold: usize) -> Self {
        let config = XgmiConfig {
            library: Some(simulation.library().to_owned()),
            batch_threshold: threshold,
            ..config(Completion::EventQuery)
        };
        let (a, b) = (Engine::join("a", config.clone()).unwrap(), Engine::join("b", config).unwrap());
        a.backend.add_peer(&b.desc).unwrap();
        let length = usize::try_from(count * 8).unwrap();
        let memory = |device| runtime.allocate(device, length, Access::READ_WRITE).unwrap();
        let (local, remote) = (memory(0), memory(1));
        let desc = b.register(&remote).unwrap();
        let pieces =
            (0..count).map(|index| Piece::new(index * 8, (count - 1 - index) * 8, 1 + index % 7)).collect();
        let (simulation, runtime) = (simulation.clone(), runtime.clone());
        Self { simulation, runtime, a, _b: b, local, remote, desc, pieces }
    }

    fn submit(&self, op: Op) -> Status {
        let session = self.a.backend.session(&self.local, &self.desc).unwrap();
        session.submit(op, &self.pieces, &TransferOptions::default())
    }

    fn bytes(&self, region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; region.len()];
        self.runtime.download(region, 0, &mut bytes).unwrap();
        bytes
    }

    fn calls(&self, name: &str) -> u64 {
        self.simulation.report().unwrap().calls_of(name)
    }

    /// Both directions, every byte. Says how often each way of copying was called.
    fn works(&self) -> (u64, u64) {
        let before = (self.calls(BATCH), self.calls(SINGLE));
        for (seed, op) in [(1, Op::Read), (2, Op::Write)] {
            let (mut here, mut there) =
                (pattern(seed, self.local.len()), pattern(seed + 10, self.remote.len()));
            self.runtime.upload(&self.local, 0, &here).unwrap();
            self.runtime.upload(&self.remote, 0, &there).unwrap();
            let status = self.submit(op);
            assert!(status.wait_with(LONG, &PATIENT).is_success(), "{}", status.message());
            for piece in &self.pieces {
                let (local, remote, length) =
                    (piece.local as usize, piece.remote as usize, piece.length as usize);
                match op {
                    Op::Read => {
                        here[local..local + length].copy_from_slice(&there[remote..remote + length]);
                    }
                    Op::Write => {
                        there[remote..remote + length].copy_from_slice(&here[local..local + length]);
                    }
                }
            }
            assert!(self.bytes(&self.local) == here && self.bytes(&self.remote) == there, "{op:?}");
        }
        (self.calls(BATCH) - before.0, self.calls(SINGLE) - before.1)
    }
}

#[test]
fn many_pieces_are_one_call_from_the_threshold_on() {
    let _alone = alone();
    for (count, threshold, calls) in [
        (64, 32, (2, 0)),
        (32, 32, (2, 0)),
        (31, 32, (0, 62)),
        (2, 2, (2, 0)),
        // More than fit one call.
        (5000, 32, (10, 0)),
        (1000, usize::MAX, (0, 2000)),
    ] {
        let pair = Pair::new(&MACHINE, count, threshold);
        assert_eq!(pair.works(), calls, "{count} pieces, threshold {threshold}");
    }
}

#[test]
fn a_library_without_the_function_copies_piece_by_piece() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let simulation = Simulation::open_without(BATCH, folder.path()).unwrap();
    let runtime = Runtime::load(Some(simulation.library())).unwrap();
    assert!(runtime.optional_functions().contains(&(BATCH, false)));
    assert!(MACHINE.1.optional_functions().contains(&(BATCH, true)));
    let pair = Pair::new(&(simulation.clone(), runtime), 100, 2);
    assert_eq!(pair.works(), (0, 200));
    drop(pair);
    assert!(simulation.report().unwrap().misuse.is_empty());
}

#[test]
fn a_library_without_a_required_function_is_refused_with_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let simulation = Simulation::open_without("hipEventQuery", folder.path()).unwrap();
    let error = Runtime::load(Some(simulation.library())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for part in ["it has no symbol hipEventQuery", "its version is 900000000"] {
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn a_function_that_is_not_supported_here_makes_way_for_single_copies() {
    let _alone = alone();
    // On the first call, and on a later one of the same transfer.
    for (nth, calls) in [(1, (1 + 5, 5000)), (3, (3 + 5, 5000 - 2 * 1024))] {
        let pair = Pair::new(&MACHINE, 5000, 2);
        MACHINE.0.fault(BATCH, nth, 801).unwrap();
        assert_eq!(pair.works(), calls);
    }
}

#[test]
fn a_failing_call_fails_the_transfer_when_what_it_has_queued_is_over() {
    let _alone = alone();
    for nth in [1, 2] {
        let pair = Pair::new(&MACHINE, 2000, 2);
        let before = pair.runtime.clone();
        let content = pattern(3, pair.remote.len());
        before.upload(&pair.local, 0, &vec![0; pair.local.len()]).unwrap();
        before.upload(&pair.remote, 0, &content).unwrap();
        MACHINE.0.hold(pair.remote.address(), true).unwrap();
        MACHINE.0.fault(BATCH, nth, 999).unwrap();
        let status = pair.submit(Op::Read);
        for _ in 0..20 {
            // Half of the call's copies are on their way, so it has not failed yet, and the memory is in use.
            assert!(!status.poll().is_terminal());
            std::thread::yield_now();
        }
        assert_eq!((pair.local.pins(), pair.remote.pins()), (1, 1));
        MACHINE.0.hold(pair.remote.address(), false).unwrap();
        assert!(status.wait_with(LONG, &PATIENT).is_terminal());
        let error = status.error().unwrap();
        assert_eq!((error.kind(), error.cause().map(|cause| cause.number)), (ErrorKind::Device, Some(999)));
        let index = if nth == 1 { 512 } else { 1024 + (2000 - 1024) / 2 };
        assert!(error.message().contains(&format!("copy {index} of 2000 was not queued")), "{error}");
        // What was queued is there, and nothing else will come.
        let first = pair.pieces[0];
        assert_eq!(pair.bytes(&pair.local)[0], content[first.remote as usize]);
        assert_eq!((pair.local.pins(), pair.remote.pins()), (0, 0));
        // The next transfer works.
        assert_eq!(pair.works().1, 0);
    }
    let report = MACHINE.0.report().unwrap();
    assert_eq!((report.streams, report.events, report.mappings, report.allocations), (0, 0, 0, 0));
    assert!(report.misuse.is_empty(), "{:?}", report.misuse);
}
