//! Trees of files as kernels make them, the unusual ones included.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::verbs::{GidKind, LinkLayer, PortState};

/// A tree like `/sys`.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, to: &Path) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// A PCI device at the end of a path below `devices`, on a NUMA node.
    fn pci(&self, path: &str, node: i32) {
        let folder = format!("devices/{path}");
        self.write(&format!("{folder}/numa_node"), &format!("{node}\n"));
        let address = path.rsplit('/').next().unwrap();
        self.link(&format!("bus/pci/devices/{address}"), &self.path(&folder));
    }

    /// An RDMA device below the device at `path`, or a virtual one.
    fn rdma(&self, name: &str, path: Option<&str>) {
        let folder = match path {
            Some(path) => format!("devices/{path}/infiniband/{name}"),
            None => format!("devices/virtual/infiniband/{name}"),
        };
        self.write(&format!("{folder}/fw_ver"), "16.35.2000\n");
        if let Some(path) = path {
            self.link(&format!("{folder}/device"), &self.path(&format!("devices/{path}")));
        }
        self.link(&format!("class/infiniband/{name}"), &self.path(&folder));
    }

    /// A port with these GIDs, each of v1 and v2.
    fn port(&self, device: &str, port: u8, state: &str, rate: &str, interface: &str, gids: &[&str]) {
        let folder = format!("class/infiniband/{device}/ports/{port}");
        self.write(&format!("{folder}/state"), &format!("{state}\n"));
        self.write(&format!("{folder}/rate"), &format!("{rate}\n"));
        self.write(&format!("{folder}/link_layer"), "Ethernet\n");
        for (at, gid) in gids.iter().enumerate() {
            for (index, kind) in [(at * 2, "IB/RoCE v1"), (at * 2 + 1, "RoCE v2")] {
                self.write(&format!("{folder}/gids/{index}"), &format!("{gid}\n"));
                self.write(&format!("{folder}/gid_attrs/types/{index}"), &format!("{kind}\n"));
                self.write(&format!("{folder}/gid_attrs/ndevs/{index}"), &format!("{interface}\n"));
            }
        }
        // The rest of the table: an address of zeros without a type, as the kernel shows it.
        self.write(&format!("{folder}/gids/{}", gids.len() * 2), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }

    fn read(&self) -> Topology {
        Topology::read(self.0.path())
    }
}

const UP: &str = "4: ACTIVE";
const FAST: &str = "400 Gb/sec (4X NDR)";
const LOCAL: &str = "fe80:0000:0000:0000:0204:00ff:fe00:0001";
const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a08:0001";

/// Two sockets; on each a switch with a card and a GPU, and on the first a further card of its own root port.
fn server() -> Tree {
    let tree = Tree::new();
    for (bus, node) in [("40", 0), ("c0", 1)] {
        let switch = format!("pci0000:{bus}/0000:{bus}:01.0/0000:{bus}:02.0");
        tree.pci(&format!("{switch}/0000:{bus}:03.0/0000:{bus}:04.0"), node);
        tree.pci(&format!("{switch}/0000:{bus}:05.0/0000:{bus}:06.0"), node);
    }
    tree.pci("pci0000:40/0000:40:11.0/0000:40:12.0", 0);
    tree.rdma("mlx5_0", Some("pci0000:40/0000:40:01.0/0000:40:02.0/0000:40:03.0/0000:40:04.0"));
    tree.rdma("mlx5_10", Some("pci0000:c0/0000:c0:01.0/0000:c0:02.0/0000:c0:03.0/0000:c0:04.0"));
    tree.rdma("mlx5_2", Some("pci0000:40/0000:40:11.0/0000:40:12.0"));
    for device in ["mlx5_0", "mlx5_10", "mlx5_2"] {
        tree.port(device, 1, UP, FAST, "eth0", &[LOCAL, IPV4]);
    }
    tree.write("class/net/eth0/ifindex", "7\n");
    for (node, distances) in [(0, "10 21"), (1, "21 10")] {
        tree.write(&format!("devices/system/node/node{node}/distance"), distances);
    }
    tree
}

fn names(choice: &Choice) -> Vec<&str> {
    choice.candidates.iter().map(|candidate| candidate.device.as_str()).collect()
}

fn gpu(address: &str) -> Near {
    Near::Device(address.parse().unwrap())
}

#[test]
fn a_machine_without_rdma_has_no_devices() {
    let topology = Topology::read("/no such folder");
    assert!(topology.devices().is_empty());
    let text = topology.choose(&Rules::default(), Near::Anywhere, 0).to_string();
    assert_eq!(text, "RDMA ports for any memory:\n  none can be used\n");
}

