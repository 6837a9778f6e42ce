//! The members of the enums that Python code compares with `is`.
//!
//! The enums are defined in Python (`mori/_enums.py`), because only there are members singletons that can be pickled. This
//! module looks them up once, and turns numbers into members and members into numbers.

use mori_engine::{MemoryKind, StatusCode};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// One enum: its class, and its members by their numbers.
struct Table {
    class: Py<PyType>,
    members: Vec<Option<Py<PyAny>>>,
}

impl Table {
    fn load(py: Python<'_>, name: &str) -> PyResult<Self> {
        let class = py.import("mori._enums")?.getattr(name)?.cast_into::<PyType>()?;
        let mut members: Vec<Option<Py<PyAny>>> = Vec::new();
        for member in class.try_iter()? {
            let member = member?;
            let number: usize = member.getattr("value")?.extract()?;
            if members.len() <= number {
                members.resize_with(number + 1, || None);
            }
            if let Some(place) = members.get_mut(number) {
                *place = Some(member.unbind());
            }
        }
        Ok(Self { class: class.unbind(), members })
    }

    fn member(&self, py: Python<'_>, number: u32) -> PyResult<Py<PyAny>> {
        match self.members.get(number as usize).and_then(Option::as_ref) {
            Some(member) => Ok(member.clone_ref(py)),
            // A number of a later version: the enum answers with its own error.
            None => Ok(self.class.bind(py).call1((number,))?.unbind()),
        }
    }

    fn number(&self, member: &Bound<'_, PyAny>, what: &str) -> PyResult<u32> {
        let class = self.class.bind(member.py());
        if !member.is_instance(class)? {
            return Err(PyTypeError::new_err(format!(
                "{what} must be a {}, not {}",
                class.name()?,
                member.get_type().name()?
            )));
        }
        member.getattr("value")?.extract()
    }
}

macro_rules! table {
    ($function:ident, $name:literal) => {
        fn $function(py: Python<'_>) -> PyResult<&'static Table> {
            static TABLE: PyOnceLock<Table> = PyOnceLock::new();
            TABLE.get_or_try_init(py, || Table::load(py, $name))
        }
    };
}

table!(status_codes, "StatusCode");
table!(backend_types, "BackendType");
table!(locations, "MemoryLocationType");
table!(poll_modes, "PollCqMode");
table!(failure_reasons, "PeerFailureReason");

/// The member for a code.
pub(crate) fn status_code(py: Python<'_>, code: StatusCode) -> PyResult<Py<PyAny>> {
    status_codes(py)?.member(py, code.number())
}

/// The number of a `StatusCode`.
pub(crate) fn status_number(member: &Bound<'_, PyAny>) -> PyResult<u32> {
    status_codes(member.py())?.number(member, "code")
}

/// The types of backends that callers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendType {
    Xgmi,
    Rdma,
    Tcp,
    Fabric,
}

impl BackendType {
    pub(crate) fn extract(member: &Bound<'_, PyAny>) -> PyResult<Self> {
        match backend_types(member.py())?.number(member, "the backend's type")? {
            1 => Ok(Self::Xgmi),
            2 => Ok(Self::Rdma),
            3 => Ok(Self::Tcp),
            4 => Ok(Self::Fabric),
            _ => Err(pyo3::exceptions::PyValueError::new_err(
                "BackendType.Unknown is no backend; give XGMI, RDMA, TCP or FABRIC",
            )),
        }
    }

    /// The name in Python.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xgmi => "XGMI",
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
            Self::Fabric => "FABRIC",
        }
    }
}

/// The `MemoryLocationType` for a kind of memory.
pub(crate) fn location(py: Python<'_>, kind: MemoryKind) -> PyResult<Py<PyAny>> {
    locations(py)?.member(py, u32::from(kind.number()))
}

/// The kind of memory of a `MemoryLocationType`.
pub(crate) fn memory_kind(member: &Bound<'_, PyAny>) -> PyResult<MemoryKind> {
    let number = locations(member.py())?.number(member, "the memory's location")?;
    Ok(MemoryKind::from_number(u64::from(number)))
}

/// The `PollCqMode` of this number.
pub(crate) fn poll_mode(py: Python<'_>, number: u32) -> PyResult<Py<PyAny>> {
    poll_modes(py)?.member(py, number)
}

/// The number of a `PollCqMode`.
pub(crate) fn poll_mode_number(member: &Bound<'_, PyAny>) -> PyResult<u32> {
    poll_modes(member.py())?.number(member, "poll_cq_mode")
}

/// The `PeerFailureReason` of this number.
pub(crate) fn failure_reason(py: Python<'_>, number: u32) -> PyResult<Py<PyAny>> {
    failure_reasons(py)?.member(py, number)
}
