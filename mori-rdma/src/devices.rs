//! Which ports of which devices a backend uses, and which of them are near to which memory.

use std::path::Path;
use std::sync::Arc;

use mori_core::{Error, ErrorKind, Location, Region, Result};

use crate::config::RdmaConfig;
use crate::nic::Nic;
use crate::topology::{Near, Rules, Topology};
use crate::verbs::{Device, Verbs};

/// Where the kernel shows its devices.
const SYSFS: &str = "/sys";

fn rules(config: &RdmaConfig) -> Rules {
    Rules { names: config.devices.clone(), gid: config.gid }
}

/// Opens every port that the configuration lets pass and that works, in the order of the rails.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if there is none, with what was found and why it does not do.
pub(crate) fn open(config: &RdmaConfig) -> Result<Vec<Arc<Nic>>> {
    let verbs = Verbs::load(config.library.as_deref())?;
    let devices = verbs.devices()?;
    let choice = Topology::read(SYSFS).choose(&rules(config), Near::Anywhere, 0);
    let rail = |device: &Device, port: u8| {
        let same = |found: &&crate::topology::Candidate| found.device == device.name() && found.port == port;
        choice.candidates.iter().find(same).map_or(u32::MAX, |found| found.rail)
    };
    let mut ports = Vec::new();
    let mut reasons = Vec::new();
    for device in &devices {
        let count = match device.open().and_then(|context| context.attributes()) {
            Ok(attributes) => attributes.ports,
            Err(error) => {
                reasons.push(format!("{}: {error}", device.name()));
                continue;
            }
        };
        for port in 1..=count {
            match config.devices.passes(device.name(), port) {
                Ok(()) => ports.push((rail(device, port), device, port)),
                Err(why) => reasons.push(format!("{} port {port}: {why}", device.name())),
            }
        }
    }
    // What the kernel does not show comes last, in the library's order.
    ports.sort_by_key(|(rail, ..)| *rail);
    let mut nics = Vec::new();
    for (_, device, port) in ports {
        if nics.len() >= config.max_devices {
            break;
        }
        match Nic::open(nics.len(), device, port, config) {
            Ok(nic) => nics.push(Arc::new(nic)),
            Err(error) => reasons.push(format!("{} port {port}: {}", device.name(), error.message())),
        }
    }
    if nics.is_empty() {
        return Err(none(verbs.path(), &devices, &reasons));
    }
    if !reasons.is_empty() {
        tracing::info!(?reasons, "some RDMA devices are not used");
    }
    Ok(nics)
}

fn none(library: &Path, devices: &[Device], reasons: &[String]) -> Error {
    let words = if devices.is_empty() {
        format!("there is no RDMA device, as {} says; see `ibv_devices`", library.display())
    } else {
        format!("no RDMA device can be used: {}", reasons.join("; "))
    };
    Error::new(ErrorKind::Unavailable, words)
}

/// For each port whether it is among the nearest to a region; all of them, if nothing is known.
pub(crate) fn near(region: &Region, nics: &[Arc<Nic>], config: &RdmaConfig) -> Vec<bool> {
    let (near, ordinal) = match region.location() {
        Location::Host { numa_node: Some(node) } => (Near::Node(*node), 0),
        Location::Device { bus_id, device_id } => match bus_id.parse() {
            Ok(address) => (Near::Device(address), *device_id),
            Err(_) => return vec![true; nics.len()],
        },
        Location::Host { numa_node: None } => return vec![true; nics.len()],
    };
    let choice = Topology::read(SYSFS).choose(&rules(config), near, ordinal);
    let nearest = choice.equals();
    let is_near =
        |nic: &Arc<Nic>| nearest.iter().any(|found| found.device == nic.name && found.port == nic.port);
    let found: Vec<bool> = nics.iter().map(is_near).collect();
    if found.contains(&true) { found } else { vec![true; nics.len()] }
}
