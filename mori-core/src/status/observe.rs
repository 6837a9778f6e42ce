//! Observers: told once when their status becomes terminal.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::StatusCode;
use crate::sync::mutant;

/// Told when a status becomes terminal.
///
/// For bridges to other ways of waiting (an event loop, a channel); to block, use [`Status::wait`](crate::Status::wait).
pub trait Observe: Send + Sync {
    /// The status this observer subscribed to has become terminal with `code`.
    ///
    /// Called once per subscription, on the thread that completed the transfer, which is often a backend's own
    /// thread. No lock of the status is held. Implementations return quickly, and neither block nor panic; a panic
    /// reaches the completing thread after everybody else has been told.
    fn on_terminal(&self, code: StatusCode);
}

#[derive(Default)]
pub(super) enum Observers {
    #[default]
    None,
    One(Arc<dyn Observe>),
    Many(Vec<Arc<dyn Observe>>),
}

impl Observers {
    pub(super) fn push(&mut self, observer: Arc<dyn Observe>) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(observer),
            Self::One(first) => Self::Many(vec![first, observer]),
            Self::Many(mut all) => {
                all.push(observer);
                Self::Many(all)
            }
        };
    }

    pub(super) fn remove(&mut self, observer: &Arc<dyn Observe>) {
        let same = |other: &Arc<dyn Observe>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(observer));
        match self {
            Self::None => {}
            Self::One(only) => {
                if same(only) {
                    *self = Self::None;
                }
            }
            Self::Many(all) => all.retain(|other| !same(other)),
        }
    }

    pub(super) fn tell(self, code: StatusCode) {
        match self {
            Self::None => {}
            Self::One(only) => only.on_terminal(code),
            Self::Many(all) if mutant("tells_one_observer") => all[0].on_terminal(code),
            Self::Many(all) => Self::tell_all(&all, code),
        }
    }

    /// Tells everybody, also when one panics: the others may be all that wakes a waiter. The first panic then goes on its
    /// way, unless the completing thread is unwinding already.
    fn tell_all(all: &[Arc<dyn Observe>], code: StatusCode) {
        let mut panic = None;
        for observer in all {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| observer.on_terminal(code))) {
                panic.get_or_insert(payload);
            }
        }
        if let Some(payload) = panic.filter(|_| !std::thread::panicking()) {
            resume_unwind(payload);
        }
    }
}
