//! Strangers and broken peers on the data port: they are thrown out, and nobody else notices.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{ErrorKind as Io, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mori_core::{Access, Backend, ErrorKind, Op, Piece};
use mori_tcp::{Secret, TcpConfig};
use support::raw::{
    ANNOUNCE, CANCEL, CHUNK, DATA, DONE, FAIL, Frame, LAST, ON_FAILURE, PING, PONG, READ, Raw, WRITE, key_of,
};
use support::{Node, bytes, pattern, submit, succeed, until};

/// A short time without progress, so that tests see the end of what stands still.
fn hasty() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_millis(600),
        connect_timeout: Duration::from_millis(600),
        ..TcpConfig::default()
    }
}

/// No connection is dropped only because it stands still.
fn patient() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        ..TcpConfig::default()
    }
}

/// Runs `harm` against a node while another peer reads and writes there without a pause; its transfers must all succeed.
fn under_traffic(config: &TcpConfig, harm: impl FnOnce(&Node)) {
    let (near, far) = (Node::new("near", patient()), Node::new("far", config.clone()));
    near.backend.add_peer(&far.desc()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let healthy = scope.spawn(|| {
            let (local, _) = near.region(1 << 20, Access::LOCAL);
            let (remote, desc) = far.region(1 << 20, Access::READ_WRITE);
            let session = near.session(&local, &desc);
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 3 {
                let content = pattern(1 << 20, rounds);
                local.write_at(0, &content).unwrap();
                succeed(&submit(&session, Op::Write, &[Piece::new(0, 0, 1 << 20)]));
                assert!(bytes(&remote) == content);
                local.write_at(0, &vec![0; 1 << 20]).unwrap();
                succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1 << 20)]));
                assert!(bytes(&local) == content);
                rounds += 1;
            }
        });
        // Also when it panics, so that the other thread ends.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ended = Stop(&stop);
        harm(&far);
        drop(ended);
        healthy.join().unwrap();
    });
}

#[test]
fn garbage_is_thrown_out() {
    under_traffic(&patient(), |node| {
        for seed in 0..20 {
            let mut stranger = Raw::silent(node.port());
            // The first message claims more than any handshake has.
            let mut garbage = vec![0xff; 2];
            garbage.extend(pattern(2000, seed));
            let _ = stranger.socket.write_all(&garbage);
            stranger.ended();
            // A hello of something else.
            let mut stranger = Raw::silent(node.port());
            stranger.send(&support::raw::handshake_message(&pattern(42, seed)));
            stranger.ended();
        }
        let mut stranger = Raw::silent(node.port());
        stranger.send(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
        stranger.ended();
    });
}

#[test]
fn a_half_handshake_is_dropped_at_the_bound() {
    under_traffic(&hasty(), |node| {
        let hello = Raw::hello(1, 1, &[7; 32]);
        let mut strangers: Vec<Raw> = [0, 1, 2, 20, hello.len()]
            .into_iter()
            .map(|length| {
                let mut stranger = Raw::silent(node.port());
                stranger.send(&hello[..length]);
                stranger
            })
            .collect();
        strangers.iter_mut().for_each(Raw::ended);
    });
}

#[test]
fn hundreds_of_silent_strangers_keep_nobody_out() {
    let far = Node::new("far", patient());
    let strangers: Vec<Raw> = (0..700).map(|_| Raw::silent(far.port())).collect();
    let near = Node::new("near", patient());
    near.backend.add_peer(&far.desc()).unwrap();
    let (local, _) = near.region(100, Access::LOCAL);
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 100)]));
    drop(strangers);
}

