//! Waits for one transfer, on real transfers (contract W1–W10, S3, S4, F1).

use std::fs;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use mori_core::{ErrorKind, Op, Piece, Status, StatusCode, Timeout, TransferOptions, WaitPolicy};

use super::cases;
use super::fixture::{Bench, PATIENT, Stopwatch, failed_as, pause};
use crate::check::{CaseResult, Problem, ensure};

cases! {
    "W1, S2" a_terminal_status_answers_at_once,
    "S2, S3" code_and_message_are_one_fact,
    "W2, W3, W5" [Hold] a_bounded_wait_runs_out_in_progress_and_can_be_repeated,
    "W2, W6" [Hold] a_wait_of_zero_returns_at_once,
    "W2, W8, W10" [Hold] an_unbounded_wait_ends_with_the_transfer,
    "W2" [Hold] a_bound_too_large_for_the_clock_is_no_bound,
    "W7" [Hold] every_waiter_is_released,
    "W8" [Notifier] transfers_end_with_nobody_polling,
    "W9" [Hold] a_bounded_wait_finds_the_end_by_its_deadline,
    "W6, W10" [Hold] a_poll_never_waits_behind_a_blocked_waiter,
    "W6" [Hold] a_poll_of_an_unfinished_transfer_returns_at_once,
    "W8, W10" [Hold] a_blocked_waiter_uses_no_cpu,
    "S4" bytes_are_there_when_the_status_says_so,
    "F1" a_status_is_a_future,
    "F1" [Hold] a_future_resolves_when_the_transfer_ends,
    "Backend::poll_progress" polling_what_is_unknown_or_finished_does_nothing,
}

fn a_terminal_status_answers_at_once(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    let status = link.whole(Op::Read);
    bench.succeed(&status)?;
    for timeout in [Timeout::Unbounded, Timeout::Poll, Timeout::Within(Duration::from_secs(3600))] {
        let again = status.clone();
        let code = bench.prompt("a wait on a finished transfer", move || {
            again.wait_with(timeout, &WaitPolicy::DEFAULT)
        })?;
        ensure!(code == StatusCode::Success, "a wait on a finished transfer says {code}");
    }
    Ok(())
}

fn code_and_message_are_one_fact(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let mut lie = link.remote.desc.clone();
    lie.size *= 2;
    let session = link.a.session_to(&link.local, &lie)?;
    for _ in 0..20 {
        let status = session.submit(Op::Read, &[Piece::new(0, 8000, 8)], &TransferOptions::default());
        let watched = status.clone();
        let watcher = bench.spawn("a thread that watches a code", move || {
            while !watched.code().is_terminal() {
                pause();
            }
            (watched.code(), watched.error())
        })?;
        bench.finish(&status)?;
        let (code, error) = watcher.join(bench.bounds.prompt)?;
        let first = error.ok_or_else(|| Problem::new(format!("whoever saw {code} saw no error with it")))?;
        failed_as(&status, code, &[ErrorKind::InvalidArgument])?;
        ensure!(status.error().as_ref() == Some(&first), "the failure {first:?} became {:?}", status.error());
    }
    Ok(())
}

fn a_bounded_wait_runs_out_in_progress_and_can_be_repeated(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Write);
    for bound in [Duration::from_nanos(1), Duration::from_millis(1), Duration::from_millis(30)] {
        for policy in [&WaitPolicy::DEFAULT, &PATIENT] {
            let watch = Stopwatch::start();
            let code = status.wait_with(bound, policy);
            let took = watch.elapsed();
            ensure!(code == StatusCode::InProgress, "a wait of {bound:?} on a held transfer says {code}");
            ensure!(took >= bound, "a wait of {bound:?} returned after {took:?}");
            ensure!(took < bound + bench.bounds.prompt, "a wait of {bound:?} returned only after {took:?}");
        }
    }
    link.b.node.release();
    bench.succeed(&status)
}

fn a_wait_of_zero_returns_at_once(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    for _ in 0..10 {
        let polled = status.clone();
        let code = bench.prompt("a wait of zero", move || polled.wait(Duration::ZERO))?;
        ensure!(code == StatusCode::InProgress, "a wait of zero on a held transfer says {code}");
    }
    link.b.node.release();
    bench.until(
        bench.bounds.transfer,
        "a transfer that is only looked at with waits of zero ends",
        || status.wait(Duration::ZERO).is_terminal(),
    )?;
    bench.succeed(&status)
}

