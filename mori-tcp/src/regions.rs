//! The regions that peers may reach, by key, and the blobs that carry keys and addresses in descriptors.

use std::collections::HashMap;

use crate::sync::RwLock;
use mori_core::{Access, Error, ErrorKind, Pin, Region, RegionId, TransportBlob};

use crate::wire::{Fields, malformed, push_text};

/// The transport's name.
pub(crate) const NAME: &str = "tcp";
/// The version of both blobs.
const BLOB_VERSION: u32 = 1;

/// What a peer may do with a region; the numbers are those of the blob.
const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

/// The regions of this engine.
#[derive(Debug, Default)]
pub(crate) struct Regions(RwLock<Tables>);

#[derive(Debug, Default)]
struct Tables {
    by_key: HashMap<u128, Region>,
    keys: HashMap<RegionId, u128>,
}

impl Regions {
    /// Adds a region under a fresh random key; the same region again keeps its key.
    pub(crate) fn add(&self, region: &Region) -> Result<u128, Error> {
        if let Some(key) = self.0.read().keys.get(&region.id()) {
            return Ok(*key);
        }
        let mut bytes = [0; 16];
        crate::random(&mut bytes)?;
        let mut tables = self.0.write();
        let key = *tables.keys.entry(region.id()).or_insert(u128::from_le_bytes(bytes));
        tables.by_key.insert(key, region.clone());
        Ok(key)
    }

    pub(crate) fn remove(&self, region: RegionId) {
        let removed = {
            let mut tables = self.0.write();
            tables.keys.remove(&region).and_then(|key| tables.by_key.remove(&key))
        };
        // The memory, if this was its last handle, is given back without the lock.
        drop(removed);
    }

    pub(crate) fn clear(&self) {
        let tables = std::mem::take(&mut *self.0.write());
        drop(tables);
    }

    /// Pins the region that a peer names, if it may be used that way.
    pub(crate) fn pin(&self, key: u128, writing: bool) -> Result<Pin, Error> {
        let tables = self.0.read();
        let region = tables.by_key.get(&key).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "the target does not know this region's key: it was deregistered, or belongs to an earlier incarnation of the engine; exchange descriptors again",
            )
        })?;
        may(region.access(), writing)?;
        region.pin()
    }
}

/// Whether a peer may use a region that way.
pub(crate) fn may(access: Access, writing: bool) -> Result<(), Error> {
    let (granted, what) =
        if writing { (access.remote_write, "written") } else { (access.remote_read, "read") };
    if granted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AccessDenied,
        format!("the region may not be {what} by peers; register it with that access"),
    ))
}

/// What a memory descriptor carries for this transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBlob {
    pub(crate) key: u128,
    pub(crate) instance: [u8; 16],
    pub(crate) access: Access,
}

impl MemoryBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        let mut bytes = self.key.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.instance);
        let readable = if self.access.remote_read { READABLE } else { 0 };
        let writable = if self.access.remote_write { WRITABLE } else { 0 };
        bytes.push(readable | writable);
        TransportBlob { transport: NAME.into(), version: BLOB_VERSION, bytes }
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self, Error> {
        check_version(blob)?;
        let mut fields = Fields(&blob.bytes);
        let mut read = || -> Option<Self> {
            let key = u128::from_le_bytes(fields.bytes()?);
            let instance = fields.bytes()?;
            let rights = fields.u8()?;
            let access = Access { remote_read: rights & READABLE != 0, remote_write: rights & WRITABLE != 0 };
            fields.0.is_empty().then_some(Self { key, instance, access })
        };
        read().ok_or_else(|| malformed("a memory descriptor's tcp blob of the wrong length"))
    }
}

/// What an engine descriptor carries for this transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineBlob {
    pub(crate) instance: [u8; 16],
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl EngineBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        let mut bytes = self.instance.to_vec();
        bytes.extend_from_slice(&self.port.to_le_bytes());
        push_text(&mut bytes, &self.host, 255);
        TransportBlob { transport: NAME.into(), version: BLOB_VERSION, bytes }
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self, Error> {
        check_version(blob)?;
        let mut fields = Fields(&blob.bytes);
        let mut read = || -> Option<Self> {
            let instance = fields.bytes()?;
            let port = fields.u16()?;
            let host = fields.text()?.to_owned();
            fields.0.is_empty().then_some(Self { instance, port, host })
        };
        read().ok_or_else(|| malformed("an engine descriptor's tcp blob of the wrong length"))
    }
}

fn check_version(blob: &TransportBlob) -> Result<(), Error> {
    if blob.version == BLOB_VERSION {
        return Ok(());
    }
    Err(malformed(format!("a tcp blob of version {}, where {BLOB_VERSION} is understood", blob.version)))
}

/// A blob of this transport among several.
pub(crate) fn find(blobs: &[TransportBlob]) -> Result<&TransportBlob, Error> {
    blobs.iter().find(|blob| blob.transport == NAME).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "the peer's descriptor has no tcp part; enable the tcp backend there")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_go_both_ways_and_other_lengths_are_malformed() {
        let memory = MemoryBlob { key: u128::MAX / 3, instance: [4; 16], access: Access::READ_ONLY };
        let engine = EngineBlob { instance: [5; 16], host: "knoten-1.example".into(), port: 4711 };
        let (memory_blob, engine_blob) = (memory.encode(), engine.encode());
        assert_eq!(MemoryBlob::decode(&memory_blob).unwrap(), memory);
        assert_eq!(EngineBlob::decode(&engine_blob).unwrap(), engine);
        for length in 0..memory_blob.bytes.len() {
            let cut = TransportBlob { bytes: memory_blob.bytes[..length].to_vec(), ..memory_blob.clone() };
            assert_eq!(MemoryBlob::decode(&cut).unwrap_err().kind(), ErrorKind::Malformed);
        }
        for length in 0..engine_blob.bytes.len() {
            let cut = TransportBlob { bytes: engine_blob.bytes[..length].to_vec(), ..engine_blob.clone() };
            assert_eq!(EngineBlob::decode(&cut).unwrap_err().kind(), ErrorKind::Malformed);
        }
        for (blob, memory) in [(&memory_blob, true), (&engine_blob, false)] {
            let mut longer = blob.clone();
            longer.bytes.push(0);
            let refused =
                if memory { MemoryBlob::decode(&longer).err() } else { EngineBlob::decode(&longer).err() };
            assert_eq!(refused.unwrap().kind(), ErrorKind::Malformed);
        }
        let other = TransportBlob { version: 2, ..memory_blob };
        assert!(MemoryBlob::decode(&other).unwrap_err().message().contains("version 2"));
    }

    #[test]
    fn keys_are_checked_for_existence_and_rights() {
        let regions = Regions::default();
        let region = Region::zeroed(16, Access::READ_ONLY).unwrap();
        let key = regions.add(&region).unwrap();
        assert_eq!(regions.add(&region).unwrap(), key);
        assert!(regions.pin(key, false).is_ok());
        assert_eq!(regions.pin(key, true).unwrap_err().kind(), ErrorKind::AccessDenied);
        assert_eq!(regions.pin(key ^ 1, false).unwrap_err().kind(), ErrorKind::NotFound);
        regions.remove(region.id());
        assert_eq!(regions.pin(key, false).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
