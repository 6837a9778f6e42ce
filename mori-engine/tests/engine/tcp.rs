//! The engine over TCP: bytes, messages, restarts, refusals.

use std::time::Duration;

use mori_engine::{
    Access, BatchItem, Engine, EngineDesc, ErrorKind, Memory, MemoryDesc, Notify, Op, Piece, Secret, Status,
    StatusCode, StatusFd, Tag, TcpConfig, TransferOptions,
};

use crate::fake::{Net, introduce};

/// Longer than anything here takes, so that a failure is no hang.
const PATIENCE: Duration = Duration::from_secs(60);

fn engine(key: &str) -> Engine {
    Engine::builder(key).tcp(TcpConfig::default()).build().unwrap()
}

fn options() -> TransferOptions {
    TransferOptions::default()
}

fn done(status: &Status) -> Result<(), ErrorKind> {
    match status.wait(PATIENCE) {
        StatusCode::Success => Ok(()),
        StatusCode::Failure(kind) => Err(kind),
        other => panic!("{other:?} after {PATIENCE:?}"),
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_there_and_back() {
    let (a, b) = (engine("a"), engine("b"));
    // Descriptors cross as bytes.
    let desc = EngineDesc::unpack(&b.desc().pack()).unwrap();
    assert!(desc.port > 0);
    a.add_peer(&desc).unwrap();
    let source = a.register_vec(pattern(1, 3 << 20), Access::LOCAL).unwrap();
    let middle = b.allocate(3 << 20, Access::READ_WRITE).unwrap();
    let back = a.allocate(3 << 20, Access::LOCAL).unwrap();
    let remote = MemoryDesc::unpack(&middle.desc().pack()).unwrap();
    assert_eq!(a.explain(&source, &remote).chosen.as_deref(), Some("tcp"));
    done(&a.write(&source, 0, &remote, 0, 3 << 20, options())).unwrap();
    assert_eq!(bytes(&middle), bytes(&source));
    // The blocks come back in another order, as one transfer.
    const BLOCK: u64 = 1 << 10;
    let blocks = (3 << 20) / BLOCK;
    let pieces: Vec<Piece> =
        (0..blocks).map(|index| Piece::new(index * BLOCK, (blocks - 1 - index) * BLOCK, BLOCK)).collect();
    let session = a.session(&back, &remote).unwrap();
    done(&session.read_batch(&pieces, options())).unwrap();
    let expected: Vec<u8> =
        bytes(&source).chunks(usize::try_from(BLOCK).unwrap()).rev().flatten().copied().collect();
    assert_eq!(bytes(&back), expected);
    assert!(session.alive());
}

#[test]
fn an_engine_reaches_its_own_memory_as_any_other() {
    let a = engine("a");
    let one = a.register_vec(pattern(2, 5000), Access::READ_ONLY).unwrap();
    let two = a.allocate(5000, Access::READ_WRITE).unwrap();
    done(&a.read(&two, 0, &one.desc(), 0, 5000, options())).unwrap();
    assert_eq!(bytes(&two), bytes(&one));
}

#[test]
fn a_message_comes_after_the_bytes_and_once() {
    let (a, b) = (engine("a"), engine("b"));
    introduce([&a, &b]);
    let source = a.register_vec(pattern(3, 1 << 16), Access::LOCAL).unwrap();
    let target = b.allocate(1 << 16, Access::WRITE_ONLY).unwrap();
    let notify = Some(Notify { message: b"block 7".to_vec(), on_failure: false });
    let options = TransferOptions { tag: Tag(7), notify, ..options() };
    let status = a.write(&source, 0, &target.desc(), 0, 1 << 16, options);
    let notification = b.notifications().wait(PATIENCE).unwrap();
    assert_eq!(bytes(&target), bytes(&source));
    assert_eq!((&notification.peer, notification.tag, notification.error), (a.key(), Tag(7), None));
    assert_eq!(notification.message, b"block 7");
    assert_eq!(notification.transfer, status.id().get());
    done(&status).unwrap();
    assert!(b.notifications().is_empty());
}

/// One batch over two transports; one item of it is bad, another needs somebody to poll.
#[test]
fn a_batch_runs_over_tcp_and_over_a_polled_backend() {
    let net = Net::default();
    let (a, b) = (engine("a"), engine("b"));
    a.add_backend(net.polled("polled")).unwrap();
    let c = crate::fake::with("c", [&net.polled("polled")]).build().unwrap();
    introduce([&a, &b, &c]);
    let local = a.allocate(300, Access::LOCAL).unwrap();
    let of_b = b.register_vec(vec![11; 100], Access::READ_ONLY).unwrap().desc();
    let of_c = c.register_vec(vec![22; 100], Access::READ_ONLY).unwrap().desc();
    let (good, moved, bad) = ([Piece::new(0, 0, 100)], [Piece::new(100, 0, 100)], [Piece::new(0, 1, 100)]);
    let item = |remote, pieces| BatchItem { local: &local, remote, pieces, options: options() };
    let items: [BatchItem<'_>; 3] = [item(&of_b, &good), item(&of_b, &bad), item(&of_c, &moved)];
    let statuses = a.batch(Op::Read, &items);
    let ready = StatusFd::all(&statuses).unwrap();
    let outcome = a.wait_all(&statuses, PATIENCE);
    assert_eq!(outcome.code(), StatusCode::Failure(ErrorKind::InvalidArgument));
    assert_eq!((outcome.succeeded(), outcome.failed()[0].index), (2, 1));
    assert_eq!(bytes(&local), [[11; 100], [22; 100], [0; 100]].concat());
    assert_eq!(ready.outcome(), outcome);
}

/// E4: a peer that comes back under its key is another one; what named the earlier one fails clearly.
#[test]
fn a_peer_that_restarts_is_found_again_and_stale_descriptors_are_not() {
    let (a, b) = (engine("a"), engine("b"));
    a.add_peer(&b.desc()).unwrap();
    let local = a.allocate(64, Access::LOCAL).unwrap();
    let stale = b.allocate(64, Access::READ_WRITE).unwrap().desc();
    let session = a.session(&local, &stale).unwrap();
    done(&session.read(0, 0, 64, options())).unwrap();
    drop(b);
    assert_eq!(done(&session.read(0, 0, 64, options())), Err(ErrorKind::PeerLost));
    assert_eq!(done(&a.read(&local, 0, &stale, 0, 64, options())), Err(ErrorKind::PeerLost));

    let b = engine("b");
    a.add_peer(&b.desc()).unwrap();
    let fresh = b.register_vec(pattern(4, 64), Access::READ_ONLY).unwrap();
    done(&a.read(&local, 0, &fresh.desc(), 0, 64, options())).unwrap();
    assert_eq!(bytes(&local), bytes(&fresh));
    let refused = a.read(&local, 0, &stale, 0, 64, options());
    assert_eq!(done(&refused), Err(ErrorKind::NotFound));
    assert!(refused.message().contains("stale"), "{refused:?}");
    assert_eq!(a.session(&local, &stale).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(done(&session.read(0, 0, 64, options())).is_err());
}

#[test]
fn a_stale_key_of_a_living_engine_fails_clearly() {
    let (a, b) = (engine("a"), engine("b"));
    introduce([&a, &b]);
    let local = a.allocate(64, Access::LOCAL).unwrap();
    let remote = b.allocate(64, Access::READ_WRITE).unwrap();
    let desc = remote.desc();
    done(&a.read(&local, 0, &desc, 0, 64, options())).unwrap();
    b.deregister(&remote, None).unwrap();
    assert_eq!(done(&a.read(&local, 0, &desc, 0, 64, options())), Err(ErrorKind::NotFound));
}

/// The initiator's own check is a courtesy: the target decides, whatever the descriptor was made to say.
#[test]
fn access_and_size_are_the_targets_to_grant() {
    let (a, b) = (engine("a"), engine("b"));
    introduce([&a, &b]);
    let local = a.allocate(64, Access::LOCAL).unwrap();
    let remote = b.register_vec(vec![1; 64], Access::READ_ONLY).unwrap();
    let forged = MemoryDesc { access: Access::READ_WRITE, size: 1 << 40, ..remote.desc() };
    assert_eq!(done(&a.write(&local, 0, &forged, 0, 64, options())), Err(ErrorKind::AccessDenied));
    assert_eq!(done(&a.read(&local, 0, &forged, 1, 64, options())), Err(ErrorKind::InvalidArgument));
    assert_eq!(bytes(&remote), [1; 64]);
    done(&a.read(&local, 0, &remote.desc(), 0, 64, options())).unwrap();
}

#[test]
fn without_the_secret_there_is_no_session() {
    let config = |secret: &[u8]| TcpConfig { secret: Some(Secret::new(secret)), ..TcpConfig::default() };
    let a = Engine::builder("a").tcp(config(b"swordfish swordfish")).build().unwrap();
    let b = Engine::builder("b").tcp(config(b"something else entirely")).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(64, Access::LOCAL).unwrap();
    let remote = b.register_vec(vec![9; 64], Access::READ_ONLY).unwrap().desc();
    assert_eq!(a.session(&local, &remote).unwrap_err().kind(), ErrorKind::AccessDenied);
    assert_eq!(done(&a.read(&local, 0, &remote, 0, 64, options())), Err(ErrorKind::AccessDenied));
    assert_eq!(bytes(&local), [0; 64]);
}

#[test]
fn a_configuration_or_a_port_that_cannot_be_had_fails_the_build() {
    let refused = |config: TcpConfig| Engine::builder("a").tcp(config).build().unwrap_err();
    assert_eq!(
        refused(TcpConfig { connections: 0, ..TcpConfig::default() }).kind(),
        ErrorKind::InvalidArgument
    );
    let b = engine("b");
    let bind = format!("127.0.0.1:{}", b.desc().port);
    let taken = refused(TcpConfig { bind: bind.clone(), ..TcpConfig::default() });
    assert_eq!(taken.kind(), ErrorKind::Unavailable);
    assert!(taken.message().contains(&bind), "{taken}");
    // The port is free again as soon as its backend is removed.
    b.remove_backend("tcp").unwrap();
    assert_eq!(b.desc().port, 0);
    b.add_tcp(TcpConfig { bind, ..TcpConfig::default() }).unwrap();
}

/// S7: whichever side goes in the middle of it all, every transfer ends.
#[test]
fn transfers_end_when_either_engine_goes() {
    for keep_target in [true, false] {
        let (a, b) = (engine("a"), engine("b"));
        introduce([&a, &b]);
        let local = a.allocate(32 << 20, Access::LOCAL).unwrap();
        let remote = b.allocate(32 << 20, Access::READ_WRITE).unwrap().desc();
        let statuses: Vec<Status> =
            (0..8).map(|_| a.read(&local, 0, &remote, 0, 32 << 20, options())).collect();
        if keep_target {
            drop(a);
            assert!(statuses.iter().all(|status| status.code().is_terminal()), "{statuses:?}");
        } else {
            drop(b);
        }
        let outcome = mori_engine::wait_all(&statuses, PATIENCE);
        assert!(outcome.all_quiet(), "{outcome:?}");
        for failed in outcome.failed() {
            let expected = if keep_target { ErrorKind::BadState } else { ErrorKind::PeerLost };
            assert_eq!(failed.code, StatusCode::Failure(expected), "{failed:?}");
        }
        assert_eq!(local.region().pins(), 0);
    }
}

#[test]
fn many_threads_share_two_engines() {
    let (a, b) = (engine("a"), engine("b"));
    introduce([&a, &b]);
    std::thread::scope(|scope| {
        for seed in 0..8_u64 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let remote = b.register_vec(pattern(seed, 1 << 16), Access::READ_WRITE).unwrap();
                let local = a.allocate(1 << 16, Access::LOCAL).unwrap();
                for round in 0..50_u64 {
                    let offset = round * 1000;
                    done(&a.read(&local, offset, &remote.desc(), offset, 1000, options())).unwrap();
                    done(&a.write(&local, offset, &remote.desc(), offset, 1000, options())).unwrap();
                }
                assert_eq!(bytes(&local)[..50_000], bytes(&remote)[..50_000]);
                assert_eq!(bytes(&remote), pattern(seed, 1 << 16));
                a.deregister(&local, None).unwrap();
                b.deregister(&remote, None).unwrap();
            });
        }
    });
}
