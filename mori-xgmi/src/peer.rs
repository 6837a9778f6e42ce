//! Peers: engines of this process, whose regions are addressed as they are, and of other processes, whose allocations are
//! mapped.
//!
//! # Mappings
//!
//! 1. A mapping belongs to a peer, an allocation and a local device. It is opened once and shared by all regions inside of the
//!    allocation; each region adds its own offset.
//! 2. A region that was used keeps its mapping open, for the next transfer, until the region is taken back, or the peer goes.
//!    Transfers under way keep it as well. The last one of these closes it.
//! 3. Opening holds no lock but that mapping's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mori_core::{EngineKey, Error, ErrorKind, Pin, Result};

use crate::blob::{EngineBlob, Key, MemoryBlob, Shared};
use crate::device::Device;
use crate::exports::stale;
use crate::hip::{Mapping, Span, Stream};
use crate::lease::{Lease, Neighbour};
use crate::shared::Inner;
use crate::sync::lock;

/// An engine that this one knows.
pub(crate) struct Peer {
    pub(crate) key: EngineKey,
    pub(crate) instance: EngineBlob,
    /// The other engine's node, if it is another one than ours.
    pub(crate) elsewhere: Option<String>,
    pub(crate) link: Link,
    /// Removed or replaced: nothing is submitted any more.
    gone: AtomicBool,
    lanes: Mutex<HashMap<u32, Arc<Stream>>>,
}

/// Where the peer is.
pub(crate) enum Link {
    /// In this process.
    Here(Weak<Inner>),
    /// In another process of this node, if its folder could be opened.
    Process(Result<Abroad>),
}

/// The regions of a peer in another process.
pub(crate) struct Abroad {
    neighbour: Neighbour,
    regions: Mutex<HashMap<(Key, u32), Arc<RemoteRegion>>>,
    mappings: Mutex<HashMap<(u64, u32), Arc<Slot>>>,
}

/// The place of one mapping.
#[derive(Default)]
struct Slot(Mutex<Weak<Mapping>>);

/// A region of a peer's, ready for a local device.
pub(crate) struct RemoteRegion {
    lease: Lease,
    /// Keeps the bytes mapped.
    _mapping: Arc<Mapping>,
    span: Span,
}

/// What a transfer holds of its target until its copies are over.
pub(crate) enum Hold {
    /// The target's region, pinned, and its backend, to look whether it lives.
    Here {
        /// Kept, not looked at.
        _pin: Pin,
        target: Weak<Inner>,
    },
    /// The target's lease, entered, and its mapping.
    Process { region: Arc<RemoteRegion>, peer: Arc<Peer> },
}

impl Hold {
    /// Whether the peer lives.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Here { target, .. } => target.upgrade().is_some_and(|target| target.is_open()),
            Self::Process { peer, .. } => peer.is_alive(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Self::Process { region, .. } = self {
            region.lease.leave();
        }
    }
}

impl Peer {
    pub(crate) fn new(
        key: EngineKey,
        instance: EngineBlob,
        elsewhere: Option<String>,
        here: Option<Weak<Inner>>,
    ) -> Self {
        let link = match here {
            Some(inner) => Link::Here(inner),
            None if elsewhere.is_some() => Link::Process(Err(lost(&key))),
            None => Link::Process(Neighbour::open(&instance.leases).map(|neighbour| Abroad {
                neighbour,
                regions: Mutex::default(),
                mappings: Mutex::default(),
            })),
        };
        Self { key, instance, elsewhere, link, gone: AtomicBool::new(false), lanes: Mutex::default() }
    }

