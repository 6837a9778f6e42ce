//! The threads that copy, and their queue.
//!
//! A transfer is in the queue at most once. It leaves it for one step and goes to the end again, so that transfers take turns
//! and a large one delays a small one by a step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::shared::Shared;
use crate::sync::{Condvar, Mutex};
use crate::transfer::Transfer;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    work: Condvar,
    /// The queue's length, for a look without the lock.
    queued: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<Transfer>>,
    asleep: usize,
    closed: bool,
}

impl Pool {
    /// Puts a ticket into the queue. After the end, the transfer fails at once.
    pub(crate) fn push(&self, shared: &Shared, transfer: &Arc<Transfer>) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            transfer.fail(shared.shut_down_error());
            return transfer.release();
        }
        state.queue.push_back(Arc::clone(transfer));
        self.queued.store(state.queue.len(), Ordering::Relaxed);
        let wake = state.asleep > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// The next ticket; `None` after the end.
    fn next(&self, shared: &Shared) -> Option<Arc<Transfer>> {
        let mut spun = false;
        loop {
            let mut state = self.state.lock();
            if state.closed {
                return None;
            }
            if let Some(transfer) = state.queue.pop_front() {
                self.queued.store(state.queue.len(), Ordering::Relaxed);
                return Some(transfer);
            }
            if spun || shared.config.busy_window.is_zero() {
                state.asleep += 1;
                self.work.wait(&mut state);
                state.asleep -= 1;
                continue;
            }
            drop(state);
            self.spin(shared);
            spun = true;
        }
    }

    /// Looks for work for a moment, which saves a wake-up.
    fn spin(&self, shared: &Shared) {
        let until = shared.clock.deadline(shared.config.busy_window);
        while self.queued.load(Ordering::Relaxed) == 0 && !until.passed(shared.clock.now()) {
            // A busy look must not keep a thread from running that has the work.
            std::thread::yield_now();
        }
    }

    /// What each of the threads does.
    pub(crate) fn work(&self, shared: &Arc<Shared>) {
        while let Some(transfer) = self.next(shared) {
            transfer.turn(shared);
        }
    }

    /// Ends the threads, each after the step that it is at, and returns what is left in the queue.
    pub(crate) fn close(&self) -> VecDeque<Arc<Transfer>> {
        let mut state = self.state.lock();
        state.closed = true;
        self.work.notify_all();
        std::mem::take(&mut state.queue)
    }
}
