//! Waits for many, on real transfers (contract A1–A12).

use std::thread;
use std::time::Duration;

use mori_core::{
    ErrorKind, Op, Origin, Outcome, Piece, Status, StatusCode, Tag, TransferOptions, scan, wait_all,
    wait_any, wait_first_failure, wait_some,
};

use super::cases;
use super::fixture::{Bench, Fork, PATIENT, Stopwatch};
use crate::check::{CaseResult, Problem, ensure};

cases! {
    "A1" an_empty_batch_succeeds,
    "A1" a_status_may_stand_in_a_batch_twice,
    "A2, A5" [Hold] finished_members_are_seen_wherever_they_stand,
    "A2, W5" [Hold] a_batch_has_one_deadline,
    "A3, A4, A9" [Hold] failure_wins_and_the_batch_waits_for_quiet,
    "A4" [Hold] first_failure_returns_early_and_names_what_is_running,
    "A6" [Hold] a_batch_wait_of_zero_returns_at_once,
    "A7" [Hold] mixed_batches_wait_under_the_same_rules,
    "A8" a_member_that_was_never_submitted_hides_no_failure,
    "A9" the_outcome_names_each_failed_member,
    "A10" a_large_batch_of_real_transfers,
    "A11" [Hold] a_scan_gives_the_same_outcome_at_once,
    "A12" [Hold] wait_any_and_wait_some_return_as_soon_as_they_can,
}

fn an_empty_batch_succeeds(_bench: &Bench) -> CaseResult {
    let none: [Status; 0] = [];
    ensure!(wait_all(&none, None).is_success(), "an empty batch does not succeed");
    ensure!(wait_any(&none, None).is_none(), "an empty batch has a member that ended");
    Ok(())
}

fn a_status_may_stand_in_a_batch_twice(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let (read, write) = (link.whole(Op::Read), link.submit(Op::Read, &[Piece::new(0, 0, 1)]));
    let members = [read.clone(), write.clone(), read.clone(), read, write];
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    ensure!(
        outcome.is_success() && outcome.succeeded() == 5,
        "a batch with a member thrice gives {outcome:?}"
    );
    Ok(())
}

/// Waits with short bounds, as a caller with other work does, until `done` says so.
fn rounds(bench: &Bench, members: &[Status], done: impl Fn(&Outcome) -> bool) -> CaseResult<Outcome> {
    let watch = Stopwatch::start();
    loop {
        let outcome = wait_all(members, Duration::from_millis(40));
        if done(&outcome) {
            return Ok(outcome);
        }
        ensure!(
            watch.elapsed() < bench.bounds.transfer,
            "after {:?} the batch is {outcome:?}",
            watch.elapsed()
        );
    }
}

fn finished_members_are_seen_wherever_they_stand(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let mut members = vec![fork.link.whole(Op::Read)];
    members.extend((0..5).map(|_| fork.whole(Op::Write)));
    let outcome = rounds(bench, &members, |outcome| outcome.unfinished().len() == 1);
    fork.link.b.node.release();
    let outcome = outcome?;
    ensure!(outcome.code() == StatusCode::InProgress, "a batch with a held member is {}", outcome.code());
    ensure!(outcome.unfinished()[0].index == 0, "the held member stands first, the outcome says {outcome:?}");
    ensure!(outcome.succeeded() == 5 && !outcome.all_quiet(), "five of six have ended: {outcome:?}");
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    ensure!(outcome.is_success(), "after the release the batch is {outcome:?}");
    Ok(())
}

