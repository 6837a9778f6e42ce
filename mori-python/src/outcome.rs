//! What a wait for many transfers has found.

use pyo3::prelude::*;

use crate::error::{exception, raise};
use crate::members;

/// Where a batch stands: its code, who failed and why, who is still under way.
///
/// `code` is the code of the earliest member that failed; else INIT if a member was never submitted; else IN_PROGRESS if one is;
/// else SUCCESS. True if every member has succeeded.
///
/// ```python
/// outcome = mori.engine.wait_all(transfers, timeout=2.0)
/// for member in outcome.failed:
///     print(member.index, member.tag, member.code, member.message)
/// ```
#[pyclass(frozen, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct Outcome(pub(crate) mori_engine::Outcome);

#[pymethods]
impl Outcome {
    /// The code of the whole batch.
    #[getter]
    fn code(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        members::status_code(py, self.0.code())
    }

    /// The members that failed, in the order of the list.
    #[getter]
    fn failed(&self) -> Vec<Member> {
        self.0.failed().iter().cloned().map(Member).collect()
    }

    /// The members that are in progress or were never submitted, in the order of the list.
    #[getter]
    fn pending(&self) -> Vec<Member> {
        self.0.unfinished().iter().cloned().map(Member).collect()
    }

    /// How many members have succeeded.
    #[getter]
    fn succeeded(&self) -> usize {
        self.0.succeeded()
    }

    /// Whether no member can change any more, so that every buffer is quiet.
    #[getter]
    fn all_quiet(&self) -> bool {
        self.0.all_quiet()
    }

    /// Raises the earliest failed member's error, or TimeoutError if members are unfinished.
    fn check(&self) -> PyResult<()> {
        match self.0.result() {
            Ok(()) => Ok(()),
            Err(Some(error)) => Err(raise(&error)),
            Err(None) => Err(pyo3::exceptions::PyTimeoutError::new_err(format!(
                "{} of {} transfers are not finished",
                self.0.unfinished().len(),
                self.0.len()
            ))),
        }
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bool__(&self) -> bool {
        self.0.is_success()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Outcome {}: {} of {} succeeded, {} failed, {} pending>",
            self.0.code(),
            self.0.succeeded(),
            self.0.len(),
            self.0.failed().len(),
            self.0.unfinished().len()
        )
    }
}

/// One member of a batch that is not a success.
#[pyclass(frozen, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct Member(mori_engine::Member);

#[pymethods]
impl Member {
    /// Its place in the list.
    #[getter]
    fn index(&self) -> usize {
        self.0.index
    }

    /// The number that the caller gave to the transfer.
    #[getter]
    fn tag(&self) -> u64 {
        self.0.tag.0
    }

    /// The transfer's number in this process.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id.get()
    }

    /// Where it stands.
    #[getter]
    fn code(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        members::status_code(py, self.0.code)
    }

    /// Why it failed; empty if it has not.
    #[getter]
    fn message(&self) -> &str {
        self.0.error.as_ref().map_or("", |error| error.message())
    }

    /// The same as an exception that was not raised; None if it has not failed.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.error.as_ref().map(|error| exception(py, error)).transpose()
    }

    fn __repr__(&self) -> String {
        format!("<Member {} tag={}: {} {:?}>", self.0.index, self.0.tag, self.0.code, self.message())
    }
}
