//! The status of one transfer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_engine::{Completer, Error, ErrorKind, Origin, Status, StatusCode, Timeout};
use pyo3::prelude::*;

use crate::convert::Millis;
use crate::error::{OrRaise, exception, raise};
use crate::fork::Generation;
use crate::{convert, members, wait};

/// Where one transfer stands, and the ways to wait for it.
///
/// Engines and sessions return one for every transfer. `TransferStatus()` makes one that is INIT, for the calls that take a
/// status as an argument, or to be moved by hand. It moves from INIT to IN_PROGRESS to one terminal state, which is final: a
/// later update changes nothing and returns False.
///
/// It may be awaited: `code = await status`.
///
/// ```python
/// status = session.read(0, 0, 4096, session.allocate_transfer_uid())
/// if status.WaitFor(1000) is not StatusCode.SUCCESS:
///     print(status.Code(), status.Message())
/// ```
#[pyclass(frozen, weakref, module = "mori.cpp")]
#[derive(Debug)]
pub(crate) struct TransferStatus {
    /// The engine's status, from the beginning or once the transfer is submitted.
    bound: OnceLock<Status>,
    /// What `TransferStatus()` is until then.
    own: Option<(Completer, Status)>,
    /// Whether it was handed to a transfer.
    claimed: AtomicBool,
    generation: Generation,
}

impl TransferStatus {
    /// The status of a transfer that is submitted.
    pub(crate) fn of(status: Status) -> Self {
        Self {
            bound: OnceLock::from(status),
            own: None,
            claimed: AtomicBool::new(true),
            generation: Generation::current(),
        }
    }

    /// The engine's status behind it.
    #[inline]
    pub(crate) fn status(&self) -> &Status {
        match (self.bound.get(), &self.own) {
            (Some(bound), _) | (None, Some((_, bound))) => bound,
            // One of the two is always there.
            (None, None) => self.bound.get_or_init(|| {
                Status::failed(Default::default(), Error::new(ErrorKind::BadState, "the status is empty"))
            }),
        }
    }

    /// The same, for a wait: refused in a forked child.
    pub(crate) fn checked(&self) -> PyResult<&Status> {
        let status = self.status();
        if status.code() == StatusCode::InProgress {
            self.generation.check("transfer")?;
        }
        Ok(status)
    }

    /// Takes it for one transfer.
    pub(crate) fn claim(&self) -> PyResult<()> {
        // Relaxed: the flag orders nothing, it only picks one of two callers. One that is refused leaves the status as it
        // is, so that its owner can still move it.
        let fresh = self.status().code() == StatusCode::Init;
        if !fresh || self.claimed.swap(true, Ordering::Relaxed) {
            return Err(raise(&Error::new(
                ErrorKind::BadState,
                "this status was used already; make a new TransferStatus for each transfer",
            )));
        }
        Ok(())
    }

