//! What can be configured, and what a configuration must satisfy.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{Error, ErrorKind, Region, Result, Secret};

use crate::topology::{GidRule, NameFilter};

/// How the backend's thread learns that work is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// It sleeps until the card raises an event. Uses no processor time while nothing completes.
    #[default]
    Events,
    /// It looks again and again while work is in flight and completes, letting other threads run in between; it sleeps when none
    /// is, or when nothing has completed for a millisecond. Lower latency for the price of a processor.
    Polling,
}

/// A device's memory as a file descriptor that network cards can register.
#[derive(Debug)]
pub struct Dmabuf {
    /// The descriptor of the buffer.
    pub fd: OwnedFd,
    /// Where in the buffer the region begins, in bytes.
    pub offset: u64,
}

/// Exports a device's memory, so that network cards reach it without a copy through the host. Implemented by whoever knows the
/// device's runtime.
///
/// # Threads
///
/// Called by threads that register memory, several at a time.
pub trait DmabufExporter: Send + Sync + 'static {
    /// Exports the memory of `region`, which is on a device. The descriptor is closed after the registration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if this memory or runtime cannot do it; else what the runtime says.
    fn export(&self, region: &Region) -> Result<Dmabuf>;
}

/// Configuration of an [`RdmaBackend`](crate::RdmaBackend).
///
/// ```
/// use mori_rdma::{Completion, RdmaConfig};
/// let devices = "mlx5_0,mlx5_1".parse()?;
/// let config = RdmaConfig { devices, completion: Completion::Polling, ..RdmaConfig::default() };
/// assert_eq!(config.qps_per_path, 1);
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone)]
pub struct RdmaConfig {
    /// Where the control connection listens: `address:port` or `name:port`, port 0 for a free one. The default is loopback
    /// only.
    pub bind: String,
    /// The host that peers are told to connect to, if it is another than the one that is listened on: a name or an address,
    /// without a port. Needed when `bind` is unspecified (`0.0.0.0`, `[::]`) and the machine's name does not resolve at the
    /// peers.
    pub advertise: Option<String>,
    /// A secret that a peer must know before anything else is accepted on the control connection. What the cards carry is
    /// protected by their keys alone.
    pub secret: Option<Secret>,
    /// The verbs library to load, instead of the one that `MORI_VERBS_LIBRARY` names or the system finds.
    pub library: Option<PathBuf>,
    /// Which devices and ports may be used; all that work by default.
    pub devices: NameFilter,
    /// The most ports that are used.
    pub max_devices: usize,
    /// How to choose among the addresses of a port.
    pub gid: GidRule,
    /// Queue pairs to each peer on each device; transfers are spread over them. 1 to 64.
    pub qps_per_path: usize,
    /// How completions are learned of.
    pub completion: Completion,
    /// The longest work request in bytes; longer pieces are split. The device's own limit holds as well.
    pub chunk_bytes: u32,
    /// The most work requests that are handed to the card at once, with one completion for all of them. 1 to 1024.
    pub max_chain: usize,
    /// Work requests that a queue pair holds at a time. The device's own limit holds as well.
    pub send_queue: u32,
    /// Bytes that a queue pair has in flight at a time; one request more may begin below it. Enough for the way to the peer is
    /// enough: what is queued in the card can no longer take another way, and delays whoever comes next.
    pub window_bytes: u64,
    /// The most local ranges in a work request. The device's own limit holds as well.
    pub max_sge: u32,
    /// The most transfers to one peer that may be in progress; further ones fail at once, with `SQ full` in their message.
    pub max_transfers: usize,
    /// How long a transfer may wait for a place in a send queue without any progress, before it fails with `SQ full` in its
    /// message.
    pub admission_timeout: Duration,
    /// How long the requests of a cancelled transfer may go on before their queue pair is torn down.
    pub cancel_grace: Duration,
    /// The longest time that connecting to a peer may take.
    pub connect_timeout: Duration,
    /// How long anything that needs the peer's processor may take before the peer is lost (contract E4).
    pub peer_timeout: Duration,
    /// The card's time for an acknowledgement, as the exponent of 4.096 µs. 1 to 31.
    pub ack_timeout: u8,
    /// How many times the card sends again what is not acknowledged. 0 to 6.
    pub retry_count: u8,
    /// How many times the card tries again when the peer has no receive posted. 0 to 6.
    pub rnr_retry: u8,
    /// The most reads that a queue pair has in flight. The device's own limit holds as well.
    pub max_reads: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    /// Service level of the packets.
    pub service_level: u8,
    /// Messages to a peer that may be on their way on one queue pair. 1 to 1024.
    pub notify_slots: usize,
    /// Exports the memory of devices (GPUs). Without it only host memory is carried.
    pub exporter: Option<Arc<dyn DmabufExporter>>,
}

