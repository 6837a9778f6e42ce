//! What the kernel says of devices that the runtime hides from this process: which of them are in one hive.

use std::fs;
use std::path::Path;

use crate::hip::normalise_bus_id;

/// Whether both devices are in one hive, that is, linked to each other directly. The kernel driver's topology says so, or, on
/// a kernel without it, the device's own entry.
pub(crate) fn same_hive(sysfs: &Path, one: &str, other: &str) -> bool {
    match (hive(sysfs, one), hive(sysfs, other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// The number of the hive that a device is in, if it is in one.
fn hive(sysfs: &Path, bus_id: &str) -> Option<u64> {
    from_topology(sysfs, bus_id).or_else(|| from_device(sysfs, bus_id)).filter(|&hive| hive != 0)
}

fn from_topology(sysfs: &Path, bus_id: &str) -> Option<u64> {
    let nodes = fs::read_dir(sysfs.join("class/kfd/kfd/topology/nodes")).ok()?;
    nodes.flatten().find_map(|node| {
        let text = fs::read_to_string(node.path().join("properties")).ok()?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        // Bus, device and function share one number.
        let (location, domain) = (value("location_id")?, value("domain").unwrap_or(0));
        let (bus, device, function) = ((location >> 8) & 0xff, (location >> 3) & 0x1f, location & 7);
        let found = format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}");
        if found == normalise_bus_id(bus_id) { value("hive_id") } else { None }
    })
}

fn from_device(sysfs: &Path, bus_id: &str) -> Option<u64> {
    let path =
        sysfs.join("bus/pci/devices").join(normalise_bus_id(bus_id)).join("xgmi_hive_info/xgmi_hive_id");
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(root: &Path, number: u32, text: &str) {
        let folder = root.join(format!("class/kfd/kfd/topology/nodes/{number}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("properties"), text).unwrap();
    }

    #[test]
    fn the_topology_knows_hives() {
        let root = tempfile::tempdir().unwrap();
        node(root.path(), 0, "cpu_cores_count 64\nlocation_id 0\ndomain 0\nhive_id 0\n");
        node(root.path(), 1, "location_id 49408\ndomain 0\nhive_id 77\n");
        node(root.path(), 2, "location_id 50432\ndomain 0\nhive_id 77\n");
        node(root.path(), 3, "location_id 51456\ndomain 0\nhive_id 78\n");
        node(root.path(), 4, "location_id 52480\ndomain 1\nhive_id 0\n");
        let same = |one, other| same_hive(root.path(), one, other);
        assert!(same("0000:C1:00.0", "c5:00.0"));
        assert!(!same("0000:c1:00.0", "0000:c9:00.0"));
        assert!(!same("0001:cd:00.0", "0001:cd:00.0"), "a hive of number zero is none");
        assert!(!same("0000:c1:00.0", "0000:ff:00.0"));
    }

    #[test]
    fn without_a_topology_the_device_says() {
        let root = tempfile::tempdir().unwrap();
        for (bus_id, hive) in [("0000:c1:00.0", "5\n"), ("0000:c5:00.0", "0x5"), ("0000:c9:00.0", "none")] {
            let folder = root.path().join("bus/pci/devices").join(bus_id).join("xgmi_hive_info");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("xgmi_hive_id"), hive).unwrap();
        }
        assert!(same_hive(root.path(), "0000:c1:00.0", "0000:c5:00.0"));
        assert!(!same_hive(root.path(), "0000:c1:00.0", "0000:c9:00.0"));
    }
}
