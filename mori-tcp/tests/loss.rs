//! Peers that die, are cut off, fall silent, never answer or come back as others (contract E4).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::future::Future;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use mori_core::{Access, Backend, ErrorKind, Op, Piece, Status, StatusCode};
use mori_tcp::TcpConfig;
use support::raw::{CHUNK, DONE, Frame, LAST, PING, PONG, Raw, Stage, key_of};
use support::relay::{Relay, Way};
use support::{Link, Node, bytes, fail, pattern, submit, succeed, until};

/// Silence is not noticed while a test runs.
fn patient() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        stripe_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        ..TcpConfig::default()
    }
}

/// Silence is noticed soon.
fn hasty() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_millis(800),
        connect_timeout: Duration::from_millis(800),
        ..patient()
    }
}

const LENGTH: usize = 4 << 20;

/// A batch of reads and writes of everything, one of them striped over all connections.
fn batch(link: &Link, op: Op) -> Vec<Status> {
    let small = |at: u64| submit(&link.session, op, &[Piece::new(at * 1000, at * 1000, 999)]);
    (0..10).map(small).chain([link.whole(op)]).chain((10..20).map(small)).collect()
}

/// Wants every transfer of a batch to end by itself, those that failed as lost peers.
fn all_lost(statuses: &[Status]) {
    let mut lost = 0;
    for status in statuses {
        if support::finish(status) != StatusCode::Success {
            let error = fail(status, ErrorKind::PeerLost);
            assert!(error.message().contains("far"), "{error}");
            lost += 1;
        }
    }
    assert!(lost > 0, "nothing was lost");
}

/// E4: a closed or reset connection ends its transfers at once; no byte lands in our memory afterwards; and when the peer is
/// back, everything works without a restart.
#[test]
fn e4_a_cut_in_the_middle_of_a_batch() {
    for (cut, op) in [
        (Relay::cut as fn(&Relay), Op::Read),
        (Relay::cut, Op::Write),
        (Relay::reset, Op::Read),
        (Relay::reset, Op::Write),
    ] {
        for passed in [0, 100_000, 2 << 20] {
            let link = Link::new(&patient(), LENGTH);
            let way = if op == Op::Read { Way::Down } else { Way::Up };
            link.relay.allow(way, passed);
            let statuses = batch(&link, op);
            link.relay.wait_held(way);
            cut(&link.relay);
            all_lost(&statuses);
            assert_eq!(link.local.pins(), 0);
            assert!(!link.session.alive());
            until("the target drops what is half written", || link.remote.pins() == 0);
            let marks = pattern(LENGTH, 9);
            link.local.write_at(0, &marks).unwrap();
            link.relay.flow();
            succeed(&submit(&link.session, Op::Write, &[Piece::new(0, 0, LENGTH as u64)]));
            assert!(bytes(&link.local) == marks, "a late byte");
            assert!(link.session.alive());
            link.works();
        }
    }
}

/// E4: one connection of several is cut: what is on it fails, and the others go on.
#[test]
fn e4_one_connection_of_several_is_cut() {
    let link = Link::new(&TcpConfig { connections: 3, ..patient() }, LENGTH);
    for round in 0..5 {
        link.relay.allow(Way::Down, 1 << 20);
        let striped = link.whole(Op::Read);
        link.relay.wait_held(Way::Down);
        link.relay.cut_one();
        fail(&striped, ErrorKind::PeerLost);
        assert!(link.session.alive(), "round {round}: two connections stand");
        link.relay.flow();
        link.works();
    }
    assert_eq!(link.local.pins(), 0);
}

/// E4: a silent peer is lost within the configured time, which the failure says; what it sends when it comes back to life
/// lands nowhere.
#[test]
fn e4_a_silent_peer_is_lost_within_the_configured_time() {
    for op in [Op::Read, Op::Write] {
        let link = Link::between(Node::new("near", hasty()), Node::new("far", patient()), LENGTH);
        let way = if op == Op::Read { Way::Down } else { Way::Up };
        link.relay.allow(way, 100_000);
        let statuses = batch(&link, op);
        link.relay.wait_held(way);
        all_lost(&statuses);
        let error = statuses.iter().find_map(Status::error).unwrap();
        assert!(error.message().contains("silent") && error.message().contains("800ms"), "{error}");
        assert_eq!(link.local.pins(), 0);
        let marks = pattern(LENGTH, 9);
        link.local.write_at(0, &marks).unwrap();
        link.relay.flow();
        succeed(&submit(&link.session, Op::Write, &[Piece::new(0, 0, LENGTH as u64)]));
        assert!(bytes(&link.local) == marks, "a late byte");
        link.works();
        until("the target drops what was under way", || link.remote.pins() == 0);
    }
}

