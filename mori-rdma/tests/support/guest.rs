//! The conformance suite over the guest's real devices, or its skip where there are none.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion as End, Trial};
use mori_core::{Backend, Result};
use mori_rdma::verbs::Verbs;
use mori_rdma::{Completion, RdmaBackend, RdmaConfig};
use mori_testkit::{Bounds, Harness, Node};

/// The guest's devices of the first and of the second host.
const DEVICES: [&str; 2] = ["rxea", "rxeb"];

/// What devices nodes use.
#[allow(dead_code, reason = "each test uses one")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// All of them the first one.
    One,
    /// One each, in turns, so that what goes between them crosses the wire.
    InTurns,
    /// All of them both.
    Both,
}

struct GuestHarness {
    config: RdmaConfig,
    devices: Devices,
    turn: AtomicUsize,
}

struct GuestNode(Arc<RdmaBackend>);

impl Node for GuestNode {
    fn backend(&self) -> Arc<dyn Backend> {
        let backend: Arc<RdmaBackend> = Arc::clone(&self.0);
        backend
    }
}

impl Harness for GuestHarness {
    fn name(&self) -> String {
        let RdmaConfig { qps_per_path, completion, .. } = &self.config;
        format!(
            "mori-rdma in the guest, devices: {:?}, {qps_per_path} queue pairs, {completion:?}",
            self.devices
        )
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % DEVICES.len();
        let devices = match self.devices {
            Devices::One => &DEVICES[..1],
            Devices::InTurns => &DEVICES[turn..=turn],
            Devices::Both => &DEVICES[..],
        };
        let devices = devices.join(",").parse()?;
        Ok(Box::new(GuestNode(RdmaBackend::new(RdmaConfig { devices, ..self.config.clone() })?)))
    }

    fn bounds(&self) -> Bounds {
        // Under emulation everything takes its time.
        Bounds {
            transfer: Duration::from_secs(60),
            prompt: Duration::from_secs(10),
            reconnect: Duration::from_secs(30),
            largest: 4 << 20,
            ..Bounds::default()
        }
    }
}

/// Why there are no devices to test with.
fn missing() -> Option<String> {
    let devices = match Verbs::load(None).and_then(|verbs| verbs.devices()) {
        Ok(devices) => devices,
        Err(error) => return Some(error.to_string()),
    };
    let there = |name: &&str| devices.iter().any(|device| device.name() == *name);
    DEVICES.iter().find(|name| !there(name)).map(|device| format!("there is no device {device}"))
}

/// Runs the suite, skips it where the guest's devices are missing, or fails there if `RDMA_REQUIRED` is set.
pub(crate) fn main(devices: Devices, qps_per_path: usize, completion: Completion) -> ExitCode {
    if let Some(why) = missing()
        && std::env::var_os("RDMA_REQUIRED").is_none()
    {
        let skip =
            move || Ok(End::ignored_with(format!("not in the guest of `cargo xtask rdma-guest`: {why}")));
        let trial = Trial::ignorable_test("conformance_in_the_guest", skip);
        return libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code();
    }
    let config = RdmaConfig {
        qps_per_path,
        completion,
        chunk_bytes: 128 << 10,
        window_bytes: 1 << 20,
        max_reads: 4,
        send_queue: 128,
        notify_slots: 16,
        // A processor of the guest may stand still for longer than a card ever does.
        ack_timeout: 18,
        cancel_grace: Duration::from_millis(5),
        ..RdmaConfig::default()
    };
    mori_testkit::conformance_main(GuestHarness { config, devices, turn: AtomicUsize::new(0) })
}
