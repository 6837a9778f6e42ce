//! The queue of messages: polled, waited on with a bound, awaited; bounded, closed, and each message taken exactly once.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::scope;
use std::time::Duration;

use mori_core::{Clock, EngineKey, ErrorKind, ManualClock, Notification, NotificationQueue, Tag};

use crate::support::{BOUND, TICK, Waiter, broken};

fn message(number: u64) -> Notification {
    Notification {
        peer: EngineKey::from(if number.is_multiple_of(2) { "even" } else { "odd" }),
        transfer: number,
        tag: Tag(number / 2),
        message: number.to_le_bytes().to_vec(),
        error: number.is_multiple_of(3).then(broken),
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Polling takes the oldest first, whole, and never blocks.
#[test]
fn polling_takes_the_oldest_first() {
    let queue = NotificationQueue::new(8);
    assert_eq!(queue.poll(), None);
    for number in 0..4 {
        queue.push(message(number)).unwrap();
    }
    assert_eq!((queue.len(), queue.is_empty()), (4, false));
    for number in 0..4 {
        assert_eq!(queue.clone().poll(), Some(message(number)));
    }
    assert_eq!((queue.poll(), queue.is_empty()), (None, true));
}

/// Looking for a peer and a tag takes that message and leaves the others in their order.
#[test]
fn a_matching_message_is_taken_out_of_order() {
    let queue = NotificationQueue::new(8);
    for number in [0, 1, 2, 3, 2] {
        queue.push(message(number)).unwrap();
    }
    assert_eq!(queue.poll_matching(&EngineKey::from("even"), Tag(7)), None);
    assert_eq!(queue.poll_matching(&EngineKey::from("odd"), Tag(1)), Some(message(3)));
    assert_eq!(queue.poll_matching(&EngineKey::from("odd"), Tag(1)), None);
    assert_eq!(queue.poll_matching(&EngineKey::from("even"), Tag(1)), Some(message(2)));
    let left: Vec<_> = std::iter::from_fn(|| queue.poll()).map(|message| message.transfer).collect();
    assert_eq!(left, [0, 1, 2]);
}

/// W2, W5: a bounded wait sleeps to its bound, neither shorter nor longer, through wakes without reason.
#[test]
fn a_bounded_wait_ends_at_its_bound() {
    let queue = NotificationQueue::new(8);
    let clock = ManualClock::new();
    scope(|scope| {
        let waiter = Waiter::start(scope, || queue.wait_with(BOUND, &clock.clock()));
        waiter.asleep(&clock, 1);
        clock.advance(Duration::ZERO);
        waiter.asleep(&clock, 2);
        clock.advance(BOUND - TICK);
        waiter.asleep(&clock, 3);
        clock.advance(TICK);
        assert_eq!(waiter.end(), None);
    });
    let system = Clock::system();
    let start = system.now();
    assert_eq!(queue.wait(Duration::from_millis(2)), None);
    assert!(system.now() - start >= Duration::from_millis(2));
}

/// W2: a zero timeout polls, and a wait without a bound sleeps until a message comes.
#[test]
fn a_message_wakes_the_waiter() {
    for bound in [None, Some(BOUND)] {
        let queue = NotificationQueue::new(8);
        let clock = ManualClock::new();
        assert_eq!(queue.wait_with(Duration::ZERO, &clock.clock()), None);
        assert_eq!(clock.sleeps(), 0);
        scope(|scope| {
            let waiter = Waiter::start(scope, || queue.wait_with(bound, &clock.clock()));
            waiter.asleep(&clock, 1);
            queue.push(message(5)).unwrap();
            assert_eq!(waiter.end(), Some(message(5)));
        });
        queue.push(message(6)).unwrap();
        assert_eq!(queue.wait_with(bound, &clock.clock()), Some(message(6)));
    }
}

/// A full queue refuses a further message and says so; nothing is dropped, and room makes it take messages again.
#[test]
fn a_full_queue_refuses_and_drops_nothing() {
    let queue = NotificationQueue::new(2);
    queue.push(message(0)).unwrap();
    queue.push(message(1)).unwrap();
    let refused = queue.push(message(2)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    assert!(refused.message().contains("full (2 messages)"), "{refused}");
    assert_eq!(queue.poll(), Some(message(0)));
    queue.push(message(2)).unwrap();
    assert_eq!((queue.poll(), queue.poll(), queue.poll()), (Some(message(1)), Some(message(2)), None));
    assert_eq!(NotificationQueue::new(0).push(message(0)).unwrap_err().kind(), ErrorKind::ResourceExhausted);
}

/// Closing releases every reader, sleeping or awaiting; what was in the queue can still be taken, nothing comes after it.
#[test]
fn closing_releases_every_reader() {
    let queue = NotificationQueue::new(8);
    let clock = ManualClock::new();
    let woken = Arc::new(Woken::default());
    let mut future = std::pin::pin!(queue.recv());
    let waker = Waker::from(Arc::clone(&woken));
    assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    scope(|scope| {
        let waiters = [None, Some(BOUND)].map(|bound| {
            Waiter::start(scope, {
                let (queue, clock) = (&queue, &clock);
                move || queue.wait_with(bound, &clock.clock())
            })
        });
        waiters[0].asleep(&clock, 2);
        waiters[1].asleep(&clock, 2);
        queue.close();
        assert_eq!(waiters.map(Waiter::end), [None, None]);
    });
    assert_eq!(woken.0.load(Ordering::Acquire), 1);
    assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(None));
    assert_eq!(queue.push(message(0)).unwrap_err().kind(), ErrorKind::BadState);

    let queue = NotificationQueue::new(8);
    queue.push(message(0)).unwrap();
    queue.push(message(1)).unwrap();
    queue.close();
    assert_eq!(
        (queue.wait(None), queue.poll(), queue.wait(None)),
        (Some(message(0)), Some(message(1)), None)
    );
}

/// F1: awaiting takes the oldest message; a future that is dropped takes none, and the latest waker is the one woken.
#[test]
fn a_message_can_be_awaited() {
    let queue = NotificationQueue::new(8);
    let wakers: Vec<_> = (0..2).map(|_| Arc::new(Woken::default())).collect();
    let mut future = Box::pin(queue.recv());
    for woken in &wakers {
        let waker = Waker::from(Arc::clone(woken));
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    }
    let mut dropped = Box::pin(queue.recv());
    assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(dropped);
    queue.push(message(0)).unwrap();
    assert!(wakers[1].0.load(Ordering::Acquire) >= 1);
    assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Some(message(0))));
    queue.push(message(1)).unwrap();
    let mut late = Box::pin(queue.recv());
    assert_eq!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Some(message(1))));
}

/// Several readers and several writers: every message is taken by one reader, exactly once.
#[test]
fn every_message_is_taken_exactly_once() {
    const EACH: u64 = 500;
    let queue = NotificationQueue::new(16);
    let clock = ManualClock::new();
    let taken: Vec<u64> = scope(|scope| {
        let readers = [0, 1, 2].map(|reader| {
            let (queue, clock) = (&queue, &clock);
            scope.spawn(move || {
                let mut taken = Vec::new();
                loop {
                    let next = match reader {
                        0 => queue.poll().or_else(|| queue.wait(None)),
                        _ => queue.wait_with(BOUND, &clock.clock()),
                    };
                    match next {
                        Some(message) => taken.push(message.transfer),
                        None => return taken,
                    }
                }
            })
        });
        let writers = [0, 1].map(|writer| {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..EACH {
                    while queue.push(message(writer * EACH + number)).is_err() {
                        std::thread::yield_now();
                    }
                }
            })
        });
        for writer in writers {
            writer.join().unwrap();
        }
        queue.close();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(taken.len() as u64, 2 * EACH);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>().len() as u64, 2 * EACH);
}
