//! Where an engine keeps what peers' transfers tell it, until the application asks.
//!
//! Existing programs let every transfer notify its target and ask for some of the notifications only. So a thread takes
//! them out of the engine's queue, which would be full some day and make transfers fail, and puts them here, where the
//! oldest ones give way to new ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mori_engine::{EngineKey, Notification, NotificationQueue, Tag, Timeout};
use pyo3::{Py, PyAny, Python};

/// How many notifications are kept for an application that does not ask.
const CAPACITY: usize = 1 << 16;

/// Notifications by their order of arrival, found by peer and tag.
pub(crate) struct Inbox {
    queue: NotificationQueue,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    entries: BTreeMap<u64, Notification>,
    places: HashMap<(EngineKey, Tag), VecDeque<u64>>,
    dropped: u64,
    closed: bool,
    /// Called once each, when something arrives or nothing will.
    callbacks: Vec<Py<PyAny>>,
}

impl Inbox {
    /// Starts the thread; it ends when the engine closes its queue.
    pub(crate) fn start(queue: NotificationQueue) -> std::io::Result<Arc<Self>> {
        let inbox = Arc::new(Self { queue, state: Mutex::new(State::default()), arrived: Condvar::new() });
        let own = Arc::clone(&inbox);
        std::thread::Builder::new().name("mori-inbox".into()).spawn(move || own.run())?;
        Ok(inbox)
    }

    fn run(&self) {
        while let Some(notification) = self.queue.wait(Timeout::Unbounded) {
            self.change(|state| state.put(notification));
        }
        self.change(|state| state.closed = true);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let callbacks = {
            let mut state = self.lock();
            change(&mut state);
            self.arrived.notify_all();
            std::mem::take(&mut state.callbacks)
        };
        if callbacks.is_empty() {
            return;
        }
        // This thread serves no transfer, so it may wait for the interpreter. When that is ending, nobody listens.
        Python::try_attach(|py| {
            for callback in &callbacks {
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            }
        });
    }

    /// The notification of a peer's transfer with this tag, if it has arrived.
    pub(crate) fn take_matching(&self, peer: EngineKey, tag: Tag) -> Option<Notification> {
        let mut state = self.gather();
        let key = (peer, tag);
        let places = state.places.get_mut(&key)?;
        let place = places.pop_front()?;
        if places.is_empty() {
            state.places.remove(&key);
        }
        state.entries.remove(&place)
    }

    /// The oldest notification.
    pub(crate) fn take(&self) -> Option<Notification> {
        self.gather().take()
    }

    /// The oldest notification, or after at most `bound` nothing. `Err` when nothing will arrive any more.
    pub(crate) fn take_within(&self, bound: Duration) -> Result<Option<Notification>, Closed> {
        let state = self.gather();
        let nothing = |state: &mut State| state.entries.is_empty() && !state.closed;
        let woken = self.arrived.wait_timeout_while(state, bound, nothing);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner).0;
        match state.take() {
            None if state.closed => Err(Closed),
            taken => Ok(taken),
        }
    }

    /// Calls `callback` once when something arrives or nothing will; `false`, and never, if that is so already.
    pub(crate) fn call_on_arrival(&self, callback: Py<PyAny>) -> bool {
        let mut state = self.gather();
        if state.closed || !state.entries.is_empty() {
            return false;
        }
        state.callbacks.push(callback);
        true
    }

    /// The state, with everything that the thread has not come to yet.
    fn gather(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while let Some(notification) = self.queue.poll() {
            state.put(notification);
        }
        state
    }
}

/// Nothing arrives any more: the engine is shut down.
pub(crate) struct Closed;

impl State {
    fn put(&mut self, notification: Notification) {
        if self.entries.len() >= CAPACITY && self.take().is_some() {
            if self.dropped == 0 {
                tracing::warn!(
                    "more than {CAPACITY} notifications wait to be asked for; the oldest ones are dropped"
                );
            }
            self.dropped += 1;
        }
        let key = (notification.peer.clone(), notification.tag);
        self.places.entry(key).or_default().push_back(self.next);
        self.entries.insert(self.next, notification);
        self.next += 1;
    }

    fn take(&mut self) -> Option<Notification> {
        let (place, notification) = self.entries.pop_first()?;
        let key = (notification.peer.clone(), notification.tag);
        if let Some(places) = self.places.get_mut(&key) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.places.remove(&key);
            }
        }
        Some(notification)
    }
}
