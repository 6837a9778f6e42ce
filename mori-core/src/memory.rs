//! Registered memory: what it is, who may touch it, and for how long it stays.
//!
//! A [`Region`] is a range of memory that transfers read from and write to. It is the only module of this crate with
//! `unsafe` code, because memory that a peer may write to at any time cannot be a plain Rust slice: bytes are copied in and
//! out through raw pointers, and a copy that overlaps a transfer may see some old and some new bytes, never
//! anything else.
//!
//! Every transfer holds a [`Pin`] on the regions that it touches on its own side. A region is closed only when no pin is
//! left, so that memory is never pulled from under a transfer (contract E3). Peers that copy by themselves hold no pin; the
//! backend that let them in stands for them as a [`Tenant`].

mod tenant;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::id::RegionId;
use crate::sync::{Condvar, Mutex, mutant};
use crate::time::{Clock, Deadline, Sleeper, Timeout};
pub use tenant::Tenant;

/// Where memory is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the host's memory, on a NUMA node if that is known.
    Host {
        /// The NUMA node.
        numa_node: Option<u32>,
    },
    /// On a device (GPU).
    Device {
        /// The device's ordinal in this process.
        device_id: u32,
        /// Its PCI bus id, as in `0000:c1:00.0`; empty if unknown.
        bus_id: String,
    },
}

impl Location {
    /// Host memory on whatever node.
    pub const HOST: Self = Self::Host { numa_node: None };

    /// Whether the host's processor can address the bytes.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self, Self::Host { .. })
    }
}

/// What peers may do with a region. The engine's own transfers may always read and write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write it.
    pub remote_write: bool,
}

impl Access {
    /// Peers may read and write.
    pub const READ_WRITE: Self = Self { remote_read: true, remote_write: true };
    /// Peers may read.
    pub const READ_ONLY: Self = Self { remote_read: true, remote_write: false };
    /// Peers may write.
    pub const WRITE_ONLY: Self = Self { remote_read: false, remote_write: true };
    /// For this engine's own transfers only.
    pub const LOCAL: Self = Self { remote_read: false, remote_write: false };
}

/// A range of memory that transfers use; a handle, clones are handles to the same region.
///
/// ```
/// use mori_core::{Access, Region};
/// let region = Region::zeroed(4096, Access::READ_WRITE)?;
/// region.write_at(100, b"block")?;
/// let mut back = [0; 5];
/// region.read_at(100, &mut back)?;
/// assert_eq!(&back, b"block");
/// assert!(region.read_at(4092, &mut back).is_err());
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    id: RegionId,
    /// Kept as a number with exposed provenance: the pointer is made where it is used.
    address: usize,
    length: usize,
    location: Location,
    access: Access,
    pins: Mutex<Pins>,
    quiet: Condvar,
    /// Owns the memory, if the region does.
    _keeper: Option<Box<dyn Any + Send + Sync>>,
}

#[derive(Default)]
struct Pins {
    count: u64,
    closed: bool,
    /// Who uses the region without pins.
    tenants: Vec<Weak<dyn Tenant>>,
    /// How often a tenant has been added.
    lettings: u64,
    /// Calls that are closing the region and have told the tenants so.
    closers: usize,
}

/// Keeps a region open while it lives.
#[derive(Debug)]
pub struct Pin(Region);

impl Pin {
    /// The region that is pinned.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.0.0.pins.lock();
        pins.count -= 1;
        if pins.count == 0 {
            self.0.0.quiet.notify_all();
        }
    }
}

impl Sleeper for Inner {
    fn look_again(&self) {
        let _pins = self.pins.lock();
        self.quiet.notify_all();
    }
}

