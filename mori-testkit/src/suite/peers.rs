//! Peers that are lost, slow, restarted or unknown (contract E4).

use std::sync::Arc;
use std::time::Duration;

use mori_core::{ErrorKind, Op, Piece, Status, StatusCode, TransferOptions};

use super::cancel::stays_quiet;
use super::cases;
use super::fixture::{Bench, Link, PATIENT, Peer, Stopwatch, failed_as, pause};
use super::lifetimes::refused;
use crate::check::{CaseResult, Doing, Problem, ensure};

cases! {
    "E4" [PeerLoss, Hold, Cut] a_cut_link_is_a_lost_peer,
    "E4" [PeerLoss, Cut] a_link_that_is_cut_under_traffic,
    "E4" [PeerLoss, Silence] a_silent_peer_is_lost_within_its_bound,
    "E4" [PeerLoss, Silence] no_byte_lands_after_the_peer_was_lost,
    "E4" [Hold] a_short_stall_loses_nothing,
    "E4" [Silence] a_short_silence_loses_nothing,
    "E4" [Hold] one_peer_does_not_delay_the_others,
    "E4" [PeerLoss, Cut] a_lost_peer_does_not_delay_the_others,
    "E4, Session" [PeerLoss, Cut] a_peer_that_is_back_works_again,
    "E4, Backend::add_peer" [Hold, HeldEnds] a_restarted_peer_is_a_new_one,
    "Backend::add_peer" [Hold] adding_a_peer_again_disturbs_nothing,
    "Backend::remove_peer" [Hold, HeldEnds] removing_a_peer_ends_its_transfers,
    "Backend::session" an_unknown_peer_is_not_found,
    "Session::alive" [PeerLoss, Cut] a_session_says_whether_its_peer_is_there,
}

fn all_lost(statuses: &[Status], bound: Duration) -> CaseResult {
    let watch = Stopwatch::start();
    for status in statuses {
        let code = status.wait_with(bound.saturating_sub(watch.elapsed()), &PATIENT);
        ensure!(code.is_terminal(), "{bound:?} after the loss of the peer a transfer is {code}");
        failed_as(status, code, &[ErrorKind::PeerLost])?;
    }
    Ok(())
}

fn a_cut_link_is_a_lost_peer(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    link.b.node.hold();
    let statuses =
        [link.whole(Op::Read), link.whole(Op::Write), link.submit(Op::Read, &[Piece::new(0, 0, 1)])];
    link.b.node.cut();
    all_lost(&statuses, bench.bounds.cut)?;
    stays_quiet(bench, &link, Op::Read, || link.b.node.release())
}

fn a_link_that_is_cut_under_traffic(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 20)?;
    let expected = link.b.fill(&link.remote, 71)?;
    let statuses: Vec<Status> = (0..16).map(|_| link.whole(Op::Read)).collect();
    bench.finish(&statuses[0])?;
    link.b.node.cut();
    let (mut succeeded, mut lost) = (0, 0);
    let watch = Stopwatch::start();
    for status in &statuses {
        match status.wait_with(bench.bounds.cut.saturating_sub(watch.elapsed()), &PATIENT) {
            StatusCode::Success => succeeded += 1,
            code => {
                failed_as(status, code, &[ErrorKind::PeerLost])?;
                lost += 1;
            }
        }
    }
    // Either is right for each of them; what matters is that all of them say.
    ensure!(succeeded + lost == statuses.len(), "{succeeded} transfers succeeded and {lost} were lost");
    all_lost(&[link.whole(Op::Read), link.whole(Op::Write)], bench.bounds.cut)
        .doing("transfers after the cut")?;
    if lost == 0 {
        link.a.holds(&link.local, &expected, "after every transfer had succeeded")?;
    }
    stays_quiet(bench, &link, Op::Read, || {})
}

fn a_silent_peer_is_lost_within_its_bound(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    bench.succeed(&link.whole(Op::Read))?;
    link.b.node.silence();
    let statuses = [link.whole(Op::Read), link.whole(Op::Write)];
    all_lost(&statuses, bench.bounds.silence)
}

