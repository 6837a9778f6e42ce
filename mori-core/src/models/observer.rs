//! Observers of one status: subscribing and unsubscribing against the end.

use std::sync::Arc;

use super::{error, in_progress};
use crate::status::{Observe, StatusCode};
use crate::sync::{AtomicU32, Ordering, model, thread};

struct Told(AtomicU32);

impl Told {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU32::new(0)))
    }

    fn times(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Observe for Told {
    fn on_terminal(&self, code: StatusCode) {
        assert!(code.is_terminal());
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A subscription is either told, once, or refused because the status is terminal.
#[test]
fn a_subscription_is_told_once_or_refused() {
    model(|| {
        let (completer, status) = in_progress();
        let told = Told::new();
        let writer = thread::spawn(move || completer.succeed());
        let observer: Arc<dyn Observe> = told.clone();
        let accepted = status.subscribe(observer);
        if !accepted {
            assert_eq!(status.code(), StatusCode::Success);
        }
        writer.join().unwrap();
        assert_eq!(told.times(), u32::from(accepted));
    });
}

/// W7 for observers: all of them are told.
#[test]
fn both_observers_are_told() {
    model(|| {
        let (completer, status) = in_progress();
        let told = [Told::new(), Told::new()];
        let writer = thread::spawn(move || completer.fail(error("link down")));
        let accepted = told.clone().map(|told| u32::from(status.subscribe(told)));
        writer.join().unwrap();
        assert_eq!(told.map(|told| told.times()), accepted);
    });
}

/// A subscription that is taken back is told at most once, and the others are not affected.
#[test]
fn unsubscribing_affects_nobody_else() {
    model(|| {
        let (completer, status) = in_progress();
        let (gone, stays) = (Told::new(), Told::new());
        let observer: Arc<dyn Observe> = gone.clone();
        assert!(status.subscribe(Arc::clone(&observer)));
        assert!(status.subscribe(stays.clone()));
        let writer = thread::spawn(move || completer.succeed());
        status.unsubscribe(&observer);
        writer.join().unwrap();
        assert!(gone.times() <= 1);
        assert_eq!(stays.times(), 1);
    });
}