#[test]
fn contradicting_and_oversized_frames_end_the_connection() {
    under_traffic(&patient(), |node| {
        let (region, desc) = node.region(1000, Access::READ_WRITE);
        let key = key_of(&desc);
        let read = Frame::read(1, key, 0, 100);
        let write = Frame::write(1, key, 0, 4, b"abcd");
        let cases: Vec<(&str, Frame)> = vec![
            ("an unknown kind", Frame::new(0x33, 1)),
            ("no pieces", Frame { count: 0, ..read.clone() }),
            ("a read with a payload", Frame { payload: vec![1], ..read.clone() }),
            ("a body of no pieces", Frame { body: vec![0; 16], ..read.clone() }),
            ("fewer pieces than counted", Frame { count: 3, body: vec![0; 32], ..read.clone() }),
            ("more pieces than allowed", {
                Frame { count: 65_537, body_length: Some(65_537 * 16), ..read.clone() }
            }),
            ("a body of 4 GiB", Frame { count: u32::MAX, body_length: Some(u32::MAX), ..read.clone() }),
            ("more payload than the write has", Frame { payload: b"abcde".to_vec(), ..write.clone() }),
            ("an endless payload", Frame { payload_length: Some(u64::MAX), ..write.clone() }),
            ("a write without payload", Frame { payload: vec![], ..write.clone() }),
            ("data of no write", Frame { payload: vec![1], ..Frame::new(DATA, 9) }),
            ("empty data", Frame::new(DATA, 9)),
            ("a ping with a body", Frame { body: vec![1], ..Frame::new(PING, 0) }),
            ("a cancel with a payload", Frame { payload: vec![1], ..Frame::new(CANCEL, 0) }),
            ("an oversized note", Frame::note(1, 1, &[0; 5000], 0)),
            ("a note that is too long for a message", Frame::note(1, 1, &[0; 1025], 0)),
            ("a note that is cut off", Frame { body: vec![200, 0, 1], ..Frame::note(1, 1, b"", 0) }),
            ("a note without a length", Frame { body: vec![1], ..Frame::note(1, 1, b"", 0) }),
            ("a chunk", Frame { payload: vec![1], flags: LAST, ..Frame::new(CHUNK, 1) }),
            ("a done", Frame::new(DONE, 1)),
            ("a fail", Frame::new(FAIL, 1)),
            ("a pong", Frame::new(PONG, 1)),
        ];
        for (what, frame) in cases {
            let mut peer = Raw::connect(node.port(), what);
            // A good request before the bad one is answered or not; what matters is the end of the connection.
            let _ = peer.socket.write_all(&frame.bytes());
            peer.ended();
        }
        // Reserved bytes.
        for at in [2, 3, 60, 63] {
            let mut peer = Raw::connect(node.port(), "reserved");
            let mut raw = read.bytes();
            raw[at] = 1;
            peer.send(&raw);
            peer.ended();
        }
        assert!(bytes(&region).iter().all(|&byte| byte == 0), "nothing was touched");
        until("every pin is given back", || region.pins() == 0);
        assert!(node.notifications.is_empty());
    });
}

#[test]
fn two_writes_with_one_number_end_the_connection() {
    let node = Node::new("far", patient());
    let (region, desc) = node.region(100, Access::READ_WRITE);
    let mut peer = Raw::connect(node.port(), "twice");
    peer.frame(&Frame::write(5, key_of(&desc), 0, 10, b"abc"));
    peer.frame(&Frame::write(5, key_of(&desc), 0, 10, b"abc"));
    peer.ended();
    until("every pin is given back", || region.pins() == 0);
}

