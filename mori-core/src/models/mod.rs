//! Models of the protocols between threads, and the ways of breaking them that they must reject.
//!
//! Each model is a small closed program over the crate's own types. It is run in three ways: with
//! `--cfg mori_loom` under every schedule and every permitted reordering of memory (up to a bound on forced changes of thread),
//! with `--cfg mori_shuttle` under random schedules, and in ordinary tests on real threads, which keeps the models compiling
//! and gives a sanitizer something to watch. `cargo xtask loom` runs the first two, and then each mutant of
//! [`mutants::ALL`] against the model that has to reject it.
//!
//! The checkers' condition variables neither wake without reason nor time out. A [`ManualClock`] takes both parts: moving it takes
//! the sleeper's lock, as a timer would, and moving it by nothing is a wake without reason.

mod backend;
mod fake;
mod future;
#[cfg(not(mori_loom))]
mod large;
mod many;
mod memory;
mod mutants;
mod observer;
mod queue;
mod single;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::status::{Completer, Origin, Status, StatusCode};
use crate::sync::{AtomicU32, Ordering};
use crate::time::{ManualClock, Timeout};
use crate::wait::WaitPolicy;

/// A status without a backend, submitted.
fn in_progress() -> (Completer, Status) {
    let (completer, status) = Status::pair(Origin::detached());
    assert!(completer.submit().applied());
    (completer, status)
}

fn error(message: &str) -> Error {
    Error::new(ErrorKind::Transport, message)
}

const FAILED: StatusCode = StatusCode::Failure(ErrorKind::Transport);
const BOUND: Duration = Duration::from_millis(1);

/// The bound of a wait that the clock of the model ends.
fn bound() -> Timeout {
    Timeout::Within(BOUND)
}

fn policy(manual: &ManualClock) -> WaitPolicy {
    WaitPolicy { clock: manual.clock(), ..WaitPolicy::DEFAULT }
}

/// Stands for the bytes of a transfer: written and read without any ordering of its own, so that only the status can
/// make the one visible to the other (S4).
#[derive(Clone)]
struct Bytes(Arc<AtomicU32>);

impl Bytes {
    fn new() -> Self {
        Self(Arc::new(AtomicU32::new(0)))
    }

    fn land(&self) {
        self.0.store(7, Ordering::Relaxed);
    }

    fn have_landed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 7
    }
}
