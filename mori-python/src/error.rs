//! Errors as Python's exceptions: `mori.MoriError` and its relatives, with the kind, the code and the cause's number.

use mori_engine::{Error, ErrorKind, StatusCode};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::members;

/// The exception for an error. A wrong argument is a `ValueError` too; everything is a `RuntimeError`.
pub(crate) fn raise(error: &Error) -> PyErr {
    Python::attach(|py| match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        // Without the package's own classes (it is half imported) the text is still told.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    })
}

/// The exception as an object, for callers that hand it out instead of raising it.
pub(crate) fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static GENERAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static ARGUMENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = match error.kind() {
        ErrorKind::InvalidArgument => ARGUMENT.import(py, "mori._errors", "InvalidArgumentError")?,
        _ => GENERAL.import(py, "mori._errors", "MoriError")?,
    };
    let code = members::status_code(py, StatusCode::Failure(error.kind()))?;
    let cause = error.cause().map(|cause| (cause.domain, cause.number));
    class.call1((error.message(), error.kind().as_str(), code, cause))
}

/// Turns an engine's answer into Python's.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error))
    }
}
