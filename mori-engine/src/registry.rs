//! Registering memory, and ending it.

use mori_core::{Access, Error, ErrorKind, MemoryDesc, Region, Result, Timeout};

use crate::backends::Carrier;
use crate::engine::Core;
use crate::session::unregistered;
use crate::{Engine, Memory, sync};

impl Engine {
    /// Registers `length` bytes of fresh host memory, zero, which the engine owns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a length of zero, [`ErrorKind::ResourceExhausted`] if the system has no such range;
    /// else as [`Engine::register`].
    pub fn allocate(&self, length: usize, access: Access) -> Result<Memory> {
        self.register(&Region::zeroed(length, access)?)
    }

    /// Registers the bytes of a vector, which the engine owns from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an empty vector; else as [`Engine::register`].
    pub fn register_vec(&self, bytes: Vec<u8>, access: Access) -> Result<Memory> {
        self.register(&Region::from_vec(bytes, access)?)
    }

    /// Registers bytes that are lent for as long as the process runs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an empty slice; else as [`Engine::register`].
    pub fn register_static(&self, bytes: &'static mut [u8], access: Access) -> Result<Memory> {
        self.register(&Region::from_static(bytes, access)?)
    }

    /// Registers a region with every backend, those that are added later included.
    ///
    /// Ranges may overlap, and one range may be registered more than once: each registration has a region and a
    /// descriptor of its own. A backend that cannot carry memory of this kind is skipped. One that fails is skipped as well
    /// (with a line in the log, and the reason in [`Engine::explain`]) as long as another one carries the region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] if the same region is registered with this engine already, [`ErrorKind::NotFound`] if it is
    /// closed, [`ErrorKind::BadState`] if the engine is shut down; a backend's error if there is one and no backend
    /// carries the region.
    pub fn register(&self, region: &Region) -> Result<Memory> {
        self.0.register(region)
    }

    /// Ends a registration: waits until no transfer uses the memory, then has every backend forget it (contract E3).
    ///
    /// `None` waits without a bound, `Duration::ZERO` does not wait. Memory is never pulled from under a transfer. The
    /// handles of the memory still read and write its bytes; transfers with it are refused.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] if the time runs out first; the memory then stays registered. [`ErrorKind::NotFound`] if it is not
    /// registered with this engine (any more), [`ErrorKind::BadState`] if the engine is shut down, which ended the registration.
    pub fn deregister(&self, memory: &Memory, timeout: impl Into<Timeout>) -> Result<()> {
        self.0.deregister(memory, timeout.into())
    }

    /// The registered memory that `desc` describes, for callers who kept only the descriptor. `None` if it is another
    /// engine's, was deregistered, or comes from an earlier incarnation of this engine.
    #[must_use]
    pub fn memory(&self, desc: &MemoryDesc) -> Option<Memory> {
        let found = sync::read(&self.0.regions).get(&desc.id).cloned();
        found.filter(|memory| memory.is_described_by(desc))
    }

    /// All registered memory, in no order.
    #[must_use]
    pub fn memories(&self) -> Vec<Memory> {
        self.0.memories()
    }
}

impl Core {
    fn register(&self, region: &Region) -> Result<Memory> {
        let _member = self.enter()?;
        // The table knows it first, so that of two threads with one region only one goes on.
        let memory = self.reserve(region)?;
        let mut carried = false;
        let mut failures: Vec<(&str, Error)> = Vec::new();
        for attached in &*self.backends() {
            match memory.enrol(attached) {
                Ok(blob) => carried |= blob.is_some(),
                Err(error) => failures.push((attached.name, error)),
            }
        }
        if let (Some((backend, error)), false) = (failures.first(), carried) {
            self.forget(&memory);
            return Err(error.context(format_args!("the {backend} backend cannot register the memory")));
        }
        for (backend, error) in failures {
            tracing::warn!(engine = %self.key, backend, region = %region.id(), %error, "memory not registered");
        }
        Ok(memory)
    }

    fn reserve(&self, region: &Region) -> Result<Memory> {
        // The pin says whether it is closed, in the region's own words.
        drop(region.pin()?);
        let mut regions = sync::write(&self.regions);
        if regions.contains_key(&region.id().get()) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "region {} is registered with this engine already; make a second region over the same bytes to register them twice",
                    region.id()
                ),
            ));
        }
        let memory = Memory::new(self.key.clone(), region.clone());
        regions.insert(region.id().get(), memory.clone());
        Ok(memory)
    }

    fn deregister(&self, memory: &Memory, timeout: Timeout) -> Result<()> {
        self.check_open()?;
        if !self.is_registered(memory) {
            return Err(unregistered(memory));
        }
        // Waiting comes before the membership: a long wait here must not keep a backend from being added or removed.
        memory.region().close(timeout, &self.policy.clock)?;
        let _member = self.enter()?;
        if self.forget(memory) { Ok(()) } else { Err(unregistered(memory)) }
    }

    /// Takes the memory out of the table, the cache and the backends. `false` if another thread has done so.
    fn forget(&self, memory: &Memory) -> bool {
        if sync::write(&self.regions).remove(&memory.id().get()).is_none() {
            return false;
        }
        self.cache.purge_region(memory.id());
        self.backends().iter().for_each(|attached| attached.slot.deregister(memory.id()));
        true
    }
}
