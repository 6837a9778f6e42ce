//! Nodes whose backend is in another process, for the conformance suite.
//!
//! The suite makes the node that submits first, so the first node of each case is one of this process, and the others are
//! in the child. What the suite holds of a child's region is a stand-in of this process's host memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mori_core::{
    Access, Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, Error, ErrorKind,
    MemoryDesc, Op, Piece, Region, RegionId, Result, Session, Status, TransferId, TransferOptions,
    TransportBlob,
};
use mori_testkit::{Bounds, Harness, Node};
use mori_xgmi::Completion;

use super::SimHarness;
use super::child::{access_number, from_hex, to_hex};
use super::parent::Process;

/// One node here, and the others of a case in the child.
pub(crate) struct TwoProcesses {
    here: SimHarness,
    there: Arc<Process>,
}

impl TwoProcesses {
    pub(crate) fn new(completion: Completion) -> Result<Self> {
        Ok(Self { here: SimHarness::new(completion), there: Arc::new(Process::start(&[])?) })
    }
}

thread_local! {
    static NODES: Cell<u32> = const { Cell::new(0) };
}

impl Harness for TwoProcesses {
    fn name(&self) -> String {
        format!("{}, between two processes", self.here.name())
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        // Each case has a thread of its own.
        let number = NODES.replace(NODES.get() + 1);
        if number == 0 {
            return self.here.node();
        }
        let mode = if self.here.config.completion == Completion::HostCallback { "callback" } else { "query" };
        let node = self.there.ask(&format!("node {mode}"))?;
        let proxy = Proxy {
            process: Arc::clone(&self.there),
            node,
            notifier: self.here.config.completion == Completion::HostCallback,
            regions: Arc::default(),
        };
        Ok(Box::new(ProxyNode(Arc::new(proxy), number % super::DEVICES)))
    }

    fn bounds(&self) -> Bounds {
        Bounds { largest: 1 << 18, ..self.here.bounds() }
    }
}

type Regions = Arc<Mutex<HashMap<RegionId, String>>>;

struct ProxyNode(Arc<Proxy>, u32);

struct Proxy {
    process: Arc<Process>,
    node: String,
    notifier: bool,
    regions: Regions,
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

impl Node for ProxyNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.0) as Arc<dyn Backend>
    }

    fn memory(&self, length: usize, access: Access) -> Result<Region> {
        let (proxy, device) = (&self.0, self.1);
        let theirs =
            proxy.ask(&format!("allocate {} {device} {length} {}", proxy.node, access_number(access)))?;
        let stand_in = Region::zeroed(length, access)?;
        proxy.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(stand_in.id(), theirs);
        Ok(stand_in)
    }

    fn store(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.process.store(&self.0.theirs(region.id())?, offset, bytes)
    }

    fn load(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let found = self.0.process.load(&self.0.theirs(region.id())?, offset, bytes.len())?;
        bytes.copy_from_slice(&found);
        Ok(())
    }
}

impl Drop for ProxyNode {
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
        "xgmi"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { device_memory: true, peer_loss: true, ..Capabilities::default() }
    }

    fn has_notifier(&self) -> bool {
        self.notifier
    }

    fn poll_progress(&self, _transfer: TransferId) {}

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        let command = format!(
            "attach {} {} {} {}",
            self.node,
            context.engine,
            to_hex(&context.instance),
            context.node_id
        );
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
