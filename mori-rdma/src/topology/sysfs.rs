//! Reading the kernel's tree of devices.
//!
//! Everything may be missing: old kernels, containers and drivers leave out what they like. What is not there is `None`, or not
//! in the list, and never an error.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::pci::{self, PciPath};
use crate::verbs::{Gid, GidEntry, GidKind, LinkLayer, PortState};

/// An RDMA device as the kernel shows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NetworkDevice {
    /// Its name, as in `mlx5_0`.
    pub name: String,
    /// Its ports, in their order.
    pub ports: Vec<NetworkPort>,
    /// Where it is on the PCI buses; for a virtual device that of the network interface below it, if that is on one.
    pub pci: Option<PciPath>,
    /// Whether it has no PCI device of its own.
    pub is_virtual: bool,
    /// Whether it is a virtual function of a card (SR-IOV).
    pub is_virtual_function: bool,
    /// The NUMA node that it is on.
    pub numa_node: Option<u32>,
    /// The firmware's version.
    pub firmware: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NetworkPort {
    /// Its number, from 1.
    pub number: u8,
    /// How far its link is up.
    pub state: PortState,
    /// What its wire is.
    pub link_layer: LinkLayer,
    /// Its nominal rate in Gbit/s.
    pub gigabits: Option<f64>,
    /// The network interface that it belongs to.
    pub interface: Option<String>,
    /// The lines of its table of GIDs that are in use.
    pub gids: Vec<GidEntry>,
}

/// The names in a folder, sorted as people count (`mlx5_2` before `mlx5_10`).
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_by_cached_key(|name| natural(name));
    names
}

/// A key that sorts names as people count.
pub(super) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        key.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = tail;
    }
    key
}

/// The text of a small file, if it is there and not empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The number at the front of a text like `4: ACTIVE` or `100 Gb/sec (4X EDR)`.
fn leading<T: std::str::FromStr>(text: &str) -> Option<T> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// Every RDMA device below a root like `/sys`.
pub(super) fn devices(sysfs: &Path) -> Vec<NetworkDevice> {
    let class = sysfs.join("class/infiniband");
    names(&class).into_iter().map(|name| device(sysfs, &class.join(&name), name)).collect()
}

fn device(sysfs: &Path, folder: &Path, name: String) -> NetworkDevice {
    let numbers = names(&folder.join("ports")).into_iter().filter_map(|number| number.parse().ok());
    let ports: Vec<NetworkPort> = numbers.map(|number| port(sysfs, folder, number)).collect();
    // The link to the PCI device is missing on virtual ones; what they stand on is then an interface of the machine.
    let own = fs::canonicalize(folder.join("device")).ok().filter(|own| PciPath::of(own).is_some());
    let interface =
        || ports.iter().find_map(|port| port.interface.clone()).or_else(|| text(&folder.join("parent")));
    let below = || interface_folder(sysfs, &interface()?, MOST_LAYERS);
    let place = own.clone().or_else(below);
    NetworkDevice {
        pci: place.as_deref().and_then(PciPath::of),
        is_virtual: own.is_none(),
        is_virtual_function: own.as_deref().is_some_and(|own| own.join("physfn").exists()),
        numa_node: place.as_deref().and_then(pci::numa_node),
        firmware: text(&folder.join("fw_ver")),
        ports,
        name,
    }
}

/// So many interfaces may be stacked, as a VLAN on a bond on a card.
const MOST_LAYERS: u8 = 4;

/// The folder of the PCI device that a network interface is of, or that the lowest interface below it is of.
fn interface_folder(sysfs: &Path, interface: &str, layers: u8) -> Option<PathBuf> {
    // What a file says goes no further up than the folder of interfaces.
    if interface.contains('/') || interface == ".." {
        return None;
    }
    let folder = sysfs.join("class/net").join(interface);
    let own = fs::canonicalize(folder.join("device")).ok().filter(|own| PciPath::of(own).is_some());
    own.or_else(|| {
        let layers = layers.checked_sub(1)?;
        let lower = names(&folder).into_iter();
        let mut lower = lower.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned));
        lower.find_map(|below| interface_folder(sysfs, &below, layers))
    })
}

fn port(sysfs: &Path, device: &Path, number: u8) -> NetworkPort {
    let folder = device.join("ports").join(number.to_string());
    let state = text(&folder.join("state")).and_then(|text| leading(&text));
    let link_layer = match text(&folder.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        Some("InfiniBand") => LinkLayer::InfiniBand,
        _ => LinkLayer::Unspecified,
    };
    let gids: Vec<GidEntry> = names(&folder.join("gids"))
        .into_iter()
        .filter_map(|index| gid(sysfs, &folder, number, index.parse().ok()?, link_layer))
        .collect();
    let interface = names(&folder.join("gid_attrs/ndevs"))
        .into_iter()
        .find_map(|index| text(&folder.join("gid_attrs/ndevs").join(index)));
    NetworkPort {
        number,
        state: state.map_or(PortState::Nop, PortState::from_number),
        link_layer,
        gigabits: text(&folder.join("rate")).and_then(|text| leading(&text)),
        interface,
        gids,
    }
}

fn gid(sysfs: &Path, port: &Path, number: u8, index: u32, link_layer: LinkLayer) -> Option<GidEntry> {
    let name = index.to_string();
    let address: Ipv6Addr = text(&port.join("gids").join(&name))?.parse().ok()?;
    let gid = Gid(address.octets());
    if gid.is_zero() {
        return None;
    }
    let kind = match text(&port.join("gid_attrs/types").join(&name)).as_deref() {
        Some("RoCE v2") => GidKind::RoceV2,
        _ if link_layer == LinkLayer::Ethernet => GidKind::RoceV1,
        _ => GidKind::InfiniBand,
    };
    let interface = text(&port.join("gid_attrs/ndevs").join(&name)).filter(|name| !name.contains('/'));
    let interface = interface.and_then(|name| text(&sysfs.join("class/net").join(name).join("ifindex")));
    let interface = interface.and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(GidEntry { gid, index, port: number, kind, interface })
}

/// The path of the PCI device with this address, and its NUMA node.
pub(super) fn pci_device(sysfs: &Path, address: pci::PciAddress) -> Option<(PciPath, Option<u32>)> {
    let folder = fs::canonicalize(sysfs.join("bus/pci/devices").join(address.to_string())).ok()?;
    Some((PciPath::of(&folder)?, pci::numa_node(&folder)))
}

/// What the kernel takes for the distance between two NUMA nodes; 10 is none.
pub(super) fn node_distance(sysfs: &Path, from: u32, to: u32) -> Option<u32> {
    let nodes = sysfs.join("devices/system/node");
    let line = text(&nodes.join(format!("node{from}/distance")))?;
    // The columns are the nodes that are there, in their order, which need not be without gaps.
    let there = names(&nodes).into_iter();
    let mut there = there.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let column = there.position(|node| node == to)?;
    line.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_as_people_count() {
        let mut names = ["mlx5_10", "mlx5_2", "bnxt_re1", "mlx5_bond_0", "mlx5_2x"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["bnxt_re1", "mlx5_2", "mlx5_2x", "mlx5_10", "mlx5_bond_0"]);
        assert_eq!(natural("99999999999999999999999"), [(String::new(), 0)]);
    }

    #[test]
    fn a_leading_number_is_read() {
        assert_eq!(leading("4: ACTIVE"), Some(4));
        assert_eq!(leading("2.5 Gb/sec (1X SDR)"), Some(2.5));
        assert_eq!(leading::<u32>("ACTIVE"), None);
        assert_eq!(leading::<u32>(""), None);
    }
}
