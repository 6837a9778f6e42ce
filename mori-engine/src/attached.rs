//! A backend that has joined an engine, and the order of preference among several.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_core::{Attachment, Capabilities, Error, ErrorKind, Result};

use crate::backends::{Carrier, SAME_HOST, Slot};

/// A backend with what it said when it joined.
pub(crate) struct Attached {
    pub(crate) slot: Slot,
    pub(crate) name: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) attachment: Attachment,
    pub(crate) presence: Presence,
}

impl Attached {
    pub(crate) fn new(slot: Slot, attachment: Attachment) -> Self {
        let (name, capabilities) = (slot.name(), slot.capabilities());
        Self { slot, name, capabilities, attachment, presence: Presence::default() }
    }

    /// What people may know about it.
    pub(crate) fn info(&self) -> BackendInfo {
        BackendInfo {
            name: self.name,
            capabilities: self.capabilities,
            has_notifier: self.slot.has_notifier(),
            host: self.attachment.host.clone(),
            port: self.attachment.port,
        }
    }
}

/// Whether a backend is still part of its engine; shared with every session on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence(Arc<AtomicBool>);

impl Presence {
    /// The backend leaves. What is submitted from now on is refused here; what overtakes the mark is ended by the
    /// backend's own shutdown.
    pub(crate) fn end(&self) {
        // Relaxed: the mark orders nothing, it only makes a refusal earlier and its message better.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    ///
    /// [`ErrorKind::BadState`] when the backend has left.
    pub(crate) fn check(&self, backend: &str) -> Result<()> {
        if self.ended() {
            return Err(Error::new(
                ErrorKind::BadState,
                format!(
                    "the {backend} backend of this session was removed, or its engine was shut down; open another session"
                ),
            ));
        }
        Ok(())
    }
}

/// A backend of an engine, for people and for choosing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendInfo {
    /// Its name, as in descriptors and routes.
    pub name: &'static str,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Whether it completes transfers with nobody polling.
    pub has_notifier: bool,
    /// The host that peers connect to, if it listens.
    pub host: Option<String>,
    /// The port that it listens on, if it does.
    pub port: Option<u16>,
}

impl fmt::Display for BackendInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match (&self.host, self.port) {
            (Some(host), Some(port)) => write!(f, " at {host} port {port}"),
            (None, Some(port)) => write!(f, " at port {port}"),
            _ => Ok(()),
        }
    }
}

/// Sorts backends by preference: those that `prefer` names, in its order; then those that carry only device memory, then the
/// one between the processes of one host, then those that carry device memory as well, then the others. What is equal so
/// far keeps its order, which is the order of adding.
pub(crate) fn sort(backends: &mut [Arc<Attached>], prefer: &[String]) {
    backends.sort_by_key(|attached| rank(attached.name, attached.capabilities, prefer));
}

fn rank(name: &str, capabilities: Capabilities, prefer: &[String]) -> (usize, u8) {
    let place = prefer.iter().position(|preferred| preferred == name).unwrap_or(prefer.len());
    let class = match (capabilities.device_memory, capabilities.host_memory) {
        (true, false) => 0,
        _ if name == SAME_HOST => 1,
        (true, true) => 2,
        (false, _) => 3,
    };
    (place, class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_names_come_first_then_devices_then_the_same_host() {
        let memory = |device_memory, host_memory| Capabilities {
            device_memory,
            host_memory,
            ..Capabilities::default()
        };
        let (device, host, both) = (memory(true, false), memory(false, true), memory(true, true));
        let mut names = [("tcp", host), ("shm", host), ("rdma", both), ("xgmi", device)];
        names.sort_by_key(|(name, capabilities)| rank(name, *capabilities, &[]));
        assert_eq!(names.iter().map(|entry| entry.0).collect::<Vec<_>>(), ["xgmi", "shm", "rdma", "tcp"]);
        let prefer = ["shm".to_owned(), "rdma".to_owned(), "absent".to_owned()];
        names.sort_by_key(|(name, capabilities)| rank(name, *capabilities, &prefer));
        assert_eq!(names.iter().map(|entry| entry.0).collect::<Vec<_>>(), ["shm", "rdma", "xgmi", "tcp"]);
    }
}