fn no_byte_lands_after_the_peer_was_lost(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 20)?;
    link.b.fill(&link.remote, 72)?;
    link.b.node.silence();
    let statuses = [link.whole(Op::Read), link.whole(Op::Read)];
    all_lost(&statuses, bench.bounds.silence)?;
    stays_quiet(bench, &link, Op::Read, || link.b.node.heal())
}

fn a_short_stall_loses_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 18)?;
    for round in 0..4 {
        let expected = link.b.fill(&link.remote, round)?;
        let before = link.whole(Op::Read);
        link.b.node.hold();
        let during = link.submit(Op::Read, &[Piece::new(0, 0, 1000)]);
        bench.settled(|| {
            ensure!(
                !during.is_failure(),
                "during a stall a transfer is {}: {}",
                during.code(),
                during.message()
            );
            Ok(())
        })?;
        link.b.node.release();
        bench.succeed(&before)?;
        bench.succeed(&during)?;
        link.a.holds(&link.local, &expected, "after a stall")?;
    }
    Ok(())
}

fn a_short_silence_loses_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 18)?;
    let expected = link.b.fill(&link.remote, 73)?;
    link.b.node.silence();
    let during = link.whole(Op::Read);
    bench.settled(|| {
        ensure!(!during.is_failure(), "during a short silence a transfer is {}", during.code());
        Ok(())
    })?;
    link.b.node.heal();
    bench.succeed(&during)?;
    link.a.holds(&link.local, &expected, "after a short silence")
}

fn one_peer_does_not_delay_the_others(bench: &Bench) -> CaseResult {
    let fork = bench.fork(1 << 16)?;
    fork.link.b.node.hold();
    let held: Vec<Status> =
        (0..10).flat_map(|_| [fork.link.whole(Op::Read), fork.link.whole(Op::Write)]).collect();
    for op in [Op::Read, Op::Write] {
        for _ in 0..10 {
            let status = fork.whole(op);
            bench.succeed(&status).doing("a transfer with a peer beside one that does not answer")?;
        }
    }
    // The other way: what others want of us.
    let back = fork.c.session(&fork.remote, &fork.local)?;
    let status = back.submit(Op::Read, &[Piece::new(0, 0, 1 << 16)], &TransferOptions::default());
    bench.succeed(&status).doing("a transfer of another peer with us")?;
    for status in &held {
        ensure!(!status.code().is_terminal(), "a held transfer is {}", status.code());
    }
    fork.link.b.node.release();
    held.iter().try_for_each(|status| bench.succeed(status))
}

fn a_lost_peer_does_not_delay_the_others(bench: &Bench) -> CaseResult {
    let fork = bench.fork(1 << 16)?;
    fork.link.b.node.cut();
    let lost = [fork.link.whole(Op::Read), fork.link.whole(Op::Write)];
    for _ in 0..10 {
        bench.succeed(&fork.whole(Op::Read)).doing("a transfer with a peer beside a lost one")?;
    }
    all_lost(&lost, bench.bounds.cut)
}

/// Submits until a transfer succeeds, since a connection may take its time.
fn works_again(bench: &Bench, what: &str, submit: impl Fn() -> CaseResult<Status>) -> CaseResult {
    let watch = Stopwatch::start();
    loop {
        let last = match submit() {
            Ok(status) => {
                if bench.finish(&status)?.is_success() {
                    return Ok(());
                }
                Problem::new(status.message())
            }
            Err(problem) => problem,
        };
        ensure!(
            watch.elapsed() < bench.bounds.reconnect,
            "{what}: not after {:?}: {last}",
            bench.bounds.reconnect
        );
        pause();
    }
}

fn a_peer_that_is_back_works_again(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for round in 0..3 {
        link.b.node.cut();
        all_lost(&[link.whole(Op::Read)], bench.bounds.cut)?;
        link.b.node.heal();
        works_again(bench, "the same session works again", || Ok(link.whole(Op::Write)))?;
        link.check(bench, Op::Read, &[Piece::new(0, 0, 4096)]).doing(format!("after loss {round}"))?;
        let other = link.a.session(&link.local, &link.remote)?;
        bench.succeed(&other.submit(Op::Read, &[Piece::new(0, 0, 1)], &TransferOptions::default()))?;
    }
    Ok(())
}

