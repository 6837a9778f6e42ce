//! Waiting with the engine's policy over several backends, and for event loops.

use std::sync::Arc;
use std::time::Duration;

use mori_engine::{
    Access, Completer, Engine, ErrorKind, ManualClock, Memory, MemoryDesc, Origin, Repoll, Status,
    StatusCode, StatusFd, Tag, Timeout, TransferOptions, WaitPolicy,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::fake::{Fake, Net, introduce, with};

const SECOND: Duration = Duration::from_secs(1);

/// An engine with a backend that notifies and one that must be polled, and a peer on each of them.
struct Mixed {
    engine: Engine,
    _peers: [Engine; 2],
    notified: Arc<Fake>,
    polled: Arc<Fake>,
    local: Memory,
    over_notified: MemoryDesc,
    over_polled: MemoryDesc,
}

impl Mixed {
    fn new(policy: WaitPolicy) -> Self {
        let net = Net::default();
        let (notified, polled) = (net.fake("notified"), net.polled("polled"));
        let engine = with("a", [&notified, &polled]).wait_policy(policy).build().unwrap();
        let b = with("b", [&net.fake("notified")]).build().unwrap();
        let c = with("c", [&net.polled("polled")]).build().unwrap();
        introduce([&engine, &b, &c]);
        let local = engine.allocate(64, Access::READ_WRITE).unwrap();
        let over_notified = b.register_vec(vec![1; 64], Access::READ_ONLY).unwrap().desc();
        let over_polled = c.register_vec(vec![2; 64], Access::READ_ONLY).unwrap().desc();
        Self { engine, _peers: [b, c], notified, polled, local, over_notified, over_polled }
    }

    fn hold(&self) {
        self.notified.script(|script| script.hold = true);
        self.polled.script(|script| script.hold = true);
    }

    /// One transfer over each backend, the polled one first.
    fn submit(&self) -> [Status; 2] {
        [&self.over_polled, &self.over_notified]
            .map(|remote| self.engine.read(&self.local, 0, remote, 0, 32, TransferOptions::default()))
    }
}

fn manual() -> (ManualClock, WaitPolicy) {
    let manual = ManualClock::new();
    let policy = WaitPolicy { clock: manual.clock(), ..WaitPolicy::DEFAULT };
    (manual, policy)
}

/// Runs `wait`, and `then` once it sleeps on the clock.
fn asleep<T: Send>(manual: &ManualClock, wait: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
    let before = manual.sleeps();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(wait);
        while manual.sleeps() == before && !waiter.is_finished() {
            std::thread::yield_now();
        }
        then();
        waiter.join().unwrap()
    })
}

/// A7: both kinds wait under the same rules, and both succeed.
#[test]
fn a_mixed_batch_is_waited_for_as_one() {
    let mixed = Mixed::new(WaitPolicy::DEFAULT);
    let statuses = mixed.submit();
    assert_eq!(statuses.each_ref().map(Status::has_notifier), [false, true]);
    assert_eq!(statuses[0].code(), StatusCode::InProgress);
    let outcome = mixed.engine.wait_all(&statuses, None);
    assert!(outcome.is_success() && outcome.len() == 2, "{outcome:?}");
    let mut bytes = [0; 32];
    mixed.local.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 32], "the polled one came last");
}

/// W9, A5: one poll up front and one at the deadline, and the deadline is one for all.
#[test]
fn a_bound_polls_the_polled_member_twice() {
    let (manual, policy) = manual();
    let mixed = Mixed::new(policy);
    mixed.hold();
    let statuses = mixed.submit();
    let outcome = asleep(&manual, || mixed.engine.wait_all(&statuses, SECOND), || manual.advance(SECOND));
    assert_eq!(outcome.code(), StatusCode::InProgress);
    assert_eq!(outcome.unfinished().len(), 2);
    assert_eq!((mixed.polled.polls(), mixed.notified.polls()), (2, 0));
    // The one that finished meanwhile is found at the deadline.
    mixed.polled.release();
    mixed.notified.release();
    assert!(mixed.engine.wait_all(&statuses, SECOND).is_success());
    assert_eq!(mixed.polled.polls(), 3);
}

/// A7: a member without a notifier does not delay the release by one with.
#[test]
fn the_polled_member_delays_nobody() {
    let (manual, policy) = manual();
    let mixed = Mixed::new(policy);
    mixed.hold();
    let statuses = mixed.submit();
    let first = asleep(&manual, || mixed.engine.wait_any(&statuses, SECOND), || mixed.notified.release());
    assert_eq!(first, Some(1));
    let some = mixed.engine.wait_some(&statuses, 1, None);
    assert_eq!((some.succeeded(), some.unfinished().len()), (1, 1));
    assert_eq!(mixed.engine.scan(&statuses), some);
}

#[test]
fn the_engines_policy_polls_again_in_between() {
    let policy = WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT };
    let mixed = Mixed::new(policy);
    assert_eq!(mixed.engine.wait_policy().repoll, Repoll::BACKOFF);
    mixed.hold();
    let statuses = mixed.submit();
    let outcome = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| mixed.engine.wait_all(&statuses, Duration::MAX));
        mixed.polled.await_polls(5);
        mixed.polled.release();
        mixed.notified.release();
        waiter.join().unwrap()
    });
    assert!(outcome.is_success(), "{outcome:?}");
}

