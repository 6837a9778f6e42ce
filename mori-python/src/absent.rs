//! A transport that may be created on every machine and carries nothing on this one, so that a route can say why.

use std::sync::Arc;

use mori_engine::{
    Attachment, Backend, BackendContext, BackendSession, Capabilities, EngineDesc, EngineKey, Error,
    ErrorKind, MemoryDesc, Region, RegionId, Result, TransferId, TransportBlob,
};

/// The engine's name of the GPU-to-GPU transport.
pub(crate) const XGMI: &str = "xgmi";

/// The GPU-to-GPU transport on a machine that has none, as `why` says: programs create it whether or not there is a GPU.
pub(crate) fn xgmi(why: Error) -> Arc<dyn Backend> {
    Arc::new(Absent { name: XGMI, why })
}

struct Absent {
    name: &'static str,
    why: Error,
}

impl Backend for Absent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {}

    fn attach(&self, _context: BackendContext) -> Result<Attachment> {
        Ok(Attachment::default())
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        // Host memory is for other transports; device memory has been waiting for this one.
        if region.location().is_host() { Ok(None) } else { Err(self.why.clone()) }
    }

    fn deregister(&self, _region: RegionId) {}

    fn add_peer(&self, _peer: &EngineDesc) -> Result<()> {
        // NotFound is what the engine takes without a line in its log.
        Err(Error::new(ErrorKind::NotFound, self.why.message()))
    }

    fn remove_peer(&self, _peer: &EngineKey) {}

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Err(self.why.clone())
    }

    fn session(&self, _local: &Region, _remote: &MemoryDesc) -> Result<Arc<dyn BackendSession>> {
        Err(self.why.clone())
    }

    fn shutdown(&self) {}
}
