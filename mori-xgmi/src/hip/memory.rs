//! Device memory: ranges, allocations, and mappings of other processes' allocations.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use mori_core::{Access, Error, ErrorKind, Location, Region, Result};

use super::result::Failure;
use super::{Current, Handle, Hip, sys};

/// A range of device memory that this process can address, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    address: usize,
    length: usize,
}

impl Span {
    /// The whole of a region, which must be on a device; the caller pins it for as long as the span is used.
    pub(crate) fn of(region: &Region) -> Self {
        Self { address: region.address(), length: region.len() }
    }

    /// How many bytes there are.
    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// A part of it, if it is wholly inside.
    pub(crate) fn part(self, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 {
            return None;
        }
        Some(Self {
            address: self.address.checked_add(usize::try_from(offset).ok()?)?,
            length: usize::try_from(length).ok()?,
        })
    }

    pub(super) fn pointer(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.address)
    }
}

/// An allocation on a device of this process; freed when it is dropped.
pub(crate) struct Allocation {
    hip: Arc<Hip>,
    device: u32,
    address: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Ok(_current) = self.hip.on(self.device).or_else(|_| self.hip.on(self.device)) else { return };
        // SAFETY: the allocation is this value's, and nobody uses it any more.
        self.hip.give_back("hipFree", || unsafe {
            (self.hip.api.hipFree)(ptr::with_exposed_provenance_mut(self.address))
        });
    }
}

/// Another process's allocation, mapped here; unmapped when it is dropped.
pub(crate) struct Mapping {
    hip: Arc<Hip>,
    device: u32,
    span: Span,
}

impl Mapping {
    /// The allocation's bytes.
    pub(crate) fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(_current) = self.hip.on(self.device).or_else(|_| self.hip.on(self.device)) else { return };
        // SAFETY: the mapping is this value's, and nobody uses it any more.
        self.hip.give_back("hipIpcCloseMemHandle", || unsafe {
            (self.hip.api.hipIpcCloseMemHandle)(self.span.pointer())
        });
    }
}

impl Hip {
    /// The start and the length of the allocation that `address` lies in.
    pub(crate) fn allocation_of(&self, address: usize) -> Result<(usize, u64), Failure> {
        let mut base: *mut c_void = ptr::null_mut();
        let mut length = 0;
        // SAFETY: the call writes one pointer and one number, and looks the address up without touching it.
        let code = unsafe {
            (self.api.hipMemGetAddressRange)(
                &raw mut base,
                &raw mut length,
                ptr::with_exposed_provenance_mut(address),
            )
        };
        self.api.check("hipMemGetAddressRange", code)?;
        Ok((base.expose_provenance(), length as u64))
    }

    /// The handle of the allocation that starts at `base`, for other processes.
    pub(crate) fn export(&self, _current: &Current<'_>, base: usize) -> Result<Handle, Failure> {
        let mut handle = sys::IpcHandle { bytes: [0; 64] };
        // SAFETY: the call writes a handle, and looks the address up without touching it.
        let code =
            unsafe { (self.api.hipIpcGetMemHandle)(&raw mut handle, ptr::with_exposed_provenance_mut(base)) };
        self.api.check("hipIpcGetMemHandle", code)?;
        Ok(handle.bytes.map(i8::cast_unsigned))
    }

    /// Maps another process's allocation of `length` bytes for the current device.
    pub(crate) fn import(
        self: &Arc<Self>,
        current: &Current<'_>,
        handle: Handle,
        length: u64,
    ) -> Result<Mapping, Error> {
        let length = usize::try_from(length).map_err(|_| {
            Error::new(ErrorKind::Malformed, "the allocation's length does not fit this machine")
        })?;
        let handle = sys::IpcHandle { bytes: handle.map(u8::cast_signed) };
        let mut base: *mut c_void = ptr::null_mut();
        // SAFETY: the handle is passed by value, and the call writes one pointer. A handle that is none is refused by
        // the library.
        let code = unsafe {
            (self.api.hipIpcOpenMemHandle)(&raw mut base, handle, sys::IPC_LAZY_ENABLE_PEER_ACCESS)
        };
        self.api.check("hipIpcOpenMemHandle", code)?;
        let span = Span { address: base.expose_provenance(), length };
        Ok(Mapping { hip: Arc::clone(self), device: current.device(), span })
    }

    /// A region of `length` bytes of a device's memory; the last handle of the region frees it.
    pub(crate) fn allocate(self: &Arc<Self>, device: u32, length: usize, access: Access) -> Result<Region> {
        let bus_id = self.devices().get(device as usize).cloned().unwrap_or_default();
        let current = self.on(device)?;
        let mut base: *mut c_void = ptr::null_mut();
        // SAFETY: the call writes one pointer through the pointer.
        let code = unsafe { (self.api.hipMalloc)(&raw mut base, length) };
        self.api.check("hipMalloc", code)?;
        drop(current);
        let allocation = Allocation { hip: Arc::clone(self), device, address: base.expose_provenance() };
        let location = Location::Device { device_id: device, bus_id };
        // SAFETY: the allocation has this length, is on this device, is borrowed by nobody, and lives as long as the region.
        unsafe {
            Region::from_raw_with_keeper(base.cast(), length, location, access, Some(Box::new(allocation)))
        }
    }

    /// A part of a device's region as a region of its own, which keeps the whole.
    pub(crate) fn view(whole: &Region, offset: u64, length: u64, access: Access) -> Result<Region> {
        let address = ptr::with_exposed_provenance_mut::<u8>(whole.piece(offset, length)?);
        let length = usize::try_from(length)
            .map_err(|_| Error::new(ErrorKind::InvalidArgument, "the length does not fit this machine"))?;
        // SAFETY: the range is inside the whole, which the keeper keeps allocated.
        unsafe {
            Region::from_raw_with_keeper(
                address,
                length,
                whole.location().clone(),
                access,
                Some(Box::new(whole.clone())),
            )
        }
    }

    /// Copies bytes to the device and waits for it.
    pub(crate) fn upload(&self, _current: &Current<'_>, to: Span, bytes: &[u8]) -> Result<(), Failure> {
        let length = to.length().min(bytes.len());
        // SAFETY: the span's bytes are device memory that the caller keeps; the slice is as long as it says.
        let code =
            unsafe { (self.api.hipMemcpy)(to.pointer(), bytes.as_ptr().cast(), length, sys::HOST_TO_DEVICE) };
        self.api.check("hipMemcpy", code)
    }

    /// Copies bytes from the device and waits for it.
    pub(crate) fn download(
        &self,
        _current: &Current<'_>,
        from: Span,
        bytes: &mut [u8],
    ) -> Result<(), Failure> {
        let length = from.length().min(bytes.len());
        // SAFETY: as in `upload`, the other way round.
        let code = unsafe {
            (self.api.hipMemcpy)(bytes.as_mut_ptr().cast(), from.pointer(), length, sys::DEVICE_TO_HOST)
        };
        self.api.check("hipMemcpy", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside() {
        let whole = Span { address: 1000, length: 100 };
        assert_eq!(whole.part(10, 20), Some(Span { address: 1010, length: 20 }));
        assert_eq!(whole.part(100, 0), Some(Span { address: 1100, length: 0 }));
        for (offset, length) in [(0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(whole.part(offset, length), None);
        }
    }
}
