//! Registering memory by its address, and ending that.

use mori_engine::{Access, ErrorKind, Location, Memory, MemoryKind, Timeout};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::owner::Owner;
use crate::{raw, wait};

/// Where memory of this kind is.
pub(crate) fn located(kind: MemoryKind, device_id: i64) -> PyResult<Location> {
    match kind {
        MemoryKind::Host => Ok(Location::HOST),
        MemoryKind::Device => match u32::try_from(device_id) {
            Ok(device_id) => Ok(Location::Device { device_id, bus_id: String::new() }),
            Err(_) => Err(PyValueError::new_err("GPU memory needs its device's number, from 0 on")),
        },
        _ => Err(PyValueError::new_err("the memory's location must be CPU or GPU")),
    }
}

/// Registers bytes by their address, without holding the interpreter.
pub(crate) fn register(
    py: Python<'_>,
    owner: &Owner,
    address: u64,
    size: u64,
    location: Location,
    access: Access,
    keeper: Option<Py<PyAny>>,
) -> PyResult<Memory> {
    if address == 0 {
        return Err(PyValueError::new_err("the address is null"));
    }
    let engine = owner.engine()?;
    py.detach(|| raw::register(engine, address, size, location, access, keeper)).or_raise()
}

/// Ends a registration, waiting until no transfer uses the memory.
pub(crate) fn deregister(py: Python<'_>, owner: &Owner, memory: Memory, timeout: Timeout) -> PyResult<()> {
    let engine = owner.engine()?.clone();
    // Most memory is quiet, and then there is nothing to wait for.
    match py.detach(|| engine.deregister(&memory, Timeout::Poll)) {
        Err(error) if error.kind() == ErrorKind::Busy && timeout != Timeout::Poll => {
            wait::blocking(py, move || engine.deregister(&memory, timeout))?.or_raise()
        }
        answer => answer.or_raise(),
    }
}
