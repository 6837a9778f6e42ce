//! The explanation of a route.

use pyo3::prelude::*;

/// Which backend carries a pair of memories, and what each backend said. `str()` of it is for people.
///
/// ```python
/// report = engine.explain(memory, remote)
/// print(report)
/// assert report.chosen == "tcp"
/// ```
#[pyclass(frozen, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct RouteReport(pub(crate) mori_engine::RouteReport);

#[pymethods]
impl RouteReport {
    /// The backend that carries the pair; None if there is none.
    #[getter]
    fn chosen(&self) -> Option<&str> {
        self.0.chosen.as_deref()
    }

    /// Each backend with None, or with the reason why it cannot carry the pair; the preferred one first.
    #[getter]
    fn considered(&self) -> Vec<(String, Option<String>)> {
        let said = |verdict: &mori_engine::Result<()>| {
            verdict.as_ref().err().map(|error| error.message().to_owned())
        };
        self.0.considered.iter().map(|entry| (entry.backend.clone(), said(&entry.verdict))).collect()
    }

    /// What stands in the way whatever the backend; None if nothing does.
    #[getter]
    fn obstacle(&self) -> Option<&str> {
        self.0.obstacle.as_ref().map(|error| error.message())
    }

    fn __bool__(&self) -> bool {
        self.0.chosen.is_some()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<RouteReport {}>", self.0)
    }
}
