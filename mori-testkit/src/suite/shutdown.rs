//! The end of a backend: everything ends with it, in bounded time (contract S7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mori_core::{Access, ErrorKind, Op, Piece, Region, Status, TransferId, TransferOptions, wait_all};

use super::cancel::stays_quiet;
use super::cases;
use super::fixture::{Bench, Link, Peer, context, failed_as};
use crate::check::{CaseResult, Doing, ensure};

cases! {
    "S7, Backend::shutdown" [Hold, HeldEnds] shutdown_ends_every_transfer,
    "Backend::shutdown" [Hold] shutdown_returns_in_bounded_time,
    "S7, W7" [Hold, HeldEnds] shutdown_releases_the_waiters,
    "E4, S7" [Hold, PeerLoss] shutdown_of_the_target_is_a_lost_peer,
    "Backend" after_shutdown_everything_answers_with_an_error,
    "Backend::shutdown" shutdown_before_attaching_is_harmless,
    "S7" shutdown_while_other_threads_submit,
    "Backend" before_attaching_everything_answers_with_an_error,
}

/// The kinds that a transfer may end with when its own backend shuts down.
const OWN_END: [ErrorKind; 3] = [ErrorKind::BadState, ErrorKind::Cancelled, ErrorKind::Transport];

fn shut(bench: &Bench, peer: &Peer) -> CaseResult {
    let backend = Arc::clone(&peer.backend);
    bench.within(bench.bounds.shutdown, "a shutdown", move || backend.shutdown())
}

fn held(link: &Link) -> Vec<Status> {
    link.b.node.hold();
    (0..5).flat_map(|_| [link.whole(Op::Read), link.whole(Op::Write)]).collect()
}

fn shutdown_ends_every_transfer(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let statuses = held(&link);
    shut(bench, &link.a)?;
    for status in &statuses {
        let code = status.code();
        ensure!(code.is_terminal(), "after the shutdown a transfer is {code}");
        failed_as(status, code, &OWN_END)?;
    }
    stays_quiet(bench, &link, Op::Read, || link.b.node.release())
}

fn shutdown_returns_in_bounded_time(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    bench.succeed(&link.whole(Op::Read))?;
    let statuses = held(&link);
    for _ in 0..3 {
        shut(bench, &link.a)?;
    }
    shut(bench, &link.b)?;
    statuses.iter().try_for_each(|status| bench.finish(status).map(drop))
}

fn shutdown_releases_the_waiters(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let statuses = held(&link);
    let all = bench.spawn("a wait for all, across a shutdown", {
        let statuses = statuses.clone();
        move || wait_all(&statuses, None)
    })?;
    let one = bench.spawn("a wait for one, across a shutdown", {
        let status = statuses[0].clone();
        move || status.wait(None)
    })?;
    bench.settled(|| {
        ensure!(all.is_running() && one.is_running(), "a wait on held transfers has returned");
        Ok(())
    })?;
    shut(bench, &link.a)?;
    let code = one.join(bench.bounds.shutdown)?;
    ensure!(code.is_failure(), "across a shutdown a waiter was told {code}");
    let outcome = all.join(bench.bounds.shutdown)?;
    ensure!(outcome.all_quiet() && outcome.failed().len() == statuses.len(), "the batch ends as {outcome:?}");
    Ok(())
}

fn shutdown_of_the_target_is_a_lost_peer(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let statuses = held(&link);
    shut(bench, &link.b)?;
    link.b.node.release();
    for status in &statuses {
        let code = status.wait_with(bench.bounds.cut, &super::fixture::PATIENT);
        failed_as(status, code, &[ErrorKind::PeerLost])?;
    }
    stays_quiet(bench, &link, Op::Read, || {})?;
    let later = link.whole(Op::Read);
    bench.fail(&later, &[ErrorKind::PeerLost]).doing("a transfer submitted after the target's shutdown")
}

