//! Submission: what a status is when `submit` returns, and whose it is.

use std::collections::HashSet;
use std::thread;

use mori_core::{Access, ErrorKind, Op, Piece, StatusCode, Tag, TransferOptions};

use super::cases;
use super::fixture::Bench;
use crate::check::{CaseResult, Problem, ensure};

cases! {
    "S1, Session::submit" submit_leaves_init,
    "S1, Session::submit" [Hold] submit_leaves_init_while_nothing_moves,
    "Session::submit" [Hold] submit_does_not_wait_for_the_peer,
    "TransferId" transfers_have_numbers_of_their_own,
    "A9" the_tag_comes_back,
    "W8, Backend::has_notifier" statuses_say_what_the_backend_says,
    "Capabilities" undeclared_capabilities_answer_unsupported,
    "Backend::attach" attaching_twice_is_a_bad_state,
}

fn submit_leaves_init(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    let mut wrong = link.remote.clone();
    wrong.desc.size *= 4;
    let lying = link.a.session_to(&link.local, &wrong.desc)?;
    let mut statuses = Vec::new();
    for _ in 0..50 {
        statuses.push(link.whole(Op::Write));
        statuses.push(link.submit(Op::Read, &[]));
        statuses.push(lying.submit(Op::Read, &[Piece::new(0, 1 << 17, 1)], &TransferOptions::default()));
        for status in &statuses[statuses.len() - 3..] {
            ensure!(status.code() != StatusCode::Init, "submit returned a status that is still init");
        }
    }
    for status in &statuses {
        bench.finish(status)?;
    }
    Ok(())
}

fn submit_leaves_init_while_nothing_moves(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    let code = status.code();
    link.b.node.release();
    ensure!(code == StatusCode::InProgress, "submit returned a held transfer as {code}");
    bench.succeed(&status)
}

fn submit_does_not_wait_for_the_peer(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 20)?;
    link.b.node.hold();
    let watch = super::fixture::Stopwatch::start();
    let statuses: Vec<_> = (0..4).flat_map(|_| [link.whole(Op::Read), link.whole(Op::Write)]).collect();
    let took = watch.elapsed();
    link.b.node.release();
    ensure!(took < bench.bounds.prompt, "eight submissions to a peer that does not answer took {took:?}");
    statuses.iter().try_for_each(|status| bench.succeed(status))
}

fn transfers_have_numbers_of_their_own(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    let other = link.a.session(&link.local, &link.remote)?;
    let numbers: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let session = if index % 2 == 0 { &link.session } else { &other };
                scope.spawn(move || {
                    let submit =
                        |_| session.submit(Op::Read, &[Piece::new(0, 0, 8)], &TransferOptions::default());
                    (0..25)
                        .map(submit)
                        .map(|status| bench.finish(&status).map(|_| status.id().get()))
                        .collect::<CaseResult<Vec<_>>>()
                })
            })
            .collect();
        let mut numbers = Vec::new();
        for thread in threads {
            numbers.extend(thread.join().map_err(|_| Problem::new("a submitting thread panicked"))??);
        }
        Ok::<_, Problem>(numbers)
    })?;
    let distinct: HashSet<_> = numbers.iter().copied().collect();
    ensure!(distinct.len() == numbers.len(), "{} transfers share {} numbers", numbers.len(), distinct.len());
    ensure!(!distinct.contains(&0), "a transfer has the number zero");
    Ok(())
}

fn the_tag_comes_back(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    for tag in [0, 1, 77, u64::MAX] {
        for pieces in [&[][..], &[Piece::new(0, 0, 8)]] {
            let status = link.session.submit(Op::Write, pieces, &TransferOptions::tagged(tag));
            ensure!(status.tag() == Tag(tag), "the tag {tag} came back as {}", status.tag());
            bench.succeed(&status)?;
        }
    }
    Ok(())
}

fn statuses_say_what_the_backend_says(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    let says = link.a.backend.has_notifier();
    for round in 0..20 {
        ensure!(link.a.backend.has_notifier() == says, "has_notifier changed after {round} transfers");
        let status = link.submit(Op::Read, &[Piece::new(0, 0, 8)]);
        if !status.code().is_terminal() {
            ensure!(status.has_notifier() == says, "the backend says notifier: {says}, its status does not");
        }
        bench.succeed(&status)?;
    }
    link.a.backend.shutdown();
    ensure!(link.a.backend.has_notifier() == says, "has_notifier changed with the shutdown");
    Ok(())
}

fn undeclared_capabilities_answer_unsupported(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    let capabilities = link.a.backend.capabilities();
    let piece = [Piece::new(0, 0, 8)];
    if !capabilities.cancel {
        let status = link.whole(Op::Read);
        match link.a.backend.cancel(status.id()) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            other => return Err(Problem::new(format!("`cancel` is not declared, and answers {other:?}"))),
        }
        bench.succeed(&status)?;
        let options = TransferOptions { deadline: Some(bench.bounds.transfer), ..TransferOptions::default() };
        bench
            .fail(&link.session.submit(Op::Read, &piece, &options), &[ErrorKind::Unsupported])
            .map_err(|problem| problem.context("a transfer with a deadline, without `cancel`"))?;
    }
    if !capabilities.notify {
        let notify = mori_core::Notify { message: b"message".to_vec(), on_failure: false };
        let options = TransferOptions { notify: Some(notify), ..TransferOptions::default() };
        bench
            .fail(&link.session.submit(Op::Write, &piece, &options), &[ErrorKind::Unsupported])
            .map_err(|problem| problem.context("a transfer with a message, without `notify`"))?;
    }
    ensure!(link.a.backend.capabilities() == capabilities, "the capabilities have changed");
    ensure!(
        capabilities.host_memory || capabilities.device_memory,
        "the backend declares that it carries no kind of memory"
    );
    // What is left works with the least rights.
    let area = link.b.area_for(64, Access::READ_ONLY)?;
    bench.succeed(&link.a.session(&link.local, &area)?.submit(Op::Read, &piece, &TransferOptions::default()))
}

fn attaching_twice_is_a_bad_state(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    let context = super::fixture::context(&link.a.key, &link.a.inbox);
    match link.a.backend.attach(context) {
        Err(error) if error.kind() == ErrorKind::BadState => {}
        other => return Err(Problem::new(format!("attaching a second time answers {other:?}"))),
    }
    link.check(bench, Op::Read, &[Piece::new(0, 0, 64)])
}
