//! What outlives what (contract S5–S7, E3): every order of dropping, shutdown by anybody at any time, memory in use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::future::{Future, IntoFuture};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use mori_core::{
    Access, Backend, Clock, ErrorKind, Observe, Op, Piece, Region, Session, Status, StatusCode, Timeout,
};
use mori_tcp::{TcpBackend, TcpConfig};
use support::relay::Way;
use support::{Link, Node, PATIENCE, bytes, fail, finish, notify, pair, pattern, submit, succeed, until};

fn config() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        stripe_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        ..TcpConfig::default()
    }
}

const LENGTH: usize = 1 << 20;

/// What a caller holds, to be dropped in any order.
enum Held {
    Session(Arc<dyn Session>),
    Backend(Node),
    Regions([Region; 2]),
    Statuses(Vec<Status>),
    Target(Node),
}

/// Every order of so many things, by Heap's algorithm.
fn orders(count: usize) -> Vec<Vec<usize>> {
    fn heap(k: usize, order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if k <= 1 {
            all.push(order.clone());
            return;
        }
        for at in 0..k {
            heap(k - 1, order, all);
            order.swap(if k.is_multiple_of(2) { at } else { 0 }, k - 1);
        }
    }
    let mut all = Vec::new();
    heap(count, &mut (0..count).collect(), &mut all);
    all
}

/// S6, S7: with transfers in progress, everything may be dropped in every order; each transfer ends, and the memory stays
/// until then.
#[test]
fn s6_everything_may_be_dropped_in_every_order() {
    for (round, order) in orders(5).into_iter().enumerate() {
        let Link { relay, session, local, remote, near, far, .. } = Link::new(&config(), LENGTH);
        relay.allow(if round % 2 == 0 { Way::Down } else { Way::Up }, (round as u64 % 5) * 100_000);
        let whole = [Piece::new(0, 0, LENGTH as u64)];
        let options = notify(1, b"bye", true);
        let statuses: Vec<Status> = [Op::Read, Op::Write, Op::Read]
            .into_iter()
            .map(|op| session.submit(op, &whole, &options))
            .collect();
        let watched = statuses.clone();
        let mut held = [
            Held::Session(session),
            Held::Backend(near),
            Held::Regions([local, remote]),
            Held::Statuses(statuses),
            Held::Target(far),
        ]
        .map(Some);
        for at in order {
            match held[at].take().unwrap() {
                Held::Session(session) => drop(session),
                Held::Regions(regions) => drop(regions),
                Held::Statuses(statuses) => drop(statuses),
                Held::Target(node) => drop(node),
                Held::Backend(node) => {
                    drop(node);
                    // S7: its transfers have ended when it is gone.
                    for status in &watched {
                        assert!(status.code().is_terminal(), "{status:?}");
                    }
                }
            }
        }
        for status in &watched {
            // Too late to cancel anything, and nobody there to do it (S6).
            status.cancel().unwrap();
            status.poll();
            let StatusCode::Failure(kind) = status.code() else { continue };
            assert!(matches!(kind, ErrorKind::BadState | ErrorKind::PeerLost), "{status:?}");
        }
        drop(relay);
    }
}

/// S7: shutdown, from several threads at once and again later, returns only when every transfer has ended.
#[test]
fn s7_every_call_of_shutdown_returns_when_all_is_over() {
    for round in 0..30 {
        let link = Link::new(&TcpConfig { io_threads: 3, connections: 3, ..config() }, LENGTH);
        link.relay.hold();
        let statuses: Vec<Status> =
            (0..40).map(|at| link.whole(if at % 2 == 0 { Op::Read } else { Op::Write })).collect();
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    link.near.backend.shutdown();
                    for status in &statuses {
                        let code = status.code();
                        assert_eq!(code, StatusCode::Failure(ErrorKind::BadState), "round {round}");
                    }
                    assert_eq!(link.local.pins(), 0);
                });
            }
        });
        link.near.backend.shutdown();
        assert!(statuses[0].message().contains("shut down"), "{:?}", statuses[0]);
    }
}

/// S7: whatever is submitted or opened while the backend shuts down ends, at once afterwards.
#[test]
fn s7_submissions_that_race_with_shutdown_end() {
    for round in 0..150 {
        let link = Link::new(&config(), 1000);
        if round % 3 == 0 {
            // Without connections, so that the submission makes them.
            link.relay.cut();
            until("the loss is noticed", || !link.session.alive());
            link.relay.flow();
        }
        let expected = |code| {
            // A connection that was being made when the others were cut is lost a little later.
            let lost = round % 3 == 0 && code == StatusCode::Failure(ErrorKind::PeerLost);
            lost || code == StatusCode::Failure(ErrorKind::BadState)
        };
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            let submitting = scope.spawn(|| {
                start.wait();
                (0..50).map(|_| link.whole(Op::Write)).collect::<Vec<_>>()
            });
            let opening = scope.spawn(|| {
                start.wait();
                link.near.backend.session(&link.local, &link.desc).map(drop)
            });
            start.wait();
            link.near.backend.shutdown();
            for status in submitting.join().unwrap() {
                let code = finish(&status);
                assert!(code.is_success() || expected(code), "round {round}: {status:?}");
            }
            if let Err(error) = opening.join().unwrap() {
                assert!(expected(StatusCode::Failure(error.kind())), "round {round}: {error}");
            }
        });
        assert_eq!(link.local.pins(), 0);
    }
}

