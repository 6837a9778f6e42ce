//! Bytes: every one of them arrives where it should, and no other changes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use mori_core::{
    Access, Backend, ErrorKind, Location, MemoryDesc, Notify, Op, Piece, Region, StatusCode, Tag,
    TransferOptions,
};
use mori_tcp::TcpConfig;
use support::raw::{CHUNK, Frame, LAST, Stage};
use support::{Node, bytes, fail, pair, pattern, submit, succeed, until};

#[test]
fn reads_and_writes_of_all_sizes() {
    let config = TcpConfig { stripe_bytes: 10_000, chunk_bytes: 4096, ..TcpConfig::default() };
    for config in [config, TcpConfig::default()] {
        let (near, far) = pair(&config);
        for length in [1, 7, 63, 64, 448, 449, 4096, 4097, 100_000, 3_000_001] {
            let (local, _) = near.region(length + 20, Access::LOCAL);
            let (remote, desc) = far.region(length + 30, Access::READ_WRITE);
            let content = pattern(length, length as u64);
            remote.write_at(30, &content).unwrap();
            let session = near.session(&local, &desc);
            let status = submit(&session, Op::Read, &[Piece::new(10, 30, length as u64)]);
            assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
            let got = bytes(&local);
            assert!(got[10..10 + length] == content[..], "length {length}");
            assert!(got[..10].iter().chain(&got[10 + length..]).all(|&byte| byte == 0));

            let content = pattern(length, 99);
            local.write_at(3, &content).unwrap();
            let status = submit(&session, Op::Write, &[Piece::new(3, 1, length as u64)]);
            assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
            assert!(bytes(&remote)[1..=length] == content[..], "length {length}");
            assert_eq!(local.pins(), 0);
        }
    }
}

#[test]
fn notified_writes_and_reads() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(1 << 20, Access::LOCAL);
    let (_remote, desc) = far.region(1 << 20, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    for (op, length) in
        [(Op::Write, 100), (Op::Read, 100), (Op::Write, 1 << 20), (Op::Read, 1 << 20), (Op::Write, 0)]
    {
        let options = TransferOptions {
            tag: Tag(5),
            notify: Some(Notify { message: b"hello".to_vec(), on_failure: true }),
            ..TransferOptions::default()
        };
        let status = session.submit(op, &[Piece::new(0, 0, length)], &options);
        assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
        let got = far.notifications.wait(Duration::from_secs(5)).unwrap();
        assert_eq!((got.message.as_slice(), got.tag, got.error), (&b"hello"[..], Tag(5), None));
        assert_eq!(got.transfer, status.id().get());
        assert!(far.notifications.is_empty());
    }
}

/// Configurations that cut transfers into pieces in different ways.
fn shapes() -> [TcpConfig; 4] {
    let base = || TcpConfig { peer_timeout: Duration::from_secs(600), ..TcpConfig::default() };
    [
        base(),
        TcpConfig { connections: 1, io_threads: 1, busy_window: Duration::ZERO, ..base() },
        TcpConfig { connections: 5, io_threads: 3, stripe_bytes: 1000, chunk_bytes: 4096, ..base() },
        TcpConfig { stripe_bytes: 1, chunk_bytes: 5000, ..base() },
    ]
}

/// What a transfer should do, byte by byte and in order.
fn apply(op: Op, pieces: &[Piece], local: &mut [u8], remote: &mut [u8]) {
    for piece in pieces {
        let length = usize::try_from(piece.length).unwrap();
        let (near, far) = (usize::try_from(piece.local).unwrap(), usize::try_from(piece.remote).unwrap());
        match op {
            Op::Read => local[near..near + length].copy_from_slice(&remote[far..far + length]),
            Op::Write => remote[far..far + length].copy_from_slice(&local[near..near + length]),
        }
    }
}

