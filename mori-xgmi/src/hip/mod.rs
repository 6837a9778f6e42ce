//! The HIP runtime behind a safe interface: the only module of this crate with `unsafe` code, and the only one that names
//! the library.
//!
//! # Protocol
//!
//! 1. The library is opened at run time and never unmapped again; every value below holds the table of its functions.
//! 2. The runtime keeps a current device for each thread. A [`Current`] makes one current and puts back what was there
//!    when it is dropped, on every path; calls that depend on it take one.
//! 3. Streams, events, mappings and allocations are values that give back what they stand for when they are dropped. A
//!    call that gives something back and fails is tried once more and then logged.
//! 4. Addresses are numbers. A [`Span`] stands for bytes that somebody keeps alive: a pinned region or a mapping.
//!    Whoever queues a copy keeps both until the copy is over.

mod callback;
mod loader;
mod memory;
mod result;
mod stream;
mod sys;

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use callback::Landings;
pub(crate) use memory::{Mapping, Span};
use mori_core::{Error, ErrorKind, Result};
pub(crate) use result::Failure;
pub(crate) use stream::{Event, Stream};
use sys::Api;

/// A handle of an allocation for other processes on this node.
pub(crate) type Handle = [u8; 64];

/// A loaded runtime.
pub(crate) struct Hip {
    api: Api,
    path: PathBuf,
    devices: Vec<String>,
}

