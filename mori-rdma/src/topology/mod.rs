//! Which RDMA devices a machine has, where they are, and which of them serves what.
//!
//! Everything here reads the kernel's tree of devices (`/sys`, or another tree for tests) and opens no device. What the kernel
//! does not show is unknown and never an error. Nothing waits, and every function may be called from any thread.
//!
//! A [`Topology`] is what was read; [`Topology::choose`] ranks the ports for some memory by these rules, in this order:
//!
//! 1. A port can be used if the [`NameFilter`] lets it pass, its link is active, and the [`GidRule`] finds an address.
//! 2. The nearer one comes first: by PCI for a GPU's memory, by NUMA node for the host's.
//! 3. The faster one comes first.
//! 4. Among equals the order is that of the rails, begun at another one for every GPU, so that they share the ports.
//!
//! The [`Choice`] prints itself with the reasons:
//!
//! ```
//! use mori_rdma::topology::{Near, Rules, Topology};
//! let topology = Topology::read("/sys");
//! let choice = topology.choose(&Rules::default(), Near::Anywhere, 0);
//! println!("{choice}");
//! ```

mod choice;
mod filter;
mod gid;
mod pci;
mod sysfs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use choice::{Candidate, Choice, Near, Rejected, Rules, pair_rails};
pub use filter::NameFilter;
pub use gid::{ChosenGid, GidRule, NoGid};
pub use pci::{Distance, PciAddress, PciPath};
pub use sysfs::{NetworkDevice, NetworkPort};

/// A machine's RDMA devices at the moment when they were read.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    sysfs: PathBuf,
    devices: Vec<NetworkDevice>,
}

impl Topology {
    /// Reads the tree below `sysfs`, which is `/sys` but for tests. A machine without RDMA has no devices.
    #[must_use]
    pub fn read(sysfs: impl Into<PathBuf>) -> Self {
        let sysfs = sysfs.into();
        Self { devices: sysfs::devices(&sysfs), sysfs }
    }

    /// The root of the tree that it was read from.
    #[must_use]
    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// The devices, in the order of their names.
    #[must_use]
    pub fn devices(&self) -> &[NetworkDevice] {
        &self.devices
    }

    /// The device of that name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&NetworkDevice> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Where a PCI device is, and its NUMA node if that is known; read from the tree now.
    #[must_use]
    pub fn pci_device(&self, address: PciAddress) -> Option<(PciPath, Option<u32>)> {
        sysfs::pci_device(&self.sysfs, address)
    }

    /// What the kernel takes for the distance between two NUMA nodes, 10 being none; read from the tree now.
    #[must_use]
    pub fn node_distance(&self, from: u32, to: u32) -> Option<u32> {
        sysfs::node_distance(&self.sysfs, from, to)
    }

    /// Ranks the ports for some memory. `ordinal` is the number of the GPU, or of whatever else shares the ports with its like;
    /// equally good ports begin with another one for each.
    #[must_use]
    pub fn choose(&self, rules: &Rules, near: Near, ordinal: u32) -> Choice {
        choice::choose(self, rules, near, ordinal)
    }
}