#[test]
fn devices_and_ports_are_read_as_the_kernel_shows_them() {
    let tree = server();
    let topology = tree.read();
    let listed: Vec<_> = topology.devices().iter().map(|device| device.name.as_str()).collect();
    assert_eq!(listed, ["mlx5_0", "mlx5_2", "mlx5_10"]);
    let device = topology.device("mlx5_10").unwrap();
    assert_eq!((device.numa_node, device.is_virtual, device.is_virtual_function), (Some(1), false, false));
    assert_eq!(device.firmware.as_deref(), Some("16.35.2000"));
    assert_eq!(device.pci.as_ref().unwrap().address().unwrap().to_string(), "0000:c0:04.0");
    let port = &device.ports[0];
    assert_eq!((port.number, port.state, port.link_layer), (1, PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.gigabits, port.interface.as_deref()), (Some(400.0), Some("eth0")));
    let kinds: Vec<_> = port.gids.iter().map(|gid| (gid.index, gid.kind, gid.interface)).collect();
    let (v1, v2) = (GidKind::RoceV1, GidKind::RoceV2);
    assert_eq!(kinds, [(0, v1, 7), (1, v2, 7), (2, v1, 7), (3, v2, 7)]);
}

#[test]
fn a_gpu_gets_the_card_of_its_own_switch_first() {
    let tree = server();
    let topology = tree.read();
    let choice = topology.choose(&Rules::default(), gpu("0000:40:06.0"), 0);
    assert_eq!(names(&choice), ["mlx5_0", "mlx5_2", "mlx5_10"]);
    let distances: Vec<_> = choice.candidates.iter().map(|candidate| candidate.distance).collect();
    assert_eq!(distances, [Distance::OneSwitch, Distance::HostBridge, Distance::System]);
    assert_eq!(choice.best().unwrap().gid.entry.index, 3);
    assert_eq!(choice.candidates[2].node_distance, Some(21));
    let choice = topology.choose(&Rules::default(), gpu("C0:06.0"), 0);
    assert_eq!(names(&choice), ["mlx5_10", "mlx5_0", "mlx5_2"]);
}