impl Region {
    /// `length` bytes of host memory, zero, owned by the region. Pages are taken from the system when they are first
    /// touched.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a length of zero, [`ErrorKind::ResourceExhausted`] if the system has no
    /// such range.
    pub fn zeroed(length: usize, access: Access) -> Result<Self> {
        refuse_empty(length)?;
        let exhausted = || {
            Error::new(
                ErrorKind::ResourceExhausted,
                format!("cannot allocate {length} bytes; ask for less or free some memory"),
            )
        };
        let layout = std::alloc::Layout::from_size_align(length, PAGE).map_err(|_| exhausted())?;
        // SAFETY: the layout's size is not zero, which was refused above.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        if base.is_null() {
            return Err(exhausted());
        }
        let address = base.expose_provenance();
        Ok(Self::assemble(address, length, Location::HOST, access, Some(Box::new(Pages { address, layout }))))
    }

    /// The bytes of a vector, which the region owns from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an empty vector.
    pub fn from_vec(bytes: Vec<u8>, access: Access) -> Result<Self> {
        Self::from_static(Box::leak(bytes.into_boxed_slice()), access).map(|region| {
            let Inner { address, length, .. } = *region.0;
            Self::assemble(
                address,
                length,
                Location::HOST,
                access,
                Some(Box::new(Leaked { address, length })),
            )
        })
    }

    /// Bytes that are lent for as long as the process runs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an empty slice.
    pub fn from_static(bytes: &'static mut [u8], access: Access) -> Result<Self> {
        refuse_empty(bytes.len())?;
        let length = bytes.len();
        Ok(Self::assemble(bytes.as_mut_ptr().expose_provenance(), length, Location::HOST, access, None))
    }

    /// Memory that somebody else owns: an address, on the host or on a device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a length of zero, a null address, or a range that wraps past the end of the
    /// address space.
    ///
    /// # Safety
    ///
    /// Until the region is closed and every handle of it is gone, the range of `length` bytes at `address` is
    /// allocated at `location`, may be read and written, and is not borrowed as a Rust reference while a transfer, a peer or
    /// [`Region::read_at`] and [`Region::write_at`] may touch it.
    pub unsafe fn from_raw(
        address: *mut u8,
        length: usize,
        location: Location,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller's promise is this function's.
        unsafe { Self::from_raw_with_keeper(address, length, location, access, None) }
    }

    /// Like [`Region::from_raw`], with a value that is kept as long as the region lives, for example the owner of
    /// the memory.
    ///
    /// # Errors
    ///
    /// As [`Region::from_raw`].
    ///
    /// # Safety
    ///
    /// As [`Region::from_raw`].
    pub unsafe fn from_raw_with_keeper(
        address: *mut u8,
        length: usize,
        location: Location,
        access: Access,
        keeper: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        refuse_empty(length)?;
        let address = address.expose_provenance();
        if address == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "the address is null"));
        }
        if address.checked_add(length - 1).is_none() || isize::try_from(length).is_err() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{length} bytes at {address:#x} reach past the end of the address space"),
            ));
        }
        Ok(Self::assemble(address, length, location, access, keeper))
    }

    fn assemble(
        address: usize,
        length: usize,
        location: Location,
        access: Access,
        keeper: Option<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            id: RegionId::fresh(),
            address,
            length,
            location,
            access,
            pins: Mutex::new(Pins::default()),
            quiet: Condvar::new(),
            _keeper: keeper,
        }))
    }

    /// The region's number, unique in this process and never reused.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.0.id
    }

    /// The address of its first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.address
    }

    /// Its length in bytes, never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Where it is.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// What peers may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The address of the piece of `length` bytes at `offset`, checked against the region's end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the piece is not wholly inside.
    #[inline]
    pub fn piece(&self, offset: u64, length: u64) -> Result<usize> {
        match usize::try_from(offset) {
            Ok(start) if offset.checked_add(length).is_some_and(|end| end <= self.0.length as u64) => {
                Ok(self.0.address + start)
            }
            _ => Err(out_of_range(offset, length, self.0.length as u64)),
        }
    }

    /// Copies bytes out. While a transfer writes to the same bytes, the copy may hold old and new ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] past the end, [`ErrorKind::Unsupported`] on a device's memory.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.host_piece(offset, into.len())?;
        // SAFETY: `from` is the start of `into.len()` bytes inside the region, which is allocated host memory as long as
        // this handle lives; `into` is a Rust slice of the caller's, which a region never overlaps.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::with_exposed_provenance::<u8>(from),
                into.as_mut_ptr(),
                into.len(),
            );
        }
        Ok(())
    }

    /// Copies bytes in. A transfer that reads the same bytes meanwhile may carry old and new ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] past the end, [`ErrorKind::Unsupported`] on a device's memory.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let into = self.host_piece(offset, from.len())?;
        // SAFETY: as in `read_at`, the other way round.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                std::ptr::with_exposed_provenance_mut::<u8>(into),
                from.len(),
            );
        }
        Ok(())
    }

    fn host_piece(&self, offset: u64, length: usize) -> Result<usize> {
        if !self.0.location.is_host() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the region is a device's memory, which the host cannot copy by itself; use the device's runtime",
            ));
        }
        self.piece(offset, length as u64)
    }

    /// Keeps the region open for a transfer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the region is closed.
    pub fn pin(&self) -> Result<Pin> {
        let early = if mutant("pin_checks_before_lock") { Some(self.is_closed()) } else { None };
        let mut pins = self.0.pins.lock();
        if early.unwrap_or(pins.closed) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("region {} is deregistered; register the memory again", self.0.id),
            ));
        }
        pins.count += 1;
        Ok(Pin(self.clone()))
    }

    /// How many transfers hold the region open.
    #[must_use]
    pub fn pins(&self) -> u64 {
        self.0.pins.lock().count
    }

    /// Whether the region is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.pins.lock().closed
    }

    /// Waits until no transfer holds the region, and closes it in the same step: no pin is given out any more (contract E3).
    /// Until then it stays as it is; only peers that copy by themselves wait meanwhile. Closing twice is fine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] if the time runs out first; the region is then open as before.
    pub fn close(&self, timeout: impl Into<Timeout>, clock: &Clock) -> Result<()> {
        let deadline = match timeout.into() {
            Timeout::Unbounded => Deadline::Never,
            Timeout::Poll => Deadline::At(clock.now()),
            Timeout::Within(bound) => clock.deadline(bound),
        };
        clock.enroll(|| {
            let weak: Weak<Inner> = Arc::downgrade(&self.0);
            weak
        });
        self.close_by(deadline, clock)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.0.id)
            .field("address", &format_args!("{:#x}", self.0.address))
            .field("length", &self.0.length)
            .field("location", &self.0.location)
            .field("access", &self.0.access)
            .finish_non_exhaustive()
    }
}