#[test]
fn a_failure_ends_the_wait_that_asks_for_it() {
    let (manual, policy) = manual();
    let mixed = Mixed::new(policy);
    mixed.hold();
    let [polled, notified] = mixed.submit();
    notified.cancel().unwrap();
    let outcome = mixed.engine.wait_first_failure(&[&polled, &notified], None);
    assert_eq!(outcome.code(), StatusCode::Failure(ErrorKind::Cancelled));
    assert_eq!(outcome.unfinished()[0].id, polled.id());
    assert_eq!(mixed.engine.wait(&polled, Timeout::Poll), StatusCode::InProgress);
    let code = asleep(&manual, || mixed.engine.wait(&polled, SECOND), || manual.advance(SECOND));
    assert_eq!(code, StatusCode::InProgress);
    mixed.polled.release();
    assert_eq!(mixed.engine.wait(&polled, None), StatusCode::Success);
}

/// Whether the descriptor is readable; `patient`: waits for it, with a bound only so that a failure is no hang.
fn readable(fd: &StatusFd, patient: bool) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let bound = Timespec { tv_sec: if patient { 60 } else { 0 }, tv_nsec: 0 };
    poll(&mut polled, Some(&bound)).unwrap();
    polled[0].revents().contains(PollFlags::IN)
}

fn in_progress() -> (Completer, Status) {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    (completer, status)
}

/// F2: not readable before, readable after, and for good.
#[test]
fn a_descriptor_becomes_readable_with_the_status_and_stays_so() {
    let (completer, status) = in_progress();
    let fd = StatusFd::new(&status).unwrap();
    assert!(!readable(&fd, false));
    assert_eq!(fd.outcome().code(), StatusCode::InProgress);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| readable(&fd, true));
        completer.succeed();
        assert!(waiter.join().unwrap());
    });
    assert!(readable(&fd, false) && readable(&fd, false));
    assert!(fd.outcome().is_success());
    assert_eq!(fd.members()[0].id(), status.id());
}

#[test]
fn a_batch_has_one_descriptor_by_any_rule() {
    let pairs: Vec<(Completer, Status)> = (0..3).map(|_| in_progress()).collect();
    let statuses: Vec<Status> = pairs.iter().map(|(_, status)| status.clone()).collect();
    let all = StatusFd::all(&statuses).unwrap();
    let two = StatusFd::some(&statuses, 2).unwrap();
    let failure = StatusFd::first_failure(&statuses).unwrap();
    let seen = || [readable(&two, false), readable(&failure, false), readable(&all, false)];
    assert_eq!(seen(), [false, false, false]);
    pairs[2].0.succeed();
    assert_eq!(seen(), [false, false, false]);
    pairs[0].0.fail(mori_engine::Error::new(ErrorKind::PeerLost, "gone"));
    assert_eq!(seen(), [true, true, false]);
    pairs[1].0.succeed();
    assert_eq!(seen(), [true, true, true]);
    assert_eq!(all.outcome().failed()[0].index, 0);
}

#[test]
fn what_is_terminal_or_empty_is_readable_at_once() {
    assert!(readable(&StatusFd::all(&[]).unwrap(), false));
    assert!(readable(&StatusFd::new(&Status::succeeded(Tag(0))).unwrap(), false));
    let (completer, status) = in_progress();
    assert!(!readable(&StatusFd::all(&[Status::succeeded(Tag(0)), status.clone()]).unwrap(), false));
    // One that was dropped is rung no more, and nobody minds.
    completer.succeed();
    assert!(readable(&StatusFd::new(&status).unwrap(), false));
}

/// F2 over a backend that somebody has to poll: nobody waits, and the descriptor becomes readable all the same.
#[test]
fn a_polled_backend_is_driven_for_the_descriptor() {
    let mixed = Mixed::new(WaitPolicy::DEFAULT);
    mixed.hold();
    let statuses = mixed.submit();
    let fd = StatusFd::all(&statuses).unwrap();
    mixed.polled.await_polls(3);
    assert!(!readable(&fd, false));
    mixed.polled.release();
    mixed.notified.release();
    assert!(readable(&fd, true));
    assert!(fd.outcome().is_success());
}

#[test]
fn an_event_loop_sees_which_of_many_is_ready() {
    let pairs: Vec<(Completer, Status)> = (0..4).map(|_| in_progress()).collect();
    let fds: Vec<StatusFd> = pairs.iter().map(|(_, status)| StatusFd::new(status).unwrap()).collect();
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (index, fd) in fds.iter().enumerate() {
        epoll::add(&events, fd, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN).unwrap();
    }
    let mut seen = Vec::new();
    for (done, index) in [2_usize, 0, 3, 1].into_iter().enumerate() {
        pairs[index].0.succeed();
        let mut buffer = Vec::with_capacity(4);
        epoll::wait(&events, rustix::buffer::spare_capacity(&mut buffer), None).unwrap();
        seen.push(index as u64);
        let mut found: Vec<u64> = buffer.iter().map(|event| event.data.u64()).collect();
        found.sort_unstable();
        let mut expected = seen.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "after {}", done + 1);
    }
}

#[test]
fn an_engine_that_ends_makes_the_descriptor_readable() {
    let mixed = Mixed::new(WaitPolicy::DEFAULT);
    mixed.hold();
    let statuses = mixed.submit();
    let fd = StatusFd::all(&statuses).unwrap();
    drop(mixed);
    assert!(readable(&fd, true));
    assert_eq!(fd.outcome().failed().len(), 2);
}
