//! Nodes of the conformance suite over the simulated runtime, in one process.

#![allow(
    dead_code,
    clippy::expect_used,
    reason = "each test takes what it needs; without the simulation there is no test"
)]

pub(crate) mod child;
pub(crate) mod parent;
pub(crate) mod proxy;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Region, Repoll, Result, WaitPolicy,
};
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
    next: AtomicU32,
}

impl SimHarness {
    pub(crate) fn new(completion: Completion) -> Self {
        Self { config: config(completion), next: AtomicU32::new(0) }
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
        Abilities { hold: true, ..Abilities::default() }
    }

    /// Copies that touch the node's memory wait on their stream, and no host can stop what is queued on a device.
    fn held_can_end(&self) -> bool {
        false
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

/// An attached backend with the name and the descriptor of its engine.
pub(crate) struct Engine {
    pub(crate) backend: Arc<XgmiBackend>,
    pub(crate) desc: EngineDesc,
}

impl Engine {
    /// Joins an engine of this name on the node `node`.
    pub(crate) fn join(key: &str, config: XgmiConfig) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(1);
        let mut instance = [0; 16];
        instance[..4].copy_from_slice(&SERIAL.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let backend = XgmiBackend::new(config)?;
        let key = EngineKey::from(key);
        let attachment = backend.attach(BackendContext {
            engine: key.clone(),
            instance,
            node_id: "node".to_owned(),
            notifications: NotificationQueue::new(16),
        })?;
        let transports = attachment.blob.into_iter().collect();
        let desc = EngineDesc { key, node_id: "node".to_owned(), transports, ..EngineDesc::default() };
        Ok(Self { backend, desc })
    }

    /// Registers a region.
    pub(crate) fn register(&self, region: &Region) -> Result<MemoryDesc> {
        let mut desc = MemoryDesc::for_region(&self.desc.key, region);
        desc.transports.extend(self.backend.register(region)?);
        Ok(desc)
    }
}

/// Memory of a device with these bytes.
pub(crate) fn filled(device: u32, bytes: &[u8]) -> Result<Region> {
    let region = MACHINE.1.allocate(device, bytes.len(), Access::READ_WRITE)?;
    MACHINE.1.upload(&region, 0, bytes)?;
    Ok(region)
}

/// The bytes of a region.
pub(crate) fn bytes_of(region: &Region) -> Result<Vec<u8>> {
    let mut bytes = vec![0; region.len()];
    MACHINE.1.download(region, 0, &mut bytes)?;
    Ok(bytes)
}

/// Bytes that depend on a seed and on the place.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// Polls with back-off.
pub(crate) const PATIENT: WaitPolicy =
    WaitPolicy { repoll: Repoll::BACKOFF, busy_window: Duration::ZERO, clock: Clock::system() };

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long regions come and go in the tests that race with it: a second, or what `MORI_STRESS_SECONDS` says.
pub(crate) fn stress() -> Duration {
    let seconds = std::env::var("MORI_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(1, |text| text.parse().expect("a number of seconds")))
}

/// Waits until `done`; what is waited for comes by itself.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::system();
    let deadline = clock.deadline(LONG);
    while !done() {
        assert!(!deadline.passed(clock.now()), "not after {LONG:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Tests that look at what the whole process has run one after the other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
