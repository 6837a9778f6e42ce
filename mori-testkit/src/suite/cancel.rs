//! Ending early: cancellation and deadlines of transfers (contract E1, E2).

use std::sync::Arc;
use std::time::Duration;

use mori_core::{ErrorKind, Op, Piece, Status, StatusCode, TransferId, TransferOptions, wait_all};

use super::cases;
use super::fixture::{Area, Bench, Link, PATIENT, Peer, Stopwatch, failed_as};
use crate::check::{CaseResult, Doing, Problem, ensure};

cases! {
    "E1" [Cancel, Hold] no_byte_of_a_cancelled_read_lands,
    "E1" [Cancel, Hold] no_byte_of_a_cancelled_write_lands,
    "E1" [Cancel, Hold] cancel_stops_transfers_that_are_under_way,
    "E1" [Cancel, Hold] cancel_returns_at_once,
    "E1, W7" [Cancel, Hold] cancelling_releases_the_waiters,
    "E1" [Cancel] a_transfer_that_is_cancelled_while_it_runs_is_whole_or_quiet,
    "E1, S2" [Cancel] a_finished_transfer_keeps_its_result,
    "E1" [Cancel, Hold] cancelling_one_leaves_the_others,
    "E1, Backend::cancel" [Cancel] cancelling_what_is_unknown_or_finished_does_nothing,
    "E2" [Cancel, Hold] a_deadline_cancels_and_says_what_it_waited_for,
    "E2" [Cancel] a_deadline_that_does_not_pass_changes_nothing,
}

/// The length of the areas of most cases: several buffers' worth on any transport.
const LENGTH: usize = 2 << 20;

/// The peer whose memory a transfer writes to, and that memory.
fn destination(link: &Link, op: Op) -> (&Peer, &Area) {
    match op {
        Op::Read => (&link.a, &link.local),
        Op::Write => (&link.b, &link.remote),
    }
}

/// Marks the destination of a transfer that has ended, lets everything go on, and wants the marks to stay.
pub(super) fn stays_quiet(bench: &Bench, link: &Link, op: Op, resume: impl FnOnce()) -> CaseResult {
    let (owner, area) = destination(link, op);
    let marks = owner.fill(area, 0xdead)?;
    resume();
    let quiet = || owner.holds(area, &marks, "bytes that landed after the transfer had ended");
    bench.settled(quiet)?;
    // What comes later on the same way comes after anything that was still on it.
    let status = link.submit(op, &[Piece::new(0, 0, 1)]);
    PATIENT.wait_all(&[status], bench.bounds.transfer);
    owner.node.store(&area.region, 0, &marks[..1]).doing("marking memory")?;
    quiet()
}

fn cancelled_bytes(bench: &Bench, op: Op) -> CaseResult {
    let link = bench.link(LENGTH)?;
    let mut cancelled = 0;
    for round in 0..6 {
        let (mut local, mut remote) = (link.a.fill(&link.local, round)?, link.b.fill(&link.remote, !round)?);
        link.b.node.hold();
        let status = link.whole(op);
        link.a.backend.cancel(status.id()).doing("cancelling")?;
        let held = status.wait_with(Duration::from_millis(20), &PATIENT);
        ensure!(!held.is_success(), "a transfer with a held target is {held}");
        if !held.is_terminal() {
            link.b.node.release();
        }
        match bench.finish(&status)? {
            StatusCode::Success => {
                // It had been too late. Then the transfer is whole.
                super::fixture::apply(op, &[Piece::new(0, 0, LENGTH as u64)], &mut local, &mut remote)?;
                link.a.holds(
                    &link.local,
                    &local,
                    "at the submitter of a cancelled transfer that succeeded",
                )?;
                link.b.holds(
                    &link.remote,
                    &remote,
                    "at the target of a cancelled transfer that succeeded",
                )?;
            }
            code => {
                failed_as(&status, code, &[ErrorKind::Cancelled])?;
                cancelled += 1;
                stays_quiet(bench, &link, op, || link.b.node.release())?;
            }
        }
        link.b.node.release();
    }
    ensure!(cancelled > 0, "none of six transfers with a held target was cancelled");
    Ok(())
}

fn no_byte_of_a_cancelled_read_lands(bench: &Bench) -> CaseResult {
    cancelled_bytes(bench, Op::Read)
}

