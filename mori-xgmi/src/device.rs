//! A device as the backend uses it: its streams and events, both bounded, and the peers that it may address.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use mori_core::{Error, ErrorKind, Result};

use crate::hip::{Current, Event, Failure, Hip, Stream};
use crate::sync::lock;

/// One device of this process. Dropping it gives back what it has; whoever has an event or a stream of it keeps it.
pub(crate) struct Device {
    pub(crate) hip: Arc<Hip>,
    pub(crate) id: u32,
    /// Its PCI bus id, in the one form that is compared.
    pub(crate) bus_id: String,
    limits: Limits,
    lanes: Mutex<Vec<Arc<Stream>>>,
    events: Mutex<Events>,
    enabled: Mutex<HashSet<u32>>,
}

/// The largest numbers of what a device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) streams: usize,
    pub(crate) events: usize,
}

#[derive(Default)]
struct Events {
    free: Vec<Event>,
    /// Those that are lent or free.
    made: usize,
}

impl Device {
    pub(crate) fn new(hip: &Arc<Hip>, id: u32, bus_id: String, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            hip: Arc::clone(hip),
            id,
            bus_id,
            limits,
            lanes: Mutex::default(),
            events: Mutex::default(),
            enabled: Mutex::default(),
        })
    }

    /// A stream for a peer: one that nobody has, a new one, or, at the limit, the one that the fewest share.
    pub(crate) fn lane(self: &Arc<Self>, current: &Current<'_>) -> Result<Arc<Stream>, Failure> {
        let mut lanes = lock(&self.lanes);
        let least = lanes.iter().min_by_key(|lane| Arc::strong_count(lane)).cloned();
        if let Some(lane) = least {
            // The list has one handle and `least` another.
            if Arc::strong_count(&lane) <= 2 || lanes.len() >= self.limits.streams {
                return Ok(lane);
            }
        }
        let lane = Arc::new(self.hip.stream(current)?);
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    /// An event, until the last handle of it is gone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] at the limit, else what the runtime says.
    pub(crate) fn event(self: &Arc<Self>, current: &Current<'_>) -> Result<Arc<Lent>> {
        {
            let mut events = lock(&self.events);
            if let Some(event) = events.free.pop() {
                return Ok(Arc::new(Lent { event: Some(event), device: Arc::clone(self) }));
            }
            if events.made >= self.limits.events {
                return Err(Error::new(
                    ErrorKind::ResourceExhausted,
                    format!(
                        "{} transfers are under way on device {}, which is XgmiConfig::events_per_device; wait for some of them",
                        events.made, self.id
                    ),
                ));
            }
            events.made += 1;
        }
        // Made outside of the lock: a poll on another thread gives its event back meanwhile.
        match self.hip.event(current) {
            Ok(event) => Ok(Arc::new(Lent { event: Some(event), device: Arc::clone(self) })),
            Err(failure) => {
                lock(&self.events).made -= 1;
                Err(failure.into())
            }
        }
    }

    /// Lets this device, which is current, address the memory of another.
    pub(crate) fn enable(&self, current: &Current<'_>, peer: u32) -> Result<(), Failure> {
        if peer == self.id || lock(&self.enabled).contains(&peer) {
            return Ok(());
        }
        self.hip.enable_peer(current, peer)?;
        lock(&self.enabled).insert(peer);
        Ok(())
    }
}

/// An event that a transfer has; it goes back to its device when the last handle is dropped.
pub(crate) struct Lent {
    /// Taken out when it is dropped only.
    event: Option<Event>,
    device: Arc<Device>,
}

impl Lent {
    /// Records, queries or synchronises.
    pub(crate) fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        lock(&self.device.events).free.push(event);
    }
}
