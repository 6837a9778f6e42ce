//! F1: statuses and batches as futures.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park, scope};

use mori_core::{ErrorKind, Gathering, ManualClock, Outcome, Status, StatusCode, Tag};

use crate::support::{BAD_STATE, Fake, KINDS, Kind, TRANSPORT, Waiter, broken, on};

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Woken {
    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: polls, and parks until it is woken.
fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        park();
    }
}

fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// F1: a future resolves to the terminal code, and wakes its task once for it.
#[test]
fn f1_a_future_resolves_to_the_terminal_code() {
    for (result, code) in [(Ok(()), StatusCode::Success), (Err(broken()), TRANSPORT)] {
        let fake = Fake::new(Kind::Notifier);
        let status = fake.submit();
        let mut future = (&status).into_future();
        let woken = Arc::new(Woken::default());
        assert_eq!(poll(&mut future, &woken), Poll::Pending);
        fake.update(&status, |completer| assert!(completer.note("halfway").applied()));
        assert_eq!((poll(&mut future, &woken), woken.count()), (Poll::Pending, 0));
        fake.finish(&status, result);
        assert_eq!(woken.count(), 1);
        assert_eq!(poll(&mut future, &woken), Poll::Ready(code));
    }
}

/// F1, W1: a status that is not in progress resolves at the first poll, without waking anybody or polling a backend.
#[test]
fn f1_a_status_that_is_not_in_progress_resolves_at_once() {
    let fake = Fake::new(Kind::Polled);
    let (good, bad, init) = (fake.submit(), fake.submit(), fake.create(0));
    fake.succeed(&good);
    fake.finish(&bad, Err(broken()));
    for (status, code) in [(&good, StatusCode::Success), (&bad, TRANSPORT), (&init, StatusCode::Init)] {
        let woken = Arc::new(Woken::default());
        assert_eq!(poll(&mut status.into_future(), &woken), Poll::Ready(code));
        assert_eq!((woken.count(), fake.polls(status)), (0, 0));
    }
}

/// F1: dropping a future cancels nothing and wakes nobody; the transfer goes on, for waiters and further futures.
#[test]
fn f1_dropping_a_future_cancels_nothing() {
    for kind in KINDS {
        let fake = Fake::cancelling(kind);
        let status = fake.submit();
        let woken = Arc::new(Woken::default());
        let mut dropped = (&status).into_future();
        assert_eq!(poll(&mut dropped, &woken), Poll::Pending);
        let kept = (&status).into_future();
        drop(dropped);
        assert_eq!((fake.cancels(&status), status.code()), (0, StatusCode::InProgress));
        fake.succeed(&status);
        assert_eq!((woken.count(), block_on(kept)), (0, StatusCode::Success));
        assert_eq!(Arc::strong_count(&woken), 1, "the dropped future has left its waker behind");
    }
}

/// F1: a future that moves to another task wakes that one, and not the first.
#[test]
fn f1_the_latest_waker_is_woken() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(2);
    let mut one = (&statuses[0]).into_future();
    let mut many = Gathering::all(statuses.clone());
    let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    for woken in [&first, &second] {
        assert!(poll(&mut one, woken).is_pending());
        assert!(poll(&mut many, woken).is_pending());
    }
    statuses.iter().for_each(|status| fake.succeed(status));
    assert_eq!((first.count(), second.count()), (0, 2));
    assert!(poll(&mut one, &second).is_ready() && poll(&mut many, &second).is_ready());
}

/// F1, W9: on a backend without a notifier somebody makes progress for a future that only waits; its hook is left alone.
#[test]
fn f1_a_backend_without_notifier_is_driven_for_futures() {
    for kind in [Kind::Polled, Kind::Hooked] {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(3);
        scope(|scope| {
            let one = Waiter::start(scope, || block_on(&statuses[0]));
            let many = Waiter::start(scope, || block_on(Gathering::all(&statuses[..])));
            for status in &statuses {
                fake.await_polls(status, 3);
            }
            fake.ready(&statuses[1], Err(broken()));
            fake.ready(&statuses[2], Ok(()));
            fake.ready(&statuses[0], Ok(()));
            assert_eq!(one.end(), StatusCode::Success);
            let outcome = many.end();
            assert_eq!((outcome.code(), outcome.all_quiet()), (TRANSPORT, true));
        });
        assert!(statuses.iter().all(|status| fake.hooks(status) == 0));
    }
}

/// F1: a backend that panics while it is driven does not end the driving, neither its own nor that of others.
#[test]
fn f1_a_panicking_poll_does_not_end_the_driving() {
    let (bad, good) = (Fake::new(Kind::Polled), Fake::new(Kind::Polled));
    let (first, second) = (bad.submit(), good.submit());
    bad.on_poll(&first, 1, |_| std::panic::resume_unwind(Box::new("the backend's bug")));
    scope(|scope| {
        let of_bad = Waiter::start(scope, || block_on(&first));
        bad.await_polls(&first, 1);
        let of_good = Waiter::start(scope, || block_on(&second));
        good.ready(&second, Ok(()));
        assert_eq!(of_good.end(), StatusCode::Success);
        bad.ready(&first, Err(broken()));
        assert_eq!(of_bad.end(), TRANSPORT);
    });
}

