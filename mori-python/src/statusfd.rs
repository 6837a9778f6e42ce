//! A file descriptor that becomes readable when transfers are over, for event loops.

use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::error::OrRaise;
use crate::fork::Generation;

/// Becomes readable, and stays so, when every status is terminal (or, with `first_failure`, when one has failed; or, with
/// `count`, when so many are terminal). For `select`, `epoll` and event loops; do not read from it.
///
/// ```python
/// with StatusFd(statuses) as ready:
///     select.select([ready], [], [], 1.0)
/// ```
#[pyclass(frozen, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct StatusFd {
    inner: Mutex<Option<mori_engine::StatusFd>>,
    generation: Generation,
}

impl StatusFd {
    fn take(&self) -> Option<mori_engine::StatusFd> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl StatusFd {
    #[new]
    #[pyo3(signature = (statuses, *, first_failure = false, count = None))]
    fn new(
        py: Python<'_>,
        statuses: &Bound<'_, PyAny>,
        first_failure: bool,
        count: Option<usize>,
    ) -> PyResult<Self> {
        let members = convert::statuses(statuses, false)?;
        let made = py.detach(|| match (first_failure, count) {
            (_, Some(count)) => mori_engine::StatusFd::some(&members, count),
            (true, None) => mori_engine::StatusFd::first_failure(&members),
            (false, None) => mori_engine::StatusFd::all(&members),
        });
        Ok(Self { inner: Mutex::new(Some(made.or_raise()?)), generation: Generation::current() })
    }

    /// The descriptor's number; a ValueError once it is closed.
    fn fileno(&self) -> PyResult<i32> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .as_ref()
            .map(AsRawFd::as_raw_fd)
            .ok_or_else(|| PyValueError::new_err("the descriptor is closed"))
    }

    /// Closes it; cancels nothing. Take it out of event loops first.
    fn close(&self) {
        drop(self.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }
}

impl Drop for StatusFd {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // Its subscriptions belong to the parent.
            std::mem::forget(self.take());
        }
    }
}