/// Regions that own their memory start at a page, which is what devices like.
const PAGE: usize = 4096;

struct Pages {
    address: usize,
    layout: std::alloc::Layout,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `Region::zeroed` with this layout, given back once, when the last handle and so
        // the last pin is gone.
        unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(self.address), self.layout) };
    }
}

struct Leaked {
    address: usize,
    length: usize,
}

impl Drop for Leaked {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(
            std::ptr::with_exposed_provenance_mut::<u8>(self.address),
            self.length,
        );
        // SAFETY: leaked from a box of this length in `Region::from_vec`, taken back once, when the last handle is gone.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

fn refuse_empty(length: usize) -> Result<()> {
    if length == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a region of zero bytes cannot be registered"));
    }
    Ok(())
}

/// The error for a piece that is not wholly inside a region.
#[must_use]
pub(crate) fn out_of_range(offset: u64, length: u64, region: u64) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("out of range: {length} bytes at offset {offset} of a region of {region} bytes"),
    )
}

#[cfg(all(test, not(mori_loom)))]
mod tests {
    use super::*;
    use crate::time::ManualClock;
    use std::time::Duration;

    #[test]
    fn pieces_at_beyond_and_wrapping_past_the_end() {
        let region = Region::zeroed(100, Access::READ_WRITE).unwrap();
        assert_eq!(region.piece(0, 100).unwrap(), region.address());
        assert_eq!(region.piece(100, 0).unwrap(), region.address() + 100);
        for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 2), (2, u64::MAX), (u64::MAX, 0)] {
            let error = region.piece(offset, length).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{offset} {length}");
        }
    }

    #[test]
    fn a_vector_comes_back_byte_for_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        let region = Region::from_vec(bytes.clone(), Access::LOCAL).unwrap();
        let mut back = vec![0; 256];
        region.read_at(0, &mut back).unwrap();
        assert_eq!(back, bytes);
        assert_eq!(region.len(), 256);
    }

    #[test]
    fn empty_null_and_wrapping_ranges_are_refused() {
        assert_eq!(Region::zeroed(0, Access::LOCAL).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            Region::from_vec(Vec::new(), Access::LOCAL).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            Region::zeroed(usize::MAX / 2, Access::LOCAL).unwrap_err().kind(),
            ErrorKind::ResourceExhausted
        );
        for (address, length) in [(0_usize, 1_usize), (usize::MAX, 2), (4096, usize::MAX), (4096, 0)] {
            let pointer = std::ptr::without_provenance_mut(address);
            // SAFETY: each of these is refused before anything is touched.
            let made = unsafe { Region::from_raw(pointer, length, Location::HOST, Access::LOCAL) };
            assert_eq!(made.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    /// E3: closing waits for the pins, is refused as busy when the time runs out, and leaves the region open then.
    #[test]
    fn close_waits_for_pins_or_is_refused_as_busy() {
        let manual = ManualClock::new();
        let region = Region::zeroed(8, Access::LOCAL).unwrap();
        let pin = region.pin().unwrap();
        let refused = region.close(Timeout::Poll, &manual.clock()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let second = region.pin().unwrap();
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| region.close(Duration::from_secs(5), &manual.clock()));
            drop(pin);
            manual.advance(Duration::from_secs(4));
            drop(second);
            closer.join().unwrap().unwrap();
        });
        assert_eq!(region.pin().unwrap_err().kind(), ErrorKind::NotFound);
        region.close(Timeout::Poll, &manual.clock()).unwrap();
    }
}
