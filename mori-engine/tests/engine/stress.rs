//! Many threads at once: every transfer ends, no byte goes astray, nobody is left waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mori_engine::{Access, Engine, ErrorKind, Op, Piece, Status, TransferOptions};

use crate::fake::{Fake, Net, introduce, with};

const ROUNDS: usize = 200;
const SIZE: usize = 256;

/// One thread's work: register, move a pattern there and back, deregister.
fn shuttle(engine: &Engine, peer: &Engine, seed: u8, succeeded: &AtomicUsize) {
    for round in 0..ROUNDS {
        let pattern: Vec<u8> = (0..SIZE).map(|index| seed ^ (index + round).to_le_bytes()[0]).collect();
        let source = engine.register_vec(pattern.clone(), Access::READ_WRITE).unwrap();
        let back = engine.allocate(SIZE, Access::READ_WRITE).unwrap();
        let remote = peer.allocate(SIZE, Access::READ_WRITE).unwrap();
        let desc = remote.desc();
        let pieces = [Piece::new(0, 0, 100), Piece::new(100, 100, 156)];
        let there = engine.submit(Op::Write, &source, &desc, &pieces, TransferOptions::default());
        let there_ok = engine.wait(&there, None).is_success();
        let and_back = engine.read(&back, 0, &desc, 0, SIZE as u64, TransferOptions::default());
        if there_ok & engine.wait(&and_back, None).is_success() {
            let mut bytes = vec![0; SIZE];
            back.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, pattern);
            succeeded.fetch_add(1, Ordering::Relaxed);
        }
        for status in [&there, &and_back] {
            assert!(status.code().is_terminal(), "{status:?}");
        }
        engine.deregister(&source, None).unwrap();
        engine.deregister(&back, None).unwrap();
        peer.deregister(&remote, None).unwrap();
    }
}

#[test]
fn threads_register_move_and_deregister_while_backends_and_peers_come_and_go() {
    let net = Net::default();
    let steady = net.fake("steady");
    let a = with("a", [&steady]).prefer(["fickle", "steady"]).session_cache(4).build().unwrap();
    let b = with("b", [&net.fake("steady"), &net.fake("fickle")]).build().unwrap();
    introduce([&a, &b]);
    let (succeeded, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u8)
            .map(|seed| {
                let (a, b, succeeded) = (&a, &b, &succeeded);
                scope.spawn(move || shuttle(a, b, seed, succeeded))
            })
            .collect();
        let (a, b, done, net) = (&a, &b, &done, &net);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                a.add_backend(net.polled("fickle")).unwrap();
                std::thread::yield_now();
                a.remove_backend("fickle").unwrap();
            }
        });
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                a.add_peer(&b.desc()).unwrap();
                assert_eq!(a.peers().len(), 1);
                let _ = (a.desc(), a.backends(), a.memories());
                std::thread::yield_now();
            }
        });
        // The others are told to stop before a panic of a worker goes on.
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    // The fickle backend may take some transfers with it; the steady one carries the rest.
    assert!(succeeded.load(Ordering::Relaxed) > 0);
    assert!(a.memories().is_empty() && b.memories().is_empty());
    assert_eq!(steady.regions(), 0);
}

/// Threads submit and wait while the engine goes: each is released, and every status is terminal.
#[test]
fn an_engine_that_goes_releases_everybody() {
    for _ in 0..20 {
        let net = Net::default();
        let (notified, polled) = (net.fake("notified"), net.polled("polled"));
        let hold = |fake: &Arc<Fake>| fake.script(|script| script.hold = true);
        let a = with("a", [&notified, &polled]).build().unwrap();
        let b = with("b", [&net.fake("notified")]).build().unwrap();
        let c = with("c", [&net.polled("polled")]).build().unwrap();
        introduce([&a, &b, &c]);
        hold(&notified);
        hold(&polled);
        let local = a.allocate(SIZE, Access::READ_WRITE).unwrap();
        let descs = [
            b.allocate(SIZE, Access::READ_WRITE).unwrap().desc(),
            c.allocate(SIZE, Access::READ_WRITE).unwrap().desc(),
        ];
        let started = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (a, local, desc, started) = (a.clone(), &local, &descs[thread % 2], &started);
                scope.spawn(move || {
                    loop {
                        let status = a.read(local, 0, desc, 0, 8, TransferOptions::default());
                        started.fetch_add(1, Ordering::Relaxed);
                        let refused = |status: &Status| status.error().map(|error| error.kind());
                        let code =
                            if thread < 4 { a.wait(&status, None) } else { a.wait(&status, Duration::MAX) };
                        assert!(code.is_failure(), "{code:?}");
                        assert!(
                            matches!(refused(&status), Some(ErrorKind::BadState | ErrorKind::NotFound)),
                            "{status:?}"
                        );
                        if a.is_shut_down() {
                            return;
                        }
                    }
                });
            }
            while started.load(Ordering::Relaxed) < 6 {
                std::thread::yield_now();
            }
            a.shutdown();
        });
        assert_eq!(local.region().pins(), 0);
        assert_eq!((notified.in_progress(), polled.in_progress()), (0, 0));
    }
}
