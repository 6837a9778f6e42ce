//! Descriptors and threads: what comes also goes, and running out of them is survived.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mori_core::{Access, Backend, BackendContext, ErrorKind, NotificationQueue, Op, Piece, Session};
use mori_tcp::{TcpBackend, TcpConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::raw::{Frame, PING, PONG, Raw};
use support::relay::Relay;
use support::{Link, Node, fail, pair, submit, succeed, until};

/// The counts are the process's, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        ..TcpConfig::default()
    }
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The backends' threads in this process; those of the test's own harness come and go.
fn threads() -> usize {
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        // A thread that ends in between has no name any more.
        std::fs::read_to_string(entry.unwrap().path().join("comm")).unwrap_or_default()
    };
    let names = std::fs::read_dir("/proc/self/task").unwrap().map(named);
    names.filter(|name| name.starts_with("mori-tcp")).count()
}

/// Waits until the process holds no more descriptors than it did, and the threads of so many backends.
fn back_to(before: usize, backends: usize) {
    let wanted = backends * config().io_threads;
    until(&format!("there are {before} descriptors and {wanted} threads again"), || {
        descriptors() <= before && threads() == wanted
    });
}

/// Peers that are added, used and removed leave nothing behind.
#[test]
fn two_hundred_peers_come_and_go() {
    let _alone = alone();
    let (near, far) = pair(&config());
    let (local, _) = near.region(1000, Access::LOCAL);
    let (_remote, desc) = far.region(1000, Access::READ_WRITE);
    near.backend.remove_peer(&far.key);
    let cycle = || {
        near.backend.add_peer(&far.desc()).unwrap();
        let session = near.session(&local, &desc);
        succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]));
        near.backend.remove_peer(&far.key);
    };
    cycle();
    let before = descriptors();
    (0..200).for_each(|_| cycle());
    back_to(before, 2);
    assert_eq!(local.pins(), 0);
}

/// So do whole backends, however they end, with transfers under way.
#[test]
fn backends_come_and_go() {
    let _alone = alone();
    let cycle = |round: u64| {
        let link = Link::new(&config(), 100_000);
        match round % 4 {
            0 => link.works(),
            1 => {
                link.relay.hold();
                let statuses = [Op::Read, Op::Write].map(|op| link.whole(op));
                link.near.backend.shutdown();
                statuses.iter().for_each(|status| drop(fail(status, ErrorKind::BadState)));
            }
            2 => {
                link.relay.hold();
                let _status = link.whole(Op::Read);
            }
            _ => {
                link.far.backend.shutdown();
                fail(&link.whole(Op::Read), ErrorKind::PeerLost);
            }
        }
    };
    (0..4).for_each(cycle);
    let before = descriptors();
    (0..60).for_each(cycle);
    back_to(before, 0);
}

/// The connections of a peer that has died are given back although nobody uses or removes it.
#[test]
fn the_connections_of_dead_peers_are_given_back() {
    let _alone = alone();
    let near = Node::new("near", config());
    let (local, _) = near.region(100, Access::LOCAL);
    let live_and_die = |number| {
        let far = Node::new(&format!("far {number}"), config());
        near.backend.add_peer(&far.desc()).unwrap();
        let (_remote, desc) = far.region(100, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 100)]));
        session
    };
    let first = live_and_die(0);
    until("the loss is noticed", || !first.alive());
    let before = descriptors();
    let sessions: Vec<Arc<dyn Session>> = (1..50).map(live_and_die).collect();
    back_to(before, 1);
    assert!(sessions.iter().all(|session| !session.alive()));
}

/// Connections that are cut again and again are made again, and none is kept.
#[test]
fn connections_that_are_cut_again_and_again() {
    let _alone = alone();
    // Enough for every connection, so that all of them stand when the count is taken.
    let link = Link::new(&config(), 1 << 20);
    let cycle = |link: &Link, round: u64| {
        let break_it = if round.is_multiple_of(2) { Relay::cut } else { Relay::reset };
        break_it(&link.relay);
        until("the loss is noticed", || !link.session.alive());
        link.relay.flow();
        // A connection that was on its way when the others were cut is lost a little later.
        until("it works again", || support::finish(&link.whole(Op::Read)).is_success());
        link.works();
    };
    cycle(&link, 0);
    cycle(&link, 1);
    let before = descriptors();
    (0..50).for_each(|round| cycle(&link, round));
    back_to(before, 2);
}

