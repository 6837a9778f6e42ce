//! Fault injection: each fault does what it says, every time the same.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of tests fail by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Op, Piece, Region, Session, Status, StatusCode, TransferOptions, Update, wait_all,
};
use mori_testkit::{FakeBackend, FakeConfig, FakeFabric, Fault, Faulty};

/// A faulty backend that knows one peer, with a session between a region of each.
struct Setup {
    session: Arc<dyn Session>,
    local: Region,
    remote: Region,
    faulty: Arc<Faulty>,
    peer: Arc<FakeBackend>,
    key: EngineKey,
}

fn attach(backend: &dyn Backend, name: &str) -> EngineDesc {
    let context = BackendContext {
        engine: EngineKey::from(name),
        instance: [name.len() as u8; 16],
        node_id: "here".to_owned(),
        notifications: NotificationQueue::new(16),
    };
    let attachment = backend.attach(context).unwrap();
    EngineDesc {
        key: EngineKey::from(name),
        transports: attachment.blob.into_iter().collect(),
        ..EngineDesc::default()
    }
}

fn setup(config: FakeConfig) -> Setup {
    let fabric = FakeFabric::new();
    let faulty = Faulty::new(fabric.backend(config.clone()));
    let peer = fabric.backend(config);
    attach(&*faulty, "a");
    let desc = attach(&*peer, "peer");
    faulty.add_peer(&desc).unwrap();
    let local = Region::zeroed(1000, Access::READ_WRITE).unwrap();
    let remote = Region::from_vec((0..1000).map(|n| n as u8).collect(), Access::READ_WRITE).unwrap();
    faulty.register(&local).unwrap();
    let mut remote_desc = MemoryDesc::for_region(&desc.key, &remote);
    remote_desc.transports.extend(peer.register(&remote).unwrap());
    let session = faulty.session(&local, &remote_desc).unwrap();
    Setup { session, local, remote, faulty, peer, key: desc.key }
}

impl Setup {
    fn read(&self) -> Status {
        self.session.submit(Op::Read, &[Piece::new(0, 0, 1000)], &TransferOptions::default())
    }
}

fn scripted() -> Error {
    Error::new(ErrorKind::Transport, "by script")
}

#[test]
fn a_held_end_comes_when_it_is_released() {
    let setup = setup(FakeConfig::notified());
    setup.faulty.inject(1, Fault::Hold);
    let statuses = [setup.read(), setup.read(), setup.read()];
    assert!(wait_all(&[&statuses[0], &statuses[2]], None).is_success());
    assert_eq!(statuses[1].wait(Duration::from_millis(5)), StatusCode::InProgress);
    // For the caller it is in progress, so the memory stays.
    assert_eq!(setup.local.close(Duration::ZERO, &Clock::system()).unwrap_err().kind(), ErrorKind::Busy);
    setup.faulty.release(1);
    assert_eq!(statuses[1].wait(None), StatusCode::Success);
    assert_eq!(setup.local.pins(), 0);
    assert_eq!(setup.faulty.deliveries(), [0, 2, 1]);
}

#[test]
fn ends_come_in_the_scripted_order() {
    let setup = setup(FakeConfig::notified());
    setup.faulty.inject(0, Fault::Behind(3));
    setup.faulty.inject(1, Fault::Behind(0));
    setup.faulty.inject(3, Fault::Behind(2));
    let statuses: Vec<Status> = (0..4).map(|_| setup.read()).collect();
    assert!(wait_all(&statuses, None).is_success());
    assert_eq!(setup.faulty.deliveries(), [2, 3, 0, 1]);
}

#[test]
fn a_failed_transfer_moves_nothing() {
    let setup = setup(FakeConfig::notified());
    setup.faulty.inject_next(Fault::Fail(scripted()));
    let status = setup.read();
    assert_eq!(status.error(), Some(scripted()));
    let mut bytes = [0xff; 1000];
    setup.local.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 1000]);
    assert_eq!(setup.read().wait(None), StatusCode::Success);
}

#[test]
fn a_transfer_fails_at_its_nth_piece() {
    let setup = setup(FakeConfig::notified());
    let pieces: Vec<Piece> = (0..10).map(|n| Piece::new(n * 100, n * 100, 50)).collect();
    for fails in [0, 4, 9] {
        setup.local.write_at(0, &[0; 1000]).unwrap();
        setup.faulty.inject_next(Fault::FailAtPiece(fails, scripted()));
        let status = setup.session.submit(Op::Read, &pieces, &TransferOptions::tagged(5));
        assert_eq!(status.wait(None), StatusCode::Failure(ErrorKind::Transport));
        assert_eq!(status.tag().0, 5);
        let mut bytes = [0; 1000];
        setup.local.read_at(0, &mut bytes).unwrap();
        for (index, piece) in pieces.iter().enumerate() {
            let at = piece.local as usize + 1;
            assert_eq!(bytes[at] != 0, index < fails, "piece {index} of a transfer that fails at {fails}");
        }
    }
}

#[test]
fn a_dropped_end_comes_only_with_the_shutdown() {
    for by_drop in [true, false] {
        let setup = setup(FakeConfig::notified());
        setup.faulty.inject(0, Fault::Drop);
        let (dropped, other) = (setup.read(), setup.read());
        assert_eq!(other.wait(None), StatusCode::Success);
        assert_eq!(dropped.wait(Duration::from_millis(5)), StatusCode::InProgress);
        if by_drop {
            drop(setup);
        } else {
            setup.faulty.shutdown();
        }
        assert_eq!(dropped.wait(None), StatusCode::Failure(ErrorKind::BadState));
    }
}

/// S2: the first result is final, and the backend is told that the second one was ignored.
#[test]
fn a_second_end_is_ignored() {
    let setup = setup(FakeConfig::notified());
    setup.faulty.inject(0, Fault::Duplicate);
    let status = setup.read();
    assert_eq!(status.wait(None), StatusCode::Success);
    while setup.faulty.second_results().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(setup.faulty.second_results(), [(0, Update::Ignored(StatusCode::Success))]);
    assert_eq!(status.code(), StatusCode::Success);
}

#[test]
fn a_peer_is_lost_and_comes_back() {
    let setup = setup(FakeConfig::notified());
    setup.peer.hold();
    let before = [setup.read(), setup.read()];
    setup.faulty.inject_next(Fault::LosePeer);
    let during = setup.read();
    for status in before.iter().chain([&during]) {
        assert_eq!(status.wait(None), StatusCode::Failure(ErrorKind::PeerLost));
    }
    assert!(!setup.session.alive());
    assert_eq!(setup.read().wait(None), StatusCode::Failure(ErrorKind::PeerLost));
    setup.peer.release();
    // Nothing of the lost transfers lands.
    let mut bytes = [0xff; 1000];
    setup.local.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 1000]);
    setup.faulty.restore_peer(&setup.key).unwrap();
    assert_eq!(setup.read().wait(None), StatusCode::Success);
    assert!(setup.session.alive());
    assert_eq!(setup.remote.pins(), 0);
}

#[test]
fn a_held_end_holds_polled_and_hooked_waits_as_well() {
    for hook in [true, false] {
        let setup = setup(FakeConfig::polled(hook));
        setup.faulty.inject(0, Fault::Hold);
        let status = setup.read();
        assert_eq!(status.wait(Duration::from_millis(5)), StatusCode::InProgress);
        let waiter = std::thread::spawn({
            let status = status.clone();
            move || status.wait(None)
        });
        assert_eq!(status.wait(Duration::from_millis(5)), StatusCode::InProgress);
        setup.faulty.release(0);
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    }
}
