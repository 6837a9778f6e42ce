//! A backend for models: what it does when it is polled or blocked on is a closure of the model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::{Attachment, Backend, BackendContext, BlockOn, Capabilities, Session};
use crate::desc::{EngineDesc, MemoryDesc, TransportBlob};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EngineKey, RegionId, Tag, TransferId};
use crate::memory::Region;
use crate::status::{Completer, Origin, Status};

type Poll = Box<dyn Fn(usize) + Send + Sync>;
type Block = Box<dyn Fn() + Send + Sync>;

pub(super) struct Fake {
    notifier: bool,
    polls: AtomicUsize,
    on_poll: Poll,
    on_block: Option<Block>,
}

impl Fake {
    /// `on_poll` gets the number of the poll, from 1.
    pub(super) fn new(notifier: bool, on_poll: impl Fn(usize) + Send + Sync + 'static) -> Self {
        Self { notifier, polls: AtomicUsize::new(0), on_poll: Box::new(on_poll), on_block: None }
    }

    /// With a blocking hook.
    pub(super) fn blocking(self, on_block: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_block: Some(Box::new(on_block)), ..self }
    }

    pub(super) fn start(self) -> Arc<Self> {
        Arc::new(self)
    }

    pub(super) fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }
}

/// A submitted status of this backend.
pub(super) fn submitted(fake: &Arc<Fake>) -> (Completer, Status) {
    let weak: Weak<Fake> = Arc::downgrade(fake);
    let backend: Weak<dyn Backend> = weak;
    let (completer, status) = Status::pair(Origin::backend(&backend, fake.notifier, Tag::default()));
    completer.submit();
    (completer, status)
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "a model's backend moves no bytes")
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn has_notifier(&self) -> bool {
        self.notifier
    }

    fn poll_progress(&self, _transfer: TransferId) {
        (self.on_poll)(self.polls.fetch_add(1, Ordering::Relaxed) + 1);
    }

    fn block_on(&self, _transfer: TransferId) -> BlockOn {
        match &self.on_block {
            None => BlockOn::Unsupported,
            Some(hook) => {
                hook();
                BlockOn::Returned
            }
        }
    }

    fn attach(&self, _context: BackendContext) -> Result<Attachment> {
        Err(unsupported())
    }

    fn register(&self, _region: &Region) -> Result<Option<TransportBlob>> {
        Err(unsupported())
    }

    fn deregister(&self, _region: RegionId) {}

    fn add_peer(&self, _peer: &EngineDesc) -> Result<()> {
        Err(unsupported())
    }

    fn remove_peer(&self, _peer: &EngineKey) {}

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Err(unsupported())
    }

    fn session(&self, _local: &Region, _remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Err(unsupported())
    }

    fn shutdown(&self) {}
}