fn a_restarted_peer_is_a_new_one(bench: &Bench) -> CaseResult {
    let Link { session, local, remote, a, b } = bench.link(4096)?;
    b.node.hold();
    let submit = |op| session.submit(op, &[Piece::new(0, 0, 4096)], &TransferOptions::default());
    let of_before = [submit(Op::Read), submit(Op::Write)];
    let again = Peer::start(bench.node()?, b.key.clone(), 64)?;
    a.meet(&again)?;
    all_lost(&of_before, bench.bounds.cut).doing("transfers with the incarnation of before")?;
    b.node.release();
    // The new incarnation works, under the same name.
    let fresh = again.area(4096)?;
    let expected = again.fill(&fresh, 74)?;
    works_again(bench, "the restarted peer works", || {
        Ok(a.session(&local, &fresh)?.submit(
            Op::Read,
            &[Piece::new(0, 0, 4096)],
            &TransferOptions::default(),
        ))
    })?;
    a.holds(&local, &expected, "from the restarted peer")?;
    // A key of before is stale, in the session of before and in a new one.
    bench
        .fail(&submit(Op::Write), &[ErrorKind::NotFound, ErrorKind::PeerLost])
        .doing("a session of before")?;
    let link = Link { session, local, remote: remote.clone(), a, b: again };
    refused(bench, &link, &remote, Op::Read, &[ErrorKind::NotFound, ErrorKind::PeerLost])
        .doing("a key of before")
}

fn adding_a_peer_again_disturbs_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    for _ in 0..3 {
        link.a.meet(&link.b)?;
    }
    ensure!(
        status.code() == StatusCode::InProgress,
        "adding a known peer again makes a transfer {}",
        status.code()
    );
    link.b.node.release();
    bench.succeed(&status)
}

fn removing_a_peer_ends_its_transfers(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    let link = &fork.link;
    link.b.node.hold();
    let statuses = [link.whole(Op::Read), link.whole(Op::Write)];
    let (backend, key) = (Arc::clone(&link.a.backend), link.b.key.clone());
    bench.prompt("removing a peer", move || {
        backend.remove_peer(&key);
        backend.remove_peer(&key);
    })?;
    for status in &statuses {
        let code = status.wait_with(bench.bounds.cut, &PATIENT);
        ensure!(code.is_failure(), "a transfer with a removed peer is {code}");
    }
    stays_quiet(bench, link, Op::Read, || link.b.node.release())?;
    bench.succeed(&fork.whole(Op::Read)).doing("a transfer with another peer")?;
    refused(bench, link, &link.remote, Op::Read, &[ErrorKind::NotFound])
        .doing("a session with a removed peer")?;
    let kinds = [ErrorKind::NotFound, ErrorKind::PeerLost, ErrorKind::BadState];
    bench.fail(&link.whole(Op::Read), &kinds).doing("a session from before the removal")?;
    link.a.meet(&link.b)?;
    works_again(bench, "a peer that is added again works", || {
        let session = link.a.session(&link.local, &link.remote)?;
        Ok(session.submit(Op::Read, &[Piece::new(0, 0, 4096)], &TransferOptions::default()))
    })
}

fn an_unknown_peer_is_not_found(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let stranger = bench.peer("stranger")?;
    let area = stranger.area(4096)?;
    let route = link.a.backend.route(&link.local.region, &area.desc);
    ensure!(
        route.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound),
        "the route to a peer that was never added is {route:?}"
    );
    refused(bench, &link, &area, Op::Read, &[ErrorKind::NotFound])?;
    link.a.backend.remove_peer(&stranger.key);
    link.check(bench, Op::Read, &[Piece::new(0, 0, 4096)])
}

fn a_session_says_whether_its_peer_is_there(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    bench.succeed(&link.whole(Op::Read))?;
    ensure!(link.session.alive(), "a session with a peer that works says that it is not alive");
    link.b.node.cut();
    all_lost(&[link.whole(Op::Read)], bench.bounds.cut)?;
    bench.until(bench.bounds.cut, "the session of a lost peer says that it is not alive", || {
        !link.session.alive()
    })?;
    link.b.node.heal();
    works_again(bench, "the session works again", || Ok(link.whole(Op::Read)))?;
    ensure!(link.session.alive(), "a session with a peer that is back says that it is not alive");
    Ok(())
}
