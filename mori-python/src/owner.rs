//! The engine behind the Python objects, and what the package adds to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mori_engine::{Engine, EngineBuilder, EngineDesc, EngineKey, Error, ErrorKind, Status, TransferOptions};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::error::{OrRaise, raise};
use crate::failures::Failures;
use crate::fork::Generation;
use crate::inbox::Inbox;
use crate::transports::Provided;

/// An engine with its inbox and its list of what was created under which name. When the last handle is dropped, the engine
/// is shut down, without holding the interpreter.
pub(crate) struct Owner {
    /// Always there until it is dropped.
    engine: Option<Engine>,
    generation: Generation,
    pub(crate) host: String,
    pub(crate) port: u16,
    provided: Mutex<Vec<Provided>>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) failures: Arc<Failures>,
}

impl Owner {
    pub(crate) fn build(
        py: Python<'_>,
        builder: EngineBuilder,
        host: String,
        port: u16,
    ) -> PyResult<Arc<Self>> {
        let engine = py.detach(|| builder.build()).or_raise()?;
        let inbox = Inbox::start(engine.notifications()).map_err(|error| {
            PyOSError::new_err(format!("cannot start a thread for notifications: {error}"))
        })?;
        Ok(Arc::new(Self {
            engine: Some(engine),
            generation: Generation::current(),
            host,
            port,
            provided: Mutex::default(),
            inbox,
            failures: Arc::default(),
        }))
    }

    /// The engine; refused in a forked child.
    pub(crate) fn engine(&self) -> PyResult<&Engine> {
        self.generation.check("engine")?;
        self.engine.as_ref().ok_or_else(|| raise(&Error::new(ErrorKind::BadState, "the engine is gone")))
    }

    pub(crate) fn provided(&self) -> MutexGuard<'_, Vec<Provided>> {
        self.provided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor; before a backend listens, with the host that the configuration names.
    pub(crate) fn desc(&self) -> PyResult<EngineDesc> {
        let mut desc = self.engine()?.desc();
        if desc.host.is_empty() {
            desc.host.clone_from(&self.host);
        }
        Ok(desc)
    }

    /// Whether transfers over `backend` (or over whatever carries them) tell their targets of unique ids.
    pub(crate) fn notifies(&self, backend: Option<&str>) -> bool {
        let provided = self.provided();
        let mut carriers = provided
            .iter()
            .filter(|provided| provided.carries && backend.is_none_or(|name| name == provided.backend))
            .peekable();
        carriers.peek().is_some() && carriers.all(|provided| provided.notifies)
    }

    pub(crate) fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine()?;
        py.detach(|| engine.shutdown());
        self.provided().clear();
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        if !self.generation.is_current() {
            // Its threads and whatever they had locked are the parent's.
            std::mem::forget(engine);
            std::mem::forget(Arc::clone(&self.inbox));
            return;
        }
        let end = move || {
            engine.shutdown();
            drop(engine);
        };
        let mut end = Some(end);
        // Shutting down takes a moment, in which other Python threads run.
        let attached = Python::try_attach(|py| {
            if let Some(end) = end.take() {
                py.detach(end);
            }
        });
        if let (None, Some(end)) = (attached, end) {
            end();
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The options of a transfer that carries a unique id, whose target is told if `notify`.
pub(crate) fn with_uid(uid: u64, notify: bool) -> TransferOptions {
    let mut options = TransferOptions::tagged(uid);
    options.notify = notify.then(|| mori_engine::Notify { message: Vec::new(), on_failure: true });
    options
}

/// Submits with `submit`, and leaves an event if the peer turns out to be lost.
pub(crate) fn watched(failures: &Arc<Failures>, peer: &EngineKey, submit: impl FnOnce() -> Status) -> Status {
    let losses = failures.losses(peer);
    let status = submit();
    failures.watch(&status, peer, losses);
    status
}
