//! Two processes: what is stopped, killed, started anew, taken back, or another one than it says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Access, Backend, Clock, Deadline, ErrorKind, MemoryDesc, Notify, Op, Piece, Region, Session, Status,
    TransferOptions, wait_all,
};
use mori_shm::Obstacle;
use support::child::config;
use support::parent::Process;
use support::relay::{Relay, socket_name};
use support::{Engine, LONG, bytes_of, transfer, until};

#[test]
fn child() {
    support::child::run_if_asked();
}

const LENGTH: usize = 8 << 20;

/// An engine here, and one in a child with memory that is to be used from here.
struct Pair {
    here: Engine,
    local: Region,
    process: Process,
    region: String,
    remote: MemoryDesc,
    session: Arc<dyn Session>,
}

impl Pair {
    fn new(mode: &str) -> Self {
        let here = Engine::join("here", config(mode, "-")).unwrap();
        let process = Process::start().unwrap();
        let (node, desc) = process.engine("there", mode, 1).unwrap();
        here.backend.add_peer(&desc).unwrap();
        let (region, remote) = process.memory(&node, LENGTH, Access::READ_WRITE).unwrap();
        let local = Region::from_vec(vec![0; LENGTH], Access::LOCAL).unwrap();
        let session = here.backend.session(&local, &remote).unwrap();
        Self { here, local, process, region, remote, session }
    }

    fn whole(&self, op: Op) -> Status {
        self.session.submit(op, &[Piece::new(0, 0, LENGTH as u64)], &TransferOptions::default())
    }
}

fn lost(status: &Status) {
    assert!(status.wait(LONG).is_terminal());
    assert_eq!(status.error().unwrap().kind(), ErrorKind::PeerLost, "{}", status.message());
}

fn notify(message: &[u8], on_failure: bool) -> TransferOptions {
    TransferOptions { notify: Some(Notify { message: message.to_vec(), on_failure }), ..Default::default() }
}

#[test]
fn a_stopped_target_delays_no_transfer_but_takes_no_message() {
    for mode in ["default", "threads"] {
        let pair = Pair::new(mode);
        pair.process.store(&pair.region, 0, b"before").unwrap();
        pair.process.stop();
        transfer(&*pair.session, Op::Read, &[Piece::new(0, 0, LENGTH as u64)]).unwrap();
        assert_eq!(&bytes_of(&pair.local)[..6], b"before");
        pair.local.write_at(0, b"behind").unwrap();
        transfer(&*pair.session, Op::Write, &[Piece::new(0, 0, 4096)]).unwrap();
        let told = pair.session.submit(Op::Write, &[Piece::new(0, 0, 64)], &notify(b"m", false));
        lost(&told);
        pair.process.go_on();
        assert_eq!(pair.process.load(&pair.region, 0, 6).unwrap(), b"behind");
        until("a lost connection is made anew", || {
            transfer(&*pair.session, Op::Read, &[Piece::new(0, 0, 64)]).is_ok()
        });
    }
}

#[test]
fn messages_arrive_in_another_process_after_the_bytes() {
    let pair = Pair::new("default");
    for (round, length) in [64_u64, LENGTH as u64].into_iter().enumerate() {
        let message = format!("round {round}");
        pair.local.write_at(length - 1, &[round as u8 + 1]).unwrap();
        let told =
            pair.session.submit(Op::Write, &[Piece::new(0, 0, length)], &notify(message.as_bytes(), false));
        let found = pair.process.ask("inbox 1").unwrap();
        assert_eq!(found, support::child::to_hex(message.as_bytes()));
        assert_eq!(pair.process.load(&pair.region, length - 1, 1).unwrap(), [round as u8 + 1]);
        assert!(told.wait(LONG).is_success(), "{}", told.message());
    }
}