#[test]
fn host_memory_gets_the_cards_of_its_node_and_neighbours_share_them() {
    let tree = server();
    let topology = tree.read();
    let order = |near, ordinal| {
        let choice = topology.choose(&Rules::default(), near, ordinal);
        names(&choice).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(order(Near::Node(0), 0), ["mlx5_0", "mlx5_2", "mlx5_10"]);
    assert_eq!(order(Near::Node(0), 1), ["mlx5_2", "mlx5_0", "mlx5_10"]);
    assert_eq!(order(Near::Node(0), 2), ["mlx5_0", "mlx5_2", "mlx5_10"]);
    assert_eq!(order(Near::Node(1), 1), ["mlx5_10", "mlx5_0", "mlx5_2"]);
    assert_eq!(order(Near::Node(9), 0), ["mlx5_0", "mlx5_2", "mlx5_10"], "an unknown node knows no better");
    assert_eq!(order(Near::Anywhere, 2), ["mlx5_10", "mlx5_0", "mlx5_2"]);
    assert_eq!(topology.choose(&Rules::default(), Near::Node(0), 0).equals().len(), 2);
}

#[test]
fn rails_follow_the_buses_whatever_the_names_and_whatever_is_near() {
    let tree = server();
    let topology = tree.read();
    for near in [Near::Anywhere, Near::Node(1), gpu("0000:c0:06.0")] {
        let mut rails: Vec<_> = topology
            .choose(&Rules::default(), near, 1)
            .candidates
            .iter()
            .map(|candidate| (candidate.rail, candidate.device.clone()))
            .collect();
        rails.sort();
        let expected = [(0, "mlx5_0"), (1, "mlx5_2"), (2, "mlx5_10")];
        assert_eq!(rails, expected.map(|(rail, name)| (rail, name.to_owned())));
    }
}

#[test]
fn the_faster_of_two_equally_near_ones_comes_first() {
    let tree = server();
    tree.port("mlx5_0", 1, UP, "100 Gb/sec (4X EDR)", "eth0", &[LOCAL, IPV4]);
    assert_eq!(
        names(&tree.read().choose(&Rules::default(), Near::Node(0), 0)),
        ["mlx5_2", "mlx5_0", "mlx5_10"]
    );
}

#[test]
fn what_cannot_be_used_says_why() {
    let tree = server();
    tree.port("mlx5_0", 1, "1: DOWN", FAST, "eth0", &[LOCAL, IPV4]);
    tree.port("mlx5_2", 2, UP, FAST, "eth1", &[LOCAL]);
    tree.rdma("bare", None);
    let rules = Rules { names: "^mlx5_10,none".parse().unwrap(), ..Rules::default() };
    let choice = tree.read().choose(&rules, Near::Node(0), 0);
    assert_eq!(names(&choice), ["mlx5_2"]);
    let text = choice.to_string();
    for line in [
        "RDMA ports for the memory of NUMA node 0:",
        "  1. mlx5_2:1, rail 0, on the same NUMA node (NODE), NUMA node 0 at distance 10, 400 Gbit/s, GID 3 ::ffff:10.8.0.1",
        "  not mlx5_0:1: its link is not active but down",
        "  not mlx5_2:2: there is no GID that can be used; give the port's network interface an IPv4 address",
        "  not mlx5_10:1: the filter leaves it out by `^mlx5_10`",
        "  not bare: the kernel shows no port of it",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
    let rules = Rules { names: "mlx5_7,mlx5_2:1".parse().unwrap(), ..Rules::default() };
    let choice = tree.read().choose(&rules, Near::Anywhere, 0);
    assert!(choice.to_string().contains("no device is called `mlx5_7`"), "{choice}");
    let asked = GidRule { index: Some(1), ..GidRule::default() };
    let choice = tree.read().choose(&Rules { gid: asked, ..Rules::default() }, Near::Anywhere, 0);
    assert!(choice.candidates.iter().all(|candidate| candidate.gid.entry.gid.is_link_local()), "{choice}");
}

#[test]
fn a_virtual_device_is_where_the_interface_below_it_is() {
    let tree = server();
    tree.pci("pci0000:c0/0000:c0:1a.0", 1);
    tree.rdma("rxe0", None);
    tree.port("rxe0", 1, UP, "2.5 Gb/sec (1X SDR)", "vlan7", &[IPV4]);
    // A VLAN on a bond on a card.
    tree.link("class/net/vlan7/lower_bond0", &tree.path("class/net/bond0"));
    tree.link("class/net/bond0/lower_eth5", &tree.path("class/net/eth5"));
    tree.link("class/net/eth5/device", &tree.path("devices/pci0000:c0/0000:c0:1a.0"));
    let topology = tree.read();
    let device = topology.device("rxe0").unwrap();
    assert!(device.is_virtual && !device.is_virtual_function);
    assert_eq!((device.numa_node, device.ports[0].gigabits), (Some(1), Some(2.5)));
    assert_eq!(device.pci.as_ref().unwrap().address().unwrap().to_string(), "0000:c0:1a.0");
    let choice = topology.choose(&Rules::default(), gpu("0000:c0:06.0"), 0);
    assert_eq!(names(&choice)[..2], ["mlx5_10", "rxe0"]);
}

#[test]
fn a_virtual_device_on_nothing_is_usable_and_last() {
    let tree = server();
    tree.rdma("rxe0", None);
    tree.port("rxe0", 1, UP, "2.5 Gb/sec (1X SDR)", "veth0", &[IPV4]);
    // Interfaces that lie below each other in a ring end the search.
    tree.link("class/net/veth0/lower_veth0", &tree.path("class/net/veth0"));
    let topology = tree.read();
    let device = topology.device("rxe0").unwrap();
    assert_eq!((device.pci.as_ref(), device.numa_node), (None, None));
    let choice = topology.choose(&Rules::default(), gpu("0000:40:06.0"), 0);
    let last = choice.candidates.last().unwrap();
    assert_eq!((last.device.as_str(), last.distance, last.rail), ("rxe0", Distance::Unknown, 3));
    assert_eq!(names(&topology.choose(&Rules::default(), gpu("0000:77:00.0"), 0)).len(), 4);
}

#[test]
fn a_virtual_function_is_on_its_cards_node() {
    let tree = server();
    tree.pci("pci0000:c0/0000:c0:1b.0/0000:c0:1c.0", 1);
    tree.pci("pci0000:c0/0000:c0:1b.0/0000:c0:1c.1", -1);
    let function = "devices/pci0000:c0/0000:c0:1b.0/0000:c0:1c.1";
    tree.link(&format!("{function}/physfn"), &tree.path("devices/pci0000:c0/0000:c0:1b.0/0000:c0:1c.0"));
    tree.rdma("mlx5_vf", Some("pci0000:c0/0000:c0:1b.0/0000:c0:1c.1"));
    tree.port("mlx5_vf", 1, UP, FAST, "eth9", &[IPV4]);
    let topology = tree.read();
    let device = topology.device("mlx5_vf").unwrap();
    assert!(device.is_virtual_function && !device.is_virtual);
    assert_eq!(device.numa_node, Some(1));
    // In a virtual machine neither the function nor its card says, but a bridge above may.
    fs::remove_file(tree.path(&format!("{function}/physfn"))).unwrap();
    assert_eq!(tree.read().device("mlx5_vf").unwrap().numa_node, None);
    tree.write("devices/pci0000:c0/0000:c0:1b.0/numa_node", "1\n");
    assert_eq!(tree.read().device("mlx5_vf").unwrap().numa_node, Some(1));
}

#[test]
fn each_port_of_a_card_is_a_choice_of_its_own() {
    let tree = server();
    tree.port("mlx5_0", 2, UP, FAST, "eth1", &[LOCAL, IPV4]);
    let topology = tree.read();
    let choice = topology.choose(&Rules::default(), gpu("0000:40:06.0"), 0);
    let ports: Vec<_> = choice.candidates.iter().map(|of| (of.device.as_str(), of.port, of.rail)).collect();
    assert_eq!(ports, [("mlx5_0", 1, 0), ("mlx5_0", 2, 1), ("mlx5_2", 1, 2), ("mlx5_10", 1, 3)]);
    assert_eq!(choice.equals().len(), 2);
    let rules = Rules { names: "mlx5_0:2".parse().unwrap(), ..Rules::default() };
    let choice = topology.choose(&rules, Near::Anywhere, 5);
    assert_eq!((choice.candidates.len(), choice.best().unwrap().port), (1, 2));
}

#[test]
fn infiniband_ports_use_their_own_gid() {
    let tree = Tree::new();
    tree.pci("pci0000:40/0000:40:12.0", -1);
    tree.rdma("mlx5_0", Some("pci0000:40/0000:40:12.0"));
    tree.port("mlx5_0", 1, UP, "200 Gb/sec (4X HDR)", "", &[LOCAL]);
    tree.write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    let choice = tree.read().choose(&Rules::default(), Near::Node(0), 0);
    let best = choice.best().unwrap();
    assert_eq!((best.gid.entry.index, best.gid.entry.kind), (0, GidKind::InfiniBand));
    assert_eq!((best.distance, best.numa_node), (Distance::Unknown, None));
}

#[test]
fn nonsense_in_the_tree_is_left_out() {
    let tree = server();
    tree.write("class/infiniband/mlx5_0/ports/1/state", "");
    tree.write("class/infiniband/mlx5_0/ports/x/state", UP);
    tree.write("class/infiniband/mlx5_2/ports/1/gids/3", "nonsense");
    tree.write("class/infiniband/mlx5_2/ports/1/rate", "fast");
    tree.write("class/infiniband/mlx5_2/ports/1/gid_attrs/ndevs/0", "../../../etc");
    tree.write("class/infiniband/stray", "a file");
    let topology = tree.read();
    assert_eq!(topology.device("mlx5_0").unwrap().ports.len(), 1);
    let port = &topology.device("mlx5_2").unwrap().ports[0];
    assert_eq!((port.gids.len(), port.gigabits), (3, None));
    let choice = topology.choose(&Rules::default(), Near::Anywhere, 0);
    assert_eq!(names(&choice), ["mlx5_10", "mlx5_2"]);
    assert_eq!(choice.candidates[1].gid.entry.index, 2);
}

#[test]
fn nodes_with_gaps_are_found_by_their_numbers() {
    let tree = Tree::new();
    for (node, distances) in [(0, "10 40"), (8, "40 10")] {
        tree.write(&format!("devices/system/node/node{node}/distance"), distances);
    }
    let topology = tree.read();
    assert_eq!(topology.node_distance(0, 8), Some(40));
    assert_eq!(topology.node_distance(8, 8), Some(10));
    assert_eq!(topology.node_distance(0, 1), None);
    assert_eq!(topology.node_distance(1, 0), None);
}

#[test]
fn rails_are_paired_and_the_rest_is_spread() {
    assert_eq!(pair_rails(&[0, 1, 2, 3], &[3, 2, 1, 0]), [(0, 3), (1, 2), (2, 1), (3, 0)]);
    assert_eq!(pair_rails(&[0, 5, 6, 7], &[0, 1]), [(0, 0), (1, 0), (2, 1), (3, 0)]);
    assert_eq!(pair_rails(&[], &[1]), []);
}