/// E4: a peer that is silent for less than the bound loses nothing, in either direction.
#[test]
fn e4_a_pause_shorter_than_the_bound_fails_nothing() {
    let config = TcpConfig { peer_timeout: Duration::from_secs(4), ..patient() };
    let link = Link::new(&config, LENGTH);
    let content = bytes(&link.remote);
    for op in [Op::Read, Op::Write] {
        for _ in 0..2 {
            link.relay.hold();
            let statuses = batch(&link, op);
            let longest = &statuses[10];
            assert_eq!(longest.wait(Duration::from_millis(400)), StatusCode::InProgress);
            link.relay.flow();
            statuses.iter().for_each(succeed);
        }
    }
    assert!(bytes(&link.local) == content && bytes(&link.remote) == content);
}

/// E4: slow is not silent: a peer that takes or gives a little from time to time is not lost, however long it takes.
#[test]
fn e4_a_slow_peer_is_not_lost() {
    for op in [Op::Read, Op::Write] {
        let link = Link::new(&TcpConfig { connections: 1, ..hasty() }, 16 << 20);
        let way = if op == Op::Read { Way::Down } else { Way::Up };
        link.relay.allow(way, 0);
        let status = link.whole(op);
        // Three times the bound in all.
        for _ in 0..24 {
            link.relay.allow(way, 300_000);
            assert_eq!(status.wait(Duration::from_millis(100)), StatusCode::InProgress, "{status:?}");
        }
        link.relay.flow();
        succeed(&status);
    }
}

/// E4: a peer that works on one request for long, and answers that it is there, is not lost.
#[test]
fn e4_a_peer_that_keeps_alive_is_not_lost() {
    let stage = Stage::new("far");
    let near = Node::new("near", TcpConfig { connections: 1, ..hasty() });
    near.backend.add_peer(&stage.desc()).unwrap();
    let (local, _) = near.region(100, Access::LOCAL);
    let (enough, wanted) = channel::<()>();
    std::thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let wanted = wanted;
            let mut raw = stage.accept();
            let id = raw.request().unwrap().id;
            let mut pings = 0;
            while wanted.try_recv().is_err() {
                assert_eq!(raw.next().unwrap().kind, PING);
                raw.frame(&Frame::new(PONG, 0));
                pings += 1;
            }
            raw.frame(&Frame { flags: LAST, payload: vec![5; 100], ..Frame::new(CHUNK, id) });
            (raw, pings)
        });
        let session = near.session(&local, &stage.memory(100));
        let status = submit(&session, Op::Read, &[Piece::new(0, 0, 100)]);
        assert_eq!(status.wait(Duration::from_millis(2500)), StatusCode::InProgress);
        enough.send(()).unwrap();
        succeed(&status);
        let (_raw, pings) = playing.join().unwrap();
        assert!(pings > 1, "{pings}");
    });
}

/// E4: one peer is silent, one is gone, one refuses; transfers with the others are not delayed by them, on one thread.
#[test]
fn e4_other_peers_are_not_delayed() {
    let config = TcpConfig { io_threads: 1, ..patient() };
    let near = Node::new("near", config.clone());
    let node = |key: &str| Node::new(key, config.clone());
    let silent = Link::between(near, node("silent"), LENGTH);
    let near = &silent.near;
    let lost = node("lost");
    let (lost_region, lost_desc) = lost.region(100, Access::READ_WRITE);
    let relay = Relay::new(lost.port()).unwrap();
    near.backend.add_peer(&lost.behind(&relay)).unwrap();
    let lost_session = near.session(&silent.local, &lost_desc);
    let healthy = node("healthy");
    near.backend.add_peer(&healthy.desc()).unwrap();
    let (remote, desc) = healthy.region(LENGTH, Access::READ_WRITE);
    let (local, _) = near.region(LENGTH, Access::LOCAL);
    let session = near.session(&local, &desc);
    silent.relay.hold();
    let held: Vec<Status> = [Op::Read, Op::Write].map(|op| silent.whole(op)).into();
    relay.cut();
    for round in 0..30 {
        fail(&submit(&lost_session, Op::Read, &[Piece::new(0, 0, 100)]), ErrorKind::PeerLost);
        let content = pattern(LENGTH, round);
        remote.write_at(0, &content).unwrap();
        succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, LENGTH as u64)]));
        assert!(bytes(&local) == content);
    }
    assert!(
        held.iter().all(|status| status.code() == StatusCode::InProgress),
        "the peer was silent all the time"
    );
    silent.relay.flow();
    held.iter().for_each(succeed);
    drop(lost_region);
}