/// After shutdown every call answers with an error, and every session fails its submissions.
#[test]
fn after_shutdown_everything_is_a_bad_state() {
    let link = Link::new(&config(), 1000);
    let backend = &link.near.backend;
    backend.shutdown();
    for op in [Op::Read, Op::Write] {
        fail(&link.whole(op), ErrorKind::BadState);
        let status = link.session.submit(op, &[], &notify(1, b"x", true));
        fail(&status, ErrorKind::BadState);
    }
    assert_eq!(backend.register(&link.local).unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(backend.add_peer(&link.far.desc()).unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(backend.route(&link.local, &link.desc).unwrap_err().kind(), ErrorKind::BadState);
    let error = backend.session(&link.local, &link.desc).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    backend.remove_peer(&"far".into());
    backend.deregister(link.local.id());
    backend.shutdown();
}

/// Shuts the backend down, or drops the last handle of it, on the thread that ends a transfer.
struct Ending {
    backend: Mutex<Option<Arc<TcpBackend>>>,
    shut_down: bool,
}

impl Observe for Ending {
    fn on_terminal(&self, _code: StatusCode) {
        if let Some(backend) = self.backend.lock().unwrap().take() {
            if self.shut_down {
                backend.shutdown();
            }
        }
    }
}

/// S6: the backend may end on one of its own threads, in what a transfer's end sets off.
#[test]
fn s6_a_backend_may_end_on_its_own_threads() {
    for round in 0..20 {
        let (near, far) = pair(&TcpConfig { io_threads: 2, connections: 2, ..config() });
        let (local, _) = near.region(LENGTH, Access::LOCAL);
        let (_remote, desc) = far.region(LENGTH, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        let statuses: Vec<Status> =
            (0..10).map(|_| submit(&session, Op::Read, &[Piece::new(0, 0, LENGTH as u64)])).collect();
        for status in &statuses {
            let backend = Some(Arc::clone(&near.backend));
            let ending = Ending { backend: Mutex::new(backend), shut_down: round % 2 == 0 };
            status.subscribe(Arc::new(ending));
        }
        drop(near);
        for status in &statuses {
            let code = finish(status);
            assert!(code.is_success() || code == StatusCode::Failure(ErrorKind::BadState), "{status:?}");
        }
        // The observers are told after the status has ended.
        let gone = StatusCode::Failure(ErrorKind::BadState);
        until("the backend has ended", || {
            finish(&submit(&session, Op::Read, &[Piece::new(0, 0, 1)])) == gone
        });
    }
}

/// Panics whoever wakes it.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

impl Observe for Panicking {
    fn on_terminal(&self, _code: StatusCode) {
        panic!("an observer that panics");
    }
}

/// S5: an application's waker or observer that panics takes nobody with it, neither here nor at the target.
#[test]
fn s5_a_panicking_observer_ends_no_thread() {
    let link = Link::new(&TcpConfig { io_threads: 1, connections: 1, ..config() }, LENGTH);
    let waker = Waker::from(Arc::new(Panicking));
    for op in [Op::Read, Op::Write, Op::Read] {
        link.relay.hold();
        let mut message = Box::pin(link.far.notifications.recv());
        assert!(message.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let statuses: Vec<Status> = (0..4)
            .map(|_| link.session.submit(op, &[Piece::new(0, 0, 1000)], &notify(1, b"boo", false)))
            .collect();
        assert!(statuses[1].subscribe(Arc::new(Panicking)));
        let mut future = Box::pin((&statuses[2]).into_future());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        link.relay.flow();
        statuses.iter().for_each(succeed);
        for _ in 0..4 {
            assert!(link.far.notifications.wait(PATIENCE).is_some());
        }
    }
    link.works();
    // In the middle of a shutdown, too.
    link.relay.hold();
    let statuses: Vec<Status> = (0..4).map(|_| link.whole(Op::Read)).collect();
    for status in &statuses {
        assert!(status.subscribe(Arc::new(Panicking)));
    }
    link.near.backend.shutdown();
    statuses.iter().for_each(|status| drop(fail(status, ErrorKind::BadState)));
    assert_eq!(link.local.pins(), 0);
}

/// E3: memory that a transfer uses is not closed, on either side, and can be when the transfer has ended, however it does.
#[test]
fn e3_a_region_in_use_is_refused_as_busy() {
    let clock = Clock::system();
    for (op, end) in [
        (Op::Read, ErrorKind::Cancelled),
        (Op::Write, ErrorKind::Cancelled),
        (Op::Read, ErrorKind::PeerLost),
        (Op::Write, ErrorKind::PeerLost),
        (Op::Read, ErrorKind::BadState),
        (Op::Write, ErrorKind::BadState),
    ] {
        let link = Link::new(&TcpConfig { connections: 1, ..config() }, 16 << 20);
        let way = if op == Op::Read { Way::Down } else { Way::Up };
        link.relay.allow(way, 500_000);
        let status = link.whole(op);
        link.relay.wait_held(way);
        // More than all buffers in between take, so that both sides still need their memory.
        until("the target has begun", || link.remote.pins() > 0);
        for region in [&link.local, &link.remote] {
            let refused = region.close(Timeout::Poll, &clock).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            let refused = region.close(Duration::from_millis(20), &clock).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);
        }
        match end {
            ErrorKind::Cancelled => {
                status.cancel().unwrap();
                link.relay.flow();
            }
            ErrorKind::PeerLost => link.relay.cut(),
            _ => {
                link.near.backend.shutdown();
                link.relay.cut();
            }
        }
        fail(&status, end);
        // At once, since the status has said that all is quiet here.
        link.local.close(Timeout::Poll, &clock).unwrap();
        link.near.backend.deregister(link.local.id());
        link.remote.close(PATIENCE, &clock).unwrap();
        link.far.backend.deregister(link.remote.id());
        if end != ErrorKind::BadState {
            link.relay.flow();
            let (fresh, _) = link.near.region(10, Access::LOCAL);
            let session = link.near.session(&fresh, &link.desc);
            fail(&submit(&session, op, &[Piece::new(0, 0, 1)]), ErrorKind::NotFound);
            fail(&submit(&link.session, op, &[Piece::new(0, 0, 1)]), ErrorKind::NotFound);
        }
    }
}

/// E3: memory whose every handle is dropped stays as long as a transfer needs it.
#[test]
fn e3_dropped_regions_live_as_long_as_their_transfers() {
    let link = Link::new(&config(), LENGTH);
    let (dropped, is_dropped) = channel();
    struct Tell(std::sync::mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let memory: &'static mut [u8] = Box::leak(pattern(LENGTH, 8).into_boxed_slice());
    let keeper: Option<Box<dyn std::any::Any + Send + Sync>> = Some(Box::new(Tell(dropped)));
    // SAFETY: the memory is leaked, so it lives for ever, and nobody else has it.
    let local = unsafe {
        let location = mori_core::Location::HOST;
        Region::from_raw_with_keeper(memory.as_mut_ptr(), LENGTH, location, Access::LOCAL, keeper)
    }
    .unwrap();
    let session = link.near.session(&local, &link.desc);
    link.relay.allow(Way::Up, 100_000);
    let status = submit(&session, Op::Write, &[Piece::new(0, 0, LENGTH as u64)]);
    drop((local, session));
    link.relay.wait_held(Way::Up);
    assert!(is_dropped.try_recv().is_err(), "the memory is gone under the transfer");
    link.relay.flow();
    succeed(&status);
    is_dropped.recv_timeout(PATIENCE).unwrap();
    assert!(bytes(&link.remote) == pattern(LENGTH, 8));
}

/// A backend joins one engine, once.
#[test]
fn a_backend_joins_once() {
    let node = Node::new("one", config());
    let context = || mori_core::BackendContext {
        engine: "two".into(),
        instance: support::instance(),
        node_id: "test".into(),
        notifications: mori_core::NotificationQueue::new(1),
    };
    assert_eq!(node.backend.attach(context()).unwrap_err().kind(), ErrorKind::BadState);
    node.backend.shutdown();
    assert_eq!(node.backend.attach(context()).unwrap_err().kind(), ErrorKind::BadState);
    // Of several at once, one.
    let backend = TcpBackend::new(config()).unwrap();
    let start = Barrier::new(4);
    let joined = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    backend.attach(context()).is_ok()
                })
            })
            .collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).filter(|&ok| ok).count()
    });
    assert_eq!(joined, 1);
    // A shutdown at the same time leaves no threads behind that nobody ends; joining then fails, or is over.
    for _ in 0..50 {
        let backend = TcpBackend::new(config()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| backend.shutdown());
            if let Err(error) = backend.attach(context()) {
                assert_eq!(error.kind(), ErrorKind::BadState);
            }
        });
        backend.shutdown();
    }
}