/// Strangers leave nothing behind either.
#[test]
fn strangers_leave_nothing_behind() {
    let _alone = alone();
    let node = Node::new("far", config());
    let cycle = || {
        drop(Raw::silent(node.port()));
        let mut peer = Raw::connect(node.port(), "stranger");
        peer.frame(&Frame::new(PING, 0));
        assert_eq!(peer.next().unwrap().kind, PONG);
        let mut broken = Raw::connect(node.port(), "broken");
        broken.frame(&Frame::new(0x77, 0));
        broken.ended();
    };
    cycle();
    let before = descriptors();
    (0..100).for_each(|_| cycle());
    back_to(before, 1);
}

/// Puts the limit of descriptors back.
struct Limited(Rlimit);

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

/// Takes every descriptor that the process may still have.
fn exhaust() -> (Limited, Vec<File>) {
    let limit = getrlimit(Resource::Nofile);
    let restore = Limited(limit);
    let few = descriptors() as u64 + 50;
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), maximum: limit.maximum }).unwrap();
    (restore, std::iter::from_fn(|| File::open("/dev/null").ok()).collect())
}

fn context() -> BackendContext {
    BackendContext {
        engine: "late".into(),
        instance: support::instance(),
        node_id: "test".into(),
        notifications: NotificationQueue::new(1),
    }
}

/// Without descriptors nobody is accepted and nobody connected to, which says so; what stands goes on; and when there are some
/// again, both work.
#[test]
fn running_out_of_descriptors_is_survived() {
    let _alone = alone();
    let (near, far) = pair(&config());
    let (local, _) = near.region(1000, Access::LOCAL);
    let (_remote, desc) = far.region(1000, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]));
    let other = Node::new("other", config());
    let (_other_remote, other_desc) = other.region(1000, Access::READ_WRITE);
    near.backend.add_peer(&other.desc()).unwrap();
    let (restore, mut all) = exhaust();
    // What stands goes on.
    for op in [Op::Read, Op::Write] {
        succeed(&submit(&session, op, &[Piece::new(0, 0, 1000)]));
    }
    // Nothing new is connected to, and that is not the peer's fault.
    let error = near.backend.session(&local, &other_desc).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert!(error.message().contains("other") && error.cause().is_some(), "{error}");
    // One is enough to connect; then the other side has none to accept with.
    all.truncate(all.len() - 1);
    let waiting = Raw::silent(other.port());
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]));
    drop(all);
    // The one that was kept waiting is served, and others are.
    drop(waiting);
    let session = near.session(&local, &other_desc);
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1000)]));
    drop(restore);
    // A backend that finds none at all says so, too.
    let (restore, all) = exhaust();
    let error = Node::try_new("late", config()).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::Unavailable), "{error}");
    // With some, but not enough, it can be tried again: three are the socket and half of what a thread needs.
    drop(all);
    drop(restore);
    let (restore, mut all) = exhaust();
    let backend = TcpBackend::new(config()).unwrap();
    all.truncate(all.len() - 3);
    let error = backend.attach(context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    drop(all);
    drop(restore);
    backend.attach(context()).unwrap();
    succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 1000)]));
}

/// A peer whose name has to be looked up costs a thread for as long as that takes, and no longer.
#[test]
fn threads_that_look_up_names_end() {
    let _alone = alone();
    let near = Node::new("near", config());
    let far = Node::new("far", TcpConfig { advertise: Some("localhost".into()), ..config() });
    let (local, _) = near.region(100, Access::LOCAL);
    let (_remote, desc) = far.region(100, Access::READ_WRITE);
    let cycle = || {
        near.backend.add_peer(&far.desc()).unwrap();
        succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 100)]));
        near.backend.remove_peer(&far.key);
    };
    cycle();
    let before = descriptors();
    (0..30).for_each(|_| cycle());
    back_to(before, 2);
}