/// E4: a silent peer is lost within the configured time also while the thread never comes to rest, and had slept before.
#[test]
fn e4_a_silent_peer_is_lost_under_steady_traffic() {
    let busy = TcpConfig { io_threads: 1, busy_window: Duration::from_millis(10), ..hasty() };
    let silent = Link::between(Node::new("near", busy), Node::new("far", patient()), LENGTH);
    let healthy = Node::new("healthy", patient());
    silent.near.backend.add_peer(&healthy.desc()).unwrap();
    let (_remote, desc) = healthy.region(4096, Access::READ_WRITE);
    let (local, _) = silent.near.region(4096, Access::LOCAL);
    let session = silent.near.session(&local, &desc);
    // Nothing comes; meanwhile the thread stops looking at its clock.
    assert_eq!(silent.near.notifications.wait(Duration::from_millis(600)), None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 4096)]));
            }
        });
        silent.relay.hold();
        let error = silent.whole(Op::Read).wait(support::PATIENCE);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(error, StatusCode::Failure(ErrorKind::PeerLost));
    });
}

/// E4: nobody listens at the address: at once.
#[test]
fn e4_a_refused_connection_is_a_lost_peer_at_once() {
    let near = Node::new("near", patient());
    let far = Node::new("far", patient());
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    near.backend.add_peer(&far.desc()).unwrap();
    far.backend.shutdown();
    let (local, _) = near.region(100, Access::LOCAL);
    for _ in 0..3 {
        let error = near.backend.session(&local, &desc).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert!(error.message().contains("far") && error.message().contains("127.0.0.1"), "{error}");
        assert_eq!(error.cause().unwrap().domain, "errno");
    }
}

/// E4: somebody listens and never accepts, or accepts and never answers: within the time for connecting.
#[test]
fn e4_an_address_that_does_not_answer_is_a_lost_peer_within_the_bound() {
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(1).unwrap();
    let port = full.local_addr().unwrap().as_socket().unwrap().port();
    // Fills the queue of connections that wait to be accepted.
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into());
            socket
        })
        .collect();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [port, silent.local_addr().unwrap().port()] {
        let near = Node::new("near", hasty());
        let far = Node::new("far", patient());
        let (_remote, desc) = far.region(100, Access::READ_WRITE);
        let mut peer = far.desc();
        peer.transports[0].bytes[16..18].copy_from_slice(&port.to_le_bytes());
        near.backend.add_peer(&peer).unwrap();
        let (local, _) = near.region(100, Access::LOCAL);
        let error = near.backend.session(&local, &desc).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.message().contains("800ms"), "{error}");
    }
    drop(waiting);
}

/// E4: a name that does not resolve is a lost peer that is named, and delays no other.
#[test]
fn e4_a_name_that_does_not_resolve() {
    let near = Node::new("near", TcpConfig { connect_timeout: Duration::from_secs(20), ..patient() });
    let far = Node::new("far", TcpConfig { advertise: Some("no-such-host.invalid".into()), ..patient() });
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    near.backend.add_peer(&far.desc()).unwrap();
    let (local, _) = near.region(100, Access::LOCAL);
    let error = near.backend.session(&local, &desc).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
}

/// E4: a peer restarted under the same name is another one: what is from before fails clearly, what is new works.
#[test]
fn e4_a_peer_restarted_under_the_same_name_is_another_one() {
    let link = Link::new(&patient(), 1000);
    let Link { relay, session, local, near, far, desc: stale, .. } = link;
    // In progress when the peer goes.
    relay.hold();
    let under_way = [Op::Read, Op::Write].map(|op| submit(&session, op, &[Piece::new(0, 0, 1000)]));
    far.backend.shutdown();
    relay.cut();
    under_way.iter().for_each(|status| drop(fail(status, ErrorKind::PeerLost)));
    drop(relay);
    drop(far);
    let again = Node::new("far", patient());
    let (remote, fresh) = again.region(1000, Access::READ_WRITE);
    // The old session finds the new engine at the address that it knows, and does not take it for the old one.
    let mut moved = again.desc();
    moved.transports[0].bytes[..16].copy_from_slice(&stale.blob("tcp").unwrap().bytes[16..32]);
    near.backend.add_peer(&moved).unwrap();
    let error = fail(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]), ErrorKind::PeerLost);
    assert!(error.message().contains("restarted"), "{error}");
    // The new descriptors work, the old memory is stale, the old session is of no use any more.
    near.backend.add_peer(&again.desc()).unwrap();
    let content = pattern(1000, 6);
    remote.write_at(0, &content).unwrap();
    let new = near.session(&local, &fresh);
    succeed(&submit(&new, Op::Read, &[Piece::new(0, 0, 1000)]));
    assert!(bytes(&local) == content);
    let error = near.backend.session(&local, &stale).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("stale"), "{error}");
    let error = fail(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]), ErrorKind::PeerLost);
    assert!(error.message().contains("incarnation"), "{error}");
    assert!(!session.alive() && new.alive());
}