/// Batches of pieces of all sizes at random places; those of one side never overlap where they land.
#[test]
fn scattered_batches() {
    const LENGTH: usize = 600_000;
    for (number, config) in shapes().into_iter().enumerate() {
        let (near, far) = pair(&config);
        let (local, _) = near.region(LENGTH, Access::LOCAL);
        let (remote, desc) = far.region(LENGTH, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        for round in 0..12 {
            let seed = (number * 100 + round) as u64;
            let (mut here, mut there) = (pattern(LENGTH, seed), pattern(LENGTH, !seed));
            local.write_at(0, &here).unwrap();
            remote.write_at(0, &there).unwrap();
            let numbers: Vec<u64> = pattern(8 * 400, seed ^ 77)
                .chunks(8)
                .map(|n| u64::from_le_bytes(n.try_into().unwrap()))
                .collect();
            let op = if round % 2 == 0 { Op::Read } else { Op::Write };
            // The landing places advance by what was placed; the others are anywhere.
            let mut at = 0;
            let mut pieces: Vec<Piece> = numbers
                .iter()
                .map(|number| {
                    let length = [0, 1, 3, 64, 500, 1500][(number % 6) as usize];
                    let anywhere = (number >> 8) % (LENGTH as u64 - 1500);
                    let lands = at + (number >> 40) % 3;
                    at = lands + length;
                    match op {
                        Op::Read => Piece::new(lands, anywhere, length),
                        Op::Write => Piece::new(anywhere, lands, length),
                    }
                })
                .collect();
            if round % 3 == 0 {
                pieces.reverse();
            }
            succeed(&submit(&session, op, &pieces));
            apply(op, &pieces, &mut here, &mut there);
            assert!(bytes(&local) == here, "shape {number}, round {round}");
            assert!(bytes(&remote) == there, "shape {number}, round {round}");
        }
    }
}

/// Pieces may read one place several times: of our memory in a write, of the peer's in a read.
#[test]
fn sources_may_overlap() {
    for config in shapes() {
        let (near, far) = pair(&config);
        let (local, _) = near.region(40_000, Access::LOCAL);
        let (remote, desc) = far.region(40_000, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        for op in [Op::Read, Op::Write] {
            let (mut here, mut there) = (pattern(40_000, 1), pattern(40_000, 2));
            local.write_at(0, &here).unwrap();
            remote.write_at(0, &there).unwrap();
            // The same 3000 bytes, then such that each begins in the middle of the one before.
            let pieces: Vec<Piece> = (0..10)
                .map(|at| {
                    let (from, to) = (if at < 5 { 700 } else { at * 1500 }, at * 3100);
                    match op {
                        Op::Read => Piece::new(to, from, 3000),
                        Op::Write => Piece::new(from, to, 3000),
                    }
                })
                .collect();
            succeed(&submit(&session, op, &pieces));
            apply(op, &pieces, &mut here, &mut there);
            assert!(bytes(&local) == here && bytes(&remote) == there, "{op:?}");
        }
    }
}

/// Neighbours that touch on both sides are one piece on the wire; those that touch on one side only are not.
#[test]
fn neighbours_that_touch_on_both_sides_are_merged() {
    let stage = Stage::new("far");
    let near = Node::new("near", TcpConfig { connections: 1, ..TcpConfig::default() });
    near.backend.add_peer(&stage.desc()).unwrap();
    let (local, _) = near.region(1000, Access::LOCAL);
    let cases = [
        (vec![(0, 500, 10), (10, 510, 5), (15, 515, 85)], vec![(500, 100)]),
        (vec![(0, 500, 10), (10, 600, 10)], vec![(500, 10), (600, 10)]),
        (vec![(0, 500, 10), (90, 510, 10)], vec![(500, 10), (510, 10)]),
        (vec![(0, 500, 10), (300, 3, 0), (10, 510, 10), (20, 520, 0)], vec![(500, 20)]),
        (vec![(10, 510, 10), (0, 500, 10)], vec![(510, 10), (500, 10)]),
    ];
    std::thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let mut raw = stage.accept();
            for (_, expected) in &cases {
                let request = raw.request().unwrap();
                let pieces: Vec<(u64, u64)> = if request.count == 1 {
                    vec![(request.a, request.b)]
                } else {
                    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                    request.body.chunks(16).map(|piece| (word(&piece[..8]), word(&piece[8..]))).collect()
                };
                assert_eq!(&pieces, expected);
                let length = usize::try_from(request.b).unwrap();
                raw.frame(&Frame {
                    flags: LAST,
                    payload: pattern(length, 3),
                    ..Frame::new(CHUNK, request.id)
                });
            }
        });
        let session = near.session(&local, &stage.memory(1000));
        for (pieces, _) in &cases {
            let pieces: Vec<Piece> =
                pieces.iter().map(|&(local, remote, length)| Piece::new(local, remote, length)).collect();
            succeed(&submit(&session, Op::Read, &pieces));
        }
        playing.join().unwrap();
    });
}

