//! The runtime for applications that have no bindings of their own: devices, memory on them, bytes in and out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mori_core::{Access, Error, ErrorKind, Location, Region, Result};

use crate::hip::{Hip, Span};

/// A device that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Its number in this process.
    pub id: u32,
    /// Its PCI bus id, as in `0000:c1:00.0`.
    pub bus_id: String,
    /// The numbers of the devices whose memory it can address, its own among them.
    pub peers: Vec<u32>,
}

/// The loaded HIP runtime; a handle, clones are handles to the same one.
///
/// Applications that allocate device memory by other means need it not: they make a region with
/// [`Region::from_raw`] and a [`Location::Device`].
///
/// ```
/// use mori_core::Access;
/// use mori_xgmi::Runtime;
/// match Runtime::load(None) {
///     Ok(runtime) => {
///         let region = runtime.allocate(0, 4096, Access::READ_WRITE)?;
///         runtime.upload(&region, 100, b"block")?;
///     }
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Hip>);

impl Runtime {
    /// Loads the runtime: `library`, if it is given; else what the environment's `MORI_HIP_LIBRARY` names, else
    /// `libamdhip64.so`, `.so.7`, `.so.6`, `.so.5`, the first that is there and complete. The library stays loaded until the
    /// process ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] with what was tried, or if the runtime finds no device.
    pub fn load(library: Option<&Path>) -> Result<Self> {
        Hip::load(library).map(Self)
    }

    /// The library, as it was found.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// The runtime's version, as one number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] if the runtime does not say.
    pub fn version(&self) -> Result<i32> {
        Ok(self.0.version()?)
    }

    /// Whether the library is the project's simulation for tests, whose devices are no GPUs. Say so wherever you show what
    /// was measured.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.0.is_simulated()
    }

    /// Functions of later releases, with whether this library has them. Without one the backend takes another way.
    #[must_use]
    pub fn optional_functions(&self) -> Vec<(&'static str, bool)> {
        self.0.optional()
    }

    /// The devices that this process sees.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] if the runtime does not say which of them reach each other.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let bus_ids = self.0.devices();
        let numbers = || (0..).zip(bus_ids).map(|(id, _)| id);
        let device = |(id, bus_id): (u32, &String)| {
            let mut peers = Vec::new();
            for peer in numbers() {
                if self.0.can_access(id, peer)? {
                    peers.push(peer);
                }
            }
            Ok(Device { id, bus_id: bus_id.clone(), peers })
        };
        (0..).zip(bus_ids).map(device).collect()
    }

    /// `length` bytes of a device's memory, not initialised. The region owns them: its last handle frees them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for no bytes or no such device, [`ErrorKind::ResourceExhausted`] when the device's memory
    /// is used up.
    pub fn allocate(&self, device: u32, length: usize, access: Access) -> Result<Region> {
        if length == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a region has at least one byte"));
        }
        if device as usize >= self.0.devices().len() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("there is no device {device}; this process sees {}", self.0.devices().len()),
            ));
        }
        self.0.allocate(device, length, access)
    }

    /// A part of a region of device memory as a region of its own. It keeps the whole allocated, but not registered.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a part that has no bytes or is not wholly inside.
    pub fn view(&self, whole: &Region, offset: u64, length: u64, access: Access) -> Result<Region> {
        Hip::view(whole, offset, length, access)
    }

    /// Copies bytes into device memory, and returns when they are there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] past the end or for host memory, [`ErrorKind::Device`] if the runtime fails.
    pub fn upload(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        let (device, span) = part(region, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.0.on(device)?;
        Ok(self.0.upload(&current, span, bytes)?)
    }

    /// Copies bytes out of device memory, and returns when they are there.
    ///
    /// # Errors
    ///
    /// As [`Runtime::upload`].
    pub fn download(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (device, span) = part(region, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let current = self.0.on(device)?;
        Ok(self.0.download(&current, span, bytes)?)
    }
}

/// The device of a region, and a part of its bytes.
fn part(region: &Region, offset: u64, length: usize) -> Result<(u32, Span)> {
    let Location::Device { device_id, .. } = region.location() else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the region is host memory; copy with Region::read_at and Region::write_at",
        ));
    };
    region.piece(offset, length as u64)?;
    let span = Span::of(region).part(offset, length as u64);
    let span =
        span.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the piece is not inside the region"))?;
    Ok((*device_id, span))
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(&self.0).finish()
    }
}
