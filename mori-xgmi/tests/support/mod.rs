//! Nodes of the conformance suite over the simulated runtime, in one process.

#![allow(dead_code, clippy::expect_used, reason = "each test takes what it needs; without the simulation there is no test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use mori_core::{Access, Backend, Error, ErrorKind, Region, Result};
use mori_hip_sim::client::Simulation;
use mori_testkit::{Abilities, Bounds, Harness, Node};
use mori_xgmi::{Completion, Runtime, XgmiBackend, XgmiConfig};

/// How many devices the simulated machine has.
pub(crate) const DEVICES: u32 = 4;

/// The simulation and the runtime, loaded once for the process.
pub(crate) static MACHINE: LazyLock<(Simulation, Runtime)> = LazyLock::new(|| {
    let simulation = Simulation::open().expect("the simulated runtime is built with the tests");
    simulation.set("devices", &DEVICES.to_string()).expect("a setting");
    let runtime = Runtime::load(Some(simulation.library())).expect("the simulated runtime loads");
    (simulation, runtime)
});

/// A configuration for the simulated runtime, with short bounds.
pub(crate) fn config(completion: Completion) -> XgmiConfig {
    XgmiConfig {
        library: Some(MACHINE.0.library().to_owned()),
        completion,
        housekeeping: Duration::from_millis(5),
        shutdown: Duration::from_millis(500),
        ..XgmiConfig::default()
    }
}

/// Makes nodes, each on the next device.
pub(crate) struct SimHarness {
    pub(crate) config: XgmiConfig,
    pub(crate) hold: bool,
    next: AtomicU32,
}

impl SimHarness {
    pub(crate) fn new(completion: Completion, hold: bool) -> Self {
        Self { config: config(completion), hold, next: AtomicU32::new(0) }
    }
}

impl Harness for SimHarness {
    fn name(&self) -> String {
        format!("mori-xgmi over the simulated runtime, {:?}", self.config.completion)
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Ok(Box::new(SimNode {
            backend: XgmiBackend::new(self.config.clone())?,
            device: self.next.fetch_add(1, Ordering::Relaxed) % DEVICES,
            held: Mutex::default(),
        }))
    }

    fn abilities(&self) -> Abilities {
        Abilities { hold: self.hold, ..Abilities::default() }
    }

    fn bounds(&self) -> Bounds {
        Bounds { largest: 4 << 20, ..Bounds::default() }
    }
}

/// A backend with memory on one device.
pub(crate) struct SimNode {
    backend: Arc<XgmiBackend>,
    device: u32,
    /// Whether copies that touch the node's memory wait, and where that memory is.
    held: Mutex<(bool, Vec<usize>)>,
}

impl SimNode {
    fn set_held(&self, now: bool) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 = now;
        // What is freed by now is forgotten.
        held.1.retain(|&address| MACHINE.0.hold(address, now).is_ok());
    }
}

impl Node for SimNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn memory(&self, length: usize, access: Access) -> Result<Region> {
        let region = MACHINE.1.allocate(self.device, length, access)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.push(region.address());
        if held.0 {
            let wrong = |why| Error::new(ErrorKind::BadState, why);
            MACHINE.0.hold(region.address(), true).map_err(wrong)?;
        }
        Ok(region)
    }

    fn store(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        MACHINE.1.upload(region, offset, bytes)
    }

    fn load(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        MACHINE.1.download(region, offset, bytes)
    }

    fn hold(&self) {
        self.set_held(true);
    }

    fn release(&self) {
        self.set_held(false);
    }
}
