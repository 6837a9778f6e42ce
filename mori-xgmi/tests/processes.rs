//! Two processes: handles, mappings, leases, restarts, devices that are hidden.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests, and what they found"
)]

mod support;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mori_core::{
    Access, Backend, Clock, Error, ErrorKind, MemoryDesc, Op, Piece, Region, Result, Status, TransferOptions,
};
use mori_xgmi::Completion;
use support::parent::Process;
use support::{Engine, LONG, MACHINE, PATIENT, alone, bytes_of, config, filled, pattern, stress, until};

#[test]
fn child() {
    support::child::run_if_asked();
}

/// One transfer of these pieces, over a new session.
fn transfer(engine: &Engine, local: &Region, remote: &MemoryDesc, op: Op, pieces: &[Piece]) -> Result<()> {
    let status = start(engine, local, remote, op, pieces)?;
    assert!(status.wait_with(LONG, &PATIENT).is_terminal());
    status.error().map_or(Ok(()), Err)
}

fn start(engine: &Engine, local: &Region, remote: &MemoryDesc, op: Op, pieces: &[Piece]) -> Result<Status> {
    let session = engine.backend.session(local, remote)?;
    Ok(session.submit(op, pieces, &TransferOptions::default()))
}

fn mappings() -> usize {
    MACHINE.0.report().unwrap().mappings
}

fn no_misuse(process: &Process) {
    let misuse = MACHINE.0.report().unwrap().misuse;
    assert!(misuse.is_empty(), "{misuse:?}");
    assert_eq!(process.ask("misuse").unwrap(), "[]");
}

/// An engine here and one in the child, which knows nothing of ours: it takes no part.
fn neighbours() -> (Engine, Process, String) {
    MACHINE.0.set("latency_us", "0").unwrap();
    let process = Process::start(&[]).unwrap();
    let (node, desc) = process.engine("owner", "node").unwrap();
    let engine = Engine::join("user", config(Completion::EventQuery)).unwrap();
    engine.backend.add_peer(&desc).unwrap();
    (engine, process, node)
}

