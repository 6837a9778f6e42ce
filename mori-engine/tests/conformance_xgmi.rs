//! The conformance suite over whole engines with XGMI, on the simulated HIP runtime, and TCP beside it: what XGMI does, and the
//! notifications, which it leaves to TCP.
#![cfg(all(feature = "tcp", feature = "xgmi"))]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program and its report")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mori_engine::{
    Access, Attachment, Backend, BackendContext, BackendSession, BlockOn, Capabilities, Engine, EngineDesc,
    EngineKey, Error, ErrorKind, Memory, MemoryDesc, Op, Piece, Region, RegionId, Result, Session, Status,
    TcpConfig, TransferId, TransferOptions, TransportBlob, XgmiBackend, XgmiCompletion, XgmiConfig,
    XgmiRuntime,
};
use mori_hip_sim::client::Simulation;
use mori_testkit::{CASES, Harness, Need, Node, Verdict, run_some};

const DEVICES: u32 = 4;
const NAME: &str = "engine";

static MACHINE: LazyLock<(Simulation, XgmiRuntime)> = LazyLock::new(|| {
    let simulation = Simulation::open().unwrap();
    simulation.set("devices", &DEVICES.to_string()).unwrap();
    let runtime = XgmiRuntime::load(Some(simulation.library())).unwrap();
    (simulation, runtime)
});

struct Engines {
    completion: XgmiCompletion,
    next: AtomicU32,
}

impl Harness for Engines {
    fn name(&self) -> String {
        format!("engines with xgmi over the simulated runtime, {:?}, and tcp", self.completion)
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        let config = XgmiConfig {
            library: Some(MACHINE.0.library().to_owned()),
            completion: self.completion,
            housekeeping: Duration::from_millis(5),
            ..XgmiConfig::default()
        };
        let device = self.next.fetch_add(1, Ordering::Relaxed) % DEVICES;
        let whole =
            Whole { xgmi: XgmiBackend::new(config)?, engine: OnceLock::new(), memories: Mutex::default() };
        Ok(Box::new(EngineNode(Arc::new(whole), device)))
    }
}

struct EngineNode(Arc<Whole>, u32);

impl Node for EngineNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Whole>::clone(&self.0)
    }

    fn memory(&self, length: usize, access: Access) -> Result<Region> {
        MACHINE.1.allocate(self.1, length, access)
    }

    fn store(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        MACHINE.1.upload(region, offset, bytes)
    }

    fn load(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        MACHINE.1.download(region, offset, bytes)
    }
}

/// A whole engine in the place of a backend. Its descriptors travel as the blobs of the suite's own.
struct Whole {
    xgmi: Arc<XgmiBackend>,
    engine: OnceLock<Engine>,
    memories: Mutex<HashMap<RegionId, Memory>>,
}

fn pack(bytes: Vec<u8>) -> TransportBlob {
    TransportBlob { transport: NAME.to_owned(), version: 1, bytes }
}

/// The bytes of an engine's own descriptor.
fn unpack(blob: Option<&TransportBlob>) -> Result<&[u8]> {
    match blob {
        Some(blob) if blob.version == 1 => Ok(&blob.bytes),
        Some(_) => Err(Error::new(ErrorKind::Malformed, "its engine's descriptor is of another version")),
        None => Err(Error::new(ErrorKind::NotFound, "it has no engine's descriptor")),
    }
}

impl Whole {
    fn engine(&self) -> Result<&Engine> {
        self.engine.get().ok_or_else(|| Error::new(ErrorKind::BadState, "there is no engine yet"))
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<RegionId, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn local(&self, region: &Region) -> Result<Memory> {
        let known = self.memories().get(&region.id()).cloned();
        known.ok_or_else(|| Error::new(ErrorKind::NotFound, "the local region is not registered"))
    }

    fn remote(desc: &MemoryDesc) -> Result<MemoryDesc> {
        let inner = MemoryDesc::unpack(unpack(desc.blob(NAME))?)?;
        // What the suite says about the memory counts, true or not.
        Ok(MemoryDesc { transports: inner.transports, ..desc.clone() })
    }
}

impl Backend for Whole {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { notify: true, ..self.xgmi.capabilities() }
    }