fn no_byte_of_a_cancelled_write_lands(bench: &Bench) -> CaseResult {
    cancelled_bytes(bench, Op::Write)
}

fn cancel_stops_transfers_that_are_under_way(bench: &Bench) -> CaseResult {
    let link = bench.link(LENGTH)?;
    link.b.node.hold();
    let statuses: Vec<Status> = (0..8).flat_map(|_| [link.whole(Op::Read), link.whole(Op::Write)]).collect();
    for status in &statuses {
        status.cancel().doing("cancelling")?;
    }
    // Some backends need the target to say that it is quiet.
    PATIENT.wait_all(&statuses, Duration::from_millis(20));
    link.b.node.release();
    let mut cancelled = 0;
    for status in &statuses {
        match bench.finish(status)? {
            StatusCode::Success => {}
            code => {
                failed_as(status, code, &[ErrorKind::Cancelled])?;
                cancelled += 1;
            }
        }
    }
    ensure!(cancelled > 0, "none of {} transfers under way was cancelled", statuses.len());
    link.check(bench, Op::Read, &[Piece::new(0, 0, 1000)]).doing("after the cancellations")
}

fn cancel_returns_at_once(bench: &Bench) -> CaseResult {
    let link = bench.link(LENGTH)?;
    link.b.node.hold();
    let statuses = [link.whole(Op::Read), link.whole(Op::Write)];
    for status in &statuses {
        for _ in 0..2 {
            let (backend, id) = (Arc::clone(&link.a.backend), status.id());
            bench.prompt("a cancellation", move || backend.cancel(id))?.doing("cancelling, also twice")?;
        }
    }
    link.b.node.release();
    statuses.iter().try_for_each(|status| bench.finish(status).map(drop))
}

fn cancelling_releases_the_waiters(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let statuses = [link.whole(Op::Read), link.whole(Op::Write)];
    let waiter = bench.spawn("an unbounded wait for cancelled transfers", {
        let statuses = statuses.clone();
        move || wait_all(&statuses, None)
    })?;
    let single = bench.spawn("an unbounded wait for a cancelled transfer", {
        let status = statuses[0].clone();
        move || status.wait(None)
    })?;
    for status in &statuses {
        status.cancel().doing("cancelling")?;
    }
    link.b.node.release();
    let code = single.join(bench.bounds.transfer)?;
    ensure!(code.is_terminal(), "the waiter for one was told {code}");
    let outcome = waiter.join(bench.bounds.transfer)?;
    ensure!(outcome.all_quiet(), "the waiter for both was told {outcome:?}");
    Ok(())
}

fn a_transfer_that_is_cancelled_while_it_runs_is_whole_or_quiet(bench: &Bench) -> CaseResult {
    let link = bench.link(LENGTH)?;
    let pieces = [Piece::new(0, 0, LENGTH as u64)];
    for round in 0..12 {
        let op = if round % 2 == 0 { Op::Read } else { Op::Write };
        let (mut local, mut remote) = (link.a.fill(&link.local, round)?, link.b.fill(&link.remote, !round)?);
        let status = link.submit(op, &pieces);
        // From "before the first byte" to "some bytes later", without a clock.
        for _ in 0..round * 50 {
            if !status.has_notifier() {
                status.poll();
            }
            std::thread::yield_now();
        }
        status.cancel().doing("cancelling")?;
        match bench.finish(&status)? {
            StatusCode::Success => {
                super::fixture::apply(op, &pieces, &mut local, &mut remote)?;
                link.a.holds(&link.local, &local, "at the submitter of a transfer that succeeded")?;
                link.b.holds(&link.remote, &remote, "at the target of a transfer that succeeded")?;
            }
            code => {
                failed_as(&status, code, &[ErrorKind::Cancelled])?;
                stays_quiet(bench, &link, op, || {})?;
            }
        }
    }
    Ok(())
}

fn a_finished_transfer_keeps_its_result(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let good = link.whole(Op::Read);
    bench.succeed(&good)?;
    let mut lie = link.remote.desc.clone();
    lie.size *= 2;
    let session = link.a.session_to(&link.local, &lie)?;
    let bad = session.submit(Op::Read, &[Piece::new(0, 8000, 8)], &TransferOptions::default());
    bench.fail(&bad, &[ErrorKind::InvalidArgument])?;
    for status in [&good, &bad] {
        let (code, error) = (status.code(), status.error());
        status.cancel().doing("cancelling a finished transfer")?;
        link.a.backend.cancel(status.id()).doing("cancelling a finished transfer at its backend")?;
        ensure!(
            status.code() == code && status.error() == error,
            "{code} became {} by cancelling",
            status.code()
        );
    }
    Ok(())
}

