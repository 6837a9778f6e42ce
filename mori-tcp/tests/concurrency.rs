//! Many threads on the same connections: no submission is left behind, and every byte is right.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Barrier;
use std::time::Duration;

use mori_core::{Access, Backend, Op, Piece, Status, wait_all};
use mori_tcp::TcpConfig;
use support::{Node, PATIENCE, bytes, finish, notify, pair, pattern, submit, succeed};

/// Nothing looks at what was left lying about before the test has given up.
fn config() -> TcpConfig {
    TcpConfig {
        connections: 1,
        io_threads: 1,
        busy_window: Duration::ZERO,
        peer_timeout: Duration::from_secs(3600),
        connect_timeout: Duration::from_secs(3600),
        ..TcpConfig::default()
    }
}

/// S7: a frame that is submitted while another thread holds the queue is sent by that thread. With nothing else under way,
/// nobody would come along later.
#[test]
fn s7_no_submission_is_left_behind() {
    let (near, far) = pair(&config());
    let (_remote, desc) = far.region(4096, Access::READ_WRITE);
    let rounds = 6000;
    let meet = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (near, desc, meet) = (&near, &desc, &meet);
            scope.spawn(move || {
                let (local, _) = near.region(4096, Access::LOCAL);
                let session = near.session(&local, desc);
                for round in 0..rounds {
                    meet.wait();
                    // The second submission falls anywhere into what the first sets off.
                    if thread == 1 {
                        (0..round % 500).for_each(|_| std::hint::spin_loop());
                    }
                    let op = if round % 4 < 2 { Op::Read } else { Op::Write };
                    let status = submit(&session, op, &[Piece::new(0, 0, 64)]);
                    if round % 10 == 9 {
                        status.cancel().unwrap();
                        finish(&status);
                    } else {
                        succeed(&status);
                    }
                }
            });
        }
    });
}

/// Several threads share one session; each has a part of both regions for itself.
#[test]
fn several_threads_share_a_session() {
    let config = TcpConfig { connections: 3, io_threads: 2, stripe_bytes: 32 << 10, ..config() };
    let (near, far) = pair(&config);
    let (threads, share) = (6, 300_000);
    let (local, _) = near.region(threads * share, Access::LOCAL);
    let (remote, desc) = far.region(threads * share, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (session, local, remote) = (&session, &local, &remote);
            scope.spawn(move || {
                let start = (thread * share) as u64;
                for round in 0..20 {
                    let content = pattern(share, round * 100 + thread as u64);
                    local.write_at(start, &content).unwrap();
                    // Pieces of all sizes, in an order of their own.
                    let pieces: Vec<Piece> = (0..30)
                        .map(|at| (at * 7 + round) % 30)
                        .map(|at| Piece::new(start + at * 10_000, start + at * 10_000, 10_000 - round))
                        .collect();
                    let check = |got: &[u8]| {
                        for piece in &pieces {
                            let from = usize::try_from(piece.local - start).unwrap();
                            let range = from..from + usize::try_from(piece.length).unwrap();
                            assert!(got[range.clone()] == content[range]);
                        }
                    };
                    succeed(&submit(session, Op::Write, &pieces));
                    let mut got = vec![0; share];
                    remote.read_at(start, &mut got).unwrap();
                    check(&got);
                    local.write_at(start, &vec![0; share]).unwrap();
                    succeed(&submit(session, Op::Read, &pieces));
                    local.read_at(start, &mut got).unwrap();
                    check(&got);
                }
            });
        }
    });
    assert_eq!(local.pins(), 0);
}

/// Many sessions between the same engines, and between the same regions.
#[test]
fn many_sessions_between_the_same_engines() {
    let (near, far) = pair(&config());
    let links: Vec<_> = (0..100)
        .map(|seed| {
            let (local, _) = near.region(5000, Access::LOCAL);
            let (remote, desc) = far.region(5000, Access::READ_WRITE);
            remote.write_at(0, &pattern(5000, seed)).unwrap();
            let sessions = [near.session(&local, &desc), near.session(&local, &desc)];
            (local, remote, sessions)
        })
        .collect();
    let statuses: Vec<Status> = links
        .iter()
        .flat_map(|(_, _, sessions)| {
            [(0, 0), (1, 2500)]
                .map(|(session, at)| submit(&sessions[session], Op::Read, &[Piece::new(at, at, 2500)]))
        })
        .collect();
    assert!(wait_all(&statuses, PATIENCE).is_success());
    for (seed, (local, ..)) in links.iter().enumerate() {
        assert!(bytes(local) == pattern(5000, seed as u64));
    }
}

