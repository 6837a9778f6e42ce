//! RDMA: the verbs library, the devices and their ports, and which of them is near what.

use mori_engine::RdmaVerbs;
use mori_engine::rdma_topology::{Near, NetworkDevice, PciAddress, Rules, Topology};

use super::finding::{Finding, Findings};
use super::host::Root;

/// Which PCI classes are GPUs: display controllers and processing accelerators.
const GPU_CLASSES: [&str; 2] = ["0x03", "0x12"];

/// Looks at the verbs library and its devices.
pub fn look(root: &Root) -> Vec<Finding> {
    let mut rdma = Findings::of("rdma");
    let topology = Topology::read(root.path("sys"));
    let verbs = match RdmaVerbs::load(None) {
        Ok(verbs) => verbs,
        Err(error) => {
            rdma.absent(
                "verbs library",
                error.to_string(),
                "on a machine with RDMA devices, install rdma-core (Debian: libibverbs1 ibverbs-providers), or set \
                 MORI_VERBS_LIBRARY",
            );
            devices_without_library(&topology, &mut rdma);
            return rdma.into_list();
        }
    };
    rdma.ok("verbs library", verbs.path().display().to_string());
    let lacking: Vec<&str> =
        verbs.optional_functions().into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
    if !lacking.is_empty() {
        rdma.note("older functions used", format!("it lacks {}", lacking.join(", ")));
    }
    match verbs.devices() {
        Err(error) => {
            rdma.absent("devices", error.to_string(), "look into the kernel's log for messages of ib_uverbs");
        }
        Ok(list) if list.is_empty() => {
            let because = if root.has("sys/class/infiniband_verbs") {
                "the library lists none"
            } else {
                "the kernel has no RDMA support loaded (no /sys/class/infiniband_verbs)"
            };
            rdma.absent(
                "devices",
                because,
                "load the driver of the network card, or `rdma link add` for soft-RoCE; a container needs --device /dev/infiniband",
            );
        }
        Ok(list) => {
            for device in &list {
                opened(root, device, topology.device(device.name()), &mut rdma);
            }
            choices(root, &topology, &mut rdma);
        }
    }
    rdma.into_list()
}

/// What the kernel shows although no library can use it.
fn devices_without_library(topology: &Topology, rdma: &mut Findings) {
    let names: Vec<&str> = topology.devices().iter().map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        rdma.absent(
            "devices",
            "the kernel shows none in /sys/class/infiniband",
            "load the driver of the network card",
        );
    } else {
        rdma.note("devices", format!("the kernel has {}, unused without the library", names.join(", ")));
    }
}

type Device = mori_engine::RdmaDevice;

fn opened(root: &Root, device: &Device, shown: Option<&NetworkDevice>, rdma: &mut Findings) {
    let what = format!("device {}", device.name());
    let context = match device.open() {
        Ok(context) => context,
        Err(error) => {
            let advice = if root.has("dev/infiniband") {
                "let this user open /dev/infiniband/uverbs*"
            } else {
                "there is no /dev/infiniband: a container needs --device /dev/infiniband"
            };
            rdma.absent(what, error.to_string(), advice);
            return;
        }
    };
    let attributes = match context.attributes() {
        Ok(attributes) => attributes,
        Err(error) => {
            rdma.absent(
                what,
                error.to_string(),
                "the device has failed: look into the kernel's log, or reload its driver",
            );
            return;
        }
    };
    rdma.ok(&what, place(shown));
    for number in 1..=attributes.ports {
        port(&context, device.name(), number, shown, rdma);
    }
}

/// Where a device is, in words.
fn place(shown: Option<&NetworkDevice>) -> String {
    let Some(shown) = shown else { return "not shown in /sys".to_owned() };
    let mut words = Vec::new();
    match shown.pci.as_ref().and_then(|path| path.address()) {
        Some(address) => words.push(format!("PCI {address}")),
        None => words.push("no PCI device".to_owned()),
    }
    if shown.is_virtual {
        words.push("a software device".to_owned());
    }
    if shown.is_virtual_function {
        words.push("a virtual function".to_owned());
    }
    if let Some(node) = shown.numa_node {
        words.push(format!("NUMA node {node}"));
    }
    if let Some(firmware) = &shown.firmware {
        words.push(format!("firmware {firmware}"));
    }
    words.join(", ")
}