/// E4: the same peer at another address is found there after its connections broke.
#[test]
fn e4_a_peer_that_moved_is_found_at_its_new_address() {
    let link = Link::new(&patient(), 1000);
    link.works();
    let moved = Relay::new(link.far.port()).unwrap();
    link.near.backend.add_peer(&link.far.behind(&moved)).unwrap();
    link.relay.cut();
    until("the loss is noticed", || !link.session.alive());
    link.works();
}

/// E4: a peer that is removed ends its transfers; one that is added again works.
#[test]
fn e4_a_removed_peer_ends_its_transfers() {
    let link = Link::new(&patient(), LENGTH);
    link.relay.hold();
    let statuses = batch(&link, Op::Read);
    link.near.backend.remove_peer(&"far".into());
    for status in &statuses {
        let error = fail(status, ErrorKind::BadState);
        assert!(error.message().contains("removed"), "{error}");
    }
    assert_eq!(link.local.pins(), 0);
    assert!(!link.session.alive());
    fail(&link.whole(Op::Read), ErrorKind::BadState);
    link.relay.flow();
    link.near.backend.add_peer(&link.far.behind(&link.relay)).unwrap();
    let session = link.near.session(&link.local, &link.desc);
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, LENGTH as u64)]));
}

/// Keeps the thread that wakes it until it is told to go on.
struct Gate {
    reached: Mutex<Sender<()>>,
    open: Mutex<Receiver<()>>,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.reached.lock().unwrap().send(()).unwrap();
        let _ = self.open.lock().unwrap().recv();
    }
}

/// E4: when the target finds that a connection is broken, it drops what came over it and was not looked at: those transfers have
/// ended at their submitter, whose application may have given the memory to somebody else.
#[test]
fn e4_what_a_lost_initiator_left_behind_is_dropped() {
    let far = Node::new("far", TcpConfig { io_threads: 1, ..patient() });
    let (region, desc) = far.region(1000, Access::READ_WRITE);
    let key = key_of(&desc);
    for reset in [false, true] {
        let mut peer = Raw::connect(far.port(), "dying");
        peer.frame(&Frame::write(1, key, 0, 10, &[1; 10]));
        assert_eq!(peer.next().unwrap(), Frame::new(DONE, 1));
        // The only thread of the target is kept busy, by its application.
        let (reached, arrived) = channel();
        let (open, opened) = channel();
        let waker = Waker::from(Arc::new(Gate { reached: Mutex::new(reached), open: Mutex::new(opened) }));
        let mut message = Box::pin(far.notifications.recv());
        assert!(message.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let mut other = Raw::connect(far.port(), "other");
        other.frame(&Frame::note(1, 1, b"wait", 0));
        arrived.recv().unwrap();
        // Meanwhile these arrive, and then the end of the connection.
        peer.frame(&Frame::write(2, key, 100, 10, &[2; 10]));
        peer.frame(&Frame::write(3, key, 200, 100, &[3; 50]));
        if reset {
            socket2::SockRef::from(&peer.socket).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(peer);
        open.send(()).unwrap();
        assert_eq!(other.next().unwrap(), Frame::new(DONE, 1));
        // The thread has looked at everything that was there before this.
        for id in 2..5 {
            other.frame(&Frame::note(id, 1, b"over", 0));
            assert_eq!(other.next().unwrap(), Frame::new(DONE, id));
        }
        let got = bytes(&region);
        assert!(got[..10] == [1; 10] && got[10..].iter().all(|&byte| byte == 0), "reset: {reset}");
        assert_eq!(region.pins(), 0);
        while far.notifications.poll().is_some() {}
    }
}