impl Hip {
    /// Loads the runtime, and lists the devices that this process sees.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] without a library, or with one that finds no device; else what the runtime says.
    pub(crate) fn load(only: Option<&Path>) -> Result<Arc<Self>> {
        let (api, path) = loader::load(only)?;
        let mut hip = Self { api, path, devices: Vec::new() };
        hip.devices = hip.list()?;
        Ok(Arc::new(hip))
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut count = 0;
        // SAFETY: the call writes one number through the pointer.
        let code = unsafe { (self.api.hipGetDeviceCount)(&raw mut count) };
        let none = |why: String| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the HIP runtime {} finds no device ({why}); check the driver, the permissions of /dev/kfd, and HIP_VISIBLE_DEVICES",
                    self.path.display()
                ),
            )
        };
        if code == sys::NO_DEVICE || code == sys::INVALID_DEVICE {
            return Err(none(self.api.failure("hipGetDeviceCount", code).to_string()));
        }
        self.api.check("hipGetDeviceCount", code)?;
        if count <= 0 {
            return Err(none("its count is zero".to_owned()));
        }
        (0..count).map(|device| self.ask_bus_id(device)).collect()
    }

    fn ask_bus_id(&self, device: c_int) -> Result<String> {
        const LENGTH: usize = 64;
        let mut text: [c_char; LENGTH] = [0; LENGTH];
        // SAFETY: the call writes at most as many bytes as it is told.
        let code = unsafe { (self.api.hipDeviceGetPCIBusId)(text.as_mut_ptr(), LENGTH as c_int, device) };
        self.api.check("hipDeviceGetPCIBusId", code)?;
        let bytes: Vec<u8> =
            text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte.cast_unsigned()).collect();
        Ok(normalise_bus_id(&String::from_utf8_lossy(&bytes)))
    }

    /// The library's file, as it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The runtime's version, as one number.
    pub(crate) fn version(&self) -> Result<i32, Failure> {
        let mut version = 0;
        // SAFETY: the call writes one number through the pointer.
        let code = unsafe { (self.api.hipRuntimeGetVersion)(&raw mut version) };
        self.api.check("hipRuntimeGetVersion", code)?;
        Ok(version)
    }

    /// Whether the library simulates its devices.
    pub(crate) fn is_simulated(&self) -> bool {
        self.api.simulated
    }

    /// Which newer functions the library has.
    pub(crate) fn optional(&self) -> Vec<(&'static str, bool)> {
        self.api.optional()
    }

    /// The bus ids of the devices that this process sees, in the order of their numbers.
    pub(crate) fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Whether `device` can address the memory of `peer`.
    pub(crate) fn can_access(&self, device: u32, peer: u32) -> Result<bool, Failure> {
        if device == peer {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the call writes one number through the pointer.
        let code = unsafe { (self.api.hipDeviceCanAccessPeer)(&raw mut can, ordinal(device), ordinal(peer)) };
        self.api.check("hipDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Lets the current device address the memory of `peer`. Doing so twice is fine.
    pub(crate) fn enable_peer(&self, current: &Current<'_>, peer: u32) -> Result<(), Failure> {
        if current.device == peer {
            return Ok(());
        }
        // SAFETY: the call takes two numbers.
        let code = unsafe { (self.api.hipDeviceEnablePeerAccess)(ordinal(peer), 0) };
        if code == sys::PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.api.check("hipDeviceEnablePeerAccess", code)
    }

    /// Makes `device` the calling thread's current one for as long as the value lives.
    pub(crate) fn on(&self, device: u32) -> Result<Current<'_>, Failure> {
        let mut before = 0;
        // SAFETY: the call writes one number through the pointer.
        let code = unsafe { (self.api.hipGetDevice)(&raw mut before) };
        self.api.check("hipGetDevice", code)?;
        let wanted = ordinal(device);
        if before != wanted {
            // SAFETY: the call takes a number.
            let code = unsafe { (self.api.hipSetDevice)(wanted) };
            self.api.check("hipSetDevice", code)?;
        }
        Ok(Current { hip: self, device, before, _thread: std::marker::PhantomData })
    }

    /// Gives something back: tries `call` once more if it fails, and logs if it fails again.
    fn give_back(&self, name: &'static str, call: impl Fn() -> sys::Code) {
        if call() == sys::SUCCESS {
            return;
        }
        let code = call();
        if code != sys::SUCCESS {
            let failure = self.api.failure(name, code);
            tracing::warn!(%failure, "something of the HIP runtime's could not be given back");
        }
    }
}

impl std::fmt::Debug for Hip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hip")
            .field("path", &self.path)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

/// A device's number as the library takes it. Numbers beyond its range are none of its devices, and refused by it.
fn ordinal(device: u32) -> c_int {
    c_int::try_from(device).unwrap_or(c_int::MAX)
}

/// A device that is the calling thread's current one; dropping it makes the one of before current again.
pub(crate) struct Current<'a> {
    hip: &'a Hip,
    device: u32,
    before: c_int,
    /// The current device belongs to the thread, so the value does not leave it.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Current<'_> {
    /// The device.
    pub(crate) fn device(&self) -> u32 {
        self.device
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.before != ordinal(self.device) {
            // SAFETY: the call takes a number.
            self.hip.give_back("hipSetDevice", || unsafe { (self.hip.api.hipSetDevice)(self.before) });
        }
    }
}

/// A PCI bus id in the one form that is compared: lower case, with a domain of four digits and a function, as in
/// `0000:c1:00.0`. What does not look like one is left as it is, in lower case.
pub(crate) fn normalise_bus_id(text: &str) -> String {
    let lower = text.trim().to_ascii_lowercase();
    let (address, function) = lower.split_once('.').unwrap_or((&lower, "0"));
    let parts: Vec<&str> = address.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (domain, bus, device),
        [bus, device] => ("0", bus, device),
        _ => return lower,
    };
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    match (number(domain), number(bus), number(device), number(function)) {
        (Some(domain), Some(bus), Some(device), Some(function)) => {
            format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_have_one_form() {
        for text in ["0000:C1:00.0", "c1:00.0", "00000000:c1:00.0", " 0:c1:0 ", "0000:c1:00"] {
            assert_eq!(normalise_bus_id(text), "0000:c1:00.0", "{text}");
        }
        assert_eq!(normalise_bus_id("1a2b:0A:1f.7"), "1a2b:0a:1f.7");
        for text in ["", "GPU", "a:b:c:d", "x:y.z"] {
            assert_eq!(normalise_bus_id(text), text.to_lowercase());
        }
    }
}
