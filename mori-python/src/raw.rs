//! Registering memory by its address: the only `unsafe` code of this crate.

use mori_engine::{Access, Engine, Error, ErrorKind, Location, Memory};
use pyo3::{Py, PyAny};

/// Registers `size` bytes at `address`, and keeps `keeper` (the object that owns them) as long as they are registered or a
/// transfer uses them.
///
/// What Python promises by giving an address is what the package's documentation asks for: the bytes stay allocated until they
/// are deregistered or the engine is gone, and whoever else uses them meanwhile expects that peers write to them. With a
/// keeper the first half is kept here.
pub(crate) fn register(
    engine: &Engine,
    address: u64,
    size: u64,
    location: Location,
    access: Access,
    keeper: Option<Py<PyAny>>,
) -> Result<Memory, Error> {
    let too_large = || Error::new(ErrorKind::InvalidArgument, "the address space of this machine is smaller");
    let start = usize::try_from(address).map_err(|_| too_large())?;
    let length = usize::try_from(size).map_err(|_| too_large())?;
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
    match keeper {
        // SAFETY: the caller of Python's `register_memory` promises that the bytes stay where they are; nobody in this
        // process has them as a Rust reference, because they are Python's.
        None => unsafe { engine.register_raw(start, length, location, access) },
        // SAFETY: as above, and the keeper owns the bytes as long as the memory is used.
        Some(keeper) => unsafe {
            engine.register_raw_with_keeper(start, length, location, access, Box::new(keeper))
        },
    }
}