    fn has_notifier(&self) -> bool {
        self.xgmi.has_notifier()
    }

    fn poll_progress(&self, transfer: TransferId) {
        self.xgmi.poll_progress(transfer);
    }

    fn block_on(&self, transfer: TransferId) -> BlockOn {
        self.xgmi.block_on(transfer)
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        self.xgmi.cancel(transfer)
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        if self.engine.get().is_some() {
            return Err(Error::new(ErrorKind::BadState, "there is an engine already"));
        }
        let engine = Engine::builder(context.engine)
            .node_id(context.node_id)
            .notifications(context.notifications)
            .backend(Arc::<XgmiBackend>::clone(&self.xgmi))
            .tcp(TcpConfig::default())
            .build()?;
        let blob = pack(engine.desc().pack());
        let _ = self.engine.set(engine);
        Ok(Attachment { blob: Some(blob), ..Attachment::default() })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let memory = self.engine()?.register(region)?;
        let blob = pack(memory.desc().pack());
        self.memories().insert(region.id(), memory);
        Ok(Some(blob))
    }

    fn deregister(&self, region: RegionId) {
        let memory = self.memories().remove(&region);
        if let (Ok(engine), Some(memory)) = (self.engine(), memory) {
            let _ = engine.deregister(&memory, Duration::ZERO);
        }
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let engine = self.engine()?;
        engine.add_peer(&EngineDesc::unpack(unpack(peer.blob(NAME))?)?)
    }

    fn remove_peer(&self, peer: &EngineKey) {
        let _ = self.engine().and_then(|engine| engine.remove_peer(peer));
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        let engine = self.engine()?;
        engine.explain(&self.local(local)?, &Self::remote(remote)?).error().map_or(Ok(()), Err)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn BackendSession>> {
        let session = self.engine()?.session(&self.local(local)?, &Self::remote(remote)?)?;
        Ok(Arc::new(WholeSession(session)))
    }

    fn shutdown(&self) {
        let _ = self.engine().map(Engine::shutdown);
    }
}

struct WholeSession(Session);

impl BackendSession for WholeSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        self.0.submit(op, pieces, options.clone())
    }

    fn alive(&self) -> bool {
        self.0.alive()
    }
}

/// Cases that ask for the kind of error that a backend gives, where an engine says that there is no route: a bad state.
const LEFT_OUT: [&str; 3] = [
    "an_unknown_peer_is_not_found",
    "malformed_engine_blobs_are_refused",
    "access_rights_are_kept_by_the_target",
];

fn run(completion: XgmiCompletion) {
    for name in LEFT_OUT {
        assert!(CASES.iter().any(|case| case.name == name), "there is no case {name}");
        println!(
            "left out: {name}: an engine says that there is no route, with the backend's reason in its words"
        );
    }
    let report =
        run_some(Engines { completion, next: AtomicU32::new(0) }, |case| !LEFT_OUT.contains(&case.name));
    println!("{report}");
    report.assert_good();
    // Every case about messages runs that needs no more than messages.
    for case in CASES.iter().filter(|case| case.needs == [Need::Notify]) {
        let verdict = report.entries().iter().find(|(name, _)| *name == case.name);
        assert_eq!(verdict.map(|(_, verdict)| verdict), Some(&Verdict::Passed), "{}", case.name);
    }
    let misuse = MACHINE.0.report().unwrap().misuse;
    assert!(misuse.is_empty(), "{misuse:?}");
}

#[test]
fn without_a_notifier() {
    run(XgmiCompletion::EventQuery);
}

#[test]
fn with_callbacks() {
    run(XgmiCompletion::HostCallback);
}
