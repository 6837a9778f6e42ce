//! What this transport puts into descriptors.
//!
//! Engine: `instance (16 bytes), port (u16), number of devices (u8), host (u8 length, text)`. Memory: `instance, rights (bit 0: peers may read,
//! bit 1: write), address (u64), length (u64), number of devices (u8), for each device whether it has keys (u8) and the remote key (u32), sum
//! over all of it (u32)`. Little-endian. The sum finds bytes that were damaged on their way before a device stumbles over them; it proves
//! nothing about who made them.

use mori_core::{Access, Error, ErrorKind, Result, TransportBlob};

/// The transport's name.
pub(crate) const NAME: &str = "rdma";
const VERSION: u32 = 1;

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

/// What an engine descriptor carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineBlob {
    pub(crate) instance: [u8; 16],
    pub(crate) port: u16,
    pub(crate) devices: u8,
    pub(crate) host: String,
}

/// What a memory descriptor carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBlob {
    pub(crate) instance: [u8; 16],
    pub(crate) access: Access,
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// The remote key on each device.
    pub(crate) keys: Vec<Option<u32>>,
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }
}

fn malformed(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

fn check_version(blob: &TransportBlob) -> Result<()> {
    if blob.version == VERSION {
        return Ok(());
    }
    Err(malformed(format!("an rdma blob of version {}, where {VERSION} is understood", blob.version)))
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl EngineBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        let mut bytes = self.instance.to_vec();
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.push(self.devices);
        let host = &self.host[..self.host.floor_char_boundary(255)];
        bytes.push(u8::try_from(host.len()).unwrap_or(0));
        bytes.extend_from_slice(host.as_bytes());
        TransportBlob { transport: NAME.into(), version: VERSION, bytes }
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self> {
        check_version(blob)?;
        let mut fields = Fields(&blob.bytes);
        let mut read = || {
            let instance = fields.array()?;
            let port = u16::from_le_bytes(fields.array()?);
            let devices = fields.u8()?;
            let length = fields.u8()?;
            let host = std::str::from_utf8(fields.take(usize::from(length))?).ok()?.to_owned();
            let good = fields.0.is_empty() && devices > 0 && port > 0 && !host.is_empty();
            good.then_some(Self { instance, port, devices, host })
        };
        read().ok_or_else(|| malformed("an engine descriptor's rdma blob does not decode"))
    }
}

impl MemoryBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        let mut bytes = self.instance.to_vec();
        let readable = if self.access.remote_read { READABLE } else { 0 };
        let writable = if self.access.remote_write { WRITABLE } else { 0 };
        bytes.push(readable | writable);
        bytes.extend_from_slice(&self.address.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.push(u8::try_from(self.keys.len()).unwrap_or(u8::MAX));
        for key in self.keys.iter().take(usize::from(u8::MAX)) {
            bytes.push(u8::from(key.is_some()));
            bytes.extend_from_slice(&key.unwrap_or(0).to_le_bytes());
        }
        bytes.extend_from_slice(&sum(&bytes).to_le_bytes());
        TransportBlob { transport: NAME.into(), version: VERSION, bytes }
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self> {
        check_version(blob)?;
        let read = || {
            let (body, check) = blob.bytes.split_at_checked(blob.bytes.len().checked_sub(4)?)?;
            if check != sum(body).to_le_bytes() {
                return None;
            }
            let mut fields = Fields(body);
            let instance = fields.array()?;
            let rights = fields.u8()?;
            let address = u64::from_le_bytes(fields.array()?);
            let length = u64::from_le_bytes(fields.array()?);
            let count = fields.u8()?;
            let mut keys = Vec::with_capacity(usize::from(count));
            for _ in 0..count {
                let there = fields.u8()?;
                let key = u32::from_le_bytes(fields.array()?);
                keys.push((there == 1).then_some(key));
            }
            let access = Access { remote_read: rights & READABLE != 0, remote_write: rights & WRITABLE != 0 };
            let good = fields.0.is_empty() && address.checked_add(length).is_some();
            good.then_some(Self { instance, access, address, length, keys })
        };
        read().ok_or_else(|| {
            malformed("a memory descriptor's rdma blob does not decode; it was cut off or damaged on its way")
        })
    }
}

/// A blob of this transport among several.
pub(crate) fn find(blobs: &[TransportBlob]) -> Option<&TransportBlob> {
    blobs.iter().find(|blob| blob.transport == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_go_both_ways_and_anything_else_is_malformed() {
        let engine =
            EngineBlob { instance: [3; 16], port: 4711, devices: 2, host: "knoten-1.example".into() };
        let memory = MemoryBlob {
            instance: [4; 16],
            access: Access::READ_ONLY,
            address: 0x7fff_0000_1000,
            length: 1 << 33,
            keys: vec![Some(7), None, Some(u32::MAX)],
        };
        let (engine_blob, memory_blob) = (engine.encode(), memory.encode());
        assert_eq!(EngineBlob::decode(&engine_blob).unwrap(), engine);
        assert_eq!(MemoryBlob::decode(&memory_blob).unwrap(), memory);
        for length in 0..engine_blob.bytes.len() {
            let cut = TransportBlob { bytes: engine_blob.bytes[..length].to_vec(), ..engine_blob.clone() };
            assert_eq!(EngineBlob::decode(&cut).unwrap_err().kind(), ErrorKind::Malformed);
        }
        for length in 0..memory_blob.bytes.len() {
            let cut = TransportBlob { bytes: memory_blob.bytes[..length].to_vec(), ..memory_blob.clone() };
            assert_eq!(MemoryBlob::decode(&cut).unwrap_err().kind(), ErrorKind::Malformed);
        }
        for at in 0..memory_blob.bytes.len() {
            for mask in [1, 0x80, 0xff] {
                let mut flipped = memory_blob.clone();
                flipped.bytes[at] ^= mask;
                assert!(MemoryBlob::decode(&flipped).is_err(), "byte {at} flipped by {mask:#x}");
            }
        }
        let other = TransportBlob { version: 2, ..memory_blob };
        assert!(MemoryBlob::decode(&other).unwrap_err().message().contains("version 2"));
    }
}