/// F1: the thread that drives such backends ends when there is nothing to drive, and comes back.
#[test]
fn f1_driving_starts_again_after_a_pause() {
    for _ in 0..50 {
        let fake = Fake::new(Kind::Polled);
        let status = fake.submit();
        fake.ready(&status, Ok(()));
        assert_eq!(block_on(&status), StatusCode::Success);
    }
}

/// F1, S5, S6: a backend that is dropped resolves its futures as a bad state.
#[test]
fn f1_a_dropped_backend_resolves_its_futures() {
    for kind in KINDS {
        let fake = Fake::new(kind);
        let statuses = fake.submit_many(2);
        let mut future = Gathering::all(&statuses[..]);
        let woken = Arc::new(Woken::default());
        assert!(poll(&mut future, &woken).is_pending());
        drop(fake);
        assert_eq!(block_on(future).failed().len(), 2);
        assert!(statuses.iter().all(|status| status.code() == BAD_STATE), "{kind:?}");
    }
}

/// F1, A10: a batch's task is woken once, by the completion that ends the wait.
#[test]
fn f1_a_batch_wakes_its_task_once() {
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(100);
    let mut future = Gathering::all(statuses.clone());
    let woken = Arc::new(Woken::default());
    assert!(poll(&mut future, &woken).is_pending());
    for (done, status) in statuses.iter().enumerate() {
        assert_eq!(woken.count(), 0, "after {done}");
        fake.succeed(status);
    }
    assert_eq!(woken.count(), 1);
    let outcome = poll(&mut future, &woken).map(|outcome| outcome.succeeded());
    assert_eq!(outcome, Poll::Ready(100));
}

/// F1, A1, A3, A4, A12: the variants for batches end as their blocking relatives do.
#[test]
fn f1_the_variants_for_batches() {
    let codes = |outcome: Poll<Outcome>| outcome.map(|outcome| outcome.code());
    let woken = Arc::new(Woken::default());
    let fake = Fake::new(Kind::Notifier);
    let statuses = fake.submit_many(3);
    let mut all = Gathering::all(statuses.clone());
    let mut first_failure = Gathering::first_failure(statuses.clone());
    let mut two = Gathering::some(statuses.clone(), 2);
    for future in [&mut all, &mut first_failure, &mut two] {
        assert!(poll(future, &woken).is_pending());
    }
    fake.finish(&statuses[1], Err(broken()));
    assert_eq!(codes(poll(&mut first_failure, &woken)), Poll::Ready(TRANSPORT));
    assert!(poll(&mut all, &woken).is_pending() && poll(&mut two, &woken).is_pending());
    fake.succeed(&statuses[0]);
    assert_eq!(codes(poll(&mut two, &woken)), Poll::Ready(TRANSPORT));
    assert!(poll(&mut all, &woken).is_pending());
    fake.succeed(&statuses[2]);
    assert_eq!(codes(poll(&mut all, &woken)), Poll::Ready(TRANSPORT));

    let none: [Status; 0] = [];
    assert_eq!(codes(poll(&mut Gathering::all(none), &woken)), Poll::Ready(StatusCode::Success));
    let failed = [fake.submit(), Status::failed(Tag(0), broken())];
    assert_eq!(codes(poll(&mut Gathering::first_failure(failed), &woken)), Poll::Ready(TRANSPORT));
}

/// F1, W7: futures and blocked threads wait for one status side by side.
#[test]
fn f1_futures_and_threads_wait_side_by_side() {
    let fake = Fake::new(Kind::Notifier);
    let status = fake.submit();
    let clock = ManualClock::new();
    let futures: Vec<_> = (0..4)
        .map(|_| Arc::new(Woken::default()))
        .map(|woken| (status.clone().into_future(), woken))
        .collect();
    scope(|scope| {
        let thread = Waiter::start(scope, || status.wait_with(None, &on(&clock)));
        thread.asleep(&clock, 1);
        let mut futures = futures;
        assert!(futures.iter_mut().all(|(future, woken)| poll(future, woken).is_pending()));
        let blocked = Waiter::start(scope, || block_on(&status));
        fake.finish(&status, Err(broken()));
        assert_eq!((thread.end(), blocked.end()), (TRANSPORT, TRANSPORT));
        for (future, woken) in &mut futures {
            assert_eq!((woken.count(), poll(future, woken)), (1, Poll::Ready(TRANSPORT)));
        }
    });
    assert_eq!(status.error().map(|error| error.kind()), Some(ErrorKind::Transport));
}
