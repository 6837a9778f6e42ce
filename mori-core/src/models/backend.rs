//! Waits on backends: the blocking hook, polls, re-polls, and a backend that goes away.

use std::sync::Arc;

use super::fake::{Fake, submitted};
use super::{BOUND, FAILED, bound, error, policy};
use crate::error::ErrorKind;
use crate::status::{Completer, StatusCode};
use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, model, thread};
use crate::time::{ManualClock, Timeout};

/// What a backend without a notifier waits for, for example a device's event.
#[derive(Default)]
struct Event {
    happened: Mutex<bool>,
    condvar: Condvar,
}

impl Event {
    fn wait(&self) {
        let mut happened = self.happened.lock();
        while !*happened {
            self.condvar.wait(&mut happened);
        }
    }

    fn happen(&self) {
        *self.happened.lock() = true;
        self.condvar.notify_all();
    }
}

/// W6, W10: while one thread is blocked in the backend's hook, another one polls, updates and reads the status.
#[test]
fn a_blocked_hook_holds_up_neither_poll_nor_update() {
    model(|| {
        let event = Arc::new(Event::default());
        let waited = Arc::clone(&event);
        let fake = Fake::new(false, |_| {}).blocking(move || waited.wait()).start();
        let (completer, status) = submitted(&fake);
        let blocked = status.clone();
        let waiter = thread::spawn(move || blocked.wait(None));
        assert_eq!(status.wait(Timeout::Poll), StatusCode::InProgress);
        assert!(completer.fail(error("link down")).applied());
        assert_eq!(status.message(), "link down");
        event.happen();
        assert_eq!(waiter.join().unwrap(), FAILED);
    });
}

/// W10: a hook that returned too early is not the end; the wait polls, and the poll finds the result.
#[test]
fn the_wait_polls_after_the_hook() {
    model(|| {
        let event = Arc::new(Event::default());
        let waited = Arc::clone(&event);
        let writer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let polled = Arc::clone(&writer);
        let seen = Arc::clone(&event);
        let fake = Fake::new(false, move |_| {
            if *seen.happened.lock() {
                let completer = polled.lock().take();
                if let Some(completer) = completer {
                    completer.succeed();
                }
            }
        })
        .blocking(move || waited.wait())
        .start();
        let (completer, status) = submitted(&fake);
        *writer.lock() = Some(completer);
        let device = thread::spawn(move || event.happen());
        assert_eq!(status.wait(None), StatusCode::Success);
        device.join().unwrap();
    });
}

/// W10: without a hook, an unbounded wait polls again and again, and never sleeps for good.
#[test]
fn a_wait_without_hook_polls_again() {
    model(|| {
        let manual = ManualClock::new();
        let over = Arc::new(AtomicU32::new(0));
        let returned = Arc::new(AtomicU32::new(0));
        let writer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let (polled, seen) = (Arc::clone(&writer), Arc::clone(&over));
        let fake = Fake::new(false, move |_| {
            if seen.load(Ordering::Acquire) == 1 {
                let completer = polled.lock().take();
                if let Some(completer) = completer {
                    completer.succeed();
                }
            }
        })
        .start();
        let (completer, status) = submitted(&fake);
        *writer.lock() = Some(completer);
        let (clock, done) = (manual.clone(), Arc::clone(&returned));
        let time = thread::spawn(move || {
            over.store(1, Ordering::Release);
            while done.load(Ordering::Acquire) == 0 {
                clock.advance(BOUND);
                thread::yield_now();
            }
        });
        assert_eq!(status.wait_with(None, &policy(&manual)), StatusCode::Success);
        returned.store(1, Ordering::Release);
        time.join().unwrap();
    });
}

/// W9: what the backend has finished by the deadline is found by the poll at the deadline, and there are two polls.
#[test]
fn the_last_poll_comes_at_the_deadline() {
    model(|| {
        let manual = ManualClock::new();
        let writer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let (polled, clock) = (Arc::clone(&writer), manual.clone());
        let fake = Fake::new(false, move |number| {
            if number == 1 {
                let clock = clock.clone();
                thread::spawn(move || clock.advance(BOUND));
            } else {
                let completer = polled.lock().take();
                if let Some(completer) = completer {
                    completer.succeed();
                }
            }
        })
        .start();
        let (completer, status) = submitted(&fake);
        *writer.lock() = Some(completer);
        assert_eq!(status.wait_with(bound(), &policy(&manual)), StatusCode::Success);
        assert_eq!(fake.polls(), 2);
    });
}

/// W9: a poll by another thread wakes a waiter that sleeps.
#[test]
fn another_threads_poll_wakes_the_waiter() {
    model(|| {
        let manual = ManualClock::new();
        let writer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let polled = Arc::clone(&writer);
        let fake = Fake::new(false, move |number| {
            if number == 2 {
                let completer = polled.lock().take();
                if let Some(completer) = completer {
                    completer.succeed();
                }
            }
        })
        .start();
        let (completer, status) = submitted(&fake);
        *writer.lock() = Some(completer);
        let other = status.clone();
        let policy = policy(&manual);
        let waiter = thread::spawn(move || other.wait_with(bound(), &policy));
        status.wait(Timeout::Poll);
        status.wait(Timeout::Poll);
        assert_eq!(waiter.join().unwrap(), StatusCode::Success);
    });
}

/// S5, S6: a backend that goes away ends its transfers, whoever holds its last handle; nobody waits for it.
#[test]
fn a_backend_that_goes_away_releases_its_waiter() {
    model(|| {
        let event = Arc::new(Event::default());
        let waited = Arc::clone(&event);
        let writer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let owned = Owned(Arc::clone(&writer));
        let fake = Fake::new(false, move |_| {
            let _owned = &owned;
        })
        .blocking(move || waited.wait())
        .start();
        let (completer, status) = submitted(&fake);
        *writer.lock() = Some(completer);
        drop(writer);
        let waiter = thread::spawn(move || status.wait(None));
        drop(fake);
        event.happen();
        assert_eq!(waiter.join().unwrap(), StatusCode::Failure(ErrorKind::BadState));
    });
}

/// Drops the writer's side outside of the lock that it is kept under.
struct Owned(Arc<Mutex<Option<Completer>>>);

impl Drop for Owned {
    fn drop(&mut self) {
        let completer = self.0.lock().take();
        drop(completer);
    }
}
