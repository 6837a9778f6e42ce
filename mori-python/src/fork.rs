//! Forks: a child has the objects of its parent but none of its threads, so whatever needs an engine is refused there.
//!
//! The package registers [`after_fork_in_child`] with `os.register_at_fork`; it counts generations. Every object that needs
//! the engine's threads remembers the generation in which it was made. In another one it answers with an error, and what it
//! holds is left alone when it is dropped: a lock may be held for ever by a thread that does not exist here.

use std::sync::atomic::{AtomicU32, Ordering};

use mori_engine::{Error, ErrorKind};
use pyo3::PyResult;

use crate::error::raise;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Called by Python in the child of every fork.
#[pyo3::pyfunction]
pub(crate) fn after_fork_in_child() {
    // Relaxed: the child has one thread.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The generation of processes in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// This process's.
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is this process's.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Refuses what was made before a fork.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(raise(&Error::new(
            ErrorKind::BadState,
            format!(
                "this {what} was made before the process was forked, and the threads behind it stayed in the parent; \
                 make another engine in the child"
            ),
        )))
    }
}
