//! Nodes whose backend is in another process, for the conformance suite.
//!
//! The suite makes the node that submits first, so the first node of each case is one of this process, the second is in the
//! child, and so on. What the suite holds of a child's region is a stand-in of this process's memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mori_core::{
    Access, Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, Error, ErrorKind,
    MemoryDesc, Op, Piece, Region, RegionId, Result, Session, Status, TransferId, TransferOptions,
    TransportBlob,
};
use mori_shm::ShmBackend;
use mori_testkit::{Abilities, Bounds, Harness, Node};

use super::child::{access_number, config, from_hex, to_hex};
use super::parent::Process;

/// Nodes here and in the child by turns.
pub(crate) struct TwoProcesses {
    mode: &'static str,
    there: Arc<Process>,
}

impl TwoProcesses {
    pub(crate) fn new(mode: &'static str) -> Result<Self> {
        Ok(Self { mode, there: Arc::new(Process::start()?) })
    }
}

thread_local! {
    static NODES: Cell<u32> = const { Cell::new(0) };
}

impl Harness for TwoProcesses {
    fn name(&self) -> String {
        format!("mori-shm between two processes, {}", self.mode)
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        // Each case has a thread of its own. One that makes several pairs makes each submitter before its target.
        if NODES.replace(NODES.get() + 1).is_multiple_of(2) {
            return Ok(Box::new(Here(ShmBackend::new(config(self.mode, "-"))?)));
        }
        let node = self.there.ask(&format!("node {} -", self.mode))?;
        Ok(Box::new(There(Arc::new(Proxy {
            process: Arc::clone(&self.there),
            node,
            regions: Mutex::default(),
        }))))
    }

    fn abilities(&self) -> Abilities {
        // The child can make its peers wait; nothing stands between the two processes that could be cut.
        Abilities { hold: true, ..Abilities::default() }
    }

    fn bounds(&self) -> Bounds {
        Bounds { largest: 1 << 20, ..Bounds::default() }
    }
}

struct Here(Arc<ShmBackend>);

impl Node for Here {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<ShmBackend>::clone(&self.0)
    }

    fn hold(&self) {
        // Before the node is attached there is nothing to hold.
        let _ = self.0.suspend(std::time::Duration::from_secs(5));
    }

    fn release(&self) {
        self.0.resume();
    }
}

struct There(Arc<Proxy>);

struct Proxy {
    process: Arc<Process>,
    node: String,
    regions: Mutex<HashMap<RegionId, String>>,
}

impl Proxy {
    fn theirs(&self, region: RegionId) -> Result<String> {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.get(&region).cloned().ok_or_else(|| Error::new(ErrorKind::NotFound, "no such region"))
    }

    fn ask(&self, command: &str) -> Result<String> {
        self.process.ask(command)
    }
}

impl Node for There {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Proxy>::clone(&self.0)
    }

    fn memory(&self, length: usize, access: Access) -> Result<Region> {
        let proxy = &self.0;
        let theirs = proxy.ask(&format!("allocate {} {length} {}", proxy.node, access_number(access)))?;
        let stand_in = Region::zeroed(length, access)?;
        proxy.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(stand_in.id(), theirs);
        Ok(stand_in)
    }

    fn store(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.process.store(&self.0.theirs(region.id())?, offset, bytes)
    }

    fn load(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self.0.process.load(&self.0.theirs(region.id())?, offset, bytes.len())?);
        Ok(())
    }

    fn hold(&self) {
        let _ = self.0.ask(&format!("suspend {}", self.0.node));
    }

    fn release(&self) {
        let _ = self.0.ask(&format!("resume {}", self.0.node));
    }
}

impl Drop for There {
    fn drop(&mut self) {
        let regions = std::mem::take(&mut *self.0.regions.lock().unwrap_or_else(PoisonError::into_inner));
        for region in regions.into_values() {
            let _ = self.0.ask(&format!("free {region}"));
        }
        let _ = self.0.ask(&format!("drop {}", self.0.node));
    }
}

impl Backend for Proxy {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        // Messages arrive in the child, where the suite does not look for them.
        Capabilities { host_memory: true, cancel: true, peer_loss: true, ..Capabilities::default() }
    }

    fn has_notifier(&self) -> bool {
        true
    }

    fn poll_progress(&self, _transfer: TransferId) {}

    fn cancel(&self, _transfer: TransferId) -> Result<()> {
        Ok(())
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        let command = format!("attach {} {} {}", self.node, context.engine, to_hex(&context.instance));
        let desc = EngineDesc::unpack(&from_hex(&self.ask(&command)?)?)?;
        Ok(Attachment { blob: desc.transports.into_iter().next(), ..Attachment::default() })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let desc = self.process.register(&self.theirs(region.id())?)?;
        Ok(desc.transports.into_iter().next())
    }

    fn deregister(&self, region: RegionId) {
        if let Ok(theirs) = self.theirs(region) {
            let _ = self.ask(&format!("deregister {theirs}"));
        }
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        self.ask(&format!("add_peer {} {}", self.node, to_hex(&peer.pack()))).map(drop)
    }

    fn remove_peer(&self, peer: &EngineKey) {
        let _ = self.ask(&format!("remove_peer {} {peer}", self.node));
    }

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Ok(())
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Ok(Arc::new(ProxySession {
            process: Arc::clone(&self.process),
            node: self.node.clone(),
            local: self.theirs(local.id())?,
            remote: to_hex(&remote.pack()),
        }))
    }

    fn shutdown(&self) {
        let _ = self.ask(&format!("shutdown {}", self.node));
    }
}

/// A session of the child's; a transfer is over when its submission returns.
struct ProxySession {
    process: Arc<Process>,
    node: String,
    local: String,
    remote: String,
}

impl Session for ProxySession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let op = if op == Op::Read { "read" } else { "write" };
        let pieces: String = pieces
            .iter()
            .map(|piece| format!(" {} {} {}", piece.local, piece.remote, piece.length))
            .collect();
        let command = format!("transfer {} {op} {} {}{pieces}", self.node, self.local, self.remote);
        match self.process.ask(&command) {
            Ok(_) => Status::succeeded(options.tag),
            Err(error) => Status::failed(options.tag, error),
        }
    }

    fn alive(&self) -> bool {
        true
    }
}