fn a_batch_has_one_deadline(bench: &Bench) -> CaseResult {
    const BOUND: Duration = Duration::from_millis(30);
    let link = bench.link(4096)?;
    link.b.node.hold();
    let members: Vec<Status> = (0..100).map(|_| link.submit(Op::Read, &[Piece::new(0, 0, 16)])).collect();
    let watch = Stopwatch::start();
    let outcome = wait_all(&members, BOUND);
    let took = watch.elapsed();
    link.b.node.release();
    ensure!(outcome.unfinished().len() == 100, "a hundred transfers are held: {outcome:?}");
    ensure!(took >= BOUND, "a batch wait of {BOUND:?} returned after {took:?}");
    ensure!(took < BOUND + bench.bounds.prompt, "a batch wait of {BOUND:?} returned only after {took:?}");
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    ensure!(outcome.is_success(), "after the release the batch is {outcome:?}");
    Ok(())
}

/// A transfer that the target of `c` refuses, with this tag.
fn refused(fork: &Fork, tag: u64) -> CaseResult<Status> {
    let mut lie = fork.remote.desc.clone();
    lie.size *= 2;
    let session = fork.link.a.session_to(&fork.local, &lie)?;
    let beyond = Piece::new(0, fork.remote.desc.size, 1);
    Ok(session.submit(Op::Read, &[beyond], &TransferOptions::tagged(tag)))
}

fn failure_wins_and_the_batch_waits_for_quiet(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let held = fork.link.whole(Op::Read);
    let members = [held, fork.whole(Op::Read), refused(&fork, 41)?, fork.whole(Op::Write)];
    let outcome = rounds(bench, &members, |outcome| outcome.unfinished().len() == 1);
    fork.link.b.node.release();
    let outcome = outcome?;
    let failure = StatusCode::Failure(ErrorKind::InvalidArgument);
    ensure!(outcome.code() == failure, "a batch with a failed and a held member is {}", outcome.code());
    ensure!(outcome.unfinished()[0].index == 0, "the held member stands first: {outcome:?}");
    let outcome = bench.within(bench.bounds.transfer, "an unbounded wait for a batch with a failure", {
        let members = members.clone();
        move || wait_all(&members, None)
    })?;
    ensure!(outcome.code() == failure && outcome.all_quiet(), "at the end the batch is {outcome:?}");
    let [failed] = outcome.failed() else {
        return Err(Problem::new(format!("one member has failed: {outcome:?}")));
    };
    ensure!(
        failed.index == 2 && failed.tag == Tag(41),
        "the third member, tagged 41, has failed: {failed:?}"
    );
    ensure!(failed.id == members[2].id(), "the outcome names another transfer: {failed:?}");
    ensure!(failed.error.is_some(), "the outcome has no error: {failed:?}");
    Ok(())
}

fn first_failure_returns_early_and_names_what_is_running(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let members = [fork.link.whole(Op::Read), fork.link.whole(Op::Write), refused(&fork, 0)?];
    let outcome = bench.within(bench.bounds.transfer, "a wait for the first failure", {
        let members = members.clone();
        move || wait_first_failure(&members, None)
    });
    fork.link.b.node.release();
    let outcome = outcome?;
    ensure!(
        outcome.failed().len() == 1 && outcome.failed()[0].index == 2,
        "the third has failed: {outcome:?}"
    );
    ensure!(outcome.unfinished().len() == 2, "two are still running: {outcome:?}");
    members[..2].iter().try_for_each(|status| bench.succeed(status))
}

fn a_batch_wait_of_zero_returns_at_once(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let members = vec![fork.link.whole(Op::Read), fork.whole(Op::Read), refused(&fork, 0)?];
    bench.finish(&members[1])?;
    bench.finish(&members[2])?;
    let outcome = bench.prompt("a batch wait of zero", {
        let members = members.clone();
        move || wait_all(&members, Duration::ZERO)
    });
    fork.link.b.node.release();
    let outcome = outcome?;
    ensure!(outcome.code().is_failure(), "a wait of zero scans past what is in progress: {outcome:?}");
    ensure!(outcome.unfinished().len() == 1 && outcome.succeeded() == 1, "one is held: {outcome:?}");
    bench.succeed(&members[0])
}

