//! The package's own API: an engine, and memory by the objects that own it.

use std::sync::{Arc, Weak};

use mori_engine::{Access, EngineKey, Error, ErrorKind, Op, Status, Timeout};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::Port;
use crate::desc::{EngineDesc, MemoryDesc};
use crate::error::{OrRaise, raise};
use crate::inbox::Closed;
use crate::members::{BackendType, memory_kind};
use crate::memory::{deregister, located, register};
use crate::notification::Notification;
use crate::owner::{Owner, watched};
use crate::route::RouteReport;
use crate::session::{Session, flexible, options};
use crate::status::TransferStatus;
use crate::{convert, transports, wait};

/// An engine, with exceptions for what is wrong, typed outcomes, and memory by the objects that own it.
///
/// `tcp` is True for the TCP transport with its defaults, a `TcpBackendConfig`, or False for none yet. `host` and `port` say
/// where it listens; loopback and a free port unless told otherwise. `default_deadline`, in seconds, ends transfers that bring no
/// deadline of their own. As a context manager it shuts down at the end.
///
/// ```python
/// with Engine("decode-0") as engine:
///     memory = engine.register(bytearray(1 << 20))
///     engine.add_peer(received)
///     transfer = engine.session(memory, remote).read(0, 0, 4096)
///     assert wait_all([transfer], timeout=5.0)
/// ```
#[pyclass(frozen, weakref, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct Engine(Arc<Owner>);

impl Engine {
    /// The API for an engine that is there.
    pub(crate) fn of(owner: &Arc<Owner>) -> Self {
        Self(Arc::clone(owner))
    }

    #[allow(clippy::too_many_arguments, reason = "most are keywords of Python's")]
    fn submit(
        &self,
        py: Python<'_>,
        op: Op,
        memory: &Bound<'_, Memory>,
        remote: &Bound<'_, MemoryDesc>,
        pieces: Result<Vec<mori_engine::Piece>, Error>,
        options: mori_engine::TransferOptions,
    ) -> PyResult<TransferStatus> {
        let engine = self.0.engine()?;
        let (local, remote) = (&memory.get().memory, &*remote.get().remote());
        let status = match pieces {
            Ok(pieces) => py.detach(|| {
                watched(&self.0.failures, &remote.engine_key, || {
                    engine.submit(op, local, remote, &pieces, options)
                })
            }),
            Err(error) => Status::failed(options.tag, error),
        };
        Ok(TransferStatus::of(status))
    }
}

/// What peers may do with memory: "rw", "r", "w", or "" for nothing.
fn access_rights(text: &str) -> PyResult<Access> {
    match text {
        "rw" => Ok(Access::READ_WRITE),
        "r" => Ok(Access::READ_ONLY),
        "w" => Ok(Access::WRITE_ONLY),
        "" => Ok(Access::LOCAL),
        _ => Err(PyValueError::new_err(format!("access must be \"rw\", \"r\", \"w\" or \"\", not {text:?}"))),
    }
}

