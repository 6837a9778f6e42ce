//! Waiting without holding the interpreter, and answering Ctrl-C.
//!
//! Only Python's main thread runs signal handlers, so only its waits are cut into slices. Other threads sleep until the end.
//! The rules of the wait contract stay what they are:
//!
//! 1. The deadline is computed once; a slice ends at it or before it, and never moves it (W2, W5).
//! 2. Members whose backends have notifiers are subscribed to once. The slices sleep on that one subscription, so nobody is
//!    polled or woken more often because of them (W8, A10).
//! 3. If a member needs polling, the engine's own wait runs as a whole, on a thread of its own, while this one looks for
//!    signals: the backend sees the same polls and the same blocking hook as without Python (W9, W10). After a Ctrl-C that
//!    thread ends by itself.
//! 4. Nothing that a signal handler does or raises touches a transfer: a wait that is interrupted cancels nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use mori_engine::{Clock, Gathering, Status, StatusCode, Timeout, WaitPolicy};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The longest time between two looks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// When a wait for several is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    All,
    FirstFailure,
    Some(usize),
}

/// Waits for one, as `Status::wait` does.
pub(crate) fn one(py: Python<'_>, status: &Status, timeout: Timeout) -> PyResult<StatusCode> {
    let code = status.code();
    if code != StatusCode::InProgress {
        return Ok(code);
    }
    if timeout == Timeout::Poll || !answers_signals(py)? {
        return Ok(py.detach(|| status.wait(timeout)));
    }
    if !status.has_notifier() {
        let status = status.clone();
        return aside(py, move || status.wait(timeout));
    }
    let until = end(timeout);
    if py.detach(|| status.poll()) == StatusCode::InProgress {
        slices(py, std::slice::from_ref(status), Until::All, until)?;
    }
    Ok(status.code())
}

/// Waits for several, as the engine's `wait_all` and its relatives do; the verdict is a scan afterwards.
pub(crate) fn many(py: Python<'_>, statuses: &[Status], until: Until, timeout: Timeout) -> PyResult<()> {
    let pending = || statuses.iter().filter(|status| status.code() == StatusCode::InProgress);
    if pending().next().is_none() {
        return Ok(());
    }
    if timeout == Timeout::Poll || !answers_signals(py)? {
        py.detach(|| engine_wait(statuses, until, timeout));
        return Ok(());
    }
    if pending().all(Status::has_notifier) {
        return slices(py, statuses, until, end(timeout));
    }
    let statuses = statuses.to_vec();
    aside(py, move || engine_wait(&statuses, until, timeout))
}

fn engine_wait(statuses: &[Status], until: Until, timeout: Timeout) {
    let policy = WaitPolicy::DEFAULT;
    match until {
        Until::All => drop(policy.wait_all(statuses, timeout)),
        Until::FirstFailure => drop(policy.wait_first_failure(statuses, timeout)),
        Until::Some(count) => drop(policy.wait_some(statuses, count, timeout)),
    }
}

/// Runs something that may block: as it is on most threads, aside of the main thread so that it answers Ctrl-C. What is
/// interrupted goes on until it ends by itself, and its result is dropped.
pub(crate) fn blocking<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    if answers_signals(py)? { aside(py, work) } else { Ok(py.detach(work)) }
}

/// Whether this is the thread that runs Python's signal handlers.
pub(crate) fn answers_signals(py: Python<'_>) -> PyResult<bool> {
    static MAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let main =
        MAIN.get_or_try_init(py, || py.import("threading")?.getattr("main_thread").map(Bound::unbind))?;
    let current =
        CURRENT.get_or_try_init(py, || py.import("threading")?.getattr("get_ident").map(Bound::unbind))?;
    let main = main.bind(py).call0()?.getattr(pyo3::intern!(py, "ident"))?;
    main.eq(current.bind(py).call0()?)
}

/// The absolute end of a wait; `None` is never.
pub(crate) fn end(timeout: Timeout) -> Option<Instant> {
    match timeout {
        Timeout::Unbounded => None,
        Timeout::Poll => Some(now()),
        Timeout::Within(bound) => now().checked_add(bound),
    }
}

pub(crate) fn now() -> Instant {
    Clock::system().now()
}

/// What is left to sleep before the next look for signals; `None` when the end is reached.
pub(crate) fn slice(end: Option<Instant>) -> Option<Duration> {
    match end {
        None => Some(SLICE),
        Some(end) => {
            let left = end.saturating_duration_since(now());
            if left.is_zero() { None } else { Some(left.min(SLICE)) }
        }
    }
}

fn slices(py: Python<'_>, statuses: &[Status], until: Until, end: Option<Instant>) -> PyResult<()> {
    let mut gathering = match until {
        Until::All => Gathering::all(statuses),
        Until::FirstFailure => Gathering::first_failure(statuses),
        Until::Some(count) => Gathering::some(statuses, count),
    };
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    // One poll subscribes and leaves the waker.
    if Pin::new(&mut gathering).poll(&mut Context::from_waker(&waker)).is_ready() {
        return Ok(());
    }
    while let Some(slice) = slice(end) {
        if py.detach(|| parker.park(slice)) {
            return Ok(());
        }
        py.check_signals()?;
    }
    Ok(())
}

fn aside<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (answer, mut answers) = sync_channel(1);
    let run = move || {
        // Nobody listens any more after a Ctrl-C.
        let _ = answer.send(work());
    };
    std::thread::Builder::new()
        .name("mori-python-wait".into())
        .spawn(run)
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread to wait with: {error}")))?;
    loop {
        let answers = &mut answers;
        match py.detach(move || answers.recv_timeout(SLICE)) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread of the library ended without an answer"));
            }
        }
    }
}

/// What the main thread sleeps on.
#[derive(Default)]
struct Parker {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Parker {
    /// Sleeps until it is opened (`true`) or `bound` has passed.
    fn park(&self, bound: Duration) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.opened.wait_timeout_while(open, bound, |open| !*open);
        *woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_one();
    }
}
