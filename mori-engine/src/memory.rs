//! Registered memory: the handle that applications hold, and what each backend said about it.

use std::fmt;
use std::sync::{Arc, RwLock};

use mori_core::{EngineKey, Error, MemoryDesc, Region, RegionId, Result, TransportBlob};

use crate::attached::Attached;
use crate::backends::Carrier;
use crate::sync;

/// Memory that is registered with an engine; a handle, clones are handles to the same registration.
///
/// Dropping the handles does not end the registration: the engine keeps it until
/// [`Engine::deregister`](crate::Engine::deregister) or until it is shut down, because peers hold its descriptor. A handle
/// outlives both, and then still reads and writes its own bytes.
///
/// ```
/// use mori_engine::{Access, Engine};
/// let engine = Engine::builder("prefill-0").build()?;
/// let memory = engine.allocate(4096, Access::READ_ONLY)?;
/// memory.write_at(64, b"block")?;
/// assert_eq!(memory.desc().size, 4096);
/// assert_eq!(engine.memory(&memory.desc()).unwrap().id(), memory.id());
/// # Ok::<(), mori_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    engine: EngineKey,
    region: Region,
    enrolments: RwLock<Vec<Enrolment>>,
}

/// What a backend answered when the region was registered with it.
struct Enrolment {
    backend: &'static str,
    answer: Result<Option<TransportBlob>>,
}

/// Where a backend stands with a region.
pub(crate) enum Standing {
    /// It carries the region.
    Carried,
    /// It cannot carry memory of this kind.
    OtherKind,
    /// It could not register the region.
    Failed(Error),
}

impl Memory {
    pub(crate) fn new(engine: EngineKey, region: Region) -> Self {
        Self(Arc::new(Inner { engine, region, enrolments: RwLock::new(Vec::new()) }))
    }

    /// The region: its address, its length, where it is, who holds it.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The region's number, unique in this process and never reused.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.0.region.id()
    }

    /// The length in bytes, never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "registered memory is never empty")]
    pub fn len(&self) -> usize {
        self.0.region.len()
    }

    /// The descriptor, for peers to name this memory by. It has a part for each transport that carries it, so take it after
    /// the backends are added.
    #[must_use]
    pub fn desc(&self) -> MemoryDesc {
        MemoryDesc { transports: self.blobs(), ..MemoryDesc::for_region(&self.0.engine, &self.0.region) }
    }

    /// Copies bytes out. While a transfer writes to the same bytes, the copy may hold old and new ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) past the end,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a device's memory.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.region.read_at(offset, into)
    }

    /// Copies bytes in. A transfer that reads the same bytes meanwhile may carry old and new ones.
    ///
    /// # Errors
    ///
    /// As [`Memory::read_at`].
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.0.region.write_at(offset, from)
    }

    /// Registers the region with a backend and keeps the answer.
    pub(crate) fn enrol(&self, attached: &Attached) -> Result<Option<TransportBlob>> {
        let answer = attached.slot.register(&self.0.region);
        let mut enrolments = sync::write(&self.0.enrolments);
        enrolments.retain(|enrolment| enrolment.backend != attached.name);
        enrolments.push(Enrolment { backend: attached.name, answer: answer.clone() });
        answer
    }

    /// Forgets what a backend that leaves has said.
    pub(crate) fn strike(&self, backend: &str) {
        sync::write(&self.0.enrolments).retain(|enrolment| enrolment.backend != backend);
    }

    pub(crate) fn standing(&self, backend: &str) -> Standing {
        let enrolments = sync::read(&self.0.enrolments);
        match enrolments.iter().find(|enrolment| enrolment.backend == backend).map(|found| &found.answer) {
            Some(Ok(Some(_))) => Standing::Carried,
            Some(Ok(None)) | None => Standing::OtherKind,
            Some(Err(error)) => Standing::Failed(error.clone()),
        }
    }

    fn blobs(&self) -> Vec<TransportBlob> {
        let enrolments = sync::read(&self.0.enrolments);
        enrolments.iter().filter_map(|enrolment| enrolment.answer.as_ref().ok()?.clone()).collect()
    }

    /// Whether `desc` is a descriptor of this registration: at the same address, of the same size, and with no part that contradicts a part of
    /// ours. Another incarnation of the engine may have given the same number to other memory.
    pub(crate) fn is_described_by(&self, desc: &MemoryDesc) -> bool {
        let Inner { engine, region, enrolments } = &*self.0;
        let same = desc.engine_key == *engine
            && desc.id == region.id().get()
            && desc.size == region.len() as u64
            && desc.address == region.address() as u64;
        let enrolments = sync::read(enrolments);
        let ours = |transport: &str| {
            let answers = enrolments.iter().filter_map(|enrolment| enrolment.answer.as_ref().ok()?.as_ref());
            answers.into_iter().find(|blob| blob.transport == transport)
        };
        same && desc.transports.iter().all(|blob| ours(&blob.transport).is_none_or(|ours| ours == blob))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("engine", &self.0.engine)
            .field("region", &self.0.region)
            .finish_non_exhaustive()
    }
}