impl fmt::Debug for RdmaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaConfig")
            .field("bind", &self.bind)
            .field("advertise", &self.advertise)
            .field("secret", &self.secret)
            .field("library", &self.library)
            .field("devices", &self.devices)
            .field("max_devices", &self.max_devices)
            .field("gid", &self.gid)
            .field("qps_per_path", &self.qps_per_path)
            .field("completion", &self.completion)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("max_chain", &self.max_chain)
            .field("send_queue", &self.send_queue)
            .field("peer_timeout", &self.peer_timeout)
            .field("exporter", &self.exporter.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            bind: "127.0.0.1:0".into(),
            advertise: None,
            secret: None,
            library: None,
            devices: NameFilter::default(),
            max_devices: 8,
            gid: GidRule::default(),
            qps_per_path: 1,
            completion: Completion::Events,
            chunk_bytes: 1 << 20,
            max_chain: 64,
            send_queue: 512,
            window_bytes: 8 << 20,
            max_sge: 16,
            max_transfers: 1 << 16,
            admission_timeout: Duration::from_secs(30),
            cancel_grace: Duration::from_millis(100),
            connect_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(10),
            ack_timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
            max_reads: 16,
            traffic_class: 0,
            service_level: 0,
            notify_slots: 64,
            exporter: None,
        }
    }
}

/// The longest timeout that is taken; longer ones may be none that the clock can express.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl RdmaConfig {
    /// Says what is wrong with the configuration, if anything is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`], naming the field and what it may be.
    pub fn check(&self) -> Result<()> {
        let shortest = Duration::from_millis(10);
        let timeout = |value: Duration| (shortest..=LONGEST).contains(&value);
        let rules = [
            ((1..=64).contains(&self.max_devices), "max_devices must be 1 to 64"),
            ((1..=64).contains(&self.qps_per_path), "qps_per_path must be 1 to 64"),
            ((4096..=1 << 30).contains(&self.chunk_bytes), "chunk_bytes must be 4 KiB to 1 GiB"),
            ((1..=1024).contains(&self.max_chain), "max_chain must be 1 to 1024"),
            ((1..=1 << 15).contains(&self.send_queue), "send_queue must be 1 to 32768"),
            (self.window_bytes > 0, "window_bytes must be greater than zero"),
            ((1..=256).contains(&self.max_sge), "max_sge must be 1 to 256"),
            (self.max_transfers > 0, "max_transfers must be greater than zero"),
            (timeout(self.admission_timeout), "admission_timeout must be 10 ms to a year"),
            (self.cancel_grace <= Duration::from_secs(60), "cancel_grace must be at most a minute"),
            (timeout(self.connect_timeout), "connect_timeout must be 10 ms to a year"),
            (timeout(self.peer_timeout), "peer_timeout must be 10 ms to a year"),
            ((1..=31).contains(&self.ack_timeout), "ack_timeout must be 1 to 31"),
            (self.retry_count <= 6, "retry_count must be at most 6, since 7 means for ever on some devices"),
            (self.rnr_retry <= 6, "rnr_retry must be at most 6, since 7 means for ever"),
            (self.max_reads > 0, "max_reads must be greater than zero"),
            (self.service_level <= 15, "service_level must be at most 15"),
            ((1..=1024).contains(&self.notify_slots), "notify_slots must be 1 to 1024"),
            (
                self.secret.as_ref().is_none_or(|secret| !secret.is_empty()),
                "the secret must not be empty; leave it out to have none",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(Error::new(ErrorKind::InvalidArgument, format!("RdmaConfig: {what}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good_and_each_wrong_field_is_named() {
        let good = RdmaConfig::default();
        good.check().unwrap();
        for (bad, name) in [
            (RdmaConfig { max_devices: 0, ..good.clone() }, "max_devices"),
            (RdmaConfig { qps_per_path: 65, ..good.clone() }, "qps_per_path"),
            (RdmaConfig { chunk_bytes: 1, ..good.clone() }, "chunk_bytes"),
            (RdmaConfig { max_chain: 0, ..good.clone() }, "max_chain"),
            (RdmaConfig { send_queue: 0, ..good.clone() }, "send_queue"),
            (RdmaConfig { window_bytes: 0, ..good.clone() }, "window_bytes"),
            (RdmaConfig { max_sge: 0, ..good.clone() }, "max_sge"),
            (RdmaConfig { max_transfers: 0, ..good.clone() }, "max_transfers"),
            (RdmaConfig { admission_timeout: Duration::ZERO, ..good.clone() }, "admission_timeout"),
            (RdmaConfig { cancel_grace: Duration::MAX, ..good.clone() }, "cancel_grace"),
            (RdmaConfig { connect_timeout: Duration::MAX, ..good.clone() }, "connect_timeout"),
            (RdmaConfig { peer_timeout: Duration::ZERO, ..good.clone() }, "peer_timeout"),
            (RdmaConfig { ack_timeout: 0, ..good.clone() }, "ack_timeout"),
            (RdmaConfig { retry_count: 7, ..good.clone() }, "retry_count"),
            (RdmaConfig { rnr_retry: 7, ..good.clone() }, "rnr_retry"),
            (RdmaConfig { max_reads: 0, ..good.clone() }, "max_reads"),
            (RdmaConfig { service_level: 16, ..good.clone() }, "service_level"),
            (RdmaConfig { notify_slots: 0, ..good.clone() }, "notify_slots"),
            (RdmaConfig { secret: Some(Secret::new([])), ..good.clone() }, "secret"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let config = RdmaConfig { secret: Some(Secret::new(*b"swordfish")), ..RdmaConfig::default() };
        assert!(!format!("{config:?}").contains("swordfish"));
        assert!(!format!("{config:?}").contains("115, 119"));
    }
}
