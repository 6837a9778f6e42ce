//! Descriptors: what engines tell each other about themselves and about their memory.

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Weak;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyType};

use crate::error::OrRaise;
use crate::members;
use crate::owner::Owner;

/// An engine, as its peers know it. `IOEngine.get_engine_desc` gives one, `pack` makes bytes of it, and `unpack` reads them at
/// the peer.
///
/// ```python
/// received = EngineDesc.unpack(engine.get_engine_desc().pack())
/// ```
#[pyclass(frozen, module = "mori.io")]
#[derive(Clone, Debug)]
pub(crate) struct EngineDesc(pub(crate) mori_engine::EngineDesc);

#[pymethods]
impl EngineDesc {
    /// The engine's name.
    #[getter]
    fn key(&self) -> &str {
        self.0.key.as_str()
    }

    /// The node's name; engines on one host share it.
    #[getter]
    fn node_id(&self) -> &str {
        &self.0.node_id
    }

    /// The host's name.
    #[getter]
    fn hostname(&self) -> &str {
        &self.0.hostname
    }

    /// The address that peers connect to.
    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    /// The port that peers connect to; 0 before a backend that listens is created.
    #[getter]
    fn port(&self) -> u16 {
        self.0.port
    }

    /// The process's number.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The names of the transports by which the engine can be reached.
    #[getter]
    fn transports(&self) -> Vec<&str> {
        self.0.transports.iter().map(|blob| blob.transport.as_str()).collect()
    }

    /// The bytes that `unpack` reads.
    fn pack<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.pack())
    }

    /// Reads a packed descriptor. Bytes that are none are a `RuntimeError`.
    #[staticmethod]
    fn unpack(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(mori_engine::EngineDesc::unpack(bytes(data)?.as_bytes()).or_raise()?))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((unpacker(&slf.get_type())?, (slf.get().pack(slf.py()),)))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().0 == self.0)
    }

    fn __hash__(&self) -> u64 {
        digest(&self.0)
    }

    fn __repr__(&self) -> String {
        format!(
            "EngineDesc(key={:?}, node_id={:?}, hostname={:?}, host={:?}, port={}, pid={}, transports={:?})",
            self.key(),
            self.0.node_id,
            self.0.hostname,
            self.0.host,
            self.0.port,
            self.0.pid,
            self.transports()
        )
    }
}

/// A piece of registered memory, as its own engine and peers name it.
///
/// The bytes of `pack` may give access to the memory: hand them only to peers that may have it.
///
/// ```python
/// memory = engine.register_memory(array.ctypes.data, array.nbytes, -1, MemoryLocationType.CPU)
/// received = MemoryDesc.unpack(memory.pack())
/// ```
#[pyclass(frozen, module = "mori.io")]
#[derive(Clone, Debug)]
pub(crate) struct MemoryDesc {
    pub(crate) desc: mori_engine::MemoryDesc,
    /// The engine that registered it, if that was done here: its description grows with its backends.
    owner: Weak<Owner>,
}

impl MemoryDesc {
    pub(crate) fn new(desc: mori_engine::MemoryDesc, owner: Weak<Owner>) -> Self {
        Self { desc, owner }
    }

    /// The description for a transfer; as of now, if it was taken before there was a transport.
    pub(crate) fn remote(&self) -> Cow<'_, mori_engine::MemoryDesc> {
        if self.desc.transports.is_empty() { Cow::Owned(self.fresh()) } else { Cow::Borrowed(&self.desc) }
    }

    /// The description as of now.
    fn fresh(&self) -> mori_engine::MemoryDesc {
        let memory = self.owner.upgrade().and_then(|owner| owner.engine().ok()?.memory(&self.desc));
        memory.map_or_else(|| self.desc.clone(), |memory| memory.desc())
    }
}

#[pymethods]
impl MemoryDesc {
    /// The name of the engine that owns the memory.
    #[getter]
    fn engine_key(&self) -> &str {
        self.desc.engine_key.as_str()
    }

    /// The number of the registration.
    #[getter]
    fn id(&self) -> u64 {
        self.desc.id
    }

    /// The device's ordinal; -1 for none.
    #[getter]
    fn device_id(&self) -> i32 {
        self.desc.device_id
    }

    /// The device's PCI bus id; empty for none.
    #[getter]
    fn device_bus_id(&self) -> &str {
        &self.desc.device_bus_id
    }

    /// The NUMA node; -1 if unknown.
    #[getter]
    fn numa_node(&self) -> i32 {
        self.desc.numa_node
    }

    /// The address of the first byte, in its owner's address space.
    #[getter]
    fn data(&self) -> u64 {
        self.desc.address
    }

    /// The length in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.desc.size
    }

    /// Where it is: a `MemoryLocationType`.
    #[getter]
    fn loc(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        members::location(py, self.desc.kind)
    }

    /// The device runtime's handle for processes of the same node; zeros for none.
    #[getter]
    fn ipc_handle<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.desc.ipc_handle)
    }

    /// The names of the transports that carry it.
    #[getter]
    fn transports(&self) -> Vec<String> {
        self.fresh().transports.into_iter().map(|blob| blob.transport).collect()
    }

    /// The bytes that `unpack` reads.
    fn pack<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.fresh().pack())
    }

    /// Reads a packed descriptor; it is as good as the original, also as the local one. Bytes that are none are a
    /// `RuntimeError`.
    #[staticmethod]
    fn unpack(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::new(mori_engine::MemoryDesc::unpack(bytes(data)?.as_bytes()).or_raise()?, Weak::new()))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((unpacker(&slf.get_type())?, (slf.get().pack(slf.py()),)))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.desc == self.desc || other.fresh() == self.fresh()
        })
    }

    /// Of what stays the same while the description grows.
    fn __hash__(&self) -> u64 {
        digest(&(&self.desc.engine_key, self.desc.id, self.desc.address, self.desc.size))
    }

    fn __repr__(&self) -> String {
        format!(
            "MemoryDesc(engine_key={:?}, id={}, data={:#x}, size={}, device_id={}, transports={:?})",
            self.engine_key(),
            self.desc.id,
            self.desc.address,
            self.desc.size,
            self.desc.device_id,
            self.transports()
        )
    }
}

fn bytes<'a, 'py>(data: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyBytes>> {
    data.cast::<PyBytes>().map_err(|_| {
        let name =
            data.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("a packed descriptor is bytes, not {name}"))
    })
}

fn unpacker<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    class.getattr("unpack")
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