#[test]
fn a_target_that_dies_is_lost_and_its_successor_is_another() {
    for mode in ["default", "threads"] {
        let pair = Pair::new(mode);
        let statuses: Vec<Status> =
            (0..40).map(|index| pair.whole(if index % 2 == 0 { Op::Read } else { Op::Write })).collect();
        pair.process.kill();
        let outcome = wait_all(&statuses, LONG);
        assert!(outcome.all_quiet());
        for status in &statuses {
            // Those at the front may have been through.
            if let Some(error) = status.error() {
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            }
        }
        // No late byte: the buffer is ours again.
        pair.local.write_at(0, &vec![0xaa; LENGTH]).unwrap();
        for op in [Op::Read, Op::Write] {
            lost(&pair.whole(op));
            let small = pair.session.submit(op, &[Piece::new(0, 0, 64)], &TransferOptions::default());
            lost(&small);
        }
        assert!(bytes_of(&pair.local).iter().all(|byte| *byte == 0xaa));
        assert!(!pair.session.alive());
        let error = pair.here.backend.route(&pair.local, &pair.remote).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(pair.here.backend.obstacle(&"there".into()), Some(Obstacle::NobodyThere));

        let successor = Process::start().unwrap();
        let (node, desc) = successor.engine("there", mode, 2).unwrap();
        pair.here.backend.add_peer(&desc).unwrap();
        let (region, fresh) = successor.memory(&node, 64, Access::READ_WRITE).unwrap();
        successor.store(&region, 0, &[7; 64]).unwrap();
        let session = pair.here.backend.session(&pair.local, &fresh).unwrap();
        transfer(&*session, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
        assert_eq!(bytes_of(&pair.local)[..64], [7; 64]);
        // What was meant for the earlier one reaches neither.
        let stale = pair.here.backend.session(&pair.local, &pair.remote).err().unwrap();
        assert_eq!(stale.kind(), ErrorKind::NotFound, "{stale}");
        lost(&pair.whole(Op::Write));
    }
}

/// Memory of this process that a child writes to all the time.
struct Flooded {
    here: Engine,
    region: Region,
    desc: MemoryDesc,
    process: Process,
    node: String,
    theirs: String,
}

impl Flooded {
    fn new(mode: &str) -> Self {
        let here = Engine::join("here", config("default", "-")).unwrap();
        let process = Process::start().unwrap();
        let (node, _) = process.engine("there", mode, 1).unwrap();
        let desc = support::child::to_hex(&here.desc.pack());
        process.ask(&format!("add_peer {node} {desc}")).unwrap();
        let (theirs, _) = process.memory(&node, 1 << 20, Access::LOCAL).unwrap();
        process.store(&theirs, 0, &vec![0xee; 1 << 20]).unwrap();
        let (region, desc) = here.memory(1 << 20).unwrap();
        Self { here, region, desc, process, node, theirs }
    }

    /// The child begins; this returns when bytes have arrived.
    fn flood(&self, region: &Region, desc: &MemoryDesc, length: u64) {
        let desc = support::child::to_hex(&desc.pack());
        let (node, theirs) = (&self.node, &self.theirs);
        self.process.ask(&format!("traffic {node} write {theirs} {desc} 0 0 {length}")).unwrap();
        let mut byte = [0];
        until("the child writes", || {
            region.read_at(0, &mut byte).unwrap();
            byte == [0xee]
        });
    }
}

/// From here on the memory is the owner's alone: takes the region back, marks it, and looks whether the marks stay.
fn take_back(here: &Engine, region: &Region, meanwhile: impl FnOnce()) {
    region.close(LONG, &Clock::system()).unwrap();
    here.backend.deregister(region.id());
    let marks = vec![0x11; region.len()];
    region.write_at(0, &marks).unwrap();
    meanwhile();
    for _ in 0..20 {
        assert!(bytes_of(region) == marks, "bytes landed after the region was taken back");
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

#[test]
fn nothing_lands_in_a_region_that_is_taken_back_under_traffic() {
    for (mode, length) in [("default", 4096), ("default", 1 << 20), ("threads", 1 << 20)] {
        let flooded = Flooded::new(mode);
        for _ in 0..15 {
            let (region, desc) = flooded.here.memory(1 << 20).unwrap();
            flooded.flood(&region, &desc, length);
            take_back(&flooded.here, &region, || {});
            let end = flooded.process.ask("stop").unwrap_err();
            assert_eq!(end.kind(), ErrorKind::NotFound, "{end}");
        }
    }
}

/// E3: a region is not closed while a submitter is stopped in the middle of a copy to it; closed, it stays as it is.
#[test]
fn a_submitter_that_is_stopped_writes_nothing_late() {
    let clock = Clock::system();
    for (mode, length) in [("default", 4096), ("default", 1 << 20), ("threads", 1 << 20)] {
        for _ in 0..6 {
            let flooded = Flooded::new(mode);
            flooded.flood(&flooded.region, &flooded.desc, length);
            flooded.process.stop();
            let closed = flooded.region.close(Duration::from_millis(20), &clock);
            if let Err(busy) = closed {
                assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
                // It stays open, and goes on being written to.
                flooded.region.write_at(0, &[0]).unwrap();
                flooded.process.go_on();
                until("the child writes again", || bytes_of(&flooded.region)[0] == 0xee);
                flooded.process.stop();
                flooded.process.signal(rustix::process::Signal::CONT);
            }
            take_back(&flooded.here, &flooded.region, || flooded.process.go_on());
            let end = flooded.process.ask("stop").unwrap_err();
            assert_eq!(end.kind(), ErrorKind::NotFound, "{end}");
        }
    }
}

#[test]
fn a_submitter_that_dies_is_not_waited_for() {
    let clock = Clock::system();
    for mode in ["default", "threads"] {
        for _ in 0..4 {
            let flooded = Flooded::new(mode);
            flooded.flood(&flooded.region, &flooded.desc, 1 << 20);
            flooded.process.kill();
            let soon = clock.deadline(Duration::from_millis(400));
            take_back(&flooded.here, &flooded.region, || {});
            assert!(soon == Deadline::Never || !soon.passed(clock.now()), "it was waited for");
        }
    }
}

#[test]
fn a_submitter_that_dies_fails_what_it_has_announced() {
    let flooded = Flooded::new("threads");
    // The child's transfer waits, so that it dies with it.
    flooded.here.backend.suspend(LONG).unwrap();
    let session = flooded.process.ask(&format!(
        "announce {} {} {}",
        flooded.node,
        flooded.theirs,
        support::child::to_hex(&flooded.desc.pack())
    ));
    session.unwrap();
    flooded.process.kill();
    let found = flooded.here.inbox.wait(LONG).unwrap();
    assert_eq!(found.message, b"announced");
    assert_eq!(found.error.unwrap().kind(), ErrorKind::PeerLost);
    assert_eq!(flooded.here.inbox.poll(), None);
    flooded.here.backend.resume();
}

#[test]
fn keys_ranges_and_rights_are_checked_by_the_owner() {
    let pair = Pair::new("default");
    let refused = |desc: &MemoryDesc, op, piece| {
        let session = pair.here.backend.session(&pair.local, desc)?;
        transfer(&*session, op, &[piece])
    };
    let mut guessed = pair.remote.clone();
    guessed.transports[0].bytes[0] ^= 1;
    let error = refused(&guessed, Op::Read, Piece::new(0, 0, 8)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let mut boasting = pair.remote.clone();
    boasting.size *= 2;
    for piece in
        [Piece::new(0, LENGTH as u64, 8), Piece::new(0, 1, LENGTH as u64), Piece::new(0, u64::MAX - 3, 8)]
    {
        let error = refused(&boasting, Op::Write, piece).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let (_, readable) = pair.process.memory("1", 64, Access::READ_ONLY).unwrap();
    refused(&readable, Op::Read, Piece::new(0, 0, 64)).unwrap();
    let error = refused(&readable, Op::Write, Piece::new(0, 0, 64)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
}

#[test]
fn a_wrong_secret_opens_nothing() {
    let process = Process::start().unwrap();
    let node = process.ask("node default swordfish").unwrap();
    let desc = process.ask(&format!("attach {node} there {}", support::child::to_hex(&[1; 16]))).unwrap();
    let desc = mori_core::EngineDesc::unpack(&support::child::from_hex(&desc).unwrap()).unwrap();
    let (_, remote) = process.memory(&node, 64, Access::READ_WRITE).unwrap();
    for (secret, opens) in [("-", false), ("sword", false), ("swordfish", true)] {
        let here = Engine::join("here", config("default", secret)).unwrap();
        here.backend.add_peer(&desc).unwrap();
        let (local, _) = here.memory(64).unwrap();
        let route = here.backend.route(&local, &remote);
        assert_eq!(route.is_ok(), opens, "{secret}: {route:?}");
        if let Err(error) = route {
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            assert!(error.message().contains("secret"), "{error}");
        }
    }
}

/// The number that the system names for the socket is another process's: as when it is used again.
#[test]
fn another_process_under_the_number_is_found_out() {
    let process = Process::start().unwrap();
    let (node, mut desc) = process.engine("there", "default", 1).unwrap();
    let (_, remote) = process.memory(&node, 64, Access::READ_WRITE).unwrap();
    let name = desc.transports[0].bytes[32..48].to_vec();
    // The relay answers in this process, where the place is not.
    let relay = Relay::new(socket_name(&name)).unwrap();
    desc.transports[0].bytes[32..48].copy_from_slice(&relay.name);
    let here = Engine::join("here", config("default", "-")).unwrap();
    here.backend.add_peer(&desc).unwrap();
    let (local, _) = here.memory(64).unwrap();
    let error = here.backend.route(&local, &remote).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::AccessDenied), "{error}");
    assert!(here.backend.session(&local, &remote).is_err());
}

#[test]
fn a_target_that_does_not_answer_has_no_route_until_it_does() {
    let here = Engine::join("here", config("default", "-")).unwrap();
    let process = Process::start().unwrap();
    let (node, desc) = process.engine("there", "default", 1).unwrap();
    let (_, remote) = process.memory(&node, 64, Access::READ_WRITE).unwrap();
    let (local, _) = here.memory(64).unwrap();
    here.backend.add_peer(&desc).unwrap();
    process.stop();
    let clock = Clock::system();
    let late = clock.deadline(Duration::from_secs(20));
    let error = here.backend.route(&local, &remote).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(here.backend.obstacle(&"there".into()), Some(Obstacle::Silent));
    // Asked again at once, the answer is there already.
    assert!(here.backend.route(&local, &remote).is_err());
    assert!(!late.passed(clock.now()));
    process.go_on();
    until("there is a route", || here.backend.route(&local, &remote).is_ok());
    assert_eq!(here.backend.obstacle(&"there".into()), None);
}

#[test]
fn another_host_is_told_by_its_boot_id() {
    let process = Process::start().unwrap();
    let (node, mut desc) = process.engine("there", "default", 1).unwrap();
    let (_, remote) = process.memory(&node, 64, Access::READ_WRITE).unwrap();
    desc.transports[0].bytes[20] ^= 1;
    let here = Engine::join("here", config("default", "-")).unwrap();
    here.backend.add_peer(&desc).unwrap();
    let (local, _) = here.memory(64).unwrap();
    let error = here.backend.route(&local, &remote).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(here.backend.obstacle(&"there".into()), Some(Obstacle::OtherHost));
}

#[test]
fn another_user_is_turned_away() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        // Only the superuser can start a process as somebody else.
        return;
    }
    let here = Engine::join("here", config("default", "-")).unwrap();
    let (_, desc) = here.memory(64).unwrap();
    // Where this program may not be started by somebody else, there is nothing to see.
    let Ok(process) = Process::start_as(Some(NOBODY)) else { return };
    let Ok((node, _)) = process.engine("there", "default", 1) else { return };
    process.ask(&format!("add_peer {node} {}", support::child::to_hex(&here.desc.pack()))).unwrap();
    let (theirs, _) = process.memory(&node, 64, Access::LOCAL).unwrap();
    let desc = support::child::to_hex(&desc.pack());
    let error = process.ask(&format!("transfer {node} read {theirs} {desc} 0 0 64")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.message().contains("user"), "{error}");
}