/// The target checks every request against the region itself, whatever a descriptor says.
#[test]
fn ranges_keys_and_rights_are_checked_for_every_request() {
    let node = Node::new("far", patient());
    let (both, both_desc) = node.region(1000, Access::READ_WRITE);
    let (_readable, read_desc) = node.region(1000, Access::READ_ONLY);
    let (writable, write_desc) = node.region(1000, Access::WRITE_ONLY);
    let (stale, stale_desc) = node.region(1000, Access::READ_WRITE);
    node.backend.deregister(stale.id());
    let content = pattern(1000, 3);
    both.write_at(0, &content).unwrap();
    let (key, read_key, write_key) = (key_of(&both_desc), key_of(&read_desc), key_of(&write_desc));
    let mut peer = Raw::connect(node.port(), "probing");
    let mut refused = |frame: Frame, kind: ErrorKind| {
        peer.frame(&frame);
        // Of a write that has not been sent wholly nothing more comes.
        peer.frame(&Frame::new(CANCEL, frame.id));
        let answer = peer.next().unwrap();
        assert_eq!((answer.kind, answer.id), (FAIL, frame.id), "{frame:?}: {answer:?}");
        assert_eq!(answer.count, kind.number(), "{frame:?}: {}", String::from_utf8_lossy(&answer.body));
        assert!(!answer.body.is_empty());
    };
    let outside = [
        (0, 1001),
        (1000, 1),
        (1001, 1),
        (999, 2),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (1 << 32, 1),
        (0, (1 << 32) + 1),
    ];
    let mut id = 0;
    for (offset, length) in outside {
        id += 1;
        refused(Frame::read(id, key, offset, length), ErrorKind::InvalidArgument);
        // Only the first bytes of the write come; it is refused before them.
        let first = &content[..usize::try_from(length).map_or(10, |length| length.min(10))];
        id += 1;
        refused(Frame::write(id, key, offset, length, first), ErrorKind::InvalidArgument);
        id += 1;
        let pieces = Frame { key, b: length.wrapping_add(1), ..Frame::new(READ, id) };
        refused(pieces.pieces(&[(0, 1), (offset, length)]), ErrorKind::InvalidArgument);
    }
    // Sums that wrap around, or are not the sum.
    for (pieces, sum) in [(vec![(0, 500), (500, 500)], 999), (vec![(0, u64::MAX), (0, 2)], 1)] {
        id += 1;
        refused(Frame { key, b: sum, ..Frame::new(READ, id) }.pieces(&pieces), ErrorKind::InvalidArgument);
    }
    id += 1;
    refused(Frame::read(id, key, 0, 0), ErrorKind::InvalidArgument);
    // Keys and rights.
    id += 1;
    refused(Frame::read(id, key ^ 1, 0, 1), ErrorKind::NotFound);
    id += 1;
    refused(Frame::read(id, 0, 0, 1), ErrorKind::NotFound);
    id += 1;
    refused(Frame::read(id, key_of(&stale_desc), 0, 1), ErrorKind::NotFound);
    id += 1;
    refused(Frame::read(id, write_key, 0, 1), ErrorKind::AccessDenied);
    id += 1;
    refused(Frame::write(id, read_key, 0, 1, b"x"), ErrorKind::AccessDenied);
    // The connection is as good as before.
    peer.frame(&Frame::write(900, write_key, 3, 2, b"ok"));
    assert_eq!(peer.next().unwrap(), Frame::new(DONE, 900));
    let mut got = [0; 2];
    writable.read_at(3, &mut got).unwrap();
    assert_eq!(&got, b"ok");
    peer.frame(&Frame { key, b: 1000, ..Frame::new(READ, 901) }.pieces(&[(1, 999), (0, 1)]));
    let chunk = peer.next().unwrap();
    assert_eq!((chunk.kind, chunk.id, chunk.flags), (CHUNK, 901, LAST));
    assert!(chunk.payload[..999] == content[1..] && chunk.payload[999] == content[0]);
    assert!(bytes(&both) == content);
    until("every pin is given back", || both.pins() == 0);
}

/// A peer that asks without end and reads no answer is not read any more, and lost in the end; its requests keep neither
/// memory nor pins.
#[test]
fn a_flood_of_requests_without_reading_the_answers() {
    under_traffic(&hasty(), |node| {
        let (region, desc) = node.region(1 << 20, Access::READ_WRITE);
        let key = key_of(&desc);
        let many: Vec<_> = (0..1000).map(|at| (at * 16, 8)).collect();
        let floods = [
            ("reads", Frame::read(1, key, 0, 1 << 20)),
            ("reads of many pieces", Frame { key, b: 8000, ..Frame::new(READ, 1) }.pieces(&many)),
            ("refused reads", Frame::read(1, 0, 0, 1 << 20)),
            ("writes", Frame::write(1, key, 0, 1, b"x")),
            ("refused writes", Frame::write(1, 0, 0, 1, b"x")),
            ("pings", Frame::new(PING, 0)),
            (
                "notes of failures that nobody wants to know",
                Frame { flags: 4, ..Frame::note(1, 1, b"no", 0) },
            ),
        ];
        for (what, frame) in floods {
            let mut peer = Raw::connect(node.port(), what);
            let batch: Vec<u8> = std::iter::repeat_n(frame.bytes(), 64).flatten().collect();
            let thrown_out = (0..(256 << 20) / batch.len()).any(|_| match peer.socket.write_all(&batch) {
                Ok(()) => false,
                Err(error) => {
                    assert!(
                        !matches!(error.kind(), Io::WouldBlock | Io::TimedOut),
                        "{what}: still connected although nothing moves"
                    );
                    true
                }
            });
            assert!(thrown_out, "{what}: 256 MiB of requests were read with no answer taken");
        }
        until("every pin is given back", || region.pins() == 0);
    });
}