#[test]
fn views_of_one_pool_never_read_each_others_bytes() {
    const VIEWS: u64 = 64;
    let _alone = alone();
    let (engine, process, node) = neighbours();
    // Views of odd lengths at odd places, with gaps between them that belong to nobody.
    let place = |view: u64| (view * 1031 + 7, 700 + view * 5);
    let length = usize::try_from(place(VIEWS).0).unwrap();
    let mut pool = pattern(1, length);
    let whole = process.ask(&format!("allocate {node} 1 {length} 3")).unwrap();
    process.store(&whole, 0, &pool).unwrap();
    let views: Vec<MemoryDesc> = (0..VIEWS)
        .map(|view| {
            let (offset, length) = place(view);
            let region = process.ask(&format!("view {whole} {offset} {length} 3")).unwrap();
            process.register(&region).unwrap()
        })
        .collect();
    let range = |view: u64| {
        let (offset, length) = place(view);
        usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap()
    };
    for (view, desc) in (0..VIEWS).zip(&views) {
        let local = filled(0, &vec![0; usize::try_from(desc.size).unwrap()]).unwrap();
        transfer(&engine, &local, desc, Op::Read, &[Piece::new(0, 0, desc.size)]).unwrap();
        assert_eq!(bytes_of(&local).unwrap(), pool[range(view)], "view {view}");
        for beyond in [Piece::new(0, desc.size, 1), Piece::new(0, 1, desc.size)] {
            let error = transfer(&engine, &local, desc, Op::Read, &[beyond]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
    assert_eq!(mappings(), 1, "one allocation is mapped once");
    for (view, desc) in (0..VIEWS).zip(&views) {
        let bytes = pattern(100 + view, usize::try_from(desc.size).unwrap());
        let local = filled(0, &bytes).unwrap();
        transfer(&engine, &local, desc, Op::Write, &[Piece::new(0, 0, desc.size)]).unwrap();
        pool[range(view)].copy_from_slice(&bytes);
    }
    assert_eq!(process.load(&whole, 0, length).unwrap(), pool, "bytes between the views have changed");
    no_misuse(&process);
}

#[test]
fn a_mapping_lasts_as_long_as_its_regions() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let local = filled(0, &[0; 64]).unwrap();
    let whole = process.ask(&format!("allocate {node} 2 1024 3")).unwrap();
    let parts: Vec<String> =
        (0..2).map(|part| process.ask(&format!("view {whole} {} 64 3", part * 100)).unwrap()).collect();
    let descs: Vec<MemoryDesc> = parts.iter().map(|part| process.register(part).unwrap()).collect();
    for desc in &descs {
        transfer(&engine, &local, desc, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    }
    assert_eq!(mappings(), 1);
    let opened = |report: mori_hip_sim::client::Report| report.calls_of("hipIpcOpenMemHandle");
    let before = opened(MACHINE.0.report().unwrap());
    process.ask(&format!("deregister {}", parts[0])).unwrap();
    let error = transfer(&engine, &local, &descs[0], Op::Read, &[Piece::new(0, 0, 64)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    transfer(&engine, &local, &descs[1], Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    assert_eq!(
        (mappings(), opened(MACHINE.0.report().unwrap())),
        (1, before),
        "the other view keeps the mapping"
    );
    process.ask(&format!("deregister {}", parts[1])).unwrap();
    // Nobody asks; the keeper looks by itself.
    until("the mapping of regions that were taken back is closed", || mappings() == 0);

    // The same memory registered again is another region; so is other memory at the same address.
    let again = process.register(&parts[0]).unwrap();
    transfer(&engine, &local, &again, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    assert_eq!(mappings(), 1);
    engine.backend.remove_peer(&again.engine_key);
    assert_eq!(mappings(), 0, "mappings go with their peer");
    no_misuse(&process);
}

#[test]
fn deregistering_waits_for_the_copies_of_other_processes() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let expected = pattern(5, 4096);
    let (region, desc) = process.memory(&node, 1, 4096, Access::READ_WRITE).unwrap();
    process.store(&region, 0, &expected).unwrap();
    let local = filled(0, &[0; 4096]).unwrap();
    let session = engine.backend.session(&local, &desc).unwrap();
    MACHINE.0.set("latency_us", "200000").unwrap();
    let status = session.submit(Op::Read, &[Piece::new(0, 0, 4096)], &TransferOptions::default());
    // Nobody polls here, and the owner waits all the same until the copy is over, but not longer.
    process.ask(&format!("close {region} 1000")).unwrap();
    process.ask(&format!("deregister {region}")).unwrap();
    process.store(&region, 0, &[0xee; 4096]).unwrap();
    MACHINE.0.set("latency_us", "0").unwrap();
    assert!(status.wait_with(LONG, &PATIENT).is_success(), "{}", status.message());
    assert_eq!(bytes_of(&local).unwrap(), expected, "the owner had its memory back before the copy was over");
    no_misuse(&process);
}

#[test]
fn a_peer_that_dies_is_lost_and_its_successor_is_another() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let (_, desc) = process.memory(&node, 1, 64, Access::READ_WRITE).unwrap();
    let local = filled(0, &[0; 64]).unwrap();
    let pieces = [Piece::new(0, 0, 64)];
    transfer(&engine, &local, &desc, Op::Write, &pieces).unwrap();
    let session = engine.backend.session(&local, &desc).unwrap();
    assert!(session.alive());
    // Under way when the peer dies: the copy ends, but nobody vouches for the bytes.
    MACHINE.0.set("latency_us", "100000").unwrap();
    let status = session.submit(Op::Read, &pieces, &TransferOptions::default());
    process.kill();
    assert!(status.wait_with(LONG, &PATIENT).is_terminal());
    assert_eq!(status.error().unwrap().kind(), ErrorKind::PeerLost);
    MACHINE.0.set("latency_us", "0").unwrap();
    assert!(!session.alive());
    let error = transfer(&engine, &local, &desc, Op::Read, &pieces).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    until("the mappings of a dead peer are closed", || mappings() == 0);

    let successor = Process::start(&[]).unwrap();
    let (node, engine_desc) = successor.engine("owner", "node").unwrap();
    engine.backend.add_peer(&engine_desc).unwrap();
    let (region, fresh) = successor.memory(&node, 1, 64, Access::READ_WRITE).unwrap();
    successor.store(&region, 0, &[6; 64]).unwrap();
    transfer(&engine, &local, &fresh, Op::Read, &pieces).unwrap();
    assert_eq!(bytes_of(&local).unwrap(), [6; 64]);
    let error = transfer(&engine, &local, &desc, Op::Read, &pieces).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    no_misuse(&successor);
}

/// Why there is no route.
fn no_route(engine: &Engine, local: &Region, remote: &MemoryDesc) -> Error {
    let error = engine.backend.route(local, remote).unwrap_err();
    assert_eq!(engine.backend.session(local, remote).err().unwrap().kind(), error.kind());
    error
}

#[test]
fn what_cannot_be_reached_says_why() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let local = filled(0, &[0; 64]).unwrap();
    let (_, desc) = process.memory(&node, 1, 64, Access::READ_WRITE).unwrap();
    engine.backend.route(&local, &desc).unwrap();

    MACHINE.0.set("peers", "0-2").unwrap();
    let error = no_route(&engine, &local, &desc);
    MACHINE.0.set("peers", "all").unwrap();
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("no peer access"), "{error}");

    process.ask("sim fault hipIpcGetMemHandle 1 801").unwrap();
    let (_, without) = process.memory(&node, 1, 64, Access::READ_WRITE).unwrap();
    let error = no_route(&engine, &local, &without);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("IPC handle"), "{error}");

    let (_, closed) = process.memory(&node, 1, 64, Access::LOCAL).unwrap();
    assert_eq!(no_route(&engine, &local, &closed).kind(), ErrorKind::AccessDenied);

    let host = Region::zeroed(64, Access::READ_WRITE).unwrap();
    let error = no_route(&engine, &host, &desc);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("host memory"), "{error}");
    assert!(engine.backend.register(&host).unwrap().is_none(), "host memory is another transport's");

    let (far, far_desc) = process.engine("far", "another-node").unwrap();
    engine.backend.add_peer(&far_desc).unwrap();
    let (_, far_memory) = process.memory(&far, 1, 64, Access::READ_WRITE).unwrap();
    let error = no_route(&engine, &local, &far_memory);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("another-node"), "{error}");
    no_misuse(&process);
}