fn port(
    context: &mori_engine::RdmaContext,
    device: &str,
    number: u8,
    shown: Option<&NetworkDevice>,
    rdma: &mut Findings,
) {
    let what = format!("port {device}:{number}");
    let port = match context.port(number) {
        Ok(port) => port,
        Err(error) => {
            rdma.absent(what, error.to_string(), "look into the kernel's log for messages of its driver");
            return;
        }
    };
    let rate = port.gigabits().map(|rate| format!(", {rate} Gbit/s")).unwrap_or_default();
    let interface =
        shown.and_then(|shown| shown.ports.iter().find(|port| port.number == number)?.interface.clone());
    let interface = interface.map(|name| format!(", interface {name}")).unwrap_or_default();
    let found = format!("{} link {}, MTU {}{rate}{interface}", port.link_layer, port.state, port.active_mtu);
    if port.state.as_str() == "active" {
        rdma.ok(&what, found);
    } else {
        rdma.warn(
            &what,
            found,
            "bring the link up: look at the cable, the switch, and `ip link` or the subnet manager",
        );
    }
    match context.gids(number) {
        Err(error) => rdma.warn(format!("GIDs {device}:{number}"), error.to_string(), ""),
        Ok(gids) => {
            let list: Vec<String> =
                gids.iter().map(|entry| format!("{} {} ({})", entry.index, entry.gid, entry.kind)).collect();
            rdma.note(
                format!("GIDs {device}:{number}"),
                if list.is_empty() {
                    "none; give its interface an address".to_owned()
                } else {
                    list.join("; ")
                },
            );
        }
    }
}

/// Which ports an engine uses, and which are near each NUMA node and GPU.
fn choices(root: &Root, topology: &Topology, rdma: &mut Findings) {
    let rules = Rules::default();
    let choice = topology.choose(&rules, Near::Anywhere, 0);
    for (at, candidate) in (1..).zip(&choice.candidates) {
        rdma.ok(format!("choice {at}"), candidate.to_string());
    }
    for rejected in &choice.rejected {
        let port = rejected.port.map(|port| format!(":{port}")).unwrap_or_default();
        rdma.warn(format!("not chosen {}{port}", rejected.device), &*rejected.reason, "");
    }
    let nodes = root.names("sys/devices/system/node").into_iter();
    let nodes: Vec<u32> = nodes.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    let near = |near| {
        let choice = topology.choose(&rules, near, 0);
        let equals: Vec<String> = choice
            .equals()
            .iter()
            .map(|port| format!("{}:{} ({})", port.device, port.port, port.distance))
            .collect();
        if equals.is_empty() { "none".to_owned() } else { equals.join(", ") }
    };
    if nodes.len() > 1 {
        for node in nodes {
            rdma.note(format!("near NUMA node {node}"), near(Near::Node(node)));
        }
    }
    for gpu in gpus(root) {
        rdma.note(format!("near GPU {gpu}"), near(Near::Device(gpu)));
    }
}

/// The PCI addresses of the machine's GPUs.
fn gpus(root: &Root) -> Vec<PciAddress> {
    const DEVICES: &str = "sys/bus/pci/devices";
    let is_gpu = |name: &String| {
        let class = root.read(format!("{DEVICES}/{name}/class")).unwrap_or_default();
        GPU_CLASSES.iter().any(|prefix| class.starts_with(prefix))
    };
    root.names(DEVICES).into_iter().filter(is_gpu).filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_their_class() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, class) in [
            ("0000:c1:00.0", "0x120000\n"),
            ("0000:03:00.0", "0x030200\n"),
            ("0000:04:00.0", "0x020000\n"),
            ("nonsense", "0x030000\n"),
        ] {
            let path = folder.path().join("sys/bus/pci/devices").join(name);
            std::fs::create_dir_all(&path).expect("made");
            std::fs::write(path.join("class"), class).expect("written");
        }
        let found: Vec<String> = gpus(&Root::new(folder.path())).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["0000:03:00.0", "0000:c1:00.0"]);
    }
}
