//! XGMI: the HIP runtime, the GPUs, and who reaches whom.

use mori_engine::{XgmiDevice, XgmiRuntime};

use super::finding::{Finding, Findings};
use super::host::Root;

/// Looks at the HIP runtime and its devices.
pub fn look(root: &Root) -> Vec<Finding> {
    let mut xgmi = Findings::of("xgmi");
    driver(root, &mut xgmi);
    match XgmiRuntime::load(None) {
        Err(error) => xgmi.absent(
            "HIP library",
            error.message(),
            "on a machine with AMD GPUs, install ROCm's runtime (libamdhip64) or set MORI_HIP_LIBRARY to it",
        ),
        Ok(runtime) => devices(root, &runtime, &mut xgmi),
    }
    xgmi.into_list()
}

/// The kernel's side, which the library needs.
fn driver(root: &Root, xgmi: &mut Findings) {
    const KFD: &str = "dev/kfd";
    if !root.has(KFD) {
        xgmi.absent(
            "GPU driver",
            "there is no /dev/kfd",
            "on a machine with AMD GPUs, load the amdgpu driver; a container needs --device /dev/kfd --device /dev/dri",
        );
        return;
    }
    match std::fs::OpenOptions::new().read(true).write(true).open(root.path(KFD)) {
        Ok(_) => xgmi.ok("GPU driver", "/dev/kfd can be opened"),
        Err(error) => xgmi.absent(
            "GPU driver",
            format!("/dev/kfd cannot be opened: {error}"),
            "add this user to the groups that own /dev/kfd and /dev/dri (usually render and video)",
        ),
    }
}

fn devices(root: &Root, runtime: &XgmiRuntime, xgmi: &mut Findings) {
    let simulated = if runtime.is_simulated() { ", a simulation" } else { "" };
    let version = runtime.version().map_or_else(|error| error.to_string(), |version| version.to_string());
    xgmi.ok("HIP library", format!("{}, version {version}{simulated}", runtime.library().display()));
    let lacking: Vec<&str> =
        runtime.optional_functions().into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
    if !lacking.is_empty() {
        xgmi.note("older functions used", format!("it lacks {}", lacking.join(", ")));
    }
    let found = match runtime.devices() {
        Ok(found) => found,
        Err(error) => {
            xgmi.absent("devices", error.to_string(), "look into the kernel's log for messages of amdgpu");
            return;
        }
    };
    let kind = if runtime.is_simulated() { "simulated device, no GPU" } else { "GPU" };
    for device in &found {
        let node = root.read(format!("sys/bus/pci/devices/{}/numa_node", device.bus_id));
        let node = node.and_then(|node| node.parse::<u32>().ok());
        let node = node.map(|node| format!(", NUMA node {node}")).unwrap_or_default();
        xgmi.ok(
            format!("device {}", device.id),
            format!("{kind}, {}{node}; {}", device.bus_id, peers(device, &found)),
        );
    }
}

/// A row of the peer-access matrix in words.
fn peers(device: &XgmiDevice, all: &[XgmiDevice]) -> String {
    let others = all.iter().map(|other| other.id).filter(|id| *id != device.id);
    let (reached, not): (Vec<u32>, Vec<u32>) = others.partition(|id| device.peers.contains(id));
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match (reached.as_slice(), not.as_slice()) {
        ([], []) => "the only one".to_owned(),
        (reached, []) => format!("reaches {}", list(reached)),
        ([], not) => format!("does not reach {}", list(not)),
        (reached, not) => format!("reaches {}, not {}", list(reached), list(not)),
    }
}
