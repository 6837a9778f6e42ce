//! Messages that peers' transfers leave here, as Python sees them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::exception;

/// What a target learns of a peer's transfer: that all its bytes are in place, or that it failed.
#[pyclass(frozen, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct Notification(pub(crate) mori_engine::Notification);

#[pymethods]
impl Notification {
    /// The name of the engine that submitted the transfer.
    #[getter]
    fn peer(&self) -> &str {
        self.0.peer.as_str()
    }

    /// The tag (unique id) that the submitter gave the transfer.
    #[getter]
    fn tag(&self) -> u64 {
        self.0.tag.0
    }

    /// The submitter's message.
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.message)
    }

    /// Why the transfer failed, as an exception that was not raised; None when every byte is in place.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.error.as_ref().map(|error| exception(py, error)).transpose()
    }

    fn __repr__(&self) -> String {
        let result = self.0.error.as_ref().map_or_else(|| "in place".to_owned(), ToString::to_string);
        format!(
            "<Notification from {} tag={}: {result}, {} bytes of message>",
            self.0.peer,
            self.0.tag,
            self.0.message.len()
        )
    }
}
