//! Places on the PCI buses, and how far two of them are from each other.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use mori_core::{Error, ErrorKind};

/// A device's address on the PCI buses, as in `0000:c1:00.0`.
///
/// ```
/// use mori_rdma::topology::PciAddress;
/// let gpu: PciAddress = "C1:00.0".parse()?;
/// assert_eq!(gpu.to_string(), "0000:c1:00.0");
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// The domain. Virtual machines and multi-socket machines have more than one.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The function of the device.
    pub function: u8,
}

impl PciAddress {
    fn parse(text: &str) -> Option<Self> {
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let hex = |text: &str, most: u32| {
            let digits = (1..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(text, 16).ok().filter(|number| digits && *number <= most)
        };
        let byte = |text: &str, most: u32| u8::try_from(hex(text, most)?).ok();
        Some(Self {
            domain: hex(domain, u32::MAX)?,
            bus: byte(bus, 0xff)?,
            device: byte(device, 0x1f)?,
            function: byte(function, 7)?,
        })
    }

    /// Whether both are functions of one card.
    #[must_use]
    pub fn same_card(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text.trim()).ok_or_else(|| {
            let message = format!("`{text}` is no PCI address; write it as in `0000:c1:00.0`");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// The way from a host bridge through bridges and switches to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPath {
    /// The host bridge, as the kernel names it: `pci0000:80`. Empty if the kernel does not show it.
    pub root: String,
    /// The bridges and, last, the device itself.
    pub steps: Vec<PciAddress>,
}

impl PciPath {
    /// Reads it from a device's folder below `devices`, with its links resolved; `None` if no PCI device is on it.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let mut path = Self { root: String::new(), steps: Vec::new() };
        for part in folder.components() {
            let part = part.as_os_str().to_string_lossy();
            if let Some(address) = PciAddress::parse(&part) {
                path.steps.push(address);
            } else if part.starts_with("pci") && part.contains(':') {
                // What lies behind a bridge with buses of its own (a volume manager's, say) starts anew.
                path = Self { root: part.into_owned(), steps: Vec::new() };
            }
        }
        (!path.steps.is_empty()).then_some(path)
    }

    /// The device at the path's end.
    #[must_use]
    pub fn address(&self) -> Option<PciAddress> {
        self.steps.last().copied()
    }

    /// How far two devices are from each other, as far as the buses tell: [`Distance::System`] if only the processors join them.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        if let (Some(one), Some(another)) = (self.address(), other.address())
            && one.same_card(another)
        {
            return Distance::SameCard;
        }
        if self.root != other.root || self.root.is_empty() {
            return Distance::System;
        }
        let shared = self.steps.iter().zip(&other.steps).take_while(|(one, another)| one == another).count();
        if shared == 0 {
            return Distance::HostBridge;
        }
        // Below one switch each path goes on through a port of it to its device.
        match self.steps.len().max(other.steps.len()) - shared {
            0..=2 => Distance::OneSwitch,
            _ => Distance::Switches,
        }
    }
}

/// How far a network device is from what it is to serve, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Distance {
    /// On one card.
    SameCard,
    /// Below one PCI switch.
    OneSwitch,
    /// Below several PCI switches, without a host bridge between them.
    Switches,
    /// Below one host bridge.
    HostBridge,
    /// On one NUMA node.
    Node,
    /// On another NUMA node.
    System,
    /// The machine does not tell, as for a virtual device.
    Unknown,
}

impl Distance {
    /// The short name that tools for GPUs print.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::SameCard => "CARD",
            Self::OneSwitch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::SameCard => "on the same card",
            Self::OneSwitch => "below the same PCI switch",
            Self::Switches => "several PCI switches away",
            Self::HostBridge => "below the same host bridge",
            Self::Node => "on the same NUMA node",
            Self::System => "on another NUMA node",
            Self::Unknown => "at an unknown distance",
        };
        write!(f, "{words} ({})", self.short())
    }
}

/// The NUMA node of a PCI device, by its folder with links resolved: its own, else that of the function whose part it is
/// (SR-IOV), else that of the bridges above it.
pub(super) fn numa_node(folder: &Path) -> Option<u32> {
    let node = |folder: &Path| fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse::<u32>().ok();
    let physical = || node(&folder.join("physfn"));
    node(folder).or_else(physical).or_else(|| folder.ancestors().skip(1).find_map(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PciPath {
        PciPath::of(Path::new(text)).unwrap()
    }

    #[test]
    fn addresses_are_read_in_every_usual_form() {
        let address = PciAddress { domain: 0, bus: 0xc1, device: 0x1f, function: 7 };
        for text in ["0000:c1:1f.7", "C1:1F.7", " 00000000:c1:1f.7\n"] {
            assert_eq!(text.parse::<PciAddress>().unwrap(), address, "{text}");
        }
        assert_eq!("10000:e1:00.0".parse::<PciAddress>().unwrap().to_string(), "10000:e1:00.0");
        for wrong in
            ["", "c1", "c1:00", "0000:c1:20.0", "0000:c1:00.8", "x:c1:00.0", "0:+1:00.0", "a:b:c:d.0"]
        {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_way_starts_at_the_last_host_bridge() {
        let plain = path("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_0");
        assert_eq!((plain.root.as_str(), plain.steps.len()), ("pci0000:80", 2));
        let behind = path("/sys/devices/pci0000:80/0000:80:05.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0");
        assert_eq!(behind.root, "pci10000:e0");
        assert_eq!(behind.address().unwrap().to_string(), "10000:e1:00.0");
        assert_eq!(PciPath::of(Path::new("/sys/devices/virtual/infiniband/rxe0")), None);
        // As behind a hypervisor's bus.
        let hyper = path(
            "/sys/devices/LNXSYSTM:00/PNP0A03:00/device:07/VMBUS:01/47505500-0001/pci0001:00/0001:00:00.0",
        );
        assert_eq!(hyper.root, "pci0001:00");
    }

    #[test]
    fn distance_grows_with_what_lies_between() {
        let nic = path("/d/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0");
        let cases = [
            ("/d/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.1", Distance::SameCard),
            ("/d/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:04.0/0000:84:00.0", Distance::OneSwitch),
            (
                "/d/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:04.0/0000:84:00.0/0000:85:01.0/0000:86:00.0",
                Distance::Switches,
            ),
            ("/d/pci0000:80/0000:80:03.0/0000:90:00.0", Distance::HostBridge),
            ("/d/pci0000:c0/0000:c0:01.0/0000:c1:00.0", Distance::System),
        ];
        for (other, distance) in cases {
            assert_eq!(nic.distance(&path(other)), distance, "{other}");
            assert_eq!(path(other).distance(&nic), distance, "{other}");
        }
        assert_eq!(nic.distance(&nic), Distance::SameCard);
        let rootless = path("/d/other/0000:84:00.0");
        assert_eq!(rootless.distance(&path("/d/other/0000:85:00.0")), Distance::System);
    }
}
