//! The regions of this engine, as its peers may use them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mori_core::{Error, ErrorKind, Location, Region, RegionId, Result};

use crate::blob::{Key, MemoryBlob, Shared, random_key};
use crate::device::Device;
use crate::lease::Board;
use crate::sync::lock;

/// A registered region.
pub(crate) struct Export {
    pub(crate) region: Region,
    pub(crate) device: Arc<Device>,
    pub(crate) key: Key,
    /// The start of its allocation, if the region counts for the allocation's handle.
    counted: Option<usize>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Exports(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_id: HashMap<RegionId, Arc<Export>>,
    by_key: HashMap<Key, Arc<Export>>,
    /// Handles by the start of the allocation: asked for once, and forgotten with the last region in it, since the
    /// next allocation at that address is another one.
    allocations: HashMap<usize, (Shared, usize)>,
    last: u64,
}

/// The device of a region, or why it has none here.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for host memory, [`ErrorKind::InvalidArgument`] for a device that is not there or has another bus id.
pub(crate) fn device_of<'a>(region: &Region, devices: &'a [Arc<Device>]) -> Result<&'a Arc<Device>> {
    let Location::Device { device_id, bus_id } = region.location() else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the region is host memory; this transport carries device memory only",
        ));
    };
    let device = devices.iter().find(|device| device.id == *device_id).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the region's device {device_id} is none of the {} that this process sees",
                devices.len()
            ),
        )
    })?;
    let claimed = crate::hip::normalise_bus_id(bus_id);
    if !claimed.is_empty() && claimed != device.bus_id {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the region says that device {device_id} is {claimed}, while it is {}", device.bus_id),
        ));
    }
    Ok(device)
}

impl Exports {
    /// Registers a region and says how peers reach it.
    ///
    /// # Errors
    ///
    /// As [`device_of`]; [`ErrorKind::InvalidArgument`] if the region is not wholly inside one allocation of the runtime's.
    pub(crate) fn add(
        &self,
        region: &Region,
        device: &Arc<Device>,
        board: &Board,
        incarnation: Key,
    ) -> Result<MemoryBlob> {
        let (base, length) = device.hip.allocation_of(region.address()).map_err(|failure| {
            Error::from(failure).context("the region's address is none of the device runtime's")
        })?;
        let offset = (region.address() - base.min(region.address())) as u64;
        let inside = base <= region.address() && offset.saturating_add(region.len() as u64) <= length;
        if !inside {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the region reaches past the end of its allocation of {length} bytes at {base:#x}"),
            ));
        }
        let access = region.access();
        let offered = access.remote_read || access.remote_write;
        let shared = if offered { self.handle(device, base, length)? } else { None };
        let key = random_key()?;
        if shared.is_some() {
            board.offer(&key).inspect_err(|_| self.release(base))?;
        }
        let counted = shared.is_some().then_some(base);
        let export = Arc::new(Export { region: region.clone(), device: Arc::clone(device), key, counted });
        let mut tables = lock(&self.0);
        tables.by_key.insert(key, Arc::clone(&export));
        tables.by_id.insert(region.id(), export);
        drop(tables);
        Ok(MemoryBlob {
            incarnation,
            key,
            access,
            device: device.id,
            bus_id: device.bus_id.clone(),
            offset,
            size: region.len() as u64,
            shared,
        })
    }

    /// The handle of an allocation, counted once more. `None` if the runtime gives none for this kind of memory: peers in this
    /// process reach it all the same.
    fn handle(&self, device: &Arc<Device>, base: usize, length: u64) -> Result<Option<Shared>> {
        let counted = |tables: &mut Tables| {
            let (shared, count) = tables.allocations.get_mut(&base)?;
            *count += 1;
            Some(shared.clone())
        };
        if let Some(shared) = counted(&mut lock(&self.0)) {
            return Ok(Some(shared));
        }
        let current = device.hip.on(device.id)?;
        let handle = match device.hip.export(&current, base) {
            Ok(handle) => handle,
            Err(failure) => {
                tracing::warn!(%failure, device = device.id, "memory without a handle: peers in other processes cannot reach it");
                return Ok(None);
            }
        };
        let mut tables = lock(&self.0);
        // Another thread may have been faster.
        if let Some(shared) = counted(&mut tables) {
            return Ok(Some(shared));
        }
        tables.last += 1;
        let shared = Shared { number: tables.last, length, handle };
        tables.allocations.insert(base, (shared.clone(), 1));
        Ok(Some(shared))
    }

    fn release(&self, base: usize) {
        let mut tables = lock(&self.0);
        if let Some((_, count)) = tables.allocations.get_mut(&base) {
            *count -= 1;
            if *count == 0 {
                tables.allocations.remove(&base);
            }
        }
    }

    /// The region of a key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none (any more).
    pub(crate) fn find(&self, key: &Key) -> Result<Arc<Export>> {
        lock(&self.0).by_key.get(key).cloned().ok_or_else(stale)
    }

    /// Forgets a region. Waits for at most `drain` until other processes' copies that use it are over.
    pub(crate) fn remove(&self, id: RegionId, board: &Board, drain: Duration) {
        let export = {
            let mut tables = lock(&self.0);
            let Some(export) = tables.by_id.remove(&id) else { return };
            tables.by_key.remove(&export.key);
            export
        };
        if let Some(base) = export.counted {
            self.release(base);
        }
        if !board.take_back(&export.key, drain) {
            tracing::error!(
                region = %id,
                "another process still uses a deregistered region after {drain:?}; do not free its memory yet"
            );
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&self) {
        let tables = std::mem::take(&mut *lock(&self.0));
        drop(tables);
    }
}

/// The answer to a key that leads nowhere.
pub(crate) fn stale() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the peer has no such region (any more): it was deregistered; get a new descriptor from the peer",
    )
}
