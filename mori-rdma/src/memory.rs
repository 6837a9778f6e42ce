//! The regions of this engine, registered with every device.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use mori_core::{Error, ErrorKind, Region, RegionId, Result};

use crate::config::{DmabufExporter, RdmaConfig};
use crate::nic::Nic;
use crate::sync::{Mutex, RwLock};
use crate::verbs::{MemoryRegion, RegionAccess};

/// The keys of a region on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceKeys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// A region with its registrations.
pub(crate) struct Registered {
    pub(crate) region: Region,
    /// By device; `None` where the device could not register it.
    pub(crate) keys: Vec<Option<DeviceKeys>>,
    /// By device: whether it is among the nearest to the memory.
    pub(crate) near: Vec<bool>,
    memory: Mutex<Vec<Option<MemoryRegion>>>,
}

#[derive(Default)]
pub(crate) struct Regions(RwLock<HashMap<RegionId, Arc<Registered>>>);

impl Regions {
    /// Registers a region with every device; the same region again keeps its keys. `None` for memory that no device of ours reaches.
    pub(crate) fn add(
        &self,
        region: &Region,
        nics: &[Arc<Nic>],
        config: &RdmaConfig,
    ) -> Result<Option<Arc<Registered>>> {
        let exporter = config.exporter.as_ref();
        if let Some(known) = self.get(region.id()) {
            return Ok(Some(known));
        }
        if !region.location().is_host() && exporter.is_none() {
            return Ok(None);
        }
        let mut memory = Vec::new();
        let mut failure: Option<Error> = None;
        for nic in nics {
            match register(region, nic, exporter) {
                Ok(registered) => memory.push(Some(registered)),
                Err(error) => {
                    let error =
                        error.context(format!("registering {} bytes with device {}", region.len(), nic.name));
                    failure.get_or_insert(error);
                    memory.push(None);
                }
            }
        }
        if memory.iter().all(Option::is_none) {
            return Err(
                failure.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "there is no RDMA device"))
            );
        }
        if let Some(error) = failure {
            tracing::warn!(region = %region.id(), %error, "a region is not registered with every device");
        }
        let keys = memory
            .iter()
            .map(|memory| {
                memory
                    .as_ref()
                    .map(|memory| DeviceKeys { local: memory.local_key(), remote: memory.remote_key() })
            })
            .collect();
        let near = crate::devices::near(region, nics, config);
        let registered =
            Arc::new(Registered { region: region.clone(), keys, near, memory: Mutex::new(memory) });
        let mut regions = self.0.write();
        // Somebody else may have been faster.
        let kept = regions.entry(region.id()).or_insert_with(|| Arc::clone(&registered));
        Ok(Some(Arc::clone(kept)))
    }

    pub(crate) fn get(&self, id: RegionId) -> Option<Arc<Registered>> {
        self.0.read().get(&id).cloned()
    }

    /// The region with this number, as a peer names it.
    pub(crate) fn by_number(&self, number: u64) -> Option<Arc<Registered>> {
        self.0.read().iter().find(|(id, _)| id.get() == number).map(|(_, registered)| Arc::clone(registered))
    }

    /// Takes the registrations back. When it returns, no device reaches the memory through them any more.
    pub(crate) fn remove(&self, id: RegionId) {
        let removed = self.0.write().remove(&id);
        if let Some(removed) = removed {
            removed.release();
        }
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.write());
        all.into_values().for_each(|registered| registered.release());
    }

    /// How many registrations there are.
    pub(crate) fn count(&self) -> usize {
        self.0.read().values().map(|registered| registered.memory.lock().iter().flatten().count()).sum()
    }
}

impl Registered {
    fn release(&self) {
        let memory = std::mem::take(&mut *self.memory.lock());
        drop(memory);
    }
}

fn register(region: &Region, nic: &Nic, exporter: Option<&Arc<dyn DmabufExporter>>) -> Result<MemoryRegion> {
    let access = RegionAccess::of(region.access());
    if region.location().is_host() {
        return Ok(nic.domain.register(region, access)?);
    }
    let Some(exporter) = exporter else {
        return Err(Error::new(ErrorKind::Unsupported, "device memory needs an exporter of dmabufs"));
    };
    let exported = exporter.export(region)?;
    Ok(nic.domain.register_dmabuf(region, exported.fd.as_fd(), exported.offset, access)?)
}
