//! Waiting for many transfers, as functions. A list of statuses may hold transfers of several engines and backends.

use mori_engine::Status;
use pyo3::prelude::*;

use crate::convert;
use crate::outcome::Outcome;
use crate::wait::{self, Until};

fn wait_many(
    py: Python<'_>,
    statuses: &Bound<'_, PyAny>,
    until: Until,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    let timeout = convert::seconds(timeout, "timeout")?;
    let statuses = convert::statuses(statuses, false)?;
    wait::many(py, &statuses, until, timeout)?;
    Ok(Outcome(mori_engine::scan(&statuses)))
}

/// Waits until every transfer is terminal, or `timeout` seconds have passed (None: without a bound; 0: asks each backend once).
///
/// It does not end at the first failure, because the buffers of the others may still be written to. Other threads run
/// meanwhile, and Ctrl-C is answered.
///
/// ```python
/// outcome = wait_all(transfers, timeout=2.0)
/// assert outcome, outcome.failed
/// ```
#[pyfunction]
#[pyo3(signature = (statuses, timeout = None))]
pub(crate) fn wait_all(
    py: Python<'_>,
    statuses: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    wait_many(py, statuses, Until::All, timeout)
}

/// Waits until every transfer is terminal or the first one has failed; `pending` says which are still under way.
#[pyfunction]
#[pyo3(signature = (statuses, timeout = None))]
pub(crate) fn wait_first_failure(
    py: Python<'_>,
    statuses: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    wait_many(py, statuses, Until::FirstFailure, timeout)
}

/// Waits until `count` transfers are terminal, or all of them if there are fewer.
#[pyfunction]
#[pyo3(signature = (statuses, count, timeout = None))]
pub(crate) fn wait_some(
    py: Python<'_>,
    statuses: &Bound<'_, PyAny>,
    count: usize,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    wait_many(py, statuses, Until::Some(count), timeout)
}

/// Waits until one transfer is terminal and returns its index; None if the time runs out first, or if nothing in the list can
/// become terminal.
#[pyfunction]
#[pyo3(signature = (statuses, timeout = None))]
pub(crate) fn wait_any(
    py: Python<'_>,
    statuses: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Option<usize>> {
    let timeout = convert::seconds(timeout, "timeout")?;
    let statuses = convert::statuses(statuses, false)?;
    let first = |statuses: &[Status]| statuses.iter().position(|status| status.code().is_terminal());
    if let Some(index) = first(&statuses) {
        return Ok(Some(index));
    }
    wait::many(py, &statuses, Until::Some(1), timeout)?;
    Ok(first(&statuses))
}

/// Where the transfers stand, without calling into any backend. Never blocks.
#[pyfunction]
pub(crate) fn scan(statuses: &Bound<'_, PyAny>) -> PyResult<Outcome> {
    Ok(Outcome(mori_engine::scan(&convert::statuses(statuses, false)?)))
}