fn cancelling_one_leaves_the_others(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let expected = link.b.fill(&link.remote, 51)?;
    link.b.node.hold();
    let quarter = |n: u64| link.submit(Op::Read, &[Piece::new(n * 1024, n * 1024, 1024)]);
    let statuses = [quarter(0), quarter(1), quarter(2), quarter(3)];
    statuses[1].cancel().doing("cancelling")?;
    link.b.node.release();
    bench.finish(&statuses[1])?;
    for index in [0, 2, 3] {
        bench.succeed(&statuses[index]).doing("a transfer beside a cancelled one")?;
    }
    let found = link.a.bytes(&link.local)?;
    super::fixture::same(&found[..1024], &expected[..1024])?;
    super::fixture::same(&found[2048..], &expected[2048..])
}

fn cancelling_what_is_unknown_or_finished_does_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let status = link.whole(Op::Read);
    bench.succeed(&status)?;
    link.a.backend.cancel(TransferId::fresh()).doing("cancelling a transfer that does not exist")?;
    link.a.backend.cancel(status.id()).doing("cancelling a finished transfer")?;
    link.check(bench, Op::Write, &[Piece::new(0, 0, 4096)])
}

fn a_deadline_cancels_and_says_what_it_waited_for(bench: &Bench) -> CaseResult {
    const BOUND: Duration = Duration::from_millis(40);
    let link = bench.link(4096)?;
    for op in [Op::Read, Op::Write] {
        link.b.node.hold();
        let options = TransferOptions { deadline: Some(BOUND), ..TransferOptions::default() };
        let watch = Stopwatch::start();
        let status = link.session.submit(op, &[Piece::new(0, 0, 4096)], &options);
        // Until the target says that it is quiet, the transfer may stay in progress after its deadline.
        let mut code = status.wait_with(BOUND + bench.bounds.settle, &PATIENT);
        if code.is_terminal() {
            ensure!(watch.elapsed() >= BOUND, "the deadline of {BOUND:?} came after {:?}", watch.elapsed());
        } else {
            link.b.node.release();
            code = bench.finish(&status)?;
        }
        failed_as(&status, code, &[ErrorKind::Cancelled])?;
        let words = status.message();
        ensure!(
            words.len() > 15 && words.contains("deadline"),
            "the message does not say that the deadline has passed and what it waited for: {words:?}"
        );
        if op == Op::Read {
            stays_quiet(bench, &link, op, || link.b.node.release())?;
        }
        link.b.node.release();
    }
    link.check(bench, Op::Read, &[Piece::new(0, 0, 4096)]).doing("after the deadlines")
}

fn a_deadline_that_does_not_pass_changes_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(LENGTH)?;
    for bound in [bench.bounds.transfer, Duration::from_secs(3600), Duration::MAX] {
        let options = TransferOptions { deadline: Some(bound), ..TransferOptions::default() };
        for op in [Op::Read, Op::Write] {
            let status = link.session.submit(op, &[Piece::new(0, 0, LENGTH as u64)], &options);
            bench.succeed(&status).doing(format!("a transfer with a deadline of {bound:?}"))?;
        }
    }
    if bench.abilities().hold {
        link.b.node.hold();
        let options = TransferOptions { deadline: Some(bench.bounds.transfer), ..TransferOptions::default() };
        let status = link.session.submit(Op::Read, &[Piece::new(0, 0, 64)], &options);
        let code = status.wait_with(bench.bounds.settle, &PATIENT);
        link.b.node.release();
        ensure!(code == StatusCode::InProgress, "long before its deadline a held transfer is {code}");
        bench.succeed(&status)?;
    }
    let none: [Piece; 0] = [];
    let options = TransferOptions { deadline: Some(bench.bounds.transfer), ..TransferOptions::default() };
    let empty = link.session.submit(Op::Write, &none, &options);
    bench.finish(&empty).and_then(|code| match code {
        StatusCode::Success => Ok(()),
        code => Err(Problem::new(format!("an empty transfer with a deadline is {code}"))),
    })
}