/// A peer's descriptor, packed or not.
fn peer_desc(desc: &Bound<'_, PyAny>) -> PyResult<mori_engine::EngineDesc> {
    if let Ok(desc) = desc.cast::<EngineDesc>() {
        return Ok(desc.get().0.clone());
    }
    match desc.cast::<PyBytes>() {
        Ok(bytes) => mori_engine::EngineDesc::unpack(bytes.as_bytes()).or_raise(),
        Err(_) => Err(PyTypeError::new_err("a peer is an EngineDesc or its packed bytes")),
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (key, *, host = String::new(), port = Port(0), tcp = None, default_deadline = None),
        text_signature = "(key, *, host='', port=0, tcp=None, default_deadline=None)")]
    fn new(
        py: Python<'_>,
        key: String,
        host: String,
        port: Port,
        tcp: Option<&Bound<'_, PyAny>>,
        default_deadline: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = mori_engine::Engine::builder(key);
        if let Some(deadline) = convert::duration(default_deadline, "default_deadline")? {
            builder = builder.default_deadline(deadline);
        }
        let owner = Owner::build(py, builder, host, port.0)?;
        let switch = tcp.and_then(|tcp| tcp.extract::<bool>().ok());
        match switch {
            Some(false) => {}
            Some(true) => transports::create(py, &owner, BackendType::Tcp, None)?,
            None => transports::create(py, &owner, BackendType::Tcp, tcp)?,
        }
        Ok(Self(owner))
    }

    /// The engine's name.
    #[getter]
    fn key(&self) -> PyResult<String> {
        Ok(self.0.engine()?.key().as_str().to_owned())
    }

    /// The descriptor, for peers.
    #[getter]
    fn desc(&self) -> PyResult<EngineDesc> {
        Ok(EngineDesc(self.0.desc()?))
    }

    /// The backends in words, the preferred one first.
    #[getter]
    fn backends(&self) -> PyResult<Vec<String>> {
        Ok(self.0.engine()?.backends().iter().map(ToString::to_string).collect())
    }

    /// The names of the peers.
    #[getter]
    fn peers(&self) -> PyResult<Vec<String>> {
        Ok(self.0.engine()?.peers().iter().map(|peer| peer.key.as_str().to_owned()).collect())
    }

    /// Creates a backend: a `BackendType`, and its configuration.
    #[pyo3(signature = (kind, config = None))]
    fn add_backend(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        transports::create(py, &self.0, BackendType::extract(kind)?, config)
    }

    /// Makes a peer known, by its descriptor or the bytes of it.
    fn add_peer(&self, py: Python<'_>, desc: &Bound<'_, PyAny>) -> PyResult<()> {
        let engine = self.0.engine()?;
        let desc = peer_desc(desc)?;
        py.detach(|| engine.add_peer(&desc)).or_raise()
    }

    /// Forgets a peer; transfers in progress with it end as failures.
    fn remove_peer(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let engine = self.0.engine()?;
        let key = EngineKey::from(key);
        py.detach(|| engine.remove_peer(&key)).or_raise()
    }

    /// Registers the memory of an object that others can write to: a bytearray, a numpy array, a memoryview, a tensor (by
    /// `data_ptr()`), an mmap. The object is kept alive as long as it is registered or a transfer uses it.
    ///
    /// `access` says what peers may do with it: "rw", "r", "w" or "".
    #[pyo3(signature = (buffer, *, access = "rw"))]
    fn register(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, access: &str) -> PyResult<Memory> {
        let access = access_rights(access)?;
        let found = py.import("mori._buffer")?.call_method1("describe", (buffer,))?;
        let (address, size, device_id, location, keeper): (u64, u64, i64, Bound<'_, PyAny>, Py<PyAny>) =
            found.extract()?;
        let location = located(memory_kind(&location)?, device_id)?;
        let memory = register(py, &self.0, address, size, location, access, Some(keeper))?;
        Ok(Memory { memory, owner: Arc::downgrade(&self.0) })
    }

    /// Registers fresh memory of the engine's own, zero.
    #[pyo3(signature = (size, *, access = "rw"))]
    fn allocate(&self, py: Python<'_>, size: &Bound<'_, PyAny>, access: &str) -> PyResult<Memory> {
        let access = access_rights(access)?;
        let engine = self.0.engine()?;
        let size = usize::try_from(convert::unsigned(size, "the size")?).unwrap_or(usize::MAX);
        let memory = py.detach(|| engine.allocate(size, access)).or_raise()?;
        Ok(Memory { memory, owner: Arc::downgrade(&self.0) })
    }

    /// Opens a session between memory of this engine and a peer's. No way between them is a `MoriError` with every backend's
    /// reason; so is a peer that cannot be reached.
    fn session(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, Memory>,
        remote: &Bound<'_, MemoryDesc>,
    ) -> PyResult<Session> {
        let engine = self.0.engine()?.clone();
        let memory = memory.get().memory.clone();
        let remote = remote.get().remote().into_owned();
        let session = wait::blocking(py, move || engine.session(&memory, &remote))?.or_raise()?;
        Ok(Session::new(&self.0, session))
    }

    /// Reads from a peer's memory; offsets, lengths and keywords as for `Session.read`. The first transfer of a pair opens a
    /// session and keeps it.
    #[pyo3(signature = (memory, remote, local_offsets, remote_offsets, lengths, *, tag = None, deadline = None,
        notify = None, notify_failure = false))]
    #[allow(clippy::too_many_arguments, reason = "most are keywords")]
    fn read(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, Memory>,
        remote: &Bound<'_, MemoryDesc>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        notify_failure: bool,
    ) -> PyResult<TransferStatus> {
        let options = options(tag, deadline, notify, notify_failure)?;
        let pieces = flexible(local_offsets, remote_offsets, lengths)?;
        self.submit(py, Op::Read, memory, remote, pieces, options)
    }

    /// Writes to a peer's memory; else as `read`.
    #[pyo3(signature = (memory, remote, local_offsets, remote_offsets, lengths, *, tag = None, deadline = None,
        notify = None, notify_failure = false))]
    #[allow(clippy::too_many_arguments, reason = "most are keywords")]
    fn write(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, Memory>,
        remote: &Bound<'_, MemoryDesc>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        notify_failure: bool,
    ) -> PyResult<TransferStatus> {
        let options = options(tag, deadline, notify, notify_failure)?;
        let pieces = flexible(local_offsets, remote_offsets, lengths)?;
        self.submit(py, Op::Write, memory, remote, pieces, options)
    }

    /// Says which backend carries transfers between the two memories, and why the others do not. The local one may be a
    /// `Memory` or a `MemoryDesc` of this engine's.
    fn explain(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
    ) -> PyResult<RouteReport> {
        let engine = self.0.engine()?;
        let memory = match (memory.cast::<Memory>(), memory.cast::<MemoryDesc>()) {
            (Ok(memory), _) => memory.get().memory.clone(),
            (_, Ok(desc)) => engine.memory(&desc.get().desc).ok_or_else(|| {
                raise(&Error::new(
                    ErrorKind::NotFound,
                    "the local memory is not registered with this engine (any more)",
                ))
            })?,
            _ => return Err(PyTypeError::new_err("the local memory is a Memory or a MemoryDesc")),
        };
        let remote = &*remote.get().remote();
        Ok(RouteReport(py.detach(|| engine.explain(&memory, remote))))
    }

    /// The oldest message that a peer's transfer left here; None if there is none. Never blocks.
    fn poll_notification(&self) -> PyResult<Option<Notification>> {
        self.0.engine()?;
        Ok(self.0.inbox.take().map(Notification))
    }

    /// The oldest message that a peer's transfer left here, waiting for at most `timeout` seconds (None: without a bound);
    /// None if there is none by then. A shut-down engine is a `MoriError`.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Notification>> {
        self.0.engine()?;
        let timeout = convert::seconds(timeout, "timeout")?;
        let end = wait::end(timeout);
        let mut slice = std::time::Duration::ZERO;
        loop {
            match py.detach(|| self.0.inbox.take_within(slice)) {
                Ok(Some(notification)) => return Ok(Some(Notification(notification))),
                Ok(None) => py.check_signals()?,
                Err(Closed) => {
                    return Err(raise(&Error::new(
                        ErrorKind::BadState,
                        "the engine is shut down, so nothing arrives any more",
                    )));
                }
            }
            match wait::slice(end) {
                Some(next) => slice = next,
                None => return Ok(None),
            }
        }
    }

    /// Calls `callback()` once, on another thread, when a message arrives or the engine is shut down; False, and never, if that is
    /// so already.
    fn call_on_notification(&self, callback: Py<PyAny>) -> PyResult<bool> {
        self.0.engine()?;
        Ok(self.0.inbox.call_on_arrival(callback))
    }

    /// Ends every transfer in progress with a failure and closes everything, in bounded time.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.0.shutdown(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.shutdown(py)
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<Engine {:?}: {}>", self.key()?, self.backends()?.join(", ")))
    }
}

