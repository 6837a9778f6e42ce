//! Who may go first: regions, sessions, statuses and backends (contract E3, S6).

use std::sync::Arc;
use std::time::Duration;

use mori_core::{Clock, ErrorKind, Op, Piece, Status, StatusCode, Timeout, TransferOptions};

use super::cases;
use super::fixture::{Area, Bench, Link, pattern};
use crate::check::{CaseResult, Doing, Problem, ensure};

cases! {
    "E3" [Hold] a_region_in_use_does_not_close,
    "E3" a_closed_local_region_takes_no_transfers,
    "E3" pins_are_given_back_however_a_transfer_ends,
    "E3, Backend::deregister" a_deregistered_region_is_gone,
    "E3" a_target_closes_a_region_under_traffic,
    "Backend::deregister" deregistering_one_region_leaves_the_others,
    "S6, Session" [Hold] dropping_the_session_disturbs_nothing,
    "S6" [Hold] dropping_every_handle_of_the_status_disturbs_nothing,
    "S6" statuses_outlive_everything_else,
    "S6, S7" [Hold] everything_may_be_dropped_in_any_order,
    "S5, S6, S7" [Hold] a_dropped_backend_leaves_nothing_in_progress,
}

fn close(area: &Area, timeout: impl Into<Timeout>) -> mori_core::Result<()> {
    area.region.close(timeout, &Clock::system())
}

fn busy(area: &Area, timeout: Duration) -> CaseResult {
    match close(area, timeout) {
        Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
        other => {
            Err(Problem::new(format!("closing a region that a transfer in progress uses answers {other:?}")))
        }
    }
}

fn a_region_in_use_does_not_close(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for op in [Op::Read, Op::Write] {
        link.b.node.hold();
        let statuses = [link.whole(op), link.submit(op, &[Piece::new(0, 0, 1)])];
        busy(&link.local, Duration::ZERO)?;
        busy(&link.local, Duration::from_millis(5))?;
        link.b.node.release();
        statuses.iter().try_for_each(|status| bench.succeed(status))?;
    }
    close(&link.local, bench.bounds.prompt).doing("closing a region that nothing uses any more")
}

fn a_closed_local_region_takes_no_transfers(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    bench.succeed(&link.whole(Op::Read))?;
    close(&link.local, bench.bounds.prompt).doing("closing a region that nothing uses")?;
    link.a.backend.deregister(link.local.region.id());
    let marks = link.a.fill(&link.local, 61)?;
    for op in [Op::Read, Op::Write] {
        bench
            .fail(&link.whole(op), &[ErrorKind::NotFound, ErrorKind::BadState])
            .doing("a transfer with a closed region of its own")?;
    }
    link.a.holds(&link.local, &marks, "in a closed region")
}

fn unpinned(bench: &Bench, link: &Link, after: &str) -> CaseResult {
    for (side, area) in [("own", &link.local), ("target's", &link.remote)] {
        bench
            .until(bench.bounds.prompt, "the pins are given back", || area.region.pins() == 0)
            .doing(format!("the {side} region after {after}"))?;
    }
    Ok(())
}

fn pins_are_given_back_however_a_transfer_ends(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for op in [Op::Read, Op::Write] {
        for _ in 0..10 {
            bench.succeed(&link.whole(op))?;
        }
        unpinned(bench, &link, "successes")?;
        let mut lie = link.remote.desc.clone();
        lie.size *= 2;
        let session = link.a.session_to(&link.local, &lie)?;
        for _ in 0..10 {
            let status = session.submit(op, &[Piece::new(0, 8000, 8)], &TransferOptions::default());
            bench.fail(&status, &[ErrorKind::InvalidArgument])?;
        }
        unpinned(bench, &link, "failures")?;
        if link.a.backend.capabilities().cancel && bench.abilities().hold {
            link.b.node.hold();
            let status = link.whole(op);
            status.cancel().doing("cancelling")?;
            link.b.node.release();
            bench.finish(&status)?;
            unpinned(bench, &link, "a cancellation")?;
        }
    }
    if bench.abilities().hold {
        link.b.node.hold();
        let status = link.whole(Op::Read);
        link.a.backend.shutdown();
        bench.finish(&status)?;
        link.b.node.release();
        unpinned(bench, &link, "a shutdown")?;
    }
    Ok(())
}