    /// Takes each of them, or none.
    pub(crate) fn claim_all(statuses: &[&Self]) -> PyResult<()> {
        for (place, status) in statuses.iter().enumerate() {
            if let Err(error) = status.claim() {
                for taken in statuses.iter().take(place) {
                    taken.claimed.store(false, Ordering::Relaxed);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives a claimed one the status of its transfer.
    pub(crate) fn bind(&self, status: Status) {
        // The claim lets one caller through, once.
        let _ = self.bound.set(status);
    }

    fn completer(&self) -> Option<&Completer> {
        // Once it stands for a transfer, the transfer's backend moves it and nobody else.
        let taken = self.claimed.load(Ordering::Relaxed) || self.bound.get().is_some();
        self.own.as_ref().filter(|_| !taken).map(|(completer, _)| completer)
    }

    fn update(&self, code: u32, message: Option<String>) -> bool {
        let Some(completer) = self.completer() else { return false };
        match StatusCode::from_number(code) {
            Some(StatusCode::Failure(kind)) => {
                let message = message.unwrap_or_else(|| completer.status().message());
                completer.fail(Error::new(kind, message)).applied()
            }
            Some(code) => {
                // The message first, so that whoever sees the code sees it (S3).
                let noted = message.is_some_and(|message| completer.note(message).applied());
                let moved = match code {
                    StatusCode::Success => completer.succeed().applied(),
                    StatusCode::InProgress => completer.submit().applied(),
                    _ => false,
                };
                noted || moved
            }
            None => false,
        }
    }
}

#[pymethods]
impl TransferStatus {
    #[new]
    fn new() -> Self {
        Self {
            bound: OnceLock::new(),
            own: Some(Status::pair(Origin::detached())),
            claimed: AtomicBool::new(false),
            generation: Generation::current(),
        }
    }

    /// The code: a `StatusCode`. Never blocks.
    #[pyo3(name = "Code")]
    fn code(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        members::status_code(py, self.status().code())
    }

    /// Why the transfer failed, or a note, or nothing.
    #[pyo3(name = "Message")]
    fn message(&self) -> String {
        self.status().message()
    }

    /// Whether no transfer was submitted with it yet.
    #[pyo3(name = "Init")]
    fn init(&self) -> bool {
        self.status().code() == StatusCode::Init
    }

    /// Whether the transfer is under way.
    #[pyo3(name = "InProgress")]
    fn in_progress(&self) -> bool {
        self.status().code() == StatusCode::InProgress
    }

    /// Whether every byte is in place. Never blocks.
    #[pyo3(name = "Succeeded")]
    fn succeeded(&self) -> bool {
        self.status().is_success()
    }

    /// Whether it failed: a code greater than 10. Never blocks.
    #[pyo3(name = "Failed")]
    fn failed(&self) -> bool {
        // Success is the common answer and the cheap one.
        let status = self.status();
        !status.is_success() && status.is_failure()
    }

    /// Moves a status of the caller's own; returns whether anything changed.
    #[pyo3(name = "Update")]
    fn update_both(&self, code: &Bound<'_, PyAny>, message: String) -> PyResult<bool> {
        Ok(self.update(members::status_number(code)?, Some(message)))
    }

    /// Moves a status of the caller's own, keeping its message; returns whether anything changed.
    #[pyo3(name = "SetCode")]
    fn set_code(&self, code: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.update(members::status_number(code)?, None))
    }

    /// Leaves a message on a status of the caller's own; releases no waiter. Returns whether anything changed.
    #[pyo3(name = "SetMessage")]
    fn set_message(&self, message: String) -> bool {
        self.completer().is_some_and(|completer| completer.note(message).applied())
    }

    /// Waits until the transfer is terminal. Other threads run meanwhile, and Ctrl-C is answered.
    #[pyo3(name = "Wait")]
    fn wait_unbounded(&self, py: Python<'_>) -> PyResult<()> {
        wait::one(py, self.checked()?, Timeout::Unbounded).map(drop)
    }

    /// Waits for at most `timeout_ms` milliseconds (negative: without a bound; 0: asks once, never sleeps) and returns the
    /// code. A bound that runs out gives IN_PROGRESS and cancels nothing.
    #[pyo3(name = "WaitFor", signature = (timeout_ms = Millis::NONE), text_signature = "($self, timeout_ms=-1)")]
    fn wait_for(&self, py: Python<'_>, timeout_ms: Millis) -> PyResult<Py<PyAny>> {
        members::status_code(py, wait::one(py, self.checked()?, timeout_ms.0)?)
    }

    /// Waits for at most `timeout` seconds (None: without a bound; 0: asks once) and returns the code.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = convert::seconds(timeout, "timeout")?;
        members::status_code(py, wait::one(py, self.checked()?, timeout)?)
    }

    /// Asks for a stop. The status ends as ERR_CANCELLED once no byte can land any more; a transfer that has finished keeps its
    /// result. A transport that cannot stop transfers is a `MoriError`.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let status = self.checked()?;
        py.detach(|| status.cancel()).or_raise()
    }

    /// The code, as `Code()`.
    #[getter(code)]
    fn get_code(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.code(py)
    }

    /// Whether the status is terminal.
    #[getter]
    fn done(&self) -> bool {
        self.status().code().is_terminal()
    }

    /// Why the transfer failed, as an exception that was not raised; None if it has not.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.status().error().map(|error| exception(py, &error)).transpose()
    }

    /// The number that the caller gave to the transfer: its unique id, or its tag.
    #[getter]
    fn tag(&self) -> u64 {
        self.status().tag().0
    }

    /// The transfer's number in this process, never reused.
    #[getter]
    fn id(&self) -> u64 {
        self.status().id().get()
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let coroutine = slf.py().import("mori.aio")?.call_method1("completion", (slf,))?;
        coroutine.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        let status = self.status();
        let message = status.message();
        let shown = if message.is_empty() { String::new() } else { format!(", {message:?}") };
        format!("<TransferStatus {}: {}{shown}>", status.id(), status.code())
    }
}