/// A descriptor with another key or other rights than the target gave.
fn forged(desc: &MemoryDesc, key: Option<u128>, rights: u8) -> MemoryDesc {
    let mut desc = desc.clone();
    let blob = &mut desc.transports[0].bytes;
    if let Some(key) = key {
        blob[..16].copy_from_slice(&key.to_le_bytes());
    }
    blob[32] = rights;
    desc.size = u64::MAX;
    desc
}

/// What is not wholly inside the region is refused by the target, whatever the descriptor says; nothing is touched, and the
/// session is as good as before.
#[test]
fn ranges_at_beyond_and_wrapping_past_the_end() {
    for config in shapes() {
        let (near, far) = pair(&config);
        let (local, _) = near.region(10_000, Access::LOCAL);
        let (remote, desc) = far.region(5000, Access::READ_WRITE);
        let (here, there) = (pattern(10_000, 1), pattern(5000, 2));
        local.write_at(0, &here).unwrap();
        remote.write_at(0, &there).unwrap();
        let session = near.session(&local, &forged(&desc, None, 3));
        for op in [Op::Read, Op::Write] {
            for (offset, length) in [
                (5000, 1),
                (4999, 2),
                (0, 5001),
                (0, 10_000),
                (5001, 1),
                (1 << 32, 10),
                (u64::MAX, 1),
                (u64::MAX - 4, 10),
                (u64::MAX - 9999, 10_000),
            ] {
                // Alone, and among good ones.
                let bad = Piece::new(0, offset, length);
                let lonely = vec![bad];
                let mixed = vec![Piece::new(7000, 100, 50), bad, Piece::new(7500, 900, 50)];
                for pieces in [lonely, mixed] {
                    let error = fail(&submit(&session, op, &pieces), ErrorKind::InvalidArgument);
                    assert!(error.message().contains("far"), "{error}");
                }
            }
            // At the end is inside.
            for piece in [Piece::new(0, 4999, 1), Piece::new(5000, 0, 5000), Piece::new(3, 5000, 0)] {
                succeed(&submit(&session, Op::Write, &[piece]));
                local.write_at(0, &here).unwrap();
                remote.write_at(0, &there).unwrap();
            }
            assert_eq!(local.pins(), 0);
        }
        assert!(bytes(&local) == here);
        until("the target is quiet", || remote.pins() == 0);
    }
}

/// The local side is checked before anything is sent.
#[test]
fn local_ranges_are_checked_before_anything_is_sent() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(100, Access::LOCAL);
    let (remote, desc) = far.region(1000, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    for (offset, length) in [(100, 1), (99, 2), (0, 101), (u64::MAX, 1), (u64::MAX - 1, 10)] {
        for op in [Op::Read, Op::Write] {
            let error =
                fail(&submit(&session, op, &[Piece::new(offset, 0, length)]), ErrorKind::InvalidArgument);
            assert!(error.message().contains("out of range"), "{error}");
        }
    }
    assert_eq!(local.pins(), 0);
    assert!(bytes(&remote).iter().all(|&byte| byte == 0));
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 100)]));
}

