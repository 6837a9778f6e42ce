//! Which devices serve which memory, and why.

use std::fmt;

use super::Topology;
use super::filter::NameFilter;
use super::gid::{ChosenGid, GidRule};
use super::pci::{Distance, PciAddress};
use super::sysfs::{NetworkDevice, NetworkPort, natural};
use crate::verbs::PortState;

/// What may be chosen.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Which devices and ports.
    pub names: NameFilter,
    /// Which of a port's addresses.
    pub gid: GidRule,
}

/// What the devices are to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// Memory anywhere.
    Anywhere,
    /// Memory of a PCI device such as a GPU.
    Device(PciAddress),
    /// The host's memory on this NUMA node.
    Node(u32),
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("any memory"),
            Self::Device(address) => write!(f, "the memory of device {address}"),
            Self::Node(node) => write!(f, "the memory of NUMA node {node}"),
        }
    }
}

/// A port that can be used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// The address to use.
    pub gid: ChosenGid,
    /// The rail: the place of this port among all that can be used, ordered by their places on the PCI buses. Machines of
    /// one make and the same rules have the same rails, and the fabric joins equal ones by the shortest way.
    pub rail: u32,
    /// How far it is from what it is to serve.
    pub distance: Distance,
    /// The NUMA distance between the two, as the kernel counts: 10 is none.
    pub node_distance: Option<u32>,
    /// Its nominal rate in Gbit/s.
    pub gigabits: Option<f64>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}, rail {}, {}", self.device, self.port, self.rail, self.distance)?;
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        if let Some(distance) = self.node_distance {
            write!(f, " at distance {distance}")?;
        }
        if let Some(gigabits) = self.gigabits {
            write!(f, ", {gigabits} Gbit/s")?;
        }
        write!(f, ", {}", self.gid)
    }
}

/// A port that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The device's name.
    pub device: String,
    /// The port's number; `None` for a device without ports.
    pub port: Option<u8>,
    /// Why.
    pub reason: String,
}

/// The ports that serve some memory, the best first, and those that do not, with the reasons. Printed, it is a line each.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// What they are to serve.
    pub near: Near,
    /// The ports that can be used, the best first.
    pub candidates: Vec<Candidate>,
    /// Those that cannot.
    pub rejected: Vec<Rejected>,
    /// Names in the filter that no device has.
    pub unknown: Vec<String>,
}

impl Choice {
    /// The best port, if one can be used.
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The ports that are as near as the best one and as fast: those worth spreading a transfer over.
    #[must_use]
    pub fn equals(&self) -> &[Candidate] {
        let Some(best) = self.best() else { return &[] };
        let same = |other: &&Candidate| {
            (other.distance, other.node_distance, other.gigabits)
                == (best.distance, best.node_distance, best.gigabits)
        };
        let count = self.candidates.iter().take_while(same).count();
        self.candidates.get(..count).unwrap_or_default()
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "RDMA ports for {}:", self.near)?;
        if self.candidates.is_empty() {
            writeln!(f, "  none can be used")?;
        }
        for (at, candidate) in self.candidates.iter().enumerate() {
            writeln!(f, "  {}. {candidate}", at + 1)?;
        }
        for Rejected { device, port, reason } in &self.rejected {
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            writeln!(f, "  not {device}{port}: {reason}")?;
        }
        for name in &self.unknown {
            writeln!(f, "  no device is called `{name}`, as the filter has it")?;
        }
        Ok(())
    }
}

/// Chooses among the devices of a machine.
pub(super) fn choose(topology: &Topology, rules: &Rules, near: Near, ordinal: u32) -> Choice {
    let (mut candidates, rejected) = usable(topology, rules);
    let target = Target::find(topology, near);
    for (candidate, device) in &mut candidates {
        (candidate.distance, candidate.node_distance) = target.distance(topology, device);
    }
    let mut candidates: Vec<Candidate> = candidates.into_iter().map(|(candidate, _)| candidate).collect();
    candidates.sort_by(|one, other| {
        let unknown = u32::MAX;
        let near = |of: &Candidate| (of.distance, of.node_distance.unwrap_or(unknown));
        let rate = |of: &Candidate| of.gigabits.unwrap_or(0.0);
        near(one).cmp(&near(other)).then(rate(other).total_cmp(&rate(one))).then(one.rail.cmp(&other.rail))
    });
    let ports = topology.devices.iter();
    let ports = ports.flat_map(|device| device.ports.iter().map(|port| (device.name.as_str(), port.number)));
    let unknown = rules.names.unknown(ports);
    let mut choice = Choice { near, candidates, rejected, unknown };
    let equals = choice.equals().len();
    if let Some(turn) = (ordinal as usize).checked_rem(equals)
        && let Some(equals) = choice.candidates.get_mut(..equals)
    {
        // Neighbours that are as near to the same ports begin with different ones.
        equals.rotate_left(turn);
    }
    choice
}