/// Both sides read from and write to each other at once, over connections that each has opened.
#[test]
fn both_sides_at_once() {
    let (one, two) = pair(&TcpConfig { connections: 2, io_threads: 2, ..config() });
    two.backend.add_peer(&one.desc()).unwrap();
    let length = 2 << 20;
    std::thread::scope(|scope| {
        for (near, far, seed) in [(&one, &two, 1), (&two, &one, 2)] {
            scope.spawn(move || {
                let (local, _) = near.region(length, Access::LOCAL);
                let (remote, desc) = far.region(length, Access::READ_WRITE);
                let session = near.session(&local, &desc);
                for round in 0..15 {
                    let content = pattern(length, seed * 1000 + round);
                    local.write_at(0, &content).unwrap();
                    let whole = [Piece::new(0, 0, length as u64)];
                    succeed(&session.submit(Op::Write, &whole, &notify(round, b"written", true)));
                    let message = far.notifications.wait(PATIENCE).unwrap();
                    assert_eq!((message.peer, message.error), (near.key.clone(), None));
                    assert!(bytes(&remote) == content);
                    local.write_at(0, &vec![0; length]).unwrap();
                    succeed(&submit(&session, Op::Read, &whole));
                    assert!(bytes(&local) == content);
                }
            });
        }
    });
}

/// Peers are added, replaced and removed, and regions come and go, while transfers with others run.
#[test]
fn peers_and_regions_come_and_go_under_traffic() {
    let near = Node::new("near", TcpConfig { io_threads: 2, ..config() });
    let steady = Node::new("steady", config());
    near.backend.add_peer(&steady.desc()).unwrap();
    std::thread::scope(|scope| {
        let changing: Vec<_> = (0..2)
            .map(|thread| {
                let near = &near;
                scope.spawn(move || {
                    for round in 0..15 {
                        // The same name again and again, in a new incarnation each time.
                        let far = Node::new(&format!("changing {thread}"), config());
                        near.backend.add_peer(&far.desc()).unwrap();
                        let (local, _) = near.region(1000, Access::LOCAL);
                        let (remote, desc) = far.region(1000, Access::READ_WRITE);
                        remote.write_at(0, &pattern(1000, round)).unwrap();
                        let session = near.session(&local, &desc);
                        succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]));
                        assert!(bytes(&local) == pattern(1000, round));
                        near.backend.deregister(local.id());
                        if round % 2 == 0 {
                            near.backend.remove_peer(&far.key);
                        }
                    }
                })
            })
            .collect();
        let (local, _) = near.region(100_000, Access::LOCAL);
        let (remote, desc) = steady.region(100_000, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        let mut round = 0;
        while round < 50 || !changing.iter().all(|thread| thread.is_finished()) {
            round += 1;
            remote.write_at(0, &pattern(100_000, round)).unwrap();
            succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 100_000)]));
            assert!(bytes(&local) == pattern(100_000, round));
        }
    });
}

/// An engine may be its own peer, also on a single thread that serves both ends.
#[test]
fn an_engine_may_be_its_own_peer() {
    for io_threads in [1, 2] {
        let node = Node::new("self", TcpConfig { io_threads, ..config() });
        node.backend.add_peer(&node.desc()).unwrap();
        let length = 3 << 20;
        let (local, _) = node.region(length, Access::LOCAL);
        let (remote, desc) = node.region(length, Access::READ_WRITE);
        remote.write_at(0, &pattern(length, 1)).unwrap();
        let session = node.session(&local, &desc);
        let whole = [Piece::new(0, 0, length as u64)];
        succeed(&submit(&session, Op::Read, &whole));
        assert!(bytes(&local) == pattern(length, 1));
        local.write_at(0, &pattern(length, 2)).unwrap();
        succeed(&session.submit(Op::Write, &whole, &notify(1, b"to myself", true)));
        assert!(bytes(&remote) == pattern(length, 2));
        assert_eq!(node.notifications.wait(PATIENCE).unwrap().peer, node.key);
    }
}