/// Unknown and stale keys are not found; rights are kept by the target whatever the descriptor says.
#[test]
fn keys_and_rights_are_kept_by_the_target() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(100, Access::LOCAL);
    let whole = [Piece::new(0, 0, 100)];
    let (readable, read_desc) = far.region(100, Access::READ_ONLY);
    let (writable, write_desc) = far.region(100, Access::WRITE_ONLY);
    let (private, private_desc) = far.region(100, Access::LOCAL);
    for (desc, op, allowed) in [
        (&read_desc, Op::Read, true),
        (&read_desc, Op::Write, false),
        (&write_desc, Op::Read, false),
        (&write_desc, Op::Write, true),
        (&private_desc, Op::Read, false),
        (&private_desc, Op::Write, false),
    ] {
        for desc in [desc.clone(), forged(desc, None, 3)] {
            let status = submit(&near.session(&local, &desc), op, &whole);
            if allowed {
                succeed(&status);
            } else {
                let error = fail(&status, ErrorKind::AccessDenied);
                assert!(error.message().contains("by peers"), "{error}");
            }
        }
        // A descriptor that grants less than the target does is believed.
        let error =
            fail(&submit(&near.session(&local, &forged(desc, None, 0)), op, &whole), ErrorKind::AccessDenied);
        assert!(!error.message().contains("engine far"), "asked the target: {error}");
    }
    let content = pattern(100, 5);
    private.write_at(0, &content).unwrap();
    for key in [0, 1, u128::MAX] {
        let session = near.session(&local, &forged(&read_desc, Some(key), 3));
        for op in [Op::Read, Op::Write] {
            fail(&submit(&session, op, &whole), ErrorKind::NotFound);
        }
    }
    // Stale: known, deregistered, and registered again under another key.
    let session = near.session(&local, &read_desc);
    succeed(&submit(&session, Op::Read, &whole));
    far.backend.deregister(readable.id());
    let error = fail(&submit(&session, Op::Read, &whole), ErrorKind::NotFound);
    assert!(error.message().contains("deregistered"), "{error}");
    let again = far.register(&readable);
    fail(&submit(&session, Op::Read, &whole), ErrorKind::NotFound);
    succeed(&submit(&near.session(&local, &again), Op::Read, &whole));
    assert!(bytes(&private) == content);
    assert!(bytes(&writable).iter().all(|&byte| byte == 0));
}

/// Keys are not to be guessed: they do not repeat, and do not count.
#[test]
fn keys_look_random() {
    let far = Node::new("far", TcpConfig::default());
    let mut keys: Vec<u128> =
        (0..200).map(|_| support::raw::key_of(&far.region(1, Access::LOCAL).1)).collect();
    let ones: u32 = keys.iter().map(|key| key.count_ones()).sum();
    assert!(
        (200 * 128 * 45 / 100..200 * 128 * 55 / 100).contains(&ones),
        "{ones} bits of {} are set",
        200 * 128
    );
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[1] - pair[0] > 1 << 64));
}

/// The same region registered twice is one region; overlapping regions are several.
#[test]
fn regions_may_overlap() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(1000, Access::LOCAL);
    let memory: &'static mut [u8] = Box::leak(pattern(1000, 9).into_boxed_slice());
    let base = memory.as_mut_ptr();
    let part = |offset: usize, length: usize, access| {
        let start = base.wrapping_add(offset);
        // SAFETY: the memory is leaked, so it lives for ever, and it is only used through regions.
        unsafe { Region::from_raw(start, length, Location::HOST, access) }.unwrap()
    };
    let (whole, half) = (part(0, 1000, Access::READ_ONLY), part(500, 500, Access::READ_WRITE));
    let (whole_desc, half_desc) = (far.register(&whole), far.register(&half));
    assert_eq!(far.register(&whole), whole_desc);
    succeed(&submit(&near.session(&local, &whole_desc), Op::Read, &[Piece::new(0, 0, 1000)]));
    assert!(bytes(&local) == pattern(1000, 9));
    local.write_at(0, &[7; 500]).unwrap();
    succeed(&submit(&near.session(&local, &half_desc), Op::Write, &[Piece::new(0, 0, 500)]));
    far.backend.deregister(half.id());
    succeed(&submit(&near.session(&local, &whole_desc), Op::Read, &[Piece::new(0, 0, 1000)]));
    let got = bytes(&local);
    assert!(got[..500] == pattern(1000, 9)[..500] && got[500..] == [7; 500]);
}