/// Memory that is registered with an engine. It stays registered when this object is gone, because peers hold its descriptor;
/// `deregister` ends that.
///
/// ```python
/// memory = engine.register(numpy.zeros(4096, dtype=numpy.uint8), access="r")
/// send(memory.desc.pack())
/// ```
#[pyclass(frozen, weakref, module = "mori.engine")]
#[derive(Debug)]
pub(crate) struct Memory {
    memory: mori_engine::Memory,
    owner: Weak<Owner>,
}

impl Memory {
    fn owner(&self) -> PyResult<Arc<Owner>> {
        self.owner
            .upgrade()
            .ok_or_else(|| raise(&Error::new(ErrorKind::BadState, "the memory's engine is gone")))
    }
}

#[pymethods]
impl Memory {
    /// The descriptor, for peers; as of now.
    #[getter]
    fn desc(&self) -> MemoryDesc {
        MemoryDesc::new(self.memory.desc(), self.owner.clone())
    }

    /// The length in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.memory.len()
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.memory.region().address()
    }

    /// Copies bytes out, of host memory.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let offset = convert::unsigned(offset, "the offset")?;
        let size = convert::unsigned(size, "the size")?;
        // Checked before so many bytes are asked for.
        self.memory.region().piece(offset, size).or_raise()?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        PyBytes::new_with(py, size, |into| self.memory.read_at(offset, into).or_raise())
    }

    /// Copies bytes in, of host memory.
    fn write_at(&self, offset: &Bound<'_, PyAny>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.memory.write_at(convert::unsigned(offset, "the offset")?, data.as_bytes()).or_raise()
    }

    /// Ends the registration, after the transfers that use the memory. One that takes longer than `timeout` seconds (None:
    /// without a bound) is a `MoriError`, and the memory stays registered.
    #[pyo3(signature = (timeout = None))]
    fn deregister(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout: Timeout = convert::seconds(timeout, "timeout")?;
        deregister(py, &*self.owner()?, self.memory.clone(), timeout)
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __repr__(&self) -> String {
        format!("<Memory {}: {} bytes at {:#x}>", self.memory.id(), self.memory.len(), self.address())
    }
}