/// Wants a transfer with `remote` to be refused, at whichever step, as one of these kinds.
pub(super) fn refused(bench: &Bench, link: &Link, remote: &Area, op: Op, kinds: &[ErrorKind]) -> CaseResult {
    match link.a.backend.session(&link.local.region, &remote.desc) {
        Err(error) => {
            ensure!(
                kinds.contains(&error.kind()),
                "the session was refused as {error}, not as one of {kinds:?}"
            );
            ensure!(!error.message().is_empty(), "the refusal has no words: {error:?}");
            Ok(())
        }
        Ok(session) => {
            let length = remote.desc.size.min(link.local.desc.size);
            bench.fail(&session.submit(op, &[Piece::new(0, 0, length)], &TransferOptions::default()), kinds)
        }
    }
}

fn a_deregistered_region_is_gone(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    bench.succeed(&link.whole(Op::Write))?;
    close(&link.remote, bench.bounds.prompt).doing("closing the target's region")?;
    link.b.backend.deregister(link.remote.region.id());
    link.b.backend.deregister(link.remote.region.id());
    let (here, there) = (link.a.fill(&link.local, 62)?, link.b.fill(&link.remote, 63)?);
    for op in [Op::Read, Op::Write] {
        bench.fail(&link.whole(op), &[ErrorKind::NotFound]).doing("a stale key in a session of before")?;
        refused(bench, &link, &link.remote, op, &[ErrorKind::NotFound])
            .doing("a stale key in a new session")?;
    }
    link.b.holds(&link.remote, &there, "in the deregistered region")?;
    link.a.holds(&link.local, &here, "at the submitter")?;
    // The same memory's successor gets a key of its own.
    let fresh = link.b.area(4096)?;
    let expected = link.b.fill(&fresh, 64)?;
    let session = link.a.session(&link.local, &fresh)?;
    bench.succeed(&session.submit(Op::Read, &[Piece::new(0, 0, 4096)], &TransferOptions::default()))?;
    link.a.holds(&link.local, &expected, "from the fresh region")
}

fn a_target_closes_a_region_under_traffic(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 18)?;
    for _ in 0..5 {
        let area = link.b.area(1 << 18)?;
        let session = link.a.session(&link.local, &area)?;
        let pieces = [Piece::new(0, 0, 1 << 18)];
        let statuses: Vec<Status> =
            (0..20).map(|_| session.submit(Op::Write, &pieces, &TransferOptions::default())).collect();
        if !link.a.backend.has_notifier() {
            statuses[..5].iter().try_for_each(|status| bench.succeed(status))?;
        }
        close(&area, bench.bounds.transfer).doing("closing a region under traffic")?;
        link.b.backend.deregister(area.region.id());
        // From here on the memory is the owner's alone.
        let marks = link.b.fill(&area, 65)?;
        for status in &statuses {
            match bench.finish(status)? {
                StatusCode::Success => {}
                code => super::fixture::failed_as(status, code, &[ErrorKind::NotFound])?,
            }
        }
        bench.settled(|| link.b.holds(&area, &marks, "in a closed region"))?;
    }
    Ok(())
}

fn deregistering_one_region_leaves_the_others(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for seed in 0..10 {
        let (near, far) = (link.a.area(100)?, link.b.area(100)?);
        bench.succeed(&link.a.session(&near, &far)?.submit(
            Op::Read,
            &[Piece::new(0, 0, 100)],
            &TransferOptions::default(),
        ))?;
        for (peer, area) in [(&link.a, &near), (&link.b, &far)] {
            close(area, bench.bounds.prompt).doing("closing a region that nothing uses any more")?;
            peer.backend.deregister(area.region.id());
        }
        let op = if seed % 2 == 0 { Op::Read } else { Op::Write };
        link.check(bench, op, &[Piece::new(1, 2, 4000)])?;
    }
    Ok(())
}

