//! The fake towards engines and peers: joining, regions, peers, routes and sessions.

use std::sync::Arc;
use std::thread;

use mori_core::{
    Attachment, BackendContext, Capabilities, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc, Op,
    Piece, Region, RegionId, Result, Session, Status, TransferOptions, TransportBlob,
};

use super::core::{Core, Phase};
use super::job::{PeerAt, Reach, lost};
use super::locked;
use crate::mutants::Flaw;

/// The version of the blobs' layout.
const BLOB: u32 = 1;

impl Core {
    pub(super) fn attach(me: &Arc<Self>, context: BackendContext) -> Result<Attachment> {
        let instance = context.instance;
        let address = me.fabric.number();
        {
            let mut state = locked(&me.state);
            if state.phase != Phase::New && !me.has(Flaw::AttachesTwice) {
                return Err(Error::new(ErrorKind::BadState, "the backend is attached already, or shut down"));
            }
            state.phase = Phase::Attached;
            state.context = Some(context);
            state.address = address;
            if me.config.notifier && !me.has(Flaw::NotifierNeedsPolls) {
                let worker = Arc::clone(me);
                let thread = thread::Builder::new().name("fake-worker".into()).spawn(move || worker.work());
                state.worker = Some(thread.map_err(|error| {
                    Error::io(ErrorKind::ResourceExhausted, "cannot start the fake's thread", &error)
                })?);
            }
        }
        me.fabric.enter(address, me);
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend_from_slice(&instance);
        Ok(Attachment { host: None, port: None, blob: Some(me.blob(bytes)) })
    }

    fn blob(&self, bytes: Vec<u8>) -> TransportBlob {
        TransportBlob { transport: self.config.name.to_owned(), version: BLOB, bytes }
    }

    fn open<const N: usize>(&self, blob: Option<&TransportBlob>, of: &str) -> Result<[u8; N]> {
        let name = self.config.name;
        let blob = blob.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{of} has no {name} transport; nothing leads there"))
        })?;
        if self.has(Flaw::PanicsOnGarbage) && blob.bytes.len() < N {
            return Ok(std::array::from_fn(|index| blob.bytes[index]));
        }
        let bytes = <[u8; N]>::try_from(blob.bytes.as_slice());
        match bytes {
            _ if self.has(Flaw::AcceptsGarbage) => Ok(bytes.unwrap_or([0; N])),
            Ok(bytes) if blob.version == BLOB => Ok(bytes),
            _ => Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "the {name} blob of {of} has version {} and {} bytes; expected version {BLOB} and {N} bytes",
                    blob.version,
                    blob.bytes.len()
                ),
            )),
        }
    }

    pub(super) fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        if !region.location().is_host() {
            return Ok(None);
        }
        let number = self.fabric.number();
        let key = (u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64) | u128::from(!number);
        let mut state = locked(&self.state);
        if state.phase != Phase::Attached {
            return Err(shut());
        }
        let key = *state.keys.entry(region.id()).or_insert(key);
        state.by_key.insert(key, region.clone());
        Ok(Some(self.blob(key.to_le_bytes().to_vec())))
    }

    pub(super) fn deregister(&self, region: RegionId) {
        let mut state = locked(&self.state);
        if self.has(Flaw::KeepsStaleKeys) {
            return;
        }
        if let Some(key) = state.keys.remove(&region) {
            state.by_key.remove(&key);
        }
    }

    pub(super) fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let bytes: [u8; 24] = self.open(peer.blob(self.config.name), peer.key.as_str())?;
        let (address, instance) = bytes.split_at(8);
        let address = u64::from_le_bytes(address.try_into().unwrap_or_default());
        let mut at = PeerAt { engine: peer.key.clone(), address, instance: [0; 16] };
        at.instance.copy_from_slice(instance);
        let replaced = {
            let mut state = locked(&self.state);
            if state.phase != Phase::Attached {
                return Err(shut());
            }
            let known = state.peers.get(&peer.key);
            let replaced = known.is_some_and(|known| known.instance != at.instance);
            if replaced && self.has(Flaw::MissesRestarts) {
                return Ok(());
            }
            state.peers.insert(peer.key.clone(), at);
            replaced
        };
        if replaced {
            self.halt(|_, engine| engine == Some(&peer.key), &lost(&peer.key, "was started anew"));
        }
        Ok(())
    }

    pub(super) fn remove_peer(&self, peer: &EngineKey) {
        locked(&self.state).peers.remove(peer);
        if !self.has(Flaw::ForgetsRemovedPeers) {
            self.halt(|_, engine| engine == Some(peer), &lost(peer, "was removed"));
        }
    }

    pub(super) fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<u128> {
        if !local.location().is_host() {
            return Err(Capabilities::unsupported(self.config.name, "device memory"));
        }
        let key: [u8; 16] = self.open(remote.blob(self.config.name), "the region")?;
        let state = locked(&self.state);
        if state.phase != Phase::Attached {
            return Err(shut());
        }
        if !state.peers.contains_key(&remote.engine_key) && !self.has(Flaw::AcceptsUnknownPeers) {
            return Err(unknown(&remote.engine_key));
        }
        Ok(u128::from_le_bytes(key))
    }

    pub(super) fn session(me: &Arc<Self>, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        let mut key = me.route(local, remote)?;
        if me.has(Flaw::MixesUpRegions) {
            let node = {
                let state = locked(&me.state);
                state.peers.get(&remote.engine_key).map(|peer| peer.address)
            };
            if let Some(node) = node.and_then(|address| me.fabric.node(address)) {
                key = locked(&node.state).by_key.keys().min().copied().unwrap_or(key);
            }
        }
        Ok(Arc::new(FakeSession {
            core: Arc::clone(me),
            local: local.clone(),
            engine: remote.engine_key.clone(),
            key,
        }))
    }
}

pub(super) fn unknown(engine: &EngineKey) -> Error {
    Error::new(ErrorKind::NotFound, format!("the engine {engine} is not known here; add it first"))
}

pub(super) fn shut() -> Error {
    Error::new(ErrorKind::BadState, "the backend has shut down, or has not joined an engine yet")
}

/// A pair of regions with a way between them.
pub(super) struct FakeSession {
    core: Arc<Core>,
    pub(super) local: Region,
    pub(super) engine: EngineKey,
    pub(super) key: u128,
}

impl Session for FakeSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        self.core.submit(self, op, pieces, options)
    }

    fn alive(&self) -> bool {
        let peer = {
            let state = locked(&self.core.state);
            if state.phase != Phase::Attached {
                return false;
            }
            state.peers.get(&self.engine).cloned()
        };
        peer.is_some_and(|peer| !matches!(self.core.reach(&peer, Clock::system().now()), Reach::Lost(_)))
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        if self.core.has(Flaw::SessionsCancel) {
            let error = Error::new(ErrorKind::Cancelled, "the session was dropped");
            self.core.halt(|_, engine| engine == Some(&self.engine), &error);
        }
    }
}
