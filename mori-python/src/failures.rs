//! Peers that were lost, as events that the application polls for.
//!
//! A lost peer ends all its transfers, and one event is enough for them. Each transfer remembers how often its peer had been
//! lost when it was submitted; the first to fail as *peer lost* counts on and leaves an event, the others see that
//! somebody did.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use mori_engine::{EngineKey, Error, ErrorKind, Observe, Status, StatusCode};
use pyo3::prelude::*;

use crate::members;

/// How many events are kept for an application that does not ask.
const CAPACITY: usize = 1024;

/// A peer was lost: its transfers have failed, and later ones may work again.
#[pyclass(frozen, module = "mori.io")]
#[derive(Clone, Debug)]
pub(crate) struct PeerFailureEvent {
    /// The name of the peer's engine.
    #[pyo3(get)]
    engine_key: String,
    /// What happened, in words.
    #[pyo3(get)]
    message: String,
}

#[pymethods]
impl PeerFailureEvent {
    /// Why: a `PeerFailureReason`.
    #[getter]
    fn reason(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // The engine's one kind of loss: the peer cannot be reached.
        members::failure_reason(py, 1)
    }

    fn __repr__(&self) -> String {
        format!("<PeerFailureEvent {:?}: {}>", self.engine_key, self.message)
    }
}

/// The events of one engine.
#[derive(Default)]
pub(crate) struct Failures(Mutex<State>);

#[derive(Default)]
struct State {
    events: VecDeque<PeerFailureEvent>,
    losses: HashMap<EngineKey, u64>,
}

impl Failures {
    /// How often the peer was lost so far; ask before the transfer is submitted.
    pub(crate) fn losses(&self, peer: &EngineKey) -> u64 {
        self.with(|state| state.losses.get(peer).copied().unwrap_or_default())
    }

    /// Watches a transfer with `peer` that was submitted after so many losses.
    pub(crate) fn watch(self: &Arc<Self>, status: &Status, peer: &EngineKey, losses: u64) {
        let code = status.code();
        if code.is_terminal() {
            self.ended(status, peer, losses, code);
            return;
        }
        let watch = Watch { failures: Arc::clone(self), status: status.clone(), peer: peer.clone(), losses };
        if !status.subscribe(Arc::new(watch)) {
            self.ended(status, peer, losses, status.code());
        }
    }

    /// The oldest event.
    pub(crate) fn take(&self) -> Option<PeerFailureEvent> {
        self.with(|state| state.events.pop_front())
    }

    fn ended(&self, status: &Status, peer: &EngineKey, losses: u64, code: StatusCode) {
        if code == StatusCode::Failure(ErrorKind::PeerLost) {
            self.lost(peer, losses, status.error().as_ref());
        }
    }

    fn lost(&self, peer: &EngineKey, losses: u64, error: Option<&Error>) {
        self.with(|state| {
            let count = state.losses.entry(peer.clone()).or_default();
            if *count != losses {
                return;
            }
            *count += 1;
            if state.events.len() >= CAPACITY {
                state.events.pop_front();
            }
            state.events.push_back(PeerFailureEvent {
                engine_key: peer.as_str().to_owned(),
                message: error.map_or_else(String::new, |error| error.message().to_owned()),
            });
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Told when a transfer is over.
struct Watch {
    failures: Arc<Failures>,
    status: Status,
    peer: EngineKey,
    losses: u64,
}

impl Observe for Watch {
    fn on_terminal(&self, code: StatusCode) {
        self.failures.ended(&self.status, &self.peer, self.losses, code);
    }
}
