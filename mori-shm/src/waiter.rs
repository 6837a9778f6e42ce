//! Who waits for a region to be opened, and how a connection ends.

use std::sync::Arc;

use mori_core::{Deadline, Error, Result};

use crate::conn::Grant;
use crate::obstacle::Obstacle;
use crate::sync::{Condvar, Mutex};
use crate::transfer::Transfer;

/// Who waits for a region to be opened.
#[derive(Debug)]
pub(crate) enum Waiter {
    Transfer(Arc<Transfer>),
    Session(Arc<Ticket>),
}

/// Where a session waits for its grant.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    result: Mutex<Option<Result<Grant>>>,
    filled: Condvar,
}

impl Ticket {
    pub(crate) fn fill(&self, result: Result<Grant>) {
        *self.result.lock() = Some(result);
        self.filled.notify_all();
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// The answer's, or [`ErrorKind::TimedOut`](mori_core::ErrorKind::TimedOut).
    pub(crate) fn wait(&self, deadline: Deadline) -> Result<Grant> {
        let mut result = self.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            if !crate::sleep(&self.filled, &mut result, deadline) {
                return Err(Obstacle::Silent.error());
            }
        }
    }
}

/// An end that the control thread brings about.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) why: Error,
    pub(crate) obstacle: Option<Obstacle>,
}

impl From<Error> for Broken {
    fn from(why: Error) -> Self {
        Self { why, obstacle: None }
    }
}

impl From<Obstacle> for Broken {
    fn from(obstacle: Obstacle) -> Self {
        Self { why: obstacle.error(), obstacle: Some(obstacle) }
    }
}