fn mixed_batches_wait_under_the_same_rules(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    for notifier in [true, false] {
        let other = crate::fake::FakeFabric::new()
            .backend(crate::fake::FakeConfig { notifier, ..crate::fake::FakeConfig::default() });
        let scripted = other.start(Tag(5));
        fork.link.b.node.hold();
        let members = vec![fork.link.whole(Op::Read), scripted.clone(), fork.whole(Op::Write)];
        let outcome = rounds(bench, &members, |outcome| outcome.unfinished().len() == 2);
        fork.link.b.node.release();
        outcome?;
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                // Ends some time after the release, for the waiter to find both ways round.
                bench.finish(&members[0]).is_ok().then(|| other.ready(scripted.id(), Ok(())))
            });
            bench.within(bench.bounds.transfer, "an unbounded wait for a mixed batch", {
                let members = members.clone();
                move || wait_all(&members, None)
            })
        })?;
        ensure!(
            outcome.is_success(),
            "the mixed batch (other backend's notifier: {notifier}) is {outcome:?}"
        );
    }
    Ok(())
}

fn a_member_that_was_never_submitted_hides_no_failure(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    let (_completer, init) = Status::pair(Origin::detached());
    let members = [init, fork.whole(Op::Read), refused(&fork, 0)?];
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    ensure!(outcome.code().is_failure(), "with a failure and an init member the batch is {outcome:?}");
    let outcome = PATIENT.wait_all(&members[..2], bench.bounds.transfer);
    ensure!(
        outcome.code() == StatusCode::Init,
        "with an init member and no failure the batch is {outcome:?}"
    );
    Ok(())
}

fn the_outcome_names_each_failed_member(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    let mut members = Vec::new();
    for tag in 0..20 {
        members.push(if tag % 3 == 0 { refused(&fork, tag)? } else { fork.whole(Op::Read) });
    }
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    let named: Vec<(usize, u64)> =
        outcome.failed().iter().map(|member| (member.index, member.tag.0)).collect();
    let expected: Vec<(usize, u64)> =
        (0..20).filter(|index| index % 3 == 0).map(|index| (index, index as u64)).collect();
    ensure!(named == expected, "failed are {expected:?} (index, tag); the outcome names {named:?}");
    Ok(())
}

fn a_large_batch_of_real_transfers(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let expected = link.b.fill(&link.remote, 31)?;
    let members: Vec<Status> =
        (0..1024).map(|slot| link.submit(Op::Read, &[Piece::new(slot * 64, slot * 64, 64)])).collect();
    let outcome = PATIENT.wait_all(&members, bench.bounds.transfer);
    ensure!(
        outcome.is_success() && outcome.succeeded() == 1024,
        "1024 transfers end as {:?}",
        outcome.code()
    );
    link.a.holds(&link.local, &expected, "at the submitter")
}

fn a_scan_gives_the_same_outcome_at_once(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let members = [refused(&fork, 9)?, fork.link.whole(Op::Read), fork.whole(Op::Read)];
    let waited = rounds(bench, &members, |outcome| outcome.unfinished().len() == 1);
    let scanned = scan(&members);
    fork.link.b.node.release();
    let waited = waited?;
    ensure!(scanned == waited, "the wait found {waited:?}, the scan right after it {scanned:?}");
    bench.succeed(&members[1])
}

fn wait_any_and_wait_some_return_as_soon_as_they_can(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let members = vec![fork.link.whole(Op::Read), fork.whole(Op::Read), fork.whole(Op::Write)];
    let answers = bench.within(bench.bounds.transfer, "waits for one and for two of three", {
        let members = members.clone();
        move || (wait_any(&members, None), wait_some(&members, 2, None))
    });
    fork.link.b.node.release();
    let (any, some) = answers?;
    ensure!(any.is_some_and(|index| index > 0), "one of the two that are not held has ended: {any:?}");
    ensure!(some.succeeded() == 2 && some.unfinished().len() == 1, "two of three have ended: {some:?}");
    bench.succeed(&members[0])
}