/// Blocks a thread in a wait on a held transfer, releases it, and gives what the wait returned.
fn released(bench: &Bench, timeout: Timeout) -> CaseResult<StatusCode> {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    let waiter = bench.spawn("a wait on a transfer that was held and released", move || {
        status.wait_with(timeout, &WaitPolicy::DEFAULT)
    })?;
    bench.settled(|| {
        ensure!(waiter.is_running(), "the wait has ended while the transfer is held");
        Ok(())
    })?;
    link.b.node.release();
    waiter.join(bench.bounds.transfer)
}

fn an_unbounded_wait_ends_with_the_transfer(bench: &Bench) -> CaseResult {
    let code = released(bench, Timeout::Unbounded)?;
    ensure!(code == StatusCode::Success, "the wait says {code}");
    Ok(())
}

fn a_bound_too_large_for_the_clock_is_no_bound(bench: &Bench) -> CaseResult {
    let code = released(bench, Timeout::Within(Duration::MAX))?;
    ensure!(code == StatusCode::Success, "the wait says {code}");
    Ok(())
}

fn every_waiter_is_released(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Write);
    let bound = bench.bounds.transfer;
    let timeouts =
        [Timeout::Unbounded, Timeout::Within(bound), Timeout::Within(bound * 2), Timeout::Unbounded];
    let waiters: Vec<_> = timeouts
        .iter()
        .chain(&timeouts)
        .map(|&timeout| {
            let status = status.clone();
            bench.spawn("one of eight waiters", move || status.wait_with(timeout, &PATIENT))
        })
        .collect::<CaseResult<_>>()?;
    // One that gives up early disturbs nobody.
    let early = status.wait_with(Duration::from_millis(5), &PATIENT);
    link.b.node.release();
    ensure!(early == StatusCode::InProgress, "a wait of five milliseconds on a held transfer says {early}");
    for waiter in waiters {
        let code = waiter.join(bound)?;
        ensure!(code == StatusCode::Success, "one of eight waiters was told {code}");
    }
    Ok(())
}

fn transfers_end_with_nobody_polling(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    for op in [Op::Read, Op::Write, Op::Read] {
        let status = link.whole(op);
        // `code` is a load; nothing here asks the backend for progress.
        bench.until(bench.bounds.transfer, "a transfer that nobody polls ends", || {
            status.code().is_terminal()
        })?;
        bench.succeed(&status)?;
    }
    Ok(())
}

fn a_bounded_wait_finds_the_end_by_its_deadline(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    let held = status.wait(Duration::from_millis(2));
    link.b.node.release();
    ensure!(held == StatusCode::InProgress, "a held transfer is {held}");
    let watch = Stopwatch::start();
    let mut code = StatusCode::InProgress;
    // The default policy: a poll up front and one at the deadline. A loaded machine may need a few rounds.
    while code == StatusCode::InProgress && watch.elapsed() < bench.bounds.transfer {
        code = status.wait(Duration::from_millis(50));
    }
    ensure!(code == StatusCode::Success, "bounded waits say {code} after {:?}", watch.elapsed());
    Ok(())
}

fn a_poll_never_waits_behind_a_blocked_waiter(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    fork.link.b.node.hold();
    let held = fork.link.whole(Op::Read);
    let waiter = bench.spawn("an unbounded wait", {
        let held = held.clone();
        move || held.wait(None)
    })?;
    bench.settled(|| {
        let (backend, id, status) = (Arc::clone(&fork.link.a.backend), held.id(), held.clone());
        bench.prompt("a poll beside a blocked waiter", move || backend.poll_progress(id))?;
        bench.prompt("a wait of zero beside a blocked waiter", move || status.wait(Duration::ZERO))?;
        let session = Arc::clone(&fork.session);
        let other = bench.prompt("a submission beside a blocked waiter", move || {
            session.submit(Op::Write, &[Piece::new(0, 0, 64)], &TransferOptions::default())
        })?;
        let bound = bench.bounds.transfer;
        let code = bench.within(bound, "another transfer beside a blocked waiter", move || {
            other.wait_with(bound, &PATIENT)
        })?;
        ensure!(code == StatusCode::Success, "another transfer beside a blocked waiter is {code}");
        Ok(())
    })?;
    fork.link.b.node.release();
    let code = waiter.join(bench.bounds.transfer)?;
    ensure!(code == StatusCode::Success, "the blocked waiter was told {code}");
    Ok(())
}

fn a_poll_of_an_unfinished_transfer_returns_at_once(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Write);
    for _ in 0..5 {
        let (backend, id) = (Arc::clone(&link.a.backend), status.id());
        bench.prompt("a poll of a held transfer", move || backend.poll_progress(id))?;
    }
    link.b.node.release();
    bench.succeed(&status)
}

/// Nanoseconds that the calling thread has run on a processor.
fn cpu_time() -> CaseResult<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text =
        fs::read_to_string(path).map_err(|error| Problem::new(format!("cannot read {path}: {error}")))?;
    let nanos = text.split_whitespace().next().and_then(|first| first.parse().ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| Problem::new(format!("{path} does not begin with a number")))
}

