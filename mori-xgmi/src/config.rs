//! What can be configured.

use std::path::PathBuf;
use std::time::Duration;

use mori_core::{Error, ErrorKind, Result};

/// How the backend learns that copies are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// Waits ask the event (contract W9) or, without a bound, synchronise on it (W10). The backend has no notifier: bounded waits
    /// on it poll twice unless the caller chooses a re-poll policy.
    #[default]
    EventQuery,
    /// The runtime calls back from its stream, and a thread of the backend's completes the status: a backend with notifier (W8).
    /// Costs a callback for each transfer.
    HostCallback,
}

/// The configuration of an [`XgmiBackend`](crate::XgmiBackend). The default is meant to be right.
///
/// ```
/// use mori_xgmi::{Completion, XgmiConfig};
/// let config = XgmiConfig { completion: Completion::HostCallback, ..XgmiConfig::default() };
/// assert!(config.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XgmiConfig {
    /// The runtime's library. `None` tries what the environment's `MORI_HIP_LIBRARY` names, then the usual names.
    pub library: Option<PathBuf>,
    /// How the backend learns that copies are over.
    pub completion: Completion,
    /// The largest number of streams on each device. Each peer has one of its own as long as there are enough; then peers
    /// share, and a peer whose copies are slow delays those that it shares with.
    pub streams_per_device: usize,
    /// The largest number of events on each device, which is the largest number of transfers whose copies are under way on it.
    /// Further ones fail as *resource exhausted*.
    pub events_per_device: usize,
    /// The number of pieces from which on a transfer is queued by `hipMemcpyBatchAsync`, where the library has it (ROCm 7), instead
    /// of piece by piece. One call for many small pieces saves the time of queueing them; for few it saves nothing.
    /// `usize::MAX` turns it off.
    pub batch_threshold: usize,
    /// How often the backend's own thread looks for copies that are over and whose status nobody polls, to give their memory,
    /// events and mappings back. It sleeps without a timer while nothing is under way.
    pub housekeeping: Duration,
    /// How long after the end of its copies a status that nobody polls is completed by the backend's own thread.
    pub grace: Duration,
    /// How long [`deregister`](mori_core::Backend::deregister) waits for copies of other processes that use the region.
    pub drain: Duration,
    /// How long [`shutdown`](mori_core::Backend::shutdown) waits for copies that a device has not finished.
    pub shutdown: Duration,
    /// The folder in which processes of this node tell each other which regions are in use. It must be the same for all of them,
    /// and in memory: `/dev/shm` unless told otherwise.
    pub lease_dir: PathBuf,
    /// Where the kernel describes devices that are hidden from this process: `/sys` unless told otherwise.
    pub sysfs: PathBuf,
}

impl Default for XgmiConfig {
    fn default() -> Self {
        Self {
            library: None,
            completion: Completion::default(),
            streams_per_device: 16,
            events_per_device: 4096,
            batch_threshold: 32,
            housekeeping: Duration::from_millis(20),
            grace: Duration::from_secs(1),
            drain: Duration::from_secs(10),
            shutdown: Duration::from_secs(5),
            lease_dir: PathBuf::from("/dev/shm"),
            sysfs: PathBuf::from("/sys"),
        }
    }
}

impl XgmiConfig {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`], naming the field.
    pub fn check(&self) -> Result<()> {
        let refuse = |field: &str, wanted: &str| {
            Err(Error::new(ErrorKind::InvalidArgument, format!("XgmiConfig::{field} must be {wanted}")))
        };
        if self.streams_per_device == 0 {
            return refuse("streams_per_device", "at least one");
        }
        if self.events_per_device == 0 {
            return refuse("events_per_device", "at least one");
        }
        if self.batch_threshold < 2 {
            return refuse("batch_threshold", "at least two");
        }
        if self.housekeeping.is_zero() {
            return refuse("housekeeping", "longer than zero");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_sense_are_refused_by_name() {
        assert!(XgmiConfig::default().check().is_ok());
        let bad = [
            (XgmiConfig { streams_per_device: 0, ..XgmiConfig::default() }, "streams_per_device"),
            (XgmiConfig { events_per_device: 0, ..XgmiConfig::default() }, "events_per_device"),
            (XgmiConfig { batch_threshold: 1, ..XgmiConfig::default() }, "batch_threshold"),
            (XgmiConfig { housekeeping: Duration::ZERO, ..XgmiConfig::default() }, "housekeeping"),
        ];
        for (config, field) in bad {
            let error = config.check().unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains(field), "{error}");
        }
    }
}
