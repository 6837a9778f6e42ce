//! The re-poll thread: makes progress for futures on backends without a notifier, which have no thread that waits.
//!
//! There is at most one per process, started when the first such future is polled. It polls with back-off as long as
//! one of the gates it works for is closed and alive, and ends when there is nothing left to do; an idle process has none.

#[cfg(any(mori_loom, mori_shuttle))]
pub(super) use modelled::watch;
#[cfg(not(any(mori_loom, mori_shuttle)))]
pub(super) use real::watch;

#[cfg(not(any(mori_loom, mori_shuttle)))]
mod real {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Weak};

    use super::super::Repoll;
    use super::super::many::Gate;
    use crate::status::{Status, StatusCode};
    use crate::sync::{Condvar, Mutex};
    use crate::time::{Clock, Deadline};

    struct Watch {
        gate: Weak<Gate>,
        statuses: Vec<Status>,
    }

    impl Watch {
        /// Polls what is unfinished; `false` when there is nothing left to poll for.
        fn poll(&mut self) -> bool {
            let Some(gate) = self.gate.upgrade() else { return false };
            if gate.is_open() {
                return false;
            }
            // A backend that panics here has no caller to tell. It is polled on: other futures need this thread, and its
            // own may still be resolved by a later poll or an update.
            self.statuses.retain(|status| {
                !catch_unwind(AssertUnwindSafe(|| status.poll())).is_ok_and(StatusCode::is_terminal)
            });
            !self.statuses.is_empty()
        }
    }

    /// Has `statuses` polled until `gate` is open or dropped.
    pub(in super::super) fn watch(statuses: Vec<Status>, gate: &Arc<Gate>) {
        if !statuses.is_empty() {
            add(Watch { gate: Arc::downgrade(gate), statuses });
        }
    }

    #[derive(Default)]
    struct State {
        running: bool,
        added: Vec<Watch>,
    }

    static STATE: std::sync::LazyLock<(Mutex<State>, Condvar)> = std::sync::LazyLock::new(Default::default);

    fn add(watch: Watch) {
        let (state, wake) = &*STATE;
        let mut state = state.lock();
        state.added.push(watch);
        wake.notify_all();
        if !state.running {
            // Without the thread the future would never resolve by itself; the next one tries again.
            state.running = std::thread::Builder::new().name("mori-repoll".into()).spawn(run).is_ok();
        }
    }

    fn run() {
        let (state, wake) = &*STATE;
        let clock = Clock::system();
        let mut watches: Vec<Watch> = Vec::new();
        let mut steps = Repoll::BACKOFF.forced_steps();
        loop {
            watches.retain_mut(Watch::poll);
            let mut state = state.lock();
            if state.added.is_empty() {
                if watches.is_empty() {
                    state.running = false;
                    return;
                }
                match clock.deadline(steps.pause()) {
                    Deadline::Never => {}
                    pause @ Deadline::At(_) => clock.sleep(wake, &mut state, pause),
                }
            }
            if !state.added.is_empty() {
                watches.append(&mut state.added);
                steps = Repoll::BACKOFF.forced_steps();
            }
        }
    }
}

#[cfg(any(mori_loom, mori_shuttle))]
mod modelled {
    use std::sync::Arc;

    use super::super::many::Gate;
    use crate::status::Status;

    /// Models have no background thread; they poll by themselves.
    pub(in super::super) fn watch(_statuses: Vec<Status>, _gate: &Arc<Gate>) {}
}
