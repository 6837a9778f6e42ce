//! A backend whose polls do nothing but count, or complete what they are asked about.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, Completer, EngineDesc, EngineKey, Error, ErrorKind,
    MemoryDesc, Origin, Region, RegionId, Result, Session, Status, Tag, TransferId, TransportBlob,
};

/// Without a notifier.
pub(crate) struct Polled {
    polls: AtomicU64,
    over: Mutex<Vec<Completer>>,
}

impl Polled {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self { polls: AtomicU64::new(0), over: Mutex::new(Vec::new()) })
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// A submitted status; only the writer's side that is returned can end it.
    pub(crate) fn submit(self: &Arc<Self>) -> (Completer, Status) {
        let weak: Weak<Self> = Arc::downgrade(self);
        let backend: Weak<dyn Backend> = weak;
        let (completer, status) = Status::pair(Origin::backend(&backend, false, Tag(0)));
        completer.submit();
        (completer, status)
    }

    /// The next poll ends one of these.
    pub(crate) fn finish(&self, completers: Vec<Completer>) {
        *self.over.lock().unwrap() = completers;
    }
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "this backend only counts polls")
}

impl Backend for Polled {
    fn name(&self) -> &'static str {
        "polled"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn has_notifier(&self) -> bool {
        false
    }

    fn poll_progress(&self, _transfer: TransferId) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let over = self.over.lock().unwrap().pop();
        if let Some(completer) = over {
            completer.succeed();
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

/// A submitted status without a backend.
pub(crate) fn in_progress() -> (Completer, Status) {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    (completer, status)
}