/// Writes that are begun and not ended cost memory, so their number is bounded.
#[test]
fn a_flood_of_writes_that_never_end() {
    let node = Node::new("far", patient());
    let (region, desc) = node.region(1 << 20, Access::READ_WRITE);
    let pieces: Vec<_> = (0..65_536).map(|at| (at * 16, 1)).collect();
    let mut peer = Raw::connect(node.port(), "beginner");
    let mut thrown_out = false;
    for id in 0..200 {
        let frame = Frame { key: key_of(&desc), b: 65_536, payload: vec![1], ..Frame::new(WRITE, id) };
        if peer.socket.write_all(&frame.pieces(&pieces).bytes()).is_err() {
            thrown_out = true;
            break;
        }
    }
    assert!(thrown_out, "200 writes of 65,536 pieces are open at once");
    until("every pin is given back", || region.pins() == 0);
}

/// A connection that idles is left alone; one that stops in the middle of something is dropped, also after idling.
#[test]
fn a_stand_still_in_the_middle_of_a_request_is_dropped_and_idling_is_not() {
    let node = Node::new("far", hasty());
    // More than both sides' buffers in the system take.
    let (region, desc) = node.region(64 << 20, Access::READ_WRITE);
    let key = key_of(&desc);
    let write = Frame::write(1, key, 0, 100, b"only the beginning").bytes();
    let read = Frame::read(2, key, 0, 64 << 20).bytes();
    for (what, bytes) in [
        ("half a header", &write[..30]),
        ("half a payload's frame", &write[..70]),
        ("a write without its end", &write[..]),
        ("an answer that is not taken", &read[..]),
    ] {
        let mut peer = Raw::connect(node.port(), what);
        peer.frame(&Frame::new(PING, 0));
        assert_eq!(peer.next().unwrap().kind, PONG);
        // Several times the bound, so that the node's threads have stopped looking at the clock.
        peer.socket.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
        let idle = peer.socket.read(&mut [0]).unwrap_err();
        assert_eq!(idle.kind(), Io::WouldBlock, "{what}: an idle connection is left alone");
        peer.socket.set_read_timeout(Some(support::PATIENCE)).unwrap();
        peer.send(bytes);
        // The answer is not read, so that it stays where it is.
        until(&format!("{what}: the connection is dropped"), || region.pins() == 0 && dropped(&peer));
    }
}