fn dropping_the_session_disturbs_nothing(bench: &Bench) -> CaseResult {
    let Link { session, local, remote, a, b } = bench.link(4096)?;
    let expected = b.fill(&remote, 66)?;
    b.node.hold();
    let status = session.submit(Op::Read, &[Piece::new(0, 0, 4096)], &TransferOptions::default());
    drop(session);
    let other = a.session(&local, &remote)?;
    drop(other);
    b.node.release();
    bench.succeed(&status)?;
    a.holds(&local, &expected, "after the session was dropped")
}

fn dropping_every_handle_of_the_status_disturbs_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let expected = link.a.fill(&link.local, 67)?;
    link.b.node.hold();
    let status = link.whole(Op::Write);
    let id = status.id();
    drop(status);
    link.b.node.release();
    bench.until(bench.bounds.transfer, "a transfer that nobody has a handle of arrives", || {
        if !link.a.backend.has_notifier() {
            link.a.backend.poll_progress(id);
        }
        link.b.bytes(&link.remote).is_ok_and(|bytes| bytes == expected)
    })?;
    unpinned(bench, &link, "a transfer that nobody has a handle of")
}

fn statuses_outlive_everything_else(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let good = link.whole(Op::Read);
    bench.succeed(&good)?;
    let mut lie = link.remote.desc.clone();
    lie.size *= 2;
    let bad = link.a.session_to(&link.local, &lie)?.submit(
        Op::Write,
        &[Piece::new(0, 8000, 8)],
        &TransferOptions::tagged(3),
    );
    bench.fail(&bad, &[ErrorKind::InvalidArgument])?;
    let words = bad.message();
    drop(link);
    ensure!(good.wait(None).is_success() && good.poll().is_success(), "a success became {}", good.code());
    ensure!(
        bad.wait(None) == StatusCode::Failure(ErrorKind::InvalidArgument),
        "a failure became {}",
        bad.code()
    );
    ensure!(bad.message() == words && bad.tag().0 == 3, "message or tag are gone: {bad:?}");
    good.cancel().doing("cancelling what has ended, with nobody there")
}

fn everything_may_be_dropped_in_any_order(bench: &Bench) -> CaseResult {
    // Each round starts at another one of four, and half of them go backwards.
    for round in 0..8 {
        let Link { session, local, remote, a, b } = bench.link(4096)?;
        b.node.hold();
        let statuses: Vec<Status> = [Op::Read, Op::Write]
            .into_iter()
            .map(|op| session.submit(op, &[Piece::new(0, 0, 4096)], &TransferOptions::default()))
            .collect();
        let (mut session, mut regions, mut a, mut b) =
            (Some(session), Some((local, remote)), Some(a), Some(b));
        for step in 0..4 {
            match if round < 4 { (round + step) % 4 } else { (round + 8 - step) % 4 } {
                0 => drop(session.take()),
                1 => drop(regions.take()),
                // Dropping a peer shuts its backend down.
                2 => drop(a.take()),
                _ => drop(b.take()),
            }
        }
        for status in &statuses {
            let code = bench.finish(status).doing(format!("order {round}"))?;
            ensure!(code.is_terminal(), "with everything gone, a transfer is {code}");
        }
    }
    Ok(())
}

fn a_dropped_backend_leaves_nothing_in_progress(bench: &Bench) -> CaseResult {
    for session_first in [true, false] {
        let Link { session, local, remote, a, b } = bench.link(4096)?;
        let own = pattern(68, 4096);
        a.node.store(&local.region, 0, &own).doing("filling memory")?;
        b.node.hold();
        let submit = |op| session.submit(op, &[Piece::new(0, 0, 4096)], &TransferOptions::default());
        let statuses = [submit(Op::Read), submit(Op::Write)];
        let weak = Arc::downgrade(&a.backend);
        if session_first {
            drop(session);
            a.abandon();
        } else {
            a.abandon();
            drop(session);
        }
        let watched = statuses.clone();
        bench
            .until(bench.bounds.shutdown, "the transfers of a dropped backend end", || {
                watched.iter().all(|status| status.code().is_terminal())
            })
            .doing(format!("session dropped first: {session_first}"))?;
        for status in &statuses {
            ensure!(status.is_failure(), "a held transfer of a dropped backend is {}", status.code());
        }
        ensure!(weak.upgrade().is_none(), "something keeps the dropped backend alive");
        b.node.release();
        drop((local, remote, b));
    }
    Ok(())
}
