//! Observers: told once when their status becomes terminal.

use std::sync::Arc;

use super::StatusCode;
use crate::sync::mutant;

/// Told when a status becomes terminal.
///
/// For bridges to other ways of waiting (an event loop, a channel); to block, use [`Status::wait`].
pub trait Observe: Send + Sync {
    /// The status this observer subscribed to has become terminal with `code`.
    ///
    /// Called once per subscription, on the thread that completed the transfer, which is often a backend's own
    /// thread. No lock of the status is held. Implementations return quickly and do not block.
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
            Self::Many(all) => all.iter().for_each(|observer| observer.on_terminal(code)),
        }
    }
}