#[test]
fn a_device_that_is_hidden_is_reached_within_its_hive() {
    let _alone = alone();
    MACHINE.0.set("visible", "0,1").unwrap();
    let sysfs = tempfile::tempdir().unwrap();
    let node = |number: u32, bus: u32, hive: u32| {
        let folder = sysfs.path().join(format!("class/kfd/kfd/topology/nodes/{number}"));
        fs::create_dir_all(&folder).unwrap();
        let text = format!("location_id {}\ndomain {}\nhive_id {hive}\n", bus << 8, 0x51a0);
        fs::write(folder.join("properties"), text).unwrap();
    };
    // Devices 0 and 2 are in one hive, 1 and 3 in another.
    (0..4).for_each(|device| node(device, device + 1, 7 + device % 2));
    let process = Process::start(&[("HIP_VISIBLE_DEVICES", "3,2")]).unwrap();
    let (owner, desc) = process.engine("owner", "node").unwrap();
    let settings = mori_xgmi::XgmiConfig { sysfs: sysfs.path().to_owned(), ..config(Completion::EventQuery) };
    let engine = Engine::join("user", settings).unwrap();
    engine.backend.add_peer(&desc).unwrap();
    let expected = pattern(3, 64);
    let (region, near) = process.memory(&owner, 1, 64, Access::READ_WRITE).unwrap();
    assert_eq!(near.device_bus_id, "51a0:03:00.0");
    process.store(&region, 0, &expected).unwrap();
    let (_, other) = process.memory(&owner, 0, 64, Access::READ_WRITE).unwrap();
    let local = filled(0, &[0; 64]).unwrap();
    transfer(&engine, &local, &near, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    assert_eq!(bytes_of(&local).unwrap(), expected);
    let error = no_route(&engine, &local, &other);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("hive"), "{error}");
    MACHINE.0.set("visible", "all").unwrap();
    no_misuse(&process);
}

#[test]
fn opening_and_closing_handles_may_fail() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let local = filled(0, &[0; 64]).unwrap();
    let (_, desc) = process.memory(&node, 1, 64, Access::READ_WRITE).unwrap();
    MACHINE.0.fault("hipIpcOpenMemHandle", 1, 999).unwrap();
    let error = transfer(&engine, &local, &desc, Op::Read, &[Piece::new(0, 0, 64)]).unwrap_err();
    assert_eq!(error.cause().map(|cause| cause.number), Some(999), "{error}");
    assert_eq!(mappings(), 0);
    transfer(&engine, &local, &desc, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    MACHINE.0.fault("hipIpcCloseMemHandle", 1, 999).unwrap();
    engine.backend.remove_peer(&desc.engine_key);
    assert_eq!(mappings(), 0, "what fails once is tried again");
    assert!(!MACHINE.0.clear().unwrap());
    no_misuse(&process);
}

#[test]
fn many_threads_start_first_transfers_while_the_owner_takes_regions_back() {
    let _alone = alone();
    let (engine, process, node) = neighbours();
    let local = filled(0, &[0; 64]).unwrap();
    let clock = Clock::system();
    let end = clock.deadline(stress());
    let (read, gone) = (AtomicU64::new(0), AtomicU64::new(0));
    while !end.passed(clock.now()) {
        let regions: Vec<(String, MemoryDesc)> =
            (0..4).map(|device| process.memory(&node, device, 64, Access::READ_WRITE).unwrap()).collect();
        std::thread::scope(|scope| {
            for (_, desc) in regions.iter().chain(&regions) {
                scope.spawn(|| {
                    let done = transfer(&engine, &local, desc, Op::Read, &[Piece::new(0, 0, 64)]);
                    match done {
                        Ok(()) => read.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                            gone.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                });
            }
            for (region, _) in &regions {
                process.ask(&format!("deregister {region}")).unwrap();
                process.ask(&format!("free {region}")).unwrap();
            }
        });
    }
    let (read, gone) = (read.into_inner(), gone.into_inner());
    println!("{read} first transfers came before the end of their region, {gone} after it");
    assert!(read > 0, "no race: {read} before, {gone} after");
    until("every mapping is closed", || mappings() == 0);
    no_misuse(&process);
    assert!(engine.backend.config().drain > Duration::ZERO);
}