fn a_blocked_waiter_uses_no_cpu(bench: &Bench) -> CaseResult {
    const LONG: Duration = Duration::from_millis(300);
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    let blocked = status.clone();
    let waiter = bench.spawn("an unbounded wait", move || {
        let before = cpu_time()?;
        blocked.wait(None);
        Ok::<_, Problem>(cpu_time()?.saturating_sub(before))
    })?;
    let watch = Stopwatch::start();
    while watch.elapsed() < LONG {
        thread::park_timeout(LONG);
    }
    link.b.node.release();
    let used = waiter.join(bench.bounds.transfer)??;
    // A backend without notifier and hook is polled a thousand times a second, which costs something.
    let limit = if status.has_notifier() { LONG / 10 } else { LONG / 4 };
    ensure!(used < limit, "a waiter blocked for {LONG:?} has used {used:?} of processor time");
    bench.succeed(&status)
}

fn bytes_are_there_when_the_status_says_so(bench: &Bench) -> CaseResult {
    let length = 1 << 20;
    let link = bench.link(length)?;
    let mut tail = [0; 64];
    let mut head = [0; 64];
    for round in 0..20 {
        let expected = link.b.fill(&link.remote, 100 + round)?;
        let status = link.whole(Op::Read);
        bench.until(bench.bounds.transfer, "a read ends", || {
            if !status.has_notifier() {
                status.poll();
            }
            status.code().is_terminal()
        })?;
        // Looked at on a thread that has done nothing but load the code.
        let at = length as u64 - 64;
        let looked = link.a.node.load(&link.local.region, at, &mut tail);
        let looked = looked.and_then(|()| link.a.node.load(&link.local.region, 0, &mut head));
        looked.map_err(|error| Problem::new(format!("looking at memory: {error}")))?;
        bench.succeed(&status)?;
        ensure!(
            tail[..] == expected[length - 64..],
            "success in round {round}, but the last bytes are not there"
        );
        ensure!(head[..] == expected[..64], "success in round {round}, but the first bytes are not there");
    }
    Ok(())
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end, or until `bound` has passed.
fn drive<F: Future + Unpin>(mut future: F, bound: Duration) -> CaseResult<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let watch = Stopwatch::start();
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut context) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => {
                let left = bound.saturating_sub(watch.elapsed());
                ensure!(!left.is_zero(), "the future has not resolved after {bound:?}");
                thread::park_timeout(left);
            }
        }
    }
}

fn a_status_is_a_future(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for _ in 0..10 {
        let code = drive(link.whole(Op::Read).into_future(), bench.bounds.transfer)?;
        ensure!(code == StatusCode::Success, "the future says {code}");
    }
    let statuses: Vec<Status> = (0..10).map(|_| link.whole(Op::Write)).collect();
    let outcome = drive(mori_core::Gathering::all(statuses), bench.bounds.transfer)?;
    ensure!(outcome.is_success(), "the future of ten transfers says {outcome:?}");
    Ok(())
}

fn a_future_resolves_when_the_transfer_ends(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.b.node.hold();
    let status = link.whole(Op::Read);
    // A future that is polled once and dropped cancels nothing.
    let dropped = drive((&status).into_future(), Duration::from_millis(2));
    ensure!(dropped.is_err(), "the future of a held transfer resolves to {dropped:?}");
    let (future, bound) = ((&status).into_future(), bench.bounds.transfer);
    let driver = bench.spawn("a future", move || drive(future, bound))?;
    bench.settled(|| {
        ensure!(driver.is_running(), "the future of a held transfer has resolved");
        Ok(())
    })?;
    link.b.node.release();
    let code = driver.join(bound)??;
    ensure!(code == StatusCode::Success, "the future says {code}");
    Ok(())
}

fn polling_what_is_unknown_or_finished_does_nothing(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let status = link.whole(Op::Read);
    bench.succeed(&status)?;
    for id in [status.id(), mori_core::TransferId::fresh()] {
        let backend = Arc::clone(&link.a.backend);
        bench.prompt("a poll of nothing", move || backend.poll_progress(id))?;
        if link.a.backend.has_notifier() {
            let backend = Arc::clone(&link.a.backend);
            bench.prompt("lingering on nothing", move || backend.linger(id, &|| false))?;
        } else {
            let backend = Arc::clone(&link.a.backend);
            bench.prompt("blocking on nothing", move || backend.block_on(id))?;
        }
    }
    ensure!(status.is_success(), "a finished transfer became {}", status.code());
    link.check(bench, Op::Write, &[Piece::new(0, 0, 4096)])
}