fn after_shutdown_everything_answers_with_an_error(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    bench.succeed(&link.whole(Op::Read))?;
    shut(bench, &link.a)?;
    let (a, b) = (&link.a, &link.b);
    let backend = &a.backend;
    ensure!(backend.attach(context(&a.key, &a.inbox)).is_err(), "attaching after a shutdown is accepted");
    let region = a.node.memory(64, Access::READ_WRITE).doing("making memory")?;
    ensure!(backend.register(&region).is_err(), "registering after a shutdown is accepted");
    ensure!(backend.add_peer(&b.desc).is_err(), "adding a peer after a shutdown is accepted");
    let (local, remote) = (link.local.region.clone(), link.remote.desc.clone());
    ensure!(backend.route(&local, &remote).is_err(), "after a shutdown there is a route");
    let late = Arc::clone(backend);
    let session = bench
        .prompt("opening a session after a shutdown", move || late.session(&local, &remote).map(drop))?;
    ensure!(session.is_err(), "opening a session after a shutdown is accepted");
    ensure!(!link.session.alive(), "a session of a backend that has shut down says that it is alive");
    for (what, pieces) in [("a transfer", &[Piece::new(0, 0, 8)][..]), ("an empty transfer", &[])] {
        let status = link.submit(Op::Write, pieces);
        let code = bench.finish(&status).doing(what)?;
        ensure!(code.is_failure() || pieces.is_empty(), "after a shutdown {what} is {code}");
    }
    // These only must not hang or panic.
    let late = Arc::clone(backend);
    let (key, id) = (b.key.clone(), link.local.region.id());
    bench.prompt("the calls without an answer after a shutdown", move || {
        late.poll_progress(TransferId::fresh());
        late.remove_peer(&key);
        late.deregister(id);
        // Whether it is unsupported or too late makes no difference.
        let _ = late.cancel(TransferId::fresh());
        let _ = late.block_on(TransferId::fresh());
    })
}

fn shutdown_before_attaching_is_harmless(bench: &Bench) -> CaseResult {
    let node = bench.node()?;
    let backend = node.backend();
    bench.within(bench.bounds.shutdown, "a shutdown before attaching", move || backend.shutdown())?;
    let other = bench.node()?;
    drop(other);
    Ok(())
}

fn before_attaching_everything_answers_with_an_error(bench: &Bench) -> CaseResult {
    let node = bench.node()?;
    let backend = node.backend();
    let peer = bench.peer("b")?;
    let area = peer.area(64)?;
    let region: Region = node.memory(64, Access::READ_WRITE).doing("making memory")?;
    ensure!(backend.add_peer(&peer.desc).is_err(), "adding a peer before attaching is accepted");
    ensure!(backend.route(&region, &area.desc).is_err(), "before attaching there is a route");
    ensure!(backend.session(&region, &area.desc).is_err(), "opening a session before attaching is accepted");
    backend.poll_progress(TransferId::fresh());
    backend.deregister(region.id());
    backend.remove_peer(&peer.key);
    backend.shutdown();
    Ok(())
}

fn shutdown_while_other_threads_submit(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|index| {
            let (session, stop) = (Arc::clone(&link.session), Arc::clone(&stop));
            bench.spawn("a submitting thread, across a shutdown", move || {
                let op = if index % 2 == 0 { Op::Read } else { Op::Write };
                let mut statuses = Vec::new();
                while !stop.load(Ordering::Relaxed) && statuses.len() < 100_000 {
                    statuses.push(session.submit(op, &[Piece::new(0, 0, 100)], &TransferOptions::default()));
                    std::thread::park_timeout(Duration::from_micros(50));
                }
                statuses
            })
        })
        .collect::<CaseResult<_>>()?;
    bench.settled(|| Ok(()))?;
    let ended = shut(bench, &link.a);
    bench.settled(|| Ok(()))?;
    stop.store(true, Ordering::Relaxed);
    ended?;
    let mut failed = 0;
    for thread in threads {
        for status in thread.join(bench.bounds.transfer)? {
            let code = bench.finish(&status)?;
            failed += usize::from(code.is_failure());
        }
    }
    ensure!(failed > 0, "no transfer that was submitted after the shutdown has failed");
    Ok(())
}
