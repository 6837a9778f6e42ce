//! Large numbers: bytes beyond four gibibytes, pieces beyond one request, peers by the hundred.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use mori_core::{Access, Backend, Location, Op, Piece, Region};
use mori_tcp::TcpConfig;
use support::{Node, bytes, finish, pair, pattern, submit, succeed};

const GIB: u64 = 1 << 30;

/// A region of `times` windows onto the same `length` bytes, so that a range of gibibytes takes little memory.
fn windows(length: usize, times: usize, access: Access) -> Region {
    let file = rustix::fs::memfd_create("windows", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, length as u64).unwrap();
    // SAFETY: a reservation of address space where the system likes it.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length * times,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    for index in 0..times {
        // SAFETY: inside the reservation above.
        let window = unsafe { base.byte_add(index * length) };
        // SAFETY: replaces a part of the reservation, which nothing else uses.
        let mapped = unsafe {
            libc::mmap(
                window,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        assert_eq!(mapped, window);
    }
    // SAFETY: mapped for the rest of the process, and not borrowed.
    unsafe { Region::from_raw(base.cast(), length * times, Location::HOST, access) }.unwrap()
}

#[test]
fn five_gibibytes_in_one_transfer() {
    const WINDOW: usize = 16 << 20;
    let times = usize::try_from(5 * GIB).unwrap() / WINDOW;
    let (near, far) = pair(&TcpConfig::default());
    let local = windows(WINDOW, times, Access::LOCAL);
    let remote = windows(WINDOW, times, Access::READ_WRITE);
    let session = near.session(&local, &far.register(&remote));
    let content = |region: &Region| {
        let mut content = vec![0; WINDOW];
        region.read_at(3 * WINDOW as u64, &mut content).unwrap();
        content
    };
    for (op, from, to) in [(Op::Read, &remote, &local), (Op::Write, &local, &remote)] {
        let expected = pattern(WINDOW, 7 + op as u64);
        from.write_at(0, &expected).unwrap();
        succeed(&submit(&session, op, &[Piece::new(0, 0, 5 * GIB)]));
        assert!(content(to) == expected, "{op:?}");
        assert_eq!(local.pins(), 0);
    }
}

#[test]
fn offsets_beyond_four_gibibytes() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(4096, Access::LOCAL);
    // Pages that nobody touches take no memory.
    let (remote, desc) = far.region(usize::try_from(5 * GIB).unwrap(), Access::READ_WRITE);
    let session = near.session(&local, &desc);
    for (mark, offset) in [0, 4 * GIB - 8, 4 * GIB, 4 * GIB + 1000, 5 * GIB - 16].into_iter().enumerate() {
        let marked = [u8::try_from(mark).unwrap() + 1; 16];
        remote.write_at(offset, &marked).unwrap();
        succeed(&submit(&session, Op::Read, &[Piece::new(16, offset, 16)]));
        assert_eq!(bytes(&local)[16..32], marked, "offset {offset}");
        succeed(&submit(&session, Op::Write, &[Piece::new(0, offset, 16)]));
        let mut back = [9; 16];
        remote.read_at(offset, &mut back).unwrap();
        assert_eq!(back, [0; 16], "offset {offset}");
    }
    // The low half of an offset must not stand for the whole.
    let mut low = [9; 32];
    remote.read_at(1000, &mut low).unwrap();
    assert_eq!(low, [0; 32]);
}

#[test]
fn a_hundred_thousand_pieces_in_one_batch() {
    const COUNT: u64 = 100_000;
    const SLOT: u64 = 40;
    let (near, far) = pair(&TcpConfig::default());
    let length = usize::try_from(COUNT * SLOT).unwrap();
    let (local, _) = near.region(length, Access::LOCAL);
    let (remote, desc) = far.region(length, Access::READ_WRITE);
    let content = pattern(length, 3);
    remote.write_at(0, &content).unwrap();
    let session = near.session(&local, &desc);
    // 33 bytes of every slot, from slot i to slot 7 i + 3; neighbours touch on neither side.
    let pieces: Vec<_> = (0..COUNT).map(|i| Piece::new((i * 7 + 3) % COUNT * SLOT, i * SLOT, 33)).collect();
    succeed(&submit(&session, Op::Read, &pieces));
    let got = bytes(&local);
    let mut expected = vec![0; length];
    for piece in &pieces {
        let (to, from) = (usize::try_from(piece.local).unwrap(), usize::try_from(piece.remote).unwrap());
        expected[to..to + 33].copy_from_slice(&content[from..from + 33]);
    }
    assert!(got == expected);
    // And back, one byte further on.
    let back: Vec<_> = pieces.iter().map(|piece| Piece::new(piece.local, piece.remote + 1, 33)).collect();
    succeed(&submit(&session, Op::Write, &back));
    let mut expected = content.clone();
    for piece in &back {
        let (from, to) = (usize::try_from(piece.local).unwrap(), usize::try_from(piece.remote).unwrap());
        expected[to..to + 33].copy_from_slice(&got[from..from + 33]);
    }
    assert!(bytes(&remote) == expected);
}

#[test]
fn three_hundred_peers_at_once() {
    const PEERS: usize = 300;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum },
    )
    .unwrap();
    let config = TcpConfig { connections: 1, io_threads: 1, ..TcpConfig::default() };
    let far = Node::new("far", TcpConfig::default());
    let (remote, desc) = far.region(PEERS * 1000, Access::READ_WRITE);
    let content = pattern(remote.len(), 5);
    remote.write_at(0, &content).unwrap();
    let peers: Vec<_> = (0..PEERS)
        .map(|index| {
            let near = Node::new(&format!("near-{index}"), config.clone());
            near.backend.add_peer(&far.desc()).unwrap();
            let (local, _) = near.region(1000, Access::LOCAL);
            (near, local)
        })
        .collect();
    // All connect at the same time, and all transfers are under way at the same time.
    let sessions: Vec<_> = std::thread::scope(|scope| {
        let opening: Vec<_> =
            peers.iter().map(|(near, local)| scope.spawn(|| near.session(local, &desc))).collect();
        opening.into_iter().map(|session| session.join().unwrap()).collect()
    });
    let statuses: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(index, session)| submit(session, Op::Read, &[Piece::new(0, index as u64 * 1000, 1000)]))
        .collect();
    for (index, (status, (_, local))) in statuses.iter().zip(&peers).enumerate() {
        assert!(finish(status).is_success(), "peer {index}: {status:?}");
        assert!(bytes(local) == content[index * 1000..(index + 1) * 1000], "peer {index}");
    }
    let backends: Vec<_> = peers.iter().map(|(near, _)| Arc::clone(&near.backend)).collect();
    std::thread::scope(|scope| {
        backends.iter().for_each(|backend| {
            scope.spawn(|| backend.shutdown());
        });
    });
}

#[test]
fn nothing_is_a_transfer_too() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(64, Access::LOCAL);
    let (_remote, desc) = far.region(64, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    for pieces in [&[][..], &[Piece::new(0, 0, 0)], &[Piece::new(64, 64, 0), Piece::new(3, 9, 0)]] {
        for op in [Op::Read, Op::Write] {
            succeed(&submit(&session, op, pieces));
        }
    }
    assert_eq!(local.pins(), 0);
}