/// Whether the other side has ended the connection, without reading what it has sent.
fn dropped(peer: &Raw) -> bool {
    let mut fds = [rustix::event::PollFd::new(&peer.socket, rustix::event::PollFlags::RDHUP)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// One byte at a time is slow, not broken.
#[test]
fn a_slow_peer_is_served() {
    under_traffic(&hasty(), |node| {
        let (region, desc) = node.region(100, Access::READ_WRITE);
        let mut peer = Raw::connect(node.port(), "slow");
        for byte in Frame::write(1, key_of(&desc), 10, 20, &pattern(20, 5)).bytes() {
            peer.send(&[byte]);
        }
        assert_eq!(peer.next().unwrap(), Frame::new(DONE, 1));
        assert!(bytes(&region)[10..30] == pattern(20, 5)[..]);
    });
}

/// What is half written when the connection breaks is dropped, and the memory is free again (E4).
#[test]
fn half_a_write_ends_with_its_connection() {
    let node = Node::new("far", patient());
    let (region, desc) = node.region(100, Access::READ_WRITE);
    let mut peer = Raw::connect(node.port(), "dying");
    peer.frame(&Frame::write(1, key_of(&desc), 0, 100, &[1; 50]));
    until("the first half is there", || bytes(&region)[49] == 1);
    assert_eq!(region.pins(), 1);
    drop(peer);
    until("every pin is given back", || region.pins() == 0);
    assert!(bytes(&region)[50..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_cancelled_write_stops_where_it_is_and_the_target_says_so() {
    let node = Node::new("far", patient());
    let (region, desc) = node.region(100, Access::READ_WRITE);
    let mut peer = Raw::connect(node.port(), "stopping");
    peer.frame(&Frame::write(1, key_of(&desc), 0, 100, &[1; 50]));
    peer.frame(&Frame::new(CANCEL, 1));
    let answer = peer.next().unwrap();
    assert_eq!((answer.kind, answer.id, answer.count), (FAIL, 1, ErrorKind::Cancelled.number()));
    assert_eq!(region.pins(), 0);
    // Unknown and finished requests are none of its business.
    peer.frame(&Frame::new(CANCEL, 1));
    peer.frame(&Frame::new(CANCEL, 77));
    peer.frame(&Frame::new(PING, 0));
    assert_eq!(peer.next().unwrap().kind, PONG);
}

/// A read whose last chunk is under way is too late to stop: the chunk is the answer, and no other follows.
#[test]
fn a_read_cancelled_within_its_last_chunk_has_one_answer() {
    let length = 64 << 20;
    let node = Node::new("far", TcpConfig { chunk_bytes: 64 << 20, ..patient() });
    let (_region, desc) = node.region(length, Access::READ_ONLY);
    let mut peer = Raw::connect(node.port(), "late");
    peer.frame(&Frame::read(1, key_of(&desc), 0, length as u64));
    let head = peer.take(64).unwrap();
    assert_eq!((head[0], head[1]), (CHUNK, LAST));
    peer.frame(&Frame::new(CANCEL, 1));
    peer.frame(&Frame::read(2, 1, 0, 1));
    peer.take(length).unwrap();
    let next = peer.next().unwrap();
    assert_eq!((next.kind, next.id), (FAIL, 2));
}

/// An announced transfer whose connection breaks is reported once, and what was said to be on failure only is not
/// reported otherwise.
#[test]
fn announcements_are_reported_once_when_the_connection_breaks() {
    let node = Node::new("far", patient());
    let mut peer = Raw::connect(node.port(), "announcing");
    peer.frame(&Frame::note(0, 1, b"lost", ANNOUNCE | ON_FAILURE));
    peer.frame(&Frame::note(0, 2, b"done", ANNOUNCE | ON_FAILURE));
    peer.frame(&Frame::note(3, 2, b"done", ON_FAILURE));
    // A number that no transfer has.
    peer.frame(&Frame::note(0, u128::MAX, b"huge", ANNOUNCE | ON_FAILURE));
    assert_eq!(peer.next().unwrap(), Frame::new(DONE, 3));
    drop(peer);
    let done = node.notifications.wait(support::PATIENCE).unwrap();
    assert_eq!((done.message.as_slice(), done.transfer, done.error), (&b"done"[..], 2, None));
    let lost = node.notifications.wait(support::PATIENCE).unwrap();
    assert_eq!((lost.message.as_slice(), lost.transfer), (&b"lost"[..], 1));
    assert_eq!(lost.error.unwrap().kind(), ErrorKind::PeerLost);
    node.backend.shutdown();
    assert!(node.notifications.is_empty());
}

#[test]
fn a_flood_of_announcements_is_bounded() {
    let node = Node::new("far", patient());
    let mut peer = Raw::connect(node.port(), "announcing");
    let thrown_out = (0..200_000).any(|transfer| {
        let frame = Frame::note(0, transfer, &[1; 1000], ANNOUNCE | ON_FAILURE);
        peer.socket.write_all(&frame.bytes()).is_err()
    });
    assert!(thrown_out, "200 MB of announcements are kept");
}

/// A secret does not change any of this for those who know it.
#[test]
fn whoever_knows_the_secret_is_checked_all_the_same() {
    let config = TcpConfig { secret: Some(Secret::new(*b"swordfish")), ..patient() };
    let node = Node::new("far", config);
    let mut peer = Raw::connect_with(node.port(), "friend", Some(b"swordfish")).ok().unwrap();
    peer.frame(&Frame::read(1, 5, 0, 1));
    assert_eq!(peer.next().unwrap().count, ErrorKind::NotFound.number());
    peer.frame(&Frame::new(0x33, 1));
    peer.ended();
}