    /// Whether the peer lives, as far as can be seen.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.link {
            Link::Here(inner) => inner.upgrade().is_some_and(|inner| inner.is_open()),
            Link::Process(Ok(abroad)) => abroad.neighbour.is_alive(),
            Link::Process(Err(_)) => false,
        }
    }

    /// The stream for copies with this peer on a device. The device is current.
    pub(crate) fn lane(
        &self,
        device: &Arc<Device>,
        current: &crate::hip::Current<'_>,
    ) -> Result<Arc<Stream>> {
        if let Some(lane) = lock(&self.lanes).get(&device.id) {
            return Ok(Arc::clone(lane));
        }
        let lane = device.lane(current)?;
        Ok(Arc::clone(lock(&self.lanes).entry(device.id).or_insert(lane)))
    }

    /// Ends the peer for new transfers, and forgets its mappings; transfers under way keep theirs.
    pub(crate) fn leave(&self) {
        // Relaxed: a submission that overtakes it is found among the transfers of the peer by whoever marks it.
        self.gone.store(true, Ordering::Relaxed);
        if let Link::Process(Ok(abroad)) = &self.link {
            abroad.forget_all();
        }
        lock(&self.lanes).clear();
    }

    /// Whether it was removed or replaced.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Takes hold of a region for a transfer that `device`, which is current, does: the bytes, and what keeps them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerLost`], [`ErrorKind::NotFound`] for a region that is gone, or what the runtime says.
    pub(crate) fn hold(
        self: &Arc<Self>,
        blob: &MemoryBlob,
        device: &Arc<Device>,
        current: &crate::hip::Current<'_>,
    ) -> Result<(Span, Hold)> {
        match &self.link {
            Link::Here(inner) => {
                let target =
                    inner.upgrade().filter(|inner| inner.is_open()).ok_or_else(|| lost(&self.key))?;
                let export = target.exports.find(&blob.key)?;
                let pin = export.region.pin()?;
                device.enable(current, export.device.id)?;
                Ok((Span::of(&export.region), Hold::Here { _pin: pin, target: Weak::clone(inner) }))
            }
            Link::Process(Err(error)) => Err(error.clone()),
            Link::Process(Ok(abroad)) => {
                if !abroad.neighbour.is_alive() {
                    abroad.forget_all();
                    return Err(lost(&self.key));
                }
                let region = abroad.region(blob, device, current)?;
                if !region.lease.enter() {
                    abroad.forget(&blob.key);
                    return Err(stale());
                }
                Ok((region.span, Hold::Process { region, peer: Arc::clone(self) }))
            }
        }
    }

    /// Closes the mappings of regions that were taken back, and all of them if the peer is gone. Returns whether any are left.
    pub(crate) fn prune(&self) -> bool {
        let Link::Process(Ok(abroad)) = &self.link else { return false };
        if !abroad.neighbour.is_alive() {
            abroad.forget_all();
            return false;
        }
        let mut stale = Vec::new();
        let left = {
            let mut regions = lock(&abroad.regions);
            regions.retain(|_, region| {
                let offered = region.lease.is_offered();
                if !offered {
                    stale.push(Arc::clone(region));
                }
                offered
            });
            !regions.is_empty()
        };
        drop(stale);
        lock(&abroad.mappings)
            .retain(|_, slot| Arc::strong_count(slot) > 1 || lock(&slot.0).strong_count() > 0);
        left
    }
}

/// The answer when the peer is not there.
pub(crate) fn lost(key: &EngineKey) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!("engine {key} is gone or was shut down; when it is back, exchange descriptors again"),
    )
}

impl Abroad {
    /// The region for a device, mapped if it is not yet.
    fn region(
        &self,
        blob: &MemoryBlob,
        device: &Arc<Device>,
        current: &crate::hip::Current<'_>,
    ) -> Result<Arc<RemoteRegion>> {
        let place = (blob.key, device.id);
        if let Some(region) = lock(&self.regions).get(&place) {
            return Ok(Arc::clone(region));
        }
        let shared = blob.shared.as_ref().ok_or_else(no_handle)?;
        let lease = self.neighbour.lease(&blob.key).ok_or_else(stale)?;
        // Entered while it is opened, so that the owner does not free what is just being mapped.
        if !lease.enter() {
            return Err(stale());
        }
        let mapping = self.mapping(shared, device, current);
        lease.leave();
        let mapping = mapping?;
        let span = mapping.span().part(blob.offset, blob.size).ok_or_else(|| {
            Error::new(ErrorKind::Malformed, "the peer's region reaches past its allocation")
        })?;
        let region = Arc::new(RemoteRegion { lease, _mapping: mapping, span });
        Ok(Arc::clone(lock(&self.regions).entry(place).or_insert(region)))
    }

    fn mapping(
        &self,
        shared: &Shared,
        device: &Arc<Device>,
        current: &crate::hip::Current<'_>,
    ) -> Result<Arc<Mapping>> {
        let slot = Arc::clone(lock(&self.mappings).entry((shared.number, device.id)).or_default());
        let mut open = lock(&slot.0);
        if let Some(mapping) = open.upgrade() {
            return Ok(mapping);
        }
        let mapping = device
            .hip
            .import(current, shared.handle, shared.length)
            .map_err(|error| error.context("the peer's allocation cannot be opened here"))?;
        let mapping = Arc::new(mapping);
        *open = Arc::downgrade(&mapping);
        Ok(mapping)
    }

    fn forget(&self, key: &Key) {
        let mut stale = Vec::new();
        lock(&self.regions).retain(|(of, _), region| {
            if of == key {
                stale.push(Arc::clone(region));
            }
            of != key
        });
        // Closing is a call of the runtime's, so it is done outside of the lock.
        drop(stale);
    }

    fn forget_all(&self) {
        let regions = std::mem::take(&mut *lock(&self.regions));
        drop(regions);
    }
}

/// The answer for memory that other processes cannot open.
pub(crate) fn no_handle() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the peer is another process, and the runtime has given no IPC handle for its memory; allocate it with hipMalloc",
    )
}