/// The ports that can be used with their rails, and those that cannot.
fn usable<'a>(topology: &'a Topology, rules: &Rules) -> (Vec<(Candidate, &'a NetworkDevice)>, Vec<Rejected>) {
    let mut rejected = Vec::new();
    let mut candidates = Vec::new();
    for device in &topology.devices {
        let reject = |port, reason| Rejected { device: device.name.clone(), port, reason };
        if device.ports.is_empty() {
            rejected.push(reject(None, "the kernel shows no port of it".to_owned()));
        }
        for port in &device.ports {
            match judge(device, port, rules) {
                Ok(gid) => candidates.push((candidate(device, port, gid), device)),
                Err(reason) => rejected.push(reject(Some(port.number), reason)),
            }
        }
    }
    candidates.sort_by_cached_key(|(candidate, device)| {
        let place = device.pci.as_ref().and_then(|path| path.address());
        (place.is_none(), place, natural(&candidate.device), candidate.port)
    });
    for (rail, (candidate, _)) in (0..).zip(&mut candidates) {
        candidate.rail = rail;
    }
    (candidates, rejected)
}

/// The address to use on a port, or why it cannot be used.
fn judge(device: &NetworkDevice, port: &NetworkPort, rules: &Rules) -> Result<ChosenGid, String> {
    rules.names.passes(&device.name, port.number)?;
    if port.state != PortState::Active {
        return Err(format!("its link is not active but {}", port.state));
    }
    rules.gid.choose(port.link_layer, &port.gids).map_err(|none| none.to_string())
}

fn candidate(device: &NetworkDevice, port: &NetworkPort, gid: ChosenGid) -> Candidate {
    Candidate {
        device: device.name.clone(),
        port: port.number,
        gid,
        rail: 0,
        distance: Distance::Unknown,
        node_distance: None,
        gigabits: port.gigabits,
        numa_node: device.numa_node,
    }
}

/// Where the memory is that is to be served.
struct Target {
    path: Option<super::PciPath>,
    node: Option<u32>,
}

impl Target {
    fn find(topology: &Topology, near: Near) -> Self {
        match near {
            Near::Anywhere => Self { path: None, node: None },
            Near::Node(node) => Self { path: None, node: Some(node) },
            Near::Device(address) => match topology.pci_device(address) {
                Some((path, node)) => Self { path: Some(path), node },
                None => Self { path: None, node: None },
            },
        }
    }

    /// How far the device is from it, by the buses and by the NUMA nodes.
    fn distance(&self, topology: &Topology, device: &NetworkDevice) -> (Distance, Option<u32>) {
        let nodes = self.node.zip(device.numa_node);
        let apart = nodes.and_then(|(from, to)| topology.node_distance(from, to));
        let by_node = match nodes {
            Some((from, to)) if from == to => Distance::Node,
            Some(_) => Distance::System,
            None => Distance::Unknown,
        };
        let distance = match (&self.path, &device.pci) {
            (Some(from), Some(to)) => match from.distance(to) {
                // The buses do not join them; the nodes may tell more.
                Distance::System if by_node != Distance::Unknown => by_node,
                by_bus => by_bus,
            },
            _ => by_node,
        };
        (distance, apart)
    }
}

/// Pairs the ports of two machines by their rails: equal rails with each other; what is left over on this side in turn with those
/// of the other side. Returns positions in the two lists, one pair for each port of this side, in its order; none if the
/// other side has none.
///
/// ```
/// use mori_rdma::topology::pair_rails;
/// assert_eq!(pair_rails(&[0, 1, 2], &[2, 0]), [(0, 1), (1, 0), (2, 0)]);
/// assert!(pair_rails(&[0], &[]).is_empty());
/// ```
#[must_use]
pub fn pair_rails(local: &[u32], remote: &[u32]) -> Vec<(usize, usize)> {
    let mut turn = 0;
    let mut pairs = Vec::new();
    for (at, rail) in local.iter().enumerate() {
        match remote.iter().position(|other| other == rail) {
            Some(same) => pairs.push((at, same)),
            None if remote.is_empty() => {}
            None => {
                pairs.push((at, turn % remote.len()));
                turn += 1;
            }
        }
    }
    pairs
}