/// Memory of a device is another transport's.
#[test]
fn device_memory_is_refused_clearly() {
    let (near, far) = pair(&TcpConfig::default());
    // SAFETY: on a device, as far as anybody here knows; nothing on the host touches it.
    let device = unsafe {
        let location = Location::Device { device_id: 0, bus_id: String::new() };
        Region::from_raw(std::ptr::without_provenance_mut(1 << 40), 4096, location, Access::READ_WRITE)
    }
    .unwrap();
    assert!(near.backend.register(&device).unwrap().is_none());
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    assert_eq!(near.backend.route(&device, &desc).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(near.backend.session(&device, &desc).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    let without = MemoryDesc { transports: vec![], ..desc };
    let (local, _) = near.region(100, Access::LOCAL);
    assert_eq!(near.backend.route(&local, &without).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Descriptors that are cut, longer, of another version or of nobody known are refused, at every length.
#[test]
fn descriptors_that_do_not_decode_are_refused() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(100, Access::LOCAL);
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    let engine = far.desc();
    for length in 0..engine.transports[0].bytes.len() {
        let mut cut = engine.clone();
        cut.transports[0].bytes.truncate(length);
        assert_eq!(near.backend.add_peer(&cut).unwrap_err().kind(), ErrorKind::Malformed, "{length}");
    }
    for length in (0..40).filter(|&length| length != desc.transports[0].bytes.len()) {
        let mut cut = desc.clone();
        cut.transports[0].bytes.resize(length, 0);
        let refused = near.backend.session(&local, &cut).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Malformed, "{length}");
    }
    let mut other = desc.clone();
    other.transports[0].version = 9;
    let refused = near.backend.route(&local, &other).unwrap_err();
    assert!(refused.kind() == ErrorKind::Malformed && refused.message().contains("version 9"), "{refused}");
    let mut other = engine;
    other.transports[0].version = 9;
    assert_eq!(near.backend.add_peer(&other).unwrap_err().kind(), ErrorKind::Malformed);
    other.transports.clear();
    assert_eq!(near.backend.add_peer(&other).unwrap_err().kind(), ErrorKind::NotFound);
    let stranger = MemoryDesc { engine_key: "stranger".into(), ..desc.clone() };
    assert_eq!(near.backend.route(&local, &stranger).unwrap_err().kind(), ErrorKind::NotFound);
    succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 100)]));
}

/// A batch that is cut into several requests fails as a whole if one of them is bad, and touches nothing outside its pieces.
#[test]
fn a_bad_piece_in_a_later_request_fails_the_batch() {
    let (near, far) = pair(&TcpConfig::default());
    let count = 70_000;
    let (local, _) = near.region(count * 4, Access::LOCAL);
    let (remote, desc) = far.region(count * 4, Access::READ_WRITE);
    let content = pattern(count * 4, 3);
    remote.write_at(0, &content).unwrap();
    let session = near.session(&local, &desc);
    let mut pieces: Vec<Piece> = (0..count as u64).map(|at| Piece::new(at * 4, at * 4 + 1, 2)).collect();
    pieces[count - 1].remote = count as u64 * 4 - 1;
    fail(&submit(&session, Op::Read, &pieces), ErrorKind::InvalidArgument);
    assert_eq!(local.pins(), 0);
    let got = bytes(&local);
    assert!(got.chunks(4).all(|slot| slot[2..] == [0; 2]), "bytes outside of every piece");
    pieces.pop();
    succeed(&submit(&session, Op::Read, &pieces));
}
